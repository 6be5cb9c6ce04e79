"""Messages of the tensor lane.

All operations are one message, whose ``TensorOperation`` is sent as bytes. These are the key of
executors' plans: they are equal if all extents, strides, modes, dtypes, operators, compute types
and alignments are.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Final

import msgspec

from ....wire import Address, Message

Scalar = float | tuple[float, float]


class OperationKind(StrEnum):
    """The result of an operation on its operands x, y, z, its scalars and the added array c."""

    CONTRACT = "contract"
    """``alpha x y + beta c``, summed along the modes that the result has not."""
    CONTRACT_TRINARY = "contract_trinary"
    """``alpha x y z + beta c``."""
    REDUCE = "reduce"
    """``alpha reduce(x) + beta c``, by an operator."""
    PERMUTE = "permute"
    """``alpha x``, with axes in another order."""
    BINARY = "elementwise_binary"
    """``op(alpha x, gamma y)``."""
    TRINARY = "elementwise_trinary"
    """``op_2(op_1(alpha x, beta y), gamma z)``."""


ADDS: Final = frozenset(
    (OperationKind.CONTRACT, OperationKind.CONTRACT_TRINARY, OperationKind.REDUCE)
)
"""Operations that add ``beta c``; their scalars are ``(alpha, beta)``."""


class TensorLayout(msgspec.Struct, frozen=True, array_like=True):
    """The layout of an array of an operation.

    Attributes:
        extents: elements along each axis.
        strides: elements from one to the next along each.
        modes: the index of each axis, all different.
        alignment: bytes to which its address is aligned.
        operator: an operator for each element, applied first.
    """

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    modes: tuple[int, ...]
    alignment: int
    operator: str = "identity"


class TensorOperation(msgspec.Struct, frozen=True, array_like=True):
    """An operation without addresses and scalars.

    Attributes:
        dtype: of all arrays, by name.
        compute: the compute type, as the vendor names it without its prefix.
        inputs: one, two or three.
        output: the result; the added array has the same layout.
        operators: the operator of the reduction, or those that join operands.
        jit: True if a kernel may be compiled for it.
        tuned: True to use the fastest kernel that ``TuneTensor`` found.
    """

    kind: OperationKind
    dtype: str
    compute: str
    inputs: tuple[TensorLayout, ...]
    output: TensorLayout
    operators: tuple[str, ...] = ()
    jit: bool = False
    tuned: bool = False


class Available(Message, frozen=True):
    """Answer whether einsum does well to ask for contractions here."""

    returns: ClassVar[Any] = bool


class RunTensor(Message, frozen=True):
    """Execute an operation.

    Attributes:
        operation: encoded.
        inputs: their addresses.
        added: the added array's address; may be that of the output. 0 if there is none.
        output: the result's address.
        scalars: those of the kind.
        workspace: the address of scratch memory.
        workspace_bytes: its size.
    """

    operation: bytes
    inputs: tuple[Address, ...]
    added: Address
    output: Address
    scalars: tuple[Scalar, ...]
    workspace: Address
    workspace_bytes: int


class TuneTensor(Message, frozen=True):
    """Time all kernels of an operation, and use the fastest from now on.

    Attributes:
        run: the operation, on memory whose contents are discarded.
    """

    run: RunTensor


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(TensorOperation)


def encode(operation: TensorOperation) -> bytes:
    """An operation as bytes."""
    return _ENCODER.encode(operation)


def decode(data: bytes) -> TensorOperation:
    """An operation of its bytes."""
    return _DECODER.decode(data)


def numbers_of(scalars: tuple[Scalar, ...]) -> list[Any]:
    """Scalars as Python's numbers."""
    return [complex(*each) if isinstance(each, tuple) else each for each in scalars]
