"""Processes of this machine, of which the kernel says for certain that they have ended.

A node that was killed keeps its leases until they expire. Other nodes of the same machine do not
wait for that: nothing acts under those leases after the process has ended.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import trio


def boot_id() -> str:
    """Return what tells this start of the machine from all others; "" if that is unknown."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


@lru_cache(maxsize=1)
def _machine(pid: int) -> str:
    """Return the name of a machine on which processes know each other by number and start.

    Numbers are those of a namespace of processes, and times those of one of clocks. It is "" where
    /proc shows other ones, or the kernel has no descriptors of processes.
    """
    try:
        if sys.platform != "linux" or not (boot := boot_id()):
            return ""
        if Path("/proc/self").readlink().name != str(pid):
            return ""
        os.close(os.pidfd_open(pid))
        spaces = Path("/proc/self/ns")
        return f"{boot}.{(spaces / 'pid').readlink()}.{(spaces / 'time').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process has started, in ticks of the machine's clock."""
    # The name of the program comes before, in brackets, and may have blanks and brackets.
    words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return words[19].decode("ascii")


def own_process() -> str:
    """Return this process's identity for `process_ended`; "" if it has none."""
    pid = os.getpid()
    with suppress(OSError, IndexError):
        if machine := _machine(pid):
            return f"{machine}/{pid}/{_started(pid)}"
    return ""


def is_neighbour(process: str) -> bool:
    """Return whether a process is another one of this machine."""
    machine, _, rest = process.partition("/")
    pid = rest.partition("/")[0]
    own = os.getpid()
    return bool(machine) and pid.isdigit() and int(pid) != own and machine == _machine(own)


async def process_ended(process: str) -> None:
    """Wait until a neighbour has ended: all its threads, for certain.

    It waits for ever if the kernel does not say.

    Args:
        process: what ``own_process`` has returned there.
    """
    _, pid, started = process.split("/")
    if await _told(int(pid), started):
        return
    await trio.sleep_forever()


async def _told(pid: int, started: str) -> bool:
    """Wait until a process has ended, and return True; or False if the kernel does not say."""
    await trio.lowlevel.checkpoint()
    if sys.platform != "linux":
        return False
    else:  # noqa: RET505
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        try:
            # The descriptor is of the process that has the number now, perhaps another one.
            if _started(pid) == started:
                await trio.lowlevel.wait_readable(descriptor)
            return True
        except (OSError, IndexError):  # its owner shows it to nobody
            return False
        finally:
            os.close(descriptor)
