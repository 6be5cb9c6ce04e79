"""Requirement packages: the vendor's libraries, and required and optional Python packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from ..libraries.registry import catalogue
from ..ops import Requirement
from ._documents import LibraryPart

CUDA_PACKAGES: Final = (
    Requirement("cuda-bindings", "CUDA's driver", "cuda12"),
    Requirement("cuda-pathfinder", "finding the vendor's libraries", "cuda12"),
)
"""Packages that a CUDA device needs."""

REQUIRED: Final = tuple(
    Requirement(name, "required")
    for name in ("trio", "numpy", "scipy", "ml_dtypes", "msgspec", "cloudpickle", "platformdirs")
)
"""Packages that this package requires."""

OPTIONAL: Final = (
    Requirement("rich", "colours and bars of this command", "cli"),
    Requirement("matplotlib", "atomr-accel bench --plot", "cli"),
    Requirement("starlette", "the page of a dashboard", "dashboard"),
    Requirement("hypercorn", "serving that page", "dashboard"),
    Requirement("prometheus-client", "metrics for Prometheus", "telemetry"),
    Requirement("opentelemetry-api", "metrics for OpenTelemetry", "telemetry"),
    Requirement("nvidia-ml-py", "what GPUs say of themselves, in top", "telemetry"),
    Requirement("torch", "PyTorch in device.run"),
    Requirement("cupy", "CuPy in device.run"),
    Requirement("jax", "JAX in device.run"),
)
"""Packages that this package can use."""

_SOLD_AS: Final = {"cupy": ("cupy", "cupy-cuda12x", "cupy-cuda13x")}
"""Packages of several names."""


def requirements() -> list[Requirement]:
    """Return the packages and the vendor's libraries that libraries need."""
    return [need for library in catalogue().all.values() for need in library.needs]


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is missing."""
    for name in _SOLD_AS.get(package, (package,)):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def packages(wanted: Iterable[Requirement], *, needed: bool) -> list[LibraryPart]:
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
    for each in (need for need in requirements() if need.vendor):
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
