"""Settings of ``open_device``, checked before anything is opened."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    SupportsFloat,
    SupportsIndex,
    TypedDict,
    get_args,
)

from .._errors import said_of
from ..actors import Backoff
from ..lanes import SanitizerTool
from ..libraries.registry import catalogue
from ..memory.map import GRANULARITY
from ..wire import StreamPlan
from .core import MEMORY_LANE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..backends.registry import BackendName
    from ..lanes import Isolation
    from ..wire import Affinity
    from ._device import Device
    from .standby._statistics import StandbyMode

StreamStrategy = Literal["shared", "per_actor", "pooled", "single"]
Completion = Literal["polled", "blocking", "hybrid", "callback"]


class DeviceSettings(TypedDict, total=False):
    """The settings of ``open_device``, which documents them."""

    backend: BackendName | str
    isolation: Isolation
    max_restarts: int | None
    restart_period: float
    backoff: Backoff | None
    standby: StandbyMode | Literal["auto"] | bool | None
    standbys: int
    warm_up: Callable[[Device], Awaitable[object]] | None
    op_deadline: float | None
    memory_limit: int | None
    pinned_limit: int
    streams: StreamStrategy
    stream_pool: int
    priorities: Mapping[str, int] | None
    completion: Completion | None
    deterministic: bool
    low_latency: bool
    affinity: Literal["near"] | Iterable[int] | None
    sanitizer: SanitizerTool | None


def lane_names() -> tuple[str, ...]:
    """Return the names of the lanes that may have a priority."""
    return (MEMORY_LANE, *sorted(catalogue().lanes), "programs", "run")


def check_settings(
    *,
    index: object,
    backend: object,
    isolation: object,
    max_restarts: object,
    restart_period: object,
    backoff: object,
    standby: object,
    standbys: object,
    warm_up: object,
    op_deadline: object,
    memory_limit: object,
    pinned_limit: object,
    low_latency: object,
    sanitizer: object,
) -> None:
    """Refuse what ``open_device`` cannot mean.

    Raises:
        TypeError: a wrong type, such as a number as text.
        ValueError: out of range.
    """
    _whole_number("index", index, least=None)
    if not isinstance(backend, str):
        raise TypeError(f"backend must be a name, such as 'auto', not {_said(backend)}")
    _one_of("isolation", isolation, ("process", "thread"))
    if max_restarts is not None:
        _whole_number("max_restarts", max_restarts, least=0)
    _seconds("restart_period", restart_period)
    if backoff is not None and not isinstance(backoff, Backoff):
        raise TypeError(f"backoff must be a Backoff, not {_said(backoff)}")
    if standby is not None and not isinstance(standby, bool):
        _one_of("standby", standby, ("auto", "hot", "warm"), beside="a bool or None")
        if standby != "auto" and isolation != "process":
            raise ValueError(f"a {standby} standby is a process, so it needs isolation='process'")
    _whole_number("standbys", standbys)
    if warm_up is not None:
        if not callable(warm_up):
            raise TypeError(f"warm_up must be an async function of a device, not {_said(warm_up)}")
        if standby != "hot":
            raise ValueError("warm_up is for a hot standby: it needs standby='hot'")
    if op_deadline is not None:
        _seconds("op_deadline", op_deadline)
        if isolation != "process":
            raise ValueError("op_deadline kills the host, so it needs isolation='process'")
    if memory_limit is not None:
        # Less would hold nothing, since memory comes in slabs.
        _whole_number("memory_limit", memory_limit, least=GRANULARITY, unit=" of bytes")
    _whole_number("pinned_limit", pinned_limit, unit=" of bytes")
    if not isinstance(low_latency, bool):
        raise TypeError(f"low_latency must be True or False, not {_said(low_latency)}")
    if sanitizer is not None:
        _one_of("sanitizer", sanitizer, get_args(SanitizerTool), beside="None")
        if isolation != "process":
            raise ValueError("a sanitizer starts the host, so it needs isolation='process'")


def cores_of(affinity: object, isolation: object) -> Affinity:
    """Return the cores that hosts may run on.

    Raises:
        TypeError: ``affinity`` is not ``"near"``, None or numbers of cores.
        ValueError: ``affinity`` is empty, or names cores while the host is part of the program.
    """
    if affinity is None or (isinstance(affinity, str) and affinity == "near"):
        return None if affinity is None else "near"
    if isinstance(affinity, str) or not isinstance(affinity, Iterable):
        raise TypeError(f"affinity must be 'near', None or numbers of cores, not {_said(affinity)}")
    cores = tuple(_whole_number("a core of affinity", core, least=0) for core in affinity)
    if not cores:
        raise ValueError("affinity names no core; None lets hosts run anywhere")
    if isolation != "process":
        raise ValueError("affinity binds the host, so it needs isolation='process'")
    return cores


def stream_plan(
    *,
    streams: Any,
    stream_pool: Any,
    priorities: Any,
    completion: Any,
    isolation: str,
    op_deadline: float | None,
    deterministic: Any,
    sanitized: bool,
) -> StreamPlan:
    """Return the plan for the streams of lanes.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: an argument out of range, or an unknown lane.
    """
    _one_of("streams", streams, get_args(StreamStrategy))
    if completion is None:
        completion = "hybrid" if isolation == "process" else "blocking"
    _one_of("completion", completion, get_args(Completion))
    _whole_number("stream_pool", stream_pool)
    if priorities is None:
        priorities = {}
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
        checked[lane] = _whole_number(f"priorities[{lane!r}]", priority, least=None)
    if not isinstance(deterministic, bool):
        raise TypeError(f"deterministic must be True or False, not {_said(deterministic)}")
    # With a deadline it must be known of each op whether it is done: several that share an
    # answer would look like one that takes as long as all of them.
    track_each_op = op_deadline is not None
    return StreamPlan(
        streams,
        operator.index(stream_pool),
        checked,
        completion,
        track_each_op=track_each_op,
        deterministic=deterministic,
        sanitized=sanitized,
    )


def _whole_number(name: str, value: object, *, least: int | None = 1, unit: str = "") -> int:
    """``value`` as an int, of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} must be a whole number{unit}, not {_said(value)}")
    number = operator.index(value)
    if least is not None and number < least:
        wanted = "positive" if least == 1 else f"at least {least}"
        raise ValueError(f"{name} must be {wanted}, not {number}")
    return number


def _seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (SupportsFloat, SupportsIndex)):
        raise TypeError(f"{name} must be a number of seconds, not {_said(value)}")
    if not 0 < float(value) < math.inf:
        raise ValueError(f"{name} must be positive and finite, not {value}")


def standby_mode(standby: Any, *, slow_start: bool, isolation: str) -> StandbyMode | None:
    """Return the mode of standbys, or None for no standby."""
    if isolation != "process" or standby is None or standby is False:
        return None
    if standby == "auto":
        return "warm" if slow_start else None
    mode: StandbyMode = "hot" if standby == "hot" else "warm"
    return mode


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
