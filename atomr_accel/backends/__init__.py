"""Backends, one folder each, and the interface that an author of a backend implements.

A ``Backend`` names a ``HostContext``, which opens a ``Stream`` for each lane, and an ``Executor``
of the memory lane. A host imports this package with the backend that it runs, so this module only
holds descriptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..wire import HostClass, OpenLane
from ..wire.interface import (
    CompletionStrategy,
    Executor,
    Fusion,
    HostContext,
    Later,
    Parker,
    Stopwatch,
    Stream,
    StreamAllocator,
    WorkInFlight,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "Backend",
    "Capabilities",
    "CompletionStrategy",
    "Executor",
    "Fusion",
    "HostClass",
    "HostContext",
    "Later",
    "OpenLane",
    "Parker",
    "Stopwatch",
    "Stream",
    "StreamAllocator",
    "WorkInFlight",
]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Properties of a backend's devices that the program needs to know.

    Attributes:
        host_memory: a device's memory is memory of this machine that the CPU can use. NumPy arrays
            can be views of it, and moving data is not needed.
        python_kernels: kernels run as the Python functions given for them, not as compiled source.
        needs_scratch: executors of libraries work in memory that the program gives them with a
            call.
        counts_in_int32: the vendor's libraries take sizes and strides as 32-bit numbers.
        asynchronous: ops are queued on the device, which executes them by itself. Lanes then share
            a thread of the host, unless ``open_device(threads="per_library")`` says otherwise.
    """

    host_memory: bool = False
    python_kernels: bool = False
    needs_scratch: bool = False
    counts_in_int32: bool = False
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend, as an entry point in the group ``atomr_accel.backends`` names it.

    Attributes:
        name: its name, such as ``"cuda"``, which libraries use as a key for their executors.
        context: ``module:class`` of its ``HostContext``.
        memory: ``module:class`` of the executor of its memory lane.
        why_absent: a cheap check in the program that loads no vendor library. It returns the reason
            why this machine has no such device, or None if it may have one.
        slow_start: whether a host starts slowly enough to make a standby the default.
        capabilities: the capabilities of its devices.
        executors: ``module:class`` of executors that come with the backend, by the name of the
            lane. They take priority over a library's executors for it.
        parker: ``module:class`` of its ``Parker``; None if its hosts cannot be parked.
        like: the name of another backend whose executors it runs if a library has none for it. Its
            context then has all methods of that backend's.
    """

    name: str
    context: str
    memory: str
    why_absent: Callable[[], str | None]
    slow_start: bool = False
    capabilities: Capabilities = Capabilities()
    executors: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    parker: str | None = None
    like: str | None = None
