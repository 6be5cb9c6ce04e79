"""``device.cutlass``: products and convolutions with tiles, schedules and epilogues of choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, final

from ..._dtypes import DTYPES
from ...ops import D, Request, Submission, op
from ._builds import LANE, untraceable
from ._convolutions import CutlassConvolutions
from ._epilogue import ACCUMULATED
from ._grouped import check_groups
from ._product import chosen, read, read_choice
from .wire._spec import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from ...arrays import GpuRef
    from ...ops import Preparer
    from ._builds import CutlassStatistics
    from ._calls import Tuned
    from ._epilogue import Epilogue


@final
class Cutlass(CutlassConvolutions[D]):
    """Matrix products and convolutions by CUTLASS on CUDA, by NumPy on the CPU.

    Kernels are for compute capability 9.0 (Hopper): TMA loads tiles, warps take turns at loading
    and computing, and an epilogue of the program's choice is computed before anything is stored.
    NVRTC compiles them when they are first wanted, which takes half a minute, on a lane of its own;
    they are kept on disk.

    | a and b | summed in | result (the first is the default) |
    |---|---|---|
    | float16, bfloat16 | float32 | the same, float32, bfloat16, float16, fp8 |
    | float32, rounded to TF32 | float32 | float32, bfloat16, float16, fp8 |
    | float8_e4m3fn, float8_e5m2, or one of each | float32 | bfloat16, float16, float32, fp8 |
    | int8 | int32 | int32; with an epilogue float32, bfloat16, float16, fp8 |

    Only float16 and bfloat16 are taken in all layouts; the others want ``trans_a=False,
    trans_b=True``. Rows of all operands have to be whole multiples of 16 bytes. Results beyond the
    range of fp8 become its largest number of that sign.

    All methods raise:
        ValueError: shapes, options, alignment, tiles, clusters or stages that do not fit, aliasing.
        TypeError: dtypes that do not fit, an argument that is not a GpuRef.
        Unsupported: the device has no such kernels.
        CompileError: CUTLASS has no such kernel, for a reason that is not known here.
        LibraryMissing: NVRTC or headers of CUTLASS are not installed.
        GpuRefStale: of an older generation, or freed.
        GpuRefSealed: a sealed ref to be written.
        OutOfMemory: no room for the result.
    """

    @property
    def accumulator(self) -> Epilogue:
        """The product, of which epilogues are made: ``accumulator.gelu() + residual``."""
        return ACCUMULATED

    @op
    def matmul(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        c: GpuRef | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        trans_a: bool = False,
        trans_b: bool = False,
        dtype: DTypeLike | None = None,
        bias: GpuRef | None = None,
        epilogue: Epilogue | None = None,
        fast_accum: bool = True,
        tile: Sequence[int] | None = None,
        cluster: Sequence[int] | None = None,
        schedule: Literal["auto", "cooperative", "pingpong"] = "auto",
        stages: int | Literal["auto"] = "auto",
        swizzle: int | None = None,
    ) -> Request[GpuRef]:
        """Matrix product: ``epilogue(alpha * op(a) @ op(b) + beta * c + bias)``.

        It runs CUTLASS's ``GemmUniversal`` with ``CollectiveBuilder`` and visitor trees
        (``Sm90EVT``).

        Args:
            a: shape (..., m, k), or (..., k, m) with ``trans_a``.
            b: shape (..., k, n), or (..., n, k) with ``trans_b``; or of two dimensions, for all
                products of an ``a`` that is not transposed.
            out: where to put the result: shape (..., m, n), not sealed, no memory in common with
                other arguments but ``c``. Made if absent.
            c: an array to add, of the result's shape.
            alpha: scales the product.
            beta: scales ``c``; 0 ignores it, NaNs included.
            trans_a: use the transpose of ``a``.
            trans_b: use the transpose of ``b``.
            dtype: the dtype of the result, see the class.
            bias: shape (n,), added to each row.
            epilogue: a function of the sum, as an expression of ``accumulator``.
            fast_accum: let fp8 accumulate less precisely, and faster.
            tile: rows, columns and depth of the part that a block of threads computes at a time. By
                default the tile that ``tune`` found for such products, or else one that is usually
                fast.
            cluster: blocks along m, n and 1 that share loaded tiles; with ``tile`` only.
            schedule: with ``"cooperative"``, two groups of warps compute one tile; with
                ``"pingpong"``, a tile each, in alternation. With ``tile`` only.
            stages: tiles that are loaded ahead, by default as many as fit; with ``tile`` only.
            swizzle: how many tiles follow each other along the shorter side: 1, 2, 4 or 8; with
                ``tile`` only.
        """
        return self._multiply("matmul", (a, b), locals())

    @op
    def matmul_grouped(
        self,
        a: GpuRef,
        b: GpuRef,
        sizes: Sequence[int],
        *,
        out: GpuRef | None = None,
        alpha: float = 1.0,
        trans_b: bool = False,
        dtype: DTypeLike | None = None,
        epilogue: Epilogue | None = None,
        fast_accum: bool = True,
        tile: Sequence[int] | None = None,
        cluster: Sequence[int] | None = None,
        schedule: Literal["auto", "cooperative", "pingpong"] = "auto",
        stages: int | Literal["auto"] = "auto",
    ) -> Request[GpuRef]:
        """Each group of rows of ``a`` times a matrix of its own, by one kernel.

        The groups lie one after the other in ``a``. The rows of group ``g`` of the result are
        ``epilogue(alpha * a[start:end] @ op(b[g]))``. A mixture of experts is such a product, with
        its tokens sorted by expert. It runs CUTLASS's grouped ``GemmUniversal``.

        Args:
            a: shape (m, k).
            b: shape (groups, k, n), or (groups, n, k) with ``trans_b``.
            sizes: the number of rows of each group, which may be 0; m in all.
            out: where to put the result: shape (m, n), not sealed, no memory in common with ``a``
                or ``b``. Made if absent.
            alpha: scales the products.
            trans_b: use the transposes of ``b``.
            dtype: the dtype of the result, see the class.
            epilogue: as for ``matmul``, of numbers and functions only.
            fast_accum: as for ``matmul``, like all that follow.
            tile: the part that a block of threads computes at a time.
            cluster: blocks that share loaded tiles.
            schedule: how warps share the work.
            stages: tiles that are loaded ahead.
        """
        given = read(a, b, locals())
        choice = read_choice(tile, cluster, schedule, stages, None)

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            groups = check_groups(given, sizes, self.home, preparer.memory)
            result = out
            if not groups.rows:
                if result is None:
                    result = preparer.output(groups.shape, DTYPES[groups.spec.out])
                return Submission(None, (), (), result)
            m = max(groups.rows)
            made, turn = chosen(groups.spec, choice, (m, *groups.sizes[1:]))
            spec = encode(made)
            building = self._builds.require(preparer, (spec, groups.sizes, turn))
            reads = groups.reads if building is None else (*groups.reads, building)
            if result is None:
                result = preparer.output(groups.shape, DTYPES[groups.spec.out])
            table = preparer.output((groups.table_bytes,), DTYPES["uint8"]).block
            message = groups.message(spec, turn, result, table)
            sent = None if building is None else untraceable
            return Submission(message, reads, (result.block, table), result, sent=sent)

        return Request(LANE, "cutlass.matmul_grouped", prepare)

    @op
    def tune(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        c: GpuRef | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        trans_a: bool = False,
        trans_b: bool = False,
        dtype: DTypeLike | None = None,
        bias: GpuRef | None = None,
        epilogue: Epilogue | None = None,
        fast_accum: bool = True,
        tiles: Sequence[Sequence[int]] | None = None,
        clusters: Sequence[Sequence[int]] | None = None,
        schedules: Sequence[str] | None = None,
        swizzles: Sequence[int] = (1, 2, 4),
    ) -> Request[list[Tuned]]:
        """Find the fastest kernel for such a product, and keep it on disk.

        All combinations that a kernel can have are compiled and timed on these operands; the
        results are discarded. Compiling a kernel takes half a minute if it is not on disk.
        Afterwards ``matmul`` without ``tile`` uses the fastest kernel for products of these sizes,
        dtypes and epilogue, in other programs too. ``statistics`` shows how many kernels are
        compiled.

        All arguments up to ``fast_accum`` are those of ``matmul``. The others are what to try:
        ``tiles``, by default of 64 or 128 rows with 128 or 256 columns, and 256 with 128, all 128
        bytes deep; ``clusters``, by default (1, 1, 1), (2, 1, 1) and (1, 2, 1); ``schedules``, by
        default both; and ``swizzles`` with each combination.

        Returns:
            All kernels that were tried, the fastest first.
        """
        return self._try("tune", (a, b), locals())

    def statistics(self) -> CutlassStatistics:
        """A snapshot of the kernels."""
        return self._builds.statistics()
