"""Kernels of expressions in hosts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, final
from weakref import WeakKeyDictionary, WeakSet

from ...ops import Request, Submission
from .wire._program import BuildKernels, ForgetKernel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...memory import Block
    from ...ops import LaneSpec, Preparer
    from .wire._program import KernelForm

_numbers: Final = itertools.count(1)
"""Numbers of kernels in all hosts; a host may have kernels of its time as a standby."""


@dataclass(slots=True, eq=False)
class _KernelCopy:
    """A kernel among some executors, in one generation.

    Attributes:
        kept: has it released in the end; building it writes that, and launches read it.
        built: whether it is certain to be built.
        asked_by: the batches and recordings that have it built themselves.
    """

    kept: Block
    built: bool = False
    asked_by: WeakSet[object] = field(default_factory=WeakSet)


@final
class BuiltKernel:
    """A kernel in the program, which is built when it is needed, in each generation.

    Attributes:
        number: its number in the hosts.
        form: the argument of that name.
    """

    __slots__ = ("_copies", "form", "number")

    def __init__(self, form: KernelForm) -> None:
        self.number: Final = next(_numbers)
        self.form: Final = form
        self._copies: WeakKeyDictionary[object, _KernelCopy] = WeakKeyDictionary()

    def copy(self, preparer: Preparer, builds: LaneSpec) -> _KernelCopy:
        """Return the copy in the place where the preparer's ops are executed."""
        host_objects = preparer.host_objects
        copy = self._copies.get(host_objects)
        if copy is None or copy.kept.epoch is not preparer.memory.epoch:
            kept = host_objects.keep(builds.name, "array.forget", ForgetKernel(self.number))
            copy = self._copies[host_objects] = _KernelCopy(kept)
        return copy


def built(kernels: Iterable[BuiltKernel], preparer: Preparer, builds: LaneSpec) -> list[Block]:
    """Return the blocks that stand for kernels in the place where the preparer's ops are executed.

    Missing kernels are built first, all by one request.
    """
    together = tuple(kernels)
    return [preparer.obtain(partial(_obtain, each, together, builds)) for each in together]


def _obtain(
    kernel: BuiltKernel, together: tuple[BuiltKernel, ...], builds: LaneSpec, preparer: Preparer
) -> Block:
    """Return the block of one kernel; the first missing one has all missing kernels built."""
    own = kernel.copy(preparer, builds)
    if own.built:
        return own.kept
    copies = [(each, each.copy(preparer, builds)) for each in together]
    home = preparer.home
    missing = {
        each.number: (each, copy)
        for each, copy in copies
        if not copy.built and home not in copy.asked_by
    }
    if missing:
        preparer.perform(_building([*missing.values()], builds))
        for _, copy in missing.values():
            copy.asked_by.add(home)
    return kernel.copy(preparer, builds).kept


def _building(missing: list[tuple[BuiltKernel, _KernelCopy]], builds: LaneSpec) -> Request[None]:
    def done() -> None:
        for _, copy in missing:
            copy.built = True

    def prepare(_preparer: Preparer) -> Submission[None]:
        message = BuildKernels(
            tuple([kernel.number for kernel, _ in missing]),
            tuple([kernel.form for kernel, _ in missing]),
        )
        return Submission(message, (), tuple([copy.kept for _, copy in missing]), done=done)

    key = ("array.build", *[kernel.number for kernel, _ in missing])
    return Request(builds, "array.build", prepare, key)
