"""Metrics of devices compared with a model, and of actors, GPUs and patterns."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)

from atomr_accel import (
    ContextPoisoned,
    Device,
    DeviceLost,
    FinishedOps,
    OutOfMemory,
    open_system,
    patterns,
)
from atomr_accel.actors import Actor, Message, Service, handler, open_actor_system, serving
from atomr_accel.patterns import CircuitBreaker, open_batcher
from atomr_accel.telemetry import METRICS, Metrics, PrometheusCollector, _metrics, open_nvml
from atomr_accel.telemetry._states import _PATTERN_FIELDS, _UNMEASURED
from atomr_accel.telemetry._tally import LibraryTally, library_of
from atomr_accel.testing import poison

from ..fakes.nvml import FakeGpu, FakeNvml
from ..harness import cpu_only, opened, settled, sized
from ..seeds import draw
from .scraping import Seen, exposition, samples


def test_the_catalogue_is_in_order() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", name)
        assert all(re.fullmatch(r"[a-z_]+", label) for label in metric.labels)
        assert len(set(metric.labels)) == len(metric.labels)
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_info_info"))
        assert metric.help.endswith(".")
        assert (metric.kind == "histogram") == bool(metric.bounds)
        assert list(metric.bounds) == sorted(set(metric.bounds))


def test_the_library_of_an_op() -> None:
    assert library_of("blas.gemm", "blas") == "blas"
    assert library_of("put", "memory") == "memory"
    assert library_of("run f.<locals>.<lambda>", "run.mine") == "run"
    assert library_of("recording.replay", "recordings") == "recording"


def test_ops_with_times_stand_for_those_without() -> None:
    def some(timed: int, untimed: int, took: int) -> FinishedOps:
        begun, ended = [1_000] * timed, [1_000 + took] * timed
        ops = FinishedOps(None, "blas", "blas.gemm", "done", [*range(timed)])  # type: ignore[arg-type]
        ops.submitted, ops.sent, ops.answered = begun, begun, ended
        ops.untimed = [*range(untimed)]
        return ops

    tally = LibraryTally()
    tally.add(some(0, 5, 0))  # their times are those of the next that have any
    tally.add(some(2, 4, 1_000_000))
    tally.add(some(3, 0, 5_000_000))
    tally.add(some(0, 2, 0))
    tally.sort()
    assert tally.outcomes["done"] == 16
    assert sum(tally.answered.counts) == sum(tally.queued.counts) == 14
    assert [count for count in tally.answered.counts if count] == [11, 3]
    assert tally.answered.total == 11 * 1_000_000 + 3 * 5_000_000
    tally.add(some(1, 0, 1_000))
    tally.sort()
    assert sum(tally.answered.counts) == tally.outcomes["done"] == 17


# --- devices -------------------------------------------------------------------------------


def fail() -> None:
    raise RuntimeError("as asked")


class Model:
    """Does things at random on a device, and notes what that should count."""

    def __init__(self, device: Device, rng: random.Random) -> None:
        self.device = device
        self.rng = rng
        self.ops = {"done": 0, "lost": 0}
        self.failed = self.put = self.got = self.batches = self.in_batches = self.replays = 0
        self.faults = 0

    async def step(self) -> None:
        await self.rng.choice(
            [self.products, self.products, self.data, self.batch, self.failure, self.replay]
        )()

    async def matrix(self) -> Any:
        n = self.rng.randrange(1, 9)
        self.put += 8 * n * n
        return await self.device.put(np.eye(n))

    async def product(self, x: Any) -> None:
        try:
            await self.device.blas.gemm(x, x)
        except ContextPoisoned:
            self.ops["lost"] += 1
        else:
            self.ops["done"] += 1

    async def products(self) -> None:
        x = await self.matrix()
        async with trio.open_nursery() as nursery:
            for _ in range(self.rng.randrange(1, 9)):
                nursery.start_soon(self.product, x)

    async def data(self) -> None:
        x = await self.matrix()
        await self.device.get(x)
        self.got += x.nbytes

    async def batch(self) -> None:
        x = await self.matrix()
        count = self.rng.randrange(1, 70)
        async with self.device.batch() as batch:
            for _ in range(count):
                batch.blas.gemm(x, x)
        self.ops["done"] += count
        self.in_batches += count
        self.batches += 1

    async def failure(self) -> None:
        with pytest.raises(RuntimeError):
            await self.device.run(fail)
        self.failed += 1

    async def replay(self) -> None:
        x = await self.matrix()
        async with self.device.record(x) as recording:
            recording.blas.gemm(x, x)
        for _ in range(self.rng.randrange(3)):
            await recording.replay()
            self.replays += 1

    async def fault(self) -> None:
        x = await self.matrix()
        await self.product(x)  # so that the lane is open
        async with trio.open_nursery() as nursery:
            for _ in range(self.rng.randrange(4)):
                nursery.start_soon(self.product, x)
            nursery.start_soon(poison, self.device)
        self.faults += 1
        await self.device.blas.gemm(*2 * [await self.matrix()])
        self.ops["done"] += 1

    async def check(self, metrics: Metrics) -> None:
        await self.data()  # what was put before is there, then, and counted
        seen = Seen(metrics)
        for outcome, count in self.ops.items():
            assert seen("ops_total", library="blas", outcome=outcome) == count
        assert seen("ops_total", library="run", outcome="failed") == self.failed
        assert seen("op_seconds_count", library="blas") == self.ops["done"]
        assert seen("op_queued_seconds_count", library="blas") == self.ops["done"]
        assert seen("transferred_bytes_total", op="put") == self.put
        assert seen("transferred_bytes_total", op="get") == self.got
        assert seen("batches_total") == self.batches
        assert seen("batch_ops_total") == self.in_batches
        assert seen("replays_total") == self.replays
        assert seen("faults_total") == self.faults
        assert seen("recovery_seconds_count") == self.faults
        assert seen("generation") == self.faults + 1
        assert seen("ops_in_flight") == self.device.statistics().in_flight


@cpu_only
@pytest.mark.slow
async def test_counts_are_those_of_a_model() -> None:
    rng = random.Random(draw())
    metrics = Metrics()
    async with opened(max_restarts=100) as device:
        with metrics.observe(device):
            model = Model(device, rng)
            for _ in range(sized(1, 4)):
                for _ in range(sized(12, 20)):
                    await model.step()
                await model.check(metrics)
                await model.fault()
                await model.check(metrics)
        assert exposition(metrics) == ""


@cpu_only
async def test_the_state_of_a_device() -> None:
    metrics = Metrics()
    async with opened(isolation="thread", memory_limit=1 << 30) as device:
        with metrics.observe(device, name="mine"):
            x = await device.put(np.ones(1000), sealed=True)
            y = await device.put(np.ones(10))
            with pytest.raises(OutOfMemory):
                await device.zeros((1 << 30,), np.float64)
            seen, now = Seen(metrics), device.statistics()
        labels = {"system": "mine", "device": "/device-0"}
        memory = now.memory
        assert seen("memory_bytes", state="sealed", **labels) == memory.sealed >= x.nbytes
        assert seen("memory_bytes", state="plain") == memory.used - memory.sealed >= y.nbytes
        assert seen("memory_bytes") == memory.capacity == seen("memory_reserved_bytes")
        assert seen("memory_limit_bytes") == 1 << 30
        assert seen("memory_largest_free_bytes") == memory.largest_free
        assert seen("memory_fragmentation_ratio") == memory.fragmentation
        assert seen("memory_slabs") == memory.slabs
        assert seen("out_of_memory_total") == 1
        assert seen("device_state", state="ready") == seen("device_state") == 1
        assert seen("device_info", name=device.name, backend="cpu", isolation="thread") == 1
        assert seen("lane_ops", state="in_flight") == sum(lane.in_flight for lane in now.lanes)
        assert seen("lane_frames_total", lane="memory") > 0
        assert now.startup is not None
        assert seen("startup_seconds", phase="total") == now.startup.total
        assert not seen.has("standbys")


@cpu_only
@pytest.mark.parametrize("every_op", [False, True])
async def test_ops_are_counted_exactly_and_timed_as_is_asked(every_op: bool) -> None:
    metrics = Metrics()
    async with opened(isolation="thread") as device:
        a = await device.put(np.ones((4, 4), np.float32))
        with metrics.observe(device, every_op=every_op):
            async with trio.open_nursery() as nursery:
                for _ in range(600):
                    nursery.start_soon(device.blas.gemm, a, a)
            await device.blas.gemm(a, a)
            told = {metric.name: points for metric, points in metrics.collect()}
    (done,) = [one for one in told["ops"] if one.labels[2:] == ("blas", "done")]
    (times,) = [one for one in told["op_seconds"] if one.labels[2:] == ("blas",)]
    assert done.value == 601
    assert (0 if not every_op else 601) < sum(times.buckets) + every_op <= 601 + every_op


async def test_the_plans_of_libraries() -> None:
    metrics = Metrics()
    async with opened(isolation="thread") as device:
        with metrics.observe(device):
            x = await device.put(np.ones(8, np.complex64))
            for _ in range(3):
                await device.fft.fft(x)
            seen, fft = Seen(metrics), device.statistics().caches["fft.plans"]
    assert seen("cache_entries", cache="fft.plans") == fft.entries == 1
    assert seen("cache_limit", cache="fft.plans") == fft.limit
    assert seen("cache_lookups_total", cache="fft.plans", result="hit") == fft.hits == 2
    assert seen("cache_lookups_total", cache="fft.plans", result="miss") == fft.misses == 1


async def test_call_templates_are_observed() -> None:
    metrics = Metrics()
    async with opened(isolation="thread") as device:
        with metrics.observe(device):
            x = await device.put(np.ones(8))
            for _ in range(4):
                await device.blas.nrm2(x)
            seen = Seen(metrics)
            blas = device.statistics().caches["blas.templates"]
    assert seen("cache_entries", cache="blas.templates") == blas.entries == 1
    assert seen("cache_lookups_total", cache="blas.templates", result="hit") == blas.hits > 0
    assert seen("cache_lookups_total", cache="blas.templates", result="miss") == blas.misses > 0


@cpu_only
async def test_the_device_times_of_ops_where_they_are_measured() -> None:
    metrics = Metrics()
    async with opened(isolation="thread") as device:
        x = await device.put(np.eye(4))
        with metrics.observe(device):
            await device.blas.gemm(x, x)
            assert not Seen(metrics).has("op_device_seconds_count")
        with metrics.observe(device, timed=True):
            await device.blas.gemm(x, x)
            seen = Seen(metrics)
    assert seen("op_device_seconds_count", library="blas") == 1
    assert 0 < seen("op_device_seconds_sum") <= seen("op_seconds_sum", library="blas")


@cpu_only
async def test_a_device_that_is_lost_is_seen_to_be() -> None:
    metrics = Metrics()
    with contextlib.suppress(DeviceLost):
        async with opened(isolation="thread") as device:
            with metrics.observe(device), trio.CancelScope(shield=True):
                await poison(device)
                await device.ref.wait_stopped()
                seen = Seen(metrics)
    assert seen("device_state", state="lost") == seen("device_state") == 1
    assert seen("faults_total") == 1
    assert not seen.has("recovery_seconds_count")


@cpu_only
@pytest.mark.slow
async def test_the_devices_of_a_system_come_and_go() -> None:
    metrics = Metrics()
    async with open_system("house") as system:
        with metrics.observe(system):
            first = await system.spawn_device(0, backend="cpu", isolation="thread")
            second = await system.spawn_device(0, backend="cpu", isolation="thread", name="b")
            for device, count in (first, 3), (second, 5):
                x = await device.put(np.eye(2))
                for _ in range(count):
                    await device.blas.gemm(x, x)
            seen = Seen(metrics)
            done = {"library": "blas", "outcome": "done"}
            assert seen("ops_total", system="house", device="/device-0", **done) == 3
            assert seen("ops_total", system="house", device="/b", **done) == 5
            await first.ref.stop()
            seen = Seen(metrics)
            assert not seen.has("ops_total", device="/device-0")
            assert seen("ops_total", device="/b", **done) == 5
            assert seen("actor_stops_total", kind="DeviceActor", how="normal") == 1


@cpu_only
async def test_a_device_of_a_system_alone() -> None:
    metrics = Metrics()
    async with open_system("house") as system:
        device = await system.spawn_device(0, backend="cpu", isolation="thread")
        other = await system.spawn_device(0, backend="cpu", isolation="thread", name="b")
        with metrics.observe(device):
            for one in device, other:
                await one.put(np.ones(2))
                await settled(one)
            seen = Seen(metrics)
            with pytest.raises(ValueError, match="is observed already"):
                metrics.observe(system).__enter__()
            with metrics.observe(other):
                pass
        with (
            metrics.observe(system),
            pytest.raises(ValueError, match="is observed already"),
        ):
            metrics.observe(device).__enter__()
    assert seen("transferred_bytes_total") == 16
    assert not seen.has("actors")


# --- actors --------------------------------------------------------------------------------


class Do(Message[None]):
    pass


class Fail(Message[None]):
    pass


class Ping(Message[None]):
    pass


class Worker(Actor):
    @handler
    async def do(self, message: Do) -> None:
        await trio.sleep_forever()

    @handler
    async def ping(self, message: Ping) -> None:
        pass

    @handler
    async def fail(self, message: Fail) -> None:
        raise RuntimeError("as asked")


async def test_actors_by_class() -> None:
    metrics = Metrics()
    async with open_actor_system("office") as system:
        with metrics.observe(system):
            workers = [await system.spawn(Worker) for _ in range(3)]
            with pytest.raises(RuntimeError):
                await workers[0].ask(Fail())
            await workers[0].ask(Ping())  # in its next life
            for count, worker in enumerate(workers):
                for _ in range(2 * count):
                    worker.tell(Do())  # the first of them is being handled soon
            await workers[0].stop()
            seen = Seen(metrics)
    assert seen("actors", system="office", kind="Worker", state="running") == 2
    assert seen("mailbox_messages", kind="Worker") == 4
    assert seen("mailbox_messages_max", kind="Worker") == 3
    assert seen("actor_restarts_total", kind="Worker") == 1
    assert seen("actor_stops_total", kind="Worker", how="normal") == 1
    assert seen("dead_letters_total", system="office") == 0


@dataclasses.dataclass
class Shelf:
    name: str
    books: int


@dataclasses.dataclass
class Books:
    lent: int
    open: bool
    delay: float
    title: str
    shelves: tuple[Shelf, ...]
    halls: dict[str, Shelf]


class Library(Service):
    """A service of a program's own."""

    def depth(self) -> int:
        return 5

    def statistics(self) -> object:
        shelves = (Shelf("a", 2), Shelf("b", 3))
        return Books(7, True, float("nan"), "all", shelves, {"north": Shelf("", 9)})


async def test_services_by_path() -> None:
    metrics = Metrics()
    async with (
        open_actor_system("town") as system,
        serving(Library(), system=system, name="library"),
    ):
        with metrics.observe(system):
            seen = Seen(metrics)
    place = {"system": "town", "path": "/library", "kind": "Library"}
    assert seen("service_state", **place, state="running") == 1
    assert seen("service_state", **place, state="waiting") == 0
    assert seen("service_restarts_total", **place) == 0
    assert seen("service_load", **place) == 5
    numbers = {("", "lent"): 7, ("", "open"): 1, ("a", "books"): 2, ("b", "books"): 3}
    for (part, field), number in {**numbers, ("north", "books"): 9}.items():
        assert seen("service_statistics", **place, part=part, field=field) == number


# --- GPUs ----------------------------------------------------------------------------------


async def test_gpus_and_their_xids() -> None:
    part = FakeGpu(uuid="MIG-1", memory=(100, 60, 30, 10))
    gpu, idle = (
        FakeGpu(mig=[part]),
        FakeGpu(
            uuid="GPU-2",
            lacks={"nvmlDeviceGetMemoryInfo_v2", *dir(FakeNvml)}
            - {"nvmlDeviceGetUUID", "nvmlDeviceGetName"},
        ),
    )
    fake = FakeNvml(gpu, idle)
    metrics = Metrics()
    async with open_actor_system("demo") as system, open_nvml(system, library=fake) as nvml:
        with metrics.observe(nvml):
            await nvml.read()
            async with nvml.watch_xids() as xids:
                fake.happen(gpu, 31)
                await anext(xids)
            seen = Seen(metrics)
    label = {"gpu": gpu.uuid}
    assert seen("gpu_info", index="0", model="Fake H200", **label) == 1
    assert seen("gpu_utilization_ratio", **label) == 0.75
    assert seen("gpu_power_watts", **label) == 350.5
    assert seen("gpu_energy_joules_total", **label) == pytest.approx(123.456)
    assert seen("gpu_memory_bytes", **label) == seen("gpu_memory_total_bytes", **label) == 1000
    assert seen("gpu_throttled", reason="SwPowerCap", **label) == 1
    assert seen("gpu_temperature_celsius", sensor="memory", **label) == 70
    assert seen("gpu_clock_hertz", domain="sm", **label) == 1.979e9
    assert seen("gpu_ecc_errors_total", kind="corrected", since="driver", **label) == 3
    assert seen("gpu_mig_memory_bytes", instance="MIG-1", state="used", **label) == 60
    assert seen("gpu_xids_total", xid="31", **label) == 1
    assert seen("gpu_info", gpu="GPU-2") == 1
    assert {name for name, labels in seen.samples if ("gpu", "GPU-2") in labels} == {
        "atomr_accel_gpu_info",
        "atomr_accel_gpu_reading_age_seconds",
    }


# --- patterns ------------------------------------------------------------------------------


async def test_a_pattern_and_its_observer() -> None:
    metrics = Metrics()

    async def serve(items: Sequence[int]) -> list[int]:
        return [2 * item for item in items]

    with metrics.observer("double") as observer:
        async with open_batcher(serve, max_size=4, observer=observer) as batcher:
            with metrics.observe(batcher, name="double"):
                async with trio.open_nursery() as nursery:
                    for item in range(8):
                        nursery.start_soon(batcher, item)
                seen, now = Seen(metrics), batcher.statistics()
    label = {"name": "double"}
    labels = {"pattern": "batcher", "part": "", **label}
    assert seen("pattern_requests_total", outcome="answered", **labels) == 8 == now.answered
    assert seen("pattern_events_total", event="batches", **labels) == now.batches
    assert seen("pattern_requests_now", **labels) == 0
    assert seen("pattern_batch_items_sum", **label) == 8
    assert seen("pattern_batch_items_count", **label) == now.batches
    assert seen("pattern_request_seconds_count", outcome="answered", **label) == 8
    assert seen("pattern_request_seconds_bucket", le="+Inf", **label) == 8


async def test_the_state_of_a_circuit_and_the_parts_of_a_pattern() -> None:
    @dataclasses.dataclass
    class Part:
        name: str
        answered: int
        seconds: float

    @dataclasses.dataclass
    class Whole:
        parts: tuple[Part, ...]
        answers: tuple[int, ...]
        strange: str = "?"

    class Pattern:
        def statistics(self) -> Whole:
            return Whole((Part("a", 1, 0.5), Part("a", 2, float("nan"))), (7, 8))

    metrics = Metrics()
    with metrics.observe(CircuitBreaker()), metrics.observe(Pattern(), name="p"):
        seen = Seen(metrics)
    assert seen("pattern_state", pattern="circuitbreaker", state="closed") == 1
    assert seen("pattern_state", pattern="circuitbreaker") == 1
    # Two parts of one name are one series, or the whole scrape would be refused.
    assert seen("pattern_requests_total", pattern="pattern", part="a", outcome="answered") == 3
    assert seen("pattern_seconds", name="p", part="a") == 0.5
    assert seen("pattern_events_total", part="1", event="answers") == 8


def test_every_number_that_a_pattern_tells_is_a_metric_or_left_out_on_purpose() -> None:
    kinds = [getattr(patterns, name) for name in patterns.__all__ if name.endswith("Statistics")]
    numbers = {
        field.name
        for kind in kinds
        for field in dataclasses.fields(kind)
        if re.search(r"\b(int|float)\b", str(field.type))
    }
    assert numbers - set(_PATTERN_FIELDS) - _UNMEASURED == set()
    assert set(_PATTERN_FIELDS) - numbers == set()
    assert _UNMEASURED - numbers == set()


# --- names, threads, failures --------------------------------------------------------------

HOSTILE = ['"', "\\", "\n", 'a="b"} 1\n# HELP x', "\\n", "é☃", "\udc80", "\r\n", "\x00", "{},=", ""]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
async def test_labels_are_what_they_are(name: str) -> None:
    metrics = Metrics()
    metrics_of_actors = type("Odd", (Worker,), {"__module__": __name__})
    metrics_of_actors.__qualname__ = metrics_of_actors.__name__ = "Odd"
    async with open_actor_system(name) as system:
        await system.spawn(metrics_of_actors)
        with metrics.observe(system), metrics.observe(CircuitBreaker(), name=name):
            text = exposition(metrics)
            registry = CollectorRegistry()
            registry.register(PrometheusCollector(metrics))
            strict = openmetrics(registry).decode()
    shown = name.encode("utf-8", "backslashreplace").decode()
    for found in (
        samples(text),
        {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in openmetrics_families(strict)
            for sample in family.samples
        },
    ):
        by_name = {dict(labels).get("system") for _, labels in found} - {None}
        assert by_name == {shown}
        assert {dict(labels).get("name") for _, labels in found} - {None} == {shown}


async def test_observed_values_have_one_name_and_a_known_kind() -> None:
    metrics = Metrics()
    breaker = CircuitBreaker()
    with metrics.observe(breaker):
        with pytest.raises(ValueError, match="circuitbreaker is observed already"):
            metrics.observe(CircuitBreaker()).__enter__()
        with metrics.observe(CircuitBreaker(), name="other"):
            pass
    with metrics.observe(breaker):
        pass
    for wrong in 3, CircuitBreaker, None:
        with pytest.raises(
            TypeError, match="argument of observe must be a device, a system, what open_nvml gives,"
        ):
            metrics.observe(wrong).__enter__()  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a name"):
        metrics.observe(breaker, name=3).__enter__()  # type: ignore[arg-type]
    with metrics.observer("x"), pytest.raises(ValueError, match="observer x"):
        metrics.observer("x").__enter__()


async def test_unreadable_metric_is_dropped_and_the_rest_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Torn:
        def statistics(self) -> CircuitBreaker:
            if reads:
                raise RuntimeError("torn")
            reads.append(1)
            return CircuitBreaker().statistics()  # type: ignore[return-value]

    reads: list[int] = []
    metrics = Metrics()
    with (
        metrics.observe(Torn()),
        metrics.observe(CircuitBreaker()),
        caplog.at_level(logging.ERROR),
    ):
        for _ in range(3):
            assert Seen(metrics).has("pattern_state", pattern="circuitbreaker")
    assert [record.getMessage() for record in caplog.records] == [
        "pattern torn torn cannot be read and is observed no more"
    ]


async def test_other_threads_have_trios_read() -> None:
    metrics = Metrics()
    threads = []

    class Where:
        def statistics(self) -> object:
            threads.append(threading.current_thread())
            return CircuitBreaker().statistics()

    with metrics.observe(Where()):
        found = await trio.to_thread.run_sync(metrics.collect)
    assert {metric.name for metric, _ in found} >= {"pattern_events", "pattern_state"}
    assert set(threads) == {threading.current_thread()}


def test_a_trio_that_is_busy_tells_what_it_told_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_metrics, "_PATIENCE", 0.01)
    metrics = Metrics()
    assert metrics.collect() == ()

    async def main() -> None:
        with metrics.observe(CircuitBreaker()):
            told = metrics.collect()
            thread = threading.Thread(target=lambda: seen.append(metrics.collect()))
            thread.start()
            thread.join()  # trio's thread is blocked
            assert seen == [told]

    seen: list[Any] = []
    trio.run(main)
    assert metrics.collect() == ()

    async def other() -> None:
        with metrics.observe(CircuitBreaker()):  # in another run, one after the other
            assert metrics.collect()

    trio.run(other)
