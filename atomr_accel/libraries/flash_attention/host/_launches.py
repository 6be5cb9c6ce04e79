"""Which kernels compute a call, and with what arguments. Calls nothing of CUDA's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ...dnn.host._philox import threshold
from ...host._device_code import C_TYPES, CudaSource
from ..wire._messages import STEPPED
from ._problem import POINTERS, Problem, Steps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from ..wire._messages import Form

FORWARD: Final = CudaSource(__package__, "forward.cu")
DECODE: Final = CudaSource(__package__, "decode.cu")
BACKWARD: Final = CudaSource(__package__, "backward.cu")

TYPES: Final = {**C_TYPES, "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}

CAP, SLOPES, BIAS, DROPOUT = 1, 2, 4, 8

_WIDTHS: Final = (32, 64, 96, 128, 192, 256)
_GAP: Final = 8
"""Between rows of tiles in shared memory, in elements."""

_WARP: Final = 32
_SMALL: Final = 128
"""Threads of the kernels whose blocks are always as large."""


class Launch(NamedTuple):
    """A kernel with its arguments.

    Attributes:
        source: where it is.
        name: its name expression.
        blocks, threads: how many.
        shared: bytes of shared memory of a block.
        arguments: all of them but the pointers.
        scratch: pointers into scratch memory, with their offsets.
    """

    source: CudaSource
    name: str
    blocks: int
    threads: int
    shared: int
    arguments: Problem
    scratch: tuple[tuple[str, int], ...] = ()

    def pointers(self, given: Mapping[str, int]) -> list[int]:
        """All pointers in the order of the arguments.

        Args:
            given: by the names in ``PLACES``, 0 for what is not there.
        """
        found = {**given, **{name: given["scratch"] + at for name, at in self.scratch}}
        return [found.get(name, 0) for name in POINTERS]


class Tiles(NamedTuple):
    """How a kernel cuts its work.

    Attributes:
        warps: of a block.
        blocks: of 16 rows, of a warp.
        tile: rows that a block goes over at a time.
    """

    warps: int
    blocks: int
    tile: int


FORWARD_TILES: Final = {
    32: Tiles(4, 2, 64),
    64: Tiles(4, 2, 64),
    96: Tiles(4, 1, 64),
    128: Tiles(8, 1, 64),
    192: Tiles(4, 1, 64),
    256: Tiles(4, 1, 32),
}
"""By the larger one of the sizes of keys and values. Shared memory is at most 99 KiB, which all
devices from 8.0 on have."""

BACKWARD_TILES: Final = {32: 64, 64: 64, 96: 64, 128: 32, 192: 32, 256: 16}
"""Rows that kernels of the backward pass go over at a time; their own are 64."""

_BACKWARD_WARPS: Final = 4
_TOGETHER: Final = 128
"""Up to this size one kernel computes gradients by keys and values; registers have no room for more."""

_STAGED: Final = 128
"""Up to this size the next keys of a cache are on their way while some are computed with."""


def width_of(size: int) -> int:
    """The size that kernels are compiled for."""
    return next(width for width in _WIDTHS if width >= size)


def _tile_bytes(rows: int, width: int) -> int:
    return rows * (width + _GAP) * 2


def _ceil(count: int, step: int) -> int:
    return -(-count // step)


def problem_of(form: Form) -> Problem:
    """The arguments that all kernels of a call share."""
    problem = Problem()
    for name, steps in zip(STEPPED, form.steps, strict=True):
        setattr(problem, f"{name}_steps", Steps(*steps))
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
        problem.bias_steps = Steps(
            heads * rows * keys if batch > 1 else 0,
            rows * keys if heads > 1 else 0,
            keys if rows > 1 else 0,
        )
    problem.kept = 1 / (1 - form.dropout)
    problem.threshold = threshold(form.dropout)
    problem.q_scales, problem.k_scales, problem.v_scales = (each > 1 for each in form.scales)
    return problem


def _flags(form: Form, given: Collection[str]) -> int:
    return (
        CAP * bool(form.softcap)
        + SLOPES * (form.paper or "slopes" in given)
        + BIAS * bool(form.bias)
        + DROPOUT * bool(form.dropout)
    )


def launches(form: Form, given: Collection[str]) -> Iterator[Launch]:
    """What computes a call, in order.

    Args:
        form: the call.
        given: which of ``PLACES`` are there.
    """
    return _KINDS[form.kind](form, given)


def _forward(form: Form, given: Collection[str]) -> Iterator[Launch]:
    problem, flags = problem_of(form), _flags(form, given)
    d, dv = width_of(form.size), width_of(form.value_size)
    warps, blocks, tile = FORWARD_TILES[max(d, dv)]
    rows = warps * blocks * 16
    problem.tiles = _ceil(form.queries, rows)
    name = f"forward<{TYPES[form.dtype]}, {d}, {dv}, {warps}, {blocks}, {tile}, {flags}>"
    shared = _tile_bytes(rows + tile, d) + _tile_bytes(tile, dv)
    count = problem.tiles * form.heads * form.batch
    yield Launch(FORWARD, name, count, warps * _WARP, shared, problem)


def _decode(form: Form, given: Collection[str]) -> Iterator[Launch]:
    problem, flags = problem_of(form), _flags(form, given)
    d, dv = width_of(form.size), width_of(form.value_size)
    stages = 2 if form.kv_dtype == form.dtype and max(d, dv) <= _STAGED else 1
    problem.tiles = _ceil(form.queries * (form.heads // form.kv_heads), 16)
    # What has eight bits is multiplied in sixteen.
    types = [TYPES["float16" if "8" in form.dtype else form.dtype]]
    types += [TYPES[each] for each in (form.dtype, form.kv_dtype, form.out_dtype)]
    name = f"decode<{', '.join(types)}, {d}, {dv}, {stages}, {flags}>"
    shared = _tile_bytes(16, d) + 4 * stages * (_tile_bytes(16, d) + _tile_bytes(16, dv))
    shared = max(shared, 4 * (128 + 4 * 16 * dv))
    rows = form.batch * form.heads * form.queries
    parts = (("part_lse", 0), ("part_o", 4 * form.splits * rows)) if form.splits > 1 else ()
    count = problem.splits * problem.tiles * form.kv_heads * form.batch
    yield Launch(DECODE, name, count, _SMALL, shared, problem, parts)
    if parts:
        yield Launch(DECODE, f"combine<{types[-1]}>", _ceil(rows, 4), _SMALL, 0, problem, parts)


def _backward(form: Form, given: Collection[str]) -> Iterator[Launch]:
    flags = _flags(form, given)
    d, dv = width_of(form.size), width_of(form.value_size)
    tile, warps = BACKWARD_TILES[max(d, dv)], _BACKWARD_WARPS
    sizes = f"{TYPES[form.dtype]}, {d}, {dv}"

    def launch(name: str, blocks: int, shared: int, tiles: int = 0) -> Launch:
        problem = problem_of(form)
        problem.tiles = tiles
        return Launch(BACKWARD, name, blocks, _SMALL, shared, problem, (("delta", 0),))

    rows = form.batch * form.heads * form.queries
    yield launch(f"deltas<{TYPES[form.dtype]}>", _ceil(rows, 4), 0)
    shared = _tile_bytes(64 + tile, d) + _tile_bytes(64 + tile, dv)
    tiles = _ceil(form.keys, 64)
    for want in (3,) if max(d, dv) <= _TOGETHER else (1, 2):
        name = f"by_keys<{sizes}, {warps}, {tile}, {flags}, {want}>"
        yield launch(name, tiles * form.kv_heads * form.batch, shared + 8 * tile, tiles)
    tiles = _ceil(form.queries, 64)
    name = f"by_queries<{sizes}, {warps}, {tile}, {flags}>"
    yield launch(name, tiles * form.heads * form.batch, shared, tiles)
    if "dbias" in given:
        batch, heads, rows, keys = form.bias
        count = batch * heads * (_ceil(rows, 64) if rows > 1 else 1) * _ceil(keys, tile)
        yield launch(f"by_bias<{sizes}, {tile}, {flags}>", count, shared)
    if "dsink" in given:
        yield launch(f"by_sink<{TYPES[form.dtype]}>", form.heads, 4 * _SMALL)


_KINDS: Final = {"forward": _forward, "decode": _decode, "backward": _backward}
