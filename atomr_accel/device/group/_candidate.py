"""Devices as candidates for placement, and hints about the work."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, final

from ..._errors import said_of
from ...actors.util import NoPublicConstructor
from ...arrays import GpuRef
from ...wire.options import count, set_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .._device import Device
    from ._topology import Topology


class CandidateState(enum.Enum):
    """The state of a device in a group."""

    READY = "ready"
    RECOVERING = "recovering"
    """Failed and being rebuilt. It gets no work until then."""
    DRAINING = "draining"
    """Finishing its present work, and getting no more."""
    DRAINED = "drained"
    """Without work, and getting none."""
    LOST = "lost"
    """Gone for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Hints about a piece of work for its placement.

    Attributes:
        near: buffers that it is going to read, on any device.
        nbytes: bytes of memory that it is going to take. A device with less free memory is left
            out, and the bytes count as used until the block is left.
        key: the owner of the work, such as a user or a document. `ConsistentHash` gives equal keys
            the same device.
    """

    near: tuple[GpuRef, ...] = ()
    nbytes: int = 0
    key: str | bytes | int | None = None

    def __post_init__(self) -> None:
        for ref in self.near:
            if not isinstance(ref, GpuRef):
                raise TypeError(f"near must be GpuRefs, not {said_of(ref)}")
        set_fields(self, nbytes=count(self.nbytes, "nbytes", 0))
        if not isinstance(self.key, (str, bytes, int, type(None))):
            raise TypeError(f"key must be text, bytes or a whole number, not {said_of(self.key)}")


@final
class Candidate(metaclass=NoPublicConstructor):
    """A device of a group, with its present state, for policies.

    Attributes:
        device: the device.
        position: position in the group.
    """

    _made_by: ClassVar[str] = "open_devices(indices)"

    def __init__(
        self,
        device: Device,
        position: int,
        limit: int,
        topology: Topology,
        utilization: Callable[[Device], float | None] | None,
    ) -> None:
        self.device: Final = device
        self.position: Final = position
        self._limit = limit
        self._topology = topology
        self._utilization = utilization
        self._in_flight = 0
        self._reserved = 0
        self._draining = False

    def __repr__(self) -> str:
        return f"<Candidate {self.name}: {self.state.value}, {self.in_flight} in flight>"

    @property
    def name(self) -> str:
        """The device's name, such as ``"cuda:0"``."""
        return self.device.name

    @property
    def state(self) -> CandidateState:
        """State of the device. Policies only get devices that are ready."""
        state = self.device.core.lifecycle.state
        if state == "lost":
            return CandidateState.LOST
        if self._draining:
            return CandidateState.DRAINING if self._in_flight else CandidateState.DRAINED
        return CandidateState.READY if state == "ready" else CandidateState.RECOVERING

    @property
    def in_flight(self) -> int:
        """Number of blocks of ``place`` that it has."""
        return self._in_flight

    @property
    def queued(self) -> int:
        """Number of its ops that are not answered yet, from all callers."""
        return len(self.device.core.in_flight)

    @property
    def generation(self) -> int:
        """The device's generation: one more for each fault."""
        return self.device.core.generation

    @property
    def free_bytes(self) -> int:
        """Bytes that this program may still allocate there, less the reserved ones."""
        memory = self.device.core.memory.statistics()
        total = self.device.info.total_memory
        limit = total if memory.limit is None else min(memory.limit, total)
        return max(0, limit - memory.used - self._reserved)

    @property
    def utilization(self) -> float | None:
        """Utilization from 0 to 1, by the function that ``open_devices`` got; None if unknown."""
        return None if self._utilization is None else self._utilization(self.device)

    def far_bytes(self, near: Sequence[GpuRef]) -> int:
        """Return the bytes of these buffers that lie on other devices."""
        core = self.device.core
        return sum(ref.nbytes for ref in near if ref.block.memory is not core.memory)

    def seconds_to(self, near: Sequence[GpuRef]) -> float:
        """Estimate the seconds to copy these buffers here, from the bandwidths of the links."""
        core = self.device.core
        return sum(
            ref.nbytes / self._topology.expected_bandwidth(ref.device, self.name)
            for ref in near
            if ref.block.memory is not core.memory
        )

    def _admits(self, hints: Hints) -> bool:
        """Return True if the device has room for another piece of work."""
        return (
            self.state is CandidateState.READY
            and self._in_flight < self._limit
            and (not hints.nbytes or hints.nbytes <= self.free_bytes)
        )

    def _take(self, hints: Hints) -> None:
        self._in_flight += 1
        self._reserved += hints.nbytes

    def _give_back(self, hints: Hints) -> None:
        self._in_flight -= 1
        self._reserved -= hints.nbytes


class PlacementPolicy(Protocol):
    """Chooses the device for a piece of work. For replicas, see `Policy` in ``patterns``."""

    def choose(self, candidates: Sequence[Candidate], hints: Hints, /) -> Candidate:
        """Return one of the candidates, which are ready and have room. At least one is given.

        They come in the group's order, and are the same objects at every call.
        """
        ...
