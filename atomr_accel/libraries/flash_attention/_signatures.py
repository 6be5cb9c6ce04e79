"""Types of the functions of ``device.flash_attention`` whose result depends on a flag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

from ...ops import op

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ...memory import GpuRef
    from ...ops import Awaited, Collected, Described, Facade, Request

One_co = TypeVar("One_co", covariant=True)
More_co = TypeVar("More_co", covariant=True)


class FlashOptions(TypedDict, total=False):
    """Options that flash-attn does not have.

    Attributes:
        bias: added to the scores; q's dtype, shape (batch or 1, heads or 1, queries, keys).
        sink: float32 (heads,): an additional score of each head, without a value.
        align: alignment of queries and keys, at the ``"bottom_right"`` or the ``"top_left"``.
        seed, offset: numbers that decide which probabilities are dropped, by default 0: then all
            calls drop the same ones. The backward pass takes the same numbers.
        backend: ``"cudnn"``, ``"kernel"`` for those of this package, or ``"auto"``.
    """

    bias: GpuRef | None
    sink: GpuRef | None
    align: str
    seed: int
    offset: int
    backend: str


class Attention(Protocol[One_co, More_co]):
    """``flash_attn_func``: with ``return_attn_probs`` the logarithms come back, too."""

    @overload
    def __call__(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        dropout_p: float = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        deterministic: bool = ...,
        return_attn_probs: Literal[False] = ...,
        *,
        seqlens_q: GpuRef | None = ...,
        seqlens_k: GpuRef | None = ...,
        out: GpuRef | None = ...,
        **options: Unpack[FlashOptions],
    ) -> One_co: ...
    @overload
    def __call__(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        *,
        return_attn_probs: Literal[True],
        dropout_p: float = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        deterministic: bool = ...,
        seqlens_q: GpuRef | None = ...,
        seqlens_k: GpuRef | None = ...,
        out: GpuRef | None = ...,
        **options: Unpack[FlashOptions],
    ) -> More_co: ...
    @overload
    def __call__(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        dropout_p: float = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        deterministic: bool = ...,
        return_attn_probs: bool = ...,
        *,
        seqlens_q: GpuRef | None = ...,
        seqlens_k: GpuRef | None = ...,
        out: GpuRef | None = ...,
        **options: Unpack[FlashOptions],
    ) -> One_co | More_co: ...


class flash_attn_func_op(op[..., Any]):  # noqa: N801 - used as a decorator
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


class KvPackedAttention(Protocol[One_co, More_co]):
    """``flash_attn_kvpacked_func``: with ``return_attn_probs`` the logarithms come back, too."""

    @overload
    def __call__(
        self,
        q: GpuRef,
        kv: GpuRef,
        dropout_p: float = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        deterministic: bool = ...,
        return_attn_probs: Literal[False] = ...,
        *,
        out: GpuRef | None = ...,
        **options: Unpack[FlashOptions],
    ) -> One_co: ...
    @overload
    def __call__(
        self,
        q: GpuRef,
        kv: GpuRef,
        *,
        return_attn_probs: Literal[True],
        dropout_p: float = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        deterministic: bool = ...,
        out: GpuRef | None = ...,
        **options: Unpack[FlashOptions],
    ) -> More_co: ...
    @overload
    def __call__(
        self,
        q: GpuRef,
        kv: GpuRef,
        dropout_p: float = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        deterministic: bool = ...,
        return_attn_probs: bool = ...,
        *,
        out: GpuRef | None = ...,
        **options: Unpack[FlashOptions],
    ) -> One_co | More_co: ...


class flash_attn_kvpacked_func_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[..., Coroutine[Any, Any, GpuRef | tuple[GpuRef, GpuRef]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Awaited], owner: Any = None
    ) -> KvPackedAttention[
        Coroutine[Any, Any, GpuRef], Coroutine[Any, Any, tuple[GpuRef, GpuRef]]
    ]: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> KvPackedAttention[GpuRef, tuple[GpuRef, GpuRef]]: ...
    @overload
    def __get__(
        self, facade: Facade[Described], owner: Any = None
    ) -> KvPackedAttention[Request[GpuRef], Request[tuple[GpuRef, GpuRef]]]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)


class PackedAttention(Protocol[One_co, More_co]):
    """``flash_attn_qkvpacked_func``: with ``return_attn_probs`` the logarithms come back, too."""

    @overload
    def __call__(
        self,
        qkv: GpuRef,
        dropout_p: float = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        deterministic: bool = ...,
        return_attn_probs: Literal[False] = ...,
        *,
        out: GpuRef | None = ...,
        **options: Unpack[FlashOptions],
    ) -> One_co: ...
    @overload
    def __call__(
        self,
        qkv: GpuRef,
        *,
        return_attn_probs: Literal[True],
        dropout_p: float = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        deterministic: bool = ...,
        out: GpuRef | None = ...,
        **options: Unpack[FlashOptions],
    ) -> More_co: ...
    @overload
    def __call__(
        self,
        qkv: GpuRef,
        dropout_p: float = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        deterministic: bool = ...,
        return_attn_probs: bool = ...,
        *,
        out: GpuRef | None = ...,
        **options: Unpack[FlashOptions],
    ) -> One_co | More_co: ...


class flash_attn_qkvpacked_func_op(op[..., Any]):  # noqa: N801 - used as a decorator
    """Makes the op of it."""

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[..., Coroutine[Any, Any, GpuRef | tuple[GpuRef, GpuRef]]]: ...
    @overload
    def __get__(
        self, facade: Facade[Awaited], owner: Any = None
    ) -> PackedAttention[
        Coroutine[Any, Any, GpuRef], Coroutine[Any, Any, tuple[GpuRef, GpuRef]]
    ]: ...
    @overload
    def __get__(
        self, facade: Facade[Collected], owner: Any = None
    ) -> PackedAttention[GpuRef, tuple[GpuRef, GpuRef]]: ...
    @overload
    def __get__(
        self, facade: Facade[Described], owner: Any = None
    ) -> PackedAttention[Request[GpuRef], Request[tuple[GpuRef, GpuRef]]]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        return super().__get__(facade, owner)


class VarlenAttention(Protocol[One_co, More_co]):
    """``flash_attn_varlen_func``: with ``return_attn_probs`` the logarithms come back, too."""

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
        dropout_p: float = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        deterministic: bool = ...,
        return_attn_probs: Literal[False] = ...,
        block_table: GpuRef | None = ...,
        *,
        out: GpuRef | None = ...,
        **options: Unpack[FlashOptions],
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
        return_attn_probs: Literal[True],
        dropout_p: float = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        deterministic: bool = ...,
        block_table: GpuRef | None = ...,
        out: GpuRef | None = ...,
        **options: Unpack[FlashOptions],
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
        dropout_p: float = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        deterministic: bool = ...,
        return_attn_probs: bool = ...,
        block_table: GpuRef | None = ...,
        *,
        out: GpuRef | None = ...,
        **options: Unpack[FlashOptions],
    ) -> One_co | More_co: ...


class flash_attn_varlen_func_op(op[..., Any]):  # noqa: N801 - used as a decorator
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
    """``flash_attn_with_kvcache``: with ``return_softmax_lse`` the logarithms come back, too."""

    @overload
    def __call__(
        self,
        q: GpuRef,
        k_cache: GpuRef,
        v_cache: GpuRef,
        k: GpuRef | None = ...,
        v: GpuRef | None = ...,
        *,
        cache_seqlens: GpuRef | int | None = ...,
        cache_batch_idx: GpuRef | None = ...,
        block_table: GpuRef | None = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        num_splits: int = ...,
        return_softmax_lse: Literal[False] = ...,
        q_descale: GpuRef | None = ...,
        k_descale: GpuRef | None = ...,
        v_descale: GpuRef | None = ...,
        max_seqlen_k: int | None = ...,
        sink: GpuRef | None = ...,
        out: GpuRef | None = ...,
        backend: str = ...,
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
        cache_seqlens: GpuRef | int | None = ...,
        cache_batch_idx: GpuRef | None = ...,
        block_table: GpuRef | None = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        num_splits: int = ...,
        return_softmax_lse: Literal[True],
        q_descale: GpuRef | None = ...,
        k_descale: GpuRef | None = ...,
        v_descale: GpuRef | None = ...,
        max_seqlen_k: int | None = ...,
        sink: GpuRef | None = ...,
        out: GpuRef | None = ...,
        backend: str = ...,
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
        cache_seqlens: GpuRef | int | None = ...,
        cache_batch_idx: GpuRef | None = ...,
        block_table: GpuRef | None = ...,
        softmax_scale: float | None = ...,
        causal: bool = ...,
        window_size: tuple[int, int] = ...,
        softcap: float = ...,
        alibi_slopes: GpuRef | bool | None = ...,
        num_splits: int = ...,
        return_softmax_lse: bool = ...,
        q_descale: GpuRef | None = ...,
        k_descale: GpuRef | None = ...,
        v_descale: GpuRef | None = ...,
        max_seqlen_k: int | None = ...,
        sink: GpuRef | None = ...,
        out: GpuRef | None = ...,
        backend: str = ...,
    ) -> One_co | More_co: ...


class flash_attn_with_kvcache_op(op[..., Any]):  # noqa: N801 - used as a decorator
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
