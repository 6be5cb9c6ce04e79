"""Operators as programs name them, and what becomes of them for some dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

import cloudpickle
import numpy as np

from ..._dtypes import DTYPES
from ..._errors import Unsupported, said_of
from ._python import NAME, translate
from .wire._spec import ALIASES, BINARY, C_TYPES, UNARY
from .wire._spec import OperatorSpec as Coded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...ops import DeviceView
    from .wire._spec import Rule


@final
class Operator:
    """A function of one or two elements, in CUDA C++. Made by ``device.cub.operator``.

    Attributes:
        source: CUDA C++ that declares it.
        name: its name there.
        cpu: what computes it on the CPU backend.
    """

    __slots__ = ("cpu", "name", "pickled", "source")

    def __init__(self, source: str, name: str, cpu: Callable[..., Any] | None) -> None:
        texts: tuple[object, ...] = source, name
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("operator(source, name) takes the source and the name as str")
        if not name.isidentifier():
            raise ValueError(f"name must be that of a function in the source, not {name!r}")
        if name not in source:
            raise ValueError(f"the source has no function named {name!r}")
        source.encode()  # a surrogate would only be noticed when the message is sent
        if cpu is not None and not callable(cpu):
            raise TypeError(f"cpu must be callable, not {said_of(cpu)}")
        self.source: Final = source
        self.name: Final = name
        self.cpu: Final = cpu
        self.pickled: Final = b"" if cpu is None else _pickled(cpu)

    def __repr__(self) -> str:
        return f"<Operator {self.name}>"


def _pickled(function: Callable[..., Any]) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(function)
    except Exception as error:
        raise TypeError(f"cpu must be a function that can be pickled: {error}") from error
    return pickled


AnyOperator = str | Operator | Callable[..., Any]
"""A name, what ``device.cub.operator`` made, or a Python function of the small subset."""


def coded(
    device: DeviceView, operator: AnyOperator, arguments: tuple[str, ...], result: str, what: str
) -> Coded:
    """Return an operator for some dtypes."""
    in_python = _in_python(device)
    if isinstance(operator, str):
        kind = named(operator, len(arguments), what)
        _require_kind(kind, arguments, what)
        return Coded(arguments, result, kind)
    if isinstance(operator, Operator):
        if in_python and operator.cpu is None:
            raise Unsupported(
                f"{what}, {operator.name!r}, has no function for the CPU backend; give one: "
                f"device.cub.operator(source, {operator.name!r}, cpu=function)"
            )
        if in_python:
            return Coded(arguments, result, "", "", operator.name, operator.pickled)
        return Coded(arguments, result, "", operator.source, operator.name)
    function: object = operator
    if not callable(function) or isinstance(function, np.ufunc | type):
        raise TypeError(
            f"{what} must be a name, what device.cub.operator makes, or a Python function, not "
            f"{said_of(operator)}"
        )
    dtype = arguments[0]
    if dtype not in C_TYPES:
        raise TypeError(f"{what}: operators in Python take no {dtype}")
    source = translate(operator, len(arguments), dtype, C_TYPES[dtype])
    if in_python:
        return Coded(arguments, result, "", "", NAME, _pickled(operator))
    return Coded(arguments, result, "", source, NAME)


def _in_python(device: DeviceView) -> bool:
    """Return whether operators run as Python functions."""
    return device.capabilities.python_kernels


def named(name: str, count: int, what: str) -> str:
    """Return an operator's name in CUB."""
    known: Mapping[str, Rule] = UNARY if count == 1 else BINARY
    found = ALIASES.get(name, name) if count == 2 else name
    if found not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}, not {name!r}")
    return found


def _require_kind(kind: str, arguments: tuple[str, ...], what: str) -> None:
    rule = (UNARY if len(arguments) == 1 else BINARY)[kind]
    dtype = DTYPES[arguments[0]]
    if dtype.kind not in rule.kinds or dtype.name.startswith("float8"):
        raise TypeError(f"{what} {kind!r} takes no {dtype.name}")


def identity_of(kind: str, dtype: str) -> bytes | None:
    """Return the identity of a named operator as bytes; None if it has none."""
    rule = BINARY.get(kind)
    if rule is None or rule.identity is None:
        return None
    made = DTYPES[dtype]
    if rule.identity < 0:  # all bits
        return b"\1" if made.kind == "b" else b"\xff" * made.itemsize
    return np.asarray(rule.identity).astype(made).tobytes()
