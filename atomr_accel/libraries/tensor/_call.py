"""The arguments of cuTENSOR's operations: their checks, and the description that they make."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from ..._dtypes import NAMES
from ..._errors import said_of
from ...arrays.views import strides_of
from ...ops import (
    alignment,
    not_contiguous,
    overlap,
    require_dtype,
    require_readable,
    require_writable,
    same_place,
)
from ..blas.checks import scalar
from .wire._messages import ADDS, OperationKind, TensorLayout, TensorOperation
from .wire._operators import BINARY, COMPLEX_UNARY, COMPUTE, TF32, UNARY

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from ...arrays import GpuRef
    from ...memory import MemoryMap
    from ..blas.checks import Number
    from .wire._messages import Scalar

Modes: TypeAlias = "str | Sequence[Hashable]"
"""The index of each axis: a letter or anything hashable for each."""


class Checked(NamedTuple):
    """Arguments that were checked, here and now.

    Attributes:
        labels: numbers for the modes of each operand.
        modes: of the result.
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
    OperationKind.CONTRACT: ("ab", "c", ("alpha", "beta")),
    OperationKind.CONTRACT_TRINARY: ("abc", "d", ("alpha", "beta")),
    OperationKind.REDUCE: ("a", "c", ("alpha", "beta")),
    OperationKind.PERMUTE: ("a", "", ("alpha",)),
    OperationKind.BINARY: ("ac", "", ("alpha", "gamma")),
    OperationKind.TRINARY: ("abc", "", ("alpha", "beta", "gamma")),
}
"""Names of the operands, of the added array, and of the scalars."""


class TensorCall(NamedTuple):
    """The arguments of a call, before checks."""

    kind: OperationKind
    arrays: tuple[GpuRef, ...]
    given: tuple[Modes, ...]
    modes: Modes
    added: GpuRef | None
    out: GpuRef | None
    scalars: tuple[Number, ...]

    @classmethod
    def of(cls, kind: OperationKind, given: Mapping[str, Any]) -> TensorCall:
        """Return a call with the arguments of its method, by their names."""
        names, added, scalars = _NAMES[kind]
        labels = tuple([given[f"modes_{name}"] for name in names])
        return cls(
            kind,
            tuple([given[name] for name in names]),
            labels,
            given.get("modes", labels[-1]),
            given[added] if added else None,
            given["out"],
            tuple([given[name] for name in scalars]),
        )

    def checked(self, memory: MemoryMap) -> Checked:
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
                raise TypeError(f"{name} must have dtype {', '.join(COMPUTE)}, not {dtype.name}")
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
        if self.out is not None:
            require_writable(self.out, memory, "out", strided=True)
        for name, like in ((name_added, self.added), ("out", self.out)):
            if like is None:
                continue
            _require_strides(like, memory, name)
            require_dtype(like, dtype, name, names[0])
            if like.shape != shape:
                raise ValueError(f"{name} must have shape {shape}, not {like.shape}")
        self._require_apart(names, name_added)
        values = tuple(
            scalar(value, dtype, name) for value, name in zip(self.scalars, scalars, strict=True)
        )
        return Checked(tuple(labels), modes, shape, dtype, self.out, values)

    def _require_apart(self, names: str, name_added: str) -> None:
        """Require that the result shares no memory, except with the added or last joined array."""
        out = self.out
        if out is None:
            return
        others = [*zip(names, self.arrays, strict=True)]
        last = self.added if self.kind in ADDS else self.arrays[-1]
        if self.kind in (OperationKind.BINARY, OperationKind.TRINARY):
            others.pop()
        may_be = name_added or names[-1]
        if (
            last is not None
            and self.kind is not OperationKind.PERMUTE
            and not same_place(last, out)
        ):
            others.append((may_be, last))
        for name, ref in others:
            if overlap(out, ref):
                raise ValueError(
                    f"out shares memory with {name}, which {self.kind.value} does not take; give "
                    "it a buffer of its own"
                )


def alike(one: GpuRef, other: GpuRef) -> bool:
    """Return True if two arrays have the same layout, at any addresses."""
    return one.shape == other.shape and one.own_strides == other.own_strides


def lies(ref: GpuRef) -> tuple[object, ...]:
    return ref.shape, ref.own_strides, alignment(ref)


def _require_strides(ref: GpuRef, memory: MemoryMap, name: str) -> None:
    """Require a view with positive strides and no repeated elements.

    Raises:
        NotContiguous: another view, which must be copied.
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
        raise ValueError(
            f"{name} must have a mode for each axis of shape {shape}, not {len(labels)}"
        )
    found = []
    for label, size in zip(labels, shape, strict=True):
        number = numbers.setdefault(label, len(numbers))
        if sizes.setdefault(number, size) != size:
            raise ValueError(
                f"mode {label!r} of {name} must have {sizes[number]} elements, as in "
                f"another array, not {size}"
            )
        found.append(number)
    return tuple(found)


def operation_of(
    call: TensorCall,
    checked: Checked,
    result: GpuRef,
    compute_type: str | None,
    unary: tuple[str, ...],
    operators: tuple[str, ...],
    jit: bool,
    autotune: bool,
) -> TensorOperation:
    """Return the operation that the lane is to run."""
    name = NAMES[checked.dtype]
    known = COMPUTE[name]
    if compute_type == TF32 and TF32 not in known:
        compute_type = None
    if compute_type is not None and compute_type not in known:
        raise ValueError(
            f"compute_type for {name} must be one of {', '.join(known)}, not {compute_type!r}"
        )
    real = checked.dtype.kind != "c"
    allowed = UNARY if real and call.kind is not OperationKind.CONTRACT else COMPLEX_UNARY
    for each in unary:
        if each not in allowed:
            raise ValueError(
                f"operator for {name} must be one of {', '.join(allowed)}, not {each!r}"
            )
    if call.kind is OperationKind.CONTRACT and real:
        unary = ()  # real numbers are their conjugates, for which the vendor has no operator here
    for each in operators:
        if each not in BINARY:
            raise ValueError(f"operator must be one of {', '.join(BINARY)}, not {each!r}")
    if checked.dtype.kind == "c" and {"maximum", "minimum"} & {*operators}:
        raise ValueError(f"operator for {name} must need no order, not {operators[-1]}")
    unary = unary or ("identity",) * len(call.arrays)
    inputs = [
        _tensor(ref, modes, operator)
        for ref, modes, operator in zip(call.arrays, checked.labels, unary, strict=True)
    ]
    output = _tensor(result, checked.modes, "identity")
    # What is added, or joined last, is described as the result is, and so is as much aligned.
    last = call.added if call.kind in ADDS else call.arrays[-1]
    if last is not None and call.kind is not OperationKind.PERMUTE:
        aligned = min(output.alignment, alignment(last))
        output = msgspec.structs.replace(output, alignment=aligned)
    if call.kind in (OperationKind.BINARY, OperationKind.TRINARY):
        inputs[-1] = msgspec.structs.replace(output, operator=unary[-1])
    return TensorOperation(
        call.kind,
        name,
        compute_type or known[0],
        tuple(inputs),
        output,
        operators,
        jit,
        autotune,
    )


def _tensor(ref: GpuRef, modes: tuple[int, ...], operator: str) -> TensorLayout:
    size = ref.dtype.itemsize
    strides = strides_of(ref.shape, size) if ref.own_strides is None else ref.strides
    steps = tuple(
        1 if extent == 1 else stride // size
        for extent, stride in zip(ref.shape, strides, strict=True)
    )
    return TensorLayout(ref.shape, steps, modes, min(128, alignment(ref)), operator)
