"""The plans that the program knows its host to have, and the work areas they share.

Each way of the lane has plans of its own, made when they are first needed there, because a
plan belongs to a stream.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final
from weakref import WeakKeyDictionary

from .._library import LaneSpec
from .._perform import Prepared, perform
from .._workspaces import Workspaces
from .wire._messages import Forget, Prepare

if TYPE_CHECKING:
    from ...memory import Epoch
    from .._library import Submitter

LANE: Final = LaneSpec(
    "fft",
    {
        "cpu": "atomr_accel.libraries.fft.host._cpu:CpuFft",
        "cuda": "atomr_accel.libraries.fft.host._cuda:CudaFft",
    },
    ways=4,
)

DEFAULT_LIMIT: Final = 64
SMALL: Final = 16 << 20
"""Bytes of work area up to which transforms may run side by side."""


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


@final
class PlanCache:
    """Plans by what they are for (an encoded ``Spec``), the last used ones last.

    Attributes:
        workspaces: the work areas.

    Batches and recordings use it with themselves in the place of the device. They get no
    answers before they end, so a plan that is new there brings a work area of its own.
    """

    def __init__(self, device: Submitter) -> None:
        self._device = device
        self._plans: OrderedDict[bytes, Plan] = OrderedDict()
        self._told: WeakKeyDictionary[Submitter, set[bytes]] = WeakKeyDictionary()
        self.workspaces: Final = Workspaces(LANE.ways, SMALL)
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

    def find(self, device: Submitter, spec: bytes) -> tuple[int, int] | None:
        """A plan's number and how much work area to bring, if that is known."""
        plan = self._plans.get(spec)
        if plan is None or plan.epoch is not device.memory.epoch:
            return None
        if device is not self._device and spec not in self._told.get(device, ()):
            return None
        self._hits += 1
        self._plans.move_to_end(spec)
        return plan.number, plan.work

    async def make(self, device: Submitter, spec: bytes) -> tuple[int, int]:
        """Have the host make a plan.

        Args:
            device: the device, or what collects ops in its place.
            spec: the transform, encoded.

        Returns:
            As ``find``, with no work area where the host has no way to answer.
        """
        plan = self._plans.get(spec)
        if plan is None:
            # Kept from now on, so that whoever wants the same meanwhile asks for the same.
            plan = self._plans[spec] = Plan(next(self._numbers))
            self._evict(self._limit)
        self._plans.move_to_end(spec)
        request = Prepared(Prepare(plan.number, spec), (), ())
        told = self._told.setdefault(device, set())
        if spec not in told:
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
                told.add(spec)
        return plan.number, plan.work if plan.epoch is device.memory.epoch else 0

    def let_go(self, number: int, spec: bytes) -> None:
        """Note the end of a transform: its plan may have been dropped before it was sent.

        The host has made the plan again then, and nobody else would drop it.
        """
        plan = self._plans.get(spec)
        if plan is None or plan.number != number:
            self._forget(number)

    def clear(self) -> None:
        """Drop everything."""
        self._evict(0)
        self.workspaces.clear(self._device)

    def statistics(self) -> FftStatistics:
        """A snapshot."""
        return FftStatistics(
            plans=len(self._plans),
            plan_limit=self._limit,
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
            workspace=self.workspaces.nbytes(self._device),
        )

    def _evict(self, limit: int) -> None:
        while len(self._plans) > limit:
            _, plan = self._plans.popitem(last=False)
            self._evictions += 1
            self._forget(plan.number)

    def _forget(self, number: int) -> None:
        port = self._device.ports.get(LANE.name)
        if port is not None:
            self._device.submit(port, "fft.forget", Forget(number))
