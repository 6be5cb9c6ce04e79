"""``doctor``: each limit, on machines that are folders."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from atomr_accel.cli import _doctor, _machine
from atomr_accel.cli._documents import DriverPart, FindingPart
from atomr_accel.cli._machine import Machine
from atomr_accel.cli._vendor import VendorAnswer

from .commands import NO_DRIVER, Commands, with_gpus

NAMES = ("RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_MEMLOCK", "RLIMIT_AS")
NO_LIMITS = dict.fromkeys(NAMES, (_machine.UNLIMITED, _machine.UNLIMITED))
ITS_OWN = {"processors", "system calls"}
"""Checks whose results depend on the machine that runs the tests."""


def machine(root: Path, files: dict[str, str] | None = None, **changes: Any) -> Machine:
    """A machine without limits, with some files, and with changes."""
    for path, text in (files or {}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    given = {"told": NO_DRIVER, "environ": {"ATOMR_CACHE_DIR": str(root)}, "limits": NO_LIMITS}
    return Machine(root=root, **{**given, **changes})


def found(machine: Machine, name: str) -> FindingPart | None:
    return next((f for f in _doctor.examined(machine) if f.name == name), None)


def test_a_machine_without_limits_has_no_problem(tmp_path: Path) -> None:
    findings = _doctor.examined(machine(tmp_path))
    levels = {f.level for f in findings if f.name not in ITS_OWN}
    assert levels <= {"ok", "note"}


def test_doctor_gives_advice_for_failed_checks_only(tmp_path: Path) -> None:
    few = {**NO_LIMITS, "RLIMIT_NOFILE": (256, 4096)}
    for finding in _doctor.examined(machine(tmp_path, limits=few)):
        assert (finding.level == "ok") == (not finding.advice), finding


@pytest.mark.parametrize(
    ("limit", "name", "soft", "level"),
    [
        ("RLIMIT_NOFILE", "file descriptors", 1024, "ok"),
        ("RLIMIT_NOFILE", "file descriptors", 512, "warning"),
        ("RLIMIT_NOFILE", "file descriptors", 64, "problem"),
        ("RLIMIT_NPROC", "processes and threads", 100, "warning"),
        ("RLIMIT_NPROC", "processes and threads", 4096, "ok"),
        ("RLIMIT_MEMLOCK", "locked memory", 1 << 16, "note"),
        ("RLIMIT_AS", "address space", 1 << 40, "problem"),
    ],
)
def test_limits_of_the_process(
    limit: str, name: str, soft: int, level: str, tmp_path: Path
) -> None:
    limits = {**NO_LIMITS, limit: (soft, soft)}
    finding = found(machine(tmp_path, told=with_gpus("default"), limits=limits), name)
    assert finding is not None
    assert finding.level == level


GROUP = {"proc/self/cgroup": "0::/a/b\n"}


@pytest.mark.parametrize(
    ("files", "name", "level"),
    [
        ({**GROUP, "sys/fs/cgroup/a/pids.max": "64\n"}, "processes and threads", "warning"),
        ({**GROUP, "sys/fs/cgroup/a/b/pids.max": "max\n"}, "processes and threads", "ok"),
        (
            {
                **GROUP,
                "sys/fs/cgroup/a/memory.max": f"{1 << 30}",
                "sys/fs/cgroup/a/memory.current": f"{1 << 29}",
            },
            "memory of the control group",
            "warning",
        ),
        (
            {**GROUP, "sys/fs/cgroup/a/b/memory.max": f"{1 << 34}"},
            "memory of the control group",
            "ok",
        ),
        (
            {
                "sys/fs/cgroup/memory.max": f"{1 << 34}",
                "sys/fs/cgroup/memory.events": "low 0\noom_kill 3\n",
            },
            "memory of the control group",
            "warning",
        ),
        (
            {"sys/fs/cgroup/memory/memory.limit_in_bytes": "1"},
            "memory of the control group",
            "note",
        ),
        ({"proc/sys/vm/overcommit_memory": "2\n"}, "overcommit", "warning"),
        ({"proc/sys/vm/overcommit_memory": "0\n"}, "overcommit", None),
        ({"proc/self/status": "Name:\tx\nTracerPid:\t7\n"}, "tracing", "warning"),
        ({"proc/sys/kernel/yama/ptrace_scope": "3"}, "tracing", "note"),
        ({"proc/sys/kernel/yama/ptrace_scope": "1"}, "tracing", "ok"),
        ({"tmp/nvidia-mps/control": ""}, "MPS", "warning"),
        ({"dev/nvidiactl": "", "dev/nvidia0": ""}, "device files", "problem"),
        ({"dev/nvidiactl": "", "dev/nvidia-uvm": ""}, "device files", "ok"),
        ({"dev/nvidiactl": "", "dev/nvidia-uvm": ""}, "driver", "problem"),
        ({}, "driver", "note"),
        ({}, "device files", None),
    ],
)
def test_files_of_the_system(
    files: dict[str, str], name: str, level: str | None, tmp_path: Path
) -> None:
    finding = found(machine(tmp_path, files), name)
    assert (None if finding is None else finding.level) == level


@pytest.mark.parametrize(
    ("told", "name", "level"),
    [
        (with_gpus("default"), "driver", "ok"),
        (with_gpus("default", version="470.1", cuda="11.4"), "driver", "problem"),
        (with_gpus("default", version="525.60.13", cuda="12.0"), "driver", "ok"),
        (
            VendorAnswer(
                DriverPart(version="580.1", cuda="13.0", problem="cuInit returned 999"), [], {}
            ),
            "driver",
            "problem",
        ),
        (with_gpus("default", "default"), "compute mode", "ok"),
        (with_gpus("default", "exclusive-process"), "compute mode", "warning"),
        (with_gpus("prohibited"), "compute mode", "problem"),
        (with_gpus("default", mig=True), "MIG", "note"),
        (with_gpus("default"), "MIG", None),
    ],
)
def test_gpus(
    told: VendorAnswer,
    name: str,
    level: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_doctor, "version_of", lambda _: "12.9.1")
    finding = found(machine(tmp_path, told=told), name)
    assert (None if finding is None else finding.level) == level


def test_packages_of_a_newer_cuda_than_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_doctor, "version_of", lambda _: "13.0.1")
    told = with_gpus("default", version="570.10", cuda="12.8")
    finding = found(machine(tmp_path, told=told), "driver")
    assert finding is not None
    assert finding.level == "problem"
    assert "580.65" in finding.advice


@pytest.mark.parametrize(
    ("environ", "level"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "warning"),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, "warning"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "ok"),
    ],
)
def test_the_environment(environ: dict[str, str], level: str | None, tmp_path: Path) -> None:
    finding = found(machine(tmp_path, environ=environ), "environment")
    assert (None if finding is None else finding.level) == level


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """The check works for root too, and without writing."""
    finding = found(
        machine(tmp_path, environ={"ATOMR_CACHE_DIR": "/proc/no/where"}), "cache on disk"
    )
    assert finding is not None
    assert finding.level == "warning"
    assert "/proc cannot be written" in finding.found
    good = found(
        machine(tmp_path, environ={"ATOMR_CACHE_DIR": str(tmp_path / "a")}), "cache on disk"
    )
    assert good is not None
    assert good.level == "ok"
    off = found(machine(tmp_path, environ={"ATOMR_CACHE_DIR": ""}), "cache on disk")
    assert off is not None
    assert off.level == "note"


def test_system_calls_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError("by a filter")

    monkeypatch.setattr(os, "pidfd_open", refused)
    warned = found(machine(tmp_path), "system calls")
    assert warned is not None
    assert (warned.level, warned.found) == ("warning", "refused: pidfd_open")
    monkeypatch.setattr(os, "memfd_create", refused)
    refusal = found(machine(tmp_path), "system calls")
    assert refusal is not None
    assert refusal.level == "problem"


def test_little_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "space", lambda *_: (64 << 20, 64 << 20))
    little = found(machine(tmp_path), "shared memory")
    assert little is not None
    assert little.level == "note"
    assert "--shm-size" in little.advice


def test_this_machine(command: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor, "ask_vendor", lambda: NO_DRIVER)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        document = command.document("doctor")
        warned = command("doctor", "--strict")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert document.ok
    assert warned.code == 1
    assert "warning: file descriptors: " in warned.out
