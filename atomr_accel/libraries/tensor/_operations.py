"""cuTENSOR's operations one by one: contractions, reductions, permutations, elementwise ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from ..._dtypes import DTYPES
from ...arrays.views import span
from ...ops import (
    Collected,
    D,
    Facade,
    LaneSpec,
    Request,
    Submission,
    Workspaces,
    copying,
    op,
    require_no_race,
    with_tf32,
)
from ...wire.options import flag
from ...wire.recent import Recent
from ._call import TensorCall, alike, operation_of
from .wire._messages import ADDS, OperationKind, RunTensor, TuneTensor, encode
from .wire._operators import REDUCTIONS, TF32

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...arrays import GpuRef
    from ...memory import Block, Epoch
    from ...ops import DeviceView, Preparer
    from ..blas.checks import Number
    from ._call import Checked, Modes

LANE: Final = LaneSpec(
    "tensor",
    {
        "cpu": "atomr_accel.libraries.tensor.host._cpu:CpuTensors",
        "cuda": "atomr_accel.libraries.tensor.host._cuda:CudaTensors",
    },
    own_thread=True,  # to plan an operation takes milliseconds, and more with ``jit``
)

Unary: TypeAlias = Literal[
    "identity",
    "sqrt",
    "relu",
    "conjugate",
    "reciprocal",
    "sigmoid",
    "tanh",
    "exp",
    "log",
    "absolute",
    "negative",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "arcsin",
    "arccos",
    "arctan",
    "arcsinh",
    "arccosh",
    "arctanh",
    "ceil",
    "floor",
    "mish",
    "swish",
    "softplus",
    "softsign",
]
Binary: TypeAlias = Literal["add", "multiply", "maximum", "minimum"]
Reduction: TypeAlias = Literal["sum", "prod", "max", "min"]

WORKSPACE: Final = 64 << 20
"""Bytes of scratch memory that operations share. Plans that need more have some of their own."""

_MOST_OPERATIONS: Final = 2048


class TensorOperations(Facade[D]):
    """The part of ``Tensor`` that is cuTENSOR's."""

    def __init__(self, device: DeviceView) -> None:
        self.home = device
        self._workspaces = Workspaces(LANE.max_streams, WORKSPACE)
        self._tuned: Recent[bytes, Epoch] = Recent(_MOST_OPERATIONS, name="tuned")
        self.caches: tuple[Recent[Any, Any], ...] = (self._tuned,)

    @op
    def contract(
        self,
        a: GpuRef,
        modes_a: Modes,
        b: GpuRef,
        modes_b: Modes,
        modes: Modes,
        *,
        c: GpuRef | None = None,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        op_a: Unary = "identity",
        op_b: Unary = "identity",
        compute_type: str | None = None,
        allow_tf32: bool = False,
        jit: bool = False,
        autotune: bool = False,
    ) -> Request[GpuRef]:
        """Contraction: ``alpha * a * b + beta * c``, summed along modes that the result lacks.

        Vendor function: ``cutensorContract``.

        Args:
            a: any view.
            modes_a: the index of each of its axes, such as ``"ik"``.
            b: the same dtype.
            modes_b: the indices of its axes.
            modes: those of the result.
            c: an array to add: shape and dtype of the result. ``out`` by default, if ``beta`` is
                not 0.
            out: where to put the result; may be ``c``. Made if absent.
            alpha: scales the product.
            beta: scales ``c``; with 0 ``c`` is not read.
            op_a: an operator for each element of ``a``: ``"conjugate"`` for complex ones.
            op_b: the same of ``b``.
            compute_type: how to compute, see the class.
            allow_tf32: whether products of float32 and complex64 may round their factors to ten
                bits, to run faster.
            jit: let cuTENSOR compile a kernel for this operation, which takes seconds the first
                time. Kernels are kept on the disk.
            autotune: the first time, time all algorithms on these operands and keep the fastest,
                also on disk. Has no effect in batches and recordings.

        Raises:
            ValueError: modes that do not fit, or come twice in an array; operands without elements,
                which ``einsum`` takes.
            LibraryMissing: cuTENSOR is not installed.
            Unsupported: cuTENSOR does not support the operation.
        """
        return self._request(OperationKind.CONTRACT, locals())

    @op
    def contract_trinary(
        self,
        a: GpuRef,
        modes_a: Modes,
        b: GpuRef,
        modes_b: Modes,
        c: GpuRef,
        modes_c: Modes,
        modes: Modes,
        *,
        d: GpuRef | None = None,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        compute_type: str | None = None,
        allow_tf32: bool = False,
        jit: bool = False,
        autotune: bool = False,
    ) -> Request[GpuRef]:
        """Contraction of three arrays: ``alpha * a * b * c + beta * d``.

        As ``contract`` with a third factor ``c`` of the same dtype, and ``modes_c`` for the indices
        of its axes. ``d`` is the array to add. Other arguments are those of ``contract``.

        Vendor function: ``cutensorContractTrinary`` (cuTENSOR 2.3).
        """
        return self._request(OperationKind.CONTRACT_TRINARY, locals())

    @op
    def reduce(
        self,
        a: GpuRef,
        modes_a: Modes,
        modes: Modes = "",
        op: Reduction = "sum",
        *,
        c: GpuRef | None = None,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        op_a: Unary = "identity",
        compute_type: str | None = None,
    ) -> Request[GpuRef]:
        """Reduction along modes: ``alpha * op(a) + beta * c``.

        Vendor function: ``cutensorReduce``.

        Args:
            a: any view.
            modes_a: the index of each of its axes.
            modes: the remaining ones, in any order.
            op: ``"sum"``, ``"prod"``, ``"max"`` or ``"min"``; not the last two of complex numbers.
            c: an array to add, as for ``contract``.
            out: as for ``contract``.
            alpha: scales the reduction.
            beta: scales ``c``; with 0 ``c`` is not read.
            op_a: an operator for each element before the reduction.
            compute_type: as for ``contract``.
        """
        if op not in REDUCTIONS:
            raise ValueError(f"op must be one of {', '.join(map(repr, REDUCTIONS))}, not {op!r}")
        return self._request(OperationKind.REDUCE, locals(), (REDUCTIONS[op],))

    @op
    def permute(
        self,
        a: GpuRef,
        modes_a: Modes,
        modes: Modes,
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        op_a: Unary = "identity",
        compute_type: str | None = None,
    ) -> Request[GpuRef]:
        """Permute axes: ``alpha * op(a)``.

        Vendor function: ``cutensorPermute``.

        Args:
            a: any view.
            modes_a: the index of each of its axes.
            modes: the same ones in the order of the result.
            out: where to put the result. Made if absent.
            alpha: scales it.
            op_a: an operator for each element.
            compute_type: as for ``contract``.
        """
        return self._request(OperationKind.PERMUTE, locals())

    @op
    def elementwise_binary(
        self,
        a: GpuRef,
        modes_a: Modes,
        c: GpuRef,
        modes_c: Modes,
        op: Binary = "add",
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        gamma: Number = 1.0,
        op_a: Unary = "identity",
        op_c: Unary = "identity",
        compute_type: str | None = None,
    ) -> Request[GpuRef]:
        """Two arrays joined element by element: ``op(alpha * op_a(a), gamma * op_c(c))``.

        Vendor function: ``cutensorElementwiseBinaryExecute``.

        Args:
            a: any view.
            modes_a: the index of each of its axes; along others of ``c`` it is repeated.
            c: any view of the same dtype.
            modes_c: the index of each of its axes, and of the result's.
            op: ``"add"``, ``"multiply"``, ``"maximum"`` or ``"minimum"``.
            out: where to put the result; may be ``c``. Made if absent.
            alpha: scales ``a``.
            gamma: scales ``c``.
            op_a: an operator for each element of ``a``, applied first.
            op_c: the same of ``c``.
            compute_type: as for ``contract``.
        """
        return self._request(OperationKind.BINARY, locals(), (op,))

    @op
    def elementwise_trinary(
        self,
        a: GpuRef,
        modes_a: Modes,
        b: GpuRef,
        modes_b: Modes,
        c: GpuRef,
        modes_c: Modes,
        op_ab: Binary = "add",
        op_abc: Binary = "add",
        *,
        out: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 1.0,
        gamma: Number = 1.0,
        op_a: Unary = "identity",
        op_b: Unary = "identity",
        op_c: Unary = "identity",
        compute_type: str | None = None,
    ) -> Request[GpuRef]:
        """Three arrays joined: ``op_abc(op_ab(alpha * a, beta * b), gamma * c)``.

        Vendor function: ``cutensorElementwiseTrinaryExecute``.

        Arguments are those of ``elementwise_binary``, with ``b`` between the other two: ``modes_b``
        are the indices of its axes, as ``modes_a``, ``beta`` scales it, and ``op_b`` is an operator
        for each of its elements. ``op_ab`` joins ``a`` and ``b``, and ``op_abc`` that and ``c``.
        """
        return self._request(OperationKind.TRINARY, locals(), (op_ab, op_abc))

    # --- in common ------------------------------------------------------------------------

    def _request(
        self, kind: OperationKind, given: Mapping[str, Any], operators: tuple[str, ...] = ()
    ) -> Request[GpuRef]:
        """Return the request for an operation, with the arguments of its method by name."""
        call = TensorCall.of(kind, given)
        unary = tuple([given[each] for each in ("op_a", "op_b", "op_c") if each in given])
        allow_tf32 = given.get("allow_tf32", False)
        compute_type = with_tf32(given["compute_type"], TF32, allow_tf32=allow_tf32)
        jit, autotune = given.get("jit", False), given.get("autotune", False)
        jit, autotune = flag(jit, "jit"), flag(autotune, "autotune")
        require_no_race(self.home, autotune=autotune)

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            checked = call.checked(preparer.memory)
            result = checked.out
            if result is None:
                result = preparer.output(checked.shape, checked.dtype)
            options = (compute_type, unary, operators, jit, autotune)
            data = encode(operation_of(call, checked, result, *options))
            before: tuple[Request[Any], ...] = ()
            inputs = list(call.arrays)
            added = None
            if call.kind in ADDS and checked.scalars[1] not in (0.0, (0.0, 0.0)):
                added = call.out if call.added is None else call.added
                if added is None:
                    raise ValueError("beta scales what is added; pass that, or out")
            last = added if call.kind in ADDS else inputs[-1]
            if (
                call.kind is not OperationKind.PERMUTE
                and last is not None
                and not alike(last, result)
            ):
                # What is added, or joined last, has to lie as the result does.
                before = (copying(last, result),)
                if call.kind in ADDS:
                    added = result
                else:
                    inputs[-1] = result
            reads = [
                ref.addressable_block for ref in (*inputs, *([] if added is None else [added]))
            ]
            if autotune and preparer.home.call_mode is not Collected:
                self._tune(preparer, data, checked, inputs, result)
            workspace, nbytes = self._workspace(preparer, call.kind)
            message = RunTensor(
                data,
                tuple([ref.addressable_block.address for ref in inputs]),
                0 if added is None else added.addressable_block.address,
                result.addressable_block.address,
                checked.scalars,
                0 if workspace is None else workspace.address,
                nbytes,
            )
            writes = [result.addressable_block, *([] if workspace is None else [workspace])]
            return Submission(message, reads, writes, result, before=before)

        return Request(LANE, f"tensor.{call.kind.value}", prepare)

    def _workspace(self, preparer: Preparer, kind: OperationKind) -> tuple[Block | None, int]:
        if kind not in ADDS or not self.home.capabilities.needs_scratch:
            return None, 0
        return self._workspaces.obtain(preparer, WORKSPACE), WORKSPACE

    def _tune(
        self,
        preparer: Preparer,
        data: bytes,
        checked: Checked,
        inputs: list[GpuRef],
        result: GpuRef,
    ) -> None:
        """Have the host time algorithms, once in a generation."""
        known = self._tuned.get(data)
        if known is preparer.memory.epoch:
            return
        if known is not None:
            self._tuned.discount()

        def prepare(preparer: Preparer) -> Submission[bool]:
            _, nbytes = span(result.shape, result.strides, result.dtype.itemsize)
            trial = preparer.output((nbytes,), DTYPES["uint8"])
            workspace, size = self._workspace(preparer, OperationKind.CONTRACT)
            run = RunTensor(
                data,
                tuple([ref.addressable_block.address for ref in inputs]),
                0,
                trial.block.address,
                (checked.scalars[0], (0.0, 0.0) if checked.dtype.kind == "c" else 0.0),
                0 if workspace is None else workspace.address,
                size,
            )
            writes = [trial.block, *([] if workspace is None else [workspace])]
            return Submission(
                TuneTensor(run), [ref.addressable_block for ref in inputs], writes, True
            )

        preparer.perform(Request(LANE, "tensor.tune", prepare, key=("tensor.tune", data)))
        self._tuned.add(data, preparer.memory.epoch)
