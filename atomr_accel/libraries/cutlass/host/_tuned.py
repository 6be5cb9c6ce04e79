"""The fastest kernels that were found, kept on disk."""

from __future__ import annotations

from typing import Final

import msgspec

from ....executors.compiler import nvrtc_version
from ....executors.disk_cache import DiskCache
from ..wire._messages import Sizes

FILES: Final = DiskCache("cutlass-tuned")

Candidate = tuple[bytes, int]
"""A spec and a swizzle."""


def recall_tuned(wanted: bytes, sizes: Sizes, processors: int) -> list[Candidate]:
    """Return the fastest kernel for such products on such a device, or an empty list."""
    data = FILES.get(_key(wanted, sizes, processors))
    return [] if data is None else [msgspec.msgpack.decode(data, type=Candidate)]


def keep_tuned(wanted: bytes, sizes: Sizes, processors: int, found: Candidate) -> None:
    """Keep the fastest kernel for such products on such a device."""
    FILES.put(_key(wanted, sizes, processors), msgspec.msgpack.encode(found))


def _key(wanted: bytes, sizes: Sizes, processors: int) -> bytes:
    return msgspec.msgpack.encode((wanted, sizes, processors, nvrtc_version()))
