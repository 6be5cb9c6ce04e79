"""Backends: what they are, and how one is chosen.

The two that come with this package are known by name; another package can bring one by
an entry point. A description is all the program loads; the rest is loaded in the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, Literal

from .._errors import DeviceUnavailable
from . import cpu, cuda

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP: Final = "atomr_accel.backends"

BackendName = Literal["auto", "cuda", "cpu"]


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend as the program knows it.

    Attributes:
        name: such as ``"cuda"``; libraries name their executors by it.
        context: ``module:class`` of its ``HostContext``.
        memory: ``module:class`` of the executor of its memory lane.
        why_absent: a cheap check in the program that loads no vendor library: why there
            can be no such device here, or None if there may be.
        slow_start: whether a host takes so long to start that a warm one is worth it.
    """

    name: str
    context: str
    memory: str
    why_absent: Callable[[], str | None]
    slow_start: bool = False


_BUILT_IN: Final = {
    "cpu": Backend(
        name="cpu",
        context="atomr_accel.backends.cpu.host._context:CpuContext",
        memory="atomr_accel.backends.cpu.host._memory:CpuMemory",
        why_absent=cpu.why_absent,
    ),
    "cuda": Backend(
        name="cuda",
        context="atomr_accel.backends.cuda.host._context:CudaContext",
        memory="atomr_accel.backends.cuda.host._memory:CudaMemory",
        why_absent=cuda.why_absent,
        slow_start=True,
    ),
}


def find_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        DeviceUnavailable: no installed package provides it.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name in others:
        backend = others[name].load()
        if not isinstance(backend, Backend):
            raise TypeError(f"entry point {name!r} of {GROUP} is {backend!r}, not a Backend")
        return backend
    # Once each: those that come with the package are entry points of it, too.
    names = ", ".join(map(repr, dict.fromkeys(["auto", *_BUILT_IN, *others])))
    raise DeviceUnavailable(f"there is no backend {name!r}; expected one of {names}")
