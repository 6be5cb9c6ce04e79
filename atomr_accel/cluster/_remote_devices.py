"""Devices of other nodes."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import msgspec
import trio

from .. import AccelError, GpuRefStale
from ..actors.util import NoPublicConstructor, check_instance
from ..patterns import Closed
from ._errors import ClusterError
from ._sealed import check_digest
from ._served_devices import BufferNote, DeviceCallBody, packed, unpacker

if TYPE_CHECKING:
    import numpy as np

    from ._cluster import Cluster

_NAME: Final = re.compile(r"([a-z0-9][a-z0-9-]*)/(\d{1,4})")


@final
class RemoteBuffer(metaclass=NoPublicConstructor):
    """A buffer of a device of another node. It lives there until the device's block is left.

    Attributes:
        shape: its shape.
        dtype: its dtype.
    """

    _made_by: ClassVar[str] = "what a device of another node returns"

    def __init__(self, device: RemoteDevice, note: BufferNote, life: int) -> None:
        from .._dtypes import as_dtype

        self.shape: Final[tuple[int, ...]] = note.shape
        self.dtype: Final[np.dtype[Any]] = as_dtype(note.dtype)
        self._device = device
        self._note = note
        self._life = life

    def __repr__(self) -> str:
        return f"<RemoteBuffer {self.dtype.name} {self.shape} of {self._device.name}>"


@final
class RemoteRequest(metaclass=NoPublicConstructor):
    """An op for a device of another node. ``device.requests.blas.gemm(a, b)`` makes one."""

    _made_by: ClassVar[str] = "device.requests.put(array) and the like"

    def __init__(
        self, device: RemoteDevice, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.name: Final[str] = name
        self._device = device
        self._args = args
        self._kwargs = kwargs

    def __repr__(self) -> str:
        return f"<RemoteRequest {self.name} for {self._device.name}>"


class _Names:
    """Methods of a device or library, by name; each makes a request."""

    def __init__(self, device: RemoteDevice, prefix: str) -> None:
        self._device = device
        self._prefix = prefix

    def __getattr__(self, name: str) -> _Names:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Names(self._device, f"{self._prefix}{name}.")

    def __call__(self, *args: Any, **kwargs: Any) -> RemoteRequest:
        made: RemoteRequest = RemoteRequest.construct(
            self._device, self._prefix.removesuffix("."), args, kwargs
        )
        return made


@final
class RemoteDevice(metaclass=NoPublicConstructor):
    """A device of another node. ``cluster.open_device("node-3/0")`` opens one.

    It answers requests as ``device.ref`` of a local device does, and buffers stay on its node.
    Functions and kernels of the program are not sent: those raise `Unsupported`. The node frees the
    buffers when the connection ends; using one after that raises `GpuRefStale`.

    Attributes:
        name: node and index, such as ``"node-3/0"``.
        requests: makes requests: ``requests.put(array)``, ``requests.blas.gemm(a, b)``.
    """

    _made_by: ClassVar[str] = 'cluster.open_device("node-3/0")'

    def __init__(self, cluster: Cluster, node: str, index: int) -> None:
        self.name: Final[str] = f"{node}/{index}"
        self.requests: Final[Any] = _Names(self, "")
        self._cluster = cluster
        self._node = node
        self._target = f"device:{index}"
        self._buffers: dict[int, RemoteBuffer] = {}
        self._closed = False
        self._life = cluster.connection_of(node)

    def __repr__(self) -> str:
        return f"<RemoteDevice {self.name}>"

    async def ask(self, request: RemoteRequest) -> Any:
        """Have a request carried out, and return its result.

        Requests of one task are carried out in their order. A request of tasks that do not wait for
        each other has its place when it arrives.

        Args:
            request: what ``requests`` of this device makes.

        Returns:
            As from a local device, with a `RemoteBuffer` for each buffer.

        Raises:
            ValueError: a request or buffer is of another device, or more than a frame holds.
            Unsupported: other nodes cannot ask for this.
            GpuRefStale: a buffer was freed, or the connection it belongs to has ended.
            NodeUnreachable: the node cannot be connected to.
            ConnectionLost: the connection ended before the answer came.
            Closed: the device's block was left.
            AccelError: what the device raised.
        """
        if self._closed:
            raise Closed(f"{self.name} is closed: its block was left")
        return await self._ask(request)

    async def _ask(self, request: RemoteRequest) -> Any:
        check_instance("a request", request, RemoteRequest)
        if request._device is not self:
            raise ValueError(
                f"a request must be made by this device's requests, not by {request._device.name}"
            )
        given: list[BufferNote] = []

        def noted(value: object) -> BufferNote | None:
            if not isinstance(value, RemoteBuffer):
                return None
            if value._device is not self:
                raise ValueError(
                    f"a buffer must be of {self.name}, not of {value._device.name}; get and put it"
                )
            if value._life != self._cluster.connection_of(self._node):
                raise GpuRefStale(f"the connection to {self.name} has ended, and freed its buffers")
            if value._note.number not in self._buffers:
                raise GpuRefStale(f"the buffer of {self.name} was freed")
            given.append(value._note)
            return value._note

        call = DeviceCallBody(
            request.name,
            [packed(each, noted) for each in request._args],
            {name: packed(each, noted) for name, each in request._kwargs.items()},
        )
        body = msgspec.msgpack.encode(call)
        answer = await self._cluster.ask_device(self._node, self._target, body)
        life = self._cluster.connection_of(self._node)
        if request.name == "free":
            for note in given:
                self._buffers.pop(note.number, None)

        def buffer(note: BufferNote) -> RemoteBuffer:
            found = self._buffers.get(note.number)
            if found is None or found._life != life:
                found = self._buffers[note.number] = RemoteBuffer.construct(self, note, life)
            return found

        return msgspec.msgpack.decode(answer, ext_hook=unpacker(buffer))

    async def put(self, array: Any, **options: Any) -> RemoteBuffer:
        """Copy an array of the program to the device, and return the buffer.

        Args:
            array: what NumPy makes an array of; at most the cluster's ``frame`` bytes.
            **options: those of ``Device.put``.
        """
        import numpy as np

        result: RemoteBuffer = await self.ask(self.requests.put(np.asarray(array), **options))
        return result

    async def get(self, buffer: RemoteBuffer) -> np.ndarray[Any, Any]:
        """Return the content of a buffer, as an array of its shape and dtype.

        Args:
            buffer: a buffer of this device.
        """
        result: np.ndarray[Any, Any] = await self.ask(self.requests.get(buffer))
        return result

    async def offer(self, buffer: RemoteBuffer) -> str:
        """Let all nodes fetch a sealed buffer of this device; see ``Cluster.offer``.

        Args:
            buffer: a buffer of this device, sealed by ``put(array, sealed=True)``.

        Returns:
            The digest.
        """
        result: str = await self.ask(self.requests.offer(buffer))
        return result

    async def fetch(self, digest: str) -> RemoteBuffer:
        """Have the device's node fetch a sealed buffer; see ``Cluster.fetch``.

        Args:
            digest: of the buffer.
        """
        result: RemoteBuffer = await self.ask(self.requests.fetch(check_digest(digest)))
        return result

    async def withdraw(self, digest: str) -> None:
        """Have the device's node offer a buffer no more; see ``Cluster.withdraw``.

        Args:
            digest: of the buffer.
        """
        await self.ask(self.requests.withdraw(check_digest(digest)))

    async def free(self, buffer: RemoteBuffer) -> None:
        """Free a buffer.

        Args:
            buffer: a buffer of this device.
        """
        await self.ask(self.requests.free(buffer))

    def statistics(self) -> dict[str, int]:
        """Return the number of buffers held (``"buffers"``) and their bytes (``"bytes"``)."""
        sizes = [each.dtype.itemsize * math.prod(each.shape) for each in self._buffers.values()]
        return {"buffers": len(sizes), "bytes": sum(sizes)}

    async def close(self) -> None:
        """Free all buffers that are left, and take no further requests."""
        self._closed = True
        life = self._cluster.connection_of(self._node)
        for buffer in [*self._buffers.values()]:
            if buffer._life == life:
                try:
                    await self._ask(self.requests.free(buffer))
                except ClusterError:
                    break  # the connection has ended, and has freed them
                except AccelError:
                    pass  # the device has lost it in a fault
        self._buffers.clear()


def device_of(cluster: Cluster, name: str) -> RemoteDevice:
    """Return a device by its name, without looking whether there is one."""
    check_instance("a device's name", name, str)
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"a device's name must be like 'node-3/0', not {name!r}")
    made: RemoteDevice = RemoteDevice.construct(cluster, match[1], int(match[2]))
    return made


async def opened_device(cluster: Cluster, name: str) -> AsyncGenerator[RemoteDevice, None]:
    """Open a device of another node; see ``Cluster.open_device``."""
    device = device_of(cluster, name)
    await device.ask(device.requests.statistics())
    try:
        yield device
    finally:
        with trio.move_on_after(2.0, shield=True):
            await device.close()
