"""Errors about calls whose arguments do not fit, in terms of the caller."""

from __future__ import annotations

import functools
import inspect
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

_OTHERS: Final = {"dim": "axis", "dims": "axis", "axes": "axis", "keepdim": "keepdims"}
"""Names that other libraries have for arguments."""

_NEEDLESS: Final = {
    "stream": "leave it out, since a device orders ops by the buffers that they use",
    "order": "leave it out, since new buffers are in C order",
    "device": "leave it out, since a buffer is on the device whose method makes it",
}
"""Arguments of other libraries that nothing here stands for."""


def clarify(
    error: TypeError, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Have an error say how to call the function, if its arguments do not fit.

    Args:
        error: the exception of the call. Its message is changed, and it is to be raised again.
        function: the function that was called.
        args: the positional arguments.
        kwargs: the named arguments.
    """
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        name = function.__name__
        said = str(error).replace(f"{function.__qualname__}()", f"{name}()")
        known = [each for each in signature.parameters if each not in ("self", "_")]
        unknown = next((word for word in kwargs if word not in known), None)
        if unknown is not None:
            said = (
                f"{name}() got an unexpected keyword argument {unknown!r}{_advice(unknown, known)}"
            )
        elif "shape" in known and len(args) > len(known):
            said += f"; write the shape as a tuple: {name}({args[1:]})"
        error.args = (said,)


def _advice(word: str, known: list[str]) -> str:
    likely = [_OTHERS.get(word, ""), *get_close_matches(word, known, 1)]
    for other in likely:
        if other in known:
            return f"; write {other}="
    if word in _NEEDLESS:
        return f"; {_NEEDLESS[word]}"
    return f"; it takes {', '.join(known)}" if known else ""


def clear_calls(kind: type[T]) -> type[T]:
    """Have the public methods of a class raise errors that say how to call them."""
    for name, method in list(vars(kind).items()):
        if not name.startswith("_") and inspect.isfunction(method):
            setattr(kind, name, _clear(method))
    return kind


def _clear(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def clear(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except TypeError as error:
            clarify(error, method, args, kwargs)
            raise

    return clear
