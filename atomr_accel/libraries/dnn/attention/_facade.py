"""``device.dnn.flash_attention`` and its kin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack

from ....arrays import GpuRef
from ....ops import D, op, op_family
from ..wire._attention_nodes import FP8_BACKWARD_SCALES, FP8_SCALES
from .call import FP8, AttentionCall
from .checked import BACKWARD, SEQUENCES, AttentionCalls, forward
from .options import AttentionOptions, checked

if TYPE_CHECKING:
    from ....ops import Request

_NOT_FP8: Final = ("softcap", "alibi_slopes", "bias", "sink", "dropout_p", "seed", "offset")


class DnnFlashAttention(AttentionCalls[D]):
    """Attention in FlashAttention's interface: cuDNN on CUDA, NumPy on the CPU.

    In all methods ``q`` is float16 or bfloat16 of shape (batch, queries, heads, size), ``k`` is
    (batch, keys, kv_heads, size) and ``v`` is (batch, keys, kv_heads, value_size), all of one
    dtype; ``heads`` is a multiple of ``kv_heads``. Ragged sequences have rows one after the other
    instead: (total_q, heads, size) and so on. ``out`` is a buffer for the result and ``grads`` are
    buffers for the gradients with respect to q, k and v, made if absent. Integers in buffers are
    int32, and only the CPU checks them. ``AttentionOptions`` lists the options.

    Methods ``..._with_lse`` also return the logarithms of the sums of exponentials of scores, in
    float32, which gradients take as ``lse``. A query that sees no key gives zeros, and minus
    infinity as its logarithm. A gradient takes ``grad``, the gradient with respect to the result,
    first, and the same options as the forward pass.

    All methods raise:
        ValueError: shapes or options that do not fit.
        TypeError: dtypes that do not fit.
        Unsupported: cuDNN does not have this combination; the message is cuDNN's.
        GpuRefStale: a ref is of an older generation, or was freed.
        OutOfMemory: there is not enough memory for the results.
    """

    @op_family
    def flash_attention(
        self,
        _name: str,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        *,
        seqlens_q: GpuRef | None = None,
        seqlens_k: GpuRef | None = None,
        layout: str = "bshd",
        out: GpuRef | None = None,
        **options: Unpack[AttentionOptions],
    ) -> Request[GpuRef]:
        """``softmax(q @ k.T / sqrt(size)) @ v``, without the scores ever being in memory.

        Vendor function: the frontend's ``sdpa``.

        Args:
            q: queries.
            k: keys.
            v: values.
            seqlens_q: int32 (batch,): queries of each sequence; what lies behind is ignored,
                and there the result is undefined.
            seqlens_k: int32 (batch,): keys of each sequence. Both or none.
            layout: ``"bhsd"`` for (batch, heads, sequence, size) instead.
            out: where to put the result.
            **options: see ``AttentionOptions``.

        Returns:
            Shape (batch, queries, heads, value_size).
        """
        lengths, lse = (seqlens_q, seqlens_k), _name.endswith("lse")
        return self._attend(
            self._dense_work(_name, q, k, v, lengths, options, layout=layout, out=out, lse=lse)
        )

    flash_attention_with_lse: Final = flash_attention.like(
        """``flash_attention`` with the logarithms that its gradient needs.

        Returns:
            The result, and logarithms of shape (batch, heads, queries).
        """,
        returns=tuple[GpuRef, GpuRef],
    )

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
        """The gradients of ``flash_attention_with_lse``, called with the same options.

        Vendor function: the frontend's ``sdpa_backward``. ``out`` and ``lse`` are the result of
        ``flash_attention_with_lse`` and the logarithms that came with it. Other arguments are those
        of the forward pass.

        Returns:
            The gradients with respect to q, k and v; then to ``bias`` and to ``sink`` if these
            are given.
        """
        given, lengths = (grad, q, k, v, out, lse), (seqlens_q, seqlens_k)
        name = "flash_attention_grad"
        return self._attend(
            self._dense_grad_work(name, given, lengths, options, layout=layout, grads=grads)
        )

    @op_family
    def flash_attention_varlen(
        self,
        _name: str,
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
        **options: Unpack[AttentionOptions],
    ) -> Request[GpuRef]:
        """Attention of sequences of different lengths that lie one after the other.

        With ``block_table`` it is chunked prefill: the queries are the last ones of sequences
        whose keys are in pages.

        Args:
            q: queries, shape (total_q, heads, size).
            k: shape (total_k, kv_heads, size), or pages (pages, page, kv_heads, size).
            v: shape (total_k, kv_heads, value_size), or pages as for ``k``.
            cu_seqlens_q: int32 (batch + 1,): where each sequence begins in q, and the end.
            cu_seqlens_k: the same of ``k``; in pages, only the differences count. Pass the very
                same buffer as ``cu_seqlens_q`` if lengths are equal, which is faster.
            max_seqlen_q: the most queries of a sequence, or any more up to 2**31 - 1.
            max_seqlen_k: the most keys of a sequence, or any more up to 2**31 - 1.
            block_table: int32 (batch, columns): the pages of each sequence.
            out: where to put the result.
            **options: see ``AttentionOptions``; no ``bias``.

        Returns:
            Shape (total_q, heads, value_size).
        """
        lists, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
        given, lse = (q, k, v, lists, longest, block_table), _name.endswith("lse")
        return self._attend(self._ragged_work(_name, *given, options, out=out, lse=lse))

    flash_attention_varlen_with_lse: Final = flash_attention_varlen.like(
        """``flash_attention_varlen`` with the logarithms that its gradient needs.

        Returns:
            The result, and logarithms of shape (total_q, heads).
        """,
        returns=tuple[GpuRef, GpuRef],
    )

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
        """The gradients of ``flash_attention_varlen_with_lse``, called with the same options.

        Keys and values cannot be in pages. Arguments are those of the forward pass and of
        ``flash_attention_grad``.

        Returns:
            The gradients with respect to q, k and v, and to ``sink`` if given.
        """
        lists, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
        name, given = "flash_attention_varlen_grad", (grad, q, k, v, out, lse)
        return self._attend(
            self._ragged_grad_work(name, given, lists, longest, options, grads=grads)
        )

    @op
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
        **options: Unpack[AttentionOptions],
    ) -> Request[GpuRef]:
        """Attention of a few new queries to the keys and values of a cache.

        New keys and values are written behind those in the cache first, in place.

        Args:
            q: queries.
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
            out: where to put the result.
            **options: see ``AttentionOptions``; no ``bias`` and no dropout.

        Returns:
            Shape (batch, queries, heads, value_size).

        Raises:
            GpuRefSealed: a cache to be written is sealed.
        """
        caches, new = (k_cache, v_cache), (k, v)
        name, given = "flash_attention_with_kvcache", (cache_seqlens, block_table, max_seqlen_k)
        return self._attend(self._cached_work(name, q, caches, new, *given, options, out=out))

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

        ``q`` are float8_e4m3fn or float8_e5m2. ``scales`` are float32 buffers of one number each.
        ``descale_q``, ``descale_k``, ``descale_v`` and ``descale_s`` multiply q, k, v and the
        rounded probabilities. ``scale_s`` and ``scale_o`` multiply probabilities and the result
        before they are rounded. Other arguments are those of ``flash_attention``, and options
        ``softmax_scale``, ``causal``, ``window`` and ``align``.

        Returns:
            The result, the logarithms for the backward pass, and the largest magnitudes of
            probabilities and of the result before its scale, float32 of shape ().
        """

        def make() -> AttentionCall:
            without = (*_NOT_FP8, "deterministic")
            chosen = checked("flash_attention_fp8", options, without=without)
            call = self._dense(
                q, k, v, seqlens_q, seqlens_k, layout, chosen, backward=False, dtypes=FP8
            )
            self._scales(call, scales, FP8_SCALES)
            call = forward(call, self._shape(call.spec), lse=True)
            call.outputs.update(amax_s=(), amax_o=())
            return call

        refs = (q, k, v, seqlens_q, seqlens_k, *scales.values())
        values = (layout, seqlens_q is seqlens_k, *scales)
        names = (*SEQUENCES, *scales)
        return self._attend(
            self._work("flash_attention_fp8", names, refs, (out,), make, options, values)
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
        ``out`` and ``lse`` are the result of ``flash_attention_fp8`` and its logarithms; ``grad``
        has q's dtype. ``scales`` are float32 buffers of one number each: ``descale_`` of q, k, v,
        o, dO, s (probabilities) and dP (gradients by scores), and ``scale_`` of s, dP, dQ, dK and
        dV. Other arguments are those of ``flash_attention_fp8``, and options ``deterministic``,
        too.

        Returns:
            The gradients by q, k and v, and the largest magnitudes of these and of the
            gradients by scores before their scales, float32 of shape ().
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

        refs = (q, k, v, seqlens_q, seqlens_k, out, grad, lse, *scales.values())
        values = (layout, seqlens_q is seqlens_k, *scales)
        names = (*SEQUENCES, *BACKWARD, *scales)
        return self._attend(
            self._work("flash_attention_fp8_grad", names, refs, (), make, options, values)
        )
