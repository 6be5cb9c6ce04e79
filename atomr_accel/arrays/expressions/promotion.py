"""Which dtypes functions take and give: NumPy is asked, once for each combination."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from ..._dtypes import as_dtype
from ...wire.ufuncs import find_ufunc

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = np.dtype[Any] | type
"""A value's kind in NumPy's rules: a dtype, or int, float or complex for Python's numbers."""

Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]

Form = tuple[tuple[int, ...], np.dtype[Any]] | Kind
"""A value's form, which decides a function's result: shape and dtype, or a number's kind."""

MANY: Final = 4096
"""Number of combinations that the caches hold."""
FLOAT32: Final = as_dtype(np.float32)


def kind_of(value: object) -> Kind:
    """Return a number's kind. A Python number takes the dtype of the other operand."""
    if type(value) in (int, float, complex):
        return type(value)
    return as_dtype(np.asarray(value).dtype)


@lru_cache(MANY)
def resolve(
    name: str,
    kinds: tuple[Kind, ...],
    dtype: np.dtype[Any] | None = None,
    casting: str = "same_kind",
) -> tuple[np.dtype[Any], ...]:
    """The dtypes that a ufunc computes with: those of its inputs, then those of its results."""
    ufunc = getattr(np, name) if name in ("modf", "frexp", "divmod") else find_ufunc(name)
    given: Any = (*kinds, *[None] * ufunc.nout)
    options: dict[str, Any] = {"casting": casting}
    if dtype is not None:
        options["signature"] = (*[None] * ufunc.nin, *[dtype] * ufunc.nout)
    found = ufunc.resolve_dtypes(given, **options)
    return tuple(as_dtype(each) for each in found)


@lru_cache(MANY)
def reduced(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of a ufunc's reduction."""
    initial: Mapping[str, Any] = {}
    if find_ufunc(name).identity is None:
        return as_dtype(find_ufunc(name).reduce(np.zeros(1, dtype), **initial).dtype)
    return as_dtype(find_ufunc(name).reduce(np.zeros(0, dtype)).dtype)


@lru_cache(MANY)
def clipped(kinds: tuple[Kind, ...]) -> np.dtype[Any]:
    """The dtype of ``numpy.clip`` with both bounds."""
    # Ones: bounds that are the ends of the dtype are as good as none.
    samples: list[Any] = [
        kind(1) if isinstance(kind, type) else np.ones((), kind) for kind in kinds
    ]
    return as_dtype(np.asarray(np.clip(*samples)).dtype)


@lru_cache(MANY)
def common(kinds: tuple[Kind, ...]) -> np.dtype[Any]:
    """The dtype that values of several kinds are given together, as ``numpy.result_type``."""
    samples = [kind(0) if isinstance(kind, type) else kind for kind in kinds]
    return as_dtype(np.result_type(*samples))


def joint(forms: tuple[Form, ...]) -> tuple[int, ...]:
    """The shape that values broadcast to."""
    given = [form[0] for form in forms if isinstance(form, tuple)]
    shapes = {*given} - {()}
    if len(shapes) < 2:
        return shapes.pop() if shapes else ()
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        each = " ".join(str(shape).replace(" ", "") for shape in given)
        raise ValueError(f"operands could not be broadcast together with shapes {each}") from None


def require_castable(given: np.dtype[Any], wanted: np.dtype[Any], casting: Casting) -> None:
    """Refuse a conversion that ``casting`` does not allow, as NumPy does."""
    if not np.can_cast(given, wanted, casting):
        raise TypeError(
            f"Cannot cast array data from {given!r} to {wanted!r} according to the rule {casting!r}"
        )


class Typed(NamedTuple):
    """Shape and dtypes of a function's result, for inputs of given forms.

    Attributes:
        shape: the shape of the result.
        dtype: the dtype of the result.
        takes: the dtypes to which the inputs are converted.
        as_given: whether the inputs have these dtypes already.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    takes: tuple[np.dtype[Any], ...]
    as_given: bool


@lru_cache(MANY)
def typed(name: str, forms: tuple[Form, ...], dtype: np.dtype[Any] | None, casting: str) -> Typed:
    """Return a ufunc's result type; arguments and errors are those of ``resolve`` and ``joint``."""
    base, _, which = name.partition(":")
    kinds = tuple([form[1] if isinstance(form, tuple) else form for form in forms])
    shape = joint(forms)
    dtypes = resolve(base, kinds, dtype, casting)
    takes = dtypes[: len(forms)]
    as_given = all(
        isinstance(form, tuple) and form[1] is each for form, each in zip(forms, takes, strict=True)
    )
    return Typed(shape, dtypes[len(forms) + int(which or 0)], takes, as_given)
