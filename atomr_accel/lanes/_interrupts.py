"""Ctrl+C inside this package: it arrives at checkpoints, where cancellation does.

Python raises KeyboardInterrupt between any two instructions. Between two steps of a submission it
would leave an op in flight that is not queued, so it would never be answered. Half a frame would
garble all later ones. A program may catch the interrupt and go on. Code that must run to completion
is therefore marked, and trio raises KeyboardInterrupt where the main task waits next. Calling
marked code costs nothing extra.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType

_T = TypeVar("_T", bound=type)


def uninterrupted(cls: _T) -> _T:
    """Mark all methods of a class and of its bases, and the functions that they call.

    Functions are marked by ``trio.lowlevel.enable_ki_protection``.
    """
    for function in _functions(cls):
        trio.lowlevel.enable_ki_protection(function)
    return cls


def _functions(cls: type) -> Iterator[FunctionType]:
    for base in cls.__mro__[:-1]:
        for member in vars(base).values():
            if isinstance(member, property):
                yield from filter(inspect.isfunction, (member.fget, member.fset))
            elif isinstance(member, staticmethod | classmethod):
                yield from filter(inspect.isfunction, (member.__func__,))
            elif inspect.isfunction(member):
                yield inspect.unwrap(member)
