"""Runners of ``atomr-accel`` for tests: in this process, or in a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from atomr_accel.cli._documents import Document, DriverPart, GpuPart, decoded
from atomr_accel.cli._main import main
from atomr_accel.cli._vendor import VendorAnswer

from ..harness import ROOT

NO_DRIVER = VendorAnswer(DriverPart(version=None, cuda=None, problem="no NVIDIA driver"), [], {})


def with_gpus(
    *modes: str, version: str = "580.65.06", cuda: str = "13.0", mig: bool = False
) -> VendorAnswer:
    """A machine of GPUs in some compute modes."""
    gpus = [
        GpuPart(
            index=index,
            name="A GPU",
            memory=1 << 30,
            compute_capability="9.0",
            compute_mode=mode,
            mig=mig,
        )
        for index, mode in enumerate(modes)
    ]
    return VendorAnswer(DriverPart(version=version, cuda=cuda, problem=None), gpus, {})


@dataclass
class Done:
    """Exit status and output of a command."""

    code: int
    out: str
    err: str


class Commands:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> Done:
        """Run one, as text."""
        self._capsys.readouterr()
        code = main([str(word) for word in words])
        said = self._capsys.readouterr()
        return Done(code, said.out, said.err)

    def document(self, *words: object, code: int = 0) -> Any:
        """Run one with ``--json``: its document, which is all that it prints, by its schema."""
        command, *others = words
        done = self(command, "--json", *others)
        assert done.code == code, done
        document: Document = decoded(str(command), done.out)
        return document


def in_a_process(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a process of its own."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    command = [sys.executable, "-m", "atomr_accel", *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, check=False, cwd=ROOT, env=environ, timeout=60, **streams)
