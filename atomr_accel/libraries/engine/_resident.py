"""Engines in hosts: loaded when first needed, again after a rebuild, and released in the end."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, final
from weakref import WeakKeyDictionary, WeakSet

from ...ops import LaneSpec, Request, Submission
from .wire.messages import DropEngine, LoadEngine, SupplyModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...memory import Block
    from ...ops import Preparer
    from .wire.messages import EngineOptions, ModelDescription

T = TypeVar("T")

LANE: Final = LaneSpec(
    "engine",
    {
        "cpu": "atomr_accel.libraries.engine.host._cpu:CpuEngines",
        "cuda": "atomr_accel.libraries.engine.host._cuda:CudaEngines",
    },
    watched=False,
    own_thread=True,
)
"""Its ops take as long as a model takes, and builds take longer."""

_PIECE: Final = 1 << 20
_numbers: Final = itertools.count(1)
"""Numbers of engines, unique in all hosts."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class _EngineCopy:
    """An engine made by a group of executors, in one generation.

    Attributes:
        kept: block that releases the engine when dropped; runs name it as read.
        loaded: whether the engine is known to be there.
        asked_by: the batches and recordings that load it themselves.
    """

    kept: Block
    loaded: bool = False
    asked_by: WeakSet[object] = field(default_factory=WeakSet)


@final
class ResidentEngine:
    """The program's record of an engine, shared by all copies of its handle.

    Attributes:
        number: the host's number of it.
        options: as given.
        calls: the number of runs that were made.
        loads: how often hosts have made it.
    """

    def __init__(self, model: bytes, options: EngineOptions) -> None:
        self.number: Final = next(_numbers)
        self.options: Final = options
        self.calls: int = 0
        self.loads = 0
        self._model: Final = memoryview(model)
        self._copies: Final[WeakKeyDictionary[object, _EngineCopy]] = WeakKeyDictionary()

    @property
    def nbytes(self) -> int:
        """Bytes of the model."""
        return len(self._model)

    def build(self, finish: Callable[[ModelDescription], T]) -> Request[T]:
        """The request that makes the engine for the first time.

        Args:
            finish: makes the caller's result of the description of the model.
        """

        def prepare(preparer: Preparer) -> Submission[T]:
            return self._loading(self._copy(preparer), finish)

        return Request(LANE, "engine.build", prepare)

    def used(self, preparer: Preparer) -> Block:
        """Count a run; return the block that stands for the engine in the preparer's host.

        The engine is loaded there if needed. Ask for this last: a run that has to wait for
        something else is prepared again.
        """
        copy = self._copy(preparer)
        if not copy.loaded and preparer.home not in copy.asked_by:
            preparer.perform(self._load(copy))
            copy.asked_by.add(preparer.home)
        self.calls += 1
        return copy.kept

    def _copy(self, preparer: Preparer) -> _EngineCopy:
        host_objects = preparer.host_objects
        copy = self._copies.get(host_objects)
        if copy is None or copy.kept.epoch is not preparer.memory.epoch:
            kept = host_objects.keep(LANE.name, "engine.drop", DropEngine(self.number))
            copy = self._copies[host_objects] = _EngineCopy(kept)
        return copy

    def _load(self, copy: _EngineCopy) -> Request[None]:
        def prepare(_preparer: Preparer) -> Submission[None]:
            return self._loading(copy, None)

        return Request(LANE, "engine.load", prepare, ("engine.load", self.number))

    def _loading(
        self, copy: _EngineCopy, finish: Callable[[ModelDescription], T] | None
    ) -> Submission[T]:
        def done() -> None:
            copy.loaded = True
            self.loads += 1

        message = LoadEngine(self.number, self.options)
        starts = range(0, max(len(self._model), 1), _PIECE)
        before = tuple(self._supply(copy, start) for start in starts)
        return Submission(message, (), (copy.kept,), finish=finish, done=done, before=before)

    def _supply(self, copy: _EngineCopy, start: int) -> Request[None]:
        piece: Any = self._model[start : start + _PIECE]

        def prepare(_preparer: Preparer) -> Submission[None]:
            message = SupplyModel(self.number, len(self._model), start, piece)
            return Submission(message, (), (copy.kept,))

        return Request(LANE, "engine.supply", prepare)
