"""``device.flash_attention``: the functions of the package flash-attn."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, Unpack, final

from ..._dtypes import DTYPES
from ...ops import D, Request, Submission, op, require_ref
from ...wire.options import flag, whole
from ..array.steps import Describing
from ..dnn.attention.call import FP8, NARROW, require
from ..dnn.attention.checked import AttentionCalls, forward
from ..dnn.attention.options import checked
from ._call import LANE, MOST_SPLITS, KernelCall, require_apart, workspaces
from ._choice import Case, by_kernel
from ._signatures import (
    FlashOptions,
    flash_attn_func_op,
    flash_attn_kvpacked_func_op,
    flash_attn_qkvpacked_func_op,
    flash_attn_varlen_func_op,
    flash_attn_with_kvcache_op,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...memory import GpuRef
    from ...ops import Described, Driver, Home
    from ..dnn.attention.call import AttentionCall
    from ..dnn.attention.options import Options
    from ..dnn.facade import Dnn

    _Reads = dict[str, GpuRef | None]

_CALLED: Final = {"window": "window_size"}
_INT32: Final = DTYPES["int32"]
_FLOAT32: Final = DTYPES["float32"]
_CACHE_NAMES: Final = {"k": "k_cache", "v": "v_cache", "count_k": "cache_seqlens"}
_GRADIENTS: Final = {
    "dQ": "dq",
    "dK": "dk",
    "dV": "dv",
    "dBias": "dbias",
    "dSink_token": "dsink",
}
"""Names that our kernels have for the gradients of graphs."""


@final
class FlashAttention(AttentionCalls[D]):
    """Attention under flash-attn's names: by cuDNN, or by kernels of this package.

    cuDNN computes most calls. Kernels of this package compute those that it refuses or computes
    wrongly. ``backend="cudnn"`` and ``"kernel"`` force one. On the CPU NumPy computes the same.
    Inputs are float16 or bfloat16, sums and the softmax float32. Sequences may be empty. Memory
    behind their ends may hold any values, even infinities and NaN.

    All methods raise:
        ValueError: shapes or options that do not fit.
        TypeError: dtypes that do not fit.
        Unsupported: sizes above 256, or that are not multiples of 8 (in fp8, of 16); calls that
            ``backend`` does not support.
        GpuRefStale: a ref is of an older generation, or was freed.
        OutOfMemory: there is not enough memory for results or scratch memory.
    """

    traced = True

    def __init__(self, device: Home, dnn: Dnn[Any]) -> None:
        super().__init__(device)
        self._dnn: Dnn[Described] = dnn._on(Describing(device))
        self._scratch: Final = workspaces()

    def _on(self, device: Home) -> Any:
        facade = super()._on(device)
        facade._dnn = self._dnn._on(Describing(device))
        return facade

    # --- forward --------------------------------------------------------------------------

    @flash_attn_func_op
    def flash_attn_func(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: GpuRef | bool | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        *,
        seqlens_q: GpuRef | None = None,
        seqlens_k: GpuRef | None = None,
        out: GpuRef | None = None,
        **options: Unpack[FlashOptions],
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef]]:
        """``softmax(q @ k.T / sqrt(size)) @ v``, without the scores ever being in memory.

        As ``flash_attn_func`` of the package flash-attn.

        Args:
            q: queries, shape (batch, queries, heads, size).
            k: keys, shape (batch, keys, kv_heads, size); ``heads`` is a multiple of ``kv_heads``.
            v: values, shape (batch, keys, kv_heads, value_size).
            dropout_p: the share of probabilities that is dropped.
            softmax_scale: factor of ``q @ k.T``; by default ``1 / sqrt(size)``.
            causal: whether a query sees no later keys than its own.
            window_size: number of keys before and after its own that a query sees; -1 for all.
            softcap: scores become ``softcap * tanh(score / softcap)``; 0 for none.
            alibi_slopes: float32 (heads,) or (batch, heads): scores become smaller by ``slope *
                distance``. True for the slopes of the paper, with ``causal``.
            deterministic: without an effect here; accepted for the gradient.
            return_attn_probs: whether to return the logarithms that the backward pass needs; the
                probabilities themselves are never in memory.
            seqlens_q: int32 (batch,): queries of each sequence. Both or none.
            seqlens_k: int32 (batch,): keys of each sequence.
            out: where to put the result. Made if absent.
            **options: see ``FlashOptions``.

        Returns:
            Shape (batch, queries, heads, value_size), zeros for a query that sees no
            key; with ``return_attn_probs`` also the logarithms of the sums of exponentials
            of scores, float32 (batch, heads, queries).
        """
        given = _given(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
        given["deterministic"] = deterministic
        lengths, more = (seqlens_q, seqlens_k), (return_attn_probs, out, options)
        return self._whole("flash_attn_func", q, k, v, lengths, given, *more)

    @flash_attn_kvpacked_func_op
    def flash_attn_kvpacked_func(
        self,
        q: GpuRef,
        kv: GpuRef,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: GpuRef | bool | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        *,
        out: GpuRef | None = None,
        **options: Unpack[FlashOptions],
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef]]:
        """``flash_attn_func`` of keys and values in one buffer, (batch, keys, 2, kv_heads, size).

        Nothing is copied. Arguments and results are those of ``flash_attn_func``, but without
        lengths. For gradients pass ``flash_attn_backward`` the parts, such as ``kv[:, :, 0]``.
        """
        k, v = _parts(kv, "kv", 2)
        given = _given(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
        given["deterministic"] = deterministic
        more = (return_attn_probs, out, options)
        return self._whole("flash_attn_kvpacked_func", q, k, v, (None, None), given, *more)

    @flash_attn_qkvpacked_func_op
    def flash_attn_qkvpacked_func(
        self,
        qkv: GpuRef,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: GpuRef | bool | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        *,
        out: GpuRef | None = None,
        **options: Unpack[FlashOptions],
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef]]:
        """``flash_attn_func`` of one buffer, (batch, sequence, 3, heads, size).

        Nothing is copied. Arguments and results are those of ``flash_attn_func``, but without
        lengths. For gradients pass ``flash_attn_backward`` the parts, such as ``qkv[:, :, 0]``.
        """
        q, k, v = _parts(qkv, "qkv", 3)
        given = _given(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
        given["deterministic"] = deterministic
        more = (return_attn_probs, out, options)
        return self._whole("flash_attn_qkvpacked_func", q, k, v, (None, None), given, *more)

    @flash_attn_varlen_func_op
    def flash_attn_varlen_func(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        cu_seqlens_q: GpuRef,
        cu_seqlens_k: GpuRef,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: GpuRef | bool | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: GpuRef | None = None,
        *,
        out: GpuRef | None = None,
        **options: Unpack[FlashOptions],
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef]]:
        """Attention of sequences of different lengths that lie one after the other.

        As ``flash_attn_varlen_func`` of the package flash-attn.

        Args:
            q: shape (total_q, heads, size).
            k: shape (total_k, kv_heads, size), or pages (pages, page, kv_heads, size).
            v: shape (total_k, kv_heads, value_size), or pages as for ``k``.
            cu_seqlens_q: int32 (batch + 1,): where each sequence begins in q, and the end.
            cu_seqlens_k: the same of ``k``; in pages, only the differences count.
            max_seqlen_q: the most queries of a sequence, or any more.
            max_seqlen_k: the most keys of a sequence, or any more. With dropout the backward pass
                must be called with the same two numbers.
            dropout_p: the share of probabilities that is dropped.
            softmax_scale: factor of ``q @ k.T``; by default ``1 / sqrt(size)``.
            causal: whether a query sees no later keys than its own.
            window_size: number of keys before and after its own that a query sees; -1 for all.
            softcap: scores become ``softcap * tanh(score / softcap)``; 0 for none.
            alibi_slopes: as for ``flash_attn_func``.
            deterministic: without an effect here; accepted for the gradient.
            return_attn_probs: whether to return the logarithms that the backward pass needs.
            block_table: int32 (batch, columns): the pages of each sequence.
            out: where to put the result. Made if absent.
            **options: see ``FlashOptions``; no ``bias``.

        Returns:
            Shape (total_q, heads, value_size); with ``return_attn_probs`` also the logarithms,
            float32 (total_q, heads).
        """
        given = _given(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
        given["deterministic"] = deterministic
        name = "flash_attn_varlen_func"
        chosen, backend = _checked(name, given, options, without=("bias",))
        flag(return_attn_probs, "return_attn_probs")
        lists, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
        reads: _Reads = {"q": q, "k": k, "v": v, "begin_q": cu_seqlens_q, "begin_k": cu_seqlens_k}
        reads["table"] = block_table

        def make() -> tuple[AttentionCall, Case]:
            call = self._ragged(q, k, v, lists, longest, block_table, chosen, backward=False)
            shape = (*q.shape[:2], call.spec.value_size)
            call = forward(call, shape, return_lse=return_attn_probs, lse=q.shape[:2])
            return call, Case(call.spec, lengths=True, ragged=True)

        if not by_kernel(name, backend, make()[1]):
            require_apart(name, {"o": out}, {**reads, **_scored(chosen)})
            found: Request[Any] = self._dnn.flash_attention_varlen(
                *(q, k, v, *lists, *longest),
                block_table=block_table,
                out=out,
                return_lse=return_attn_probs,
                **_for_cudnn(given, options),
            )
            return found
        return self._forward(name, make, chosen, reads, out)

    @flash_attn_with_kvcache_op
    def flash_attn_with_kvcache(
        self,
        q: GpuRef,
        k_cache: GpuRef,
        v_cache: GpuRef,
        k: GpuRef | None = None,
        v: GpuRef | None = None,
        *,
        cache_seqlens: GpuRef | int | None = None,
        cache_batch_idx: GpuRef | None = None,
        block_table: GpuRef | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: GpuRef | bool | None = None,
        num_splits: int = 0,
        return_softmax_lse: bool = False,
        q_descale: GpuRef | None = None,
        k_descale: GpuRef | None = None,
        v_descale: GpuRef | None = None,
        max_seqlen_k: int | None = None,
        sink: GpuRef | None = None,
        out: GpuRef | None = None,
        backend: str = "auto",
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef]]:
        """Attention of a few new queries to the keys and values of a cache.

        As ``flash_attn_with_kvcache`` of the package flash-attn, without its rotary embedding. New
        keys and values are written behind those in the cache first, in place. The cache, or
        queries too, may be in fp8: float8_e4m3fn or float8_e5m2.

        Args:
            q: shape (batch, queries, heads, size).
            k_cache: shape (batch, length, kv_heads, size), or with ``block_table`` pages of any
                size, (pages, page, kv_heads, size).
            v_cache: shape (batch, length, kv_heads, value_size), or pages as for ``k_cache``.
            k: new keys, (batch, new, kv_heads, size), of the cache's dtype. Rows that do not fit
                are not written.
            v: new values, (batch, new, kv_heads, value_size). Both or none.
            cache_seqlens: int32 (batch,): length of each sequence before the call. A number, even
                0, is for sequences of one length without new keys and without pages; None for the
                whole cache.
            cache_batch_idx: int32 (batch,): the sequence of the cache for each entry of the batch;
                the cache may then have more sequences.
            block_table: int32 (batch, columns): the pages of each sequence. Later columns of a
                row are ignored.
            softmax_scale: factor of ``q @ k.T``; by default ``1 / sqrt(size)``.
            causal: whether a query sees no later keys than its own.
            window_size: number of keys before and after its own that a query sees; -1 for all.
            softcap: scores become ``softcap * tanh(score / softcap)``; 0 for none.
            alibi_slopes: as for ``flash_attn_func``.
            num_splits: number of blocks among which our kernel splits the keys of a sequence; 0
                for an automatic choice.
            return_softmax_lse: whether to return the logarithms of the sums of exponentials.
            q_descale: factor of queries in fp8: float32, one or (batch, kv_heads).
            k_descale: factor of keys in fp8, likewise.
            v_descale: factor of values in fp8, likewise.
            max_seqlen_k: the most keys of a sequence, new ones too; by default what fits.
            sink: float32 (heads,): an additional score of each head.
            out: where to put the result. Made if absent.
            backend: see ``FlashOptions``.

        Returns:
            Shape (batch, queries, heads, value_size), of q's dtype, or bfloat16 if that is in
            fp8; with ``return_softmax_lse`` also float32 (batch, heads, queries).

        Raises:
            GpuRefSealed: a cache to be written is sealed.
        """
        name = "flash_attn_with_kvcache"
        given = _given(0.0, softmax_scale, causal, window_size, softcap, alibi_slopes)
        del given["dropout_p"]
        given["sink"] = sink
        chosen, _ = _checked(name, given, {})
        flag(return_softmax_lse, "return_softmax_lse")
        splits = whole(num_splits, "num_splits", 0, MOST_SPLITS)
        if cache_batch_idx is not None:
            if block_table is not None:
                raise ValueError("cache_batch_idx is for caches without pages")
            require(cache_batch_idx, self._device.memory, "cache_batch_idx", (_INT32,), q.shape[:1])
            # Sequences of a cache are pages that are as long.
            block_table = cache_batch_idx.reshape(-1, 1)
        for ref, what in ((q, "q"), (k_cache, "k_cache"), (v_cache, "v_cache")):
            require_ref(ref, what)
        lengths = None if isinstance(cache_seqlens, int) else cache_seqlens
        count = cache_seqlens if isinstance(cache_seqlens, int) else None
        if lengths is None:
            k_cache, v_cache = _until(count, k_cache, v_cache, (k, v), block_table)
            most = k_cache.shape[1] if count is None else count
            if max_seqlen_k is not None and whole(max_seqlen_k, "max_seqlen_k", 1) < most:
                raise ValueError(f"max_seqlen_k is {max_seqlen_k}, but sequences have {most} keys")
        scales = {"q": q_descale, "k": k_descale, "v": v_descale}

        def make() -> tuple[AttentionCall, Case]:
            if lengths is None:
                every = (q, k_cache, v_cache, None, None, "bshd", chosen)
                call = self._dense(*every, backward=False, dtypes=NARROW)
                if count == 0:
                    call.spec = call.spec._replace(keys=0)
            else:
                cached = (q, k_cache, v_cache, k, v, lengths, block_table, max_seqlen_k, chosen)
                call = self._cached(*cached, dtypes=NARROW)
            self._check_scales(call, scales)
            call = forward(call, self._shape(call.spec), return_lse=return_softmax_lse)
            narrow = q.dtype in FP8 or k_cache.dtype in FP8
            return call, Case(call.spec, lengths=lengths is not None, narrow=narrow)

        reads: _Reads = {"q": q, "k": k_cache, "v": v_cache}
        reads |= {"count_k": lengths, "table": block_table}
        wanted = "kernel" if splits and backend == "auto" else backend
        if not by_kernel(name, wanted, make()[1]):
            require_apart(name, {"o": out}, {**reads, **_scored(chosen)}, _CACHE_NAMES)
            more = {"out": out, "return_lse": return_softmax_lse, **_for_cudnn(given, {})}
            found: Request[Any]
            if lengths is None:
                found = self._dnn.flash_attention(q, k_cache, v_cache, **more)
            else:
                found = self._dnn.flash_attention_with_kvcache(
                    *(q, k_cache, v_cache, k, v),
                    cache_seqlens=lengths,
                    block_table=block_table,
                    max_seqlen_k=max_seqlen_k,
                    **more,
                )
            return found
        reads |= {f"scale_{name}": scale for name, scale in scales.items()}
        return self._forward(name, make, chosen, reads, out, splits=splits, names=_CACHE_NAMES)

    # --- backward -------------------------------------------------------------------------

    @op
    def flash_attn_backward(
        self,
        dout: GpuRef,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        out: GpuRef,
        softmax_lse: GpuRef,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: GpuRef | bool | None = None,
        deterministic: bool = False,
        *,
        seqlens_q: GpuRef | None = None,
        seqlens_k: GpuRef | None = None,
        grads: tuple[GpuRef, GpuRef, GpuRef] | None = None,
        **options: Unpack[FlashOptions],
    ) -> Request[tuple[GpuRef, ...]]:
        """The gradients of ``flash_attn_func``, called with the same options.

        Kernels of this package always sum in one order.

        Args:
            dout: gradient with respect to the result.
            q: queries, shape (batch, queries, heads, size).
            k: keys, shape (batch, keys, kv_heads, size).
            v: values, shape (batch, keys, kv_heads, value_size).
            out: result of ``flash_attn_func``.
            softmax_lse: the logarithms that it returned with ``return_attn_probs``.
            dropout_p: as in the forward pass, like all that follow.
            softmax_scale: factor of ``q @ k.T``.
            causal: whether a query sees no later keys than its own.
            window_size: number of keys before and after its own that a query sees.
            softcap: softcap of scores.
            alibi_slopes: as for ``flash_attn_func``.
            deterministic: whether cuDNN, too, has to sum in one order.
            seqlens_q: int32 (batch,): queries of each sequence. Both or none.
            seqlens_k: int32 (batch,): keys of each sequence.
            grads: buffers for the gradients with respect to q, k and v. Made if absent.
            **options: see ``FlashOptions``.

        Returns:
            The gradients with respect to q, k and v; then to ``bias`` and ``sink`` if given. Those
            of our kernels are 0 behind the ends of sequences.
        """
        name = "flash_attn_backward"
        given = _given(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
        given["deterministic"] = deterministic
        chosen, backend = _checked(name, given, options)
        reads: _Reads = {"q": q, "k": k, "v": v, "count_q": seqlens_q, "count_k": seqlens_k}
        reads |= {"o": out, "lse": softmax_lse, "grad": dout}

        def make() -> tuple[AttentionCall, Case]:
            call = self._dense(q, k, v, seqlens_q, seqlens_k, "bshd", chosen, backward=True)
            spec = call.spec
            rows = (spec.batch, spec.heads, spec.queries)
            self._backward(call, dout, out, softmax_lse, self._shape(spec), rows, grads)
            return call, Case(call.spec, lengths=seqlens_q is not None, backward=True)

        if not by_kernel(name, backend, make()[1]):
            require_apart(name, _targets(grads), {**reads, **_scored(chosen)})
            return self._dnn.flash_attention_grad(
                *(dout, q, k, v, out, softmax_lse),
                seqlens_q=seqlens_q,
                seqlens_k=seqlens_k,
                grads=grads,
                **_for_cudnn(given, options),
            )
        return self._backwards(name, make, chosen, reads, grads)

    @op
    def flash_attn_varlen_backward(
        self,
        dout: GpuRef,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        out: GpuRef,
        softmax_lse: GpuRef,
        cu_seqlens_q: GpuRef,
        cu_seqlens_k: GpuRef,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: GpuRef | bool | None = None,
        deterministic: bool = False,
        *,
        grads: tuple[GpuRef, GpuRef, GpuRef] | None = None,
        **options: Unpack[FlashOptions],
    ) -> Request[tuple[GpuRef, ...]]:
        """The gradients of ``flash_attn_varlen_func``, called with the same options.

        Kernels of this package always sum in one order.

        Args:
            dout: gradient with respect to the result.
            q: shape (total_q, heads, size).
            k: shape (total_k, kv_heads, size), not in pages.
            v: shape (total_k, kv_heads, value_size).
            out: result of ``flash_attn_varlen_func``.
            softmax_lse: the logarithms that it returned with ``return_attn_probs``.
            cu_seqlens_q: int32 (batch + 1,): where each sequence begins in q, and the end.
            cu_seqlens_k: the same for ``k``.
            max_seqlen_q: the most queries of a sequence, or any more.
            max_seqlen_k: the most keys of a sequence, or any more.
            dropout_p: as in the forward pass, like all that follow.
            softmax_scale: factor of ``q @ k.T``.
            causal: whether a query sees no later keys than its own.
            window_size: number of keys before and after its own that a query sees.
            softcap: softcap of scores.
            alibi_slopes: as for ``flash_attn_func``.
            deterministic: whether cuDNN, too, has to sum in one order.
            grads: buffers for the gradients with respect to q, k and v. Made if absent.
            **options: see ``FlashOptions``; no ``bias``.

        Returns:
            The gradients with respect to q, k and v, and to ``sink`` if given.
        """
        name = "flash_attn_varlen_backward"
        given = _given(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
        given["deterministic"] = deterministic
        chosen, backend = _checked(name, given, options, without=("bias",))
        lists, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
        reads: _Reads = {"q": q, "k": k, "v": v, "begin_q": cu_seqlens_q, "begin_k": cu_seqlens_k}
        reads |= {"o": out, "lse": softmax_lse, "grad": dout}

        def make() -> tuple[AttentionCall, Case]:
            call = self._ragged(q, k, v, lists, longest, None, chosen, backward=True)
            shape = (*q.shape[:2], call.spec.value_size)
            self._backward(call, dout, out, softmax_lse, shape, q.shape[:2], grads)
            return call, Case(call.spec, lengths=True, ragged=True, backward=True)

        if not by_kernel(name, backend, make()[1]):
            require_apart(name, _targets(grads), {**reads, **_scored(chosen)})
            return self._dnn.flash_attention_varlen_grad(
                *(dout, q, k, v, out, softmax_lse, *lists, *longest),
                grads=grads,
                **_for_cudnn(given, options),
            )
        return self._backwards(name, make, chosen, reads, grads)

    # --- kernels --------------------------------------------------------------------------

    def _whole(
        self,
        name: str,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        lengths: tuple[GpuRef | None, GpuRef | None],
        given: dict[str, Any],
        return_lse: bool,
        out: GpuRef | None,
        options: Any,
    ) -> Request[Any]:
        """Attention of sequences of one length, or padded to it."""
        chosen, backend = _checked(name, given, options)
        flag(return_lse, "return_attn_probs")
        reads: _Reads = {"q": q, "k": k, "v": v, "count_q": lengths[0], "count_k": lengths[1]}

        def make() -> tuple[AttentionCall, Case]:
            call = self._dense(q, k, v, *lengths, "bshd", chosen, backward=False)
            call = forward(call, self._shape(call.spec), return_lse=return_lse)
            return call, Case(call.spec, lengths=lengths[0] is not None)

        if not by_kernel(name, backend, make()[1]):
            require_apart(name, {"o": out}, {**reads, **_scored(chosen)})
            return self._dnn.flash_attention(
                *(q, k, v),
                seqlens_q=lengths[0],
                seqlens_k=lengths[1],
                out=out,
                return_lse=return_lse,
                **_for_cudnn(given, options),
            )
        return self._forward(name, make, chosen, reads, out)

    def _forward(
        self,
        name: str,
        make: Callable[[], tuple[AttentionCall, Case]],
        options: Options,
        reads: Mapping[str, GpuRef | None],
        out: GpuRef | None,
        *,
        splits: int = 0,
        names: Mapping[str, str] | None = None,
    ) -> Request[Any]:
        """A request for our forward kernels."""

        def prepare(driver: Driver) -> Submission[Any]:
            call, _ = make()
            lse = {"lse": call.outputs["stats"]} if "stats" in call.outputs else {}
            kernel = KernelCall(
                name,
                call,
                options,
                {**reads, **_scored(options)},
                {"o": call.outputs["o"], **lse},
                splits=splits,
                names=names,
            )
            found = kernel.submission(driver, self._scratch, {"o": out})
            assert found.result is not None
            result: Any = found.result if lse else found.result[0]
            return Submission(found.message, found.reads, found.writes, result)

        return Request(LANE, f"flash_attention.{name}", prepare)

    def _backwards(
        self,
        name: str,
        make: Callable[[], tuple[AttentionCall, Case]],
        options: Options,
        reads: Mapping[str, GpuRef | None],
        grads: tuple[GpuRef, GpuRef, GpuRef] | None,
    ) -> Request[tuple[GpuRef, ...]]:
        """A request for our backward kernels."""

        def prepare(driver: Driver) -> Submission[tuple[GpuRef, ...]]:
            call, _ = make()
            outputs = {_GRADIENTS[each]: shape for each, shape in call.outputs.items()}
            kernel = KernelCall(name, call, options, {**reads, **_scored(options)}, outputs)
            return kernel.submission(driver, self._scratch, _targets(grads))

        return Request(LANE, f"flash_attention.{name}", prepare)

    def _check_scales(self, call: AttentionCall, scales: Mapping[str, GpuRef | None]) -> None:
        for name, scale in scales.items():
            if scale is None:
                continue
            if call.inputs[name].dtype not in FP8:
                raise ValueError(f"{name}_descale is for numbers in fp8, and {name} has none")
            shape = (call.spec.batch, call.spec.kv_heads)
            require(scale, self._device.memory, f"{name}_descale", (_FLOAT32,), (), (1,), shape)


def _given(
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: GpuRef | bool | None,
) -> dict[str, Any]:
    """Arguments as ``AttentionOptions`` names them."""
    return {
        "dropout_p": dropout_p,
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window": window_size,
        "softcap": softcap,
        "alibi_slopes": None if alibi_slopes is False else alibi_slopes,
    }


def _checked(
    op: str, given: Mapping[str, Any], options: Any, *, without: tuple[str, ...] = ()
) -> tuple[Options, str]:
    """Return all options, and the backend.

    Raises:
        TypeError: an option does not exist, or its value is of another type.
        ValueError: a value that an option cannot have.
    """
    known = FlashOptions.__annotations__.keys() - set(without)
    if unknown := sorted(options.keys() - known):
        named = inspect.signature(getattr(FlashAttention, op)).parameters.keys()
        known = (named - {"self", "options"}) | known
        raise TypeError(f"{op} has no {', '.join(unknown)}; it takes {', '.join(sorted(known))}")
    more = {name: value for name, value in options.items() if name != "backend"}
    if "deterministic" in given:
        flag(given["deterministic"], "deterministic")
    chosen = checked(op, {**given, **more}, without=without, called=_CALLED)
    return chosen, options.get("backend", "auto")


def _for_cudnn(given: Mapping[str, Any], options: Any) -> Any:
    """Return the options that differ from their defaults."""
    found = {**given, **options}
    found.pop("backend", None)
    return {name: value for name, value in found.items() if value != _DEFAULTS.get(name)}


_DEFAULTS: Final = {
    "dropout_p": 0.0,
    "causal": False,
    "window": (-1, -1),
    "softcap": 0.0,
    "deterministic": False,
}


def _scored(options: Options) -> dict[str, GpuRef | None]:
    """The buffers among the options."""
    slopes = options.alibi_slopes
    return {
        "slopes": None if isinstance(slopes, bool) else slopes,
        "bias": options.bias,
        "sink": options.sink,
    }


def _targets(grads: tuple[GpuRef, GpuRef, GpuRef] | None) -> dict[str, GpuRef | None]:
    """Return the buffers for the gradients with respect to q, k and v, by name."""
    return dict(zip(("dq", "dk", "dv"), grads or (None,) * 3, strict=True))


def _parts(ref: GpuRef, name: str, count: int) -> list[GpuRef]:
    """The parts of a packed buffer, as views."""
    shape: tuple[int, ...] = getattr(ref, "shape", ())
    if len(shape) != 5 or shape[2] != count:
        raise ValueError(
            f"{name} must have shape (batch, sequence, {count}, heads, size), not {shape}"
        )
    return [ref[:, :, at] for at in range(count)]


def _until(
    count: int | None,
    k_cache: GpuRef,
    v_cache: GpuRef,
    new: tuple[GpuRef | None, GpuRef | None],
    block_table: GpuRef | None,
) -> tuple[GpuRef, GpuRef]:
    """Return the first rows of a cache with sequences of one length, but at least one row."""
    if (new[0] is None) != (new[1] is None):
        raise ValueError("k and v belong together: new keys and new values")
    if new[0] is not None or block_table is not None:
        raise ValueError(
            "cache_seqlens must be an int32 buffer of shape (batch,) where new keys come, and for "
            "pages and cache_batch_idx"
        )
    if count is None:
        return k_cache, v_cache
    rows = max(1, whole(count, "cache_seqlens", 0, k_cache.shape[1]))
    return k_cache[:, :rows], v_cache[:, :rows]
