"""Declarations of ops on sparse vectors."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, final

from ....wire.operations import In, Operation, Out, SentAs
from ._messages import Scalar

if TYPE_CHECKING:
    from ....arrays import GpuRef
    from ...blas.checks import Number

SINGLE_OR_DOUBLE: Final = ("float32", "float64", "complex64", "complex128")
INDICES: Final = In("k", ("int32", "int64"))


@final
class Axpby(Operation["GpuRef"]):
    """Add a sparse vector to a dense one, in place: ``y = b * y; y[indices] += a * x``.

    Vendor function: ``cusparseAxpby``.

    Args:
        x: the elements, shape (k,); float32, float64, complex64 or complex128.
        indices: where they are, shape (k,), int32 or int64, each once.
        y: shape (n,), same dtype, not sealed.
        a: what the elements are multiplied with.
        b: what ``y`` is multiplied with.
    """

    unchecked: ClassVar[bool] = True

    x: Annotated[GpuRef, In("k", SINGLE_OR_DOUBLE)]
    indices: Annotated[GpuRef, INDICES]
    y: Annotated[GpuRef, Out("n", like="x")]
    _: KW_ONLY
    a: Annotated[Number, SentAs(Scalar)] = 1.0
    b: Annotated[Number, SentAs(Scalar)] = 1.0


@final
class Gather(Operation["GpuRef"]):
    """Elements of a dense vector: ``y[indices]``.

    Vendor function: ``cusparseGather``.

    Args:
        y: shape (n,), float32, float64, complex64 or complex128.
        indices: shape (k,), int32 or int64.
        out: where they go, shape (k,).
    """

    unchecked: ClassVar[bool] = True

    y: Annotated[GpuRef, In("n", SINGLE_OR_DOUBLE)]
    indices: Annotated[GpuRef, INDICES]
    _: KW_ONLY
    out: Annotated[GpuRef | None, Out("k", like="y")] = None


@final
class Scatter(Operation["GpuRef"]):
    """Write elements of a dense vector, in place: ``y[indices] = x``.

    Vendor function: ``cusparseScatter``.

    Args:
        x: the elements, shape (k,); float32, float64, complex64 or complex128.
        indices: where they go, shape (k,), int32 or int64, each once.
        y: shape (n,), same dtype, not sealed.
    """

    unchecked: ClassVar[bool] = True

    x: Annotated[GpuRef, In("k", SINGLE_OR_DOUBLE)]
    indices: Annotated[GpuRef, INDICES]
    y: Annotated[GpuRef, Out("n", like="x")]
