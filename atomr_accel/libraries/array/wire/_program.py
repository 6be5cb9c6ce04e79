"""Expressions on the wire: steps for an interpreter, and kernels to be compiled."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from ....wire import Address, Message, Word


class StridedArray(msgspec.Struct, frozen=True, array_like=True):
    """A buffer, or a view of one.

    Attributes:
        address: address of the first element.
        strides: bytes from one element to the next along each axis.
        dtype: its dtype's name.
    """

    address: Address
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


class ExpressionStep(msgspec.Struct, frozen=True, array_like=True):
    """A value of an expression, made of earlier ones.

    Attributes:
        name: the function, if it is one.
        args: the numbers of the values that it is made of; of an operand or a constant its own.
        dtype: its dtype's name.
        axes: of a reduction the axes that it removes; of a view its axes in the argument, -1 for
            one that repeats; of an index its axis.
        keepdims: of a reduction, whether these axes stay, with one element.
    """

    kind: Literal[
        "operand", "constant", "ufunc", "cast", "where", "reduce", "arg", "view", "index", "matmul"
    ]
    name: str
    args: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[int, ...] = ()
    keepdims: bool = False


class Interpret(Message, frozen=True):
    """Compute expressions step by step.

    Attributes:
        steps: all values, each after those that it is made of.
        operands: the buffers that they read.
        constants: the numbers in them, each as words of four bytes.
        results: the numbers of the values that are wanted.
        outputs: the buffers of the results.
    """

    steps: tuple[ExpressionStep, ...]
    operands: tuple[StridedArray, ...]
    constants: tuple[tuple[Word, ...], ...]
    results: tuple[int, ...]
    outputs: tuple[StridedArray, ...]


# --- kernels --------------------------------------------------------------------------------


class KernelNode(msgspec.Struct, frozen=True, array_like=True):
    """A value in a kernel, of one element.

    Attributes:
        kind: the kind of the node. The argument of ``"load"`` and ``"index"`` is the number of an
            operand, that of ``"scalar"`` the number of a constant; arguments of others are earlier
            nodes.
        name: the name of the function, if it is one.
        args: the arguments of the node.
        dtype: its dtype's name.
    """

    kind: Literal["load", "index", "scalar", "ufunc", "cast", "where", "reduce", "arg"]
    name: str
    args: tuple[int, ...]
    dtype: str


class Access(msgspec.Struct, frozen=True, array_like=True):
    """Access of a kernel to an operand or an output.

    Attributes:
        dtype: its dtype's name.
        vector: whether its elements are contiguous along the innermost axis, to be read and written
            several at a time.
        fixed: whether it has one value along the innermost axis.
        varies: whether it depends on the axes that are reduced.
    """

    dtype: str
    vector: bool
    fixed: bool
    varies: bool


class KernelForm(msgspec.Struct, frozen=True, array_like=True):
    """A kernel without its sizes, strides and numbers.

    Attributes:
        nodes: its values, each after those that it uses.
        operands: its inputs.
        results: the node of each output.
        kept: number of axes of its results.
        reduced: number of axes that are reduced.
        layout: ``"each"``: a thread for some elements; ``"rows"``: threads together for each row;
            ``"columns"``: threads side by side for columns.
        vector: elements that a thread takes at once.
        items: number of steps of a row that a thread keeps in registers; 0 for a loop.
        group: threads that reduce together.
        threads: threads of a block.
        split: whether each row is cut into parts, whose reductions are written without a last step.
        wide: whether indices take 64 bits.
    """

    nodes: tuple[KernelNode, ...]
    operands: tuple[Access, ...]
    outputs: tuple[Access, ...]
    results: tuple[int, ...]
    kept: int
    reduced: int
    layout: Literal["each", "rows", "columns"]
    vector: int
    items: int
    group: int
    threads: int
    split: bool
    wide: bool


class BuildKernels(Message, frozen=True):
    """Compile kernels and load each under a number.

    Attributes:
        kernels: the numbers.
    """

    prepares: ClassVar[bool] = True
    lasting: ClassVar[bool] = True

    kernels: tuple[int, ...]
    forms: tuple[KernelForm, ...]

    def undo(self) -> ForgetKernels:
        """Return the message that releases them."""
        return ForgetKernels(self.kernels)


class ForgetKernel(Message, frozen=True):
    """Free a kernel, if it exists, whichever others it was built with."""

    kernel: int


class ForgetKernels(Message, frozen=True):
    """Free kernels that were built together; each may have been built with others, too."""

    kernels: tuple[int, ...]


class ExpressionLaunch(msgspec.Struct, frozen=True, array_like=True):
    """A launch of a kernel that was built.

    Attributes:
        kernel: its number.
        blocks: the number of blocks, in x and y.
        addresses: the addresses of operands, then of outputs.
        numbers: sizes of kept axes, of reduced ones, the length of a part; strides in elements.
        scalars: the numbers of the expression, in words of four bytes, an even count for each.
    """

    kernel: int
    blocks: tuple[int, int]
    addresses: tuple[Address, ...]
    numbers: tuple[int, ...]
    scalars: tuple[Word, ...]


class RunKernels(Message, frozen=True):
    """Launch kernels one after the other."""

    launches: tuple[ExpressionLaunch, ...]
