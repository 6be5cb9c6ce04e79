"""NumPy's ufuncs, and their methods, for refs and expressions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._dtypes import as_dtype
from ..._other_names import add_other_name
from ...wire.ufuncs import PAIRS, REDUCTIONS, UFUNCS, find_ufunc
from ._methods import FUNCTIONS, PLAIN
from .axes import Axis, axes_of, kept_of
from .expression import (
    Operand,
    Value,
    broadcast,
    constant,
    converted,
    no_out,
    reduce,
    ufunc,
    values_of,
    view,
    where,
)


def _apply(
    function: np.ufunc, method: str, inputs: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    name = function.__name__
    out = options.pop("out", None)
    if out is not None and any(each is not None for each in out):
        raise no_out(name)
    known = name in PAIRS or (name in UFUNCS and find_ufunc(name) is function)
    product = FUNCTIONS.get(function)
    if not known and product is None:
        raise TypeError(
            f"{name} cannot be part of an expression; the documentation of expressions has a list "
            f"of ufuncs. Compute it on the host: await device.put({name}(await device.get(x)))"
        )
    if known and name not in PAIRS:
        PLAIN[function] = name
    mask = options.pop("where", True)
    dtype = options.pop("dtype", None)
    kind = None if dtype is None else as_dtype(dtype)
    values = values_of(inputs)
    if product is not None:
        if options or mask is not True:
            raise TypeError(f"{name} of refs takes no {', '.join(options) or 'where'}")
        return product(*values, dtype=kind)
    if method == "__call__":
        casting = options.pop("casting", "same_kind")
        options.pop("order", None)
        options.pop("subok", None)
        if options:
            raise TypeError(f"{name} of refs takes no {', '.join(options)}")
        results = [
            ufunc(each, *values, dtype=kind, casting=casting)
            for each in ([f"{name}:0", f"{name}:1"] if name in PAIRS else [name])
        ]
        if mask is not True:
            chosen = _mask(values_of((mask,))[0])
            results = [where(chosen, each, constant(0, each.dtype)) for each in results]
        return tuple(results) if name in PAIRS else results[0]
    if method == "reduce" and name in REDUCTIONS:
        axis, keepdims = options.pop("axis", 0), options.pop("keepdims", False)
        initial = options.pop("initial", None)
        if options:
            raise TypeError(f"{name}.reduce of refs takes no {', '.join(options)}")
        given = values[0] if isinstance(values[0], Operand) else constant(values[0])
        return masked(name, given, axis, kind, keepdims=keepdims, initial=initial, mask=mask)
    if method == "outer" and not options:
        one, other = (each if isinstance(each, Operand) else constant(each) for each in values)
        axes = (*range(len(one.shape)), *[None] * len(other.shape))
        shape = one.shape + (1,) * len(other.shape)
        return ufunc(name, view(one, axes, shape), other, dtype=kind)
    raise TypeError(f"{name}.{method} is no part of expressions")


def _mask(given: Value) -> Value:
    """Return the argument of ``where=``, which must be of bools."""
    if isinstance(given, Operand) and given.dtype.kind != "b":
        raise TypeError(
            f"Cannot cast array data from dtype('{given.dtype}') to dtype('bool') according to the "
            "rule 'safe': where= takes bools, such as x != 0"
        )
    return given


def masked(
    name: str,
    x: Operand,
    axis: Axis,
    dtype: np.dtype[Any] | None,
    *,
    keepdims: bool = False,
    initial: Value | None = None,
    mask: Value = True,
) -> Operand:
    """A reduction with NumPy's ``initial`` and ``where``."""
    if mask is not True:
        if np.ndim(mask) > len(x.shape):
            raise ValueError(
                "input operand has more dimensions than allowed by the axis remapping: where has "
                f"{np.ndim(mask)} axes, and what is reduced {len(x.shape)}"
            )
        identity = find_ufunc(name).identity
        if identity is None:
            if initial is None:
                raise ValueError(
                    f"reduction operation '{name}' does not have an identity, so to use a where "
                    "mask one has to specify 'initial'"
                )
            identity = initial
        x = where(_mask(mask), x, converted(identity, x.dtype))
    if initial is None:
        return reduce(name, x, axis, dtype=dtype, keepdims=keepdims)
    if name in ("maximum", "minimum", "fmax", "fmin") and 0 in x.shape:
        shape = kept_of(x.shape, axes_of(axis, len(x.shape)), keepdims=keepdims)
        return broadcast(converted(initial, x.dtype), shape)
    made = reduce(name, x, axis, dtype=dtype, keepdims=keepdims)
    return ufunc(name, made, converted(initial, made.dtype))


FUNCTIONS[np.ufunc] = _apply
for _name, _module in UFUNCS.items():
    add_other_name(_name, f"{'np' if _module == 'numpy' else _module}.{_name}(x)")
