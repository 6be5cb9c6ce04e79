"""Functions that open something for the length of an ``async with`` or a ``with`` block."""

from __future__ import annotations

import functools
import re
import warnings
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    _AsyncGeneratorContextManager,
    _GeneratorContextManager,
)
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, ParamSpec, TypeVar

from .._calling import check_options, clarify

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

P = ParamSpec("P")
T = TypeVar("T")


class EntersAsync:
    """Base of objects that are entered by ``async with``, with errors for any other use."""

    _entered_by: ClassVar[str]
    """The code that enters one, after ``async with``."""

    def _how(self) -> str:
        kind = type(self).__name__.lower()
        return f"a {kind} begins with a block; write: async with {self._entered_by}"

    if not TYPE_CHECKING:  # to checkers these would be there

        def __enter__(self) -> NoReturn:
            raise TypeError(self._how())

        def __exit__(self, *_: object) -> None:
            """Nothing, since no block begins."""

        def __await__(self) -> NoReturn:
            raise TypeError(self._how())


class _Unentered:
    """A block before it is entered: any other use raises an error that says how to."""

    _with = "async with"
    _told = True  # unless ``__init__`` gets to its end

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._called = _spelling(function, args)
        try:
            check_options(function, kwargs)
            super().__init__(function, args, kwargs)  # type: ignore[call-arg]
        except TypeError as error:
            clarify(error, function, args, kwargs)
            raise
        self._told = False

    def _how(self) -> str:
        self._told = True
        thing = "" if self._with == "with" else " as x"
        short = self._called.rpartition(".")[2]
        return f"{short}() opens with a block; write: {self._with} {self._called}(...){thing}"

    def _refuse(self, *_args: object, **_named: object) -> NoReturn:
        raise TypeError(self._how())

    if not TYPE_CHECKING:  # to checkers all of these would be there

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise AttributeError(f"{self._how()}, and then x.{name}")

        __call__ = __getitem__ = __iter__ = __aiter__ = __await__ = _refuse

    def __del__(self) -> None:
        # As Python does for a coroutine: the line that has made it did nothing.
        if not self._told:
            warnings.warn(
                f"a block was never entered, so it did nothing: {self._how()}",
                RuntimeWarning,
                stacklevel=2,
            )


class _ManagedBlock(_Unentered, _AsyncGeneratorContextManager[T]):
    """A block that ``asynccontextmanager`` makes, with errors for any other use."""

    def __aenter__(self) -> Coroutine[Any, Any, T]:  # not async, to be no frame of a warning
        self._told = True
        return super().__aenter__()

    def __enter__(self) -> NoReturn:
        self._refuse()

    def __exit__(self, *_: object) -> None:
        """Nothing, since no block begins."""


class _ManagedSyncBlock(_Unentered, _GeneratorContextManager[T]):
    """A block that ``contextmanager`` makes, with errors for any other use."""

    _with = "with"

    def __enter__(self) -> T:
        self._told = True
        return super().__enter__()

    def __aenter__(self) -> NoReturn:
        self._refuse()

    def __aexit__(self, *_: object) -> NoReturn:
        self._refuse()


def passed_on(block: object) -> None:
    """Note that a block was given to a function, which may refuse it, and was not forgotten."""
    if isinstance(block, _Unentered):
        block._told = True


def _spelling(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Return a function's name as a program writes it, such as ``metrics.observe``."""
    owner, _, name = function.__qualname__.rpartition(".")
    if not owner or owner.endswith("<locals>") or not args:
        return name
    kind = type(args[0]).__name__  # which may be derived from the owner
    return f"{re.sub('(?<=[a-z])(?=[A-Z])', '_', kind).lower()}.{name}"


def opens(
    function: Callable[P, AsyncIterator[T]],
) -> Callable[P, AbstractAsyncContextManager[T]]:
    """``contextlib.asynccontextmanager`` for functions that programs call.

    The function is an async generator function. Or it checks its arguments, so that errors come
    with the call, and returns an async generator.
    """

    @functools.wraps(function)
    def open_block(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T]:
        return _ManagedBlock(function, args, kwargs)

    return open_block


def enters(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """``contextlib.contextmanager`` for functions that programs call. See `opens`."""

    @functools.wraps(function)
    def enter_block(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _ManagedSyncBlock(function, args, kwargs)

    return enter_block
