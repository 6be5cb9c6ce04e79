"""Errors about calls whose arguments do not fit, in terms of the caller."""

from __future__ import annotations

import functools
import inspect
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")

_OTHERS: Final = {"dim": "axis", "dims": "axis", "axes": "axis", "keepdim": "keepdims"}
"""Names that other libraries have for arguments."""

_OPTIONS: Final = re.compile(r"Unpack\[(\w+)\]")
"""The annotation of named arguments that a ``TypedDict`` lists."""

_COUNTED: Final = re.compile(r"\d+(?= to | positional argument| were )")
"""Numbers of positional arguments in Python's errors."""

_NEEDLESS: Final = {
    "stream": "leave it out, since a device orders ops by the buffers that they use",
    "order": "leave it out, since new buffers are in C order",
    "device": "leave it out, since a buffer is on the device whose method makes it",
}
"""Arguments of other libraries that nothing here stands for."""

_MOVED: Final = {
    "standbys": ("standby", "standby=Standby(hot=...), with the number of them"),
    "warm_up": ("standby", "standby=Standby(hot=1, warm_up=...)"),
}
"""Arguments that are parts of another one now: its name, and what to write."""


def clarify(
    error: TypeError, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Have an error say how to call the function, if its arguments do not fit.

    The message of ``error`` is changed; raise it again.
    """
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        name = function.__name__
        called: Any = inspect.unwrap(function)
        said = str(error).replace(f"{called.__qualname__}()", f"{name}()")
        if added := len(inspect.signature(called).parameters) - len(signature.parameters):
            said = _COUNTED.sub(lambda count: str(int(count[0]) - added), said)
        known = _known(function)
        unknown = next((word for word in kwargs if word not in known), None)
        if unknown is not None:
            said = _unexpected(name, unknown, known)
        elif "shape" in known and len(args) > len(known):
            said += f"; write the shape as a tuple: {name}({args[1:]})"
        error.args = (said,)


def check_options(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Raise if a call has a named argument that the function's ``TypedDict`` of options lacks.

    Python itself takes any name for ``**options: Unpack[Options]``.
    """
    if kwargs and _options_of(function) is not None:
        known = _known(function)
        for word in kwargs:
            if word not in known:
                raise TypeError(_unexpected(function.__name__, word, known))


def _unexpected(name: str, word: str, known: Sequence[str]) -> str:
    return f"{name}() got an unexpected keyword argument {word!r}{advice(word, known)}"


@functools.cache
def _known(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's arguments, with those of its ``TypedDict`` of options."""
    named = [
        name
        for name, each in inspect.signature(function).parameters.items()
        if name not in ("self", "_") and each.kind is not each.VAR_KEYWORD
    ]
    return *named, *(_options_of(function) or ())


@functools.cache
def _options_of(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names of a function's ``TypedDict`` of options, or None without one."""
    function = inspect.unwrap(function)
    for each in inspect.signature(function).parameters.values():
        if each.kind is each.VAR_KEYWORD and (found := _OPTIONS.fullmatch(str(each.annotation))):
            return tuple(function.__globals__[found[1]].__annotations__)
    return None


def resembling(word: str, known: Iterable[str]) -> str | None:
    """Return the name that was probably meant by a word, or None if none is like it."""
    return next(iter(get_close_matches(word, known, 1)), None)


def advice(word: str, known: Sequence[str]) -> str:
    """Return what to write instead of an argument that a function does not take."""
    within, write = _MOVED.get(word, ("", ""))
    if within in known:
        return f"; write {write}"
    for other in (_OTHERS.get(word), resembling(word, known)):
        if other in known:
            return f"; write {other}="
    if word in _NEEDLESS:
        return f"; {_NEEDLESS[word]}"
    return f"; it takes {', '.join(known)}" if known else ""


def clear_calls(kind: type[T]) -> type[T]:
    """Have the public methods of a class raise errors that say how to call them."""
    for name, method in list(vars(kind).items()):
        if not name.startswith("_") and inspect.isfunction(method):
            setattr(kind, name, clear_call(method))
    return kind


def clear_call(method: F) -> F:
    """Have a method raise errors that say how to call it."""

    @functools.wraps(method)
    def clear(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except TypeError as error:
            clarify(error, method, args, kwargs)
            raise

    return cast("F", clear)
