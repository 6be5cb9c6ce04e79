"""``atomr-accel doctor``: limits that may cause problems, each with its remedy."""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .._install import DISTRIBUTION, install_command, other_owners, separation
from ..executors.disk_cache import base_folder
from ..lanes.threads import openblas_threads, usable_cores
from ._documents import DoctorDocument, FindingPart, Level
from ._errors import ExitCode
from ._machine import UNLIMITED, Machine
from ._output import Tone, Toned, size_of
from ._packages import version_of
from ._vendor import ask_vendor

if TYPE_CHECKING:
    import argparse

    from ._output import CommandOutput

_TONES: Final[dict[Level, Tone]] = {
    "ok": "good",
    "note": "note",
    "warning": "warning",
    "problem": "bad",
}

_OLDEST_DRIVER: Final = {12: (525, 60), 13: (580, 65)}
"""The first driver for a major version of CUDA, on Linux, by the vendor's release notes."""

_FEW_DESCRIPTORS, _TOO_FEW_DESCRIPTORS = 1024, 128
"""With all lanes open a device has some twenty in the program and fifty in its host, and each slab
and export is one more."""

_PINNED_LIMIT: Final = 1 << 30
"""The default of ``open_device(pinned_limit=)``."""


def run(args: argparse.Namespace, out: CommandOutput) -> int:
    """Examine the machine, and print the findings.

    Returns:
        ``WRONG`` for a problem, or with ``--strict`` a warning; else ``OK``.
    """
    findings = examined(Machine(ask_vendor()))
    bad = {"problem", "warning"} if args.strict else {"problem"}
    document = DoctorDocument(findings=findings, ok=not any(f.level in bad for f in findings))
    out.table(
        "Limits",
        ("", "what", "found"),
        [(Toned(f.level, _TONES[f.level]), f.name, f.found) for f in findings],
    )
    for finding in findings:
        if finding.advice:
            out.line(f"{finding.level}: {finding.name}: {finding.advice}", _TONES[finding.level])
    out.document(document)
    return ExitCode.OK if document.ok else ExitCode.WRONG


def examined(machine: Machine) -> list[FindingPart]:
    """Return all findings about a machine."""
    findings = (examination(machine) for examination in EXAMINATIONS)
    return [finding for finding in findings if finding is not None]


def _finding(name: str, level: Level, found: str, advice: str = "") -> FindingPart:
    return FindingPart(name=name, level=level, found=found, advice=advice)


def _said(limit: int) -> str:
    return "unlimited" if limit == UNLIMITED else f"{limit:,}"


# --- limits of the process -----------------------------------------------------------------


def _descriptors(machine: Machine) -> FindingPart:
    soft, hard = machine.limit("RLIMIT_NOFILE")
    found = f"{_said(soft)}, may be raised to {_said(hard)}"
    if soft == UNLIMITED or soft >= _FEW_DESCRIPTORS:
        return _finding("file descriptors", "ok", found)
    level: Level = "warning" if soft >= _TOO_FEW_DESCRIPTORS else "problem"
    advice = "lanes, slabs and exports have one each; raise it: ulimit -n 65536"
    return _finding("file descriptors", level, found, advice)


def _processes(machine: Machine) -> FindingPart:
    soft, _ = machine.limit("RLIMIT_NPROC")
    groups = machine.cgroup("pids.max")
    least = min([limit for _, limit in groups], default=UNLIMITED)
    if soft != UNLIMITED and (least == UNLIMITED or soft < least):
        least = soft
    if least == UNLIMITED or least >= 512:
        return _finding("processes and threads", "ok", _said(least))
    advice = "each lane has a thread, each device a host; raise ulimit -u, or --pids-limit"
    return _finding("processes and threads", "warning", _said(least), advice)


def _locked(machine: Machine) -> FindingPart:
    soft, _ = machine.limit("RLIMIT_MEMLOCK")
    if soft == UNLIMITED:
        return _finding("locked memory", "ok", "unlimited")
    if not machine.told.gpus or soft >= _PINNED_LIMIT:
        return _finding("locked memory", "ok", size_of(soft))
    advice = (
        "some systems count page-locked transfers and device.pinned here; ulimit -l unlimited, or "
        "for a container --ulimit memlock=-1"
    )
    return _finding("locked memory", "note", size_of(soft), advice)


def _address_space(machine: Machine) -> FindingPart:
    soft, _ = machine.limit("RLIMIT_AS")
    if soft == UNLIMITED:
        return _finding("address space", "ok", "unlimited")
    advice = "a driver reserves more addresses than there is memory; ulimit -v unlimited"
    return _finding(
        "address space", "problem" if machine.told.gpus else "warning", size_of(soft), advice
    )


# --- memory --------------------------------------------------------------------------------


def _shared_memory(machine: Machine) -> FindingPart | None:
    space = machine.space("dev/shm")
    if space is None:
        advice = "PyTorch's loaders and NCCL want it; mount a tmpfs there"
        return _finding("shared memory", "note", "no /dev/shm", advice)
    size, free = space
    found = f"{size_of(free)} of {size_of(size)} free in /dev/shm"
    if free >= 256 << 20:
        return _finding("shared memory", "ok", found)
    # What this package shares is in files without a name, which no mount limits.
    advice = (
        "this package does not need it, but PyTorch's loaders and NCCL in device.run do; for a "
        "container: --shm-size=8g or --ipc=host"
    )
    return _finding("shared memory", "note", found, advice)


def _group_memory(machine: Machine) -> FindingPart:
    groups = machine.cgroup("memory.max")
    events = machine.text("sys/fs/cgroup/memory.events") or ""
    kills = next((int(e.split()[1]) for e in events.splitlines() if e.startswith("oom_kill ")), 0)
    if not groups and machine.exists("sys/fs/cgroup/memory/memory.limit_in_bytes"):
        advice = "those of version 1 are not looked at; see memory.limit_in_bytes yourself"
        return _finding("memory of the control group", "note", "of version 1", advice)
    if not groups:
        return _finding("memory of the control group", "ok", "not limited")
    group, limit = min(groups, key=lambda each: each[1])
    used = machine.number(f"sys/fs/cgroup/{group}/memory.current") or 0
    found = f"{size_of(used)} of {size_of(limit)} used"
    advice = (
        "hosts, staging memory and buffers of the CPU backend count; raise it (docker run "
        "--memory), or lower open_device(memory_limit=, pinned_limit=)"
    )
    if kills:
        found += f", {kills} processes were killed for it"
        return _finding("memory of the control group", "warning", found, advice)
    if limit - used < 1 << 30:
        return _finding("memory of the control group", "warning", found, advice)
    return _finding("memory of the control group", "ok", found)


def _overcommit(machine: Machine) -> FindingPart | None:
    if machine.number("proc/sys/vm/overcommit_memory") != 2:
        return None
    advice = "slabs and drivers reserve more than they use; sysctl vm.overcommit_memory=0"
    return _finding("overcommit", "warning", "refused (vm.overcommit_memory=2)", advice)


def _cache_folder(machine: Machine) -> FindingPart:
    folder = base_folder(machine.environ)
    advice = (
        "kernels and plans are made again in every host; set ATOMR_CACHE_DIR to a folder of yours"
    )
    if folder is None:
        return _finding("cache on disk", "note", "off, or there is no home", advice)
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=nearest).close()  # who is root has access to what takes nothing
    except OSError as error:
        found = f"{nearest} cannot be written: {error.strerror}"
        return _finding("cache on disk", "warning", found, advice)
    return _finding("cache on disk", "ok", str(folder))


# --- GPUs ----------------------------------------------------------------------------------


def _driver(machine: Machine) -> FindingPart:
    driver = machine.told.driver
    if driver.cuda is None:
        if machine.device_files():
            advice = (
                "the kernel's half is there and libcuda.so.1 is not; in a container, add --gpus all"
            )
            return _finding("driver", "problem", driver.problem or "not there", advice)
        return _finding("driver", "note", "no NVIDIA driver", "devices are CPUs then")
    found = f"{driver.version or 'unknown'}, up to CUDA {driver.cuda}"
    if driver.problem is not None:
        advice = "look at dmesg for NVRM; reload the driver, or restart the machine"
        return _finding("driver", "problem", f"{found}: {driver.problem}", advice)
    major = int((version_of("cuda-bindings") or "12").partition(".")[0])
    oldest = _OLDEST_DRIVER.get(major)
    has = tuple(int(part) for part in (driver.version or "").split(".")[:2] if part.isdigit())
    if oldest is not None and has and has < oldest:
        wants = ".".join(map(str, oldest))
        advice = f"the packages are for CUDA {major}, which wants {wants} or newer; update it"
        return _finding("driver", "problem", found, advice)
    if int(driver.cuda.partition(".")[0]) < major:
        advice = (
            f"the packages are for CUDA {major}; update the driver, or: {install_command('cuda12')}"
        )
        return _finding("driver", "problem", found, advice)
    return _finding("driver", "ok", found)


def _device_files(machine: Machine) -> FindingPart | None:
    files = machine.device_files()
    if not files:
        return None
    closed = [path.name for path in files if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        advice = "join the group that they belong to (often video or render), or mend their modes"
        return _finding(
            "device files", "problem", f"not for this user: {', '.join(closed)}", advice
        )
    if not machine.exists("dev/nvidia-uvm"):
        advice = "run nvidia-modprobe -u -c=0 outside the container, and pass /dev/nvidia-uvm"
        return _finding("device files", "problem", "/dev/nvidia-uvm is not there", advice)
    return _finding("device files", "ok", ", ".join(path.name for path in files))


def _compute_mode(machine: Machine) -> FindingPart | None:
    if not machine.told.gpus:
        return None
    modes = {gpu.index: gpu.compute_mode for gpu in machine.told.gpus}
    found = ", ".join(f"{index}: {mode}" for index, mode in modes.items())
    if "prohibited" in modes.values():
        advice = "no program can use these GPUs; nvidia-smi --compute-mode=DEFAULT"
        return _finding("compute mode", "problem", found, advice)
    if "exclusive-process" in modes.values():
        advice = (
            "one process at a time: no hot standby, and a rebuild waits for the end of the old "
            "host; nvidia-smi --compute-mode=DEFAULT, or open_device(standby=Standby(warm=1))"
        )
        return _finding("compute mode", "warning", found, advice)
    return _finding("compute mode", "ok", found)


def _mig(machine: Machine) -> FindingPart | None:
    divided = [gpu.index for gpu in machine.told.gpus if gpu.mig]
    if not divided:
        return None
    advice = (
        "a process sees one instance only; name it by CUDA_VISIBLE_DEVICES=MIG-...; see "
        "nvidia-smi -L"
    )
    return _finding("MIG", "note", f"on: {', '.join(map(str, divided))}", advice)


def _mps(machine: Machine) -> FindingPart | None:
    folder = machine.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps").lstrip("/")  # noqa: S108
    if not machine.exists(f"{folder}/control"):
        return None
    advice = (
        "a fault ends all its clients, other programs' and standbys included; stop it with "
        "echo quit | nvidia-cuda-mps-control where programs must survive each other"
    )
    return _finding("MPS", "warning", f"a daemon has /{folder}", advice)


def _environment(machine: Machine) -> FindingPart | None:
    environ = machine.environ
    if environ.get("CUDA_LAUNCH_BLOCKING") not in {None, "", "0"}:
        advice = "every launch waits for its end; unset it"
        return _finding("environment", "warning", "CUDA_LAUNCH_BLOCKING is set", advice)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        level: Level = "ok" if visible.strip() not in {"", "-1"} else "warning"
        advice = "" if level == "ok" else "it hides all GPUs; unset it"
        return _finding("environment", level, f"CUDA_VISIBLE_DEVICES={visible}", advice)
    return None


# --- the system ----------------------------------------------------------------------------


def _system_calls(machine: Machine) -> FindingPart:
    """Check the system calls for hosts and slabs; an old kernel or a filter may refuse them."""
    del machine
    refused = [name for name, call in _CALLS.items() if not _works(call)]
    if not refused:
        return _finding("system calls", "ok", ", ".join(_CALLS))
    advice = "Linux 5.3 has them; if a filter refuses them, use one that does not (seccomp)"
    level: Level = "problem" if "memfd_create" in refused else "warning"
    return _finding("system calls", level, f"refused: {', '.join(refused)}", advice)


_CALLS: Final[dict[str, Callable[[], int]]] = {
    "memfd_create": lambda: os.memfd_create("doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING),
    "pidfd_open": lambda: os.pidfd_open(os.getpid()),
}


def _works(call: Callable[[], int]) -> bool:
    try:
        os.close(call())
    except (OSError, AttributeError):
        return False
    return True


def _tracing(machine: Machine) -> FindingPart | None:
    """Check for tracing, which this package does not need, but other ways to share memory may."""
    scope = machine.number("proc/sys/kernel/yama/ptrace_scope")
    if machine.status("TracerPid") not in {None, "0"}:
        advice = "a traced process is slow to start hosts, and its deadlines pass meanwhile"
        return _finding("tracing", "warning", "this process is traced", advice)
    if scope is None or scope == 0:
        return None
    advice = (
        "buffers are shared by descriptors, which this does not hinder; debuggers that attach, and "
        "what takes descriptors of other processes (pidfd_getfd), want kernel.yama.ptrace_scope=0"
    )
    return _finding(
        "tracing",
        "note" if scope > 1 else "ok",
        f"ptrace_scope is {scope}",
        advice if scope > 1 else "",
    )


def _owners(machine: Machine) -> FindingPart:
    """Look for other distributions that have files in our folder, among all that are installed."""
    del machine
    owners = other_owners(importlib.metadata.distributions())
    if not owners:
        return _finding("import name", "ok", f"of {DISTRIBUTION} alone")
    return _finding(
        "import name", "problem", f"shared with {', '.join(owners)}", separation(owners)
    )


def _cores(machine: Machine) -> FindingPart:
    groups = machine.root / "sys/fs/cgroup"
    count = usable_cores(groups)
    threads, variable = openblas_threads(machine.environ, groups)
    said = f"{count}; OpenBLAS has {threads} thread{'s' * (threads > 1)} in hosts"
    said += f", by {variable}" if variable else ""
    if count > 1:
        return _finding("processors", "ok", said)
    advice = "program and host take turns on one; give it two"
    return _finding("processors", "warning", said, advice)


EXAMINATIONS: Final[tuple[Callable[[Machine], FindingPart | None], ...]] = (
    *(_driver, _device_files, _compute_mode, _mig, _mps, _environment),
    *(_descriptors, _processes, _locked, _address_space, _cores),
    *(_shared_memory, _group_memory, _overcommit, _cache_folder),
    *(_system_calls, _tracing, _owners),
)
"""Examinations, in their order; each returns None if it does not apply."""
