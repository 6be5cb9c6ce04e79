"""Exchanges of tokens between devices, which name the device that faults."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar, final

from ..._errors import GpuRefStale
from ...actors.nursery import PlainNursery
from .._errors import RankFailed
from .._retry import is_device_fault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from ...arrays import GpuRef
    from ...device import Device

T = TypeVar("T")


class Exchange(Protocol):
    """Moves buffers between ranks, which are numbered from 0 and have a device each.

    ``DeviceCopies`` does it for the devices of one program. Whatever else can, such as a
    communicator of NCCL, may take its place.
    """

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        ...

    async def all_to_all_v(self, parts: Sequence[Sequence[GpuRef]]) -> list[list[GpuRef]]:
        """Send each rank the parts that all ranks have for it, as ``MPI_Alltoallv`` does.

        Args:
            parts: ``parts[i][j]`` is on the device of rank ``i`` and goes to rank ``j``. Shapes may
                differ; empty ones and views are taken.

        Returns:
            The parts on their devices: ``result[j][i]`` was ``parts[i][j]``. A rank's part for
            itself may be returned unchanged, even if it is a view.

        Raises:
            RankFailed: a device has faulted meanwhile. It is not used any further by then, nothing
                that was given is changed, and the other devices are as before.
        """
        ...


@final
class DeviceCopies:
    """An `Exchange` between devices of one program, by ``device.copy``.

    Between GPUs that can reach each other nothing goes through the host.

    Args:
        devices: those of the ranks, in their order.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        if not devices:
            raise ValueError("an exchange wants one device or more")
        self._devices = tuple(devices)

    @property
    def ranks(self) -> int:
        """Number of devices."""
        return len(self._devices)

    async def all_to_all_v(self, parts: Sequence[Sequence[GpuRef]]) -> list[list[GpuRef]]:
        """See `Exchange`. All copies are under way at once.

        Raises:
            RankFailed: a device has faulted meanwhile.
            ValueError: other numbers of parts than there are ranks, or a part of another device
                than that of its rank.
        """
        ranks = range(self.ranks)
        if [len(row) for row in parts] != [self.ranks] * self.ranks:
            raise ValueError(
                f"parts must be {self.ranks} from each of {self.ranks} ranks, not "
                f"{[len(row) for row in parts]}"
            )
        for i in ranks:
            for j in ranks:
                if parts[i][j].block.memory is not self._devices[i].core.memory:
                    raise ValueError(
                        f"parts[{i}][{j}] is not on the device of rank {i}: {parts[i][j]!r}"
                    )

        async def move(i: int, j: int) -> GpuRef:
            part, to = parts[i][j], self._devices[j]
            if i == j:
                return part
            if not part.size:
                return await to.empty(part.shape, part.dtype)
            return await to.copy(part)

        with naming(self._devices) as require_whole:
            moved = await at_once([move(i, j) for j in ranks for i in ranks])
            require_whole()
        return [moved[j * self.ranks : (j + 1) * self.ranks] for j in ranks]


async def at_once(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Await all at the same time; where one fails, the others are cancelled."""
    results: dict[int, T] = {}

    async def run(number: int, call: Awaitable[T]) -> None:
        results[number] = await call

    async with PlainNursery() as nursery:
        for number, call in enumerate(calls):
            nursery.start_soon(run, number, call)
    return [results[number] for number in range(len(calls))]


@contextmanager
def naming(devices: Sequence[Device]) -> Iterator[Callable[[], None]]:
    """Turn a device fault in the block into `RankFailed`, which names the device.

    The faulted device is the one whose generation has changed, which happens before any error is
    raised. The error itself does not say: a copy between two devices fails if either faults.

    Yields:
        A function to call before the block hands out buffers that it made: it raises
        `GpuRefStale` if an unnoticed fault took some of them.
    """
    before = [device.generation for device in devices]

    def faulted() -> list[int]:
        return [
            rank
            for rank, device in enumerate(devices)
            if device.generation != before[rank] or device.closed
        ]

    def require_whole() -> None:
        if faulted():
            raise GpuRefStale("a device was rebuilt meanwhile, and what was made on it is gone")

    try:
        yield require_whole
    except RankFailed:
        raise
    except Exception as error:
        if is_device_fault(error) and (ranks := faulted()):
            raise _failed(devices, ranks[0]) from error
        raise


def _failed(devices: Sequence[Device], rank: int) -> RankFailed:
    name = devices[rank].name
    return RankFailed(
        f"rank {rank} of {len(devices)}, device {name!r}, has faulted; the others are as before",
        rank=rank,
        device=name,
    )
