"""The plans that the program knows its host to have, and the work areas they share.

Transforms write to a work area, so those that have the same one run one after the other.
Small ones leave most of a device idle; so while they are in flight together each gets an
area of its own, up to the number of ways the lane has. Each way has plans of its own, made
when they are first needed there, because a plan belongs to a stream.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final
from weakref import WeakKeyDictionary

from ..._dtypes import DTYPES
from .._library import LaneSpec
from .._perform import Prepared, Room, perform
from ._messages import Forget, Prepare

if TYPE_CHECKING:
    from ...memory import Block, Epoch, GpuRef
    from .._library import Submitter
    from ._messages import Spec

LANE: Final = LaneSpec(
    "fft",
    {
        "cpu": "atomr_accel.libraries.fft._cpu:CpuFft",
        "cuda": "atomr_accel.libraries.fft._cuda:CudaFft",
    },
    ways=4,
)

DEFAULT_LIMIT: Final = 64
_SMALL: Final = 16 << 20
"""Bytes of work area. A transform that needs more keeps the whole device busy by itself."""

_UINT8: Final = DTYPES["uint8"]


@dataclass(frozen=True, slots=True)
class FftStatistics:
    """The plan cache of a device.

    Attributes:
        plans: plans that are kept.
        plan_limit: how many may be.
        hits: transforms that found their plan.
        misses: transforms that had to have it made, after a rebuild too.
        evictions: plans dropped, by the limit or by ``clear``.
        workspace: bytes of the work areas that all plans share.
    """

    plans: int
    plan_limit: int
    hits: int
    misses: int
    evictions: int
    workspace: int


@dataclass(slots=True, eq=False)
class Plan:
    """A plan as the program knows it.

    Attributes:
        number: its name in the host.
        epoch: the generation whose host has told ``work``.
        work: bytes of work area it needs.
    """

    number: int
    epoch: Epoch | None = None
    work: int = 0


@dataclass(slots=True, eq=False)
class _Area:
    """What the device, a batch or a recording has of its own.

    Attributes:
        workspaces: the work areas that its transforms share, the last used ones last.
        told: the plans that a batch or recording has asked for.
    """

    workspaces: list[GpuRef] = field(default_factory=list)
    told: set[Spec] = field(default_factory=set)


@final
class PlanCache:
    """Plans by what they are for, the last used ones last.

    Batches and recordings use it with themselves in the place of the device. They get no
    answers before they end, so a plan that is new there brings a work area of its own.
    """

    def __init__(self, device: Submitter) -> None:
        self._device = device
        self._plans: OrderedDict[Spec, Plan] = OrderedDict()
        self._areas: WeakKeyDictionary[Submitter, _Area] = WeakKeyDictionary()
        self._numbers = itertools.count(1)
        self._hits = self._misses = self._evictions = 0
        self._limit = DEFAULT_LIMIT

    @property
    def limit(self) -> int:
        """How many plans are kept."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._evict(limit)

    def find(self, device: Submitter, spec: Spec) -> tuple[int, int] | None:
        """A plan's number and how much work area to bring, if that is known."""
        plan = self._plans.get(spec)
        if plan is None or plan.epoch is not device.memory.epoch:
            return None
        if device is not self._device and spec not in self._area(device).told:
            return None
        self._hits += 1
        self._plans.move_to_end(spec)
        return plan.number, plan.work

    async def make(self, device: Submitter, spec: Spec) -> tuple[int, int]:
        """Have the host make a plan.

        Args:
            device: the device, or what collects ops in its place.
            spec: the transform.

        Returns:
            As ``find``, with no work area where the host has no way to answer.
        """
        plan = self._plans.get(spec)
        if plan is None:
            # Kept from now on, so that whoever wants the same meanwhile asks for the same.
            plan = self._plans[spec] = Plan(next(self._numbers))
            self._evict(self._limit)
        request = Prepared(Prepare(plan.number, spec), (), ())
        area = self._area(device)
        if spec not in area.told:
            self._misses += 1
            try:
                answer = await perform(device, LANE, "fft.plan", lambda _room: request)
            except BaseException:
                if plan.epoch is None and self._plans.get(spec) is plan:
                    del self._plans[spec]
                raise
            if device is self._device:
                # Only the host can tell how much work area a plan needs.
                plan.work, plan.epoch = answer, device.memory.epoch
            else:
                area.told.add(spec)
        return plan.number, plan.work if plan.epoch is device.memory.epoch else 0

    def _area(self, device: Submitter) -> _Area:
        area = self._areas.get(device)
        if area is None:
            area = self._areas[device] = _Area()
        return area

    def workspace(self, device: Submitter, room: Room, nbytes: int) -> Block:
        """A work area: one that no transform in flight has, if there may be as many."""
        area, epoch = self._area(device), device.memory.epoch
        there = [work for work in area.workspaces if work._block.epoch is epoch]
        fitting = [work for work in there if work.nbytes >= nbytes]
        idle = [work for work in fitting if not work._block.writer]
        most = LANE.ways if nbytes <= _SMALL else 1
        if idle or len(fitting) >= most:
            work = (idle or fitting)[0]
            there.remove(work)
        else:
            # Drop first what is too small, so that the new one may take its place.
            area.workspaces = there = fitting if len(there) >= most else there
            work = room.empty((nbytes,), _UINT8)
        area.workspaces = [*there, work]
        return work._block

    def clear(self) -> None:
        """Drop everything."""
        self._evict(0)
        self._areas.pop(self._device, None)

    def statistics(self) -> FftStatistics:
        """A snapshot."""
        area, epoch = self._area(self._device), self._device.memory.epoch
        return FftStatistics(
            plans=len(self._plans),
            plan_limit=self._limit,
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
            workspace=sum(work.nbytes for work in area.workspaces if work._block.epoch is epoch),
        )

    def _evict(self, limit: int) -> None:
        port = self._device.ports.get(LANE.name)
        while len(self._plans) > limit:
            _, plan = self._plans.popitem(last=False)
            self._evictions += 1
            if port is not None:
                self._device.submit(port, "fft.forget", Forget(plan.number))
