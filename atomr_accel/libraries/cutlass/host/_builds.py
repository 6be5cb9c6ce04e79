"""Builds: kernels of CUTLASS, compiled by NVRTC; kept on disk. Needs no GPU."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ...._errors import LibraryMissing
from ...._install import cuda_command
from ....executors.compiler import NOWHERE, NvrtcProgram, load_nvrtc, nvrtc_version
from ....executors.disk_cache import DiskCache
from ...nvrtc.host.includes import fingerprint, vendor_headers
from ..wire._spec import decode
from ._images import facts_of
from ._source import source_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._images import Facts

FILES: Final = DiskCache("cutlass")

_FLAGS: Final = (
    "--gpu-architecture=sm_90a",
    "--std=c++17",
    # What CUTLASS computes at compile time it does not declare for the device.
    "--device-as-default-execution-space",
    # A call that never returns has the tensor cores wait for each other.
    "--define-macro=NDEBUG",
    # Numbers to divide by are prepared with 128 bits.
    "--device-int128",
    "--define-macro=CUTLASS_UINT128_NATIVE",
    "--diag-suppress=177",
)


class CutlassBuild(NamedTuple):
    """A kernel, and the second kernel that fills its parameters.

    Attributes:
        image: a cubin.
        facts: facts that the image holds about itself.
        origin: ``"disk"`` or ``"built"``.
    """

    image: bytes
    facts: Facts
    origin: str


def find_build(encoded: bytes, files: DiskCache = FILES) -> CutlassBuild:
    """The build of a spec, from disk if it is there.

    Raises:
        CompileError: CUTLASS does not have this.
        LibraryMissing: NVRTC or headers of CUTLASS are not installed.
    """
    load_nvrtc()
    folders = headers()
    source = source_of(decode(encoded))
    key = msgspec.msgpack.encode((source, _FLAGS, nvrtc_version(), fingerprint([source], ())))
    kept = files.get(key)
    if kept is not None:
        image = zlib.decompress(kept)
        return CutlassBuild(image, facts_of(image), "disk")
    with NvrtcProgram(source, f"{NOWHERE}cutlass.cu") as program:
        paths = [f"--include-path={folder}" for folder in folders]
        program.compile("the kernel of CUTLASS", (*_FLAGS, *paths))
        image = program.output("CUBIN")
    files.put(key, zlib.compress(image, 1))  # most of it are names
    return CutlassBuild(image, facts_of(image), "built")


def headers() -> Sequence[str]:
    """Folders of headers that a build includes."""
    folders = vendor_headers()
    for file, package in (
        ("cutlass/gemm/collective/collective_builder.hpp", "nvidia-cutlass"),
        ("cuda/std/type_traits", "nvidia-cuda-cccl-cu12, for CUDA 13 nvidia-cuda-cccl 13.0"),
        ("crt/mma.h", "nvidia-cuda-nvcc-cu12, for CUDA 13 nvidia-cuda-crt"),
    ):
        if not any(Path(folder, file).is_file() for folder in folders):
            raise LibraryMissing(
                f"{file}, which device.cutlass compiles, is not installed; it is in {package}: "
                f"{cuda_command('cutlass')}",
                library="cutlass",
            )
    return folders
