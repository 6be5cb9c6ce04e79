"""Classes of other packages in hosts, and the threads that lanes get there."""

from __future__ import annotations

import threading
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import AccelError, DeviceUnavailable, Unsupported, open_device
from atomr_accel.host.completion import CallbackCompletion, HybridCompletion
from atomr_accel.host.streams import OwnStreams, PooledStreams, SharedStreams, SingleStream
from atomr_accel.lanes import Isolation
from atomr_accel.testing import kill_host
from atomr_accel.wire import HostClass, OpenLane

from ..fakes import behind
from ..fakes.host_classes import Given
from ..harness import cpu_only, opened

CLASSES: Final = "tests.fakes.host_classes"

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.from_regex(r"[a-z]{1,5}", fullmatch=True)


@given(arguments=st.dictionaries(NAMES, PLAIN, max_size=4))
def test_arguments_arrive_as_they_are(arguments: dict[str, Any]) -> None:
    chosen = HostClass(f"{CLASSES}:Given", arguments)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(chosen), type=HostClass)
    made = sent.make("a test's object")
    assert type(made) is Given
    assert repr(made.arguments) == repr(arguments), "types, too"


@given(
    odd=st.sampled_from([(1,), {1}, 1j, np.float64(1), np.arange(2), object(), {1: 2}, Given]),
    deep=st.booleans(),
)
def test_other_arguments_are_refused(odd: object, deep: bool) -> None:
    with pytest.raises(TypeError, match=r"the arguments of m:C must (be plain|have names)"):
        HostClass("m:C", {"x": [{"y": odd}] if deep else odd})


def test_the_form_of_a_host_class() -> None:
    for reference in ("m", "m:", ":C", "m:C:D", "m C:D", "m..n:C", ""):
        with pytest.raises(ValueError, match="must be 'module:Class', not"):
            HostClass(reference)
    wrong: Any
    for wrong in (None, 3, Given):
        with pytest.raises(TypeError, match="must be 'module:Class', not"):
            HostClass(wrong)
    for wrong in (None, [], "x"):
        with pytest.raises(TypeError, match="must be a dict by name"):
            HostClass("m:C", wrong)
    with pytest.raises(ValueError, match="at most 64 bits"):
        HostClass("m:C", {"x": 1 << 64})


LANES = st.builds(
    lambda name, index, most, shared: OpenLane(
        name, index, "", most, "launches" if shared else name
    ),
    NAMES,
    st.integers(0, 99),
    st.integers(1, 4),
    st.booleans(),
)


@given(lane=LANES, other=LANES, slot=st.integers(0, 3), size=st.integers(1, 6))
def test_built_in_streams(lane: OpenLane, other: OpenLane, slot: int, size: int) -> None:
    assert OwnStreams().stream_of(lane, slot, 0) is None
    one = SingleStream()
    assert one.stream_of(lane, slot, 0) == one.stream_of(other, 0, 1) is not None
    pool = PooledStreams(size)
    names = {pool.stream_of(lane, at, 0) for at in range(size)}
    assert len(names) == size
    assert names == {pool.stream_of(other, at, 0) for at in range(size)}
    shared = SharedStreams()
    assert (shared.stream_of(lane, slot, 0) is None) == (lane.thread == lane.name)
    if lane.thread == other.thread == "launches":
        assert shared.stream_of(lane, slot, 0) == shared.stream_of(other, slot, 0)
        assert shared.stream_of(lane, slot, 0) != shared.stream_of(other, slot, -1)


def test_arguments_of_the_built_in_classes() -> None:
    for wrong in (0, -1, 1.5, "4"):
        with pytest.raises(ValueError, match="size must be"):
            PooledStreams(wrong)  # type: ignore[arg-type]
    for name in ("poll", "longest_nap", "share"):
        with pytest.raises(ValueError, match=f"{name} must be"):
            HybridCompletion(**{name: -1})
    with pytest.raises(ValueError, match="look must be"):
        CallbackCompletion(0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"streams": f"{CLASSES}:Nothing"}, "allocator.*cannot be loaded.*AttributeError"),
        ({"completion": "not_there:C"}, "strategy.*cannot be loaded.*ModuleNotFoundError"),
        ({"streams": f"{CLASSES}:ScatteredStreams"}, r"made with the arguments \{\}: TypeError"),
        (
            {"streams": HostClass("atomr_accel.host.streams:PooledStreams", {"size": 0})},
            r"the arguments \{'size': 0\}: ValueError: size must be",
        ),
        ({"streams": f"{CLASSES}:Given"}, "must have the attribute 'stream_of'"),
        ({"completion": f"{CLASSES}:UnfinishedCompletion"}, "must have the attribute 'wait'"),
        (
            {"streams": HostClass(f"{CLASSES}:FailingStreams", {"lists": False})},
            "failed for lane memory: KeyError",
        ),
        (
            {"streams": HostClass(f"{CLASSES}:FailingStreams", {"lists": True})},
            "failed for lane memory: TypeError: unhashable",
        ),
    ],
)
@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
@cpu_only
async def test_what_a_host_cannot_make(
    settings: dict[str, Any], said: str, isolation: Isolation
) -> None:
    kind = DeviceUnavailable if "loaded" in said else Unsupported
    with pytest.raises(kind, match=said):
        async with open_device(0, backend="cpu", isolation=isolation, **settings):
            raise AssertionError("opened")


@cpu_only
async def test_classes_of_others_in_a_process_and_after_its_end() -> None:
    settings: dict[str, Any] = {
        "streams": HostClass(f"{CLASSES}:ScatteredStreams", {"seed": 1, "count": 2}),
        "completion": HostClass(f"{CLASSES}:ErraticCompletion", {"seed": 2}),
        "threads": "per_library",
    }
    async with opened(isolation="process", **settings) as device:
        for generation in (1, 2):
            x = await device.put(np.eye(4))
            assert np.array_equal(await device.get(await device.blas.gemm(x, x)), np.eye(4))
            assert device.generation == generation
            await kill_host(device)


@cpu_only
async def test_an_error_in_a_strategy_ends_the_context() -> None:
    with behind.backend():
        opening = open_device(
            0,
            backend=behind.BACKEND,
            isolation="thread",
            completion=f"{CLASSES}:FailingCompletion",
        )
        with pytest.raises(AccelError, match=r"FailingCompletion has failed: .*a bug in wait"):
            async with opening as device:
                await device.put(np.zeros(3))


async def threads_with(backend: str, **settings: Any) -> set[str]:
    """The threads of a host's lanes after calls of two libraries."""
    before = {*threading.enumerate()}
    async with open_device(0, backend=backend, isolation="thread", **settings) as device:
        x = await device.put(np.eye(4, dtype=np.float32))
        assert np.array_equal(await device.get(await device.blas.gemm(x, x)), np.eye(4))
        assert np.array_equal(await device.get(x * x), np.eye(4))
        names = {each.name for each in threading.enumerate() if each not in before}
    return {name.removeprefix("lanes ") for name in names if name.startswith("lanes ")}


@pytest.mark.parametrize(
    ("settings", "on_cpu", "on_device"),
    [
        ({}, {"memory", "blas", "array"}, {"memory", "launches"}),
        ({"threads": "shared"}, {"memory", "launches"}, {"memory", "launches"}),
        ({"threads": "per_library"}, {"memory", "blas", "array"}, {"memory", "blas", "array"}),
        ({"streams": "single"}, {"memory", "launches"}, {"memory", "launches"}),
        (
            {"streams": "single", "threads": "per_library"},
            {"memory", "blas", "array"},
            {"memory", "blas", "array"},
        ),
    ],
)
@cpu_only
async def test_threads_of_lanes(
    settings: dict[str, Any], on_cpu: set[str], on_device: set[str]
) -> None:
    assert await threads_with("cpu", **settings) == on_cpu
    with behind.backend():
        assert await threads_with(behind.BACKEND, **settings) == on_device
