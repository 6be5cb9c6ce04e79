"""Kernels of expressions in hosts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final
from weakref import WeakKeyDictionary, WeakSet

from .._request import Request, Submission
from .wire._program import BuildKernel, ForgetKernel

if TYPE_CHECKING:
    from ...memory import Block
    from .._library import LaneSpec
    from .._request import Driver
    from .wire._program import KernelForm

_numbers: Final = itertools.count(1)
"""Of kernels, in all hosts: one may have some from when it was a standby."""


@dataclass(slots=True, eq=False)
class _Copy:
    """A kernel among some executors, in one generation.

    Attributes:
        kept: has it released in the end; building it writes that, and launches read it.
        built: whether it is there for sure.
        asked_by: the batches and recordings that have it built themselves.
    """

    kept: Block
    built: bool = False
    asked_by: WeakSet[object] = field(default_factory=WeakSet)


@final
class BuiltKernel:
    """A kernel as the program knows it: built when it is needed, in each generation.

    Args:
        builds: the lane that builds it, and lets go of it.
        form: what it computes.

    Attributes:
        number: the hosts' number of it.
    """

    __slots__ = ("_builds", "_copies", "_form", "number")

    def __init__(self, builds: LaneSpec, form: KernelForm) -> None:
        self.number: Final = next(_numbers)
        self._builds = builds
        self._form = form
        self._copies: WeakKeyDictionary[object, _Copy] = WeakKeyDictionary()

    def built(self, driver: Driver) -> Block:
        """What stands for it where the driver's ops are executed; it is built first, if need be."""
        keeper = driver.keeper
        copy = self._copies.get(keeper)
        if copy is None or copy.kept.epoch is not driver.memory.epoch:
            kept = keeper.keep(self._builds.name, "array.forget", ForgetKernel(self.number))
            copy = self._copies[keeper] = _Copy(kept)
        if not copy.built and driver.home not in copy.asked_by:
            driver.perform(self._build(copy))
            copy.asked_by.add(driver.home)
        return copy.kept

    def _build(self, copy: _Copy) -> Request[None]:
        def done() -> None:
            copy.built = True

        def prepare(_driver: Driver) -> Submission[None]:
            message = BuildKernel(self.number, self._form)
            return Submission(message, (), (copy.kept,), done=done)

        return Request(self._builds, "array.build", prepare)
