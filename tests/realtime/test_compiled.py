"""Kernels of simulations, compiled for GPUs as a device compiles them."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

from atomr_accel.executors.compiler import NvrtcProgram, toolkit_flags
from atomr_accel.realtime import KernelSource, wire

SOURCES = {
    f"{module.name}.{name}": value
    for module in pkgutil.iter_modules(wire.__path__)
    for name, value in vars(importlib.import_module(f"{wire.__name__}.{module.name}")).items()
    if isinstance(value, KernelSource)
}


@pytest.mark.headers
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
@pytest.mark.parametrize("name", SOURCES)
def test_nvrtc_compiles_every_kernel(name: str, capability: tuple[int, int]) -> None:
    given = SOURCES[name]
    text = "".join((given.source, *given.headers.values()))
    assert {*given.twins} <= {*re.findall(r'extern "C" __global__ void (\w+)', text)}
    with NvrtcProgram(given.source, "kernel.cu", given.headers) as program:
        flag = f"--gpu-architecture={program.architecture(capability)}"
        log = program.compile(name, (flag, *toolkit_flags()))
        assert "warning" not in log
        assert program.output("CUBIN")[:4] == b"\x7fELF"
