"""Small tools without a better home."""

from __future__ import annotations

import traceback
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class NoPublicConstructor(type):
    """Metaclass of classes that only this package makes instances of.

    Calling such a class is a `TypeError` that names the function to use instead
    (the class attribute ``_made_by``); the package itself calls ``_create``.
    """

    def __call__(cls, *_args: object, **_kwargs: object) -> NoReturn:
        made_by = getattr(cls, "_made_by", "the function that returns one")
        raise TypeError(f"{cls.__qualname__} has no public constructor; use {made_by}")

    def _create(cls: type[T], *args: Any, **kwargs: Any) -> T:
        # mypy takes super() for that of the instance's class, not the metaclass's.
        return super().__call__(*args, **kwargs)  # type: ignore[misc, no-any-return]


def unwrap(failure: BaseException) -> BaseException:
    """The failure itself, where a nursery has put it alone into a group."""
    while isinstance(failure, ExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    return failure


def describe(failure: BaseException) -> str:
    """One line about an exception, also where its ``__str__`` is broken."""
    return "".join(traceback.format_exception_only(failure)[:1]).strip()
