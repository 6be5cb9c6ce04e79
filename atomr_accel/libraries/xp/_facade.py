"""``device.xp``: the functions of the Array API standard."""

from __future__ import annotations

import operator
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, final, overload

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..._dtypes import as_dtype
from ..._errors import Unsupported, said_of
from ...arrays import GpuRef, as_shape
from ...arrays.expressions import Operand, Value
from ...arrays.expressions.expression import broadcast_constant
from ...ops import AsRequests, Awaited, Collected, D, Request, op, op_family
from ..array.facade import ArrayFunctions
from ._elementwise import StandardElementwise
from .dtypes import Flag, NamespaceInfo, StandardDtypes

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...arrays.expressions.promotion import Casting
    from ...ops import DeviceView
    from ...wire.recent import Recent
    from ..array.steps import CallSteps
    from ..cub.facade import Cub

    Shape = int | tuple[int, ...]

_NUMPY: Final[Any] = np
"""NumPy, whose functions make expressions of refs."""


@final
class ArrayApi(StandardDtypes, StandardElementwise[D], ArrayFunctions[D]):
    """All names of the Array API standard 2024.12, beside those of ``device.array``.

    Functions of the standard that have arrays as results are awaited, also where these are views:
    ``permute_dims``, ``flip`` and such copy nothing. In ``batch.xp`` they return at once. Functions
    of dtypes are never awaited. Arguments are refs or expressions, results are refs. ``device=`` is
    the device's name, or None. The standard's extensions are ``device.linalg`` and ``device.fft``,
    by NumPy's names and arguments.

    In a batch or a recording, ``nonzero`` and ``unique_*`` raise ``Unsupported``, because only the
    device knows the size of their results.
    """

    templated = True

    def __init__(self, device: DeviceView, cub: Cub[Any]) -> None:
        super().__init__(device, cub)
        self.caches: tuple[Recent[Any, Any], ...] = ()  # they are those of device.array

    @property
    def _steps(self) -> ArrayFunctions[AsRequests]:
        """Functions whose calls are parts of others."""
        made: ArrayFunctions[AsRequests] = self.as_requests(self.home)
        return made

    def __array_namespace_info__(self) -> NamespaceInfo:
        """Return what the namespace offers."""
        return NamespaceInfo(self.home.memory.device, waits=self.home.call_mode is not Collected)

    # --- arrays of values of the program ----------------------------------------------------

    @overload
    def asarray(
        self: ArrayApi[Awaited],
        obj: object,
        /,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
        copy: Flag | None = None,
    ) -> Coroutine[Any, Any, GpuRef]: ...
    @overload
    def asarray(
        self: ArrayApi[Collected],
        obj: object,
        /,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
        copy: Flag | None = None,
    ) -> GpuRef: ...
    def asarray(
        self: ArrayApi[Any],
        obj: object,
        /,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
        copy: Flag | None = None,
    ) -> Any:
        """Make an array of numbers, sequences of them or an array of the program's; or a ref.

        Args:
            obj: the values, or a ref or an expression.
            dtype: the dtype of the result.
            device: this device's name, or None.
            copy: whether the result shares no memory with ``obj``. None copies if it has to be.

        Raises:
            ValueError: it has to be copied, and ``copy`` is False.
            TypeError: values of no dtype that device memory supports.
            Unsupported: values of the program, in a recording or a request.
        """
        if isinstance(obj, Operand):
            return self._as_array(obj, dtype, device, copy=copy)
        self._check_device(device)
        if copy is False:
            raise ValueError("copy must not be False for values of the program, which are copied")
        host = np.asarray(obj, None if dtype is None else as_dtype(dtype))
        as_dtype(host.dtype)
        owner: Any = self.transfers if self.home.call_mode is Awaited else self.home
        if self.home.call_mode is AsRequests or not hasattr(owner, "put"):
            raise Unsupported(
                "asarray of the program's values must be awaited or in a batch; put them on the "
                "device before: await device.put(array)"
            )
        return owner.put(host)

    @op
    def _as_array(
        self, obj: Operand, dtype: DTypeLike | None, device: str | None, *, copy: Flag | None
    ) -> Request[GpuRef]:
        self._check_device(device)
        kind = obj.dtype if dtype is None else as_dtype(dtype)
        if copy is False and not (isinstance(obj, GpuRef) and obj.dtype is kind):
            raise ValueError("copy must not be False for another dtype or an expression")
        return self._converted(obj, kind, copy=bool(copy))

    @overload
    def from_dlpack(
        self: ArrayApi[Awaited],
        x: object,
        /,
        *,
        device: str | None = None,
        copy: Flag | None = None,
    ) -> Coroutine[Any, Any, GpuRef]: ...
    @overload
    def from_dlpack(
        self: ArrayApi[Collected],
        x: object,
        /,
        *,
        device: str | None = None,
        copy: Flag | None = None,
    ) -> GpuRef: ...
    def from_dlpack(
        self: ArrayApi[Any], x: object, /, *, device: str | None = None, copy: Flag | None = None
    ) -> Any:
        """Make an array of one of another library in the host's memory, or return a ref.

        Raises:
            BufferError: it is on a GPU; write ``await device.adopt(x)``, which shares its memory.
        """
        given: Any = x
        values = given if isinstance(given, Operand) else np.from_dlpack(given)
        return self.asarray(values, device=device, copy=copy)

    # --- creation ---------------------------------------------------------------------------

    @op
    def empty(
        self, shape: Shape, *, dtype: DTypeLike | None = None, device: str | None = None
    ) -> Request[GpuRef]:
        """Make a buffer of undefined content."""
        self._check_device(device)
        sizes, kind = as_shape(shape), as_dtype(np.float64 if dtype is None else dtype)
        return self._several("empty", lambda steps: steps.output(sizes, kind))

    @op
    def zeros(
        self, shape: Shape, *, dtype: DTypeLike | None = None, device: str | None = None
    ) -> Request[GpuRef]:
        """Make zeros."""
        self._check_device(device)
        return self._steps.full(shape, 0, np.float64 if dtype is None else dtype)

    # --- elements ---------------------------------------------------------------------------

    @op
    def astype(
        self,
        x: Operand,
        dtype: DTypeLike,
        casting: Casting = "unsafe",
        *,
        copy: bool = True,
        device: str | None = None,
    ) -> Request[GpuRef]:
        """Convert elements to another dtype; as ``device.array.astype``.

        Raises:
            TypeError: complex numbers to real ones; take ``real`` or ``imag`` of them.
        """
        self._check_device(device)
        given, kind = self._operand(x), as_dtype(dtype)
        if given.dtype.kind == "c" and kind.kind not in "cb":
            raise TypeError(
                f"dtype must be complex or bool for elements of {given.dtype.name}, not "
                f"{kind.name}; take real(x) or imag(x) first"
            )
        return self._converted(given, kind, casting, copy=copy)

    @op
    def clip(  # type: ignore[override] # as the standard
        self,
        x: Operand,
        /,
        min: Value | None = None,  # noqa: A002 - the standard's name
        max: Value | None = None,  # noqa: A002
    ) -> Request[GpuRef]:
        """Limit elements to bounds; the dtype stays."""
        made: Any = self._operand(x)
        if min is not None or max is not None:
            made = self._made(np.clip, made, min, max).astype(made.dtype)
        return self._evaluated(made)

    @op
    def imag(self, x: Operand, /) -> Request[GpuRef]:
        """Imaginary parts, as a copy."""
        return self._evaluated(self._made(np.imag, x))

    @op
    def real(self, x: Operand, /) -> Request[GpuRef]:
        """Real parts, as a copy."""
        return self._evaluated(self._made(np.real, x))

    # --- sums up to each ----------------------------------------------------------------------

    @op_family
    def cumulative_sum(
        self,
        _name: str,
        x: Operand,
        /,
        *,
        axis: int | None = None,
        dtype: DTypeLike | None = None,
        include_initial: bool = False,
    ) -> Request[GpuRef]:
        """Add up all elements up to each, with ``include_initial`` from 0 on.

        Raises:
            ValueError: no axis, and not one dimension.
        """
        given = self._operand(x)
        shape = given.shape
        if axis is None and len(shape) != 1:
            raise ValueError(f"axis must be given for {len(shape)} dimensions")
        at = normalize_axis_index(axis or 0, len(shape))
        sums = _name == "cumulative_sum"
        scan: Any = self._steps.cumsum if sums else self._steps.cumprod
        request: Request[GpuRef] = scan(given, at, dtype)
        if not include_initial:
            return request

        def build(steps: CallSteps) -> GpuRef:
            rest = steps.do(request)
            made = steps.output((*shape[:at], shape[at] + 1, *shape[at + 1 :]), rest.dtype)
            key = (slice(None),) * at
            start = made[(*key, slice(1))]
            steps.evaluate(broadcast_constant(start.shape, rest.dtype, 0 if sums else 1), start)
            steps.assign((rest, made[(*key, slice(1, None))]))
            return made

        return self._several(_name, build)

    cumulative_prod: Final = cumulative_sum.like(
        """Multiply all elements up to each, with ``include_initial`` from 1 on.

        Raises:
            ValueError: no axis, and not one dimension.
        """
    )

    # --- shapes -----------------------------------------------------------------------------

    @op
    def broadcast_arrays(self, *arrays: GpuRef) -> Request[tuple[GpuRef, ...]]:  # type: ignore[override] # as the standard
        """Views in one shape."""
        made = super().broadcast_arrays(*arrays)
        return self._several("broadcast_arrays", lambda _: made)

    @op
    def broadcast_to(self, x: GpuRef, /, shape: tuple[int, ...]) -> Request[GpuRef]:
        """View of another shape, with repeated elements."""
        return self._viewed("broadcast_to", self._ref(x).broadcast_to(shape))

    @op
    def concat(self, arrays: Sequence[GpuRef], /, *, axis: int | None = 0) -> Request[GpuRef]:
        """Join arrays along an axis."""
        return self._steps.concatenate(arrays, axis)

    @op
    def expand_dims(self, x: GpuRef, /, axis: int) -> Request[GpuRef]:
        """View with a further axis of one element."""
        at = normalize_axis_index(axis, self._ref(x).ndim + 1)
        return self._viewed("expand_dims", x[(*[slice(None)] * at, None)])

    @op
    def flip(self, x: GpuRef, /, *, axis: int | tuple[int, ...] | None = None) -> Request[GpuRef]:  # type: ignore[override] # as the standard
        """View in reverse order."""
        return self._viewed("flip", super().flip(x, axis))

    @op
    def moveaxis(
        self,
        x: GpuRef,
        source: int | tuple[int, ...],
        destination: int | tuple[int, ...],
        /,
    ) -> Request[GpuRef]:
        """View with axes at other places."""
        return self._viewed("moveaxis", self._ref(x).moveaxis(source, destination))

    @op
    def permute_dims(self, x: GpuRef, /, axes: tuple[int, ...]) -> Request[GpuRef]:
        """View with axes in another order."""
        return self._viewed("permute_dims", self._ref(x).transpose(axes))

    @op
    def reshape(
        self, x: Operand, /, shape: tuple[int, ...], *, copy: Flag | None = None
    ) -> Request[GpuRef]:
        """Change the shape, without a copy if possible.

        Raises:
            ValueError: the sizes differ; or it has to be copied, and ``copy`` is False.
        """
        given = self._operand(x)
        seen = None
        if isinstance(given, GpuRef):
            try:
                seen = given.reshape(shape)
            except ValueError:
                if copy is False or given.contiguous:
                    raise
        elif copy is False:
            raise ValueError("copy must not be False for an expression")

        def build(steps: CallSteps) -> GpuRef:
            if seen is not None and not copy:
                return steps.ref(seen)
            return steps.evaluate(given).reshape(shape)

        return self._several("reshape", build)

    @op
    def squeeze(self, x: GpuRef, /, axis: int | tuple[int, ...]) -> Request[GpuRef]:
        """View without axes of one element."""
        return self._viewed("squeeze", self._ref(x).squeeze(axis))

    @op
    def unstack(self, x: GpuRef, /, *, axis: int = 0) -> Request[tuple[GpuRef, ...]]:
        """Views of the parts along an axis."""
        at = normalize_axis_index(axis, self._ref(x).ndim)
        key = (slice(None),) * at

        def build(steps: CallSteps) -> tuple[GpuRef, ...]:
            whole = steps.ref(x)
            return tuple([whole[(*key, number)] for number in range(whole.shape[at])])

        return self._several("unstack", build)

    def _viewed(self, name: str, view: GpuRef) -> Request[GpuRef]:
        return self._several(name, lambda steps: steps.ref(view))

    # --- products ---------------------------------------------------------------------------

    @op
    def matmul(self, x1: Operand, x2: Operand, /) -> Request[GpuRef]:
        """Multiply matrices."""
        return self._evaluated(self._made(np.matmul, x1, x2))

    @op
    def matrix_transpose(self, x: GpuRef, /) -> Request[GpuRef]:
        """View of transposed matrices."""
        return self._viewed("matrix_transpose", self._ref(x).mT)

    @op
    def vecdot(self, x1: Operand, x2: Operand, /, *, axis: int = -1) -> Request[GpuRef]:
        """Sum products of conjugates with elements, along an axis."""
        one, other = self._operand(x1, "x1"), self._operand(x2, "x2")
        least = min(len(one.shape), len(other.shape))
        if not -least <= operator.index(axis) < 0:
            raise ValueError(f"axis must be from {-least} to -1, not {said_of(axis)}")
        vectors = [_NUMPY.moveaxis(each, axis, -1) for each in (one, other)]
        return self._evaluated(self._made(np.vecdot, *vectors))
