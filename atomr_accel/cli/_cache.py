"""``atomr-accel cache``: list, verify and clear the files that are kept on disk."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..executors.disk_cache import base_folder, is_safe, is_whole
from ._documents import CacheDocument, KindPart
from ._errors import ExitCode, Refusal
from ._output import Toned, path_text, size_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ._output import Cell, CommandOutput

KINDS: Final = {
    "cub": "CUB's algorithms, compiled for dtypes and operators",
    "cubins": "kernels, compiled by NVRTC",
    "cutlass": "CUTLASS's products, compiled for dtypes, tiles and epilogues",
    "cutlass-tuned": "the fastest of them for sizes",
    "cutensor-algorithms": "the fastest of cuTENSOR's algorithms for a plan",
    "cutensor-kernels": "kernels that cuTENSOR has compiled for plans",
    "dnn-plans": "cuDNN's plans",
    "engines": "models of engines, optimized",
    "pch": "headers, precompiled by NVRTC",
}
"""Use of each kind of file that this package keeps."""

_BY_THE_VENDOR: Final = "pch"
"""Kind of files that a library writes by itself: in folders, without our hashes."""

_FOREIGN: Final = (
    ("cuda", "what CUDA's driver has compiled", "CUDA_CACHE_PATH", "~/.nv/ComputeCache"),
    ("cupy", "CuPy's kernels", "CUPY_CACHE_DIR", "~/.cupy/kernel_cache"),
    ("triton", "Triton's kernels", "TRITON_CACHE_DIR", "~/.triton/cache"),
)
"""Caches of other packages: kind, use, the variable with their folder, and the default."""

_OURS: Final = re.compile(r"[0-9a-f]{64}|\..+")
"""Names of files in a cache, and of those that are not written to their end."""


def run(args: argparse.Namespace, out: CommandOutput) -> int:
    """List, verify or clear.

    Returns:
        ``WRONG`` if something is damaged, or could not be removed.
    """
    if args.action != "clear" and (args.damaged or args.dry_run):
        raise Refusal("--damaged and --dry-run are for `cache clear`", ExitCode.USAGE)
    folder = base_folder(os.environ)
    wanted = _wanted(folder, args.kinds)
    parts: list[KindPart] = []
    trouble = False
    with out.progress("reading", sum(1 for kind in wanted for _ in _files(kind))) as advance:
        read_before = 0

        def count() -> None:
            nonlocal read_before
            read_before += 1
            advance(read_before)

        for kind in wanted:
            part, failed = _done(kind, args, count)
            trouble |= failed
            parts.append(part)
    if not args.kinds and args.action == "list":
        parts += _foreign(os.environ)
    document = CacheDocument(
        action=args.action,
        folder=None if folder is None else path_text(folder),
        kinds=parts,
        dry_run=args.dry_run,
        ok=not trouble,
    )
    _show(document, out)
    out.document(document)
    return ExitCode.OK if document.ok else ExitCode.WRONG


class _FileKind:
    """A kind of file that this package keeps, and its folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.problem: str | None = None
        try:
            if not is_safe(folder):
                self.problem = "not used: it is another user's, or others may write there"
        except FileNotFoundError:
            pass
        except OSError as error:
            self.problem = f"not used: {error.strerror}"


def _wanted(base: Path | None, names: Sequence[str]) -> list[_FileKind]:
    there = set(KINDS)
    if base is not None and not base.is_symlink():
        with suppress(OSError):  # empty or unreadable: the kinds report it
            there |= {
                path.name for path in base.iterdir() if path.is_dir() and not path.is_symlink()
            }
    for name in names:
        if name not in there:
            raise Refusal(
                f"nothing of kind {name!r} is kept, but {', '.join(sorted(there))}", ExitCode.USAGE
            )
    if base is None:
        return []
    return [_FileKind(name, base / name) for name in sorted(names or there)]


def _files(kind: _FileKind) -> Iterator[tuple[Path, int]]:
    """Yield the files of a kind, with their sizes; skip files that are not part of a cache."""
    if kind.name == _BY_THE_VENDOR and kind.problem is None:
        for where, _, names in os.walk(kind.folder):
            for path in (Path(where, name) for name in sorted(names)):
                with suppress(OSError):
                    yield path, path.lstat().st_size
        return
    try:
        entries = sorted(os.scandir(kind.folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError:  # a host makes room
            continue
        if stat.S_ISREG(about.st_mode) and _OURS.fullmatch(entry.name):
            yield Path(entry.path), about.st_size


def _done(
    kind: _FileKind, args: argparse.Namespace, count: Callable[[], None]
) -> tuple[KindPart, bool]:
    """Carry out the action on one kind; return the result and whether a problem remains."""
    look = args.action == "verify" or args.damaged
    files = nbytes = damaged = removed = 0
    failed = False
    known = kind.name != _BY_THE_VENDOR  # files of others cannot be verified
    for path, size in _files(kind):
        files, nbytes = files + 1, nbytes + size
        whole = not (look and known) or _is_whole(path)
        damaged += not whole
        if args.action == "clear" and not (args.damaged and whole):
            try:
                if not args.dry_run:
                    path.unlink(missing_ok=True)
                    if not known:
                        with suppress(OSError):  # there are more in it
                            path.parent.rmdir()
                removed += 1
            except OSError as error:
                failed, kind.problem = True, f"cannot be removed: {error.strerror}"
        count()
    part = KindPart(
        kind=kind.name,
        use=KINDS.get(kind.name, "of another release"),
        folder=path_text(kind.folder),
        ours=True,
        files=files,
        nbytes=nbytes,
        damaged=damaged if look else None,
        removed=removed,
        problem=kind.problem,
    )
    return part, failed or (args.action == "verify" and damaged > 0)


def _is_whole(path: Path) -> bool:
    """Return True if the content of a file matches its hash; files in writing count as whole."""
    try:
        return path.name.startswith(".") or is_whole(path)
    except FileNotFoundError:
        return True  # a host has made room
    except OSError:
        return False


def _foreign(environ: Mapping[str, str]) -> list[KindPart]:
    parts = []
    for kind, use, variable, default in _FOREIGN:
        folder = Path(environ.get(variable) or os.path.expanduser(default))  # noqa: PTH111 (without a home, as it is)
        files = nbytes = 0
        for where, _, names in os.walk(folder):
            for name in names:
                try:
                    nbytes += os.lstat(os.path.join(where, name)).st_size  # noqa: PTH118
                    files += 1
                except OSError:
                    continue
        if files:
            parts.append(
                KindPart(
                    kind=kind,
                    use=use,
                    folder=path_text(folder),
                    ours=False,
                    files=files,
                    nbytes=nbytes,
                )
            )
    return parts


def _show(document: CacheDocument, out: CommandOutput) -> None:
    if document.folder is None:
        out.line("nothing is kept: ATOMR_CACHE_DIR is empty, or there is no home", "note")
    else:
        out.line(f"kept in {document.folder}; ATOMR_CACHE_DIR changes that")
    verb = {"list": "note", "verify": "damaged", "clear": "removed"}[document.action]
    rows: list[tuple[Cell, ...]] = []
    for kind in document.kinds:
        said: Cell = {"list": None, "verify": kind.damaged, "clear": kind.removed}[document.action]
        if kind.problem is not None:
            said = Toned(kind.problem, "bad")
        elif not kind.ours:
            said = "not ours: never cleared"
        rows.append((kind.kind, kind.files, size_of(kind.nbytes), said, kind.use))
    out.line()
    out.table("Kinds", ("kind", "files", "size", verb, "for"), rows)
    if document.dry_run:
        out.line("nothing was removed (--dry-run)", "note")
    if document.action == "verify":
        damaged = sum(kind.damaged or 0 for kind in document.kinds)
        if damaged:
            out.line("`atomr-accel cache clear --damaged` removes what is damaged", "warning")
        else:
            out.line("all of it is whole", "good")
