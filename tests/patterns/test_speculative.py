"""Speculative decoding: its output, its calls of models, and how texts end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel.patterns import (
    AdaptiveLength,
    Closed,
    Draft,
    DraftTree,
    Logits,
    LookupDraft,
    ModelDraft,
    NGramDraft,
    Probabilities,
    Retry,
    Sampling,
    SpeculativeDecoder,
    Tokens,
    Verdict,
    WrongResults,
    open_speculative,
)
from atomr_accel.patterns._draft_length import LengthSeen
from atomr_accel.patterns._sampling import ROOT
from atomr_accel.testing.garbage import collect_garbage

from ..harness import refused, sized
from ..seeds import rng as seeded
from .toy_models import ToyModel, ToyText, assert_distributed
from .worlds import Log, poisoned

pytestmark = pytest.mark.clock("mock")

GREEDY = Sampling(temperature=0)
PROMPT = [0, 1, 2, 0, 1]


def greedy(model: ToyModel, prompt: Sequence[int], count: int) -> list[int]:
    """Return the model's own greedy text."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(model.logits(text).argmax()))
    return text[len(prompt) :]


def draft_of(kind: str, target: ToyModel) -> Draft | None:
    """A draft by its name."""
    if kind == "model":
        return ModelDraft(ToyModel(9, like=target, noise=0.7))
    if kind == "n-grams":
        return NGramDraft(order=3)
    if kind == "look-up":
        return LookupDraft(most=2, prompt_only=False)
    assert kind == "none"
    return None


KINDS = ("none", "model", "n-grams", "look-up")


# --- what comes out


@pytest.mark.slow
@pytest.mark.parametrize("branching", [(), (2, 2)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
async def test_texts_have_the_targets_distribution(kind: str, branching: tuple[int, ...]) -> None:
    target = ToyModel(1, 3)
    sampling = Sampling(temperature=1.2, top_p=0.95)
    found = Counter[int]()
    async with open_speculative(
        target,
        draft_of(kind, target),
        sampling=sampling,
        length=AdaptiveLength(maximum=3),
        branching=branching,
        rng=seeded(),
    ) as decoder:
        for _ in range(sized(200, 10_000)):
            first, second, third = [token async for token in decoder.generate(PROMPT, max_tokens=3)]
            found[first * 9 + second * 3 + third] += 1
    assert_distributed(found, target.joint(PROMPT, 3, sampling))
    assert target.open == 0


@pytest.mark.parametrize("branching", [(), (3, 2)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
async def test_greedy_texts_are_the_targets_own(kind: str, branching: tuple[int, ...]) -> None:
    target = ToyModel(4, 6)
    async with open_speculative(
        target, draft_of(kind, target), sampling=GREEDY, branching=branching
    ) as decoder:
        got = [token async for token in decoder.generate(PROMPT, max_tokens=40)]
    assert got == greedy(target, PROMPT, 40)
    seen = decoder.statistics()
    assert seen.tokens == 40
    assert (seen.submitted, seen.answered, seen.running) == (1, 1, 0)
    assert seen.steps == target.forwards
    assert seen.kept <= seen.drafted
    assert seen.tokens_per_step == 40 / seen.steps
    assert seen.acceptance_length == seen.kept / seen.steps
    assert (seen.steps == 40) == (
        kind == "none"
    )  # else the text, which goes in circles, is drafted


async def test_the_target_itself_drafts_as_many_as_it_is_asked_for() -> None:
    target = ToyModel(5)
    async with open_speculative(
        target, ModelDraft(ToyModel(0, like=target, noise=0)), length=4
    ) as decoder:
        tokens = [token async for token in decoder.generate([0], max_tokens=10)]
    seen = decoder.statistics()
    assert (len(tokens), seen.steps, seen.kept, seen.drafted) == (10, 2, 8, 8)
    assert seen.tokens_per_step == 5


async def test_the_seed_says_what_comes() -> None:
    target = ToyModel(5)
    texts: list[list[list[int]]] = []
    for rng in (7, np.random.default_rng(7), 8):
        async with open_speculative(target, draft_of("model", target), rng=rng) as decoder:
            texts.append(
                [
                    [token async for token in decoder.generate([0], max_tokens=20, rng=own)]
                    for own in (None, None, np.random.default_rng(1), np.random.default_rng(1))
                ]
            )
    assert texts[0] == texts[1]
    assert texts[0][:2] != texts[2][:2]
    for first, second, third, fourth in texts:
        assert first != second
        assert third == fourth


async def test_texts_end_where_they_should() -> None:
    target = ToyModel(4, 6)
    all_of_it = greedy(target, PROMPT, 30)
    async with open_speculative(target, draft_of("model", target), sampling=GREEDY) as decoder:

        async def ends(max_tokens: int | None, *stop: int) -> list[int]:
            tokens = decoder.generate(PROMPT, max_tokens=max_tokens, stop=stop)
            got = [token async for token in tokens]
            assert [token async for token in tokens] == []
            assert target.open == 0
            return got

        assert await ends(0) == []
        assert await ends(1) == all_of_it[:1]
        for token in set(all_of_it):
            assert await ends(None, token, 77) == all_of_it[: all_of_it.index(token) + 1]
        assert await ends(2, all_of_it[-1], 99) in (all_of_it[:2], all_of_it[:1])
        assert await ends(30) == all_of_it


async def test_texts_side_by_side() -> None:
    target = ToyModel(4, 6)
    async with open_speculative(target, draft_of("model", target), sampling=GREEDY) as decoder:

        async def one(prompt: list[int]) -> None:
            got = [token async for token in decoder.generate(prompt, max_tokens=20)]
            assert got == greedy(target, prompt, 20)

        async with trio.open_nursery() as nursery:
            for n in range(36):
                nursery.start_soon(one, [n // 6, n % 6])
    assert target.open == 0


# --- drafts of the text


async def proposed(draft: Draft, prompt: list[int], *more: int, shape: Sequence[int]) -> DraftTree:
    """Return the draft behind a prompt and more tokens, one by one."""
    drafts = draft.begin(prompt)
    for end in range(len(more) + 1):
        text = [*prompt, *more[:end]]
        tree = await drafts.propose(text, shape, Sampling(), seeded())
    return tree


async def test_lookup_draft_finds_repeated_text() -> None:
    prompt = [1, 2, 3, 4, 9, 2, 3, 5, 6]
    draft = LookupDraft(most=2)
    tree = await proposed(draft, prompt, 2, 3, shape=[1, 1, 1])
    assert tree.tokens == [5, 6]  # the latest place; there the prompt ends
    tree = await proposed(draft, prompt, 2, 3, shape=[2, 1])
    assert (tree.tokens, tree.parents) == ([5, 6, 4, 9], [-1, 0, -1, 2])
    tree = await proposed(draft, prompt, 8, 4, shape=[1])
    assert tree.tokens == [9]  # by a single token
    assert not len(await proposed(draft, prompt, 7, shape=[1]))
    assert not len(await proposed(draft, prompt, 7, 8, 7, shape=[1]))
    assert (await proposed(LookupDraft(prompt_only=False), prompt, 7, 8, 7, shape=[1])).tokens == [
        8
    ]
    assert not len(await proposed(LookupDraft(most=3, fewest=2), prompt, 8, 4, shape=[1]))


async def test_n_gram_draft_continues_known_text() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 2, 6, 1]
    tree = await proposed(NGramDraft(order=3), text, 2, shape=[1, 1])
    assert tree.tokens == [3, 1]  # after (1, 2) mostly 3; after (2, 3) 1 came first
    tree = await proposed(NGramDraft(order=2), text, 2, shape=[3])
    assert tree.tokens == [3, 4, 6]
    assert not len(await proposed(NGramDraft(), text, 7, shape=[2, 2]))


# --- how many


def test_a_length_that_pays() -> None:
    length = AdaptiveLength(maximum=8, cost=0.1)
    assert length.best(0.0) == 1
    assert length.best(1.0) == 8
    chosen = [length.best(kept / 20) for kept in range(21)]
    assert chosen == sorted(chosen)
    assert AdaptiveLength(minimum=0).best(0.05) == 0
    assert AdaptiveLength(cost=0).best(0.5) == 8


def test_a_length_follows_what_is_kept() -> None:
    seen = LengthSeen(AdaptiveLength(maximum=6, memory=20))
    for _ in range(20):
        seen.saw(seen.now, seen.now)
    assert seen.now == 6
    for _ in range(40):
        seen.saw(seen.now, 0)
    assert seen.now == 1
    seen.saw(0, 0)
    assert seen.now == 1
    fixed = LengthSeen(3)
    fixed.saw(3, 0)
    assert fixed.now == 3


# --- cancellation, faults, ends


async def test_a_token_that_was_not_waited_for_comes_next() -> None:
    async def slow(_where: str) -> None:
        await trio.sleep(1)

    target = ToyModel(4, 6, hook=slow)
    async with open_speculative(target, draft_of("model", target), sampling=GREEDY) as decoder:
        got: list[int] = []
        async with decoder.generate(PROMPT, max_tokens=12) as tokens:
            for limit in cycle([0.5, 1.5, 2.5]):
                if len(got) == 12:
                    break
                with trio.move_on_after(limit):
                    got.append(await anext(tokens))
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await anext(tokens)  # a checkpoint
            assert [token async for token in tokens] == []
    assert got == greedy(target, PROMPT, 12)
    assert target.open == 0


async def test_a_fault_costs_caches_and_no_token() -> None:
    faults = iter([False, True, False, True, True] + [False] * 1000)

    async def hook(where: str) -> None:
        await trio.lowlevel.checkpoint()
        if where == "after" and next(faults):
            raise poisoned()

    log = Log()
    target = ToyModel(4, 6, hook=hook)
    async with open_speculative(
        target, draft_of("model", target), sampling=GREEDY, observer=log
    ) as decoder:
        got = [token async for token in decoder.generate(PROMPT, max_tokens=20)]
    assert got == greedy(target, PROMPT, 20)
    seen = decoder.statistics()
    assert (seen.retries, seen.prefills) == (3, 4)
    assert log.ends() == {tuple(PROMPT): 1}
    assert ("retried", tuple(PROMPT)) in log.lines


async def test_an_error_ends_the_text_behind_what_was_decided() -> None:
    async def hook(where: str) -> None:
        await trio.lowlevel.checkpoint()
        if where == "before" and target.forwards == 2:
            raise poisoned()

    target = ToyModel(4, 6, hook=hook)
    async with open_speculative(target, None, sampling=GREEDY, retry=Retry(attempts=2)) as decoder:
        tokens = decoder.generate(PROMPT)
        assert [await anext(tokens), await anext(tokens)] == greedy(target, PROMPT, 2)
        with pytest.raises(type(poisoned())) as caught:
            await anext(tokens)
        assert "attempt 1 ended with" in caught.value.__notes__[0]
        with pytest.raises(StopAsyncIteration):
            await anext(tokens)
        assert target.open == 0
        seen = decoder.statistics()
        assert (seen.failed, seen.running, seen.tokens, seen.retries) == (1, 0, 2, 1)


async def test_texts_that_are_left_are_closed() -> None:
    target = ToyModel(4, 6)
    async with open_speculative(target, draft_of("model", target)) as decoder:
        async for _ in decoder.generate(PROMPT):
            break
        collect_garbage()
        await trio.testing.wait_all_tasks_blocked()
        assert target.open == 0
        async with decoder.generate(PROMPT) as tokens:
            await anext(tokens)
            assert target.open == 1
        assert target.open == 0
        assert [token async for token in tokens] == []
        open_text = decoder.generate(PROMPT)
        await anext(open_text)
        assert decoder.statistics().withdrawn == 2
    assert target.open == 0
    assert decoder.statistics().withdrawn == 3
    with pytest.raises(Closed):
        await anext(open_text)
    with pytest.raises(StopAsyncIteration):
        await anext(open_text)
    with pytest.raises(Closed):
        decoder.generate(PROMPT)


async def test_no_error_of_a_model_is_a_texts_end() -> None:
    async def hook(where: str) -> None:
        await trio.lowlevel.checkpoint()
        if where == "before" and target.forwards == 2:
            raise StopAsyncIteration("of something else")

    target = ToyModel(4, 6, hook=hook)
    async with open_speculative(target, None, sampling=GREEDY) as decoder:
        got: list[int] = []
        with pytest.raises(RuntimeError, match="a model raised StopAsyncIteration") as caught:
            async for token in decoder.generate(PROMPT, max_tokens=9):
                got.append(token)  # noqa: PERF401 (what came before counts)
        assert isinstance(caught.value.__cause__, StopAsyncIteration)
        assert got == greedy(target, PROMPT, 2)
        assert decoder.statistics().failed == 1


async def test_no_text_is_cut_short_in_silence() -> None:
    """All was decided in one step, and the block is left before it was taken."""
    target = ToyModel(4, 6)
    twin = ModelDraft(ToyModel(0, like=target, noise=0))
    async with open_speculative(target, twin, length=4) as decoder:
        taken, left = (decoder.generate(PROMPT, max_tokens=5) for _ in range(2))
        for tokens in (taken, left):
            await anext(tokens)
        await left.aclose()
        assert decoder.statistics().steps == 2
    with pytest.raises(Closed):
        await anext(taken)
    for tokens in (taken, left):
        assert [token async for token in tokens] == []
    assert (decoder.statistics().answered, decoder.statistics().withdrawn) == (0, 2)


async def test_a_model_that_fails_to_close(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(ToyText):
        def close(self) -> None:
            super().close()
            raise OSError("stuck")

    async def prefill(tokens: Tokens) -> ToyText:
        await trio.lowlevel.checkpoint()
        return (Stuck if tokens.size == 1 else ToyText)(target, tokens.tolist())

    target = ToyModel(4)
    small = ToyModel(5)
    with pytest.raises(OSError, match=r"^stuck$"):
        async with open_speculative(prefill, ModelDraft(small)) as decoder:
            async for _ in decoder.generate([1, 2]):
                break
            collect_garbage()
            await trio.testing.wait_all_tasks_blocked()
            assert "failed to close a text that was dropped" in caplog.text
            assert target.open == small.open == 0
            texts = [decoder.generate([1] * length) for length in (1, 2, 3)]
            for text in texts:
                await anext(text)
            assert target.open == 3
    assert target.open == small.open == 0


async def test_waiting_callers_learn_of_the_end() -> None:
    async def forever(where: str) -> None:
        await trio.sleep_forever()

    target = ToyModel(4, hook=forever)
    ends: list[type[BaseException]] = []

    async def consume(decoder: SpeculativeDecoder, task_status: trio.TaskStatus[object]) -> None:
        tokens = decoder.generate(PROMPT)
        task_status.started(tokens)
        try:
            await anext(tokens)
        except (Closed, StopAsyncIteration) as error:
            ends.append(type(error))

    async with trio.open_nursery() as nursery:
        async with open_speculative(target, None) as decoder:
            tokens = await nursery.start(consume, decoder)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await anext(tokens)
            await tokens.aclose()
            await trio.testing.wait_all_tasks_blocked()
            assert ends == [StopAsyncIteration]
            assert decoder.statistics().withdrawn == 1

        with pytest.raises(KeyError):
            async with open_speculative(target, None) as decoder:
                await nursery.start(consume, decoder)
                await trio.testing.wait_all_tasks_blocked()
                raise KeyError
        await trio.testing.wait_all_tasks_blocked()
    assert ends == [StopAsyncIteration, Closed]
    assert decoder.statistics().refused == 1


# --- what cannot be


@pytest.mark.parametrize("rows", [0, 1, 5])
async def test_logits_of_something_else_are_told(rows: int) -> None:
    class Wrong:
        async def forward(
            self, tokens: Tokens, parents: Tokens
        ) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
            await trio.lowlevel.checkpoint()
            return np.zeros((rows, 4), np.float32)

        def keep(self, path: Tokens) -> None: ...

        def close(self) -> None: ...

    async def prefill(_tokens: Tokens) -> Wrong:
        await trio.lowlevel.checkpoint()
        return Wrong()

    async with open_speculative(prefill, LookupDraft(), length=2) as decoder:
        with pytest.raises(WrongResults, match="must return logits of shape"):
            await anext(decoder.generate([1, 2, 3, 1]))


LOGITS = np.zeros((9, 4))


def shrinking(rows: int, behind: int) -> Logits:
    return LOGITS[:rows, : 4 if behind < 2 else 3]


@pytest.mark.parametrize("where", ["target", "draft"])
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda rows, _: LOGITS[:rows].tolist(), "got list"),
        (lambda rows, _: None, "got NoneType"),
        (lambda rows, _: LOGITS[:rows].astype(complex), r"got complex128 of shape \(., 4\)"),
        (lambda rows, _: LOGITS[:rows].astype(object), "got object of shape"),
        (lambda rows, _: LOGITS[:rows, :0], r"got float64 of shape \(., 0\)"),
        (lambda rows, _: LOGITS[0], r"got float64 of shape \(4,\)"),
        (shrinking, r"\(., 4\), got float64 of shape \(., 3\)"),
    ],
)
async def test_invalid_logits_are_refused(
    where: str, made: Callable[[int, int], Logits], said: str
) -> None:
    class Wrong(ToyText):
        async def forward(self, tokens: Tokens, parents: Tokens) -> Logits:
            await super().forward(tokens, parents)
            return made(tokens.size, len(self.kept))

    async def prefill(tokens: Tokens) -> Wrong:
        await trio.lowlevel.checkpoint()
        return Wrong(ToyModel(1), tokens.tolist())

    models = (prefill, None) if where == "target" else (ToyModel(1), ModelDraft(prefill))
    async with open_speculative(*models, length=2) as decoder:
        with pytest.raises(WrongResults, match=said):
            async for _ in decoder.generate([1], max_tokens=9):
                pass
        assert decoder.statistics().failed == 1


@pytest.mark.parametrize(
    ("tokens", "drawn_from", "said"),
    [
        (None, {}, "must return a DraftTree, got NoneType"),
        ([-1], {}, "a draft is token -1"),
        ([4], {}, "a draft is token 4, but the target's are from 0 to 3"),
        ([1], {ROOT: [0.25] * 4}, r"drawn_from\[-1\] must be probabilities"),
        ([1], {ROOT: np.array([-1, 2, 0, 0])}, r"drawn_from\[-1\]"),
        ([1], {ROOT: np.full(4, np.nan)}, r"drawn_from\[-1\]"),
        ([1], {ROOT: np.zeros(4)}, r"drawn_from\[-1\]"),
    ],
)
async def test_invalid_drafts_are_refused(
    tokens: list[int] | None, drawn_from: dict[int, Probabilities], said: str
) -> None:
    """Before the target is asked, which may look up in memory what the numbers tell."""

    class Wrong:
        def begin(self, prompt: Sequence[int]) -> Wrong:
            return self

        async def propose(self, text: Sequence[int], *_more: object) -> DraftTree:
            await trio.lowlevel.checkpoint()
            tree = DraftTree()
            if len(text) > 2:
                if tokens is None:
                    return None  # type: ignore[return-value]
                tree.add_chain(tokens)
                tree.drawn_from.update(drawn_from)
            return tree

        def keep(self, path: Sequence[int]) -> None: ...

        def drop(self) -> None: ...

    target = ToyModel(1, 4)
    async with open_speculative(target, Wrong()) as decoder:
        text = decoder.generate([1, 2])
        await anext(text)
        with pytest.raises(WrongResults, match=said):
            await anext(text)
        assert target.forwards == 1


async def test_a_target_may_judge_by_itself() -> None:
    """The target keeps drafts of even tokens and replaces the others with 7, also at the end."""

    class Judge(ToyText):
        async def forward(self, tokens: Tokens, parents: Tokens) -> Verdict:  # type: ignore[override]
            await super().forward(tokens % 4, parents)
            return Verdict((tokens[1:] + 1) % 2 * 1.0, np.full(len(tokens), 7))

    async def prefill(tokens: Tokens) -> Judge:
        await trio.lowlevel.checkpoint()
        return Judge(ToyModel(1), tokens.tolist())

    async with open_speculative(prefill, LookupDraft(), length=3) as decoder:
        tokens = decoder.generate([7, 2, 3, 4, 7], max_tokens=4)
        assert [token async for token in tokens] == [2, 7, 2, 7]
    async with open_speculative(ToyModel(1), ModelDraft(prefill)) as decoder:  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not a Verdict"):
            await anext(decoder.generate([1, 2]))


async def no_cache(_tokens: Tokens) -> Any:
    await trio.lowlevel.checkpoint()


async def test_arguments_that_cannot_be() -> None:
    target = ToyModel(1)
    for options, error in (
        ({"length": -1}, ValueError),
        ({"length": 1.5}, TypeError),
        ({"branching": (0,)}, ValueError),
        ({"sampling": 0.5}, TypeError),
        ({"retry": 3}, TypeError),
    ):
        await refused(error, None, open_speculative, target, None, **options)
    for models in ((3, None), (target, 3), (target, target)):
        await refused(TypeError, "must be", open_speculative, *models)
    async with open_speculative(target, None) as decoder:
        with pytest.raises(ValueError, match="at least"):
            decoder.generate([])
        with pytest.raises(
            ValueError, match="max_tokens must be a whole number of at least 0, not -1"
        ):
            decoder.generate([1], max_tokens=-1)
        for prompt in ([0.5], [True], np.array([[1, 2]]), "ab"):
            with pytest.raises(TypeError, match="a token of the prompt must be a whole number"):
                decoder.generate(prompt)  # type: ignore[arg-type]
        for token in (-1, 1 << 63):
            with pytest.raises(ValueError, match="a token of the prompt must be"):
                decoder.generate([token])
        with pytest.raises(TypeError):
            DraftTree().add(1.5)  # type: ignore[arg-type]
    async with open_speculative(no_cache, None) as decoder:
        with pytest.raises(WrongResults, match="must return a CachedText, got NoneType"):
            await anext(decoder.generate([1]))
    async with open_speculative(target, None) as decoder:
        with pytest.raises(TypeError, match="open_speculative"):
            SpeculativeDecoder()  # type: ignore[call-arg]
    for wrong in ({"maximum": 0}, {"cost": -1}, {"memory": 0}, {"minimum": -1}):
        with pytest.raises(ValueError, match=r"(minimum|cost|memory) must be"):
            AdaptiveLength(**wrong)
    for make in (lambda: NGramDraft(order=1), lambda: LookupDraft(most=1, fewest=2)):
        with pytest.raises(ValueError, match=r"must be a whole number from \d+ to"):
            make()
    with pytest.raises(TypeError, match="coroutine function"):
        ModelDraft(3)  # type: ignore[arg-type]
