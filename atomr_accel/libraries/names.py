"""Names of libraries, found without loading any."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Final

GROUP: Final = "atomr_accel.libraries"
"""The group of entry points by which packages add libraries."""

BUILT_IN: Final = {
    name: f"{__package__}.{name}.library:LIBRARY"
    for name in (
        *("array", "blas", "blaslt", "cub", "cutlass", "dnn", "engine", "fft"),
        *("flash_attention", "linalg", "nccl", "nvrtc", "rng", "sparse", "sparselt", "tensor"),
        "xp",
    )
}
"""``module:attribute`` of this package's libraries, the same as its entry points."""


def names() -> list[str]:
    """Return the names of this package's libraries and of those of other packages."""
    return sorted({*BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})
