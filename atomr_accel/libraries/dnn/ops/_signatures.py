"""Types of normalisations whose result depends on a flag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from ....ops import op

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ....memory import GpuRef
    from ....ops import Awaited, Collected, Described, Facade, Request

One_co = TypeVar("One_co", covariant=True)
More_co = TypeVar("More_co", covariant=True)


class BatchNorm(Protocol[One_co, More_co]):
    """``batch_norm``: with ``training`` the statistics come back, too."""

    @overload
    def __call__(
        self,
        x: GpuRef,
        running_mean: GpuRef | None,
        running_var: GpuRef | None,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: Literal[False] = ...,
        momentum: float = ...,
        eps: float = ...,
        layout: str | None = ...,
        out: GpuRef | None = ...,
    ) -> One_co: ...
    @overload
    def __call__(
        self,
        x: GpuRef,
        running_mean: GpuRef | None,
        running_var: GpuRef | None,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: Literal[True],
        momentum: float = ...,
        eps: float = ...,
        layout: str | None = ...,
        out: GpuRef | None = ...,
    ) -> More_co: ...
    @overload
    def __call__(
        self,
        x: GpuRef,
        running_mean: GpuRef | None,
        running_var: GpuRef | None,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: bool,
        momentum: float = ...,
        eps: float = ...,
        layout: str | None = ...,
        out: GpuRef | None = ...,
    ) -> One_co | More_co: ...


class batch_norm_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[..., Coroutine[Any, Any, GpuRef | tuple[GpuRef, GpuRef, GpuRef]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Awaited], owner: Any = None
    ) -> BatchNorm[
        Coroutine[Any, Any, GpuRef], Coroutine[Any, Any, tuple[GpuRef, GpuRef, GpuRef]]
    ]: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> BatchNorm[GpuRef, tuple[GpuRef, GpuRef, GpuRef]]: ...
    @overload
    def __get__(
        self, facade: Facade[Described], owner: Any = None
    ) -> BatchNorm[Request[GpuRef], Request[tuple[GpuRef, GpuRef, GpuRef]]]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)


class InstanceNorm(Protocol[One_co, More_co]):
    """``instance_norm``: with ``training`` the statistics come back, too."""

    @overload
    def __call__(
        self,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: Literal[False] = ...,
        eps: float = ...,
        layout: str | None = ...,
        out: GpuRef | None = ...,
    ) -> One_co: ...
    @overload
    def __call__(
        self,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: Literal[True],
        eps: float = ...,
        layout: str | None = ...,
        out: GpuRef | None = ...,
    ) -> More_co: ...
    @overload
    def __call__(
        self,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: bool,
        eps: float = ...,
        layout: str | None = ...,
        out: GpuRef | None = ...,
    ) -> One_co | More_co: ...


class instance_norm_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[..., Coroutine[Any, Any, GpuRef | tuple[GpuRef, GpuRef, GpuRef]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Awaited], owner: Any = None
    ) -> InstanceNorm[
        Coroutine[Any, Any, GpuRef], Coroutine[Any, Any, tuple[GpuRef, GpuRef, GpuRef]]
    ]: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> InstanceNorm[GpuRef, tuple[GpuRef, GpuRef, GpuRef]]: ...
    @overload
    def __get__(
        self, facade: Facade[Described], owner: Any = None
    ) -> InstanceNorm[Request[GpuRef], Request[tuple[GpuRef, GpuRef, GpuRef]]]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)


class GroupNorm(Protocol[One_co, More_co]):
    """``group_norm``: with ``training`` the statistics come back, too."""

    @overload
    def __call__(
        self,
        x: GpuRef,
        num_groups: int,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: Literal[False] = ...,
        eps: float = ...,
        layout: str | None = ...,
        out: GpuRef | None = ...,
    ) -> One_co: ...
    @overload
    def __call__(
        self,
        x: GpuRef,
        num_groups: int,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: Literal[True],
        eps: float = ...,
        layout: str | None = ...,
        out: GpuRef | None = ...,
    ) -> More_co: ...
    @overload
    def __call__(
        self,
        x: GpuRef,
        num_groups: int,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: bool,
        eps: float = ...,
        layout: str | None = ...,
        out: GpuRef | None = ...,
    ) -> One_co | More_co: ...


class group_norm_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[..., Coroutine[Any, Any, GpuRef | tuple[GpuRef, GpuRef, GpuRef]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Awaited], owner: Any = None
    ) -> GroupNorm[
        Coroutine[Any, Any, GpuRef], Coroutine[Any, Any, tuple[GpuRef, GpuRef, GpuRef]]
    ]: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> GroupNorm[GpuRef, tuple[GpuRef, GpuRef, GpuRef]]: ...
    @overload
    def __get__(
        self, facade: Facade[Described], owner: Any = None
    ) -> GroupNorm[Request[GpuRef], Request[tuple[GpuRef, GpuRef, GpuRef]]]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)


class LayerNorm(Protocol[One_co, More_co]):
    """``layer_norm``: with ``training`` the statistics come back, too."""

    @overload
    def __call__(
        self,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: Literal[False] = ...,
        eps: float = ...,
        out: GpuRef | None = ...,
    ) -> One_co: ...
    @overload
    def __call__(
        self,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: Literal[True],
        eps: float = ...,
        out: GpuRef | None = ...,
    ) -> More_co: ...
    @overload
    def __call__(
        self,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: bool,
        eps: float = ...,
        out: GpuRef | None = ...,
    ) -> One_co | More_co: ...


class layer_norm_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[..., Coroutine[Any, Any, GpuRef | tuple[GpuRef, GpuRef, GpuRef]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Awaited], owner: Any = None
    ) -> LayerNorm[
        Coroutine[Any, Any, GpuRef], Coroutine[Any, Any, tuple[GpuRef, GpuRef, GpuRef]]
    ]: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> LayerNorm[GpuRef, tuple[GpuRef, GpuRef, GpuRef]]: ...
    @overload
    def __get__(
        self, facade: Facade[Described], owner: Any = None
    ) -> LayerNorm[Request[GpuRef], Request[tuple[GpuRef, GpuRef, GpuRef]]]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)


class RmsNorm(Protocol[One_co, More_co]):
    """``rms_norm``: with ``training`` it also returns the statistic."""

    @overload
    def __call__(
        self,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef | None = ...,
        *,
        training: Literal[False] = ...,
        eps: float = ...,
        out: GpuRef | None = ...,
    ) -> One_co: ...
    @overload
    def __call__(
        self,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef | None = ...,
        *,
        training: Literal[True],
        eps: float = ...,
        out: GpuRef | None = ...,
    ) -> More_co: ...
    @overload
    def __call__(
        self,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef | None = ...,
        *,
        training: bool,
        eps: float = ...,
        out: GpuRef | None = ...,
    ) -> One_co | More_co: ...


class rms_norm_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[..., Coroutine[Any, Any, GpuRef | tuple[GpuRef, GpuRef]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Awaited], owner: Any = None
    ) -> RmsNorm[Coroutine[Any, Any, GpuRef], Coroutine[Any, Any, tuple[GpuRef, GpuRef]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> RmsNorm[GpuRef, tuple[GpuRef, GpuRef]]: ...
    @overload
    def __get__(
        self, facade: Facade[Described], owner: Any = None
    ) -> RmsNorm[Request[GpuRef], Request[tuple[GpuRef, GpuRef]]]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)
