"""Snapshots as files: arrays after a head that describes them, with checksums of everything.

A file is ``magic``, the head's length and CRC-32 (little-endian), the head (msgpack), and the
arrays, each at a multiple of 4096 bytes.
"""

from __future__ import annotations

import fcntl
import glob
import math
import os
import struct
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec
import numpy as np

from ..._dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAGIC: Final = b"atomrsn1"
_HEAD: Final = struct.Struct("<8sII")
_ALIGNED: Final = 4096
_MOST_HEAD: Final = 1 << 30
_SUFFIX: Final = ".partial"


class _SnapshotEntry(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    crc: int


def write_arrays(path: str | os.PathLike[str], arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Write contiguous arrays, so that the file is there in full or not at all."""
    target = Path(path)
    entries = [
        _SnapshotEntry(each.dtype.name, each.shape, zlib.crc32(_bytes(each))) for each in arrays
    ]
    head = msgspec.msgpack.encode(entries)
    _sweep(target)
    made, name = _temporary(target)
    with os.fdopen(made, "wb") as file:
        try:
            file.write(_HEAD.pack(_MAGIC, len(head), zlib.crc32(head)) + head)
            for array in arrays:
                file.seek(_aligned(file.tell()))
                file.write(_bytes(array))
            file.truncate(file.tell())
            file.flush()
            os.fsync(file.fileno())
            Path(name).replace(target)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)  # or a loss of power may bring the old file back
    finally:
        os.close(directory)


def _temporary(target: Path) -> tuple[int, str]:
    """Create a locked temporary file next to ``target``; return its descriptor and name."""
    while True:
        made, name = tempfile.mkstemp(_SUFFIX, f".{target.name}.", target.parent)
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(made, fcntl.LOCK_EX)
        if os.fstat(made).st_nlink:
            return made, name
        os.close(made)  # ``_sweep`` came before the lock


def _sweep(target: Path) -> None:
    """Remove temporary files of ``target`` whose program was killed.

    A lock ends with its program. Names are random, so a name is never reused for another file.
    """
    for path in target.parent.glob(f".{glob.escape(target.name)}.????????{_SUFFIX}"):
        with suppress(OSError):  # it is being written, or was just removed
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(fd)


def read_arrays(path: str | os.PathLike[str]) -> list[np.ndarray[Any, Any]]:
    """Read the arrays of a file."""
    with Path(path).open("rb") as file:
        try:
            return [_read(file, entry) for entry in _entries(file)]
        except (msgspec.DecodeError, struct.error, EOFError, KeyError) as error:
            raise ValueError(f"{os.fspath(path)} is no complete snapshot: {error}") from None


def _entries(file: BinaryIO) -> list[_SnapshotEntry]:
    magic, length, crc = _HEAD.unpack(file.read(_HEAD.size))
    if magic != _MAGIC or length > _MOST_HEAD:
        raise EOFError("it does not begin as one")
    head = file.read(length)
    if len(head) < length or zlib.crc32(head) != crc:
        raise EOFError("its head was cut off or has changed")
    return msgspec.msgpack.decode(head, type=list[_SnapshotEntry])


def _read(file: BinaryIO, entry: _SnapshotEntry) -> np.ndarray[Any, Any]:
    dtype = DTYPES[entry.dtype]
    if math.prod(entry.shape) * dtype.itemsize > os.fstat(file.fileno()).st_size:
        raise EOFError("it was cut off")
    array = np.empty(entry.shape, dtype)
    file.seek(_aligned(file.tell()))
    data = _bytes(array)
    while data:
        count = file.readinto(data)  # type: ignore[attr-defined]
        if not count:
            raise EOFError("it was cut off")
        data = data[count:]
    if zlib.crc32(_bytes(array)) != entry.crc:
        raise EOFError("an array has changed since it was written")
    return array


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNED) * _ALIGNED
