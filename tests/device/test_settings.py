"""The arguments of ``open_device`` are checked before anything is opened."""

from __future__ import annotations

import math
import sys
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, DeviceUnavailable, Standby, open_device
from atomr_accel.actors import Backoff
from atomr_accel.backends import registry
from atomr_accel.device._settings import lane_names
from atomr_accel.device.batches.replaying import RECORDINGS
from atomr_accel.device.core import MEMORY_LANE
from atomr_accel.libraries.digests.lane import DIGESTS
from atomr_accel.libraries.registry import catalogue
from atomr_accel.ops import LaneSpec

NUMBERS = ("index", "max_restarts", "memory_limit", "pinned_limit", "stream_pool")
SECONDS = ("restart_period", "op_deadline")


async def an_index() -> int:
    return 0


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        *(
            ({name: wrong}, TypeError, f"{name} must be a whole number")
            for name in NUMBERS
            for wrong in ("0", "2GiB", 1.5, 2.0, math.nan, math.inf, True, [1], 1j)
        ),
        *(
            ({name: wrong}, TypeError, f"{name} must be a real number, not ")
            for name in SECONDS
            for wrong in ("1", "5s", True, [1], 1j, b"1")
        ),
        *(
            ({name: wrong}, ValueError, f"{name} must be (finite and )?more than 0, not ")
            for name in SECONDS
            for wrong in (0, -1, math.nan, math.inf, -math.inf)
        ),
        *(
            ({name: wrong}, ValueError, f"{name} must be a whole number of at least 1, not {wrong}")
            for name in ("pinned_limit", "stream_pool")
            for wrong in (0, -1)
        ),
        *(
            (
                {"memory_limit": wrong},
                ValueError,
                f"memory_limit must be a whole number of at least 2097152, not {wrong}",
            )
            for wrong in (0, -1, (2 << 20) - 1)
        ),
        (
            {"max_restarts": -1},
            ValueError,
            "max_restarts must be a whole number of at least 0, not -1",
        ),
        (
            {"index": None},
            TypeError,
            "index must be a whole number of at most 2147483647, not None",
        ),
        ({"backend": None}, TypeError, "backend must be a name, such as 'auto', not None"),
        ({"backend": 0}, TypeError, "backend must be a name, such as 'auto', not 0, of type int"),
        ({"low_latency": 1}, TypeError, "low_latency must be True or False, not 1, of type int"),
        ({"affinity": "far"}, TypeError, "affinity must be 'near', None or numbers of cores"),
        ({"affinity": 0}, TypeError, "affinity must be 'near', None or numbers of cores, not 0"),
        (
            {"affinity": ["0"]},
            TypeError,
            "a core of affinity must be a whole number of at least 0, not '0'",
        ),
        (
            {"affinity": [-1]},
            ValueError,
            "a core of affinity must be a whole number of at least 0, not -1",
        ),
        ({"affinity": ()}, ValueError, "affinity names no core"),
        ({"affinity": [0], "isolation": "thread"}, ValueError, "it needs isolation='process'"),
        ({"sanitizer": "asan"}, ValueError, "sanitizer must be 'memcheck', 'racecheck', 'sync"),
        ({"sanitizer": True}, TypeError, "sanitizer must be .* None, not True"),
        (
            {"sanitizer": "memcheck", "isolation": "thread"},
            ValueError,
            "a sanitizer starts the host, so it needs isolation='process'",
        ),
        ({"isolation": "fibre"}, ValueError, "must be 'process' or 'thread', not 'fibre'"),
        ({"isolation": True}, TypeError, "isolation must be 'process' or 'thread', not True"),
        ({"op_deadline": 1.0, "isolation": "thread"}, ValueError, "needs isolation='process'"),
        ({"backoff": 1.0}, TypeError, "backoff must be a Backoff, not 1.0"),
        ({"standby": "yes"}, TypeError, r"not 'yes', of type str, as in standby=Standby\(hot=1\)"),
        ({"standby": 1}, TypeError, "standby must be a Standby or None, not 1, of type int, as in"),
        ({"standby": "hot"}, TypeError, r"not 'hot', .*; write standby=Standby\(hot=1\)"),
        ({"standby": "warm"}, TypeError, r"; write standby=Standby\(warm=1\)"),
        ({"standby": "auto"}, TypeError, r"; write standby=Standby\(\)"),
        ({"standby": True}, TypeError, r"; write standby=Standby\(warm=1\)"),
        ({"standby": False}, TypeError, "; write standby=None"),
        ({"standbys": 2}, TypeError, r"argument 'standbys'; write standby=Standby\(hot=\.\.\.\)"),
        ({"warm_up": an_index}, TypeError, r"write standby=Standby\(hot=1, warm_up=\.\.\.\)"),
        ({"standby": Standby(hot=1), "isolation": "thread"}, ValueError, "so it needs isolation"),
        (
            {"streams": "many"},
            ValueError,
            "streams must be 'shared', 'per_actor', 'pooled', 'single', 'module:Class' or a HostC",
        ),
        ({"streams": None}, TypeError, "streams must be"),
        (
            {"completion": "fast"},
            ValueError,
            "completion must be 'polled', .* HostClass, not 'fast'",
        ),
        ({"completion": ":"}, ValueError, "of a HostClass must be 'module:Class', not ':'"),
        ({"streams": "no name:Streams"}, ValueError, "of a HostClass must be 'module:Class', not"),
        ({"threads": "many"}, ValueError, "threads must be 'shared', 'per_library', None, not"),
        ({"threads": 2}, TypeError, "threads must be 'shared', 'per_library', None, not 2"),
        ({"completion": 1}, TypeError, "completion must be"),
        ({"priorities": [("blas", 1)]}, TypeError, "priorities must map names of lanes to numbers"),
        ({"priorities": {1: 1}}, TypeError, "a key is 1"),
        ({"priorities": {"blass": 1}}, ValueError, "a lane 'blass'; the lanes are memory, array, "),
        ({"priorities": {"blas": "1"}}, TypeError, r"priorities\['blas'\] must be a whole number"),
        (
            {"priorities": {"blas": True}},
            TypeError,
            "must be a whole number from -2147483648 to 2147483647, not True",
        ),
    ],
)
async def test_settings_refuse_invalid_values_at_once(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        async with open_device(**{"backend": "no such backend", **settings}):
            pytest.fail("opened")


async def rehearse(device: Device) -> None:
    await device.zeros(1)


async def test_settings_accept_valid_values() -> None:
    """All of it reaches the search for a backend."""
    numpys: Any = np.int8(2)
    for settings in (
        {"index": np.int32(1), "max_restarts": 0, "restart_period": 5, "op_deadline": 0.25},
        {"memory_limit": np.int64(1 << 30), "pinned_limit": 1, "stream_pool": np.uint8(2)},
        {"restart_period": np.float32(1), "standby": None, "backoff": Backoff()},
        {"standby": Standby(hot=numpys, warm_up=rehearse)},
        {"standby": Standby(warm=1)},
        {"standby": Standby(), "isolation": "thread"},
        {"standby": Standby(hot=0, warm=0), "isolation": "thread"},
        {"affinity": None, "isolation": "thread"},
        {"affinity": {np.int8(0), 1}},
        {"priorities": {"memory": -1, "run.mine": np.int8(2), "dnn-plans": 0}},
    ):
        with pytest.raises(DeviceUnavailable, match="no backend 'no such backend'"):
            async with open_device(backend="no such backend", **settings):
                pytest.fail("opened")


async def test_a_forgotten_await_is_said_to_be_one() -> None:
    with pytest.raises(TypeError, match=r"did you forget `await` before an_index\(\.\.\.\)\?"):
        async with open_device(an_index()):  # type: ignore[arg-type]
            pytest.fail("opened")


def test_every_lane_can_have_a_priority() -> None:
    lanes = catalogue().lanes
    everywhere = {
        spec.name
        for name, module in sys.modules.items()
        # The lanes of activity tracing and of digests are the device's own, and no library's.
        if name.startswith("atomr_accel.libraries.") and ".activity." not in name
        for spec in vars(module).values()
        if isinstance(spec, LaneSpec) and spec is not DIGESTS
    }
    assert sorted(lanes) == sorted(everywhere)
    assert sorted(lane_names()) == sorted([MEMORY_LANE, *lanes, RECORDINGS.name, "run"])


async def test_backends_are_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [EntryPoint(name, "x:y", registry.GROUP) for name in ("cpu", "cuda", "abacus")]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    with pytest.raises(DeviceUnavailable) as info:
        registry.find_backend("tpu")
    assert str(info.value).endswith("expected one of 'auto', 'cpu', 'cuda', 'abacus'")


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"hot": -1}, ValueError, "hot must be a whole number from 0 to 1024, not -1"),
        ({"hot": math.nan}, TypeError, "hot must be a whole number from 0 to 1024, not nan"),
        ({"hot": True}, TypeError, "hot must be a whole number from 0 to 1024, not True"),
        ({"warm": "1"}, TypeError, "warm must be a whole number from 0 to 1024, not '1'"),
        ({"hot": 1, "warm_up": 1}, TypeError, "warm_up must be an async function of a device"),
        ({"warm": 1, "warm_up": an_index}, ValueError, "warm_up is for hot and parked"),
        ({"parked": -1}, ValueError, "parked must be a whole number from 0 to 1024, not -1"),
        ({"parked": 1, "host_memory": 1}, ValueError, "host_memory must be .* at least 16777216"),
        ({"parked": 1, "host_memory": math.nan}, TypeError, "host_memory must be a whole number"),
        ({"hot": 1, "host_memory": 1 << 30}, ValueError, "host_memory is for parked standbys"),
    ],
)
def test_a_standby_refuses_invalid_values(
    fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Standby(**fields)


@pytest.mark.parametrize(
    ("standby", "slow_start", "parked", "warm"),
    [
        (Standby(), False, 0, 0),
        (Standby(), True, 1, 1),
        (Standby(hot=2), False, 0, 1),
        (Standby(hot=2), True, 0, 1),
        (Standby(parked=3), False, 3, 1),
        (Standby(hot=2, warm=0), True, 0, 0),
        (Standby(warm=3), False, 0, 3),
        (Standby(warm=1), True, 0, 1),
    ],
)
def test_standbys_by_default(standby: Standby, slow_start: bool, parked: int, warm: int) -> None:
    assert standby.parked_on(slow_start=slow_start) == parked
    assert standby.warm_on(slow_start=slow_start) == warm
