"""Small tools without a better home."""

from __future__ import annotations

import enum
import traceback
from inspect import Parameter, Signature
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class NoPublicConstructor(type):
    """Metaclass of classes that only this package makes instances of.

    Calling such a class is a `TypeError` that names the function to use instead
    (the class attribute ``_made_by``); the package itself calls ``construct``. ``help()``
    shows no arguments of theirs.
    """

    _made_by = "the function that returns one"

    def __init__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> None:
        super().__init__(name, bases, members)
        init = members.get("__init__")
        if init is not None:
            init.__signature__ = Signature([Parameter("self", Parameter.POSITIONAL_ONLY)])
            init.__doc__ = f"Programs call {cls._made_by} instead."

    @property
    def __signature__(cls) -> Signature:
        """A signature without arguments."""
        return Signature()

    def __call__(cls, *_args: object, **_kwargs: object) -> NoReturn:
        """Raise a TypeError that names the function to call instead."""
        raise TypeError(f"{cls.__qualname__} has no public constructor; use {cls._made_by}")

    def construct(cls: type[T], *args: Any, **kwargs: Any) -> T:
        """Make an instance, for the function that programs call."""
        # mypy takes super() for that of the instance's class, not the metaclass's.
        return super().__call__(*args, **kwargs)  # type: ignore[misc, no-any-return]


# What is configured is checked where it is made: a wrong type would show much later, as something
# that quietly does not happen.


def check_member(what: str, value: object, kind: type[enum.Enum]) -> None:
    """Raise a `TypeError` unless it is a member of the enum."""
    if not isinstance(value, kind):
        members = ", ".join(map(str, kind))
        raise TypeError(f"{what} must be one of {members}, not {value!r}")


def check_instance(what: str, value: object, kind: type) -> None:
    """Raise a `TypeError` unless it is an instance of the class."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be an instance of {kind.__name__}, not {value!r}")


def describe(failure: BaseException) -> str:
    """One line about an exception, also where its ``__str__`` is broken."""
    return "".join(traceback.format_exception_only(failure)[:1]).strip()
