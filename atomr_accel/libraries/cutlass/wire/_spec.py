"""The description of a build: a product for some dtypes, tiles and an epilogue, of any size."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from ...._dtypes import DTYPES
from ....wire import encoder

Triple = tuple[int, int, int]

ACCUMULATOR: Final = "accumulator"
SOURCE: Final = "source"


class EpilogueNode(msgspec.Struct, frozen=True, array_like=True):
    """A step of an epilogue, for each element of the result.

    Attributes:
        op: ``"accumulator"``, the product; a name of ``LOADS``, ``FUNCTIONS`` or ``STORES``.
        inputs: its arguments.
        dtype: of the buffer that it reads or writes; empty if there is none.
        slot: the number of that buffer, or of a number, in the call.
    """

    op: str
    inputs: tuple[EpilogueNode, ...] = ()
    dtype: str = ""
    slot: int = 0


MOST_NUMBERS: Final = 16
"""Different numbers of an epilogue."""

LOADS: Final = ("number", "scalar", "row", "column", "full", SOURCE)
"""Values that an epilogue reads: a number of the call, a buffer of one number, of n, of m, or of
(m, n). The last is a buffer of (m, n) that the kernel fetches ahead; there is at most one."""

STORES: Final = ("store", "amax", "sum_rows", "sum_columns")
"""Values that an epilogue writes in addition to the result: a value; its largest magnitude; its
sums, over each column's rows and over each row's columns."""


class ElementFunction(NamedTuple):
    """A function of elements.

    Attributes:
        code: it in CUDA C++, of floats ``a`` and ``b``.
        arity: of how many.
    """

    code: str
    arity: int = 1


FUNCTIONS: Final = {
    "add": ElementFunction("a + b", 2),
    "subtract": ElementFunction("a - b", 2),
    "multiply": ElementFunction("a * b", 2),
    "divide": ElementFunction("a / b", 2),
    "maximum": ElementFunction("(a != a || a > b) ? a : b", 2),
    "minimum": ElementFunction("(a != a || a < b) ? a : b", 2),
    "negative": ElementFunction("-a"),
    "relu": ElementFunction("a < 0.f ? 0.f : a"),
    "gelu": ElementFunction("0.5f * a * (1.f + erff(a * 0.70710678118654752f))"),
    "gelu_tanh": ElementFunction(
        "0.5f * a * (1.f + cutlass::fast_tanh("
        "0.79788456080286536f * a * (1.f + 0.044715f * a * a)))"
    ),
    "silu": ElementFunction("a / (1.f + __expf(-a))"),
    "sigmoid": ElementFunction("1.f / (1.f + __expf(-a))"),
    "tanh": ElementFunction("cutlass::fast_tanh(a)"),
}
"""Functions of epilogues, in float32."""

COOPERATIVE: Final = "cooperative"
PINGPONG: Final = "pingpong"
SCHEDULES: Final = (COOPERATIVE, PINGPONG)


class CutlassSpec(msgspec.Struct, frozen=True, array_like=True):
    """The description of one build.

    Attributes:
        a, b, out: dtypes.
        trans_a, trans_b: True if a is laid out as (k, m), and b as (n, k).
        epilogue: a function of the product.
        source: the dtype of the buffer that ``SOURCE`` reads; empty if there is none.
        tile: of the product, for a block of threads: m, n, k.
        cluster: blocks that share loaded tiles, along m and n.
        schedule: the division of work between groups of warps.
        stages: tiles that are loaded ahead; 0: as many as fit.
        fast: True if sums of fp8 are rounded as the tensor cores do it.
        grouped: True for several products, each with its own sizes.
        space: axes of the images from which an operand is gathered; 0 for products of matrices. The
            operand is a; with ``trans_a`` it is b, and there is a product for each tap.
    """

    a: str
    b: str
    out: str
    trans_a: bool
    trans_b: bool
    epilogue: EpilogueNode
    source: str
    tile: Triple
    cluster: Triple
    schedule: str
    stages: int
    fast: bool
    grouped: bool = False
    space: int = 0

    @property
    def accumulator(self) -> str:
        """The dtype that products are summed in."""
        return "int32" if self.a == "int8" else "float32"


@lru_cache(1024)
def encode(spec: CutlassSpec) -> bytes:
    """A spec's bytes; equal ones have the same."""
    return encoder.encode(spec)


_decoder: Final = msgspec.msgpack.Decoder(CutlassSpec)


@lru_cache(256)
def decode(encoded: bytes) -> CutlassSpec:
    """The spec of ``encode``."""
    return _decoder.decode(encoded)


# --- what fits --------------------------------------------------------------------------------

SHARED: Final = 232_448
"""Bytes of shared memory that a block may have, from compute capability 9.0 on."""

_BESIDE: Final = 1024
"""Bytes of shared memory for barriers, and for aligning loaded tiles as TMA needs."""

_MOST_ACCUMULATORS: Final = 128
"""Sums of a thread: with more there are not enough registers."""


def shared_bytes(spec: CutlassSpec, stages: int) -> int:
    """Bytes of shared memory of a kernel, as CUTLASS lays it out."""
    m, n, k = spec.tile
    per_stage = k * (m * DTYPES[spec.a].itemsize + n * DTYPES[spec.b].itemsize)
    return stages * per_stage + _epilogue_bytes(spec) + _BESIDE


def _epilogue_bytes(spec: CutlassSpec) -> int:
    """Return the bytes of shared memory for results, and for the operand that is added."""
    m, n, _ = spec.tile
    size = DTYPES[spec.out].itemsize
    wide = 64 if spec.schedule == PINGPONG and size == 1 and n % 64 == 0 else 32
    tile_m = min(64 if spec.schedule == PINGPONG else 128, m)
    tile_n = math.gcd(wide, n)
    tiles = m * n // (tile_m * tile_n)
    stages, source = min(tiles, 2), 0
    if spec.source:
        source_size = DTYPES[spec.source].itemsize
        if source_size == size > 1:  # both use the same
            stages = max(min(tiles, 4), stages + 1)
        else:
            source = min(tiles, 4) * tile_m * tile_n * source_size
    vectors = sum(
        n * DTYPES[node.dtype].itemsize for node in walk(spec.epilogue) if node.op == "row"
    )
    return stages * tile_m * tile_n * size + source + vectors


def walk(node: EpilogueNode) -> list[EpilogueNode]:
    """A node and all that it is a function of, each before what uses it."""
    return [each for given in node.inputs for each in walk(given)] + [node]


def refusal(spec: CutlassSpec) -> str | None:
    """Return the reason why no kernel can have these tiles, clusters and stages, or None."""
    m, n, k = spec.tile
    size = DTYPES[spec.a].itemsize
    threads = 256 if spec.schedule == COOPERATIVE else 128
    rows = (128, 256) if spec.schedule == COOPERATIVE else (64, 128)
    if m not in rows:
        return f"tile has {m} rows; schedule {spec.schedule!r} takes {rows[0]} or {rows[1]}"
    if not 32 <= n <= 256 or n % 32:
        return f"tile has {n} columns; it takes a multiple of 32, up to 256"
    if k * size not in (64, 128, 256):
        depths = " or ".join(str(nbytes // size) for nbytes in (64, 128, 256))
        return f"tile is {k} deep; for {spec.a} it takes {depths}"
    if m * n > _MOST_ACCUMULATORS * threads:
        return (
            f"tile {m} x {n} needs {m * n // threads} sums of each of {threads} threads; "
            f"{_MOST_ACCUMULATORS} is the most that registers hold"
        )
    x, y, z = spec.cluster
    if x not in (1, 2, 4) or y not in (1, 2, 4) or z != 1 or x * y > 8:
        return (
            f"cluster is {spec.cluster}; it takes 1, 2 or 4 blocks along m and n, together up to 8"
        )
    stages = spec.stages or 2
    needed = shared_bytes(spec, stages)
    if needed > SHARED:
        return (
            f"{stages} stages of tile {spec.tile} take {needed} bytes of shared memory with what "
            f"the epilogue needs; a block has {SHARED}"
        )
    return None
