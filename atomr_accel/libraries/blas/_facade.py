"""``device.blas``: linear algebra on buffers, in NumPy's conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from .._arguments import require_dtype, require_rank, require_shape, usable, writable
from .._library import LaneSpec
from ._messages import Gemm

if TYPE_CHECKING:
    from ...memory import Block, GpuRef
    from .._library import Submitter

LANE: Final = LaneSpec(
    "blas",
    {
        "cpu": "atomr_accel.libraries.blas._cpu:CpuBlas",
        "cuda": "atomr_accel.libraries.blas._cuda:CudaBlas",
    },
    ways=4,
)

GEMM_DTYPES: Final = ("float16", "bfloat16", "float32", "float64")

_Plan = tuple[int, int, int, tuple[int, int], int, str]


@final
class Blas:
    """Basic linear algebra: cuBLAS on CUDA, NumPy on the CPU.

    Arrays are row-major, and dtypes are float16, bfloat16, float32 or float64. Products
    of the 16-bit types are accumulated in float32; float32 is computed as float32 (no
    TF32).
    """

    def __init__(self, device: Submitter) -> None:
        self._device = device
        self._plans: dict[tuple[Any, ...], _Plan] = {}

    async def gemm(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        trans_a: bool = False,
        trans_b: bool = False,
    ) -> GpuRef:
        """Matrix product: ``alpha * op(a) @ op(b) + beta * out``.

        Vendor function: ``cublasGemmEx_64``.

        Args:
            a: shape (m, k), or (k, m) with ``trans_a``.
            b: shape (k, n), or (n, k) with ``trans_b``; same dtype as ``a``.
            out: where to put the result: shape (m, n), same dtype, not sealed, no memory
                in common with ``a`` or ``b``. Made if absent.
            alpha: scales the product.
            beta: scales what ``out`` holds before; 0 ignores it, NaNs included.
            trans_a: use the transpose of ``a``.
            trans_b: use the transpose of ``b``.

        Returns:
            ``out``, or a new buffer of shape (m, n).

        Raises:
            ValueError: shapes that do not fit, ``beta`` without ``out``, aliasing, a ref
                of another device.
            TypeError: unequal or unsupported dtypes, an argument that is no GpuRef.
            GpuRefStale, GpuRefSealed: a ref that may not be read, or written.
            OutOfMemory: no room for the result.
        """
        device = self._device
        memory = device.memory
        block_a = usable(a, memory, "a")
        block_b = usable(b, memory, "b")
        key = (a.shape, b.shape, a.dtype, b.dtype, trans_a, trans_b)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = _plan_gemm(a, b, trans_a=trans_a, trans_b=trans_b)
        m, n, k, shape, nbytes, dtype = plan
        reads: tuple[Block, ...] = (block_a, block_b)
        if out is None:
            if beta != 0.0:
                raise ValueError(f"beta={beta} scales what out holds before, but there is no out")
            out = device.try_empty(shape, a.dtype, nbytes)
            if out is None:  # waiting for memory, or for a rebuild: then check again
                out = await device.empty(shape, a.dtype)
                return await self.gemm(a, b, out=out, alpha=alpha, trans_a=trans_a, trans_b=trans_b)
            block_c = out._block
        else:
            block_c = writable(out, memory, "out")
            require_shape(out, shape, "out")
            require_dtype(out, a.dtype, "out", "a")
            if block_c is block_a or block_c is block_b:
                raise ValueError("out shares memory with an input, which gemm would overwrite")
            if beta != 0.0:
                reads = (block_a, block_b, block_c)
        port = device.ports.get("blas")
        if port is None:
            await device.open_lane(LANE)
            return await self.gemm(
                a, b, out=out, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b
            )
        message = Gemm(
            block_a.address,
            block_b.address,
            block_c.address,
            m,
            n,
            k,
            dtype,
            trans_a,
            trans_b,
            alpha,
            beta,
        )
        await device.submit(port, "blas.gemm", message, reads, (block_c,)).wait()
        return out


def _plan_gemm(a: GpuRef, b: GpuRef, *, trans_a: bool, trans_b: bool) -> _Plan:
    require_rank(a, 2, "a")
    require_rank(b, 2, "b")
    if a.dtype.name not in GEMM_DTYPES:
        raise TypeError(
            f"gemm does not take dtype {a.dtype.name}; expected one of {', '.join(GEMM_DTYPES)}"
        )
    require_dtype(b, a.dtype, "b", "a")
    m, k = a.shape[::-1] if trans_a else a.shape
    k_b, n = b.shape[::-1] if trans_b else b.shape
    if k != k_b:
        raise ValueError(
            f"the inner dimensions differ: op(a) is {(m, k)} (a has shape {a.shape}, "
            f"trans_a={trans_a}), op(b) is {(k_b, n)} (b has shape {b.shape}, trans_b={trans_b})"
        )
    return m, n, k, (m, n), m * n * a.dtype.itemsize, a.dtype.name
