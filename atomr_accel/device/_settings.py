"""Settings of ``open_device``, checked before anything is opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    TypedDict,
    get_args,
)

from .._errors import said_of
from ..actors import Backoff
from ..lanes import SanitizerTool
from ..libraries.registry import catalogue
from ..memory.map import GRANULARITY
from ..wire import HostClass, StreamPlan
from ..wire.options import count, real, whole
from ._standby import Standby
from .core import MEMORY_LANE

if TYPE_CHECKING:
    from ..backends.registry import BackendName
    from ..lanes import Isolation
    from ..wire import Affinity

_LARGEST_INT = 2**31 - 1

StreamStrategy = Literal["shared", "per_actor", "pooled", "single"]
Completion = Literal["polled", "blocking", "hybrid", "callback"]
Threads = Literal["shared", "per_library"]

_STREAMS: Final = {
    "shared": HostClass("atomr_accel.host.streams:SharedStreams"),
    "per_actor": HostClass("atomr_accel.host.streams:OwnStreams"),
    "pooled": HostClass("atomr_accel.host.streams:PooledStreams"),
    "single": HostClass("atomr_accel.host.streams:SingleStream"),
}
_STANDBY_FORMS: Final[dict[object, str]] = {
    "auto": "standby=Standby()",
    "hot": "standby=Standby(hot=1)",
    "warm": "standby=Standby(warm=1)",
    True: "standby=Standby(warm=1)",
    False: "standby=None",
}
"""Forms of ``standby`` that were taken before, and what to write."""

_COMPLETIONS: Final = {
    name: HostClass(f"atomr_accel.host.completion:{name.capitalize()}Completion")
    for name in get_args(Completion)
}


class DeviceSettings(TypedDict, total=False):
    """The settings of ``open_device``, which documents them."""

    backend: BackendName | str
    isolation: Isolation
    max_restarts: int | None
    restart_period: float
    backoff: Backoff | None
    standby: Standby | None
    op_deadline: float | None
    memory_limit: int | None
    pinned_limit: int
    streams: StreamStrategy | str | HostClass
    stream_pool: int
    priorities: Mapping[str, int] | None
    completion: Completion | str | HostClass | None
    threads: Threads | None
    deterministic: bool
    low_latency: bool
    affinity: Literal["near"] | Iterable[int] | None
    sanitizer: SanitizerTool | None


def lane_names() -> tuple[str, ...]:
    """Return the names of the lanes that may have a priority."""
    return (MEMORY_LANE, *sorted(catalogue().lanes), "recordings", "run")


def checked_numbers(index: Any, given: dict[str, Any]) -> int:
    """Replace the numbers among the settings by plain ints and floats, and return the index.

    NumPy's numbers do not travel to a host, and trio's clock takes none of them.
    """
    given["restart_period"] = real(given["restart_period"], "restart_period", above=0)
    for name in ("pinned_limit", "stream_pool"):
        given[name] = count(given[name], name)
    if given["max_restarts"] is not None:
        given["max_restarts"] = count(given["max_restarts"], "max_restarts", 0)
    if given["op_deadline"] is not None:
        given["op_deadline"] = real(given["op_deadline"], "op_deadline", above=0)
    if given["memory_limit"] is not None:
        # Less would hold nothing, since memory comes in slabs.
        given["memory_limit"] = count(given["memory_limit"], "memory_limit", GRANULARITY)
    return whole(index, "index", most=_LARGEST_INT)


def check_settings(given: Mapping[str, Any]) -> None:
    """Refuse what ``open_device`` cannot mean, apart from numbers."""
    backend, standby, backoff = given["backend"], given["standby"], given["backoff"]
    isolation, sanitizer = given["isolation"], given["sanitizer"]
    if not isinstance(backend, str):
        raise TypeError(f"backend must be a name, such as 'auto', not {_said(backend)}")
    _one_of("isolation", isolation, ("process", "thread"))
    if backoff is not None and not isinstance(backoff, Backoff):
        raise TypeError(f"backoff must be a Backoff, not {_said(backoff)}")
    if standby is not None:
        if not isinstance(standby, Standby):
            write = _STANDBY_FORMS.get(standby) if isinstance(standby, (str, bool)) else None
            advice = f"; write {write}" if write else ", as in standby=Standby(hot=1)"
            raise TypeError(f"standby must be a Standby or None, not {_said(standby)}{advice}")
        if standby.explicit and isolation != "process":
            raise ValueError("a standby is a process, so it needs isolation='process'")
    if given["op_deadline"] is not None and isolation != "process":
        raise ValueError("op_deadline kills the host, so it needs isolation='process'")
    for name in ("low_latency", "deterministic"):
        if not isinstance(given[name], bool):
            raise TypeError(f"{name} must be True or False, not {_said(given[name])}")
    if sanitizer is not None:
        _one_of("sanitizer", sanitizer, get_args(SanitizerTool), beside="None")
        if isolation != "process":
            raise ValueError("a sanitizer starts the host, so it needs isolation='process'")


def cores_of(affinity: object, isolation: object) -> Affinity:
    """Return the cores that hosts may run on."""
    if affinity is None or (isinstance(affinity, str) and affinity == "near"):
        return None if affinity is None else "near"
    if isinstance(affinity, str) or not isinstance(affinity, Iterable):
        raise TypeError(f"affinity must be 'near', None or numbers of cores, not {_said(affinity)}")
    cores = tuple(count(core, "a core of affinity", 0) for core in affinity)
    if not cores:
        raise ValueError("affinity names no core; None lets hosts run anywhere")
    if isolation != "process":
        raise ValueError("affinity binds the host, so it needs isolation='process'")
    return cores


def stream_plan(given: Mapping[str, Any]) -> StreamPlan:
    """Return the plan for the streams of lanes, by settings that were checked."""
    threads, completion = given["threads"], given["completion"]
    allocator = _host_class("streams", given["streams"], _STREAMS)
    if threads is not None:
        _one_of("threads", threads, get_args(Threads), beside="None")
    elif allocator is _STREAMS["single"]:  # further threads would only take turns
        threads = "shared"
    if allocator is _STREAMS["pooled"]:
        allocator = HostClass(allocator.reference, {"size": given["stream_pool"]})
    if completion is None:
        completion = "hybrid" if given["isolation"] == "process" else "blocking"
    strategy = _host_class("completion", completion, _COMPLETIONS)
    priorities = {} if given["priorities"] is None else given["priorities"]
    if not isinstance(priorities, Mapping):
        raise TypeError(f"priorities must map names of lanes to numbers, not {_said(priorities)}")
    checked = {}
    lanes = lane_names() if priorities else ()
    for lane, priority in priorities.items():
        if not isinstance(lane, str):
            raise TypeError(f"priorities must map names of lanes to numbers; a key is {lane!r}")
        if lane not in lanes and not lane.startswith("run."):
            raise ValueError(
                f"priorities names a lane {lane!r}; the lanes are {', '.join(lanes)}, and "
                "'run.' with the name of a lane of `device.run`"
            )
        checked[lane] = whole(priority, f"priorities[{lane!r}]", -(2**31), _LARGEST_INT)
    return StreamPlan(
        allocator,
        checked,
        strategy,
        threads=threads,
        # With a deadline it must be known of each op whether it is done: several that share an
        # answer would look like one that takes as long as all of them.
        track_each_op=given["op_deadline"] is not None,
        deterministic=given["deterministic"],
        sanitized=given["sanitizer"] is not None,
    )


def _host_class(name: str, value: object, built_in: Mapping[str, HostClass]) -> HostClass:
    """Return the class that a setting names."""
    if isinstance(value, HostClass):
        return value
    if isinstance(value, str) and ":" in value:
        return HostClass(value)
    _one_of(name, value, tuple(built_in), beside="'module:Class' or a HostClass")
    return built_in[str(value)]


def _one_of(name: str, value: object, choices: tuple[str, ...], beside: str = "") -> None:
    *others, last = map(repr, choices)
    wanted = (
        f"{', '.join(others)} or {last}"
        if not beside
        else f"{', '.join(map(repr, choices))}, {beside}"
    )
    if not isinstance(value, str):
        raise TypeError(f"{name} must be {wanted}, not {_said(value)}")
    if value not in choices:
        raise ValueError(f"{name} must be {wanted}, not {value!r}")


def _said(value: object) -> str:
    what = said_of(value)
    return what if what.startswith("coroutine") else f"{value!r}, of type {what}"
