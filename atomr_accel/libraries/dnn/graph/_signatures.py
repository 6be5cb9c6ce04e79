"""Types of making and running plans. The outputs of a graph decide the result of its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, overload

from ....ops import op

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ....memory import GpuRef
    from ....ops import Awaited, Collected, Described, Facade, Request
    from .user_graph import Node, Plan

    OneOrMore: TypeAlias = GpuRef | tuple[GpuRef, ...]

R = TypeVar("R")
Unknown_co = TypeVar("Unknown_co", covariant=True)
One_co = TypeVar("One_co", covariant=True)
More_co = TypeVar("More_co", covariant=True)


class Build(Protocol[Unknown_co, One_co, More_co]):
    """``build``: the number of its outputs decides the type of the plan's result."""

    @overload
    def __call__(self, /, *, autotune: bool | None = ...) -> Unknown_co: ...
    @overload
    def __call__(self, output: Node, /, *, autotune: bool | None = ...) -> One_co: ...
    @overload
    def __call__(
        self, first: Node, second: Node, /, *others: Node, autotune: bool | None = ...
    ) -> More_co: ...


class build_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[..., Coroutine[Any, Any, Plan[Awaited, OneOrMore]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Awaited], owner: Any = None
    ) -> Build[
        Coroutine[Any, Any, Plan[Awaited, OneOrMore]],
        Coroutine[Any, Any, Plan[Awaited, GpuRef]],
        Coroutine[Any, Any, Plan[Awaited, tuple[GpuRef, ...]]],
    ]: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> Build[
        Plan[Collected, OneOrMore],
        Plan[Collected, GpuRef],
        Plan[Collected, tuple[GpuRef, ...]],
    ]: ...
    @overload
    def __get__(
        self, facade: Facade[Described], owner: Any = None
    ) -> Build[
        Request[Plan[Described, OneOrMore]],
        Request[Plan[Described, GpuRef]],
        Request[Plan[Described, tuple[GpuRef, ...]]],
    ]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)


class RunAwaited(Protocol):
    """``run`` on a device."""

    def __call__(
        self, /, plan: Plan[Any, R], **given: GpuRef | float
    ) -> Coroutine[Any, Any, R]: ...


class RunCollected(Protocol):
    """``run`` in a batch or a recording."""

    def __call__(self, /, plan: Plan[Any, R], **given: GpuRef | float) -> R: ...


class RunDescribed(Protocol):
    """``run`` of ``device.requests``."""

    def __call__(self, /, plan: Plan[Any, R], **given: GpuRef | float) -> Request[R]: ...


class run_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[..., Coroutine[Any, Any, OneOrMore]]: ...
    @overload
    def __get__(self, facade: Facade[Awaited], owner: Any = None) -> RunAwaited: ...
    @overload
    def __get__(self, facade: Facade[Collected], owner: Any = None) -> RunCollected: ...
    @overload
    def __get__(self, facade: Facade[Described], owner: Any = None) -> RunDescribed: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)
