"""Programs with an open dashboard: one file for each, which only its user can read.

The files are in the user's runtime directory, which is emptied at a reboot. A program that was
killed leaves its file behind. Its file is recognised as stale because no process has its id, or
because that process started at another time.
"""

from __future__ import annotations

import os
import stat
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import platformdirs

if TYPE_CHECKING:
    from collections.abc import Iterator

_LARGEST: Final = 1 << 16
"""Bytes of a file that are read at most."""


class RunningDashboard(msgspec.Struct, frozen=True):
    """A dashboard that a program of this user has open.

    Attributes:
        pid: the program's process id.
        started: the start of that process in clock ticks since the machine started (``starttime``
            of proc(5)), because a process id may be used again.
        system: the name of the system of actors.
        command: the program's command line, cut if it is long.
        url: the address of the dashboard, without the token.
        token: the token for requests. Send it as ``Authorization: Bearer TOKEN``, or as the query
            ``token``.
    """

    pid: int
    started: int
    system: str
    command: str
    url: str
    token: str


def folder() -> Path:
    """Return the folder of the files, which is made if necessary and belongs to this user alone."""
    with warnings.catch_warnings():  # without XDG_RUNTIME_DIR another folder is used
        warnings.simplefilter("ignore")
        path = platformdirs.user_runtime_path("atomr-accel") / "dashboards"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)  # the mode of `parents` is whatever the umask leaves
    for place in (path.parent, path):
        status = place.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{place} must be a directory of this user (uid {os.geteuid()})")
        if status.st_mode & 0o022:
            raise PermissionError(f"{place} must not be writable by others: chmod 700 {place}")
    return path


@contextmanager
def announced(dashboard: RunningDashboard) -> Iterator[Path]:
    """Let `running` find a dashboard for the length of the block.

    Raises:
        OSError: its file cannot be written.
    """
    path = folder() / f"{dashboard.pid}-{dashboard.url.rpartition(':')[2].rstrip('/')}.json"
    draft = path.with_suffix(".new")
    for old in (draft, path):  # of a process of the same number that was killed
        old.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
        file.write(msgspec.json.encode(dashboard))
    draft.rename(path)  # readers see all of it or nothing
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def running() -> list[RunningDashboard]:
    """Return the dashboards of this user's programs on this machine, oldest program first.

    Files of programs that ended without removing theirs are removed.

    Raises:
        PermissionError: the directory of the files is not safe to read.
    """
    found = []
    for path in folder().glob("*.json"):
        with suppress(OSError):  # it has just ended
            dashboard = _read(path)
            if dashboard is None or started_at(dashboard.pid) != dashboard.started:
                path.unlink()
            else:
                found.append(dashboard)
    return sorted(found, key=lambda dashboard: (dashboard.started, dashboard.pid, dashboard.url))


def _read(path: Path) -> RunningDashboard | None:
    """Read a file; return None if this package did not write it for this user."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            return None
        content = file.read(_LARGEST)
    try:
        return msgspec.json.decode(content, type=RunningDashboard)
    except msgspec.DecodeError:
        return None


def started_at(pid: int) -> int | None:
    """When a process was started, in clock ticks since the machine was; None without one."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may have spaces and parentheses in it. See proc(5).
    return int(line.rpartition(")")[2].split()[19])
