"""Durable caches of models: after faults, streams continue from the tokens that are proven."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import pytest
import trio

from atomr_accel import ContextPoisoned, DeviceLost, GpuRefStale, Unsupported
from atomr_accel.actors import open_actor_system
from atomr_accel.llm import (
    LanguageModel,
    LlamaModel,
    RequestAtFault,
    SamplingOptions,
    StepSlice,
    StepWork,
    TokenRequest,
    load_folder,
    open_language_model,
)
from atomr_accel.testing import kill_host, poison

from .. import seeds
from ..durable.scribbling import scribble
from ..harness import cpu_only, opened, sized
from .tiny import make_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from atomr_accel import Device

PAGE: Final = 4
SMALL: Final[dict[str, Any]] = {"page_size": PAGE, "pages": 48}


@final
class Watched:
    """A runner that calls a function before each step, with the number of the step."""

    def __init__(self, model: LlamaModel, before: Callable[[int, StepWork], Any]) -> None:
        self.model = model
        self.before = before
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    async def choose(self, work: StepWork, choices: Any, *, logits: bool) -> Any:
        """Do a step."""
        self.steps += 1
        await self.before(self.steps, work)
        return await self.model.choose(work, choices, logits=logits)


def request(prompt: tuple[int, ...], most: int, at: int = 0, **options: Any) -> TokenRequest:
    """Return a request; ``at`` is its seed, and odd ones are sampled."""
    chosen = {"temperature": (0.0, 1.0)[at % 2], "seed": at, "ignore_eos": True, **options}
    return TokenRequest(prompt=prompt, sampling=SamplingOptions(max_tokens=most, **chosen))


def requests(number: int, most: int) -> list[TokenRequest]:
    """Return requests, some of which begin alike."""
    rng = seeds.rng()
    shared = rng.integers(0, 300, 9).tolist()
    return [
        request((*shared[: 9 * (at % 2)], *rng.integers(0, 300, 1 + at % 7).tolist()), most, at)
        for at in range(number)
    ]


async def answer(model: LanguageModel, one: TokenRequest) -> tuple[int, ...]:
    """Return the tokens of a stream."""
    async with model.generate(one) as pieces:
        return tuple([piece.token async for piece in pieces])


async def answers(model: LanguageModel, given: list[TokenRequest]) -> list[tuple[int, ...]]:
    """Return the tokens of streams that run side by side."""
    found: dict[int, tuple[int, ...]] = {}

    async def ask(at: int) -> None:
        found[at] = await answer(model, given[at])

    async with trio.open_nursery() as nursery:
        for at in range(len(given)):
            nursery.start_soon(ask, at)
    return [found[at] for at in range(len(given))]


async def loaded(device: Device, path: Path, **options: Any) -> LlamaModel:
    """Load a tiny model with a durable cache."""
    folder = load_folder(make_folder(path / "tiny"))
    return await LlamaModel.load(device, folder, **{**SMALL, "durable": True, **options})


def faults_at(device: Device, *steps: int) -> Callable[[int, StepWork], Any]:
    """Return a function that kills the host before some steps, so between two steps."""

    async def before(step: int, work: StepWork) -> None:
        del work
        if step in steps:
            await kill_host(device)

    return before


@cpu_only
async def test_streams_continue_between_two_steps_without_computing_a_token_again(
    tmp_path: Path,
) -> None:
    given = requests(5, 8)
    async with opened() as device:
        runner = Watched(await loaded(device, tmp_path), faults_at(device))
        async with open_language_model(device, runner, prefix_cache=False) as model:
            expected = await answers(model, given)
            assert model.statistics().durable_cache
        runner = Watched(runner.model, faults_at(device, 7))
        async with open_language_model(device, runner) as model:
            assert await answers(model, given) == expected
            told = model.statistics()
            assert (told.finished, told.faults, told.recomputed) == (5, 1, 0)
            assert told.kept >= 5 * 6
            # What the prefix cache has survives as well.
            before = runner.model.statistics().rows
            runner.before = faults_at(device, runner.steps + 1)
            hits = told.cache_hits
            assert await answer(model, given[0]) == expected[0]
            told = model.statistics()
            cached = (len(given[0].prompt) - 1) // PAGE * PAGE
            assert (told.faults, told.recomputed) == (2, 0)
            assert told.cache_hits - hits == cached
            rows = len(given[0].prompt) - cached + 8 - 1
            assert runner.model.statistics().rows - before == rows


@cpu_only
async def test_a_changed_page_loses_the_tokens_on_it_alone(tmp_path: Path) -> None:
    one = request(tuple(range(22)), 6)
    async with opened() as device:
        model = await loaded(device, tmp_path)
        runner = Watched(model, faults_at(device))
        async with open_language_model(device, runner, prefix_cache=False) as served:
            expected = await answer(served, one)

        async def before(step: int, work: StepWork) -> None:
            if step == 4:  # row 1 of the page with positions from 8 on, in the second layer
                refs = model._cache.refs
                assert refs is not None
                k, v = refs
                row = (model.pages + work.slices[0].pages[2]) * PAGE + 1
                scribble((k, v)[seeds.draw() % 2], row * k[0, 0, 0].nbytes + 3, b"\x7f")
                await kill_host(device)

        runner = Watched(model, before)
        async with open_language_model(device, runner) as served:
            assert await answers(served, [one, one]) == [expected] * 2
            told = served.statistics()
            # Positions 9 to 11, once for both streams: later ones are as they were.
            assert (told.recomputed, told.failed) == (3, 0)


@cpu_only
async def test_recordings_continue_after_a_fault(tmp_path: Path) -> None:
    one = request((1, 2, 3), 12)
    async with opened() as device:
        model = await loaded(device, tmp_path, page_size=16)
        runner = Watched(model, faults_at(device))
        async with open_language_model(device, runner, prefix_cache=False) as served:
            expected = await answer(served, one)
            replayed = model.statistics().replayed
            assert replayed
            before = [each.recording for each in model._recorded.values()]
            runner.before = faults_at(device, runner.steps + 6)
            assert await answer(served, one) == expected
            assert model.statistics().replayed >= 2 * replayed
            after = [each.recording for each in model._recorded.values()]
            assert {*before} <= {*after}
            assert max(each.statistics().rebuilds for each in before) == 1
            assert served.statistics().recomputed == 0


@cpu_only
async def test_faults_during_a_recovery(tmp_path: Path) -> None:
    one = request((1, 2, 3, 4, 5, 6), 6)
    async with opened(max_restarts=100) as device:
        model = await loaded(device, tmp_path)
        runner = Watched(model, faults_at(device))
        async with open_language_model(device, runner, prefix_cache=False) as served:
            expected = await answer(served, one)
            runner.before = faults_at(device, runner.steps + 4)
            pages: Any = model._cache._pages
            left, recover = 2, pages.recover

            async def failing(filled: Any) -> Any:
                nonlocal left
                left -= 1
                if left >= 0:
                    raise await poison(device)
                return await recover(filled)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(pages, "recover", failing, raising=False)
                assert await answer(served, one) == expected
                assert served.statistics().recomputed == 0
                left = 99  # it gives up, and all is computed again
                runner.before = faults_at(device, runner.steps + 4)
                assert await answer(served, one) == expected
            assert model._cache._pages is not pages
            told = served.statistics()
            assert (told.recomputed, told.failed) == (6 + 2, 0)
            assert model.statistics().caches_lost == 1


@cpu_only
async def test_a_request_at_fault_is_found_and_others_keep_their_tokens(tmp_path: Path) -> None:
    given = requests(4, 6)
    bad = 299

    async with opened(max_restarts=100) as device:

        async def before(step: int, work: StepWork) -> None:
            del step
            if any(bad in piece.tokens for piece in work.slices):
                raise await poison(device)

        model = await loaded(device, tmp_path)
        runner = Watched(model, faults_at(device))
        given = [each for each in given if bad not in each.prompt]
        async with open_language_model(device, runner, prefix_cache=False) as served:
            expected = await answers(served, given)
        async with open_language_model(device, Watched(model, before)) as served:
            async with trio.open_nursery() as nursery:

                async def fails() -> None:
                    with pytest.raises(RequestAtFault) as caught:
                        await answer(served, request((1, 2, bad), 3))
                    assert isinstance(caught.value.__cause__, ContextPoisoned)

                nursery.start_soon(fails)
                assert await answers(served, given) == expected
            assert served.statistics().failed == 1


@cpu_only
async def test_a_restart_of_the_service_loses_no_token(tmp_path: Path) -> None:
    given = requests(3, 6)

    async def before(step: int, work: StepWork) -> None:
        del work
        if step == 4:
            raise DeviceLost("gone")

    async with opened() as device, open_actor_system("names") as system:
        model = await loaded(device, tmp_path)
        async with open_language_model(device, model, prefix_cache=False) as served:
            expected = await answers(served, given)
        watched = Watched(model, before)
        async with open_language_model(device, watched, system=system, name="words") as served:
            assert await answers(served, given) == expected
            told = served.statistics()
            assert (told.failed, told.faults, told.recomputed) == (0, 1, 0)
            assert told.kept


@cpu_only
async def test_a_durable_model_by_itself(tmp_path: Path) -> None:
    async with opened() as device:
        model = await loaded(device, tmp_path, pages=8)
        first = StepSlice(sequence=0, tokens=(1, 2, 3, 4, 5), start=0, pages=(6, 2), sample=True)
        second = StepSlice(sequence=0, tokens=(7,), start=5, pages=(6, 2), sample=True)
        await model.step(StepWork(slices=(first,)))
        expected = await model.step(StepWork(slices=(second,)))
        await kill_host(device)
        with pytest.raises(GpuRefStale, match=r"await model.recover\(\)"):
            await model.step(StepWork(slices=(second,)))
        assert (await model.recover()).tolist() == [0, 0, 2, 0, 0, 0, 4, 0]
        np.testing.assert_array_equal(await model.step(StepWork(slices=(second,))), expected)
        assert model.statistics().caches_lost == 0


async def test_what_is_refused(tmp_path: Path) -> None:
    async with opened(isolation="thread") as device:
        with pytest.raises(Unsupported, match='isolation="process"'):
            await loaded(device, tmp_path)
        with pytest.raises(TypeError, match="durable"):
            await loaded(device, tmp_path, durable=1)
        model = await loaded(device, tmp_path, durable=False)
        assert not model.durable
        with pytest.raises(ValueError, match="must be durable to recover"):
            await model.recover()
        with pytest.raises(ValueError, match="durable must be left out with a runner"):
            async with open_language_model(device, model, durable=True):
                raise AssertionError


@cpu_only
@pytest.mark.slow
async def test_kills_at_random_moments(tmp_path: Path) -> None:
    """Streams are the same, also with preemptions, and nearly all tokens are kept."""
    source = random.Random(seeds.draw())
    given = requests(8, 24)
    async with opened(max_restarts=1000) as device:
        alone = await loaded(device, tmp_path, durable=False)
        async with open_language_model(device, alone, prefix_cache=False) as served:
            expected = await answers(served, given)
        for pages in (64, 20):  # these are too few for all
            model = await loaded(device, tmp_path, pages=pages)
            async with open_language_model(device, model, step_tokens=24, step_sequences=8) as one:

                async def kill(left: int, served: LanguageModel = one) -> None:
                    async with served.generate(request((1,), 10_000)) as pieces:
                        async for _ in pieces:
                            left -= 1
                            if not left:
                                for _ in range(source.randrange(40)):
                                    await trio.lowlevel.checkpoint()
                                await source.choice((kill_host, poison))(device)
                                return

                for _ in range(sized(3, 40)):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(kill, source.randint(1, 30))
                        assert await answers(one, given) == expected
                told = one.statistics()
                assert told.failed == 0
                assert told.kept
                assert bool(told.preemptions) == (pages == 20)
                if not told.preemptions:  # at most those of the steps in flight
                    assert told.recomputed <= told.kept / 100
