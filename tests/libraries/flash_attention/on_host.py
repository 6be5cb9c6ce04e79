"""Our kernels in the place of NumPy: the CPU's executor runs them, compiled for the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from atomr_accel.libraries.flash_attention.host._cpu import CpuCall
from atomr_accel.libraries.flash_attention.host._launches import (
    LEAST_SHARED,
    AttentionLaunch,
    launches,
)
from atomr_accel.libraries.flash_attention.host._problem import POINTERS

from ..host_kernels import compile_bodies

_STANDING_IN: Final = {
    f"{name}.cuh": Path(__file__).with_name(f"{name}_on_host.h").read_text()
    for name in ("warps", "warpgroups")
}


def source_of(launch: AttentionLaunch) -> str:
    """A kernel's source without what only devices have."""
    on_host = {"conversions.cuh": "", "instructions.cuh": "", **_STANDING_IN}
    return launch.source.preprocess(on_host)


class HostKernels:
    """Compiled kernels by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._compiled: dict[str, Any] = {}
        self.ran: list[str] = []

    def run(self, launch: AttentionLaunch, pointers: dict[str, int]) -> None:
        name = launch.name
        if name not in self._compiled:
            body = (
                f"typedef Problem Arguments; static void kernel(const Problem& p) {{ {name}(p); }}"
            )
            folder = self._folder / str(len(self._compiled))
            folder.mkdir()
            (self._compiled[name],) = compile_bodies(source_of(launch), [body], "kernel", folder)
        arguments = launch.arguments
        for field, pointer in zip(POINTERS, launch.pointers(pointers), strict=True):
            setattr(arguments, field, pointer)
        self.ran.append(name)
        self._compiled[name](bytes(arguments), (launch.blocks, 1), launch.threads)


def replace_numpy(
    monkeypatch: pytest.MonkeyPatch, kernels: HostKernels, processors: int = 0
) -> None:
    """Have the CPU's executor run kernels: those for warpgroups if there are processors."""

    def run(call: Any) -> None:
        pointers = {
            name: call._context.bytes_at(place, 1).ctypes.data if place else 0
            for name, place in call._places.items()
        }
        given = [name for name, place in pointers.items() if place]
        for launch in launches(call._form, given, LEAST_SHARED, processors):
            kernels.run(launch, pointers)

    monkeypatch.setattr(CpuCall, "run", run)
