"""Served models: every stream has the tokens that it would have alone and without faults."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import (
    ContextPoisoned,
    DeviceLost,
    FaultReport,
    KernelHung,
    OutOfMemory,
    ReportedOp,
    Unsupported,
)
from atomr_accel.actors import Call, GetStatistics, open_actor_system
from atomr_accel.llm import (
    GrammarInvalid,
    LanguageModel,
    PromptTooLong,
    RequestAtFault,
    SamplingOptions,
    StepLogits,
    StepWork,
    TokenPiece,
    TokenRequest,
    open_language_model,
)
from atomr_accel.llm._request_stream import TokenStream
from atomr_accel.llm._sampler import GrammarState
from atomr_accel.patterns import Closed, Overloaded
from atomr_accel.testing import hang, poison

from ..harness import cpu_only, opened
from .byte_tokenizer import END, byte_tokenizer
from .toy_runner import ToyRunner, expected_tokens

POISON = 319


def _request(number: int, most: int = 12, **options: Any) -> TokenRequest:
    """Return one of different requests."""
    prompt = tuple((number * 31 + at * at) % 300 for at in range(1 + number % 7 * 3))
    sampling = {"temperature": (0.0, 0.8)[number % 2], "seed": number, "max_tokens": most}
    return TokenRequest(prompt=prompt, sampling=SamplingOptions(**{**sampling, **options}))


@asynccontextmanager
async def _opened(*, isolation: str = "thread", **options: Any) -> AsyncIterator[LanguageModel]:
    kinds = ("pages", "page_size", "context", "poisoned", "before")
    own = {name: options.pop(name) for name in kinds if name in options}
    async with opened(isolation=isolation, **options.pop("device", {})) as device:
        runner = ToyRunner(device, **own)
        async with open_language_model(device, runner, **options) as model:
            yield model


async def _all(model: LanguageModel, request: TokenRequest) -> list[TokenPiece]:
    async with model.generate(request) as pieces:
        return [piece async for piece in pieces]


async def _check(model: LanguageModel, request: TokenRequest) -> None:
    pieces = await _all(model, request)
    most = request.sampling.max_tokens
    assert most is not None
    assert tuple(piece.token for piece in pieces) == expected_tokens(request, most)
    assert [piece.finish for piece in pieces] == [None] * (most - 1) + ["length"]


async def _check_many(model: LanguageModel, number: int = 16) -> None:
    async with trio.open_nursery() as nursery:
        for at in range(number):
            nursery.start_soon(_check, model, _request(at))


@cpu_only
async def test_streams_have_the_tokens_that_they_have_alone() -> None:
    async with _opened(pages=33, step_sequences=10) as model:
        await _check_many(model)
        told = model.statistics()
        assert (told.finished, told.tokens, told.running, told.waiting) == (16, 16 * 12, 0, 0)
        assert (told.pages_used, told.faults, told.durable_cache) == (0, 0, False)
        assert told.preemptions
        assert told.tokens_per_second > 0


class _Faults:
    """Faults of some steps, without a device: the toy's cache is lost."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps
        self.step = 0

    def __call__(self, work: StepWork) -> None:
        del work
        self.step += 1
        if self.step in self.steps:
            raise _fault()


def _fault() -> ContextPoisoned:
    return ContextPoisoned("a fault", generation=1, status=700, status_name="ILLEGAL", op="step")


@cpu_only
async def test_streams_go_on_after_faults() -> None:
    async with _opened(before=_Faults(3, 9, 10, 20)) as model:
        await _check_many(model)
        told = model.statistics()
        assert (told.finished, told.failed, told.faults) == (16, 0, 4)
        assert told.recomputed
        assert not told.suspects
        assert not told.recovering


@cpu_only
async def test_the_request_at_fault_gets_the_fault_and_others_go_on() -> None:
    def before(work: StepWork) -> None:
        if any(POISON in piece.tokens for piece in work.slices):
            raise _fault()

    async with _opened(before=before) as model, trio.open_nursery() as nursery:
        for at in range(16):
            nursery.start_soon(_check, model, _request(at))
        with pytest.raises(RequestAtFault) as caught:
            await _all(model, TokenRequest(prompt=(1, 2, POISON)))
        assert isinstance(caught.value.__cause__, ContextPoisoned)
    assert (model.statistics().finished, model.statistics().failed) == (16, 1)


@cpu_only
async def test_no_request_is_at_fault_if_somebody_kills_the_host() -> None:
    kills = iter(range(3))

    def before(_work: StepWork) -> None:
        if next(kills, None) is not None:
            raise ContextPoisoned("killed", generation=1, status=-9, status_name="", op="step")

    async with _opened(before=before) as model:
        await _check(model, _request(0))
        assert model.statistics().faults == 3
        kills = iter(range(9))
        with pytest.raises(RequestAtFault):  # as if it used up the host's memory
            await _all(model, _request(1))


def _reported(
    task: str, *, certain: bool = False, kind: type[ContextPoisoned] = ContextPoisoned
) -> ContextPoisoned:
    """Return a fault in whose report an op of a task comes first, and one of the step later."""
    error = kind("a fault", generation=1, status=700, status_name="ILLEGAL", op="op")
    mine = trio.lowlevel.current_task().name
    ops = [
        ReportedOp(seq=at, name="op", lane="blas", task=each)
        for at, each in enumerate((task, mine))
    ]
    error.report = FaultReport(
        device="cpu:0",
        generation=1,
        at=0.0,
        status=700,
        status_name="ILLEGAL",
        message="a fault",
        op=ops[0],
        certain=certain,
        in_flight=(ops[1],),
    )
    return error


@cpu_only
async def test_no_request_is_at_fault_if_another_task_may_be() -> None:
    kinds = iter([("other", True), ("other", False), ("other", True)])

    def before(_work: StepWork) -> None:
        if (kind := next(kinds, None)) is not None:
            raise _reported(kind[0], certain=kind[1])

    async with _opened(before=before) as model:
        await _check(model, _request(0))
        assert model.statistics().faults == 3


@pytest.mark.parametrize("hung", [False, True])
@cpu_only
async def test_a_request_is_at_fault_if_nobody_else_may_be(hung: bool) -> None:
    def before(_work: StepWork) -> None:
        if hung:  # others wait behind it
            raise _reported("other", kind=KernelHung)
        raise _reported(trio.lowlevel.current_task().name)

    async with _opened(before=before) as model:
        with pytest.raises(RequestAtFault):
            await _all(model, _request(0))
        assert model.statistics().faults == 2
        await trio.testing.wait_all_tasks_blocked()
        assert not model.statistics().recovering  # or a server would refuse the next request


@pytest.mark.clock("mock")
async def test_a_deadline_is_told_by_its_scope() -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    stream = TokenStream(_request(0), None, None, None)  # type: ignore[arg-type]

    async def wait() -> None:
        with trio.move_on_after(1) as scope:
            await anext(aiter(stream))
        assert scope.cancelled_caught

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        clock.jump(2)  # the model's task sees it before trio cancels the scope
        stream.fail(trio.TooSlowError("the deadline of the request has passed"))


@cpu_only
async def test_an_error_of_the_runner_is_that_of_one_request() -> None:
    def before(work: StepWork) -> None:
        for piece in work.slices:
            if piece.start <= 2 < piece.start + len(piece.tokens) and POISON in piece.tokens:
                raise ZeroDivisionError

    async with _opened(before=before) as model, trio.open_nursery() as nursery:
        for at in range(5):
            nursery.start_soon(_check, model, _request(at))
        with pytest.raises(RequestAtFault) as caught:
            await _all(model, TokenRequest(prompt=(1, 2, POISON)))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert model.statistics().recomputed == 0  # the cache was there


@cpu_only
async def test_steps_get_smaller_when_memory_is_short() -> None:
    def before(work: StepWork) -> None:
        if sum(len(piece.tokens) for piece in work.slices) > 5:
            raise OutOfMemory("no room", requested=1)

    async with _opened(before=before) as model:
        await _check_many(model)
        assert model.statistics().failed == 0


@cpu_only
async def test_leaving_a_stream_ends_its_request_at_once() -> None:
    async with _opened() as model:
        async with model.generate(_request(3, most=100)) as pieces:
            await anext(pieces)
        told = model.statistics()
        assert (told.running, told.pages_used, told.aborted) == (0, 0, 1)
        with pytest.raises(Closed, match="the stream is closed: its block was left"):
            while True:  # after the pieces that were there
                await anext(pieces)
        with trio.CancelScope() as scope:
            async with model.generate(_request(4, most=100)) as pieces:
                await anext(pieces)
                scope.cancel()
                await anext(pieces)
        assert model.statistics().aborted == 2
        assert model.statistics().pages_used == 0
        await _check(model, _request(5))


@cpu_only
async def test_a_deadline_ends_a_stream_even_if_its_scope_got_another() -> None:
    async with _opened() as model:
        with trio.CancelScope() as scope:
            scope.deadline = trio.current_time() + 3600
            async with model.generate(_request(3, most=100)) as pieces:
                scope.deadline = trio.current_time() + 9999
                await anext(pieces)
                _pass(model)
                with pytest.raises(trio.TooSlowError):
                    while True:
                        await anext(pieces)
        assert model.statistics().aborted == 1


def _pass(model: LanguageModel) -> None:
    """Have the deadlines of all requests pass."""
    found = [(0.0, number, sequence) for _, number, sequence in model._scheduler._deadlines]
    model._scheduler._deadlines[:] = found


@cpu_only
async def test_requests_that_cannot_be_done_are_refused() -> None:
    async with _opened(most_waiting=1, step_sequences=1, context=32) as model:
        for prompt, error in (
            ((1,) * 32, PromptTooLong),
            ((), ValueError),
            ((320,), ValueError),
            ((-1,), ValueError),
            (("1",), TypeError),
        ):
            with pytest.raises(error):
                await _all(model, TokenRequest(prompt=prompt))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="tokenizer"):
            await _all(model, _request(1, stop=("x",)))
        with pytest.raises(TypeError, match="request"):
            await _all(model, "text")  # type: ignore[arg-type]
        with pytest.raises(Unsupported, match="tokenizer"):
            _ = model.tokenizer
        with pytest.raises(Unsupported, match="template"):
            model.render([{"role": "user", "content": "hi"}])
        assert model.context == 32
        async with AsyncExitStack() as stack:
            with pytest.raises(Overloaded):
                for at in range(4):  # one runs, one is the next, and one waits
                    await stack.enter_async_context(model.generate(_request(at, most=999)))
        assert model.statistics().refused == 1


@cpu_only
async def test_drained_models_finish_and_take_no_more() -> None:
    async with _opened() as model, trio.open_nursery() as nursery:
        async with model.generate(_request(2)) as pieces:
            nursery.start_soon(model.drain)
            found = [piece async for piece in pieces]
        assert found[-1].finish == "length"
        with pytest.raises(Closed):
            await _all(model, _request(3))
        assert model.statistics().draining


@cpu_only
async def test_an_exception_in_the_block_ends_streams() -> None:
    errors = []

    async def consume(model: LanguageModel, task_status: Any) -> None:
        async with model.generate(_request(1, most=100)) as pieces:
            task_status.started()
            with pytest.raises(Closed) as caught:
                while True:
                    await anext(pieces)
            errors.append(caught.value)

    async with trio.open_nursery() as nursery:
        with pytest.raises(ZeroDivisionError):
            async with _opened() as model:
                await nursery.start(consume, model)
                raise ZeroDivisionError
    assert isinstance(errors[0].__cause__, ZeroDivisionError)


@cpu_only
async def test_streams_end_with_a_lost_device() -> None:
    with pytest.RaisesGroup(DeviceLost, flatten_subgroups=True, allow_unwrapped=True):
        async with _opened(poisoned=POISON) as model:  # in a thread there is no way back
            await _all(model, TokenRequest(prompt=(POISON,)))


@cpu_only
async def test_text_comes_with_its_tokens() -> None:
    tokenizer = byte_tokenizer()
    async with _opened(tokenizer=tokenizer, end_tokens=[END]) as model:
        request = _request(2, most=30, logprobs=3)
        pieces = await _all(model, request)
        tokens = expected_tokens(request, 30, ends=[END])
        text = tokenizer.decode(tokens)
        assert tuple(piece.token for piece in pieces) == tokens
        assert "".join(piece.text for piece in pieces) == text
        assert all(piece.top[0].token == piece.token for piece in pieces)  # greedy
        assert all(piece.logprob == piece.top[0].logprob for piece in pieces)
        stop = text[5:8]
        pieces = await _all(model, _request(2, most=30, stop=(stop,)))
        assert "".join(piece.text for piece in pieces) == text[: text.index(stop)]
        assert pieces[-1].finish == "stop"


class _TellingRunner:
    """A runner without a device, which needs as many turns of the loop as a step of a recording."""

    pages, page_size, vocabulary, context = 16, 16, 8, 64

    def __init__(self, told: list[str]) -> None:
        self.told = told

    async def step(self, work: StepWork) -> StepLogits:
        for turn in range(16):
            await trio.lowlevel.checkpoint()
            if turn == 4:
                self.told.append("sent")
        self.told.append("done")
        return np.eye(sum(piece.rows for piece in work.slices), self.vocabulary, dtype=np.float32)


@cpu_only
async def test_callers_get_pieces_while_the_device_has_the_next_step() -> None:
    told: list[str] = []
    async with (
        opened(isolation="thread") as device,
        open_language_model(device, _TellingRunner(told)) as model,
        model.generate(_request(0, most=4)) as pieces,
    ):
        async for piece in pieces:
            assert not piece.text
            told.append("taken")
    assert told == ["sent", "done", *["sent", "taken", "done"] * 3, "taken"]


@cpu_only
async def test_the_end_of_text_ends_a_stream_unless_it_is_ignored() -> None:
    bias = {END: 100.0}
    async with _opened(tokenizer=byte_tokenizer(), end_tokens=[END]) as model:
        (piece,) = await _all(model, _request(2, logit_bias=bias))
        assert (piece.token, piece.text, piece.finish) == (END, "", "stop")
        pieces = await _all(model, _request(2, most=3, logit_bias=bias, ignore_eos=True))
        assert [piece.finish for piece in pieces] == [None, None, "length"]


@cpu_only
async def test_texts_follow_grammars_also_after_faults() -> None:
    grammar = 'start: "[" item ("," item){2,4} "]"\nitem: /[0-9]{1,3}/ | "true"'
    found = []
    for faults in ((), (2, 5)):
        async with _opened(
            tokenizer=byte_tokenizer(), end_tokens=[END], before=_Faults(*faults)
        ) as model:
            pieces = await _all(model, _request(3, most=100, grammar=grammar))
            assert pieces[-1].finish == "stop"
            found.append("".join(piece.text for piece in pieces))
            with pytest.raises(GrammarInvalid):
                await _all(model, _request(3, grammar="start: missing"))
    assert found[0] == found[1]
    assert isinstance(json.loads(found[0].replace("[0", "[").replace(",0", ",")), list)


@cpu_only
async def test_grammars_are_followed_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def noting(function: Any) -> Any:
        def noted(*args: Any) -> Any:
            threads.append(threading.get_ident())
            return function(*args)

        return noted

    for name in ("allowed", "add"):
        monkeypatch.setattr(GrammarState, name, noting(getattr(GrammarState, name)))
    async with _opened(tokenizer=byte_tokenizer(), end_tokens=[END]) as model:
        pieces = await _all(model, _request(3, most=100, grammar="start: /[ab]{5}/"))
        assert len(threads) >= 2 * 5
        assert threading.get_ident() not in threads
        assert len("".join(piece.text for piece in pieces)) == 5


@cpu_only
async def test_grammars_need_end_tokens() -> None:
    async with _opened(tokenizer=byte_tokenizer(), end_tokens=[]) as model:
        with pytest.raises(GrammarInvalid, match="without end_tokens"):
            await _all(model, _request(3, grammar='start: "a"'))


@cpu_only
async def test_a_model_has_a_place_in_the_tree() -> None:
    async with (
        open_actor_system("names") as system,
        _opened(model_name="toy", system=system, name="language") as model,
    ):
        request = _request(4)
        pieces = await model.ref.ask(Call(request))
        assert tuple(piece.token for piece in pieces) == expected_tokens(request, 12)
        told = await model.ref.ask(GetStatistics())
        assert told.finished == 1
        assert model.name == "toy"


@cpu_only
async def test_streams_outlive_a_restart_of_the_service() -> None:
    ends: list[None] = []

    def before(work: StepWork) -> None:
        if len(ends) < 2 and work.slices[0].start > 14 + 3 * len(ends):
            ends.append(None)
            raise DeviceLost("gone")

    async with (
        open_actor_system("names") as system,
        _opened(before=before, system=system, name="language") as model,
    ):
        await _check_many(model)
        assert len(ends) == 2
        assert model.statistics().failed == 0


@cpu_only
async def test_logits_of_a_wrong_shape_are_an_error_of_the_request() -> None:
    class Wrong(ToyRunner):
        async def step(self, work: StepWork) -> Any:
            return (await super().step(work))[:, 1:]

    async with opened(isolation="thread") as device:
        async with open_language_model(device, Wrong(device)) as model:
            with pytest.raises(RequestAtFault, match="a step must give logits of shape"):
                await _all(model, _request(1))
        with pytest.raises(TypeError, match="Runner"):
            async with open_language_model(device, 3):  # type: ignore[arg-type]
                pass


@cpu_only
@pytest.mark.slow
async def test_a_poisoned_prompt_on_a_device_fails_alone() -> None:
    device = {"max_restarts": 100}
    async with (
        _opened(isolation="process", poisoned=POISON, device=device) as model,
        trio.open_nursery() as nursery,
    ):
        for at in range(8):
            nursery.start_soon(_check, model, _request(at, most=40))
        with pytest.raises(RequestAtFault) as caught:
            await _all(model, TokenRequest(prompt=(1, 2, POISON)))
        assert isinstance(caught.value.__cause__, ContextPoisoned)
        await poison(model.device)  # somebody else's
        await _check(model, _request(9))
    assert model.statistics().failed == 1


@cpu_only
@pytest.mark.slow
async def test_a_step_that_hangs_is_killed_and_the_request_found() -> None:
    async with opened(isolation="process", op_deadline=0.3, max_restarts=100) as device:

        class Hanging(ToyRunner):
            async def step(self, work: StepWork) -> Any:
                if any(POISON in piece.tokens for piece in work.slices):
                    await hang(self.device)
                return await super().step(work)

        async with (
            open_language_model(device, Hanging(device)) as model,
            trio.open_nursery() as nursery,
        ):
            for at in range(3):
                nursery.start_soon(_check, model, _request(at))
            with pytest.raises(RequestAtFault) as caught:
                await _all(model, TokenRequest(prompt=(1, 2, POISON)))
            assert isinstance(caught.value.__cause__, KernelHung)
