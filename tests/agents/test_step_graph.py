"""Step graphs: the promises of LangGraph, differences from it, faults, kills and mistakes."""

from __future__ import annotations

import operator
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from atomr_accel import Device, GpuRef
from atomr_accel.actors import Call, open_actor_system
from atomr_accel.agents import (
    END,
    START,
    FilesForeign,
    ResumeSteps,
    RunSteps,
    StepContext,
    StepGraph,
    StepsExceeded,
    StepUpdate,
    ThreadBusy,
    ThreadUnknown,
    open_step_graph,
)
from atomr_accel.agents._steps import decode, encode
from atomr_accel.patterns import Closed, Retry
from atomr_accel.testing import poison

from ..harness import on_shared, opened, refused, sized


@dataclass(frozen=True)
class Note:
    by: str


@dataclass
class Talk:
    seen: Annotated[list[str], operator.add] = field(default_factory=list)
    count: int = 0
    notes: Annotated[list[Note], operator.add] = field(default_factory=list)


class Numbers(msgspec.Struct):
    x: NDArray[np.float32]
    y: NDArray[np.float32]
    z: float = 0.0


def saying(name: str, **more: Any) -> Any:
    async def say(talk: Talk, step: StepContext) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"seen": [name], **more}

    return say


def graph_of(names: str, *edges: tuple[Any, str]) -> StepGraph[Talk]:
    graph = StepGraph(Talk)
    for name in names:
        graph.add(name, saying(name))
    for source, target in edges:
        graph.edge(source, target)
    return graph


# --- as in LangGraph -----------------------------------------------------------------------


async def test_reducers_join_updates_of_parallel_nodes() -> None:
    graph = graph_of(
        "abcd", (START, "a"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", END)
    )
    async with open_step_graph(graph) as runner:
        result = await runner.run(Talk(["x"]))
    assert result.state.seen == ["x", "a", "b", "c", "d"]  # d once: b and c end in one step
    assert result.steps == 3


async def test_two_updates_of_a_field_without_reducer_are_an_error() -> None:
    graph = StepGraph(Talk)
    graph.add("a", saying("a", count=1))
    graph.add("b", saying("b", count=2))
    graph.edge(START, "a")
    graph.edge(START, "b")
    async with open_step_graph(graph) as runner:
        with pytest.raises(ValueError, match="field 'count' must be set by one node in a step"):
            await runner.run(Talk())


async def test_an_edge_from_several_nodes_waits_for_all() -> None:
    graph = graph_of(
        "abcd", (START, "a"), (START, "b"), ("b", "c"), (["a", "c"], "d"), ("d", END)
    )  # fmt: skip
    async with open_step_graph(graph) as runner:
        assert (await runner.run(Talk())).state.seen == ["a", "b", "c", "d"]


async def test_branches_choose_and_loop_up_to_a_limit() -> None:
    async def count(talk: Talk, step: StepContext) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"count": talk.count + 1}

    graph = StepGraph(Talk)
    graph.add("count", count)
    graph.edge(START, "count")
    graph.branch("count", lambda talk: END if talk.count % 10 == 0 else "count", ["count", END])
    async with open_step_graph(graph, max_steps=10) as runner:
        assert (await runner.run(Talk())).state.count == 10
    async with open_step_graph(graph, max_steps=9) as runner:
        with pytest.raises(StepsExceeded):
            await runner.run(Talk())
        assert (await runner.resume()).state.count == 10
    wrong = StepGraph(Talk)
    wrong.add("a", saying("a"))
    wrong.branch(START, lambda _: "b", ["a"])
    async with open_step_graph(wrong) as runner:
        with pytest.raises(ValueError, match="must name nodes among a, not 'b'"):
            await runner.run(Talk())


async def test_a_question_ends_the_run_and_the_node_begins_again_with_the_answer(
    tmp_path: Path,
) -> None:
    begun: list[str] = []

    async def ask(talk: Talk, step: StepContext) -> dict[str, Any]:
        begun.append("ask")
        await trio.lowlevel.checkpoint()
        name = step.ask({"what": "name"})
        age = step.ask({"what": "age"})
        return {"seen": [f"{name} {age}"]}

    async def other(talk: Talk, step: StepContext) -> dict[str, Any]:
        begun.append("other")
        await trio.lowlevel.checkpoint()
        return {"seen": ["other"], "notes": [Note("other")]}

    graph = StepGraph(Talk)
    graph.add("ask", ask)
    graph.add("other", other)
    graph.edge(START, "ask")
    graph.edge(START, "other")
    path = tmp_path / "talks"
    async with open_step_graph(graph, checkpoints=path) as runner:
        result = await runner.run(Talk(), thread="t")
        assert (result.asked, result.steps, result.state.seen) == ({"ask": {"what": "name"}}, 0, [])
        with pytest.raises(ValueError, match=r"answers must be for nodes that asked \('ask'\)"):
            await runner.resume("t", {"other": 1})
        assert (await runner.resume("t")).asked == result.asked
        assert (await runner.resume("t", {"ask": "Ada"})).asked == {"ask": {"what": "age"}}
    async with open_step_graph(graph, checkpoints=path) as runner:  # another program
        result = await runner.resume("t", {"ask": 36})
        assert (result.asked, result.state.seen) == ({}, ["Ada 36", "other"])
        assert result.state.notes == [Note("other")]
        assert (await runner.resume("t")).state == result.state  # nothing is left to do
        assert runner.statistics().asked == 0
    assert begun.count("other") == 1


async def test_an_error_keeps_what_its_neighbours_did() -> None:
    begun: list[str] = []
    fail = True

    async def flaky(talk: Talk, step: StepContext) -> dict[str, Any]:
        begun.append("flaky")
        await trio.testing.wait_all_tasks_blocked()
        if fail:
            raise KeyError("x")
        return {"seen": ["flaky"]}

    async def good(talk: Talk, step: StepContext) -> dict[str, Any]:
        begun.append("good")
        await trio.lowlevel.checkpoint()
        return {"seen": ["good"]}

    graph = StepGraph(Talk)
    graph.add("flaky", flaky)
    graph.add("good", good)
    graph.edge(START, "flaky")
    graph.edge(START, "good")
    async with open_step_graph(graph) as runner:
        with pytest.raises(KeyError):
            await runner.run(Talk())
        fail = False
        assert (await runner.resume()).state.seen == ["flaky", "good"]
        assert runner.statistics().failed == 1
    assert sorted(begun) == ["flaky", "flaky", "good"]


async def test_nodes_are_retried() -> None:
    tries = 0

    async def flaky(talk: Talk, step: StepContext) -> dict[str, Any]:
        nonlocal tries
        await trio.lowlevel.checkpoint()
        tries += 1
        if tries < 3:
            raise OSError
        return {"count": tries}

    graph = StepGraph(Talk)
    retriable = lambda error: isinstance(error, OSError)  # noqa: E731 (a row)
    graph.add("a", flaky, retry=Retry(attempts=3, retriable=retriable))
    graph.edge(START, "a")
    async with open_step_graph(graph) as runner:
        assert (await runner.run(Talk())).state.count == 3


async def test_history_and_replay_from_an_earlier_step() -> None:
    graph = graph_of("abc", (START, "a"), ("a", "b"), ("b", "c"))
    async with open_step_graph(graph) as runner:
        result = await runner.run(Talk())
        history = await runner.history()
        assert [each.state.seen for each in history] == [[], ["a"], ["a", "b"], ["a", "b", "c"]]
        assert [each.steps for each in history] == [0, 1, 2, 3]
        assert (await runner.resume(step=1)).state == result.state
        assert len(await runner.history()) == 4
        with pytest.raises(ThreadUnknown, match="step 7"):
            await runner.resume(step=7)
        await runner.forget()
        with pytest.raises(ThreadUnknown):
            await runner.resume()


async def test_parallel_questions_are_answered_together_or_one_by_one() -> None:
    async def ask(talk: Talk, step: StepContext) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"seen": [step.ask("?")]}

    graph = StepGraph(Talk)
    for name in "ab":
        graph.add(name, ask)
        graph.edge(START, name)
    async with open_step_graph(graph) as runner:
        for answers in ([{"b": "2", "a": "1"}], [{"b": "2"}, {"a": "1"}]):
            result = await runner.run(Talk())
            for some in answers:
                assert result.asked.keys() >= some.keys()
                assert result.steps == 0
                result = await runner.resume(answers=some)
            assert (result.asked, result.state.seen) == ({}, ["1", "2"])


async def test_replay_runs_later_nodes_again_and_asks_again() -> None:
    begun: list[str] = []

    async def node(talk: Talk, step: StepContext) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        begun.append(f"{len(talk.seen)}")
        return {"seen": [step.ask("?") if len(talk.seen) == 1 else "-"]}

    graph = StepGraph(Talk)
    graph.add("a", node)
    graph.edge(START, "a")
    graph.branch("a", lambda talk: "a" if len(talk.seen) < 3 else END, ["a", END])
    async with open_step_graph(graph) as runner:
        assert (await runner.run(Talk())).asked == {"a": "?"}
        assert (await runner.resume(answers={"a": "x"})).state.seen == ["-", "x", "-"]
        begun.clear()
        assert (await runner.resume(step=1)).asked == {"a": "?"}
        assert (await runner.resume(answers={"a": "y"})).state.seen == ["-", "y", "-"]
        assert begun == ["1", "1", "2"]


async def test_streams_tell_updates_and_events() -> None:
    async def write(talk: Talk, step: StepContext) -> dict[str, Any]:
        for word in ("to", "be"):
            await trio.lowlevel.checkpoint()
            step.emit(word)
        return {"count": 2}

    graph = StepGraph(Talk)
    graph.add("write", write)
    graph.add("check", saying("check"))
    graph.edge(START, "write")
    graph.edge("write", "check")
    async with open_step_graph(graph) as runner:
        async with runner.stream(Talk()) as updates:
            seen = [each async for each in updates]
        assert seen == [
            StepUpdate(1, "write", None, "to"),
            StepUpdate(1, "write", None, "be"),
            StepUpdate(1, "write", {"count": 2}),
            StepUpdate(2, "check", {"seen": ["check"]}),
        ]
        async with runner.stream(Talk()) as updates:
            async for _ in updates:
                break
        assert (await runner.resume()).state.seen == ["check"]
        with pytest.raises(TypeError, match="state must be a Talk"):
            async with runner.stream(3) as updates:  # type: ignore[arg-type]
                assert [each async for each in updates] == []


# --- other than in LangGraph ---------------------------------------------------------------


async def test_results_do_not_depend_on_the_speed_of_nodes() -> None:
    async def slow(talk: Talk, step: StepContext) -> dict[str, Any]:
        talk.seen.append("in place")  # which no other node sees
        await trio.testing.wait_all_tasks_blocked()
        return {"seen": ["slow"]}

    graph = StepGraph(Talk)
    graph.add("slow", slow)
    graph.add("fast", saying("fast"))
    graph.edge(START, "fast")
    graph.edge(START, "slow")
    async with open_step_graph(graph) as runner:
        assert (await runner.run(Talk())).state.seen == ["slow", "fast"]


async def test_a_run_of_a_known_thread_begins_anew() -> None:
    async with open_step_graph(graph_of("a", (START, "a"))) as runner:
        await runner.run(Talk(["x"], count=3))
        result = await runner.run(Talk(["y"]))
        assert result.state == Talk(["y", "a"])
        assert [each.state.seen for each in await runner.history()] == [["y"], ["y", "a"]]
        # To go on with a state, give it to the next run.
        assert (await runner.run(result.state)).state.seen == ["y", "a", "a"]


async def test_a_node_runs_another_graph() -> None:
    async with open_step_graph(graph_of("ab", (START, "a"), ("a", "b"))) as inner:

        async def node(talk: Talk, step: StepContext) -> dict[str, Any]:
            return {"seen": (await inner.run(Talk(), thread="inner")).state.seen}

        graph = graph_of("c", ("d", "c"))
        graph.add("d", node)
        graph.edge(START, "d")
        async with open_step_graph(graph) as runner:
            assert (await runner.run(Talk(), thread="outer")).state.seen == ["a", "b", "c"]
            assert len(await runner.history("outer")) == 3
        assert len(await inner.history("inner")) == 3


async def test_a_replay_forgets_later_steps() -> None:
    async def ask(talk: Talk, step: StepContext) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"seen": [step.ask("?")]}

    graph = graph_of("ab", (START, "a"), ("a", "b"))
    graph.add("ask", ask)
    graph.edge("b", "ask")
    async with open_step_graph(graph) as runner:
        await runner.run(Talk())
        await runner.resume(answers={"ask": "x"})
        assert [each.steps for each in await runner.history()] == [0, 1, 2, 3]
        await runner.resume(step=1)
        assert [each.steps for each in await runner.history()] == [0, 1, 2]
        with pytest.raises(ThreadUnknown, match="step 3"):
            await runner.resume(step=3)


@pytest.mark.parametrize(
    ("names", "edges", "match"),
    [
        ("a", [(START, "b")], r"between nodes among a, end, not 'b'"),
        ("a", [(START, "a"), ("b", "a")], r"between nodes among a, start, not 'b'"),
        ("a", [], "must have an edge from START"),
        ("ab", [(START, "a")], r"reached from START, not left out as \['b'\]"),
        ("a", [(START, "a"), ("a", "a")], "must have a conditional edge, not a -> a"),
        ("ab", [(START, "a"), ("a", "b"), ("b", "a")], "not a -> b -> a"),
        ("ab", [(START, "a"), (["a"], "b"), ("b", "a")], "not a -> b -> a"),
    ],
)
async def test_graphs_that_cannot_run_are_refused(
    names: str, edges: list[tuple[Any, str]], match: str
) -> None:
    await trio.lowlevel.checkpoint()
    with pytest.raises(ValueError, match=match):
        open_step_graph(graph_of(names, *edges))


async def test_states_and_updates_are_typed(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="state must be a dataclass"):
        StepGraph(dict)
    graph = StepGraph(Talk)
    with pytest.raises(ValueError, match="name must be a new one, not 'end'"):
        graph.add("end", saying("x"))
    with pytest.raises(ValueError, match="must be fields of the state, not 'y'"):
        graph.add_device("d", lambda *_: None, reads=["y"], writes=["count"])  # type: ignore[arg-type]
    made: Any = {}

    async def node(talk: Talk, step: StepContext) -> Any:
        await trio.lowlevel.checkpoint()
        return made

    graph.add("a", node)
    graph.edge(START, "a")
    async with open_step_graph(graph) as runner:
        for state in (3, Talk(count="x"), Talk(seen=[1])):  # type: ignore[arg-type,list-item]
            with pytest.raises(TypeError, match="must be a"):
                await runner.run(state)  # type: ignore[arg-type]
        for wrong, error, match in [
            ({"x": 1}, ValueError, "must return fields among seen, count, notes, not 'x'"),
            ({"count": "x"}, TypeError, "field count in what node 'a' returned"),
            ({"seen": [1]}, TypeError, "field seen in the reducer of seen"),
            ([1], TypeError, "must return a mapping"),
        ]:
            made = wrong
            with pytest.raises(error, match=match):
                await runner.run(Talk())
        made = None
        assert (await runner.run(Talk(count=1))).state == Talk(count=1)
    for options, error in [({"max_steps": 0}, ValueError), ({"max_steps": "x"}, TypeError)]:
        with pytest.raises(error):
            open_step_graph(graph, **options)  # type: ignore[arg-type]
    other = tmp_path / "other"
    other.write_text("notes of mine" * 100)
    await refused(FilesForeign, None, open_step_graph, graph, checkpoints=other)
    table = tmp_path / "table"
    with sqlite3.connect(table) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    await refused(FilesForeign, None, open_step_graph, graph, checkpoints=table)


async def test_a_thread_has_one_run_at_a_time_and_a_cancelled_run_goes_on() -> None:
    go = trio.Event()

    async def wait(talk: Talk, step: StepContext) -> dict[str, Any]:
        await go.wait()
        return {"seen": ["b"]}

    graph = graph_of("a", (START, "a"))
    graph.add("b", wait)
    graph.edge("a", "b")
    async with open_step_graph(graph) as runner, trio.open_nursery() as nursery:
        nursery.start_soon(runner.run, Talk())
        while not (await runner.history()) or (await runner.history())[-1].steps < 1:
            await trio.lowlevel.checkpoint()
        with pytest.raises(ThreadBusy):
            await runner.resume()
        nursery.cancel_scope.cancel()
    async with open_step_graph(graph) as runner:
        with trio.CancelScope() as scope:
            async with runner.stream(Talk()) as updates:
                async for _ in updates:
                    scope.cancel()
        go.set()
        assert (await runner.resume()).state.seen == ["a", "b"]


@pytest.mark.slow
@settings(max_examples=sized(60, 600))
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=10), st.integers(0, 40))
async def test_a_run_that_is_cut_off_anywhere_ends_as_one_that_is_not(
    drawn: list[tuple[int, int]], cut: int
) -> None:
    edges = [(str(min(pair)), str(max(pair))) for pair in drawn if pair[0] != pair[1]]
    graph = graph_of("012345", *((START, name) for name in "012345"), *edges)
    calls = 0

    class Cut(Exception):
        pass

    async def cut_off(talk: Talk, step: StepContext) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        await trio.lowlevel.checkpoint()
        if calls == cut:
            raise Cut
        return {"count": talk.count + 1}

    graph.add("c", cut_off)
    graph.edge(START, "c")
    graph.branch("c", lambda talk: "c" if talk.count < 4 else END, ["c", END])
    async with open_step_graph(graph) as runner:
        try:
            result = await runner.run(Talk())
        except Cut:
            result = await runner.resume()
        cut, calls = 0, 0
        assert result == await runner.run(Talk(), thread="whole")


# --- on a device ---------------------------------------------------------------------------


def device_graph() -> StepGraph[Numbers]:
    graph = StepGraph(Numbers)
    graph.add_device(
        "double", lambda recording, x: recording.evaluate(x + x), reads=["x"], writes=["y"]
    )
    graph.add_device(
        "add", lambda recording, x, y: recording.evaluate(x + y), reads=["x", "y"], writes=["y"]
    )

    async def total(numbers: Numbers, step: StepContext) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"z": float(numbers.y.sum())}

    graph.add("total", total)
    graph.edge(START, "double")
    graph.edge("double", "add")
    graph.edge("add", "total")
    return graph


@on_shared
async def test_a_chain_of_device_nodes_is_one_recording_and_one_step(device: Device) -> None:
    graph = device_graph()
    with pytest.raises(ValueError, match="device must be a device"):
        open_step_graph(graph)
    async with open_step_graph(graph, device=device) as runner:
        for size in (3, 5, 3):
            x = np.arange(size, dtype=np.float32)
            result = await runner.run(Numbers(x, np.zeros(0, np.float32)))
            np.testing.assert_array_equal(result.state.y, 3 * x)
            assert (result.state.z, result.steps) == (3 * x.sum(), 2)
        assert runner.statistics().recordings == 2


@pytest.mark.slow
async def test_device_nodes_survive_faults() -> None:
    async with (
        opened(max_restarts=20) as device,
        open_step_graph(device_graph(), device=device) as runner,
    ):
        x = np.arange(3, dtype=np.float32)
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poison, device)
                for number in range(3):

                    async def run(number: int = number) -> None:
                        start = Numbers(x, x)
                        result = await runner.run(start, thread=str(number))
                        np.testing.assert_array_equal(result.state.y, 3 * x)

                    nursery.start_soon(run)


async def test_a_step_graph_is_an_actor() -> None:
    graph = graph_of("a", (START, "a"))
    async with (
        open_actor_system("test") as system,
        open_step_graph(graph, system=system, name="steps") as runner,
    ):
        assert (await runner.ref.ask(RunSteps(Talk(), "t"))).state.seen == ["a"]
        assert (await runner.ref.ask(ResumeSteps("t"))).state.seen == ["a"]
        assert (await runner.ref.ask(Call(Talk(["x"])))).state.seen == ["x", "a"]
        assert system.tree().children[0].path == "/steps"


# --- what a run leaves to itself ------------------------------------------------------------


def asking_branch(choose: Any) -> StepGraph[Talk]:
    graph = graph_of("ab", (START, "a"), ("b", END))
    graph.branch("a", choose, ["b", END])
    return graph


async def test_what_a_branch_changes_in_the_state_nobody_sees() -> None:
    def choose(talk: Talk) -> str:
        talk.seen.append("changed")
        return "b" if len(talk.seen) == 2 else END

    graph = asking_branch(choose)
    graph.branch("a", choose, ["b", END])
    first = StepGraph(Talk)
    first.add("a", saying("a"))
    first.branch(START, choose, ["a", END])
    first.branch(START, lambda talk: "a" if not talk.seen else END, ["a", END])
    async with open_step_graph(graph) as runner, open_step_graph(first) as other:
        assert (await runner.run(Talk())).state.seen == ["a", "b"]
        talk = Talk()
        assert (await other.run(talk)).state.seen == ["a"]
        assert talk.seen == []


@pytest.mark.parametrize("chosen", [None, 3, 2.5])
async def test_a_branch_returns_names(chosen: Any) -> None:
    async with open_step_graph(asking_branch(lambda _: chosen)) as runner:
        with pytest.raises(TypeError, match="the branch after 'a' must return a node's name"):
            await runner.run(Talk())


async def test_functions_of_the_wrong_color_are_told() -> None:
    async def choose(_: Talk) -> str:
        raise AssertionError("it is never awaited")

    async with open_step_graph(asking_branch(choose)) as runner:
        with pytest.raises(TypeError, match="the branch after 'a' must return"):
            await runner.run(Talk())
    graph = StepGraph(Talk)
    graph.add("a", lambda talk, step: {"count": 1})  # type: ignore[arg-type, return-value]
    graph.edge(START, "a")
    async with open_step_graph(graph) as runner:
        with pytest.raises(TypeError, match="node 'a' must be async"):
            await runner.run(Talk())


async def test_one_task_of_a_node_asks() -> None:
    async def node(talk: Talk, step: StepContext) -> dict[str, Any]:
        said: list[str] = []

        async def ask(question: str) -> None:
            said.append(step.ask(question))

        async with trio.open_nursery() as outer:
            outer.start_soon(trio.lowlevel.checkpoint)
            async with trio.open_nursery() as inner:
                for number in range(talk.count):
                    inner.start_soon(ask, f"question {number}")
        return {"seen": said}

    graph = StepGraph(Talk)
    graph.add("a", node)
    graph.edge(START, "a")
    async with open_step_graph(graph) as runner:
        assert (await runner.run(Talk(count=1))).asked == {"a": "question 0"}
        assert (await runner.resume(answers={"a": "yes"})).state.seen == ["yes"]
        with pytest.raises(ValueError, match="one question at a time"):
            await runner.run(Talk(count=2))


async def test_an_error_beside_a_question_is_an_error() -> None:
    async def node(talk: Talk, step: StepContext) -> None:
        async def fail() -> None:
            raise OSError("mine")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            step.ask("really?")

    graph = StepGraph(Talk)
    graph.add("a", node)
    graph.edge(START, "a")
    async with open_step_graph(graph) as runner:
        with pytest.raises(BaseExceptionGroup) as found:
            await runner.run(Talk())
    assert found.value.subgroup(OSError) is not None


async def test_threads_of_other_graphs_and_states_are_foreign(tmp_path: Path) -> None:
    @dataclass
    class Other:
        text: str = ""

    @dataclass
    class Longer(Talk):
        more: str = field(kw_only=True)

    async def fail(_: Any, step: StepContext) -> None:
        raise OSError("mine, not yours")

    async def work(_: Any, step: StepContext) -> None:
        await trio.lowlevel.checkpoint()

    def one(kind: type[Any], name: str, function: Any) -> StepGraph[Any]:
        graph = StepGraph(kind)
        graph.add(name, function)
        graph.edge(START, name)
        return graph

    path = tmp_path / "file"
    async with open_step_graph(one(Talk, "a", fail), checkpoints=path) as runner:
        with pytest.raises(OSError, match="mine, not yours"):
            await runner.run(Talk())
    async with open_step_graph(one(Talk, "b", work), checkpoints=path) as runner:
        with pytest.raises(FilesForeign, match="nodes that this graph has not: a"):
            await runner.resume()
        assert len(await runner.history()) == 1
    for kind in (Other, Longer):
        async with open_step_graph(one(kind, "a", work), checkpoints=path) as runner:
            with pytest.raises(FilesForeign, match="another class"):
                await runner.history()
            with pytest.raises(FilesForeign, match="another class"):
                await runner.resume()
    async with open_step_graph(one(Talk, "a", work), checkpoints=path) as runner:
        assert (await runner.resume()).state == Talk()
    with pytest.raises(Closed):
        await runner.history()


@pytest.mark.parametrize(
    "array", [np.array([1, 2], ">i4"), np.array([0.5], ">f8"), np.array(["2020-01-01"], "M8[D]")]
)
async def test_arrays_of_any_byte_order_are_kept(array: Any) -> None:
    made = decode(encode(array))
    np.testing.assert_array_equal(made, array)


@pytest.mark.parametrize("value", [np.array(["a"]), np.array([None]), np.zeros(1, "i4,i4"), 2**70])
def test_what_cannot_be_kept_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="in a state must"):
        encode(value)


@on_shared
async def test_buffers_are_no_part_of_a_state(device: Device) -> None:
    ref = await device.put(np.ones(2))
    for value in (ref, {"a": [ref]}):
        with pytest.raises(TypeError, match="must be plain values and arrays, not GpuRef; get"):
            encode(value)

    @dataclass
    class Holding:
        ref: GpuRef

    Holding.__annotations__["ref"] = GpuRef
    with pytest.raises(TypeError, match="field ref of the state must be of a type"):
        StepGraph(Holding)


async def test_arguments_of_runs_are_checked() -> None:
    wrong: Any
    async with open_step_graph(graph_of("a", (START, "a"))) as runner:
        await runner.run(Talk())
        for call in (
            lambda thread: runner.run(Talk(), thread=thread),
            lambda thread: runner.resume(thread),
            lambda thread: runner.history(thread),
            lambda thread: runner.forget(thread),
        ):
            with pytest.raises(ValueError, match="thread must be a text of some characters"):
                await call("")
            with pytest.raises(TypeError, match="thread must be text, not 3"):
                await call(3)
        for wrong, kind in (
            ({"step": 1.0}, TypeError),
            ({"step": -1}, ValueError),
            ({"answers": ()}, TypeError),
        ):
            with pytest.raises(kind, match=f"{next(iter(wrong))} must be"):
                await runner.resume(**wrong)


async def test_a_state_that_cannot_be_kept_leaves_the_thread_as_it_was() -> None:
    async with open_step_graph(graph_of("a", (START, "a"))) as runner:
        await runner.run(Talk())
        with pytest.raises(ValueError, match="64 bits"):
            await runner.run(Talk(count=2**70))
        assert len(await runner.history()) == 2


@pytest.mark.parametrize("how", ["run", "resume", "forget"])
async def test_a_thread_is_with_the_program_that_took_it_last(tmp_path: Path, how: str) -> None:
    """Two runners with one file are as two programs: the first one ends, and leaves no step."""
    waits, go = trio.Event(), trio.Event()

    async def wait(talk: Talk, step: StepContext) -> dict[str, Any]:
        waits.set()
        await go.wait()
        return {"seen": ["slow"]}

    def graph(function: Any) -> StepGraph[Talk]:
        made = graph_of("a", (START, "a"))
        made.add("b", function)
        made.edge("a", "b")
        return made

    path = tmp_path / "file"
    async with (
        open_step_graph(graph(wait), checkpoints=path) as first,
        open_step_graph(graph(saying("fast")), checkpoints=path) as second,
        trio.open_nursery() as nursery,
    ):

        async def run() -> None:
            with pytest.raises(ThreadBusy, match="another program"):
                await first.run(Talk())

        nursery.start_soon(run)
        await waits.wait()
        if how == "run":
            await second.run(Talk(["new"]))
        else:
            await (second.resume() if how == "resume" else second.forget())
        kept = await second.history()
        go.set()
    async with open_step_graph(graph(wait), checkpoints=path) as runner:
        assert await runner.history() == kept
        assert len(kept) == (0 if how == "forget" else 3)
