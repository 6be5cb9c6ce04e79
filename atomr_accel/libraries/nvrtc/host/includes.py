"""Files that a source may include. They are part of the key of compiled code.

NVRTC does not report which files it has read, and only a preprocessor knows which lines count. So
the key covers all that it could have read: every file of the program's own folders by its
content, and the vendor's headers by their release.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_SPLICE: Final = re.compile(r"\\\r?\n")
"""Lines that C++ joins, so that a word may be spread over them."""

_CLOCK: Final = re.compile(r"__DATE__|__TIME")
_DIRECTIVE: Final = re.compile(
    r"""
      (?: (?: \# | %: | \?\?= ) (?: \s | /\*.*?\*/ )* include | __has_include ) (?: _next )? \b
      ([^\n]*)
    """,
    re.VERBOSE | re.DOTALL,
)
"""A directive that names a file. Those in comments match, too: only a compiler finds comments."""

_NAMED: Final = re.compile(r"""\s*\(?\s*(?:"([^"\n]+)"|<([^>\n]+)>)""")
_FOLDER: Final = re.compile(r"(?:--include-path|-I)(?:\s*=\s*|\s+|(?<=I))(.+)")
_PRE_INCLUDE: Final = re.compile(r"(?:--pre-include|-include|--?(?:create|use)-pch)\b.*")
"""Options that name files, which may be read or must be written."""

_MOST_FILES: Final = 4096
"""More than these are no headers of a kernel's, and reading them takes as long as compiling."""

_VENDOR: Final = (
    ("cudart", "cuda_runtime.h"),
    ("nvcc", "crt/mma.h"),
    ("cccl", "cuda/std/version"),
    ("curand", "curand_kernel.h"),
    ("cutlass", "cutlass/cutlass.h"),
)
"""The vendor's headers, by the names that cuda-pathfinder has, each with one of them."""

_PACKAGES: Final = {
    "cccl": ("cuda.cccl", "headers/include"),
    "cutlass": ("cutlass_library", "source/include"),
}
"""Packages with headers in folders of their own, used if there are no others.

The headers of CUTLASS do not compile with the newest of CCCL, which cuda-cccl brings.
"""


@cache
def vendor_headers() -> tuple[str, ...]:
    """The folders of the vendor's headers that are installed.

    They come with wheels or with a toolkit: CUDA's own (``cuda_fp16.h``, ``mma.h``,
    ``cooperative_groups.h``), CCCL's (``cuda/std``, ``cub``), ``curand_kernel.h``, and CUTLASS's
    (``cute``).
    """
    return tuple(dict.fromkeys(path for name, file in _VENDOR for path in _find(name, file)))


def _find(name: str, file: str) -> Iterator[str]:
    with suppress(ImportError, ValueError, RuntimeError):  # older releases do not know all names
        from cuda.pathfinder import find_nvidia_header_directory

        found = find_nvidia_header_directory(name)
        if found and Path(found, file).is_file():
            yield found
            return
    package, folder = _PACKAGES.get(name, ("", ""))
    if package:
        with suppress(ImportError):
            spec = find_spec(package)
            for base in (spec and spec.submodule_search_locations) or ():
                if Path(base, folder, file).is_file():
                    yield str(Path(base, folder))


def fingerprint(texts: Sequence[str], options: Sequence[str]) -> bytes | None:
    """Return a hash of all files that texts may include.

    Args:
        texts: a source, and the headers in memory that it may include.
        options: the compiler's options, which name the program's own folders.

    Returns:
        The hash. None if a text depends on the clock, or on a file outside of the folders.
    """
    if any(_PRE_INCLUDE.fullmatch(option) for option in options):
        return None
    joined = [_SPLICE.sub("", text) for text in texts]
    if not all(map(_knows_files, joined)) or any(map(_CLOCK.search, options)):
        return None
    found = hashlib.sha256()
    if not any(map(_DIRECTIVE.search, joined)):
        return found.digest()
    for folder in _own_folders(options):
        for path in _files(folder):
            if path is None:
                return None
            data = path.read_bytes()
            if not _knows_files(_SPLICE.sub("", data.decode(errors="replace"))):
                return None
            found.update(f"{path}\0".encode(errors="surrogateescape"))
            found.update(hashlib.sha256(data).digest())
    for release in map(_release, vendor_headers()):
        found.update(release)
    return found.digest()


def _own_folders(options: Sequence[str]) -> Iterable[Path]:
    """The folders that options name, in the same or in the next word."""
    words = [" ".join(pair) for pair in itertools.pairwise(options)]
    for option in (*options, *words):
        named = _FOLDER.fullmatch(option.strip())
        if named is not None:
            yield Path(named[1].strip())


def _files(folder: Path) -> Iterator[Path | None]:
    """Yield a folder's files, and None if some are left out."""
    count = 0
    for at, folders, files in os.walk(folder):
        folders.sort()
        if any(Path(at, each).is_symlink() for each in folders):
            yield None
        count += len(files)
        if count > _MOST_FILES:
            yield None
        for name in sorted(files):
            path = Path(at, name)
            yield path if path.is_file() else None


def _knows_files(text: str) -> bool:
    """Return whether a text depends only on the contents of its folders."""
    if _CLOCK.search(text):
        return False
    for operand in _DIRECTIVE.findall(text):
        named = _NAMED.match(operand)
        if named is None:
            return False  # the name is a macro
        name = named[1] or named[2]
        if name.startswith("/") or ".." in name.split("/"):
            return False
    return True


@cache
def _release(folder: str) -> bytes:
    """Return a key of the release of the vendor's headers in a folder.

    Files of a release are not edited, so their names, sizes and times identify it.
    """
    found = hashlib.sha256()
    for at, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            about = Path(at, name).stat()
            found.update(f"{at}/{name}\0{about.st_size}\0{about.st_mtime_ns}\n".encode())
    return found.digest()
