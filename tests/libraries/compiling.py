"""Checks that NVRTC takes the package's kernels, which the session ``headers`` runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from atomr_accel.executors.compiler import compile_cubin
from atomr_accel.executors.device_code import CudaSource


def check_compiles(
    source: str,
    *names: str,
    capability: tuple[int, int] = (9, 0),
    options: tuple[str, ...] = (),
    warned: bool = False,
) -> None:
    """Check that NVRTC makes a cubin of each kernel.

    Args:
        source: CUDA C++.
        names: name expressions of the kernels.
        capability: the compute capability.
        options: more options of NVRTC.
        warned: whether there may be warnings.
    """
    for name in names:
        image, lowered, log = compile_cubin(source, name, options, capability)
        assert image[:4] == b"\x7fELF"
        assert lowered
        assert warned or "warning" not in log, (name, log)


def check_all_compile(source: CudaSource, names: Iterable[str], *, warned: bool = False) -> None:
    """Check kernels in one program, because a program takes long to begin with."""
    uses = "\n".join(f"  at[{number}] = (void*){name};" for number, name in enumerate(names))
    text = f"{source.text}\n__global__ void every(void** at) {{\n{uses}\n}}\n"
    check_compiles(text, "every", warned=warned)


def check_instances_compile(source: CudaSource, members: Mapping[str, str], kernel: str) -> str:
    """Check instances of templates in one program, next to a kernel that is none.

    Args:
        source: the templates.
        members: the parameters of each instance, as ``compile_kernels`` takes them.
        kernel: the name of the other kernel.

    Returns:
        The mangled name of the other kernel.
    """
    lines = []
    for name, parameters in members.items():
        types = ", ".join(each.rpartition(" ")[0] for each in parameters.split(";"))
        if "<" in name:
            lines.append(f"template __global__ void {name}({types});")
    image, lowered, log = compile_cubin("\n".join([source.text, *lines]), kernel, (), (9, 0))
    assert image[:4] == b"\x7fELF"
    assert "error" not in log
    assert image.count(b".text.") >= len(lines)
    return lowered
