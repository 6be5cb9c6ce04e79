"""Names of variables and arguments that cannot be pickled, for the error."""

from __future__ import annotations

import functools
import inspect
import re
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_UNCLEAR: Final = re.compile("pickle (['<]|local )")
"""Messages of Python's pickle, which name an object's type. Others say what to do."""

_DEEPEST: Final = 8
"""Functions in functions that are looked into."""


def add_culprit(
    error: Exception,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    pickles: Callable[[Any], bool],
) -> None:
    """Have an error say which variable or argument cannot be pickled, if that is found.

    The message of ``error`` is changed.
    """
    if not _UNCLEAR.search(str(error)):
        return
    said = _culprit(function, args, pickles, _DEEPEST)
    if said is not None:
        error.args = (f"{error}: it is in {said}; make it in the function itself, or in `init`",)


def _culprit(
    function: Any, args: tuple[Any, ...], pickles: Callable[[Any], bool], depth: int
) -> str | None:
    for said, value in _named(function, args):
        if not pickles(value):
            deeper = _culprit(value, (), pickles, depth - 1) if depth else None
            return said if deeper is None else f"{deeper}, in {said}"
    return None


def _named(function: Any, args: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the objects that are pickled with a function, each with words for it."""
    for at, value in enumerate(args):
        yield f"argument {at} of the function", value
    if isinstance(function, functools.partial):
        yield "the function of the partial", function.func
        for at, value in enumerate(function.args):
            yield f"argument {at} of the partial", value
        for name, value in function.keywords.items():
            yield f"argument {name!r} of the partial", value
    elif isinstance(function, MethodType):
        yield f"the object whose method {function.__name__!r} is called", function.__self__
    elif isinstance(function, FunctionType):
        who = repr(function.__name__)
        used = inspect.getclosurevars(function)
        for names in (used.nonlocals, used.globals):
            for name, value in names.items():
                yield f"the variable {name!r}, which {who} uses", value
        for name, each in inspect.signature(function).parameters.items():
            if each.default is not each.empty:
                yield f"the default of argument {name!r} of {who}", each.default
    elif hasattr(function, "__dict__") and not isinstance(function, type):
        for name, value in vars(function).items():
            yield f"the attribute {name!r} of a {type(function).__name__}", value
