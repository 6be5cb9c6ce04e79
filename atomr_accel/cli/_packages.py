"""Useful packages: the vendor's libraries, and required and optional Python packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from ._documents import LibraryPart


@dataclass(frozen=True, slots=True)
class Useful:
    """A library or package that may be installed.

    Attributes:
        name: the name of the package, or of the library in cuda-pathfinder.
        use: its purpose.
        extra: the extra of this package that installs it; None for a separate package.
    """

    name: str
    use: str
    extra: str | None = None


VENDOR: Final = (
    Useful("cublas", "device.blas", "cuda12"),
    Useful("cublasLt", "device.blaslt", "cuda12"),
    Useful("cudnn", "device.dnn", "cuda12"),
    Useful("cudss", "direct solvers of device.sparse", "cudss12"),
    Useful("cufft", "device.fft", "cuda12"),
    Useful("curand", "device.rng", "cuda12"),
    Useful("cusolver", "device.linalg", "cuda12"),
    Useful("cusparse", "device.sparse", "cuda12"),
    Useful("cusparseLt", "device.sparselt", "cusparselt12"),
    Useful("cutensor", "device.tensor", "cutensor12"),
    Useful("nccl", "worlds of several devices", "cuda12"),
    Useful("nvrtc", "device.nvrtc, device.array", "cuda12"),
    Useful("nvJitLink", "device.cub", "cuda12"),
)
"""Libraries that hosts load by themselves."""

CUDA_PACKAGES: Final = (
    Useful("cuda-bindings", "CUDA's driver", "cuda12"),
    Useful("cuda-pathfinder", "finding the vendor's libraries", "cuda12"),
    Useful("cuda-cccl", "device.cub", "cuda12"),
    Useful("nvidia-cudnn-frontend", "device.dnn", "cuda12"),
)
"""Packages that a CUDA device needs."""

REQUIRED: Final = tuple(
    Useful(name, "required")
    for name in ("trio", "numpy", "scipy", "ml_dtypes", "msgspec", "cloudpickle", "platformdirs")
)
"""Packages that this package requires."""

OPTIONAL: Final = (
    Useful("nvidia-cutlass", "device.cutlass", "cutlass12"),
    Useful("rich", "colours and bars of this command", "cli"),
    Useful("matplotlib", "atomr-accel bench --plot", "cli"),
    Useful("starlette", "the page of a dashboard", "dashboard"),
    Useful("hypercorn", "serving that page", "dashboard"),
    Useful("prometheus-client", "metrics for Prometheus", "telemetry"),
    Useful("opentelemetry-api", "metrics for OpenTelemetry", "telemetry"),
    Useful("nvidia-ml-py", "what GPUs say of themselves, in top", "telemetry"),
    Useful("torch", "PyTorch in device.run"),
    Useful("cupy", "CuPy in device.run"),
    Useful("jax", "JAX in device.run"),
)
"""Packages that this package can use."""

_SOLD_AS: Final = {"cupy": ("cupy", "cupy-cuda12x", "cupy-cuda13x")}
"""Packages of several names."""


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is missing."""
    for name in _SOLD_AS.get(package, (package,)):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def packages(wanted: tuple[Useful, ...], *, needed: bool) -> list[LibraryPart]:
    """Return the state of some packages.

    Args:
        wanted: the packages.
        needed: whether a missing one is a problem.
    """
    parts = []
    for each in wanted:
        found = version_of(each.name)
        problem = "not installed" if needed and found is None else None
        parts.append(
            LibraryPart(
                name=each.name, use=each.use, version=found, extra=each.extra, problem=problem
            )
        )
    return parts


def libraries(told: Mapping[str, Mapping[str, str | None]], *, needed: bool) -> list[LibraryPart]:
    """Return the state of the vendor's libraries.

    Args:
        told: their own reports, by name.
        needed: whether a missing one is a problem.
    """
    parts = []
    for each in VENDOR:
        entry = told.get(each.name, {})
        problem = entry.get("problem") or (None if entry else "nothing is known of it")
        parts.append(
            LibraryPart(
                name=each.name,
                use=each.use,
                version=entry.get("version"),
                path=entry.get("path"),
                extra=each.extra,
                problem=problem if needed and each.extra == "cuda12" else None,  # others are extra
            )
        )
    return parts
