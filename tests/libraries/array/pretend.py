"""A device whose memory is that of this process, for executors with kernels that run here."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from atomr_accel.host.templates import HostTemplate
from atomr_accel.wire import Message, encoder

Array = np.ndarray[Any, Any]


class Context:
    """Memory of this process, whose addresses are pointers."""

    def check(self) -> None:
        """Nothing fails."""

    def pointer(self, address: int) -> int:
        return address

    def pointers(self, addresses: Sequence[int]) -> list[int]:
        return [*addresses]

    def array(
        self, address: int, shape: Any, dtype: Any, strides: tuple[int, ...] | None = None
    ) -> Array:
        words = {8: "u8", 4: "u4", 2: "u2", 1: "u1", 16: "c16"}[dtype.itemsize]
        interface = {
            "data": (address, False),
            "shape": tuple(shape),
            "strides": strides,
            "typestr": np.dtype(words).str,
            "version": 3,
        }
        return np.asarray(SimpleNamespace(__array_interface__=interface)).view(dtype)

    def bytes_at(self, address: int, nbytes: int) -> Array:
        return self.array(address, (nbytes,), np.dtype(np.uint8))


class Stream:
    """Executes at once."""

    handle = 0
    captures = False

    def synchronize(self) -> None:
        """Nothing is in flight."""


class Driver:
    """The driver functions that the executor calls, on memory of this process."""

    def cuMemsetD8Async(self, pointer: int, value: int, count: int, _stream: Any) -> tuple[int]:  # noqa: N802
        Context().bytes_at(pointer, count)[:] = value
        return (0,)

    def cuMemAllocHost(self, nbytes: int) -> int:  # noqa: N802
        self.kept = [*getattr(self, "kept", []), np.empty(nbytes, np.uint8)]
        return pointer(self.kept[-1])

    def cuMemcpyDtoHAsync(self, to: int, pointer: int, count: int, _stream: Any) -> tuple[int]:  # noqa: N802
        Context().bytes_at(to, count)[:] = Context().bytes_at(pointer, count)
        return (0,)


def pointer(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def template_of(message: Message) -> HostTemplate:
    """A message with places for addresses, as a lane has it."""
    return HostTemplate(encoder.encode(message), msgspec.msgpack.Decoder(type(message)).decode)
