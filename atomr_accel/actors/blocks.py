"""Functions that open something for the length of an ``async with`` block."""

from __future__ import annotations

import functools
from contextlib import AbstractAsyncContextManager, _AsyncGeneratorContextManager
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

P = ParamSpec("P")
T = TypeVar("T")


class _ManagedBlock(_AsyncGeneratorContextManager[T]):
    """A block that ``asynccontextmanager`` makes, with errors for any other use."""

    if not TYPE_CHECKING:  # to checkers any attribute would be there

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__"):
                raise AttributeError(name)
            raise AttributeError(f"{self._how()}, and then x.{name}")

    def __enter__(self) -> NoReturn:
        raise TypeError(self._how())

    def __exit__(self, *_: object) -> None:
        """Nothing, since no block begins."""

    def __await__(self) -> NoReturn:
        raise TypeError(self._how())

    def _how(self) -> str:
        name = self.func.__name__
        return f"{name}() opens with a block; write: async with {name}(...) as x"


def opens(
    function: Callable[P, AsyncIterator[T]],
) -> Callable[P, AbstractAsyncContextManager[T]]:
    """``contextlib.asynccontextmanager`` for functions that programs call."""

    @functools.wraps(function)
    def open_block(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T]:
        return _ManagedBlock(function, args, kwargs)  # type: ignore[arg-type]

    return open_block
