"""Ctrl+C inside this package: it arrives at checkpoints, where cancellation does.

Python raises KeyboardInterrupt between any two instructions. An op that was noted as in flight
and not queued would never be answered, half a frame would garble all that come after it, and a
program may well catch the interrupt and go on. So what must be whole is marked: trio then
raises KeyboardInterrupt where the main task waits next. Marking costs nothing when called.
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
    """Mark all methods of a class, its base classes' included, and what they call.

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
