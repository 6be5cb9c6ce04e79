"""Kernels of a call with their arguments. This module makes no CUDA calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ....executors.device_code import C_TYPES, CudaSource
from ...dnn.host.philox import threshold
from ..wire._messages import STEPPED
from ._problem import POINTERS, AttentionProblem, TensorSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from ..wire._messages import AttentionForm

FORWARD: Final = CudaSource(__package__, "forward.cu")
FORWARD_GROUPS: Final = CudaSource(__package__, "hopper.cu", "--gpu-architecture=sm_90a")
DECODE: Final = CudaSource(__package__, "decode.cu")
BACKWARD: Final = CudaSource(__package__, "backward.cu")

TYPES: Final = {**C_TYPES, "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}

CAP, SLOPES, BIAS, DROPOUT, PAGES = 1, 2, 4, 8, 16

_WIDTHS: Final = (32, 64, 96, 128, 192, 256)
_GAP: Final = 8
"""Gap between rows of tiles in shared memory, in elements."""

_WARP: Final = 32
_GROUP: Final = 128
"""Threads of a warpgroup."""

_PANEL: Final = 64
"""Columns of a panel, as which tiles of warpgroups are in shared memory."""

LEAST_SHARED: Final = 99 << 10
"""Bytes of shared memory that every device from 8.0 on gives a block."""

_SMALL: Final = 128
"""Threads of the kernels whose blocks are always as large."""


class AttentionLaunch(NamedTuple):
    """A kernel with its arguments.

    Attributes:
        source: the source file.
        name: its name expression.
        blocks, threads: numbers of blocks, and of threads of a block.
        shared: bytes of shared memory of a block.
        arguments: the arguments without the pointers.
        scratch: pointers into scratch memory, with their offsets.
    """

    source: CudaSource
    name: str
    blocks: int
    threads: int
    shared: int
    arguments: AttentionProblem
    scratch: tuple[tuple[str, int], ...] = ()

    def pointers(self, given: Mapping[str, int]) -> list[int]:
        """All pointers in the order of the arguments.

        Args:
            given: pointers by the names in ``PLACES``, 0 for absent ones.
        """
        found = {**given, **{name: given["scratch"] + at for name, at in self.scratch}}
        return [found.get(name, 0) for name in POINTERS]


class Tiles(NamedTuple):
    """A kernel's division of its work.

    Attributes:
        warps: number of warps of a block.
        blocks: number of groups of 16 rows that a warp takes.
        tile: number of rows that a block goes over at a time.
    """

    warps: int
    blocks: int
    tile: int

    @property
    def rows(self) -> int:
        """Number of rows of a block."""
        return self.warps * self.blocks * 16


FORWARD_TILES: Final = {
    32: (Tiles(4, 2, 64),),
    64: (Tiles(4, 2, 64),),
    96: (Tiles(4, 2, 64),),
    128: (Tiles(4, 2, 64), Tiles(4, 1, 64)),
    192: (Tiles(4, 1, 32),),
    256: (Tiles(4, 1, 32),),
}
"""Tiles by the larger one of the sizes of keys and values. The first that fits in shared memory is
used. The last one takes at most 99 KiB, which all devices from compute capability 8.0 on have."""

BY_KEYS: Final = {
    32: (Tiles(4, 1, 64),),
    64: (Tiles(4, 1, 64),),
    96: (Tiles(4, 1, 32),),
    128: (Tiles(4, 1, 32),),
    192: (Tiles(4, 1, 32), Tiles(4, 1, 16)),
    256: (Tiles(4, 1, 32), Tiles(2, 1, 16)),
}
BY_QUERIES: Final = BY_KEYS
"""Tiles of the two kernels of the backward pass, by size. Their warps have a single block."""

HOPPER: Final = (9, 0)
"""Compute capability of devices with warpgroups, for which ``hopper.cu`` is."""


class GroupTiles(NamedTuple):
    """The division of work of the kernel for warpgroups.

    Attributes:
        groups: number of warpgroups of a block that compute, each on 64 queries.
        tile: number of keys that a block goes over at a time.
        stages: number of tiles of keys in shared memory.
    """

    groups: int
    tile: int
    stages: int

    @property
    def rows(self) -> int:
        """Number of queries of a block."""
        return self.groups * 64


_GROUP_TILES: Final = GroupTiles(2, 128, 2)
_PLAIN_TILES: Final = GroupTiles(3, 128, 2)
"""Tiles for sizes up to 64 where all queries see all keys, as no tile is computed in vain then."""

_GROUP_SIZES: Final = range(33, 129)
"""Sizes that the kernel for warpgroups is for. It pads them to 64 or 128."""

_BIAS_TILE: Final = 16
_TOGETHER: Final = 128
"""Largest size at which one kernel computes the gradients with respect to both keys and values.
Above it registers are too few."""

_STAGED: Final = 128
"""Largest size at which the next keys of a cache are loaded while others are computed with."""


def width_of(size: int) -> int:
    """The size that kernels are compiled for."""
    return next(width for width in _WIDTHS if width >= size)


def _tile_bytes(rows: int, width: int) -> int:
    return rows * (width + _GAP) * 2


def _fitting(
    candidates: tuple[Tiles, ...], most: int, nbytes: Callable[[Tiles], int]
) -> tuple[Tiles, int]:
    """The first one that has room, and how many bytes it takes."""
    sizes = [(tiles, nbytes(tiles)) for tiles in candidates]
    return next((each for each in sizes if each[1] <= most), sizes[-1])


def _ceil(count: int, step: int) -> int:
    return -(-count // step)


def problem_of(form: AttentionForm) -> AttentionProblem:
    """The arguments that all kernels of a call share."""
    problem = AttentionProblem()
    for name, steps in zip(STEPPED, form.steps, strict=True):
        setattr(problem, f"{name}_steps", TensorSteps(*steps))
    for name in (
        *("batch", "heads", "kv_heads", "queries", "keys", "size", "value_size"),
        *("page", "columns", "pages", "added", "before", "after", "bottom_right"),
        *("splits", "seed", "offset", "scale"),
    ):
        setattr(problem, name, getattr(form, name))
    problem.cap = form.softcap
    problem.slopes_batch = form.heads if form.slopes_by_sequence else 0
    if form.bias:
        batch, heads, rows, keys = form.bias
        problem.bias_batch, problem.bias_heads, problem.bias_rows = batch, heads, rows
        problem.bias_steps = TensorSteps(
            heads * rows * keys if batch > 1 else 0,
            rows * keys if heads > 1 else 0,
            keys if rows > 1 else 0,
        )
    problem.kept = 1 / (1 - form.dropout)
    problem.threshold = threshold(form.dropout)
    problem.q_scales, problem.k_scales, problem.v_scales = (each > 1 for each in form.scales)
    return problem


def _flags(form: AttentionForm, given: Collection[str]) -> int:
    return (
        CAP * bool(form.softcap)
        + SLOPES * (form.paper or "slopes" in given)
        + BIAS * bool(form.bias)
        + DROPOUT * bool(form.dropout)
        + PAGES * bool(form.page)
    )


def launches(
    form: AttentionForm,
    given: Collection[str],
    most: int = LEAST_SHARED,
    processors: int = 0,
) -> Iterator[AttentionLaunch]:
    """Yield the launches of a call, in order.

    Args:
        form: the call.
        given: the names in ``PLACES`` that the call has.
        most: largest shared memory of a block, in bytes.
        processors: number of multiprocessors of a device with warpgroups, 0 for any other.
    """
    if processors and _for_groups(form):
        return _forward_groups(form, given, processors)
    return _KINDS[form.kind](form, given, most)


def _for_groups(form: AttentionForm) -> bool:
    """Return whether the kernel for warpgroups computes a call, and faster than the other one."""
    size = max(form.size, form.value_size)
    return (
        form.kind == "forward"
        and size in _GROUP_SIZES
        and not form.bias
        and not (size <= _PANEL and (form.page or form.dropout))
        # It compares products before they are scaled, so the largest has to stay the largest.
        and form.scale > 0
    )


def _forward_groups(
    form: AttentionForm, given: Collection[str], processors: int
) -> Iterator[AttentionLaunch]:
    problem, flags = problem_of(form), _flags(form, given)
    d, dv = (_ceil(size, _PANEL) * _PANEL for size in (form.size, form.value_size))
    plain = max(d, dv) == _PANEL and not flags and form.before < 0 and form.after < 0
    tiles = _PLAIN_TILES if plain else _GROUP_TILES
    groups, tile, stages = tiles
    problem.tiles = _ceil(form.queries, tiles.rows)
    barriers = 8 * (2 + 4 * stages)
    shared = 1024 + 2 * (tiles.rows * d + stages * tile * (d + dv)) + barriers
    name = f"forward_groups<{TYPES[form.dtype]}, {d}, {dv}, {groups}, {tile}, {stages}, {flags}>"
    blocks = min(processors, problem.tiles * form.heads * form.batch)
    threads = (groups + 1) * _GROUP
    yield AttentionLaunch(FORWARD_GROUPS, name, blocks, threads, shared, problem)


def _forward(form: AttentionForm, given: Collection[str], most: int) -> Iterator[AttentionLaunch]:
    problem, flags = problem_of(form), _flags(form, given)
    d, dv = width_of(form.size), width_of(form.value_size)

    def nbytes(tiles: Tiles) -> int:
        rows = tiles.rows + 2 * tiles.tile
        return _tile_bytes(rows, d) + _tile_bytes(2 * tiles.tile, dv)

    tiles, shared = _fitting(FORWARD_TILES[max(d, dv)], most, nbytes)
    warps, blocks, tile = tiles
    rows = tiles.rows
    problem.tiles = _ceil(form.queries, rows)
    name = f"forward<{TYPES[form.dtype]}, {d}, {dv}, {warps}, {blocks}, {tile}, {flags}>"
    count = problem.tiles * form.heads * form.batch
    yield AttentionLaunch(FORWARD, name, count, warps * _WARP, shared, problem)


def _decode(form: AttentionForm, given: Collection[str], most: int) -> Iterator[AttentionLaunch]:
    del most
    problem, flags = problem_of(form), _flags(form, given)
    d, dv = width_of(form.size), width_of(form.value_size)
    stages = 2 if max(d, dv) <= _STAGED else 1
    problem.tiles = _ceil(form.queries * (form.heads // form.kv_heads), 16)
    # What has eight bits is multiplied in sixteen.
    types = [TYPES["float16" if "8" in form.dtype else form.dtype]]
    types += [TYPES[each] for each in (form.dtype, form.kv_dtype, form.out_dtype)]
    name = f"decode<{', '.join(types)}, {d}, {dv}, {stages}, {flags}>"
    if "8" in form.kv_dtype:
        warp = stages * 16 * (d + dv) + _tile_bytes(16, max(d, dv))
    else:
        warp = stages * (_tile_bytes(16, d) + _tile_bytes(16, dv))
    shared = max(_tile_bytes(16, d) + 4 * warp, 4 * (128 + 4 * 16 * dv))
    rows = form.batch * form.heads * form.queries
    parts = (("part_lse", 0), ("part_o", 4 * form.splits * rows)) if form.splits > 1 else ()
    count = problem.splits * problem.tiles * form.kv_heads * form.batch
    yield AttentionLaunch(DECODE, name, count, _SMALL, shared, problem, parts)
    if parts:
        yield AttentionLaunch(
            DECODE, f"combine<{types[-1]}>", _ceil(rows, 4), _SMALL, 0, problem, parts
        )


def _backward(form: AttentionForm, given: Collection[str], most: int) -> Iterator[AttentionLaunch]:
    flags = _flags(form, given)
    d, dv = width_of(form.size), width_of(form.value_size)
    largest, sizes = max(d, dv), f"{TYPES[form.dtype]}, {d}, {dv}"

    def launch(
        name: str, blocks: int, threads: int, shared: int, tiles: int = 0
    ) -> AttentionLaunch:
        problem = problem_of(form)
        problem.tiles = tiles
        return AttentionLaunch(BACKWARD, name, blocks, threads, shared, problem, (("delta", 0),))

    def both(rows: int) -> int:
        return _tile_bytes(rows, d) + _tile_bytes(rows, dv)

    rows = form.batch * form.heads * form.queries
    yield launch(f"deltas<{TYPES[form.dtype]}>", _ceil(rows, 4), _SMALL, 0)
    # Those of queries bring two numbers for each row.
    tiles, shared = _fitting(
        BY_KEYS[largest], most, lambda each: both(each.rows + 2 * each.tile) + 16 * each.tile
    )
    count = _ceil(form.keys, tiles.rows)
    for want in (3,) if largest <= _TOGETHER else (1, 2):
        name = f"by_keys<{sizes}, {tiles.warps}, {tiles.tile}, {flags}, {want}>"
        blocks = count * form.kv_heads * form.batch
        yield launch(name, blocks, tiles.warps * _WARP, shared, count)
    tiles, shared = _fitting(
        BY_QUERIES[largest], most, lambda each: both(each.rows + 2 * each.tile)
    )
    count = _ceil(form.queries, tiles.rows)
    name = f"by_queries<{sizes}, {tiles.warps}, {tiles.tile}, {flags}>"
    yield launch(name, count * form.heads * form.batch, tiles.warps * _WARP, shared, count)
    if "dbias" in given:
        batch, heads, rows, keys = form.bias
        down = _ceil(rows, 64) if rows > 1 else 1
        blocks = batch * heads * down * _ceil(keys, _BIAS_TILE)
        name = f"by_bias<{sizes}, {_BIAS_TILE}, {flags}>"
        yield launch(name, blocks, _SMALL, both(64 + _BIAS_TILE))
    if "dsink" in given:
        yield launch(f"by_sink<{TYPES[form.dtype]}>", form.heads, _SMALL, 4 * _SMALL)


_KINDS: Final = {"forward": _forward, "decode": _decode, "backward": _backward}
