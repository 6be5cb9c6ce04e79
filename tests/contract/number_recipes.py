"""Calls of all public callables with numeric parameters, for one number each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import trio
import trio.testing

import atomr_accel
from atomr_accel import (
    Device,
    DeviceUnavailable,
    GpuRef,
    actors,
    patterns,
    solvers,
    telemetry,
    testing,
    worlds,
)
from atomr_accel.dashboard import open_dashboard
from atomr_accel.replay import open_journal, replay_journal, state_at
from atomr_accel.telemetry import serve_prometheus

from ..harness import BACKEND, opened


class Bench:
    """One device that recipes share, opened by the first of them."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self.stack = stack
        self.folder = folder
        self._device: Device | None = None
        self._files = 0

    async def device(self) -> Device:
        """The device."""
        if self._device is None:
            self._device = await self.stack.enter_async_context(opened(isolation="thread"))
        return self._device

    async def ref(self) -> GpuRef:
        """A small array on it."""
        return await (await self.device()).put(np.ones((2, 2), np.float32))

    def file(self) -> Path:
        """A file that does not exist."""
        self._files += 1
        return self.folder / f"{self._files}.journal"


RECIPES: Final[dict[str, Callable[..., Awaitable[object]]]] = {}


def recipe(*names: str) -> Callable[[Any], Any]:
    """Enter a function of a bench and numbers for callables of these names."""

    def enter(function: Any) -> Any:
        RECIPES.update(dict.fromkeys(names, function))
        return function

    return enter


def _made(kind: Callable[..., Any], **others: Any) -> Callable[..., Awaitable[object]]:
    async def make(_bench: Bench, **numbers: Any) -> object:
        return kind(**others, **numbers)

    return make


async def same(item: Any) -> Any:
    """Return the item."""
    await trio.lowlevel.checkpoint()
    return item


async def _nothing(*, task_status: Any) -> None:
    task_status.started()


RECIPES.update(
    {
        "AdaptiveLength": _made(patterns.AdaptiveLength),
        "AdaptiveLength.best": _made(patterns.AdaptiveLength().best),
        "Backoff": _made(actors.Backoff),
        "Backoff.delay": _made(actors.Backoff(jitter=0.5).delay),
        "Budget": lambda bench, **numbers: _made(patterns.Budget)(
            bench, **{"rate": 1.0, "burst": 1.0, **numbers}
        ),
        "CascadeStage": _made(patterns.CascadeStage, function=same),
        "ChildSpec": _made(actors.ChildSpec, name="a", run=_nothing),
        "CircuitBreaker": _made(patterns.CircuitBreaker),
        "ConsistentHash": _made(atomr_accel.ConsistentHash),
        "Gate": _made(patterns.Gate),
        "Gating": _made(patterns.Gating),
        "Gating.capacity": lambda bench, **numbers: _made(patterns.Gating().capacity)(
            bench, **{"tokens": 4, "experts": 2, **numbers}
        ),
        "Hedge": _made(patterns.Hedge),
        "Hints": _made(atomr_accel.Hints),
        "Intensity": _made(actors.Intensity),
        "LookupDraft": _made(patterns.LookupDraft),
        "Mailbox": _made(actors.Mailbox),
        "NGramDraft": _made(patterns.NGramDraft),
        "Retry": _made(patterns.Retry),
        "Retry.delay": _made(patterns.Retry().delay, error=ValueError()),
        "RetryBudget": _made(patterns.RetryBudget),
        "Sampling": _made(patterns.Sampling),
        "Shadow": _made(patterns.Shadow, compare=lambda *_: True),
        "by_length": lambda bench, **numbers: _by_length(bench, **numbers),
    }
)


async def _by_length(_bench: Bench, **numbers: Any) -> None:
    options = {"bounds": [2**40], "length": lambda _item: 3, **numbers}
    with suppress(_Longer):
        try:
            patterns.by_length(**options)("abc")
        except ValueError as error:
            if "longest bucket" in str(error):
                raise _Longer from error
            raise


class _Longer(Exception):
    """An item is longer than the bounds: the number was accepted."""


@recipe("DraftTree.add")
async def _(_bench: Bench, **numbers: Any) -> None:
    patterns.DraftTree().add(**{"token": 1, **numbers})


@recipe("DraftTree.add_chain")
async def _(_bench: Bench, **numbers: Any) -> None:
    patterns.DraftTree().add_chain(**numbers)


@recipe("receive_lines", "receive_frames")
async def _(_bench: Bench, **numbers: Any) -> None:
    for receive, data in (
        (patterns.receive_lines, b"a\n"),
        (patterns.receive_frames, b"\0\0\0\1a"),
    ):
        stream = trio.testing.MemoryReceiveStream()
        stream.put_data(data)
        stream.put_eof()
        with suppress(patterns.MalformedStream):
            async for _part in receive(stream, **numbers):
                pass


class Idle(actors.Actor):
    """An actor without messages."""


@recipe("ActorSystem.spawn")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with actors.open_actor_system("sweep") as system:
        await system.spawn(Idle, **numbers)
        await system.spawn(actors.Group, **numbers)


class Parent(actors.Actor):
    """Spawns a child."""

    def __init__(self, numbers: dict[str, Any]) -> None:
        self.numbers = numbers

    async def started(self) -> None:
        """Spawn it."""
        await self.spawn(Idle, **self.numbers)


@recipe("Actor.spawn")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with actors.open_actor_system("sweep") as system:
        await system.spawn(Parent, numbers)


async def _batch(items: list[Any]) -> list[Any]:
    await trio.lowlevel.checkpoint()
    return items


@recipe("open_batcher")
async def _(_bench: Bench, **numbers: Any) -> None:
    options = {"max_size": 1, "max_wait": 0.0, **numbers}
    if "max_size" in numbers:
        options["max_wait"] = 0.0
    async with patterns.open_batcher(_batch, **options) as batcher:
        assert await batcher(1) == 1


@recipe("Batcher.ask")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with patterns.open_batcher(_batch, max_size=1, max_wait=0.0) as batcher:
        await batcher.ask(2, **numbers)


@recipe("Batcher.tune")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with patterns.open_batcher(_batch, max_size=1, max_wait=0.0) as batcher:
        batcher.tune(**numbers)
        assert await batcher(1) == 1


@recipe("open_cascade")
async def _(_bench: Bench, **numbers: Any) -> None:
    options = {"confidence": lambda _answer: 1.0, **numbers}
    stages = [patterns.CascadeStage(same, 2.0), patterns.CascadeStage(same)]
    async with patterns.open_cascade(*stages, **options) as cascade:
        with trio.fail_after(60):
            assert await cascade(1) == 1


@recipe("Cascade.ask")
async def _(_bench: Bench, **numbers: Any) -> None:
    stage = patterns.CascadeStage(same)
    async with patterns.open_cascade(stage, confidence=lambda _answer: 1.0) as cascade:
        await cascade.ask(1, **numbers)


@recipe("open_ensemble")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with patterns.open_ensemble(same, same, combine=max, **numbers) as ensemble:
        await ensemble(1)


@recipe("open_fair_share")
async def _(_bench: Bench, **numbers: Any) -> None:
    options = {"capacity": 1, "tenant": lambda _item: "a", **numbers}
    async with patterns.open_fair_share(same, **options) as share:
        for item in range(3):
            await share(item)


@recipe("FairShare.slot")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with patterns.open_fair_share(capacity=1) as share:
        for _ in range(2):
            async with share.slot("a", **numbers):
                pass


@recipe("FairShare.tune")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with patterns.open_fair_share(capacity=1) as share:
        share.tune(**numbers)
        async with share.slot("a"):
            pass


@recipe("Slot.charge")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with patterns.open_fair_share(capacity=1) as share, share.slot("a") as slot:
        slot.charge(**numbers)


@recipe("Shares")
async def _(_bench: Bench, **numbers: Any) -> None:
    patterns.Shares(**{"weights": {}, "budgets": {}, **numbers})


@recipe("Shares.add", "Shares.weigh", "Shares.charge", "Shares.next")
async def _(_bench: Bench, **numbers: Any) -> None:
    shares = patterns.Shares({}, {})
    if "weights" in numbers:
        shares.weigh(numbers["weights"])
    waiting = shares.add("a", numbers.get("cost", 1.0))
    assert shares.next(numbers.get("now", 0.0)) is waiting
    shares.charge(waiting, numbers.get("more", 1.0))
    shares.end(waiting)


@recipe("open_pipeline")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with patterns.open_pipeline(same, same, **numbers) as pipeline:
        assert await pipeline(1) == 1


@recipe("Stage")
async def _(_bench: Bench, **numbers: Any) -> object:
    stage = patterns.Stage(same, **numbers)
    async with patterns.open_pipeline(stage) as pipeline:
        assert await pipeline(1) == 1
    return stage


class _Version:
    async def __aenter__(self) -> Any:
        return same

    async def __aexit__(self, *_error: object) -> None:
        pass


@recipe("open_replica_pool")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with patterns.open_replica_pool([_Version], **numbers) as pool:
        assert await pool(1) == 1


@recipe("HotSwap.load")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with patterns.open_hot_swap(_Version) as swap:
        with trio.move_on_after(0):
            await swap.load(_Version, **numbers)


async def _no_prefill(*_args: Any, **_options: Any) -> Any:
    raise AssertionError("no token is asked for")


@recipe("open_speculative")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with patterns.open_speculative(_no_prefill, None, **numbers):
        pass


@recipe("SpeculativeDecoder.generate")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with patterns.open_speculative(_no_prefill, None) as decoder:
        decoder.generate(**{"prompt": [1], **numbers})


# --- devices -------------------------------------------------------------------------------------


@recipe("open_device", "System.spawn_device")
async def _(_bench: Bench, **numbers: Any) -> None:
    # There is no such device, so that none is opened for each number: they are checked before.
    options = {"index": 2**20, "backend": "cuda", **numbers}
    with suppress(DeviceUnavailable):
        async with atomr_accel.open_device(**options):
            pass
    async with atomr_accel.open_system("sweep") as system:
        with suppress(DeviceUnavailable):
            await system.spawn_device(**options)


@recipe("open_devices")
async def _(_bench: Bench, **numbers: Any) -> None:
    with suppress(DeviceUnavailable):
        async with atomr_accel.open_devices([2**20], backend="cuda", **numbers):
            pass


@recipe("Devices.drain", "Devices.resume")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with atomr_accel.open_devices([0], backend=BACKEND, isolation="thread") as devices:
        with suppress(IndexError):  # there is no such device
            await devices.drain(**numbers)
            devices.resume(**numbers)


@recipe("Device.health")
async def _(bench: Bench, **numbers: Any) -> None:
    await (await bench.device()).health(**numbers)


@recipe("Standby")
async def _(_bench: Bench, **numbers: Any) -> None:
    atomr_accel.Standby(**{**({"parked": 1} if "host_memory" in numbers else {}), **numbers})


@recipe("Device.retry")
async def _(bench: Bench, **numbers: Any) -> None:
    await (await bench.device()).retry(same, 1, **numbers)


@recipe("open_world")
async def _(bench: Bench, **numbers: Any) -> None:
    async with worlds.open_world([await bench.device()], **numbers):
        pass


def _collective(name: str) -> Callable[..., Awaitable[None]]:
    async def ask(bench: Bench, **numbers: Any) -> None:
        device = await bench.device()
        async with worlds.open_world([device]) as world:
            x = await device.put(np.ones((1, 2), np.float32))
            await getattr(world, name)([x], **numbers)

    return ask


RECIPES.update(
    {
        f"Collectives.{name}": _collective(name)
        for name in ("all_reduce", "all_to_all_v", "gather", "reduce", "reduce_scatter")
    }
)


def _solver(solve: Any) -> Callable[..., Awaitable[None]]:
    async def ask(bench: Bench, **numbers: Any) -> None:
        device = await bench.device()
        a = await device.put(np.diag([2.0, 3.0, 4.0]))
        if solve is solvers.lobpcg:
            b = await device.put(np.ones((3, 1)))
        else:
            b = await device.put(np.ones(3))
        await solve(device, a, b, **numbers)

    return ask


RECIPES.update(
    {
        solve.__name__: _solver(solve)
        for solve in (solvers.cg, solvers.bicgstab, solvers.gmres, solvers.minres, solvers.lobpcg)
    }
)


@recipe("open_journal")
async def _(bench: Bench, **numbers: Any) -> None:
    async with open_journal(await bench.device(), bench.file(), **numbers):
        pass


async def _recorded(bench: Bench) -> Path:
    path = bench.folder / "one.journal"
    if not path.exists():
        device = await bench.device()
        async with open_journal(device, path, contents=True):
            await device.get(await device.put(np.ones(2)))
    return path


@recipe("replay_journal")
async def _(bench: Bench, **numbers: Any) -> None:
    await replay_journal(await _recorded(bench), await bench.device(), **numbers)


@recipe("state_at")
async def _(bench: Bench, **numbers: Any) -> None:
    await state_at(await _recorded(bench), device=await bench.device(), **numbers)


@recipe("open_dashboard")
async def _(_bench: Bench, **numbers: Any) -> None:
    async with actors.open_actor_system("sweep") as system:
        with suppress(OSError):  # the port is not this program's
            async with open_dashboard(system, announce=False, **numbers):
                pass


@recipe("serve_prometheus")
async def _(_bench: Bench, **numbers: Any) -> None:
    with suppress(OSError):  # the port is not this program's
        async with serve_prometheus(telemetry.Metrics(), **numbers):
            pass


@recipe("lane_delays")
async def _(_bench: Bench, **numbers: Any) -> None:
    with testing.lane_delays(**{"microseconds": 0, **numbers}):
        pass


CONTAINERS: Final[dict[tuple[str, str], Callable[[Any], Any]]] = {
    ("Batcher.tune", "preferred_sizes"): lambda value: [value],
    ("Collectives.all_to_all_v", "counts"): lambda value: [[value]],
    ("DraftTree.add_chain", "tokens"): lambda value: [value],
    ("FairShare.tune", "weights"): lambda value: {"a": value},
    ("HotSwap.load", "canary"): lambda value: [value],
    ("Shares", "budgets"): lambda value: {"a": patterns.Budget(rate=value, burst=1.0)},
    ("Shares", "weights"): lambda value: {"a": value},
    ("Shares.weigh", "weights"): lambda value: {"a": value},
    ("SpeculativeDecoder.generate", "prompt"): lambda value: [value],
    ("SpeculativeDecoder.generate", "stop"): lambda value: [value],
    ("by_length", "bounds"): lambda value: [value],
    ("by_length", "length"): lambda value: lambda _item: value,
    ("open_batcher", "preferred_sizes"): lambda value: [value],
    ("open_cascade", "confidence"): lambda value: lambda _answer: value,
    ("open_device", "affinity"): lambda value: [value],
    ("open_device", "priorities"): lambda value: {"blas": value},
    ("open_fair_share", "cost"): lambda value: lambda _item: value,
    ("open_fair_share", "weights"): lambda value: {"a": value},
    ("open_speculative", "branching"): lambda value: [value],
    ("replay_journal", "tolerance"): lambda value: {"float64": value},
}
"""Parameters that take more than the number itself."""

NO_PARAMETERS: Final = {
    ("Backoff", "rng"): "chance, such as random.random",
    ("Hints", "key"): "a name, which may be a number",
}
"""Parameters that the sweep leaves out, and why."""

_BY_PACKAGE: Final = "the package makes these; programs read them"
_CALLED: Final = "the package calls it; programs implement it"
_ARRAYS: Final = "a shape, an axis or an operand, which the tests of expressions and views check"
_OTHER_TESTS: Final = "needs compiled code, several devices or models; its own tests give it these"

EXCLUDED: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("ActorTree", "CascadeAnswer", "Compared", "Comparison", "Deviation", "DeviceFault",
         "DeviceLoad", "Difference", "Explanation", "GpuClocks", "GpuEcc", "GpuMemory",
         "GpuNvLink", "GpuPcie", "GpuProcess", "GpuReading", "GpuUtilization", "Kernel", "Link",
         "Metric", "MigInstance", "Point", "Report", "Routing", "SharedBuffer", "Skipped",
         "WaitingRequest", "Xid"),
        _BY_PACKAGE,
    ),
    **dict.fromkeys(
        ("DeviceInstrument.generation_began", "DeviceInstrument.generation_ready",
         "DeviceInstrument.op_in_batch", "DeviceInstrument.op_replays",
         "DeviceInstrument.slab_added", "DeviceInstrument.slab_removed", "Draft.begin",
         "DraftText.keep", "DraftText.propose", "LookupDraft.begin", "ModelDraft.begin",
         "NGramDraft.begin", "Observer.answered", "Observer.failed", "Observer.withdrawn",
         "RedisStorage.append", "Storage.append", "ThreadedStorage.append",
         "DraftTree.children"),
        _CALLED,
    ),
    **dict.fromkeys(
        ("Batch.output", "Batch.try_empty", "Collector.output", "Recording.output",
         "Expression.swapaxes", "Expression.transpose", "GpuRef.broadcast_to", "GpuRef.reshape",
         "GpuRef.with_layout", "MemoryMethods.full", "SpeculativeDecoder.call",
         "Methods.argmax", "Methods.argmin", "Methods.max", "Methods.min", "Methods.prod",
         "Methods.round", "Methods.std", "Methods.sum", "Methods.var", "broadcast", "constant",
         "index", "repeats", "share_elements", "span", "view_of"),
        _ARRAYS,
    ),
    **dict.fromkeys(
        ("Collector.launch", "CollectedCollectives", "CollectedCollectives.recv",
         "CollectedCollectives.send",
         "CollectiveGroup.recv", "CollectiveGroup.send", "CompileOptions",
         "TensorMap", "Texture", "Topology.measure", "World.recv", "World.send",
         "compare", "draw_token",
         "explain", "judge_chain", "open_moe", "open_nvml", "standby_ready"),
        _OTHER_TESTS,
    ),
}  # fmt: skip
"""Callables that the sweep leaves out, and why."""
