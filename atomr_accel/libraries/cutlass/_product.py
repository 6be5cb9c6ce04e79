"""One product: its arguments, their checks, and its message."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from ..._dtypes import DTYPES, NAMES, as_dtype
from ..._errors import Unsupported
from ...arrays import GpuRef, ref_error
from ...ops import (
    require_alignment,
    require_int32,
    require_no_alias,
    require_readable,
    require_writable,
)
from ...wire.options import flag, real, whole
from ._epilogue import WRITES, Epilogue, lower, wrapped
from .wire._messages import RunCutlass
from .wire._spec import (
    ACCUMULATOR,
    COOPERATIVE,
    PINGPONG,
    SCHEDULES,
    CutlassSpec,
    Triple,
    refusal,
)
from .wire._window import ImageWindow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from ...memory import Block, MemoryMap
    from ...ops import DeviceView, Preparer
    from ._epilogue import LoweredEpilogue
    from ._movement import Movement
    from .wire._messages import Sizes

_FP8: Final = ("float8_e4m3fn", "float8_e5m2")
_DEFAULTS: Final = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "int8": "int32",
    **dict.fromkeys(_FP8, "bfloat16"),
}
"""The dtype of the result, by that of a."""

_SWIZZLE: Final = 4
"""The swizzle that is usually fastest for square tiles; CUTLASS reduces it if there are few tiles.
"""

ROW_BYTES: Final = 16
"""Rows begin at multiples of this: TMA takes no others."""

_PROCESSORS: Final = 132
"""Multiprocessors of the devices that kernels are for."""

_NARROW: Final = 0.93
"""Speed of tiles of 128 x 128 relative to those of 128 x 256, for the same amount of work."""

_CAPABILITY: Final = (9, 0)
"""The devices that kernels are for: they have wgmma, which no other has."""


class KernelChoice(NamedTuple):
    """The program's choice of a kernel for a product.

    Attributes:
        tile, cluster, schedule: as in ``CutlassSpec``; None for the fastest.
        stages: 0 for as many as fit.
        swizzle: as in ``RunCutlass``.
    """

    tile: Triple | None
    cluster: Triple | None
    schedule: str | None
    stages: int
    swizzle: int | None


class CutlassProduct(NamedTuple):
    """A product that was checked for this call.

    Attributes:
        a, b: the operands.
        spec: its description, with the program's choice of tiles or without tiles.
        sizes: m, n, k and the number of products.
        shape: of the result.
        lowered: the epilogue.
        out: the caller's result, if there is one.
        reads, writes: blocks.
    """

    a: GpuRef
    b: GpuRef
    spec: CutlassSpec
    sizes: Sizes
    shape: tuple[int, ...]
    lowered: LoweredEpilogue
    out: GpuRef | None
    reads: list[Block]
    writes: list[Block]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the result."""
        return DTYPES[self.spec.out]

    def message(
        self, spec: bytes, swizzle: int, out: GpuRef, buffers: Sequence[GpuRef]
    ) -> RunCutlass:
        """Return the message."""
        source = self.lowered.source
        return RunCutlass(
            spec,
            self.sizes,
            swizzle,
            self.a.block.address,
            self.b.block.address,
            0 if source is None else source.block.address,
            out.block.address,
            tuple(ref.block.address for ref in buffers),
            self.lowered.numbers,
        )

    def scratch(self, preparer: Preparer) -> tuple[GpuRef, list[GpuRef]]:
        """Make buffers whose contents are discarded, for everything that a call writes."""
        out = preparer.output(self.shape, self.dtype)
        buffers = [
            preparer.output(ref.shape, ref.dtype) if slot in self.lowered.written else ref
            for slot, ref in enumerate(self.lowered.buffers)
        ]
        return out, buffers


class MatmulArguments(NamedTuple):
    """Arguments of ``Cutlass.matmul`` that define the result, and the movement of filters."""

    a: GpuRef
    b: GpuRef
    out: GpuRef | None
    c: GpuRef | None
    alpha: float
    beta: float
    trans_a: bool
    trans_b: bool
    dtype: np.dtype[Any] | None
    bias: GpuRef | None
    epilogue: Epilogue | None
    fast: bool
    movement: Movement | None = None

    @property
    def names(self) -> tuple[str, str]:
        """The names that the program uses for a and b."""
        return ("a", "b") if self.movement is None else self.movement.names


def read(
    a: GpuRef, b: GpuRef, given: Mapping[str, Any], movement: Movement | None = None
) -> MatmulArguments:
    """The arguments of a method by name, each of its type; methods lack some of them."""
    epilogue, c, dtype = given["epilogue"], given.get("c"), given["dtype"]
    if epilogue is not None and not isinstance(epilogue, Epilogue):
        raise TypeError(
            "epilogue must be an expression of device.cutlass.accumulator, not "
            f"{type(epilogue).__name__}"
        )
    alpha, beta = real(given["alpha"], "alpha"), real(given.get("beta", 0.0), "beta")
    if beta and c is None:
        raise ValueError(f"beta must be 0 without c, not {beta}; pass the c that it scales")
    return MatmulArguments(
        *(a, b, given.get("out"), c, alpha, beta),
        flag(given.get("trans_a", False), "trans_a"),
        flag(given.get("trans_b", False), "trans_b"),
        None if dtype is None else as_dtype(dtype),
        given.get("bias"),
        epilogue,
        flag(given.get("fast_accum", True), "fast_accum"),
        movement,
    )


def read_choice(
    tile: Sequence[int] | None,
    cluster: Sequence[int] | None,
    schedule: str,
    stages: int | str,
    swizzle: int | None,
) -> KernelChoice:
    """Read the options that choose a kernel."""
    if schedule not in (*SCHEDULES, "auto"):
        raise ValueError(f"schedule must be 'auto', 'cooperative' or 'pingpong', not {schedule!r}")
    if tile is None:
        for name, given, default in (
            ("cluster", cluster, None),
            ("schedule", schedule, "auto"),
            ("stages", stages, "auto"),
            ("swizzle", swizzle, None),
        ):
            if given != default:
                raise ValueError(f"{name} must be None without tile, not {given!r}; pass tile, too")
    return KernelChoice(
        None if tile is None else _triple(tile, "tile"),
        None if cluster is None else _triple(cluster, "cluster"),
        None if schedule == "auto" else schedule,
        0 if stages == "auto" else whole(stages, "stages", 2, 32),
        None if swizzle is None else _swizzle(swizzle),
    )


def _swizzle(swizzle: int) -> int:
    found = whole(swizzle, "swizzle", 1)
    if found not in (1, 2, 4, 8):
        raise ValueError(f"swizzle must be 1, 2, 4 or 8, not {swizzle!r}")
    return found


def _triple(sizes: Sequence[int], name: str) -> Triple:
    try:
        m, n, k = sizes
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be three whole numbers, not {sizes!r}") from None
    return whole(m, name, 1), whole(n, name, 1), whole(k, name, 1)


def check(given: MatmulArguments, device: DeviceView, memory: MemoryMap) -> CutlassProduct:
    """A product, with everything about it that can be wrong looked at."""
    a, b = given.a, given.b
    first, second = given.names
    others: dict[str, object] = {"bias": given.bias, "c": given.c, "out": given.out}
    for name, ref in others.items():
        if ref is not None and not isinstance(ref, GpuRef):
            raise ref_error(ref, memory, name)
    require_device(device)
    reads = [require_readable(a, memory, first), require_readable(b, memory, second)]
    out_dtype = result_dtype(given)
    sizes, shape = _sizes(given)
    rows, column = _rows(given, shape)
    require_int32(device, "a product", (*sizes, *map(math.prod, (a.shape, b.shape, shape))))
    whole_tree = wrapped(
        given.epilogue, alpha=given.alpha, beta=given.beta, c=given.c, bias=given.bias
    )
    if given.c is not None and given.c.shape != shape:
        raise ValueError(f"c must have shape {shape}, not {given.c.shape}")
    if given.bias is not None and given.bias.shape != shape[-1:]:
        raise ValueError(f"bias must have shape {shape[-1:]}, not {given.bias.shape}")
    lowered = lower(whole_tree, shape, rows, column)
    source = lowered.source
    spec = spec_of(given, out_dtype, lowered)
    require_rows(spec, sizes, given.names)
    out = given.out
    written = [("out", out)] if out is not None else []
    read_too = [(first, a), (second, b)]
    if source is not None:
        reads.append(require_readable(source, memory, "a buffer in the epilogue"))
        read_too.append(("a buffer in the epilogue", source))
    writes = []
    for slot, ref in enumerate(lowered.buffers):
        if slot in lowered.written:
            writes.append(require_writable(ref, memory, "out in the epilogue"))
            written.append((f"out {slot} in the epilogue", ref))
        else:
            reads.append(require_readable(ref, memory, "a buffer in the epilogue"))
            read_too.append(("a buffer in the epilogue", ref))
    if out is not None:
        require_writable(out, memory, "out")
        if out.shape != shape:
            raise ValueError(f"out must have shape {shape}, not {out.shape}")
    for name, ref in (*read_too, *written):
        if ref.ndim:
            require_alignment(ref, ROW_BYTES, name, "TMA reads and writes 16 bytes at a time")
    if written:
        in_place = (("out", "a buffer in the epilogue"),) if source is not None else ()
        require_no_alias("device.cutlass", written, read_too, in_place=in_place)
    return CutlassProduct(a, b, spec, sizes, shape, lowered, out, reads, writes)


def spec_of(given: MatmulArguments, dtype: str, lowered: LoweredEpilogue) -> CutlassSpec:
    """Return the description of a product, without tiles."""
    if dtype == "int32" and lowered.node.op != ACCUMULATOR:
        raise TypeError("sums of int8 with an epilogue are float32: give a dtype for the result")
    a, source = NAMES[given.a.dtype], lowered.source
    return CutlassSpec(
        *(a, NAMES[given.b.dtype], dtype, given.trans_a, given.trans_b, lowered.node),
        "" if source is None else NAMES[source.dtype],
        *((0, 0, 0), (0, 0, 0), "", 0, given.fast and a in _FP8),
        space=0 if given.movement is None else given.a.ndim - 2,
    )


def require_device(device: DeviceView) -> None:
    """Check that the device is one that kernels are for."""
    info = device.info
    if info is not None and info.compute_capability not in ((0, 0), _CAPABILITY):
        major, minor = info.compute_capability
        raise Unsupported(
            f"{info.name} has compute capability {major}.{minor}; device.cutlass has kernels for "
            "9.0 (Hopper); device.blaslt has products for all"
        )


def result_dtype(given: MatmulArguments) -> str:
    """The dtype of the result."""
    a, b = NAMES[given.a.dtype], NAMES[given.b.dtype]
    first, second = given.names
    if "float4_e2m1fn" in (a, b):
        raise Unsupported(
            "types with scales of blocks need compute capability 10.0; device.cutlass has kernels "
            "for 9.0, and device.blaslt has such products"
        )
    if a not in _DEFAULTS or (a != b and not (a in _FP8 and b in _FP8)):
        raise TypeError(
            f"{first} is {a} and {second} {b}; they must both be one of {', '.join(_DEFAULTS)}, or "
            "two kinds of fp8"
        )
    out = given.out
    found = _DEFAULTS[a] if given.dtype is None else NAMES[given.dtype]
    if out is not None:
        if given.dtype is not None and out.dtype is not given.dtype:
            raise TypeError(f"out must have dtype {found}, as dtype says, not {NAMES[out.dtype]}")
        found = NAMES[out.dtype]
    if found not in WRITES and not (a == "int8" and found == "int32"):
        sums = " and int32" if a == "int8" else ""
        raise TypeError(f"a product of {a} is {', '.join(WRITES)}{sums}, not {found}")
    return found


def _sizes(given: MatmulArguments) -> tuple[Sizes, tuple[int, ...]]:
    """m, n, k and how many; and the shape of the result."""
    a, b = given.a.shape, given.b.shape
    if given.movement is not None:
        return given.movement.over(a, b)
    if len(a) < 2 or len(b) < 2:
        raise ValueError(f"a and b must have at least two dimensions, not shapes {a} and {b}")
    m, k = (a[-1], a[-2]) if given.trans_a else (a[-2], a[-1])
    depth, n = (b[-1], b[-2]) if given.trans_b else (b[-2], b[-1])
    if k != depth:
        raise ValueError(f"a has {k} columns to sum over, and b {depth} rows")
    lead = a[:-2]
    shape = (*lead, m, n)
    count = math.prod(lead)
    if len(b) == 2 and lead and not given.trans_a:  # all products have one b: they are one
        m, count = count * m, 1
    elif lead != b[:-2]:
        raise ValueError(
            f"a has products {lead} and b {b[:-2]}; these must be equal, or b of two dimensions "
            "and a not transposed"
        )
    if not m * n * k * count:
        raise ValueError(f"a of shape {a} and b of shape {b} have no elements to multiply")
    return (m, n, k, count), shape


def _rows(
    given: MatmulArguments, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the rows' part of a result's shape, and the shape of a number for each row."""
    if given.movement is None:  # of a stack with one b, which is one product, all rows
        rows = shape[:-1] if len(given.b.shape) == 2 else shape[-2:-1]
    elif given.movement.filters is None:  # positions, whatever their axes
        rows = shape[:-1]
    else:
        return shape[:1], (shape[0], *(1 for _ in shape[1:]))
    return rows, (*rows, 1)


def require_rows(spec: CutlassSpec, sizes: Sizes, names: tuple[str, str] = ("a", "b")) -> None:
    """Rows of all operands begin at multiples of 16 bytes, and lie as tensor cores take them."""
    m, n, k, *_ = sizes
    if spec.space:  # of which TMA gathers some at a time
        k = ImageWindow.of(sizes, spec.space).channels
    size = DTYPES[spec.a].itemsize
    if (spec.trans_a or not spec.trans_b) and spec.a not in ("float16", "bfloat16"):
        if spec.space:
            raise Unsupported(
                f"gradients of convolutions in {spec.a}: what they are sums over does not lie "
                "innermost, as tensor cores want it; they take float16 and bfloat16 in any layout"
            )
        raise ValueError(
            f"tensor cores take {spec.a} with trans_a=False and trans_b=True, so that rows of both "
            "lie along k; transpose what does not lie so first"
        )
    for name, length, dtype in (
        (names[0], m if spec.trans_a else k, spec.a),
        (names[1], k if spec.trans_b else n, spec.b),
        ("the result", n, spec.out),
        ("what is added", n, spec.source or spec.out),
    ):
        size = DTYPES[dtype].itemsize
        if length * size % ROW_BYTES:
            raise ValueError(
                f"rows of {name} have {length} elements of {dtype}, {length * size} bytes; they "
                f"must have a multiple of {ROW_BYTES // size}, which is {ROW_BYTES} bytes"
            )


@lru_cache(1024)
def chosen(spec: CutlassSpec, choice: KernelChoice, sizes: Sizes) -> tuple[CutlassSpec, int]:
    """A spec with tile, cluster and schedule: the program's, or else what mostly does well.

    Returns:
        It, and a swizzle.
    """
    m, n, *_ = sizes
    tile = choice.tile
    if tile is None:
        rows, columns = (128, 256) if _wide(spec, m, n) else (128, 128)
        if n <= 64:
            rows, columns = 256 if m >= _PROCESSORS * 256 else 128, 64
        tile = rows, columns, 128 // DTYPES[spec.a].itemsize
    schedule = choice.schedule or (COOPERATIVE if tile[0] >= 128 else PINGPONG)
    cluster = choice.cluster or ((2, 1, 1) if m > tile[0] else (1, 1, 1))
    found = msgspec.structs.replace(
        spec, tile=tile, cluster=cluster, schedule=schedule, stages=choice.stages
    )
    wrong = refusal(found)
    if wrong is not None:
        raise ValueError(wrong)
    return found, choice.swizzle or (1 if tile[1] > tile[0] else _SWIZZLE)


def _wide(spec: CutlassSpec, m: int, n: int) -> bool:
    """Return True if wide tiles are fastest: for 16-bit types, unless narrow ones keep more busy.

    Multiprocessors take tiles in rounds, and in the last round some have nothing to do.
    """
    sizes = {DTYPES[spec.a].itemsize, DTYPES[spec.out].itemsize}
    return sizes == {2} and _busy(m, n, 256) >= _NARROW * _busy(m, n, 128)


def _busy(m: int, n: int, columns: int) -> float:
    """Return the part of the multiprocessors' work in all rounds that is for the result."""
    tiles = -(-m // 128) * -(-n // columns)
    rounds = max(1, -(-tiles // _PROCESSORS))
    return m * n / (rounds * _PROCESSORS * 128 * columns)


def space(
    spec: CutlassSpec,
    sizes: Sizes,
    *,
    tiles: Sequence[Sequence[int]] | None,
    clusters: Sequence[Sequence[int]] | None,
    schedules: Sequence[str] | None,
    swizzles: Sequence[int],
) -> list[tuple[CutlassSpec, int]]:
    """All that is tried, without what no kernel can have."""
    given = {"tiles": tiles, "clusters": clusters, "schedules": schedules, "swizzles": swizzles}
    for name, wanted in given.items():
        if wanted is not None and not len(wanted):
            raise ValueError(f"{name} is empty; leave it out for what mostly does well")
    deep = 128 // DTYPES[spec.a].itemsize
    rows = ((64, 128), (64, 256), (128, 128), (128, 256), (256, 128))
    every = [_triple(each, "tile") for each in tiles or [(*each, deep) for each in rows]]
    around = [_triple(each, "cluster") for each in clusters or [(1, 1, 1), (2, 1, 1), (1, 2, 1)]]
    found: list[tuple[CutlassSpec, int]] = []
    wrong = ""
    for tile in every:
        for cluster in around:
            for schedule in schedules or SCHEDULES:
                choice = read_choice(tile, cluster, schedule, "auto", None)
                try:
                    made, _ = chosen(spec, choice, sizes)
                except ValueError as error:
                    wrong = str(error)
                    continue
                found += [(made, _swizzle(swizzle)) for swizzle in swizzles]
    if not found:
        raise ValueError(f"nothing of this can be a kernel: {wrong}")
    return found
