"""The methods that refs and expressions have as NumPy's arrays do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..._calling import clear_calls
from ..._dtypes import as_dtype
from ..._other_names import HasOtherNames
from .promotion import require_castable

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from ._numbers import Number
    from .axes import Axis
    from .expression import Expression, Operand, Value
    from .promotion import Casting

FUNCTIONS: Final[dict[Any, Callable[..., Any]]] = {}
"""Implementations of NumPy's functions for refs and expressions; those of ufuncs under
``numpy.ufunc``."""

ELSEWHERE: Final[dict[str, dict[str, str]]] = {}
"""Calls of libraries that do what NumPy's functions do, by module and name."""

PLAIN: Final[dict[Any, str]] = {}
"""The names of ufuncs of one result, of those that were called so far."""


@clear_calls
class Methods(HasOtherNames):
    """NumPy's functions as methods; they make expressions."""

    __slots__ = ()

    dtype: np.dtype[Any]

    def sum(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        *,
        keepdims: bool = False,
        initial: Number | None = None,
        where: Value = True,
    ) -> Operand:
        """``numpy.ndarray.sum``; sums of floats of 16 bits and less are made in float32."""
        options = {"keepdims": keepdims, "initial": initial, "where": where}
        made: Operand = FUNCTIONS[np.sum](self, axis, dtype, **options)
        return made

    def prod(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        *,
        keepdims: bool = False,
        initial: Number | None = None,
        where: Value = True,
    ) -> Operand:
        """``numpy.ndarray.prod``; products of floats of 16 bits and less are made in float32."""
        options = {"keepdims": keepdims, "initial": initial, "where": where}
        made: Operand = FUNCTIONS[np.prod](self, axis, dtype, **options)
        return made

    def max(
        self,
        axis: Axis = None,
        *,
        keepdims: bool = False,
        initial: Number | None = None,
        where: Value = True,
    ) -> Operand:
        """``numpy.ndarray.max``: NaN if an element is NaN."""
        options = {"keepdims": keepdims, "initial": initial, "where": where}
        made: Operand = FUNCTIONS[np.max](self, axis, **options)
        return made

    def min(
        self,
        axis: Axis = None,
        *,
        keepdims: bool = False,
        initial: Number | None = None,
        where: Value = True,
    ) -> Operand:
        """``numpy.ndarray.min``: NaN if an element is NaN."""
        options = {"keepdims": keepdims, "initial": initial, "where": where}
        made: Operand = FUNCTIONS[np.min](self, axis, **options)
        return made

    def any(self, axis: Axis = None, *, keepdims: bool = False, where: Value = True) -> Operand:
        """``numpy.ndarray.any``."""
        made: Operand = FUNCTIONS[np.any](self, axis, keepdims=keepdims, where=where)
        return made

    def all(self, axis: Axis = None, *, keepdims: bool = False, where: Value = True) -> Operand:
        """``numpy.ndarray.all``."""
        made: Operand = FUNCTIONS[np.all](self, axis, keepdims=keepdims, where=where)
        return made

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Expression:
        """``numpy.ndarray.argmax``: the first of several, the first NaN if there is one."""
        made: Expression = FUNCTIONS[np.argmax](self, axis, keepdims=keepdims)
        return made

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Expression:
        """``numpy.ndarray.argmin``: the first of several, the first NaN if there is one."""
        made: Expression = FUNCTIONS[np.argmin](self, axis, keepdims=keepdims)
        return made

    def mean(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        *,
        keepdims: bool = False,
        where: Value = True,
    ) -> Operand:
        """``numpy.ndarray.mean``; of floats of 16 bits and less it is made in float32."""
        made: Operand = FUNCTIONS[np.mean](self, axis, dtype, keepdims=keepdims, where=where)
        return made

    def var(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        *,
        ddof: float = 0,
        keepdims: bool = False,
        where: Value = True,
    ) -> Operand:
        """``numpy.ndarray.var``; of floats of 16 bits and less it is made in float32."""
        options = {"ddof": ddof, "keepdims": keepdims, "where": where}
        made: Operand = FUNCTIONS[np.var](self, axis, dtype, **options)
        return made

    def std(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        *,
        ddof: float = 0,
        keepdims: bool = False,
        where: Value = True,
    ) -> Operand:
        """``numpy.ndarray.std``; of floats of 16 bits and less it is made in float32."""
        options = {"ddof": ddof, "keepdims": keepdims, "where": where}
        made: Operand = FUNCTIONS[np.std](self, axis, dtype, **options)
        return made

    def astype(self, dtype: DTypeLike, *, casting: Casting = "unsafe") -> Operand:
        """``numpy.ndarray.astype``; the same if it has that dtype.

        Raises:
            TypeError: a cast that ``casting`` does not allow.
        """
        wanted = as_dtype(dtype)
        require_castable(self.dtype, wanted, casting)
        made: Operand = FUNCTIONS[np.astype](self, wanted)
        return made

    def clip(self, min: Value | None = None, max: Value | None = None) -> Operand:  # noqa: A002
        """``numpy.ndarray.clip``."""
        made: Operand = FUNCTIONS[np.clip](self, min, max)
        return made

    def round(self, decimals: int = 0) -> Operand:
        """``numpy.ndarray.round``: halves go to the even neighbour."""
        made: Operand = FUNCTIONS[np.round](self, decimals)
        return made

    def __round__(self, ndigits: int | None = None) -> Operand:
        return self.round(ndigits or 0)
