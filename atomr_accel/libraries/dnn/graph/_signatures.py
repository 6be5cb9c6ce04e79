"""Types of making and running plans. The outputs of a graph decide the result of its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, overload

from ....ops import op

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ....arrays import GpuRef
    from ....ops import AsRequests, Awaited, Collected, Facade, Request
    from .user_graph import GraphPlan, GraphTensor

    OneOrMore: TypeAlias = GpuRef | tuple[GpuRef, ...]

R = TypeVar("R")
Unknown_co = TypeVar("Unknown_co", covariant=True)
One_co = TypeVar("One_co", covariant=True)
More_co = TypeVar("More_co", covariant=True)


class BuildSignature(Protocol[Unknown_co, One_co, More_co]):
    """``build``: the number of its outputs decides the type of the plan's result."""

    @overload
    def __call__(self, /, *, allow_tf32: bool = ..., autotune: bool = ...) -> Unknown_co: ...
    @overload
    def __call__(
        self, output: GraphTensor, /, *, allow_tf32: bool = ..., autotune: bool = ...
    ) -> One_co: ...
    @overload
    def __call__(
        self,
        first: GraphTensor,
        second: GraphTensor,
        /,
        *others: GraphTensor,
        allow_tf32: bool = ...,
        autotune: bool = ...,
    ) -> More_co: ...


class build_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[..., Coroutine[Any, Any, GraphPlan[Awaited, OneOrMore]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Awaited], owner: Any = None
    ) -> BuildSignature[
        Coroutine[Any, Any, GraphPlan[Awaited, OneOrMore]],
        Coroutine[Any, Any, GraphPlan[Awaited, GpuRef]],
        Coroutine[Any, Any, GraphPlan[Awaited, tuple[GpuRef, ...]]],
    ]: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> BuildSignature[
        GraphPlan[Collected, OneOrMore],
        GraphPlan[Collected, GpuRef],
        GraphPlan[Collected, tuple[GpuRef, ...]],
    ]: ...
    @overload
    def __get__(
        self, facade: Facade[AsRequests], owner: Any = None
    ) -> BuildSignature[
        Request[GraphPlan[AsRequests, OneOrMore]],
        Request[GraphPlan[AsRequests, GpuRef]],
        Request[GraphPlan[AsRequests, tuple[GpuRef, ...]]],
    ]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)


class RunAwaited(Protocol):
    """``run`` on a device."""

    def __call__(
        self, /, plan: GraphPlan[Any, R], **given: GpuRef | float
    ) -> Coroutine[Any, Any, R]: ...


class RunCollected(Protocol):
    """``run`` in a batch or a recording."""

    def __call__(self, /, plan: GraphPlan[Any, R], **given: GpuRef | float) -> R: ...


class RunDescribed(Protocol):
    """``run`` of ``device.requests``."""

    def __call__(self, /, plan: GraphPlan[Any, R], **given: GpuRef | float) -> Request[R]: ...


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
    def __get__(self, facade: Facade[AsRequests], owner: Any = None) -> RunDescribed: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)
