"""``device.dnn.flash_attention`` and its kin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack

from ....ops import D, op
from ..wire._attention_nodes import FP8_BACKWARD_SCALES, FP8_SCALES
from ._signatures import (
    flash_attention_op,
    flash_attention_varlen_op,
    flash_attention_with_kvcache_op,
)
from .call import FP8, AttentionCall, gathered
from .checked import AttentionCalls, forward
from .options import BUFFERS, AttentionOptions, checked, split

if TYPE_CHECKING:
    from ....memory import GpuRef
    from ....ops import Request

_BACKWARD: Final = ("o", "dO", "stats")
_SEQUENCES: Final = ("q", "k", "v", "seq_len_q", "seq_len_kv")
_DENSE: Final = (*_SEQUENCES, *BUFFERS)
_DENSE_GRAD: Final = (*_SEQUENCES, *_BACKWARD, *BUFFERS)
_LISTS: Final = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
_RAGGED: Final = (*_LISTS, "table", *BUFFERS)
_RAGGED_GRAD: Final = (*_LISTS, *_BACKWARD, *BUFFERS)
_CACHED: Final = ("q", "k", "v", "new_k", "new_v", "cache_seqlens", "table", *BUFFERS)
_NOT_FP8: Final = (*("softcap", "alibi_slopes", "bias", "sink", "dropout_p", "seed", "offset"),)


class FlashAttention(AttentionCalls[D]):
    """Attention in FlashAttention's interface: cuDNN on CUDA, NumPy on the CPU."""

    @flash_attention_op
    def flash_attention(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        *,
        seqlens_q: GpuRef | None = None,
        seqlens_k: GpuRef | None = None,
        layout: str = "bshd",
        out: GpuRef | None = None,
        return_lse: bool = False,
        **options: Unpack[AttentionOptions],
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef]]:
        """``softmax(q @ k.T / sqrt(size)) @ v``, without the scores ever being in memory.

        As ``flash_attn_func`` of the package flash-attn. Vendor function: the frontend's
        ``sdpa``.

        Args:
            q: queries, float16 or bfloat16, shape (batch, queries, heads, size).
            k: keys, shape (batch, keys, kv_heads, size); ``heads`` is a multiple of
                ``kv_heads``.
            v: values, shape (batch, keys, kv_heads, value_size).
            seqlens_q: int32 (batch,): queries of each sequence; what lies behind is ignored,
                and there the result is undefined.
            seqlens_k: int32 (batch,): keys of each sequence. Both or none; both checked
                on the CPU alone, as all that is int32 below.
            layout: ``"bhsd"`` for (batch, heads, sequence, size) instead.
            out: where to put the result. Made if absent.
            return_lse: whether to return the logarithms that the backward pass needs.
            **options: see ``AttentionOptions``.

        Returns:
            Shape (batch, queries, heads, value_size); with ``return_lse`` also the
            logarithms of the sums of exponentials of scores, float32 (batch, heads, queries).
            A query that sees no key gives zeros, and minus infinity as its logarithm.

        Raises:
            ValueError: shapes or options that do not fit.
            TypeError: dtypes that do not fit.
            Unsupported: cuDNN does not have this combination; the message is cuDNN's.
            GpuRefStale: a ref is of an older generation, or was freed.
            OutOfMemory: there is not enough memory for the result.
        """

        def make() -> AttentionCall:
            chosen = checked("flash_attention", options)
            call = self._dense(q, k, v, seqlens_q, seqlens_k, layout, chosen, backward=False)
            return forward(call, self._shape(call.spec), return_lse=return_lse)

        key, buffers = split(options, layout, return_lse, seqlens_q is seqlens_k)
        given = (q, k, v, seqlens_q, seqlens_k, *buffers)
        return self._attend("dnn.flash_attention", key, _DENSE, given, (out,), make)

    @op
    def flash_attention_grad(
        self,
        grad: GpuRef,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        out: GpuRef,
        lse: GpuRef,
        *,
        seqlens_q: GpuRef | None = None,
        seqlens_k: GpuRef | None = None,
        layout: str = "bshd",
        grads: tuple[GpuRef, GpuRef, GpuRef] | None = None,
        **options: Unpack[AttentionOptions],
    ) -> Request[tuple[GpuRef, ...]]:
        """The gradients of ``flash_attention``, called with the same options.

        Vendor function: the frontend's ``sdpa_backward``.

        Args:
            grad: gradient with respect to the result.
            q: queries, float16 or bfloat16, shape (batch, queries, heads, size).
            k: keys, shape (batch, keys, kv_heads, size).
            v: values, shape (batch, keys, kv_heads, value_size).
            out: result of ``flash_attention``.
            lse: the logarithms that it returned with ``return_lse``.
            seqlens_q: int32 (batch,): queries of each sequence. Both or none.
            seqlens_k: int32 (batch,): keys of each sequence.
            layout: ``"bshd"``, as these shapes are, or ``"bhsd"``: (batch, heads, sequence, size).
            grads: buffers for the gradients with respect to q, k and v. Made if absent.
            **options: see ``AttentionOptions``.

        Returns:
            The gradients with respect to q, k and v; then to ``bias`` and to ``sink`` if these
            are given.

        Raises:
            ValueError: shapes or options that do not fit.
            TypeError: dtypes that do not fit.
            Unsupported: cuDNN does not have this combination; the message is cuDNN's.
            GpuRefStale: a ref is of an older generation, or was freed.
            OutOfMemory: there is not enough memory for the results.
        """

        def make() -> AttentionCall:
            chosen = checked("flash_attention_grad", options)
            call = self._dense(q, k, v, seqlens_q, seqlens_k, layout, chosen, backward=True)
            spec = call.spec
            shape = (spec.batch, spec.heads, spec.queries)
            return self._backward(call, grad, out, lse, self._shape(spec), shape, grads)

        count = grads is None or len(grads)
        key, buffers = split(options, layout, seqlens_q is seqlens_k, count)
        given = (q, k, v, seqlens_q, seqlens_k, out, grad, lse, *buffers)
        outs = () if grads is None else grads
        return self._attend("dnn.flash_attention_grad", key, _DENSE_GRAD, given, outs, make)

    @flash_attention_varlen_op
    def flash_attention_varlen(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        cu_seqlens_q: GpuRef,
        cu_seqlens_k: GpuRef,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        block_table: GpuRef | None = None,
        out: GpuRef | None = None,
        return_lse: bool = False,
        **options: Unpack[AttentionOptions],
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef]]:
        """Attention of sequences of different lengths that lie one after the other.

        As ``flash_attn_varlen_func`` of the package flash-attn. With ``block_table`` it is
        chunked prefill: the queries are the last ones of sequences whose keys are in pages.

        Args:
            q: float16 or bfloat16, shape (total_q, heads, size).
            k: shape (total_k, kv_heads, size), or pages (pages, page, kv_heads, size).
            v: shape (total_k, kv_heads, value_size), or pages as for ``k``.
            cu_seqlens_q: int32 (batch + 1,): where each sequence begins in q, and the end.
            cu_seqlens_k: the same of ``k``; in pages, only the differences count. The very
                same buffer as ``cu_seqlens_q`` tells that lengths are equal, which is faster.
            max_seqlen_q: the most queries of a sequence, or any more up to 2**31 - 1.
            max_seqlen_k: the most keys of a sequence, or any more up to 2**31 - 1.
            block_table: int32 (batch, columns): the pages of each sequence.
            out: where to put the result. Made if absent.
            return_lse: whether to return the logarithms that the backward pass needs.
            **options: see ``AttentionOptions``; no ``bias``.

        Returns:
            Shape (total_q, heads, value_size); with ``return_lse`` also the logarithms,
            float32 (total_q, heads).

        Raises:
            ValueError: shapes or options that do not fit.
            TypeError: dtypes that do not fit.
            Unsupported: cuDNN does not have this combination; the message is cuDNN's.
            GpuRefStale: a ref is of an older generation, or was freed.
            OutOfMemory: there is not enough memory for the result.
        """

        def make() -> AttentionCall:
            chosen = checked("flash_attention_varlen", options, without=("bias",))
            call = gathered(
                self._ragged(
                    q,
                    k,
                    v,
                    (cu_seqlens_q, cu_seqlens_k),
                    (max_seqlen_q, max_seqlen_k),
                    block_table,
                    chosen,
                    backward=False,
                )
            )
            shape = (*q.shape[:2], call.spec.value_size)
            return forward(call, shape, return_lse=return_lse, lse=q.shape[:2])

        same = cu_seqlens_q is cu_seqlens_k
        key, buffers = split(options, return_lse, same, max_seqlen_q, max_seqlen_k)
        given = (q, k, v, cu_seqlens_q, cu_seqlens_k, block_table, *buffers)
        return self._attend("dnn.flash_attention_varlen", key, _RAGGED, given, (out,), make)

    @op
    def flash_attention_varlen_grad(
        self,
        grad: GpuRef,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        out: GpuRef,
        lse: GpuRef,
        cu_seqlens_q: GpuRef,
        cu_seqlens_k: GpuRef,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        grads: tuple[GpuRef, GpuRef, GpuRef] | None = None,
        **options: Unpack[AttentionOptions],
    ) -> Request[tuple[GpuRef, ...]]:
        """The gradients of ``flash_attention_varlen``, called with the same options.

        Args:
            grad: gradient with respect to the result.
            q: float16 or bfloat16, shape (total_q, heads, size).
            k: shape (total_k, kv_heads, size), not in pages.
            v: shape (total_k, kv_heads, value_size).
            out: result of ``flash_attention_varlen``.
            lse: the logarithms that it returned with ``return_lse``.
            cu_seqlens_q: int32 (batch + 1,): where each sequence begins in q, and the end.
            cu_seqlens_k: the same for ``k``.
            max_seqlen_q: the most queries of a sequence, or any more up to 2**31 - 1.
            max_seqlen_k: the most keys of a sequence, or any more up to 2**31 - 1.
            grads: buffers for the gradients with respect to q, k and v. Made if absent.
            **options: see ``AttentionOptions``; no ``bias``.

        Returns:
            The gradients with respect to q, k and v, and to ``sink`` if given.

        Raises:
            ValueError: shapes or options that do not fit.
            TypeError: dtypes that do not fit.
            Unsupported: cuDNN does not have this combination; the message is cuDNN's.
            GpuRefStale: a ref is of an older generation, or was freed.
            OutOfMemory: there is not enough memory for the results.
        """

        def make() -> AttentionCall:
            chosen = checked("flash_attention_varlen_grad", options, without=("bias",))
            call = self._ragged(
                q,
                k,
                v,
                (cu_seqlens_q, cu_seqlens_k),
                (max_seqlen_q, max_seqlen_k),
                None,
                chosen,
                backward=True,
            )
            shape = (*q.shape[:2], call.spec.value_size)
            return self._backward(call, grad, out, lse, shape, q.shape[:2], grads)

        same = cu_seqlens_q is cu_seqlens_k
        count = grads is None or len(grads)
        key, buffers = split(options, same, max_seqlen_q, max_seqlen_k, count)
        given = (q, k, v, cu_seqlens_q, cu_seqlens_k, out, grad, lse, *buffers)
        outs = () if grads is None else grads
        return self._attend("dnn.flash_attention_varlen_grad", key, _RAGGED_GRAD, given, outs, make)

    @flash_attention_with_kvcache_op
    def flash_attention_with_kvcache(
        self,
        q: GpuRef,
        k_cache: GpuRef,
        v_cache: GpuRef,
        k: GpuRef | None = None,
        v: GpuRef | None = None,
        *,
        cache_seqlens: GpuRef,
        block_table: GpuRef | None = None,
        max_seqlen_k: int | None = None,
        out: GpuRef | None = None,
        return_lse: bool = False,
        **options: Unpack[AttentionOptions],
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef]]:
        """Attention of a few new queries to the keys and values of a cache.

        As ``flash_attn_with_kvcache`` of the package flash-attn. New keys and values are
        written behind those in the cache first, in place.

        Args:
            q: float16 or bfloat16, shape (batch, queries, heads, size).
            k_cache: shape (batch, length, kv_heads, size), or with ``block_table`` pages
                (pages, page, kv_heads, size); for a single query cuDNN wants a power of two
                for ``page``.
            v_cache: shape (batch, length, kv_heads, value_size), or pages as for ``k_cache``.
            k: new keys, (batch, new, kv_heads, size). Rows that do not fit are not written.
            v: new values, (batch, new, kv_heads, value_size). Both or none.
            cache_seqlens: int32 (batch,): how long each sequence is before.
            block_table: int32 (batch, columns): the pages of each sequence; later
                columns are ignored.
            max_seqlen_k: the most keys of a sequence, new ones too; by default what fits. With
                several queries and pages, scratch memory for as many is taken.
            out: where to put the result. Made if absent.
            return_lse: whether to return the logarithms of the sums of exponentials.
            **options: see ``AttentionOptions``; no ``bias`` and no dropout.

        Returns:
            Shape (batch, queries, heads, value_size); with ``return_lse`` also float32
            (batch, heads, queries).

        Raises:
            ValueError: shapes or options that do not fit.
            TypeError: dtypes that do not fit.
            Unsupported: cuDNN does not have this combination; the message is cuDNN's.
            GpuRefStale: a ref is of an older generation, or was freed.
            OutOfMemory: there is not enough memory for the result.
            GpuRefSealed: a cache to be written is sealed.
        """

        def make() -> AttentionCall:
            without = ("bias", "dropout_p", "seed", "offset", "deterministic")
            chosen = checked("flash_attention_with_kvcache", options, without=without)
            call = self._cached(
                q, k_cache, v_cache, k, v, cache_seqlens, block_table, max_seqlen_k, chosen
            )
            call = gathered(call)
            return forward(call, self._shape(call.spec), return_lse=return_lse)

        key, buffers = split(options, return_lse, max_seqlen_k)
        given = (q, k_cache, v_cache, k, v, cache_seqlens, block_table, *buffers)
        return self._attend("dnn.flash_attention_with_kvcache", key, _CACHED, given, (out,), make)

    @op
    def flash_attention_fp8(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        *,
        scales: dict[str, GpuRef],
        seqlens_q: GpuRef | None = None,
        seqlens_k: GpuRef | None = None,
        layout: str = "bshd",
        out: GpuRef | None = None,
        **options: Unpack[AttentionOptions],
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef, GpuRef]]:
        """Compute ``flash_attention`` of fp8 numbers, with a scale for each kind of them.

        Vendor function: the frontend's ``sdpa_fp8``, which takes two queries or more.

        Args:
            q: queries, float8_e4m3fn or float8_e5m2, shape (batch, queries, heads, size).
            k: keys, shape (batch, keys, kv_heads, size); ``heads`` is a multiple of
                ``kv_heads``.
            v: values, shape (batch, keys, kv_heads, value_size).
            scales: float32 buffers of one number each. ``descale_q``, ``descale_k``,
                ``descale_v`` and ``descale_s`` multiply q, k, v and the rounded
                probabilities. ``scale_s`` and ``scale_o`` multiply probabilities and the
                result before they are rounded.
            seqlens_q: int32 (batch,): queries of each sequence. Both or none.
            seqlens_k: int32 (batch,): keys of each sequence.
            layout: ``"bshd"``, like these shapes, or ``"bhsd"``: (batch, heads, sequence, size).
            out: where to put the result, of q's dtype. Made if absent.
            **options: ``softmax_scale``, ``causal``, ``window`` and ``align``.

        Returns:
            The result, the logarithms for the backward pass, and the largest magnitudes of
            probabilities and of the result before its scale, float32 of shape ().

        Raises:
            ValueError: shapes or options that do not fit.
            TypeError: dtypes that do not fit.
            Unsupported: cuDNN does not have this combination; the message is cuDNN's.
            GpuRefStale: a ref is of an older generation, or was freed.
            OutOfMemory: there is not enough memory for the results.
        """

        def make() -> AttentionCall:
            without = (*_NOT_FP8, "deterministic")
            chosen = checked("flash_attention_fp8", options, without=without)
            call = self._dense(
                q, k, v, seqlens_q, seqlens_k, layout, chosen, backward=False, dtypes=FP8
            )
            self._scales(call, scales, FP8_SCALES)
            call = forward(call, self._shape(call.spec), return_lse=True)
            call.outputs.update(amax_s=(), amax_o=())
            return call

        key, buffers = split(options, layout, seqlens_q is seqlens_k, *scales)
        given = (q, k, v, seqlens_q, seqlens_k, *scales.values(), *buffers)
        return self._attend(
            "dnn.flash_attention_fp8", key, (*_SEQUENCES, *scales, *BUFFERS), given, (out,), make
        )

    @op
    def flash_attention_fp8_grad(
        self,
        grad: GpuRef,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        out: GpuRef,
        lse: GpuRef,
        *,
        scales: dict[str, GpuRef],
        seqlens_q: GpuRef | None = None,
        seqlens_k: GpuRef | None = None,
        layout: str = "bshd",
        **options: Unpack[AttentionOptions],
    ) -> Request[tuple[GpuRef, ...]]:
        """The gradients of ``flash_attention_fp8``, in fp8.

        Vendor function: the frontend's ``sdpa_fp8_backward``, which takes only a size of 128.

        Args:
            grad: gradient with respect to the result, of q's dtype.
            q: queries, float8_e4m3fn or float8_e5m2, shape (batch, queries, heads, size).
            k: keys, shape (batch, keys, kv_heads, size).
            v: values, shape (batch, keys, kv_heads, value_size).
            out: result of ``flash_attention_fp8``.
            lse: the logarithms that it gave.
            scales: float32 buffers of one number each: ``descale_`` of q, k, v, o, dO, s
                (probabilities) and dP (gradients by scores), and ``scale_`` of s, dP, dQ, dK
                and dV.
            seqlens_q: int32 (batch,): queries of each sequence. Both or none.
            seqlens_k: int32 (batch,): keys of each sequence.
            layout: ``"bshd"``, as these shapes are, or ``"bhsd"``: (batch, heads, sequence, size).
            **options: ``softmax_scale``, ``causal``, ``window``, ``align`` and
                ``deterministic``.

        Returns:
            The gradients by q, k and v, and the largest magnitudes of these and of the
            gradients by scores before their scales, float32 of shape ().

        Raises:
            ValueError: shapes or options that do not fit.
            TypeError: dtypes that do not fit.
            Unsupported: cuDNN does not have this combination; the message is cuDNN's.
            GpuRefStale: a ref is of an older generation, or was freed.
            OutOfMemory: there is not enough memory for the results.
        """

        def make() -> AttentionCall:
            chosen = checked("flash_attention_fp8_grad", options, without=_NOT_FP8)
            call = self._dense(
                q, k, v, seqlens_q, seqlens_k, layout, chosen, backward=True, dtypes=FP8
            )
            self._scales(call, scales, FP8_BACKWARD_SCALES)
            spec = call.spec
            shape = (spec.batch, spec.heads, spec.queries)
            call = self._backward(call, grad, out, lse, self._shape(spec), shape)
            call.outputs.update(amax_dQ=(), amax_dK=(), amax_dV=(), amax_dP=())
            return call

        key, buffers = split(options, layout, seqlens_q is seqlens_k, *scales)
        given = (q, k, v, seqlens_q, seqlens_k, out, grad, lse, *scales.values(), *buffers)
        return self._attend(
            "dnn.flash_attention_fp8_grad",
            key,
            (*_SEQUENCES, *_BACKWARD, *scales, *BUFFERS),
            given,
            (),
            make,
        )
