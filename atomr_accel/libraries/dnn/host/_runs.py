"""Runs of plans on one lane. All that is the same in every run is prepared once.

Lanes share plans, and are threads. So what a run writes to before it is queued, such as the
numbers that the vendor reads from this process's memory, belongs to a lane. It has been read
when the vendor's call returns, in a capture, too.
"""

from __future__ import annotations

import ctypes
import struct
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import numpy as np

from ._lowering import ref_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._plans import DnnPlan, PlanStep
    from .fallback._fallback import Own

BY_ARRAY = True
"""``True`` to give the frontend an array of pointers instead of a table, if it takes one.

An array is the shorter way, but is undocumented."""

_Run: TypeAlias = "Callable[[Sequence[int], Sequence[float], int], None]"
"""Queues a step, given pointers, numbers, and the pointer of its scratch memory."""


@final
class PlanRun:
    """A plan on one lane.

    ``position`` is the candidate to run, None for the one that was chosen.
    """

    def __init__(
        self, plan: DnnPlan, handle: int, own: Own, *, position: int | None = None
    ) -> None:
        self._count: Final = len(plan.buffers)
        self._offsets: Final = tuple(plan.between.values())
        self._scratch: Final = plan.scratch
        # A run's pointers: of buffers, of what steps hand on, and then of numbers.
        places = {id_: at for at, id_ in enumerate((*plan.buffers, *plan.between))}
        numbers = {id_: at for at, id_ in enumerate(plan.numbers)}
        self._numbers: Final = _PlanNumbers(plan, numbers, len(places))
        self._how_many: Final = len(numbers)
        self._steps: Final = tuple(
            own.prepare(step.graph, places, numbers)
            if step.made is None
            else _vendor(step, places | self._numbers.places(step), handle, position)
            for step in plan.steps
        )

    def __call__(self, pointers: list[int], scalars: Sequence[float], workspace: int) -> None:
        """Queue a run.

        Args:
            pointers: of the plan's buffers, in their order; becomes that of all that it uses.
            scalars: the plan's numbers, in their order.
            workspace: the pointer of its scratch memory.

        Raises:
            Unsupported: the vendor does not do this.
            LibraryError: it failed.
        """
        if len(pointers) != self._count or len(scalars) != self._how_many:
            raise ValueError(
                f"the graph has {self._count} buffers and {self._how_many} numbers, not "
                f"{len(pointers)} and {len(scalars)}"
            )
        if self._offsets:
            pointers += [workspace + offset for offset in self._offsets]
        if scalars:
            self._numbers.write(pointers, scalars)
        for step in self._steps:
            step(pointers, scalars, workspace + self._scratch)


@final
class _PlanNumbers:
    """A plan's numbers where the vendor reads them, each in the dtype that it has there."""

    def __init__(self, plan: DnnPlan, numbers: dict[int, int], start: int) -> None:
        kinds = dict.fromkeys(
            number for step in plan.steps if step.made is not None for number in step.scalars
        )
        self._cells: Final = tuple((np.zeros((), dtype), numbers[id_]) for id_, dtype in kinds)
        self._pointers: Final = [cell.ctypes.data for cell, _ in self._cells]
        self._places: Final = {number: start + at for at, number in enumerate(kinds)}
        self._written: Sequence[float] = ()

    def places(self, step: PlanStep) -> dict[int, int]:
        """Which of a run's pointers are those of a step's numbers, by id."""
        return {number[0]: self._places[number] for number in step.scalars}

    def write(self, pointers: list[int], scalars: Sequence[float]) -> None:
        """Write a run's numbers, and add their pointers to its others."""
        if scalars is not self._written:  # they are those of the call before, mostly
            for cell, at in self._cells:
                cell[()] = scalars[at]
            self._written = scalars
        pointers += self._pointers


def _vendor(step: PlanStep, places: dict[int, int], handle: int, position: int | None) -> _Run:
    """A step that the vendor's frontend runs."""
    known = {id_ + 1: at for id_, at in places.items()}
    uids = _order(step.made) if BY_ARRAY and position is None else None
    if uids is None or not known.keys() >= {*uids}:
        wanted = (*step.buffers, *(id_ for id_, _ in step.scalars))
        return _by_table(step.made, {id_ + 1: places[id_] for id_ in wanted}, handle, position)
    return _by_array(step.made, [known[uid] for uid in uids], handle)


def _order(made: Any) -> list[int] | None:
    """The uids of the pointers in an array; None if this frontend takes none for this graph."""
    try:
        made._prepare_variant_pack_template()
        uids: list[int] = made._get_variant_pack_uids_sorted()
        made._execute_with_raw_ptrs  # noqa: B018 (is there, or this raises)
    except (AttributeError, RuntimeError):
        return None
    return uids


def _by_table(made: Any, at: dict[int, int], handle: int, position: int | None) -> _Run:
    """The way that the frontend documents: a table of pointers by uid."""
    uids, pick = tuple(at), _picker([*at.values()])

    def run(pointers: Sequence[int], _scalars: Sequence[float], scratch: int) -> None:
        table = dict(zip(uids, pick(pointers), strict=True))
        try:
            if position is None:
                made.execute(table, scratch, handle=handle)
            else:
                made.execute_plan_at_index(table, scratch, position, handle=handle)
        except Exception as error:  # noqa: BLE001 (raises it, or what it means)
            ref_error("cudnnBackendExecute", error)

    return run


def _by_array(made: Any, at: list[int], handle: int) -> _Run:
    """An array of pointers, which the frontend copies."""
    count, pick = len(at), _picker(at)
    array = (ctypes.c_uint64 * max(1, count))()
    address, put = ctypes.addressof(array), struct.Struct(f"={count}Q").pack_into
    execute = made._execute_with_raw_ptrs

    def run(pointers: Sequence[int], _scalars: Sequence[float], scratch: int) -> None:
        put(array, 0, *pick(pointers))
        try:
            execute(address, count, scratch, handle)
        except Exception as error:  # noqa: BLE001 (raises it, or what it means)
            ref_error("cudnnBackendExecute", error)

    return run


def _picker(at: list[int]) -> Callable[[Sequence[int]], Sequence[int]]:
    """Return a function that picks some of a run's pointers, in that order."""
    if len(at) > 1:
        return itemgetter(*at)
    return lambda pointers: [pointers[each] for each in at]
