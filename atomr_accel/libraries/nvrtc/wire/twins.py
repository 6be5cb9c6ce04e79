"""Calls of the Python functions that replace kernels, in hosts and in comparisons."""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...._dtypes import DTYPES
from .messages import StructArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .messages import Scalar

Dim3 = tuple[int, int, int]


class TwinFunction(NamedTuple):
    """A Python function that replaces a kernel.

    Attributes:
        leading: whether it takes grid and block first.
        named: its other parameters, by name: ``"grid"`` and ``"block"``, and variables.
    """

    function: Callable[..., object]
    leading: bool
    named: frozenset[str]

    def call(
        self, grid: Dim3, block: Dim3, arguments: Sequence[Any], variables: Mapping[str, Any]
    ) -> None:
        """Call the function with the arguments that it takes."""
        given = {"grid": grid, "block": block, **variables}
        named = {name: given[name] for name in self.named}
        leading = (grid, block) if self.leading else ()
        self.function(*leading, *arguments, **named)


def twin_function(function: Callable[..., object], variables: Iterable[str]) -> TwinFunction:
    """Read from a function's signature how to call it.

    Args:
        function: the function that replaces a kernel.
        variables: the names of the module's variables.
    """
    names = _parameter_names(function)
    leading = names[:2] == ["grid", "block"]
    named = {*variables} & {*names}
    if not leading and {"grid", "block"} <= {*names}:
        named |= {"grid", "block"}
    return TwinFunction(function, leading, frozenset(named))


def check_count(
    name: str, function: Callable[..., object], variables: Iterable[str], count: int
) -> None:
    """A function that replaces a kernel takes this number of arguments."""
    twin = twin_function(function, variables)
    given = (None,) * (count + 2 * twin.leading)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins do not tell
        return
    try:
        signature.bind(*given, **dict.fromkeys(twin.named))
    except TypeError as error:
        raise TypeError(
            f"kernel {name} must get as many arguments as its Python function takes, not {count}: "
            f"{error}"
        ) from None


def value_of(argument: Scalar | StructArgument) -> np.generic | None:
    """Convert a number, a struct or a null pointer to the argument of a Python function."""
    if isinstance(argument, StructArgument):
        dtype = np.lib.format.descr_to_dtype(ast.literal_eval(argument.fields))
    elif not argument.dtype:
        return None
    else:
        dtype = DTYPES[argument.dtype]
    value: np.generic = np.frombuffer(argument.data, dtype)[0]
    return value


def _parameter_names(function: Callable[..., object]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some builtins do not tell
        return []
