"""Caches in files for data that takes long to make: compiled kernels, libraries' plans.

A file is written under another name first and then renamed, so that readers see all of it or none.
It begins with a hash of its data and its key, and a file that does not match is not used. A process
that can write to the folder can run code on the device. So the folder is used only if it belongs to
this user and other users cannot write to it.

Without such a folder, or on a full disk, nothing is kept, and nothing fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FOLDER_VARIABLE: Final = "ATOMR_CACHE_DIR"
"""The environment variable that says where files go; empty, it turns them off. By default
they go where the platform keeps a user's caches: on Linux to ``atomr-accel`` in
``$XDG_CACHE_HOME`` or ``~/.cache``."""

_MAGIC: Final = b"atomr-cache-1\n"
_HASH_BYTES: Final = hashlib.sha256().digest_size
_PIECE: Final = 1 << 20
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class DiskCacheStatistics:
    """Uses of a cache in this process.

    Attributes:
        hits: entries that were found.
        misses: entries that were not found.
        damaged: files with wrong content, which count as misses, too.
        written: files written.
    """

    hits: int
    misses: int
    damaged: int
    written: int


@final
class DiskCache:
    """Cache of one kind of data, by keys of any bytes.

    Args:
        kind: names the folder's part that these are in.
        limit: bytes that they may take; the ones not used for longest go first.
    """

    def __init__(self, kind: str, limit: int = 256 << 20) -> None:
        self._kind = kind
        self._limit = limit
        self._hits = self._misses = self._damaged = self._written = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the data of a key, if its file exists and is whole."""
        data = self._read(key)
        if data is None:
            self._misses += 1
        else:
            self._hits += 1
        return data

    def put(self, key: bytes, data: bytes) -> None:
        """Keep something, if that is possible."""
        folder = self._folder()
        if folder is None:
            return
        name = _name(key)
        with contextlib.suppress(OSError):
            handle, temporary = tempfile.mkstemp(dir=folder, prefix=".")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.writelines((_MAGIC, _hash(name, (data,)), data))
                Path(temporary).replace(folder / name)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
            self._written += 1
            self._make_room(folder)

    def statistics(self) -> DiskCacheStatistics:
        """A snapshot of the counters."""
        return DiskCacheStatistics(self._hits, self._misses, self._damaged, self._written)

    def _read(self, key: bytes) -> bytes | None:
        folder = self._folder()
        if folder is None:
            return None
        path = folder / _name(key)
        try:
            data = read(path)
        except OSError:
            return None
        if data is None:
            self._damaged += 1
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # it was used now
        return data

    def _make_room(self, folder: Path) -> None:
        """Remove the least recently used files, until three quarters of the limit are taken."""
        files = []
        for entry in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process makes room, too
                about = entry.stat()
                files.append((about.st_mtime_ns, about.st_size, entry))
        excess = sum(size for _, size, _ in files) - self._limit
        if excess <= 0:
            return
        excess += self._limit // 4
        for _, size, entry in sorted(files):
            if excess <= 0:
                break
            entry.unlink(missing_ok=True)
            excess -= size

    def _folder(self) -> Path | None:
        """The folder, made if it is not there; None if it cannot be used."""
        base = base_folder(os.environ)
        if base is None:
            return None
        folder = base / self._kind
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return folder if is_safe(folder) else None
        except OSError:
            return None


def base_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder that has one folder for each cache; None if nothing is kept."""
    chosen = environ.get(FOLDER_VARIABLE)
    if chosen == "":
        return None
    return _default_folder() if chosen is None else Path(chosen)


def is_safe(folder: Path) -> bool:
    """Return whether a folder belongs to this user, and other users cannot write to it."""
    about = folder.stat()
    return about.st_uid == os.geteuid() and not about.st_mode & _OTHERS_MAY_WRITE


def read(path: Path) -> bytes | None:
    """Return the data of a file of a cache; None if it differs from the data that was written."""
    with path.open("rb") as file:
        told = _told_hash(file)
        if told is None:
            return None  # whatever it is, and however large
        data = file.read()
    return data if told == _hash(path.name, (data,)) else None


def is_whole(path: Path) -> bool:
    """Return whether a file of a cache has the data that was written; reads it in pieces."""
    with path.open("rb") as file:
        told = _told_hash(file)
        if told is None:
            return False
        pieces = iter(partial(file.read, _PIECE), b"")
        return told == _hash(path.name, pieces)


def _default_folder() -> Path | None:
    """Return the platform's folder for a user's caches; None if the user has no home folder."""
    from platformdirs import user_cache_path  # by those who keep something: hosts start fast

    try:
        folder = user_cache_path("atomr-accel", appauthor=False)
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None  # older releases keep "~"


def _name(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def _told_hash(file: BinaryIO) -> bytes | None:
    """Return the hash at the start of a file; None if the file belongs to no cache."""
    return file.read(_HASH_BYTES) if file.read(len(_MAGIC)) == _MAGIC else None


def _hash(name: str, pieces: Iterable[bytes]) -> bytes:
    found = hashlib.sha256(name.encode())
    for piece in pieces:
        found.update(piece)
    return found.digest()
