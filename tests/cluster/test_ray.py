"""Nodes on Ray: when they are started and stopped. Ray is a fake but for one test."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from atomr_accel import LibraryMissing
from atomr_accel.actors import Backoff, Intensity, SupervisionFailed
from atomr_accel.cluster import (
    Cluster,
    ConnectionLost,
    RayNodeLost,
    RayNodes,
    make_certificates,
    open_ray_cluster,
)
from atomr_accel.cluster._ray import answered, nodes_on_ray
from atomr_accel.cluster.certificates import request_certificate, sign_certificate
from tests.fakes.ray import FakeProcess, FakeRay, FakeRef
from tests.harness import ROOT, program, stop_process

from .processes import KEYS, listener_on, until_alive
from .simulated import Add, Log, NodeStore, Read
from .worlds import SETTINGS, World, world

Play = Callable[[Callable[["Stage"], Awaitable[None]]], None]

WORDS = "tests.cluster.simulated:PROGRAM"

AT_ONCE = Backoff(base=0.0)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run a test on a clock that jumps, which knows no threads."""

    async def inline(function: Any, *args: Any, **options: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", inline)

    async def main(test: Callable[[Stage], Awaitable[None]]) -> None:
        async with (
            world() as made,
            made.node("driver", holds=False) as cluster,
            trio.open_nursery() as nursery,
        ):
            await test(Stage(made, cluster, nursery))
            nursery.cancel_scope.cancel()

    def run(test: Callable[[Stage], Awaitable[None]]) -> None:
        trio.run(main, test, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


class Stage:
    """A simulated world in which processes of Ray's are tasks."""

    def __init__(self, made: World, cluster: Cluster, nursery: trio.Nursery) -> None:
        self.world = made
        self.cluster = cluster
        self.nursery = nursery
        self.stores: dict[str, NodeStore] = {}
        self.processes: dict[str, list[FakeProcess]] = {}

    async def serve(self, name: str, process: FakeProcess) -> FakeRef:
        """Be the node, until the process is killed or asked to leave."""
        store = self.stores[name] = NodeStore(self.world.store, 0)
        self.processes.setdefault(name, []).append(process)
        scope, asked = trio.CancelScope(), trio.Event()
        process.on_kill = scope.cancel
        process.on_call = lambda call: asked.set() if call == "leave" else None

        async def live() -> None:
            with scope:
                async with self.world.node(name, store=store):
                    await asked.wait()
                process.serving.set_result(None)

        self.nursery.start_soon(live)
        await trio.lowlevel.checkpoint()
        return FakeRef(process.serving)

    async def another_life(self, name: str, before: str) -> None:
        """Wait until a node lives again. It may take its name at once when the lease is over."""
        nodes = self.cluster
        await self.until(lambda: name in nodes.nodes and nodes.nodes[name].life != before)

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():  # noqa: ASYNC110
            await trio.sleep(0.1)  # of a clock that jumps


def test_nodes_join_by_certificates_of_their_own_and_leave_with_the_block(
    ray: FakeRay, tmp_path: Path
) -> None:
    @program
    async def run() -> None:
        nodes = RayNodes(count=2, cpus=2)
        async with open_ray_cluster(WORDS, store=tmp_path / "store", nodes=nodes) as cluster:
            assert set(cluster.nodes) == {"driver", "ray-1", "ray-2"}
            assert [await cluster.entity(Log, key).ask(Add(1)) for key in KEYS] == [1] * len(KEYS)
            assert {cluster.place_of(Log, key) for key in KEYS} == {"ray-1", "ray-2"}

    run()
    assert len(ray.processes) == 2
    for process in ray.processes:
        process.join()  # they have left, since no thread can be killed
        assert process.killed
        assert process.options["num_cpus"] == 2
        assert process.options["max_restarts"] == 0


def test_a_node_whose_process_ends_is_started_again(ray: FakeRay, play: Play) -> None:
    @play
    async def run(stage: Stage) -> None:
        async with nodes_on_ray(stage.cluster, RayNodes(count=2), stage.serve):
            before = stage.cluster.nodes["ray-1"].life
            stage.processes["ray-1"][0].die()
            await stage.another_life("ray-1", before)
            assert len(stage.processes["ray-1"]) == 2
            assert len(stage.processes["ray-2"]) == 1


def test_leases_decide_which_nodes_live_whatever_ray_says(ray: FakeRay, play: Play) -> None:
    @play
    async def run(stage: Stage) -> None:
        nodes = RayNodes(count=1, patience=5.0)
        async with nodes_on_ray(stage.cluster, nodes, stage.serve):
            (process,) = stage.processes["ray-1"]
            stage.stores["ray-1"].away = True
            await stage.until(lambda: "ray-1" not in stage.cluster.nodes)
            await trio.sleep(3.0)
            stage.stores["ray-1"].away = False
            await stage.cluster.wait_for(2)
            await trio.sleep(20.0)
            assert stage.processes["ray-1"] == [process]  # it was back in time
            assert not process.killed

            stage.stores["ray-1"].away = True
            await stage.until(lambda: "ray-1" not in stage.cluster.nodes)
            assert not process.serving.done()  # Ray believes that it lives
            began = trio.current_time()
            await stage.until(lambda: process.killed)
            assert 4.8 <= trio.current_time() - began <= 5.2
            await stage.cluster.wait_for(2)
            assert len(stage.processes["ray-1"]) == 2


def test_each_of_rays_nodes_that_has_room_gets_one(ray: FakeRay, play: Play) -> None:
    ray.there = {"a": {"CPU": 2.0}, "b": {"CPU": 2.0, "GPU": 1.0}, "c": {"CPU": 1.0, "GPU": 4.0}}

    @play
    async def run(stage: Stage) -> None:
        nodes = RayNodes(gpus=1, prefix="gpu", backoff=AT_ONCE)
        async with nodes_on_ray(stage.cluster, nodes, stage.serve):
            assert set(stage.cluster.nodes) == {"driver", "gpu-1", "gpu-2"}
            places = [each.options["scheduling_strategy"] for each in ray.processes]
            assert sorted(places) == [("b", False), ("c", False)]
            assert {each.options["num_gpus"] for each in ray.processes} == {1}

            ray.there["d"] = {"CPU": 1.0, "GPU": 1.0}
            await stage.cluster.wait_for(4)
            assert ray.processes[-1].options["scheduling_strategy"] == ("d", False)
            assert "gpu-3" in stage.cluster.nodes

            del ray.there["d"]
            stage.processes["gpu-3"][-1].die()
            await stage.until(lambda: len(stage.cluster.nodes) == 3)
            await trio.sleep(20.0)
            assert set(stage.cluster.nodes) == {"driver", "gpu-1", "gpu-2"}


def test_nodes_are_asked_to_leave_and_others_are_killed(ray: FakeRay, play: Play) -> None:
    @play
    async def run(stage: Stage) -> None:
        async with nodes_on_ray(stage.cluster, RayNodes(count=2), stage.serve):
            heeds, deaf = (stage.processes[name][0] for name in ("ray-1", "ray-2"))
            deaf.on_call = lambda call: None
            began = trio.current_time()
        assert heeds.serving.result() is None
        assert isinstance(deaf.serving.exception(), Exception)
        assert trio.current_time() - began <= 2 * SETTINGS.lease + 5.5
        assert len(ray.processes) == 2


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_a_block_that_is_broken_off_kills_its_nodes_at_once(
    how: str, ray: FakeRay, play: Play
) -> None:
    @play
    async def run(stage: Stage) -> None:
        began = trio.current_time()
        with trio.CancelScope() as scope:
            try:
                async with nodes_on_ray(stage.cluster, RayNodes(count=2), stage.serve):
                    began = trio.current_time()
                    if how == "failed":
                        raise KeyError(how)
                    scope.cancel()
                    await trio.sleep_forever()
            except KeyError:
                assert how == "failed"
        assert trio.current_time() == began
        assert [each.killed for each in ray.processes] == [True, True]


def test_a_start_that_is_cancelled_leaves_no_process(ray: FakeRay, play: Play) -> None:
    @play
    async def run(stage: Stage) -> None:
        async def serve(name: str, process: FakeProcess) -> Any:
            await trio.sleep_forever()

        with trio.move_on_after(1.0) as scope:
            async with nodes_on_ray(stage.cluster, RayNodes(count=3), serve):
                pytest.fail("there are no nodes")
        assert scope.cancelled_caught
        assert [each.killed for each in ray.processes] == [True] * 3


def test_a_first_start_that_fails_fails_the_block(ray: FakeRay, play: Play) -> None:
    @play
    async def run(stage: Stage) -> None:
        async def ends(name: str, process: FakeProcess) -> FakeRef:
            await trio.lowlevel.checkpoint()
            process.serving.set_exception(ValueError("there is no such module"))
            return FakeRef(process.serving)

        async def does_nothing(name: str, process: FakeProcess) -> FakeRef:
            await trio.lowlevel.checkpoint()
            return FakeRef(process.serving)

        with pytest.raises(RayNodeLost, match="ray-1 on Ray has ended") as caught:
            async with nodes_on_ray(stage.cluster, RayNodes(count=1), ends):
                pytest.fail("there is no node")
        assert isinstance(caught.value.__cause__, ValueError)
        assert caught.value.node == "ray-1"
        with pytest.raises(RayNodeLost, match=r"not joined within 7 s"):
            async with nodes_on_ray(stage.cluster, RayNodes(count=1, start=7), does_nothing):
                pytest.fail("there is no node")
        assert all(each.killed for each in ray.processes)
        ray.there = {"a": {"CPU": 2.0}}
        with pytest.raises(ValueError, match="what some node of Ray's has"):
            async with nodes_on_ray(stage.cluster, RayNodes(cpus=4), does_nothing):
                pytest.fail("there is no node")


def test_nodes_that_end_all_the_time_fail_the_block(ray: FakeRay, play: Play) -> None:
    @play
    async def run(stage: Stage) -> None:
        nodes = RayNodes(count=1, intensity=Intensity(restarts=2, within=600), backoff=AT_ONCE)
        with pytest.raises(SupervisionFailed) as caught:
            async with nodes_on_ray(stage.cluster, nodes, stage.serve):
                while True:
                    before = stage.cluster.nodes["ray-1"].life
                    stage.processes["ray-1"][-1].die()
                    await stage.another_life("ray-1", before)
        assert isinstance(caught.value.__cause__, RayNodeLost)
        assert len(ray.processes) == 3


async def test_answers_come_from_threads_and_outlive_whoever_waits() -> None:
    good, bad, late = Future[int](), Future[int](), Future[int]()
    threading.Thread(target=good.set_result, args=[3]).start()
    assert await answered(FakeRef(good)) == 3
    threading.Thread(target=bad.set_exception, args=[KeyError("x")]).start()
    with pytest.raises(KeyError):
        await answered(FakeRef(bad))
    with trio.CancelScope() as scope:
        scope.cancel()
        await answered(FakeRef(late))
    assert not late.cancelled()
    late.set_result(1)  # nobody waits, and that is no error


def test_an_answer_after_the_end_of_the_program_is_no_error() -> None:
    late = Future[int]()

    @program
    async def run() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await answered(FakeRef(late))

    run()
    late.set_result(1)


def test_missing_and_idle_ray_are_told(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @program
    async def run() -> None:
        async with open_ray_cluster(WORDS, store=tmp_path / "store"):
            pytest.fail("there is no Ray")

    ray.initialized = False
    with pytest.raises(RuntimeError, match=r"call ray\.init\(\) first"):
        run()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LibraryMissing, match=r"nodes on Ray need package ray.*\[ray\]") as caught:
        run()
    assert caught.value.library == "ray"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"count": 0}, "count must be None or at least 1"),
        ({"count": 1.5}, "count must be None or at least 1"),
        ({"prefix": "A"}, "a prefix must be of lower-case"),
        ({"cpus": -1}, "cpus must be a number from 0 on"),
        ({"resources": {"tpu": "x"}}, "tpu must be a number from 0 on"),
        ({"start": 0}, "start must be seconds above 0"),
        ({"patience": float("nan")}, "patience must be seconds above 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RayNodes(**options)


def test_requests_are_signed_for_the_name_that_the_program_says(tmp_path: Path) -> None:
    cryptography = pytest.importorskip("cryptography.x509")
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    make_certificates(tmp_path / "here", [])
    request = request_certificate(tmp_path / "there", "node-1")
    assert (tmp_path / "there" / "node-1.key").stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in request
    certificate = cryptography.load_pem_x509_certificate(
        sign_certificate(tmp_path / "here", "node-2", request)
    )
    names = certificate.extensions.get_extension_for_class(cryptography.SubjectAlternativeName)
    assert names.value.get_values_for_type(cryptography.DNSName) == ["node-2"]
    with pytest.raises(ValueError, match="request must be what request_certificate"):
        sign_certificate(tmp_path / "here", "node-2", b"no request")


@pytest.mark.slow
def test_nodes_on_ray_itself_are_back_after_kill_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    ray = importlib.import_module("ray")
    here = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(
        num_cpus=3,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env=here,
    )

    @program
    async def run() -> None:
        nodes = RayNodes(count=3, patience=1.0)
        async with open_ray_cluster(WORDS, store=tmp_path / "store", nodes=nodes) as cluster:
            for number, harm in enumerate([lambda pid: os.kill(pid, signal.SIGKILL), stop_process]):
                key = next(key for key in KEYS if cluster.place_of(Log, key) == "ray-1")
                await cluster.entity(Log, key).ask(Add(number))
                before = cluster.nodes["ray-1"]  # the answer came from the address in there
                harm(listener_on(int(before.address.rpartition(":")[2])))
                with trio.fail_after(30):
                    while True:
                        try:
                            assert number in await cluster.entity(Log, key).ask(Read())
                            break
                        except ConnectionLost:
                            await trio.sleep(0.1)
                    await until_alive(cluster, "ray-1", before.life)
                    await cluster.wait_for(4)

    try:
        run()
    finally:
        ray.shutdown()
