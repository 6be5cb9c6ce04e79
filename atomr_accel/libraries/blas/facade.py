"""``device.blas``: linear algebra on buffers, in NumPy's conventions."""

from __future__ import annotations

from typing import final

from ...ops import D
from ._factor import Factorizations
from ._gemm import BlasProducts
from ._grouped import GroupedProducts
from ._level1 import Level1
from ._level2 import Level2
from ._level3 import Level3
from ._stacked import StackedRoutines
from .checks import LANE

__all__ = ["LANE", "Blas"]


@final
class Blas(
    BlasProducts[D],
    GroupedProducts[D],
    Level1[D],
    Level2[D],
    Level3[D],
    StackedRoutines[D],
    Factorizations[D],
):
    """Basic linear algebra: cuBLAS on CUDA, NumPy and SciPy on the CPU.

    Matrix products are called as in NumPy (``matmul``) or with the options of BLAS (``gemm``);
    routines of vectors and of structured matrices as in ``scipy.linalg.blas``; batched
    factorizations as in ``scipy.linalg.lapack``. Arrays are row-major throughout. All inputs of a
    call have one dtype; nothing is promoted.

    Every result is a buffer on the device, also a scalar one, so that ops chain without transfers:
    ``out`` if it was given, or a new one.

    **Products.** The result has the dtype of the inputs, unless ``dtype=`` names another one:

    | inputs | result | compute types |
    |---|---|---|
    | float16 | float16, float32 | 32F, 32F_PEDANTIC; 16F, 16F_PEDANTIC for float16 |
    | bfloat16 | bfloat16, float32 | 32F, 32F_PEDANTIC |
    | float32, complex64 | the same | 32F, 32F_PEDANTIC, 32F_FAST_16F, 32F_FAST_16BF; |
    | | | 32F_EMULATED_16BFX9 for float32 |
    | float64, complex128 | the same | 64F, 64F_PEDANTIC, 64F_EMULATED_FIXEDPOINT |
    | int8 | int32 | 32I, 32I_PEDANTIC |
    | int8 | float32 | 32F, 32F_PEDANTIC |

    Compute types are the vendor's, without ``CUBLAS_COMPUTE_``; the first is the default, so
    float32 is float32; ``allow_tf32=True`` lets it be TF32. ``64F_EMULATED_FIXEDPOINT`` (cuBLAS
    13.1) lets the vendor multiply integers instead of float64 if its own rules find that faster;
    with older releases it is ``Unsupported``. The CPU backend ignores faster compute types: it
    computes in the type itself, and 16-bit types in float32. int8 needs rows of a multiple of four
    elements, and ``alpha`` and ``beta`` must be 0 or 1 if the result is int32.

    **Views.** Pass parts of a buffer as views, also as outputs: ``nrm2(m[:, 3])``,
    ``scal(2.0, x[::2])``. cuBLAS reads the steps of a vector as its increment, and the gaps between
    the rows of a matrix as its leading dimension. Transposes (``a.T``) of matrices are read
    directly if a routine has an option or a triangle for that. ``trans="C"`` is for conjugates, of
    which there are no views. Other views are copied first: broadcast vectors, bands and packed
    triangles with gaps, and reversed vectors if cuBLAS wants positive increments.

    **Vectors** are one-dimensional. At level 1 dtypes are float16, bfloat16, float32, float64,
    complex64 and complex128; the 16-bit ones compute in float32. Of these cuBLAS documents
    ``axpy``, ``scal``, ``dot``, ``nrm2`` and ``rot`` only. The other routines are called too; a
    release that refuses them raises ``Unsupported``.

    **Scalars** of these routines and of ``gemm`` may be buffers of shape () on the device, such as
    the result of ``dot`` or of an expression. A chain of calls then needs no transfer. The buffers
    have the dtype of the operands, or its real dtype if the scalar is real. With 16-bit operands
    they are float32, except for ``rot``. Scalars of ``gemm`` have the dtype in which the product is
    computed. With ``beta`` on the device, the output is always read, and a sum without terms raises
    ``Unsupported``.

    **Matrices with structure**, at levels 2 and 3, are float32, float64, complex64 or complex128;
    ``gemv`` takes float16 and bfloat16 too. Only the part that holds the data is read or written:
    the upper triangle, or with ``lower`` the lower one. Bands and packed triangles (level 2) are
    stored as in ``scipy.linalg``: a row for each diagonal, or one column of the triangle after the
    other. Of these, the symmetric ones are real and the Hermitian ones complex.

    **Batched factorizations** take many small matrices at once: shape (..., m, n), of which the
    leading dimensions count the matrices. Dtypes are float32, float64, complex64 and complex128.

    All methods raise:
        ValueError: shapes, sizes or options that do not fit, ``beta`` without ``out``, arguments
            that share memory, a ref of another device.
        TypeError: unequal or unsupported dtypes, an argument that is not a GpuRef.
        GpuRefStale, GpuRefSealed: a ref that may not be read, or written.
        OutOfMemory: no room for the result.
        LibraryError: cuBLAS refuses.
    """

    templated = True
