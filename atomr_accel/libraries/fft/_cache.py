"""The plans that the program knows its host to have, and the work areas they share.

Each stream of the lane has plans of its own, made when they are first needed there, because a
plan belongs to a stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, final
from weakref import WeakKeyDictionary

from ...ops import LaneSpec, Request, Submission, Workspaces
from ...wire.recent import Recent
from .wire._messages import ForgetPlan, Prepare, RunTransform

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...memory import Block, Epoch
    from ...ops import DeviceView, Preparer

LANE: Final = LaneSpec(
    "fft",
    {
        "cpu": "atomr_accel.libraries.fft.host._cpu:CpuFft",
        "cuda": "atomr_accel.libraries.fft.host._cuda:CudaFft",
    },
    max_streams=4,
)

DEFAULT_LIMIT: Final = 64
SMALL: Final = 16 << 20
"""Bytes of work area up to which transforms may run side by side."""


@dataclass(slots=True, eq=False)
class CachedFftPlan:
    """The program's record of a plan.

    Attributes:
        number: its number in the host, one for each transform. A host may have plans from its time
            as a standby.
        epoch: the generation whose host reported ``work``.
        work: bytes of work area it needs.
    """

    number: int
    epoch: Epoch | None = None
    work: int = 0


class FoundPlan(NamedTuple):
    """A plan for a transform that is about to be submitted.

    Attributes:
        number: the plan's.
        work: bytes of work area to bring.
        used: to be called when the transform is submitted, unless there is nothing to note.
    """

    number: int
    work: int
    used: Callable[[], None] | None = None


@final
class FftPlanCache:
    """Plans by their encoded ``FftSpec``, the most recently used ones last.

    Batches and recordings share it. They get no answers before they end, so a plan that is new in
    one of them has its own work area. Each of them sends a message that makes its plans, which has
    no effect if the host has them: a recording must not make plans while it is replayed.

    A plan is kept from the moment when an op that needs it is submitted. Lookup and submission
    happen without an await between them. The host therefore has no other plans than the cache,
    except those that it is about to drop.

    Attributes:
        table: the plans.
        workspaces: the work areas.
    """

    def __init__(self, device: DeviceView) -> None:
        self._device = device
        self.table: Final[Recent[bytes, CachedFftPlan]] = Recent(
            DEFAULT_LIMIT, partial(_forget, device), name="plans"
        )
        self._told: WeakKeyDictionary[DeviceView, set[int]] = WeakKeyDictionary()
        self.workspaces: Final = Workspaces(LANE.max_streams, SMALL)
        self._limit = DEFAULT_LIMIT
        self._spared = 0  # number of plans that the present call needs at once

    @property
    def limit(self) -> int:
        """The number of plans that are kept at most."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = self.table.limit = limit

    def find(self, preparer: Preparer, spec: bytes) -> FoundPlan:
        """A plan, which the host makes first if need be.

        Args:
            preparer: of the transform.
            spec: what the transform is, encoded.
        """
        plan = self.table.peek(spec)
        epoch = preparer.memory.epoch
        collector = None if preparer.home is self._device else preparer.home
        if plan is not None and (
            plan.epoch is epoch
            if collector is None
            else plan.number in self._told.get(collector, ())
        ):
            preparer.depends(partial(self._still, spec, plan, plan.epoch))
            self.table.get(spec)
            return FoundPlan(plan.number, plan.work if plan.epoch is epoch else 0)
        request: Request[int] = Request(LANE, "fft.plan", partial(self._prepare, spec))
        answer = preparer.perform(request)
        made = self._plan(spec)
        work = made.work if made.epoch is epoch else 0
        if answer is not None:
            work = answer

        def missed() -> None:
            self.table.misses += 1
            if answer is not None:
                made.work, made.epoch = answer, epoch
            if collector is not None:
                self._told.setdefault(collector, set()).add(made.number)
            self._keep(spec, made)

        return FoundPlan(made.number, work, missed)

    def _plan(self, spec: bytes) -> CachedFftPlan:
        known = self.table.peek(spec)
        if known is None:
            digest = hashlib.blake2b(spec, digest_size=8).digest()
            known = CachedFftPlan(int.from_bytes(digest, "little") >> 1)
        return known

    def _prepare(self, spec: bytes, _preparer: Preparer) -> Submission[int]:
        plan = self._plan(spec)
        message = Prepare(plan.number, spec)
        return Submission(message, (), (), sent=partial(self._keep, spec, plan))

    def _still(self, spec: bytes, plan: CachedFftPlan, epoch: Epoch | None) -> bool:
        """Return True if a plan and its epoch have not changed, and count a use of the plan."""
        return plan.epoch is epoch and self.table.get(spec) is plan

    def _keep(self, spec: bytes, plan: CachedFftPlan) -> None:
        """Note that the host is about to be sent something that makes it have the plan."""
        known = self.table.peek(spec)
        if known is not None and known is not plan:  # several calls may have made it
            known.work, known.epoch = plan.work, plan.epoch
            plan = known
        self.table.keep(spec, plan)
        self.table.limit = max(self._limit, self._spared)

    def all_used(self, used: Sequence[Callable[[], None]], transforms: int) -> None:
        """Note the transforms of one call, which are about to be submitted in a row.

        A new plan does not evict another plan of the same call, which would be dropped before its
        transform uses it. One call may therefore keep more plans than the limit.

        Args:
            used: functions that note transforms whose plans are new.
            transforms: the number of transforms.
        """
        self._spared = self.table.limit = max(self._limit, len(self.table) + len(used))
        try:
            for each in used:
                each()
        finally:
            self._spared = 0
            self.table.limit = max(self._limit, transforms)

    def transforming(
        self, preparer: Preparer, spec: bytes, scratch: int, source: Block, out: GpuRef
    ) -> Submission[GpuRef]:
        """A transform by a plan.

        ``scratch`` is the bytes that it takes beside the plan's work area.
        """
        number, work, used = self.find(preparer, spec)
        target = out.block
        writes: tuple[Block, ...] = (target,)
        workspace = 0
        if scratch + work:
            shared = self.workspaces.obtain(preparer, scratch + work)
            writes = (target, shared)
            workspace = shared.address
        message = RunTransform(number, spec, source.address, target.address, workspace, work)
        return Submission(message, (source,), writes, out, sent=used)

    def clear(self) -> None:
        """Drop everything."""
        self.table.clear()
        self.workspaces.clear(self._device)


def _forget(device: DeviceView, plan: CachedFftPlan) -> None:
    """Let the host drop a plan."""
    port = device.ports.get(LANE.name)
    if port is not None:
        device.submit(port, "fft.forget", ForgetPlan(plan.number))
