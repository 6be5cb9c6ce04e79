"""Devices as placement sees them: candidates, and what is known of the work."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, final

from ..._errors import said_of
from ...actors._util import NoPublicConstructor, check_whole
from ...memory import GpuRef

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .._device import Device
    from ._topology import Topology


class CandidateState(enum.Enum):
    """What a device of a group is doing."""

    READY = "ready"
    RECOVERING = "recovering"
    """It has failed, and is coming back: it gets no work until then."""
    DRAINING = "draining"
    """It gets no work, and what it has comes to its end."""
    DRAINED = "drained"
    """It has none, and gets none."""
    LOST = "lost"
    """It does not come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What is known of a piece of work before it is placed.

    Attributes:
        near: buffers it is going to read, of whatever device.
        nbytes: memory it is going to take. A device that has not so much free is left out, and
            the bytes count as taken until the block is left.
        key: whose work it is, such as a user or a document. `ConsistentHash` gives equal keys the
            same device.
    """

    near: tuple[GpuRef, ...] = ()
    nbytes: int = 0
    key: str | bytes | int | None = None

    def __post_init__(self) -> None:
        for ref in self.near:
            if not isinstance(ref, GpuRef):
                raise TypeError(f"near must be GpuRefs, not {said_of(ref)}")
        check_whole("nbytes", self.nbytes)
        if self.nbytes < 0:
            raise ValueError(f"nbytes must be at least 0, not {self.nbytes}")
        if not isinstance(self.key, (str, bytes, int, type(None))):
            raise TypeError(f"key must be text, bytes or a whole number, not {said_of(self.key)}")


@final
class Candidate(metaclass=NoPublicConstructor):
    """One device of a group, as policies see it: all it tells is so now."""

    _made_by: ClassVar[str] = "open_devices(indices)"

    def __init__(
        self,
        device: Device,
        position: int,
        limit: int,
        topology: Topology,
        utilization: Callable[[Device], float | None] | None,
    ) -> None:
        self._device = device
        self._position = position
        self._limit = limit
        self._topology = topology
        self._utilization = utilization
        self._in_flight = 0
        self._reserved = 0
        self._draining = False

    def __repr__(self) -> str:
        return f"<Candidate {self.name}: {self.state.value}, {self.in_flight} in flight>"

    @property
    def device(self) -> Device:
        """The device."""
        return self._device

    @property
    def name(self) -> str:
        """The device's name, such as ``"cuda:0"``."""
        return self._device.name

    @property
    def position(self) -> int:
        """Where it is in the group."""
        return self._position

    @property
    def state(self) -> CandidateState:
        """What it is doing. Only one that is ready is given to policies."""
        state = self._device._core.lifecycle.state
        if state == "lost":
            return CandidateState.LOST
        if self._draining:
            return CandidateState.DRAINING if self._in_flight else CandidateState.DRAINED
        return CandidateState.READY if state == "ready" else CandidateState.RECOVERING

    @property
    def in_flight(self) -> int:
        """How many blocks of ``place`` it has."""
        return self._in_flight

    @property
    def queued(self) -> int:
        """How many ops it has that are not answered yet, whoever called them."""
        return len(self._device._core.in_flight)

    @property
    def generation(self) -> int:
        """The device's generation: one more for each fault."""
        return self._device._core.generation

    @property
    def free_bytes(self) -> int:
        """Memory that this program may still take there, less what is reserved."""
        memory = self._device._core.memory.statistics()
        total = self._device.info.total_memory
        limit = total if memory.limit is None else min(memory.limit, total)
        return max(0, limit - memory.used - self._reserved)

    @property
    def utilization(self) -> float | None:
        """How busy it is, from 0 to 1, by what ``open_devices`` was given; None if unknown."""
        return None if self._utilization is None else self._utilization(self._device)

    def far_bytes(self, near: Sequence[GpuRef]) -> int:
        """How much of these buffers lies on other devices."""
        core = self._device._core
        return sum(ref.nbytes for ref in near if ref._block.memory is not core.memory)

    def seconds_to(self, near: Sequence[GpuRef]) -> float:
        """How long it takes about to bring these buffers here, by what links are known to do."""
        core = self._device._core
        return sum(
            ref.nbytes / self._topology.expected_bandwidth(ref.device, self.name)
            for ref in near
            if ref._block.memory is not core.memory
        )

    def _admits(self, hints: Hints) -> bool:
        """Whether it takes another piece of work now."""
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
    """Chooses the device for a piece of work. `Policy` in ``patterns`` does it for replicas."""

    def choose(self, candidates: Sequence[Candidate], hints: Hints, /) -> Candidate:
        """One of the candidates given, which are ready and have room: at least one.

        They come in the group's order, and are the same objects at every call.
        """
        ...
