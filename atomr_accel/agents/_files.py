"""Files that survive the end of the program at any moment: atomic ones, and one that grows.

An atomic file is written under another name, synchronized, and renamed. A log is a file of frames;
each has a header of three whole numbers, little-endian: the length of its body, the body's CRC-32,
and the CRC-32 of these two. A frame that was cut off can only be the last one. It was never
acknowledged, and is removed at opening.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np

from ._errors import FilesDamaged, FilesFailed, FilesForeign, FilesInUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

_HEADER: Final = struct.Struct("<III")
_MAGIC: Final = b"atomr-accel log 1\n"
_ALIGNMENT: Final = 64
_CHUNK: Final = 1 << 24

T = TypeVar("T", bound=msgspec.Struct)


@contextmanager
def writes(path: Path) -> Iterator[None]:
    """Raise what the file system refuses as `FilesFailed`."""
    try:
        yield
    except OSError as error:
        raise FilesFailed(f"{path} cannot be written: {error}") from error


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, *pieces: bytes | memoryview) -> None:
    """Write a file as a whole or not at all; it is durable when this returns."""
    unfinished = path.with_name(path.name + ".unfinished")
    with writes(path):
        try:
            with unfinished.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
            sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise


class _CheckedStruct(msgspec.Struct, frozen=True):
    kind: str
    check: int
    value: msgspec.Raw


def write_struct(path: Path, kind: str, value: msgspec.Struct) -> None:
    """Write a struct as JSON with a checksum, atomically."""
    body = msgspec.json.encode(value)
    write_atomically(
        path, msgspec.json.encode(_CheckedStruct(kind, zlib.crc32(body), msgspec.Raw(body)))
    )


def read_struct(path: Path, kind: str, type: type[T]) -> T:  # noqa: A002 (as msgspec names it)
    """Read what `write_struct` wrote."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FilesDamaged(f"{path} cannot be read: {error}") from error
    try:
        checked = msgspec.json.decode(data, type=_CheckedStruct)
    except msgspec.MsgspecError:
        if data.lstrip().startswith(b'{"kind":"' + kind.encode()):
            raise FilesDamaged(f"{path} cannot be read: it was cut off or changed") from None
        raise FilesForeign(f"{path} is not a file of kind {kind!r}") from None
    if checked.kind != kind:
        raise FilesForeign(f"{path} is a file of kind {checked.kind!r}, and this reads {kind!r}")
    if zlib.crc32(checked.value) != checked.check:
        raise FilesDamaged(f"{path} does not fit its checksum")
    try:
        return msgspec.json.decode(checked.value, type=type)
    except msgspec.MsgspecError as error:
        raise FilesDamaged(f"{path} cannot be read: {error}") from error


class _ArraySection(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    check: int


class _ArraySections(msgspec.Struct, frozen=True):
    sections: tuple[_ArraySection, ...]


def write_arrays(path: Path, **arrays: NDArray[Any]) -> None:
    """Write named arrays with their checksums, atomically."""
    sections, pieces, start = [], [], 0
    for name, array in arrays.items():
        data = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        sections.append(_ArraySection(name, array.dtype.str, array.shape, start, zlib.crc32(data)))
        padding = -len(data) % _ALIGNMENT
        pieces += [data, memoryview(bytes(padding))]
        start += len(data) + padding
    head = msgspec.json.encode(_ArraySections(tuple(sections)))
    framed = _MAGIC + _HEADER.pack(*_header(head)) + head
    framed += bytes(-len(framed) % _ALIGNMENT)
    write_atomically(path, framed, *pieces)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Map the arrays that `write_arrays` wrote, read-only, after comparing the checksums."""
    try:
        size = path.stat().st_size
        whole = np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)
    except OSError as error:
        raise FilesDamaged(f"{path} cannot be read: {error}") from error
    at = len(_MAGIC)
    if bytes(whole[:at]) != _MAGIC:
        raise FilesForeign(f"{path} is not a file of arrays")
    head = _frame(whole.data, at)
    if head is None:
        raise FilesDamaged(f"{path} does not fit its checksum")
    at += _HEADER.size + len(head)
    at += -at % _ALIGNMENT
    arrays, end = {}, at
    for section in msgspec.json.decode(head, type=_ArraySections).sections:
        dtype = np.dtype(section.dtype)
        start = at + section.start
        data = whole[start : start + dtype.itemsize * int(np.prod(section.shape, dtype=np.int64))]
        check = 0
        for piece in range(0, len(data), _CHUNK):
            check = zlib.crc32(data[piece : piece + _CHUNK].data, check)
        if check != section.check:
            raise FilesDamaged(f"{section.name} in {path} does not fit its checksum")
        end = start + len(data) + -len(data) % _ALIGNMENT
        arrays[section.name] = data.view(dtype).reshape(section.shape)
    if end != size:
        raise FilesDamaged(f"{path} must have {end} bytes, not {size}")
    return arrays


def _header(body: bytes) -> tuple[int, int, int]:
    length, check = len(body), zlib.crc32(body)
    return length, check, zlib.crc32(struct.pack("<II", length, check))


def _frame(data: memoryview, at: int) -> bytes | None:
    """Return the body of the frame at an offset, or None if it is cut off or changed."""
    if len(data) - at < _HEADER.size:
        return None
    length, check, own = _HEADER.unpack_from(data, at)
    body = data[at + _HEADER.size : at + _HEADER.size + length]
    whole = zlib.crc32(struct.pack("<II", length, check)) == own and len(body) == length
    return bytes(body) if whole and zlib.crc32(body) == check else None


class WriteAheadLog:
    """A log that grows by frames, each durable before it is acknowledged.

    Its functions wait, and belong in a worker thread.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._fd = -1
        self._end = self._before = 0

    def create(self) -> None:
        """Make an empty log, and open it."""
        write_atomically(self.path, _MAGIC)
        self._fd = os.open(self.path, os.O_RDWR)
        self._end = len(_MAGIC)

    def open(self, apply: Callable[[bytes], None]) -> None:
        """Open the log, and call a function with the body of each frame.

        A last frame that was cut off is removed.
        """
        try:
            self._fd = os.open(self.path, os.O_RDWR)
            data = memoryview(self.path.read_bytes())
        except OSError as error:
            raise FilesDamaged(f"{self.path} cannot be read: {error}") from error
        if bytes(data[: len(_MAGIC)]) != _MAGIC:
            raise FilesForeign(f"{self.path} is not a log")
        self._end = len(_MAGIC)
        while self._end < len(data):
            body = _frame(data, self._end)
            if body is None:
                if not _cut_off(data, self._end):
                    raise FilesDamaged(f"{self.path} does not fit its checksum at {self._end}")
                os.ftruncate(self._fd, self._end)
                os.fsync(self._fd)
                return
            apply(body)
            self._end += _HEADER.size + len(body)

    def append(self, body: bytes) -> None:
        """Add a frame. It is durable when this returns."""
        if self._fd < 0:
            raise FilesFailed(f"{self.path} takes no more, since an earlier write failed")
        data = _HEADER.pack(*_header(body)) + body
        with writes(self.path):
            try:
                written = 0
                while written < len(data):
                    written += os.pwrite(self._fd, data[written:], self._end + written)
                os.fsync(self._fd)
            except OSError:
                self._take_back()
                raise
        self._before, self._end = self._end, self._end + len(data)

    def remove_last(self) -> None:
        """Take the frame of the last `append` back, which was not acknowledged."""
        self._end = self._before
        self._take_back()

    def _take_back(self) -> None:
        try:
            os.ftruncate(self._fd, self._end)
            os.fsync(self._fd)
        except OSError:  # its content is unknown: no more frames may follow
            self.close()

    def close(self) -> None:
        """Close the file; it may be closed already."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _cut_off(data: memoryview, at: int) -> bool:
    """Return whether a bad frame is one whose write did not end, so that nothing follows it."""
    rest = data[at:]
    if len(rest) < _HEADER.size or not np.frombuffer(rest, np.uint8).any():
        return True
    length, check, own = _HEADER.unpack_from(rest)
    known = bool(zlib.crc32(struct.pack("<II", length, check)) == own)
    return known and bool(_HEADER.size + length >= len(rest))


class FolderLock:
    """The right to use the files of a folder, which one block at a time has.

    The system releases it when the process ends.

    Raises:
        FilesInUse: another block has it.
    """

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise FilesInUse(f"{folder} is open in another block or program") from None

    def release(self) -> None:
        """Give the right back."""
        os.close(self._fd)
