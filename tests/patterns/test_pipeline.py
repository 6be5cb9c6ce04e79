"""Pipelines: stages overlap, the order is kept, and every item has one end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.patterns import Closed, Observer, Pipeline, Stage, open_pipeline
from atomr_accel.testing.garbage import collect_garbage

from ..harness import on_mock_clock


class Bad(Exception):
    """Raised by a stage for an item."""


async def double(x: int) -> int:
    await trio.sleep(1)
    return 2 * x


async def name(x: int) -> str:
    await trio.sleep(1)
    return f"<{x}>"


async def numbers(count: int) -> AsyncIterator[int]:
    for x in range(count):
        yield x


async def test_one_item(autojump_clock: trio.testing.MockClock) -> None:
    async with open_pipeline(double, name) as pipeline:
        assert await pipeline(21) == "<42>"
        assert trio.current_time() == 2
        statistics = pipeline.statistics()
    assert (statistics.submitted, statistics.answered, statistics.in_progress) == (1, 1, 0)
    assert [stage.name for stage in statistics.stages] == ["double", "name"]


async def test_stages_overlap(autojump_clock: trio.testing.MockClock) -> None:
    async with open_pipeline(double, name) as pipeline:
        results = [result async for result in pipeline.run(numbers(10))]
        assert results == [f"<{2 * x}>" for x in range(10)]
        assert trio.current_time() == 11  # and not 20


async def test_a_stage_twice(autojump_clock: trio.testing.MockClock) -> None:
    stage = Stage(double, concurrency=2)
    async with open_pipeline(stage, stage) as pipeline:
        assert [result async for result in pipeline.run(numbers(4))] == [0, 4, 8, 12]
        assert trio.current_time() == 3


async def test_items_enter_each_stage_in_their_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    seen: list[int] = []

    async def uneven(x: int) -> int:
        await trio.sleep(5 - x % 5)
        return x

    async def note(x: int) -> int:
        seen.append(x)
        return x

    stage = Stage(uneven, concurrency=5)
    async with open_pipeline(stage, note) as pipeline, trio.open_nursery() as nursery:
        for x in range(20):
            nursery.start_soon(pipeline, x)
            await trio.testing.wait_all_tasks_blocked()
    assert seen == [*range(20)]


async def test_items_that_are_taken_at_once_keep_their_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    entered: list[list[int]] = [[], []]

    def stage(place: int) -> Stage[int, int]:
        async def work(x: int) -> int:
            entered[place].append(x)
            await trio.sleep(1)  # all that have begun together also end together
            return x

        return Stage(work, concurrency=4)

    async with open_pipeline(stage(0), stage(1), buffer=8) as pipeline:
        assert [x async for x in pipeline.run(numbers(60))] == [*range(60)]
    assert entered == [[*range(60)]] * 2


async def test_a_source_is_read_no_further_than_there_is_room(
    autojump_clock: trio.testing.MockClock,
) -> None:
    read: list[int] = []

    async def source() -> AsyncIterator[int]:
        for x in range(100):
            read.append(x)
            yield x

    async with open_pipeline(double, name, buffer=1) as pipeline:
        async with pipeline.run(source()) as results:
            assert await anext(results) == "<0>"
            await trio.sleep(1000)
            assert len(read) <= 1 + 4 + 2
        await trio.sleep(1000)
    assert len(read) <= 1 + 4 + 2


async def test_an_error_comes_in_its_turn(autojump_clock: trio.testing.MockClock) -> None:
    async def picky(x: int) -> int:
        if x == 2:
            raise Bad
        return x

    got = []
    async with open_pipeline(Stage(picky, concurrency=4), double) as pipeline:
        with pytest.raises(Bad):
            async for result in pipeline.run(numbers(5)):
                got.append(result)  # noqa: PERF401 (kept up to the error)
        assert got == [0, 2]
        assert await pipeline(7) == 14  # others are not concerned
        assert pipeline.statistics().failed == 1


async def test_no_error_of_a_stage_is_a_runs_end(autojump_clock: trio.testing.MockClock) -> None:
    async def ends(x: int) -> int:
        await trio.lowlevel.checkpoint()
        if x == 2:
            raise StopAsyncIteration("of something else")
        return x

    async with open_pipeline(ends) as pipeline:
        got: list[int] = []
        with pytest.raises(RuntimeError, match="a stage raised StopAsyncIteration"):
            async for result in pipeline.run(numbers(5)):
                got.append(result)  # noqa: PERF401 (what came before counts)
        assert got == [0, 1]


async def test_source_error_comes_last(autojump_clock: trio.testing.MockClock) -> None:
    async def source() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise Bad

    got = []
    async with open_pipeline(double) as pipeline:
        with pytest.raises(Bad):
            async for result in pipeline.run(source()):
                got.append(result)  # noqa: PERF401 (kept up to the error)
    assert got == [2, 4]


async def test_a_loop_that_is_left_ends_its_run(autojump_clock: trio.testing.MockClock) -> None:
    closed = trio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    async with open_pipeline(double, name) as pipeline:
        async for result in pipeline.run(source()):
            assert result == "<2>"
            break
        collect_garbage()
        await closed.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert pipeline.statistics().in_progress == 0


async def test_a_consumer_that_is_cancelled_goes_on_where_it_was(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_pipeline(double, name) as pipeline:
        results = pipeline.run(numbers(3))
        got = []
        while True:
            with trio.move_on_after(0.7):
                try:
                    got.append(await anext(results))
                except StopAsyncIteration:
                    break
        assert got == ["<0>", "<2>", "<4>"]
        with pytest.raises(StopAsyncIteration):
            await anext(results)


async def test_one_consumer_at_a_time(autojump_clock: trio.testing.MockClock) -> None:
    async with open_pipeline(double) as pipeline, trio.open_nursery() as nursery:
        results = pipeline.run(numbers(1))
        nursery.start_soon(anext, results)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await anext(results)


async def test_a_caller_that_is_cancelled_takes_its_item_along(
    autojump_clock: trio.testing.MockClock,
) -> None:
    begun: list[int] = []

    async def slow(x: int) -> int:
        begun.append(x)
        await trio.sleep(10)
        return x

    async with open_pipeline(slow, buffer=5) as pipeline:
        async with trio.open_nursery() as nursery:
            for x in (1, 2):
                nursery.start_soon(pipeline, x)
                await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert await pipeline(3) == 3
        assert begun == [1, 3]
        assert trio.current_time() == 11
        assert pipeline.statistics().withdrawn == 2


async def test_deadlines_reach_the_stages(autojump_clock: trio.testing.MockClock) -> None:
    seen: list[float] = []

    async def look(x: int) -> int:
        seen.append(trio.current_effective_deadline())
        await trio.sleep(5)
        return x

    async with open_pipeline(look) as pipeline:
        with trio.move_on_after(2):
            await pipeline(1)
        assert seen == [2]
        assert trio.current_time() == 2
        with trio.move_on_after(2) as scope:
            async with trio.open_nursery() as nursery:

                async def put_off() -> None:
                    await trio.sleep(1)
                    scope.deadline += 100

                nursery.start_soon(put_off)
                with pytest.raises(trio.TooSlowError):
                    await pipeline(2)


async def test_closing_waits_for_calls(autojump_clock: trio.testing.MockClock) -> None:
    got: list[str] = []

    async with trio.open_nursery() as nursery:
        async with open_pipeline(double, name) as pipeline:

            async def ask(x: int) -> None:
                got.append(await pipeline(x))

            nursery.start_soon(ask, 1)
            nursery.start_soon(ask, 2)
            await trio.testing.wait_all_tasks_blocked()
        assert sorted(got) == ["<2>", "<4>"]
        with pytest.raises(Closed):
            await pipeline(3)
        with pytest.raises(Closed):
            pipeline.run(numbers(1))


async def test_an_exception_in_the_block_ends_calls(autojump_clock: trio.testing.MockClock) -> None:
    errors: list[BaseException] = []

    async with trio.open_nursery() as nursery:
        with pytest.raises(Bad):
            async with open_pipeline(double, name) as pipeline:

                async def ask() -> None:
                    try:
                        await pipeline(1)
                    except Closed as error:
                        errors.append(error)

                async def listen() -> None:
                    try:
                        async for _ in pipeline.run(numbers(9)):
                            pass
                    except Closed as error:
                        errors.append(error)

                nursery.start_soon(ask)
                nursery.start_soon(listen)
                await trio.testing.wait_all_tasks_blocked()
                raise Bad
    assert [type(error.__cause__) for error in errors] == [Bad, Bad]


class Ends(Observer):
    """Counts the events of each item."""

    def __init__(self) -> None:
        self.open: dict[Any, int] = {}
        self.ends = 0

    def submitted(self, item: object) -> None:
        self.open[item] = self.open.get(item, 0) + 1

    def answered(self, item: object, seconds: float) -> None:
        self.end(item)

    def failed(self, item: object, error: BaseException, seconds: float) -> None:
        self.end(item)

    def withdrawn(self, item: object, seconds: float) -> None:
        self.end(item)

    def end(self, item: object) -> None:
        assert self.open[item] == 1
        self.open[item] = 0
        self.ends += 1


ITEMS = st.lists(
    st.tuples(
        st.floats(0, 5),  # when it is sent
        st.lists(st.floats(0, 3), min_size=3, max_size=3),  # what it takes in each stage
        st.sampled_from([None, None, None, 0, 1, 2]),  # where it fails
        st.one_of(st.none(), st.none(), st.floats(0, 6)),  # when its caller leaves
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(
    items=ITEMS,
    concurrency=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    buffer=st.integers(0, 2),
    close=st.one_of(st.none(), st.floats(0.01, 10)),  # opening may be cancelled, too
)
@on_mock_clock
async def test_every_item_has_one_end_and_its_own(
    items: list[Any], concurrency: list[int], buffer: int, close: float | None
) -> None:
    busy = [0, 0, 0]
    entered: list[list[int]] = [[], [], []]
    ends: dict[int, str] = {}
    observer = Ends()

    def stage(place: int) -> Stage[int, int]:
        async def work(number: int) -> int:
            entered[place].append(number)
            busy[place] += 1
            assert busy[place] <= concurrency[place]
            try:
                await trio.sleep(items[number][1][place])
                if items[number][2] == place:
                    raise Bad(number)
                return number
            finally:
                busy[place] -= 1

        return Stage(work, concurrency[place])

    async def caller(pipeline: Pipeline[int, int], number: int) -> None:
        when, _, fails, leave = items[number]
        await trio.sleep(when)
        with trio.move_on_after(float("inf") if leave is None else leave):
            try:
                assert await pipeline(number) == number
                assert fails is None
                ends[number] = "answered"
            except Bad as error:
                ends[number] = "failed" if error.args == (number,) else "another's"
            except Closed:
                assert close is not None
                ends[number] = "closed"
            return
        ends[number] = "left"

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(float("inf") if close is None else close):
            async with open_pipeline(
                stage(0), stage(1), stage(2), buffer=buffer, observer=observer
            ) as pipeline:
                for number in range(len(items)):
                    nursery.start_soon(caller, pipeline, number)
                await trio.sleep(6 if close is None else 100)
        assert pipeline.statistics().in_progress == 0
    assert len(ends) == len(items)
    assert "another's" not in ends.values()
    assert observer.ends == pipeline.statistics().submitted
    assert not any(observer.open.values())
    assert busy == [0, 0, 0]
    order = list(entered[0])
    for later in entered[1:]:
        assert later == [number for number in order if number in later]
        order = later


@settings(max_examples=40)
@given(
    times=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), max_size=15),
    concurrency=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    fails=st.one_of(st.none(), st.integers(0, 14)),
    pause=st.floats(0, 2),
)
@on_mock_clock
async def test_a_run_gives_results_in_order(
    times: list[tuple[float, float]],
    concurrency: tuple[int, int],
    fails: int | None,
    pause: float,
) -> None:
    async def first(x: int) -> int:
        await trio.sleep(times[x][0])
        return x

    async def second(x: int) -> int:
        await trio.sleep(times[x][1])
        if x == fails:
            raise Bad(x)
        return x

    got = []
    async with open_pipeline(
        Stage(first, concurrency[0]), Stage(second, concurrency[1])
    ) as pipeline:
        try:
            async for result in pipeline.run(numbers(len(times))):
                got.append(result)
                await trio.sleep(pause)
        except Bad:
            assert len(got) == fails
        else:
            assert len(got) == len(times)
        assert got == [*range(len(got))]
        await trio.testing.wait_all_tasks_blocked()
        assert pipeline.statistics().in_progress == 0
