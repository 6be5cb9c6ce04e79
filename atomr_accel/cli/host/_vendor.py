"""Reports of a machine's drivers and of the vendor's libraries, read by ctypes.

This module creates no context, so it costs no device memory and does not disturb other programs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ._answering import answer

_COMPUTE_MODES: Final = {0: "default", 2: "prohibited", 3: "exclusive-process"}
_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _COMPUTE_MODE = 75, 76, 20
"""``CU_DEVICE_ATTRIBUTE_`` of these names."""
_DRIVER_FILE: Final = Path("/proc/driver/nvidia/version")


def main() -> None:
    """Answer with ``{"driver", "gpus", "libraries"}``."""
    answer(lambda _question: {**_driver(), "libraries": _libraries()})


# --- the driver ----------------------------------------------------------------------------


def _driver() -> dict[str, Any]:
    version, mig = _from_nvml()
    told: dict[str, Any] = {"version": version or _from_proc(), "cuda": None, "problem": None}
    answer: dict[str, Any] = {"driver": told, "gpus": []}
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        told["problem"] = f"no NVIDIA driver: {error}"
        return answer
    number = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        told["cuda"] = f"{number.value // 1000}.{number.value % 1000 // 10}"
    if status := cuda.cuInit(0):
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(status, ctypes.byref(name))
        told["problem"] = f"cuInit returned {(name.value or b'?').decode()} ({status})"
        return answer
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    answer["gpus"] = [_gpu(cuda, index, mig) for index in range(count.value)]
    return answer


def _gpu(cuda: ctypes.CDLL, index: int, mig: dict[str, bool]) -> dict[str, Any]:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)

    def attribute(which: int) -> int:
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), which, device)
        return value.value

    identity = (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGetUuid_v2(identity, device) if hasattr(cuda, "cuDeviceGetUuid_v2") else None
    said = name.value.decode(errors="backslashreplace")
    return {
        "index": index,
        "name": said,
        "memory": memory.value,
        "compute_capability": f"{attribute(_CAPABILITY_MAJOR)}.{attribute(_CAPABILITY_MINOR)}",
        "compute_mode": _COMPUTE_MODES.get(attribute(_COMPUTE_MODE), "unknown"),
        # An instance has a name of its own, and an identity that no whole GPU has.
        "mig": True if " MIG " in said else mig.get(bytes(identity).hex()),
    }


def _from_nvml() -> tuple[str | None, dict[str, bool]]:
    """Return the driver's version, and the divided GPUs by their UUIDs without punctuation."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None, {}
    if nvml.nvmlInit_v2():
        return None, {}
    text = ctypes.create_string_buffer(96)
    version = None
    if nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0:
        version = text.value.decode()
    count, mig = ctypes.c_uint(), {}
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        handle, present, pending = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            continue
        if nvml.nvmlDeviceGetUUID(handle, text, len(text)):
            continue
        identity = text.value.decode().removeprefix("GPU-").replace("-", "")
        # A GPU that cannot be divided refuses the question.
        refused = nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(present), ctypes.byref(pending))
        mig[identity] = not refused and present.value == 1
    nvml.nvmlShutdown()
    return version, mig


def _from_proc() -> str | None:
    try:
        words = _DRIVER_FILE.read_text(encoding="utf-8").split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and "." in word), None)


# --- libraries -----------------------------------------------------------------------------


def _by_property(function: str) -> Callable[[ctypes.CDLL], str]:
    """Read the version from a function that returns major, minor and patch level separately."""

    def version(library: ctypes.CDLL) -> str:
        parts = []
        for which in range(3):
            value = ctypes.c_int()
            getattr(library, function)(which, ctypes.byref(value))
            parts.append(str(value.value))
        return ".".join(parts)

    return version


def _by_two(function: str) -> Callable[[ctypes.CDLL], str]:
    """Read the version from a function that returns major and minor."""

    def version(library: ctypes.CDLL) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        getattr(library, function)(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    return version


def _by_number(function: str) -> Callable[[ctypes.CDLL], str]:
    """Read the version from one number, with two digits each for minor and patch level."""

    def version(library: ctypes.CDLL) -> str:
        value = ctypes.c_int()
        number = getattr(library, function)(ctypes.byref(value)) or value.value
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    return version


VERSIONS: Final = {
    "cublas": _by_property("cublasGetProperty"),
    "cublasLt": _by_property("cublasLtGetProperty"),
    "cudnn": _by_property("cudnnGetProperty"),
    "cudss": _by_property("cudssGetProperty"),
    "cufft": _by_property("cufftGetProperty"),
    "curand": _by_property("curandGetProperty"),
    "cusolver": _by_property("cusolverGetProperty"),
    "cusparse": _by_property("cusparseGetProperty"),
    "cusparseLt": _by_property("cusparseLtGetProperty"),
    "cutensor": _by_number("cutensorGetVersion"),
    "nccl": _by_number("ncclGetVersion"),
    "nvrtc": _by_two("nvrtcVersion"),
    "nvJitLink": _by_two("nvJitLinkVersion"),
}
"""Functions that return the version of a library, by its name in cuda-pathfinder."""


def _libraries() -> dict[str, dict[str, str | None]]:
    return {name: _library(name) for name in VERSIONS}


def _library(name: str) -> dict[str, str | None]:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        path = load_nvidia_dynamic_lib(name).abs_path
        return {"version": VERSIONS[name](ctypes.CDLL(path)), "path": path, "problem": None}
    except Exception as error:  # noqa: BLE001 (told)
        lines = str(error).splitlines() or [type(error).__name__]
        return {"version": None, "path": None, "problem": lines[0]}
