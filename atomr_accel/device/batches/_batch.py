"""Batches: GPU work as a nursery.

Calls inside the block return refs at once. Ops go to the host in bunches while the block
still runs; leaving it waits for all of them, and an error raises there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import trio

from ..._dtypes import as_dtype
from ..._errors import ContextPoisoned
from ...lanes import uninterrupted
from ...libraries._arguments import usable
from ...libraries._library import LaneSpec
from ...memory import GpuRef, as_shape
from .._core import Shape
from ..data._transfer import SMALL, as_host_array
from ._collector import Collector

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType

    from ...lanes import Op, Port
    from ...memory import Block
    from ...wire import Message
    from .._device import Device


_MOST_BUNCHED: Final = 32
"""Ops after which a bunch goes to the host, so that it works while the block still runs.

The first bunches are smaller, each twice the last: the device begins with the block.
"""


@final
@uninterrupted
class Batch(Collector):
    """Collects ops inside ``async with device.batch() as batch:``.

    Attributes are the device's libraries, whose methods return refs at once. The refs can
    be used in the batch right away, and elsewhere after it. If anything in the batch
    fails, or the block raises, all refs that the batch has made are freed.

    Calls raise what they raise outside, at once where they would before sending anything.
    The rest leaves the block: ``ContextPoisoned`` if the device fails, an op's own error, or
    an ``ExceptionGroup`` of several. A call outside the block is a ``RuntimeError``.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._ops: list[Op] = []
        self._made: list[Block] = []
        self._promised: dict[Block, int] = {}
        self._later: list[Callable[[], Awaitable[None]]] = []
        self._unsent = 0
        self._bunch = 1
        self._ports_unsent: set[Port] = set()
        self._open = False

    async def __aenter__(self) -> Batch:
        await self._core.ready()
        self.ports = dict(self._core.ports)
        self._epoch = self.memory.epoch
        self._open = True
        return self

    # --- what a batch offers beside the libraries -------------------------------------------

    def empty(self, shape: Shape, dtype: Any = np.float64) -> GpuRef:
        """A buffer whose content is undefined; as ``numpy.empty``.

        Raises:
            ValueError, TypeError: as ``device.empty``.
            OutOfMemory: no device has that much.
        """
        kind, sizes = as_dtype(dtype), as_shape(shape)
        nbytes = kind.itemsize * math.prod(sizes)
        made = self.try_empty(sizes, kind, nbytes)
        assert made is not None
        return made

    def put(self, array: Any) -> GpuRef:
        """Copy an array to the device.

        Args:
            array: a NumPy array or what ``numpy.asarray`` takes. Do not change it before the
                block is left.

        Returns:
            A ref with the array's shape and dtype.

        Raises:
            TypeError: a dtype that device memory cannot hold, such as objects.
        """
        # What is long is rearranged, where it must be, at the end of the block, in a thread.
        long = isinstance(array, np.ndarray) and array.nbytes > SMALL
        host = array if long else as_host_array(array)
        ref = self.empty(host.shape, host.dtype.newbyteorder("="))

        async def transfer() -> None:
            await self._provide()
            await self._device._upload(host, ref)

        self._later.append(transfer)
        return ref

    def get(self, ref: GpuRef) -> np.ndarray[Any, Any]:
        """Copy a buffer from the device, as it is at this point of the batch.

        Args:
            ref: the buffer, or a view of a part of one.

        Returns:
            An array that holds it once the block is left.

        Raises:
            GpuRefStale: of an older generation, or freed.
        """
        usable(ref, self.memory, "ref")
        self._check()
        host = np.empty(ref.shape, ref.dtype)

        async def transfer() -> None:
            await self._provide()
            await self._device.get(ref, out=host)

        self._later.append(transfer)
        return host

    # --- what facades ask for -------------------------------------------------------------

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> GpuRef:
        """A buffer; where there is no room its memory comes at the end of the block."""
        self._check()
        block = self.memory.allocate(nbytes) if not self._later else None
        if block is None:
            self._core.require_possible(nbytes)
            block = self.memory.promise()
            self._promised[block] = nbytes
        self._made.append(block)
        return GpuRef(block, shape, dtype, nbytes)

    def submit(
        self,
        port: Port | LaneSpec,
        name: str,
        message: Message,
        reads: Iterable[Block] = (),
        writes: Iterable[Block] = (),
    ) -> None:
        """Submit an op now, or at the end if it needs what takes a wait."""
        self._check()
        if self._later or self._promised or isinstance(port, LaneSpec):

            async def submit_later() -> None:
                await self._provide()
                lane = await self._core.open_lane(port) if isinstance(port, LaneSpec) else port
                self._check_epoch()
                self._ops.append(self._core.submit(lane, name, message, reads, writes))

            self._later.append(submit_later)
        else:
            self._ops.append(self._core.submit(port, name, message, reads, writes))
            self._unsent += 1
            self._ports_unsent.add(port)
            if self._unsent == self._bunch:
                self._send()

    def _send(self) -> None:
        """Send the bunch; the next one is larger."""
        self._unsent = 0
        self._bunch = min(2 * self._bunch, _MOST_BUNCHED)
        for port in self._ports_unsent:
            port.send()
        self._ports_unsent.clear()

    def _check(self) -> None:
        if not self._open:
            raise RuntimeError("calls belong inside the batch's block, which is not entered")
        self._check_epoch()

    def _check_epoch(self) -> None:
        if self.memory.epoch is not self._epoch:
            fault = self._core.last_fault
            assert fault is not None
            raise ContextPoisoned(
                f"the batch did not finish: {fault}",
                generation=fault.generation,
                status=fault.status,
                status_name=fault.status_name,
                op=fault.op,
            ) from fault

    async def _provide(self) -> None:
        for block, nbytes in list(self._promised.items()):
            while not self.memory.provide(block, nbytes):
                await self._core.grow(nbytes)
                self._check_epoch()
            del self._promised[block]

    # --- the end ----------------------------------------------------------------------------

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._open = False
        try:
            if error is None:
                await self._finish()
            else:
                self._spoil()
        except BaseException:
            self._spoil()
            raise
        finally:
            self._let_go()
        if error is not None:
            await trio.lowlevel.checkpoint()

    async def _finish(self) -> None:
        for step in self._later:
            await step()
        await self._provide()
        errors: list[Exception] = []
        for op in self._ops:
            if not op.answered:
                try:
                    await op.wait()
                except Exception as failure:  # noqa: BLE001 - collected, and raised below
                    failure.add_note(f"in a batch, at {op.name}")
                    errors.append(failure)
            elif op.error is not None:
                op.error.add_note(f"in a batch, at {op.name}")
                errors.append(op.error)
        await trio.lowlevel.checkpoint()
        faults = [failure for failure in errors if isinstance(failure, ContextPoisoned)]
        if faults:
            raise faults[0]
        if len(errors) > 1:
            raise ExceptionGroup("several ops of a batch failed", errors)
        if errors:
            raise errors[0]
        for done in self._done:
            done()

    def _let_go(self) -> None:
        """Hold nothing any more: temporary buffers are free now, not when garbage is collected.

        The facades refer to their batch, so they and the batch keep each other till then.
        """
        self._promised.clear()
        self._ops, self._made, self._later, self._done = [], [], [], []

    def _spoil(self) -> None:
        """Withdraw what is not under way, and refuse what the batch has made."""
        for op in self._ops:
            op.withdraw()
        for block in self._made:
            if block.epoch is not None:
                self.memory.free(block)
