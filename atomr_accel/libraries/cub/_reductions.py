"""Reductions and scans."""

from __future__ import annotations

from numbers import Number
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..._dtypes import DTYPES, NAMES, as_dtype
from ..._errors import Unsupported
from ...ops import D, op, op_family
from ...wire.options import whole
from ._operators import coded, identity_of, named
from .call import INT64, CubOutput, CubPart, element, number
from .wire._spec import BINARY, CubSpec, OperatorSpec, scans_in_order

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...arrays import GpuRef
    from ...ops import DeviceView, Request
    from ._operators import AnyOperator

_HALF: Final = ("float16", "bfloat16")
_ASSOCIATIVE: Final = tuple(
    name
    for name in BINARY
    if name in ("plus", "multiplies", "minimum", "maximum") or name[:4] in ("bit_", "logi")
)
_LOOSE: Final = ("int32", "uint32", "uint64", "float32", "float64")
"""Dtypes that have atomic additions."""


class CubReductions(CubPart[D]):
    """``device.cub``'s reductions and scans."""

    @op
    def reduce(
        self,
        x: GpuRef,
        op: AnyOperator = "plus",
        *,
        init: complex | np.generic | None = None,
        dtype: DTypeLike | None = None,
        deterministic: bool = True,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Reduce all elements to one (``cub::DeviceReduce::Reduce``).

        Args:
            x: any shape, taken as one row.
            op: the operator: ``"plus"``, ``"multiplies"``, ``"minimum"``, ``"maximum"`` (NaN wins,
                as in NumPy), ``"bit_and"``, ``"bit_or"``, ``"bit_xor"``, ``"logical_and"``,
                ``"logical_or"``; an object that ``operator`` made; or a Python function of the
                small subset. It must be associative.
            init: the value to begin with; by default the operator's identity.
            dtype: the dtype of the result and of the computation; by default that of x. Sums and
                products of half precision are computed in float32. ``"logical_and"`` and
                ``"logical_or"`` are computed in bool, which is their default, too.
            deterministic: return the same bits in every call. Without, sums of floats may be
                faster and differ in their last bits.
            out: the buffer for the result, of shape ().

        Returns:
            A scalar on the device.

        Raises:
            ValueError: the operator is unknown or not associative; x is empty and there is nothing
                to begin with; or ``deterministic=False`` on a deterministic device.
        """
        self._require(x=x)
        count = x.size
        if not deterministic and self.home.deterministic:
            raise ValueError(
                "deterministic must be True on a device that was opened with deterministic=True, "
                "not False"
            )
        operator, dtypes, begin = _folding(self.home, x, op, dtype, init, "op")
        if not count and begin is None:
            raise ValueError(
                f"zero-size array to reduction operation {operator.kind or 'op'} which has no "
                "identity; give init="
            )
        loose = not deterministic and operator.kind == "plus" and dtypes[0] == dtypes[2]
        loose = loose and dtypes[2] in _LOOSE and begin is not None
        chosen = "not_guaranteed" if loose else "run_to_run"
        spec = CubSpec("reduce", dtypes, (operator,), init=begin is not None, determinism=chosen)
        return self._request(
            "cub.reduce",
            spec,
            [("x", x)],
            [CubOutput("out", (), DTYPES[dtypes[2]], out)],
            (count,),
            values=() if begin is None else (begin,),
        )

    @op_family
    def argmin(self, _name: str, x: GpuRef, *, out: GpuRef | None = None) -> Request[GpuRef]:
        """Find the position of the smallest element, as ``cub::DeviceReduce::ArgMin``.

        Of equal ones it is the first; NaN is smaller than all others, as in NumPy.

        Args:
            x: any shape, taken as one row; not empty.
            out: the buffer for the position, an int64 of shape ().

        Returns:
            An int64 scalar on the device.

        Raises:
            TypeError: a dtype without an order.
            ValueError: x is empty.
        """
        self._require(x=x)
        spec = CubSpec("arg_reduce", (element(x, "x"), "int64"), descending=_name == "argmax")
        if not x.size:
            raise ValueError(f"attempt to get {_name} of an empty sequence")
        return self._request(
            f"cub.{_name}",
            spec,
            [("x", x)],
            [CubOutput("out", (), INT64, out)],
            (x.size,),
        )

    argmax: Final = argmin.like(
        """Find the position of the largest element, as ``cub::DeviceReduce::ArgMax``.

        Of equal ones it is the first; NaN is larger than all others, as in NumPy. Otherwise as
        ``argmin``.
        """
    )

    @op_family
    def inclusive_scan(
        self,
        _name: str,
        x: GpuRef,
        op: AnyOperator = "plus",
        *,
        init: complex | np.generic | None = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Combine each element with all before it (``cub::DeviceScan::InclusiveScan``).

        Args:
            x: any shape, taken as one row.
            op: as for ``reduce``.
            init: a value before the first element.
            dtype: as for ``reduce``.
            out: the buffer for the result; may be x, if that has its dtype.

        Returns:
            An array of x's shape.

        Raises:
            TypeError, ValueError: as ``reduce``.
            Unsupported: as ``reduce``. Also, on a device that was opened with
                ``deterministic=True``, scans of floats by CUB, which adds up parts in an order that
                depends on time. These are by other operators than ``"plus"``, ``"multiplies"``,
                ``"minimum"`` and ``"maximum"``, and by the first two with ``init``, in another
                dtype than that of ``x``, or exclusive.
        """
        self._require(x=x)
        operator, dtypes, begin = _folding(self.home, x, op, dtype, init, "op")
        if _name == "inclusive_scan" and init is None:
            begin = None
        elif begin is None:
            raise ValueError(f"{_name} by this operator has to begin with something: give init=")
        exact = bool(operator.kind) and BINARY[operator.kind].exact
        spec = CubSpec(_name, dtypes, (operator,), init=begin is not None)
        always = exact or DTYPES[dtypes[1]].kind in "biu" or scans_in_order(spec)
        if self.home.deterministic and not always:
            raise Unsupported(
                f"{_name} of {dtypes[1]}: in which order CUB adds up parts depends on time, "
                "and the device was opened with deterministic=True; call inclusive_scan by plus or "
                "multiplies, without init and in the dtype of x"
            )
        return self._request(
            f"cub.{_name}",
            spec,
            [("x", x)],
            [CubOutput("out", x.shape, DTYPES[dtypes[2]], out)],
            (x.size,),
            values=() if begin is None else (begin,),
            in_place=[("out", "x")] if dtypes[0] == dtypes[2] else (),
        )

    exclusive_scan: Final = inclusive_scan.like(
        """Combine all elements before each one (``cub::DeviceScan::ExclusiveScan``).

        ``init`` is the first element of the result; by default the operator's identity. Otherwise
        as ``inclusive_scan``.

        Raises:
            ValueError: as ``reduce``; or neither ``init`` nor the operator's identity exists.
        """
    )

    @op
    def segmented_reduce(
        self,
        x: GpuRef,
        begins: GpuRef,
        ends: GpuRef,
        op: AnyOperator = "plus",
        *,
        init: complex | np.generic | None = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Reduce each of many segments (``cub::DeviceSegmentedReduce::Reduce``).

        Args:
            x: any shape, taken as one row.
            begins: the first position of each segment, int32 or int64. Offsets of neighbours in one
                buffer are ``offsets[:-1]`` and ``offsets[1:]``.
            ends: the positions after their last elements; a segment that ends where it begins, or
                before, is empty. On CUDA it is not checked that they are inside x.
            op: as for ``reduce``.
            init: the value with which each segment begins; by default the operator's identity,
                which for ``"minimum"`` and ``"maximum"`` is the largest and the smallest value of
                the dtype.
            dtype: as for ``reduce``.
            out: the buffer for the results.

        Returns:
            An array with one element for each segment.
        """
        self._require(x=x, begins=begins, ends=ends)
        offsets = offsets_of(begins, ends)
        operator, (given, accumulator, result), begin = _folding(
            self.home, x, op, dtype, init, "op"
        )
        if begin is None:
            begin = _extreme(operator.kind, accumulator)
        segments = begins.size
        whole(segments, "the number of segments", 0, 2**31 - 1)
        spec = CubSpec(
            "segmented_reduce", (given, offsets, accumulator, result), (operator,), init=True
        )
        return self._request(
            "cub.segmented_reduce",
            spec,
            [("x", x), ("begins", begins), ("ends", ends)],
            [CubOutput("out", (segments,), DTYPES[result], out)],
            (segments, x.size),
            values=(begin,),
        )


def offsets_of(begins: GpuRef, ends: GpuRef) -> str:
    """The dtype of offsets."""
    dtypes = [element(each, name) for each, name in ((begins, "begins"), (ends, "ends"))]
    for dtype in dtypes:
        if dtype not in ("int32", "int64"):
            raise TypeError(f"offsets of segments are int32 or int64, not {dtype}")
    if dtypes[0] != dtypes[1]:
        raise TypeError(f"begins is {dtypes[0]} and ends {dtypes[1]}; both must be the same")
    if begins.shape != ends.shape or begins.ndim != 1:
        raise ValueError(
            "begins and ends must have one dimension and one length, not shapes "
            f"{begins.shape} and {ends.shape}"
        )
    return dtypes[0]


def _folding(
    device: DeviceView,
    x: GpuRef,
    op: AnyOperator,
    dtype: DTypeLike | None,
    init: Any,
    what: str,
) -> tuple[OperatorSpec, tuple[str, str, str], bytes | None]:
    """Return the operator, the dtypes of x, of the computation and of the result, and the init.

    The init is the first value as bytes, or None.
    """
    given = element(x, "x", complex_too=True)
    kind = named(op, 2, what) if isinstance(op, str) else ""
    if kind and kind not in _ASSOCIATIVE:
        raise ValueError(f"{what} must be associative, one of {_ASSOCIATIVE}, not {kind!r}")
    truth = bool(kind) and BINARY[kind].truth
    result = ("bool" if truth else given) if dtype is None else NAMES[as_dtype(dtype)]
    accumulator = "bool" if truth else result
    if result in _HALF and kind in ("plus", "multiplies"):
        accumulator = "float32"
    _require_castable(given, accumulator, result)
    if kind and not truth:
        operator = coded(device, kind, (accumulator, accumulator), accumulator, what)
    elif kind:
        operator = OperatorSpec(("bool", "bool"), "bool", kind)
    else:
        operator = coded(device, op, (accumulator, accumulator), accumulator, what)
    if init is not None:
        begins = bool(init) if truth and isinstance(init, Number) else init
        return operator, (given, accumulator, result), number(begins, DTYPES[accumulator], "init")
    return operator, (given, accumulator, result), identity_of(kind, accumulator)


def _require_castable(given: str, accumulator: str, result: str) -> None:
    one, other = DTYPES[given], DTYPES[result]
    fits = given == result
    if not fits and "c" not in (one.kind, other.kind) and result not in _HALF:
        fits = given not in _HALF or result in ("float32", "float64")
        fits = fits or accumulator == "bool"
    if not fits:
        raise TypeError(f"x is {given}, which is not reduced in {result}; cast it first")


def _extreme(kind: str, dtype: str) -> bytes:
    """The largest or the smallest number of a dtype, which no minimum or maximum is beyond."""
    made = DTYPES[dtype]
    if kind not in ("minimum", "maximum"):
        raise ValueError("segments by this operator have to begin with something: give init=")
    if made.kind == "b":
        return np.asarray(kind == "minimum").tobytes()
    if made.kind in "iu":
        info = np.iinfo(made)
        return np.asarray(info.max if kind == "minimum" else info.min, made).tobytes()
    return np.asarray(np.inf if kind == "minimum" else -np.inf).astype(made).tobytes()
