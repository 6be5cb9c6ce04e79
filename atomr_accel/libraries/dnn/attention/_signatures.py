"""Types of the functions for attention whose result depends on a flag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, Unpack, overload

from ....ops import op

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from ....memory import GpuRef
    from ....ops import Awaited, Collected, Described, Facade, Request
    from .options import AttentionOptions

One_co = TypeVar("One_co", covariant=True)
More_co = TypeVar("More_co", covariant=True)


class Attention(Protocol[One_co, More_co]):
    """``flash_attention``: with ``return_lse`` the logarithms come back, too."""

    @overload
    def __call__(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        *,
        seqlens_q: GpuRef | None = ...,
        seqlens_k: GpuRef | None = ...,
        layout: str = ...,
        out: GpuRef | None = ...,
        return_lse: Literal[False] = ...,
        **options: Unpack[AttentionOptions],
    ) -> One_co: ...
    @overload
    def __call__(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        *,
        seqlens_q: GpuRef | None = ...,
        seqlens_k: GpuRef | None = ...,
        layout: str = ...,
        out: GpuRef | None = ...,
        return_lse: Literal[True],
        **options: Unpack[AttentionOptions],
    ) -> More_co: ...
    @overload
    def __call__(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        *,
        seqlens_q: GpuRef | None = ...,
        seqlens_k: GpuRef | None = ...,
        layout: str = ...,
        out: GpuRef | None = ...,
        return_lse: bool,
        **options: Unpack[AttentionOptions],
    ) -> One_co | More_co: ...


class flash_attention_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[..., Coroutine[Any, Any, GpuRef | tuple[GpuRef, GpuRef]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Awaited], owner: Any = None
    ) -> Attention[Coroutine[Any, Any, GpuRef], Coroutine[Any, Any, tuple[GpuRef, GpuRef]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> Attention[GpuRef, tuple[GpuRef, GpuRef]]: ...
    @overload
    def __get__(
        self, facade: Facade[Described], owner: Any = None
    ) -> Attention[Request[GpuRef], Request[tuple[GpuRef, GpuRef]]]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)


class VarlenAttention(Protocol[One_co, More_co]):
    """``flash_attention_varlen``: with ``return_lse`` the logarithms come back, too."""

    @overload
    def __call__(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        cu_seqlens_q: GpuRef,
        cu_seqlens_k: GpuRef,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        block_table: GpuRef | None = ...,
        out: GpuRef | None = ...,
        return_lse: Literal[False] = ...,
        **options: Unpack[AttentionOptions],
    ) -> One_co: ...
    @overload
    def __call__(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        cu_seqlens_q: GpuRef,
        cu_seqlens_k: GpuRef,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        block_table: GpuRef | None = ...,
        out: GpuRef | None = ...,
        return_lse: Literal[True],
        **options: Unpack[AttentionOptions],
    ) -> More_co: ...
    @overload
    def __call__(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        cu_seqlens_q: GpuRef,
        cu_seqlens_k: GpuRef,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        block_table: GpuRef | None = ...,
        out: GpuRef | None = ...,
        return_lse: bool,
        **options: Unpack[AttentionOptions],
    ) -> One_co | More_co: ...


class flash_attention_varlen_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[..., Coroutine[Any, Any, GpuRef | tuple[GpuRef, GpuRef]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Awaited], owner: Any = None
    ) -> VarlenAttention[
        Coroutine[Any, Any, GpuRef], Coroutine[Any, Any, tuple[GpuRef, GpuRef]]
    ]: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> VarlenAttention[GpuRef, tuple[GpuRef, GpuRef]]: ...
    @overload
    def __get__(
        self, facade: Facade[Described], owner: Any = None
    ) -> VarlenAttention[Request[GpuRef], Request[tuple[GpuRef, GpuRef]]]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)


class CachedAttention(Protocol[One_co, More_co]):
    """``flash_attention_with_kvcache``: with ``return_lse`` the logarithms come back, too."""

    @overload
    def __call__(
        self,
        q: GpuRef,
        k_cache: GpuRef,
        v_cache: GpuRef,
        k: GpuRef | None = ...,
        v: GpuRef | None = ...,
        *,
        cache_seqlens: GpuRef,
        block_table: GpuRef | None = ...,
        max_seqlen_k: int | None = ...,
        out: GpuRef | None = ...,
        return_lse: Literal[False] = ...,
        **options: Unpack[AttentionOptions],
    ) -> One_co: ...
    @overload
    def __call__(
        self,
        q: GpuRef,
        k_cache: GpuRef,
        v_cache: GpuRef,
        k: GpuRef | None = ...,
        v: GpuRef | None = ...,
        *,
        cache_seqlens: GpuRef,
        block_table: GpuRef | None = ...,
        max_seqlen_k: int | None = ...,
        out: GpuRef | None = ...,
        return_lse: Literal[True],
        **options: Unpack[AttentionOptions],
    ) -> More_co: ...
    @overload
    def __call__(
        self,
        q: GpuRef,
        k_cache: GpuRef,
        v_cache: GpuRef,
        k: GpuRef | None = ...,
        v: GpuRef | None = ...,
        *,
        cache_seqlens: GpuRef,
        block_table: GpuRef | None = ...,
        max_seqlen_k: int | None = ...,
        out: GpuRef | None = ...,
        return_lse: bool,
        **options: Unpack[AttentionOptions],
    ) -> One_co | More_co: ...


class flash_attention_with_kvcache_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[..., Coroutine[Any, Any, GpuRef | tuple[GpuRef, GpuRef]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Awaited], owner: Any = None
    ) -> CachedAttention[
        Coroutine[Any, Any, GpuRef], Coroutine[Any, Any, tuple[GpuRef, GpuRef]]
    ]: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> CachedAttention[GpuRef, tuple[GpuRef, GpuRef]]: ...
    @overload
    def __get__(
        self, facade: Facade[Described], owner: Any = None
    ) -> CachedAttention[Request[GpuRef], Request[tuple[GpuRef, GpuRef]]]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)


class PagedAttention(Protocol[One_co, More_co]):
    """``PagedKVCache.attend``: with ``return_lse`` the logarithms come back, too."""

    @overload
    def __call__(
        self,
        q: GpuRef,
        sequences: Sequence[int],
        k: GpuRef | None = ...,
        v: GpuRef | None = ...,
        *,
        layer: int = ...,
        out: GpuRef | None = ...,
        return_lse: Literal[False] = ...,
        **options: Unpack[AttentionOptions],
    ) -> One_co: ...
    @overload
    def __call__(
        self,
        q: GpuRef,
        sequences: Sequence[int],
        k: GpuRef | None = ...,
        v: GpuRef | None = ...,
        *,
        layer: int = ...,
        out: GpuRef | None = ...,
        return_lse: Literal[True],
        **options: Unpack[AttentionOptions],
    ) -> More_co: ...
    @overload
    def __call__(
        self,
        q: GpuRef,
        sequences: Sequence[int],
        k: GpuRef | None = ...,
        v: GpuRef | None = ...,
        *,
        layer: int = ...,
        out: GpuRef | None = ...,
        return_lse: bool,
        **options: Unpack[AttentionOptions],
    ) -> One_co | More_co: ...


class attend_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[..., Coroutine[Any, Any, GpuRef | tuple[GpuRef, GpuRef]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Awaited], owner: Any = None
    ) -> PagedAttention[
        Coroutine[Any, Any, GpuRef], Coroutine[Any, Any, tuple[GpuRef, GpuRef]]
    ]: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> PagedAttention[GpuRef, tuple[GpuRef, GpuRef]]: ...
    @overload
    def __get__(
        self, facade: Facade[Described], owner: Any = None
    ) -> PagedAttention[Request[GpuRef], Request[tuple[GpuRef, GpuRef]]]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)
