"""cuTENSOR's operations one by one: contractions, reductions, permutations, elementwise ones."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from ..._dtypes import DTYPES, NAMES
from ..._errors import said_of
from ...memory._views import span, strides_of
from .._arguments import (
    alignment,
    not_contiguous,
    overlap,
    require_dtype,
    require_no_race,
    require_readable,
    require_writable,
    same_place,
)
from .._library import LaneSpec
from .._op import Collected, D, Facade, op
from .._request import Request, Submission
from .._workspaces import Workspaces
from ..array._copy import copying
from ..blas._checks import scalar
from ..wire._options import flag
from ..wire._recent import Recent
from .wire._messages import ADDS, Kind, Operation, Run, Tensor, Tune, encode
from .wire._operators import BINARY, COMPLEX_UNARY, COMPUTE, REDUCTIONS, UNARY

if TYPE_CHECKING:
    import numpy as np

    from ...memory import Block, Epoch, GpuRef, MemoryMap
    from .._library import Home
    from .._request import Driver
    from ..blas._checks import Number
    from .wire._messages import Scalar

LANE: Final = LaneSpec(
    "tensor",
    {
        "cpu": "atomr_accel.libraries.tensor.host._cpu:CpuTensors",
        "cuda": "atomr_accel.libraries.tensor.host._cuda:CudaTensors",
    },
    blocks=True,  # to plan an operation takes milliseconds, and more with ``jit``
)

Modes: TypeAlias = "str | Sequence[Hashable]"
"""The index of each axis: a letter or anything hashable for each."""
Unary: TypeAlias = Literal[
    *("identity", "sqrt", "relu", "conjugate", "reciprocal", "sigmoid", "tanh", "exp", "log"),
    *("absolute", "negative", "sin", "cos", "tan", "sinh", "cosh", "arcsin", "arccos", "arctan"),
    *("arcsinh", "arccosh", "arctanh", "ceil", "floor", "mish", "swish", "softplus", "softsign"),
]
Binary: TypeAlias = Literal["add", "multiply", "maximum", "minimum"]
Reduction: TypeAlias = Literal["sum", "prod", "max", "min"]

WORKSPACE: Final = 64 << 20
"""Bytes of scratch memory that operations share. Plans that need more have some of their own."""

_MOST_OPERATIONS: Final = 2048
_UINT8: Final = DTYPES["uint8"]


class Operations(Facade[D]):
    """The part of ``Tensor`` that is cuTENSOR's."""

    def __init__(self, device: Home) -> None:
        self._device = device
        self._workspaces = Workspaces(LANE.max_streams, WORKSPACE)
        self._encoded: Recent[Hashable, bytes] = Recent(_MOST_OPERATIONS)
        self._tuned: Recent[bytes, Epoch] = Recent(_MOST_OPERATIONS)

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
        jit: bool = False,
        autotune: bool = False,
    ) -> Request[GpuRef]:
        """Contraction: ``alpha * a * b + beta * c``, summed along what the result has not.

        Vendor function: ``cutensorContract``.

        Args:
            a: any view.
            modes_a: the index of each of its axes, such as ``"ik"``.
            b: the same dtype.
            modes_b: the indices of its axes.
            modes: those of the result.
            c: what is added: shape and dtype of the result. ``out`` by default, if ``beta`` is
                not 0.
            out: where to put the result; may be ``c``. Made if absent.
            alpha: scales the product.
            beta: scales ``c``; with 0 that is not read.
            op_a: what is done to the elements of ``a``: ``"conjugate"`` of complex ones.
            op_b: the same of ``b``.
            compute_type: how to compute, see the class.
            jit: let cuTENSOR compile a kernel for this operation, which takes seconds the first
                time. Kernels are kept on the disk.
            autotune: the first time, time the algorithms that there are on these operands and
                keep the fastest, on the disk, too. Has no effect in batches and recordings.

        Returns:
            ``out``, or a new C-contiguous buffer.

        Raises:
            ValueError: modes that do not fit, or come twice in an array; operands without
                elements, which ``einsum`` takes.
            TypeError: unequal or unsupported dtypes.
            LibraryMissing: cuTENSOR is not installed.
            Unsupported: cuTENSOR does not do that.
        """
        call = _Call(Kind.CONTRACT, (a, b), (modes_a, modes_b), modes, c, out, (alpha, beta))
        return self._request(call, (op_a, op_b), compute_type, jit=jit, autotune=autotune)

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
        jit: bool = False,
        autotune: bool = False,
    ) -> Request[GpuRef]:
        """Contraction of three arrays: ``alpha * a * b * c + beta * d``.

        Vendor function: ``cutensorContractTrinary`` (cuTENSOR 2.3).

        Args:
            a: any view.
            modes_a: the index of each of its axes.
            b: the same dtype.
            modes_b: the indices of its axes.
            c: the same dtype.
            modes_c: the indices of its axes.
            modes: those of the result.
            d: what is added; as ``c`` of ``contract``.
            out: as for ``contract``.
            alpha: scales the product.
            beta: scales ``d``; with 0 that is not read.
            compute_type: as for ``contract``.
            jit: as for ``contract``.
            autotune: as for ``contract``.

        Returns:
            ``out``, or a new C-contiguous buffer.

        Raises:
            ValueError, TypeError, LibraryMissing, Unsupported: as for ``contract``.
        """
        arrays, labels = (a, b, c), (modes_a, modes_b, modes_c)
        call = _Call(Kind.CONTRACT_TRINARY, arrays, labels, modes, d, out, (alpha, beta))
        return self._request(call, (), compute_type, jit=jit, autotune=autotune)

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
            modes: those that are left, in any order.
            op: ``"sum"``, ``"prod"``, ``"max"`` or ``"min"``; not the last two of complex numbers.
            c: what is added, as for ``contract``.
            out: as for ``contract``.
            alpha: scales what the reduction gives.
            beta: scales ``c``; with 0 that is not read.
            op_a: what is done to each element first.
            compute_type: as for ``contract``.

        Returns:
            ``out``, or a new C-contiguous buffer.

        Raises:
            ValueError, TypeError, LibraryMissing, Unsupported: as for ``contract``.
        """
        if op not in REDUCTIONS:
            raise ValueError(f"op is {op!r}; expected one of {', '.join(map(repr, REDUCTIONS))}")
        call = _Call(Kind.REDUCE, (a,), (modes_a,), modes, c, out, (alpha, beta))
        return self._request(call, (op_a,), compute_type, (REDUCTIONS[op],))

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
        """Axes in another order: ``alpha * op(a)``.

        Vendor function: ``cutensorPermute``.

        Args:
            a: any view.
            modes_a: the index of each of its axes.
            modes: the same ones in the order of the result.
            out: where to put the result. Made if absent.
            alpha: scales it.
            op_a: what is done to each element first.
            compute_type: as for ``contract``.

        Returns:
            ``out``, or a new C-contiguous buffer.

        Raises:
            ValueError, TypeError, LibraryMissing, Unsupported: as for ``contract``.
        """
        call = _Call(Kind.PERMUTE, (a,), (modes_a,), modes, None, out, (alpha,))
        return self._request(call, (op_a,), compute_type)

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
            op_a: what is done to each element of ``a`` first.
            op_c: the same of ``c``.
            compute_type: as for ``contract``.

        Returns:
            ``out``, or a new C-contiguous buffer.

        Raises:
            ValueError, TypeError, LibraryMissing, Unsupported: as for ``contract``.
        """
        labels = modes_a, modes_c
        call = _Call(Kind.BINARY, (a, c), labels, modes_c, None, out, (alpha, gamma))
        return self._request(call, (op_a, op_c), compute_type, (op,))

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

        Args:
            a: any view.
            modes_a: the index of each of its axes; along others of ``c`` it is repeated.
            b: the same dtype.
            modes_b: as ``modes_a``.
            c: the same dtype.
            modes_c: the index of each of its axes, and of the result's.
            op_ab: joins ``a`` and ``b``, as for ``elementwise_binary``.
            op_abc: joins that and ``c``.
            out: where to put the result; may be ``c``. Made if absent.
            alpha: scales ``a``.
            beta: scales ``b``.
            gamma: scales ``c``.
            op_a: what is done to each element of ``a`` first.
            op_b: the same of ``b``.
            op_c: the same of ``c``.
            compute_type: as for ``contract``.

        Returns:
            ``out``, or a new C-contiguous buffer.

        Raises:
            ValueError, TypeError, LibraryMissing, Unsupported: as for ``contract``.
        """
        arrays, labels = (a, b, c), (modes_a, modes_b, modes_c)
        call = _Call(Kind.TRINARY, arrays, labels, modes_c, None, out, (alpha, beta, gamma))
        return self._request(call, (op_a, op_b, op_c), compute_type, (op_ab, op_abc))

    # --- in common ------------------------------------------------------------------------

    def _request(
        self,
        call: _Call,
        unary: tuple[str, ...],
        compute_type: str | None,
        operators: tuple[str, ...] = (),
        *,
        jit: bool = False,
        autotune: bool = False,
    ) -> Request[GpuRef]:
        jit, autotune = flag(jit, "jit"), flag(autotune, "autotune")
        require_no_race(self._device, autotune=autotune)

        def prepare(driver: Driver) -> Submission[GpuRef]:
            checked = call.checked(driver.memory)
            result = checked.out
            if result is None:
                result = driver.output(checked.shape, checked.dtype)
            key = (
                *(call.kind, checked.dtype, compute_type, unary, operators, jit, autotune),
                *(checked.modes, checked.labels),
                *(_lies(ref) for ref in (*call.arrays, result)),
                None if call.added is None else alignment(call.added),
            )
            data = self._encoded.get(key)
            if data is None:
                options = (compute_type, unary, operators, jit, autotune)
                data = self._encoded.keep(key, encode(_operation(call, checked, result, *options)))
            before: tuple[Request[Any], ...] = ()
            inputs = list(call.arrays)
            added = None
            if call.kind in ADDS and checked.scalars[1] not in (0.0, (0.0, 0.0)):
                added = call.out if call.added is None else call.added
                if added is None:
                    raise ValueError("beta scales what is added, but there is neither that nor out")
            last = added if call.kind in ADDS else inputs[-1]
            if call.kind is not Kind.PERMUTE and last is not None and not _alike(last, result):
                # What is added, or joined last, has to lie as the result does.
                before = (copying(last, result),)
                if call.kind in ADDS:
                    added = result
                else:
                    inputs[-1] = result
            reads = [ref._place for ref in (*inputs, *([] if added is None else [added]))]
            if autotune and driver.home.driver is not Collected:
                self._tune(driver, data, checked, inputs, result)
            workspace, nbytes = self._workspace(driver, call.kind)
            message = Run(
                data,
                tuple([ref._place.address for ref in inputs]),
                0 if added is None else added._place.address,
                result._place.address,
                checked.scalars,
                0 if workspace is None else workspace.address,
                nbytes,
            )
            writes = [result._place, *([] if workspace is None else [workspace])]
            return Submission(message, reads, writes, result, before=before)

        return Request(LANE, f"tensor.{call.kind.value}", prepare)

    def _workspace(self, driver: Driver, kind: Kind) -> tuple[Block | None, int]:
        if kind not in ADDS or not self._device.capabilities.needs_scratch:
            return None, 0
        return self._workspaces.obtain(driver, WORKSPACE), WORKSPACE

    def _tune(
        self, driver: Driver, data: bytes, checked: _Checked, inputs: list[GpuRef], result: GpuRef
    ) -> None:
        """Have the host time algorithms, once in a generation."""
        if self._tuned.get(data) is driver.memory.epoch:
            return

        def prepare(driver: Driver) -> Submission[bool]:
            _, nbytes = span(result.shape, result.strides, result.dtype.itemsize)
            trial = driver.output((nbytes,), _UINT8)
            workspace, size = self._workspace(driver, Kind.CONTRACT)
            run = Run(
                data,
                tuple([ref._place.address for ref in inputs]),
                0,
                trial._block.address,
                (checked.scalars[0], (0.0, 0.0) if checked.dtype.kind == "c" else 0.0),
                0 if workspace is None else workspace.address,
                size,
            )
            writes = [trial._block, *([] if workspace is None else [workspace])]
            return Submission(Tune(run), [ref._place for ref in inputs], writes, True)

        driver.perform(Request(LANE, "tensor.tune", prepare, key=("tensor.tune", data)))
        self._tuned.keep(data, driver.memory.epoch)


class _Checked(NamedTuple):
    """Arguments that were checked, here and now.

    Attributes:
        labels: numbers for the modes of each operand.
        modes: of the result.
        shape: its shape.
        dtype: of all.
        out: where it goes, if that is given.
        scalars: as messages carry them.
    """

    labels: tuple[tuple[int, ...], ...]
    modes: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    out: GpuRef | None
    scalars: tuple[Scalar, ...]


_NAMES: Final = {
    Kind.CONTRACT: ("ab", "c", ("alpha", "beta")),
    Kind.CONTRACT_TRINARY: ("abc", "d", ("alpha", "beta")),
    Kind.REDUCE: ("a", "c", ("alpha", "beta")),
    Kind.PERMUTE: ("a", "", ("alpha",)),
    Kind.BINARY: ("ac", "", ("alpha", "gamma")),
    Kind.TRINARY: ("abc", "", ("alpha", "beta", "gamma")),
}
"""What the operands, what is added, and the scalars are called."""


class _Call(NamedTuple):
    """The arguments of a call, as they were given."""

    kind: Kind
    arrays: tuple[GpuRef, ...]
    given: tuple[Modes, ...]
    modes: Modes
    added: GpuRef | None
    out: GpuRef | None
    scalars: tuple[Number, ...]

    def checked(self, memory: MemoryMap) -> _Checked:
        """Check everything that there is to check before memory is made."""
        names, name_added, scalars = _NAMES[self.kind]
        numbers: dict[Hashable, int] = {}
        sizes: dict[int, int] = {}
        labels = []
        dtype = None
        for name, ref, given in zip(names, self.arrays, self.given, strict=True):
            _require_strides(ref, memory, name)
            dtype = dtype or ref.dtype
            if NAMES[dtype] not in COMPUTE:
                raise TypeError(f"{name} has dtype {dtype.name}; expected {', '.join(COMPUTE)}")
            require_dtype(ref, dtype, name, names[0])
            labels.append(_numbered(given, ref.shape, f"modes_{name}", numbers, sizes))
        assert dtype is not None
        result = _labels(self.modes, "modes")
        for mode in result:
            if mode not in numbers:
                raise ValueError(f"the result has mode {mode!r}, which no operand has")
        modes = tuple(numbers[mode] for mode in result)
        gone = {*sizes} - {*modes}
        if gone and self.kind not in ADDS:
            raise ValueError(f"the result has modes {self.modes!r}, which are not all there are")
        shape = tuple(sizes[mode] for mode in modes)
        if 0 in sizes.values():
            raise ValueError(
                f"{self.kind.value} of arrays without elements: modes have sizes "
                f"{tuple(sizes.values())}; einsum takes these"
            )
        for name, ref in ((name_added, self.added), ("out", self.out)):
            if ref is None:
                continue
            (require_writable if name == "out" else require_readable)(
                ref, memory, name, strided=True
            )
            _require_strides(ref, memory, name)
            require_dtype(ref, dtype, name, names[0])
            if ref.shape != shape:
                raise ValueError(f"{name} has shape {ref.shape}, but the result has shape {shape}")
        self._require_apart(names, name_added)
        values = tuple(
            scalar(value, dtype, name) for value, name in zip(self.scalars, scalars, strict=True)
        )
        return _Checked(tuple(labels), modes, shape, dtype, self.out, values)

    def _require_apart(self, names: str, name_added: str) -> None:
        """The result shares no memory with operands; it may be what is added, or joined last."""
        out = self.out
        if out is None:
            return
        others = [*zip(names, self.arrays, strict=True)]
        last = self.added if self.kind in ADDS else self.arrays[-1]
        if self.kind in (Kind.BINARY, Kind.TRINARY):
            others.pop()
        may_be = name_added or names[-1]
        if last is not None and self.kind is not Kind.PERMUTE and not same_place(last, out):
            others.append((may_be, last))
        for name, ref in others:
            if overlap(out, ref):
                raise ValueError(
                    f"out shares memory with {name}, which {self.kind.value} does not take; give "
                    "it a buffer of its own"
                )


def _alike(one: GpuRef, other: GpuRef) -> bool:
    """Whether two arrays lie in the same way, wherever they begin."""
    return one.shape == other.shape and one._strides == other._strides


def _lies(ref: GpuRef) -> tuple[object, ...]:
    return ref.shape, ref._strides, alignment(ref)


def _require_strides(ref: GpuRef, memory: MemoryMap, name: str) -> None:
    """A view that goes forwards, and whose elements are apart.

    Raises:
        NotContiguous: it is another one, of which a copy is taken.
    """
    require_readable(ref, memory, name, strided=True)
    size = ref.dtype.itemsize
    if ref.contiguous:
        return
    for extent, stride in zip(ref.shape, ref.strides, strict=True):
        if extent != 1 and (stride <= 0 or stride % size):
            raise not_contiguous(ref, name)


def _labels(modes: Modes, name: str) -> tuple[Hashable, ...]:
    if not isinstance(modes, str | Sequence):
        raise TypeError(f"{name} must be a string or a sequence of modes, not {said_of(modes)}")
    found = tuple(modes)
    for mode in found:
        if found.count(mode) > 1:
            raise ValueError(
                f"{name} has mode {mode!r} more than once; einsum takes diagonals, or take "
                "ref.diagonal() first"
            )
    return found


def _numbered(
    modes: Modes,
    shape: tuple[int, ...],
    name: str,
    numbers: dict[Hashable, int],
    sizes: dict[int, int],
) -> tuple[int, ...]:
    """Numbers for an operand's modes, and how far they go."""
    labels = _labels(modes, name)
    if len(labels) != len(shape):
        raise ValueError(f"{name} has {len(labels)} modes, but the array has shape {shape}")
    found = []
    for label, size in zip(labels, shape, strict=True):
        number = numbers.setdefault(label, len(numbers))
        if sizes.setdefault(number, size) != size:
            raise ValueError(
                f"{name}: mode {label!r} has {size} elements, but {sizes[number]} in another array"
            )
        found.append(number)
    return tuple(found)


def _operation(
    call: _Call,
    checked: _Checked,
    result: GpuRef,
    compute_type: str | None,
    unary: tuple[str, ...],
    operators: tuple[str, ...],
    jit: bool,
    autotune: bool,
) -> Operation:
    """What the lane is asked for."""
    name = NAMES[checked.dtype]
    known = COMPUTE[name]
    if compute_type is not None and compute_type not in known:
        raise ValueError(
            f"compute_type {compute_type!r} is none of those for {name}: {', '.join(known)}"
        )
    allowed = COMPLEX_UNARY if checked.dtype.kind == "c" else UNARY
    for each in unary:
        if each not in allowed:
            raise ValueError(f"operator {each!r} is none of those for {name}: {', '.join(allowed)}")
    for each in operators:
        if each not in BINARY:
            raise ValueError(f"operator {each!r} is none of {', '.join(BINARY)}")
    if checked.dtype.kind == "c" and {"maximum", "minimum"} & {*operators}:
        raise ValueError(f"{name} has no order, so there is no {operators[-1]} of it")
    unary = unary or ("identity",) * len(call.arrays)
    inputs = [
        _tensor(ref, modes, operator)
        for ref, modes, operator in zip(call.arrays, checked.labels, unary, strict=True)
    ]
    output = _tensor(result, checked.modes, "identity")
    # What is added, or joined last, is described as the result is, and so is as much aligned.
    last = call.added if call.kind in ADDS else call.arrays[-1]
    if last is not None and call.kind is not Kind.PERMUTE:
        aligned = min(output.alignment, alignment(last))
        output = msgspec.structs.replace(output, alignment=aligned)
    if call.kind in (Kind.BINARY, Kind.TRINARY):
        inputs[-1] = msgspec.structs.replace(output, operator=unary[-1])
    return Operation(
        call.kind,
        name,
        compute_type or known[0],
        tuple(inputs),
        output,
        operators,
        jit,
        autotune,
    )


def _tensor(ref: GpuRef, modes: tuple[int, ...], operator: str) -> Tensor:
    size = ref.dtype.itemsize
    strides = strides_of(ref.shape, size) if ref._strides is None else ref.strides
    steps = tuple(
        1 if extent == 1 else stride // size
        for extent, stride in zip(ref.shape, strides, strict=True)
    )
    return Tensor(ref.shape, steps, modes, min(128, alignment(ref)), operator)
