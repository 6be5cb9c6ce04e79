"""Functions of NumPy by those of ``device.array``, ``device.xp`` and ``device.tensor``.

Names and orders of arguments are NumPy's, so signatures tell which arguments are arrays.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from .shared import OnlyTheirs, library_of, on_device, plain

LEFT: Final = ("apply_along_axis", "arange", "full", "ones", "empty_like")
"""A function of functions, and what tests of anything make their arrays of."""

_XP: Final = (
    *("broadcast_to", "concat", "cumulative_prod", "cumulative_sum", "expand_dims", "isdtype"),
    *("matrix_transpose", "moveaxis", "permute_dims", "reshape", "squeeze", "unstack"),
)


def _put(value: Any, annotation: str) -> Any:
    """Return an argument with plain arrays in it, where the device's function takes arrays."""
    if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
        raise OnlyTheirs("subclasses")
    takes = any(each in annotation for each in ("GpuRef", "Operand", "Value", "Indices"))
    if "Sequence[GpuRef]" in annotation or "Sequence[Operand]" in annotation:
        if not isinstance(value, list | tuple):
            return list(_plain(value)) if isinstance(value, np.ndarray) else value
        return [_put(each, "Operand") for each in value]
    if not takes and isinstance(value, np.ndarray):
        return value.tolist()
    if not takes or value is None or isinstance(value, str | slice):
        return value
    scalars = annotation.removesuffix(" | None") not in ("GpuRef", "Operand")
    if scalars and isinstance(value, bool | int | float | complex | np.generic):
        if isinstance(value, np.generic):
            _plain(value)
        return value
    if isinstance(value, list | tuple) and "Sequence[" in annotation:
        return value
    if not isinstance(value, np.ndarray | list | tuple | np.generic | int | float | complex):
        raise OnlyTheirs("other objects")
    return _plain(value)


def _plain(value: Any) -> Any:
    try:
        return plain(value)
    except (TypeError, ValueError) as error:
        raise OnlyTheirs(str(error)) from None


def _arguments(
    taken: inspect.Signature, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call of NumPy's function as those of the device's."""
    try:
        theirs = inspect.signature(original)
    except ValueError:  # a builtin without a signature
        theirs = taken
    try:
        bound = theirs.bind(*args, **kwargs)
    except TypeError:
        raise OnlyTheirs("an error of arguments") from None
    given: dict[str, Any] = {}
    rest: tuple[Any, ...] = ()
    for key, value in bound.arguments.items():
        parameter = theirs.parameters[key]
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = value
        elif parameter.kind is parameter.VAR_KEYWORD:
            given.update(value)
        elif value is not parameter.default and value is not np._NoValue:
            given[key] = value
    for their, our in zip(theirs.parameters, taken.parameters.values(), strict=False):
        if our.kind is our.POSITIONAL_ONLY and their in given:
            given[our.name] = given.pop(their)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    open_ended = any(each.kind is each.VAR_POSITIONAL for each in taken.parameters.values())
    for key, parameter in taken.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [_put(value, str(parameter.annotation)) for value in rest]
        elif key in given:
            value = given.pop(key)
            prepared = _put(value, str(parameter.annotation))
            value = value if key == "out" else prepared
            if parameter.kind is parameter.POSITIONAL_ONLY or (
                open_ended and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            ):
                positional.append(value)
            else:
                named[key] = value
    if given:
        raise OnlyTheirs(f"options: {', '.join(given)}")
    needed = [
        each
        for each in taken.parameters.values()
        if each.default is each.empty and each.kind is not each.VAR_POSITIONAL
    ]
    if len(positional) + len(named) < len(needed):
        raise OnlyTheirs("fewer arguments")
    if named.get("dtype") is not None:
        _plain(np.empty(0, named["dtype"]))
    values = [*positional, *named.values()]
    if any(str(each.annotation) == "Value" for each in taken.parameters.values()) and not any(
        isinstance(value, np.ndarray) for value in values
    ):
        raise OnlyTheirs("numbers alone")
    return positional, named


def _result(made: Any) -> Any:
    """Return scalars instead of arrays without axes, as NumPy does."""
    if isinstance(made, tuple | list):
        parts = [_result(each) for each in made]
        return type(made)(*parts) if hasattr(made, "_fields") else type(made)(parts)
    return made[()] if isinstance(made, np.ndarray) else made


def _adapted(
    library: str, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    taken = inspect.signature(getattr(library_of(library), name))
    positional, named = _arguments(taken, original, *args, **kwargs)
    out = named.get("out")
    made = on_device(library, name, *positional, **named)
    if out is not None:
        return out
    return bool(made) if name in ("array_equal", "allclose") else _result(made)


def _einsum(*operands: Any, out: Any = None, optimize: Any = False, **options: Any) -> Any:
    if not operands:
        raise OnlyTheirs("an error of arguments")
    if isinstance(operands[0], str):
        given = [operands[0], *[_put(each, "Operand") for each in operands[1:]]]
    else:  # arrays and lists of axes by turns
        pairs = len(operands) // 2 * 2
        given = [
            [*each] if at % 2 or at == pairs else _put(each, "Operand")
            for at, each in enumerate(operands)
        ]
    options = {key: value for key, value in options.items() if value is not None}
    if {*options} - {"dtype", "casting"}:
        raise OnlyTheirs(f"options: {', '.join(options)}")
    if out is not None:
        _put(out, "GpuRef")
        options["out"] = out
    made = on_device("tensor", "einsum", *given, optimize=optimize, **options)
    return _result(made) if out is None else out


def _put_along_axis(arr: Any, indices: Any, values: Any, axis: Any) -> None:
    into, places = _put(arr, "GpuRef"), _put(indices, "Operand")
    arr[...] = on_device("array", "put_along_axis", into, places, _put(values, "Value"), axis)


def _in_numpy(library: str) -> list[str]:
    names = [name for name in dir(library_of(library)) if not name.startswith("_")]
    return [name for name in names if callable(getattr(np, name, None)) and name not in LEFT]


ADAPTED: Final[dict[str, Callable[..., Any]]] = {
    **{name: partial(_adapted, "xp", name, getattr(np, name)) for name in _XP},
    **{name: partial(_adapted, "array", name, getattr(np, name)) for name in _in_numpy("array")},
    "einsum": _einsum,
    "put_along_axis": _put_along_axis,
}
"""The functions by name."""

__all__ = ["ADAPTED"]
