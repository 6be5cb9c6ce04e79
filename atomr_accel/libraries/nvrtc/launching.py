"""Checks of a launch before it is sent: dimensions, clusters and shared memory."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ..._errors import Unsupported
from .wire.messages import LaunchOptions

if TYPE_CHECKING:
    from ...wire import DeviceInfo
    from .wire.messages import KernelEntry

Dim = int | Sequence[int]
"""Sizes in x, y and z. Omitted ones are 1."""

Dim3 = tuple[int, int, int]

_MAX_BLOCK: Final = 1024
_MAX_BLOCKS: Final = (_MAX_BLOCK, _MAX_BLOCK, 64)
_MAX_GRID: Final = (2**31 - 1, 65535, 65535)
_MAX_ELEMENTS: Final = tuple(
    grid * block for grid, block in zip(_MAX_GRID, _MAX_BLOCKS, strict=True)
)
_MAX_SHARED: Final = 2**31 - 1
"""Largest number of bytes that fits the driver's parameter. Devices refuse far less."""
_MAX_CLUSTER: Final = 16
"""Blocks; more than 8 not on every device, which then says so."""
_MAX_RESIDENT: Final = 32
"""Blocks that a multiprocessor of any device so far has at a time."""
_CLUSTERS_FROM: Final = (9, 0)


class Geometry(NamedTuple):
    """A launch without its arguments. A launch without threads has a ``grid`` of None."""

    grid: Dim3 | None
    block: Dim3
    shared: int
    options: LaunchOptions | None


class LaunchWish(NamedTuple):
    """The caller's options of a launch, as ``Kernel.launch`` takes them."""

    shared: int = 0
    elements: Dim | None = None
    cluster: Dim | None = None
    cooperative: bool = False
    programmatic: bool = False
    priority: int | None = None

    def asked(self) -> dict[str, Any]:
        """Return the options that differ from a plain launch, as arguments of ``Kernel.launch``."""
        wished = zip(self._fields, self, PLAIN, strict=True)
        return {name: value for name, value, plain in wished if value is not plain}


PLAIN: Final = LaunchWish()
_NOTHING_MORE: Final = LaunchOptions()


def geometry(
    grid: Dim | None,
    block: Dim,
    wish: LaunchWish,
    entry: KernelEntry,
    info: DeviceInfo | None,
) -> Geometry:
    """Check the dimensions and options of a launch, and convert them to their form in messages.

    ``grid`` counts blocks, unless ``wish.elements`` is given.

    Raises:
        Unsupported: clusters on a device without them.
    """
    block3 = _dimensions(block, "block", _MAX_BLOCKS)
    threads = block3[0] * block3[1] * block3[2]
    if threads > _MAX_BLOCK:
        raise ValueError(f"block {block3} has more than {_MAX_BLOCK} threads")
    if entry.most_threads and threads > entry.most_threads:
        raise ValueError(
            f"block must have at most {entry.most_threads} threads, for which the "
            f"kernel is compiled (__launch_bounds__), not {threads}: {block3}"
        )
    if entry.threads is not None and block3 != entry.threads:
        raise ValueError(
            f"block must be {entry.threads}, for which the kernel is compiled, not {block3}"
        )
    grid3 = _grid(grid, block3, wish.elements)
    shared = wish.shared if type(wish.shared) is int else _index(wish.shared, "shared")
    most = _MAX_SHARED
    if info is not None and info.shared_memory_per_block:
        most = info.shared_memory_per_block
    if not 0 <= shared <= most:
        raise ValueError(f"shared is {shared} bytes; it must be from 0 to {most}")
    options = None
    if entry.cluster is not None or not all(map(is_, wish[2:], PLAIN[2:])):
        options = _options(grid3, wish, entry, info)
    return Geometry(grid3, block3, shared, options)


def check_grid_given(grid: object, elements: object) -> None:
    """Check that either blocks or elements are given."""
    if (grid is None) == (elements is None):
        raise TypeError(
            "launch takes either a grid or elements=, for which the grid is counted: "
            "kernel.launch(None, 256, ..., elements=n)"
        )


def _grid(grid: Dim | None, block: Dim3, elements: Dim | None) -> Dim3 | None:
    if elements is None and grid is not None:
        return _dimensions(grid, "grid", _MAX_GRID)
    check_grid_given(grid, elements)
    assert elements is not None
    x, y, z = _dimensions(elements, "elements", _MAX_ELEMENTS, least=0)
    blocks = -(-x // block[0]), -(-y // block[1]), -(-z // block[2])
    return _dimensions(blocks, "grid", _MAX_GRID) if min(blocks) else None


def _options(
    grid: Dim3 | None, wish: LaunchWish, entry: KernelEntry, info: DeviceInfo | None
) -> LaunchOptions | None:
    for name in ("cooperative", "programmatic"):
        value = getattr(wish, name)
        if not isinstance(value, bool | np.bool):
            raise TypeError(f"{name} must be a bool, not {value!r}")
    cluster = entry.cluster
    if wish.cluster is not None:
        cluster = _dimensions(wish.cluster, "cluster", (_MAX_CLUSTER,) * 3)
        if entry.cluster not in (None, cluster):
            raise ValueError(
                f"cluster must be {entry.cluster}, for which the kernel is compiled, not {cluster}"
            )
    if cluster is not None:
        _check_cluster(cluster, grid, info)
    if wish.cooperative and grid is not None and info is not None and info.multiprocessors:
        most = info.multiprocessors * _MAX_RESIDENT
        if grid[0] * grid[1] * grid[2] > most:
            raise ValueError(
                f"grid {grid} has more blocks than the {info.multiprocessors} multiprocessors of "
                f"{info.name} hold at a time, {most} at most, as a cooperative launch needs; "
                "kernel.occupancy tells how many of this kernel they hold"
            )
    priority = None if wish.priority is None else _index(wish.priority, "priority")
    if priority is not None and not -128 <= priority <= 127:
        raise ValueError(f"priority is {priority}; devices have about -5 (first) to 0")
    # What __cluster_dims__ says is in the image, and the driver wants it said once.
    asked = None if entry.cluster is not None else cluster
    options = LaunchOptions(asked, bool(wish.cooperative), bool(wish.programmatic), priority)
    return None if options == _NOTHING_MORE else options


def _check_cluster(cluster: Dim3, grid: Dim3 | None, info: DeviceInfo | None) -> None:
    count = cluster[0] * cluster[1] * cluster[2]
    if count > _MAX_CLUSTER:
        raise ValueError(
            f"cluster {cluster} has {count} blocks; {_MAX_CLUSTER} are the most, and 8 on every "
            "device that has clusters"
        )
    if info is not None and (0, 0) < info.compute_capability < _CLUSTERS_FROM:
        major, minor = info.compute_capability
        raise Unsupported(
            f"{info.name} has compute capability {major}.{minor}; clusters of blocks, as in "
            f"cluster={cluster}, are there from 9.0 on"
        )
    if grid is not None and any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise ValueError(f"grid {grid} is not made of whole clusters of {cluster} blocks")


def _dimensions(value: Dim, name: str, limits: tuple[int, ...], least: int = 1) -> Dim3:
    if type(value) is int:
        sizes: tuple[Any, ...] = (value,)
    else:
        given: Any = value
        sizes = tuple(given) if _is_several(given) else (given,)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{name} takes one to three sizes, not {len(sizes)}")
    x, y, z = (*sizes, 1, 1)[:3]
    if not type(x) is type(y) is type(z) is int:
        x, y, z = _index(x, name), _index(y, name), _index(z, name)
    if not (least <= x <= limits[0] and least <= y <= limits[1] and least <= z <= limits[2]):
        raise ValueError(f"{name} is {(x, y, z)}; each size must be from {least} to {limits}")
    return x, y, z


def _is_several(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _index(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} takes whole numbers, not {value!r}") from None
