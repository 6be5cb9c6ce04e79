"""``device.dnn.flash_attention`` and its kin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Unpack

from ...._dtypes import DTYPES
from ..._op import D, op
from ...wire._options import flag, whole
from ..wire._attention_nodes import FP8_BACKWARD_SCALES, FP8_SCALES
from ._call import (
    FP8,
    HALF,
    ROWS,
    Appending,
    AttentionCall,
    AttentionPart,
    DerivedInput,
    alike,
    columns_of,
    gathered,
    grown,
    mask_of,
    require,
    require_like,
    require_sequences,
    scored,
    steps_of,
)
from ._graph import AttentionSpec, rounded_up
from ._options import BUFFERS, AttentionOptions, Options, checked, split
from ._signatures import (
    flash_attention_op,
    flash_attention_varlen_op,
    flash_attention_with_kvcache_op,
)

if TYPE_CHECKING:
    from ....memory import GpuRef
    from ..._request import Request

_INT32: Final = DTYPES["int32"]
_FLOAT32: Final = DTYPES["float32"]
_MOST_INT32: Final = 2**31 - 1
_LAYOUTS: Final = {"bshd": "batch, sequence, heads, size", "bhsd": "batch, heads, sequence, size"}


class FlashAttention(AttentionPart[D]):
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
            A query that sees no key gives zeros on the CPU and is undefined on CUDA.

        Raises:
            ValueError: shapes or options that do not fit.
            TypeError: dtypes that do not fit.
            Unsupported: cuDNN does not have this combination; the message is cuDNN's.
            GpuRefStale: of an older generation, or freed.
            OutOfMemory: no room for the result.
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
            grad: gradient by the result.
            q: queries, float16 or bfloat16, shape (batch, queries, heads, size).
            k: keys, shape (batch, keys, kv_heads, size).
            v: values, shape (batch, keys, kv_heads, value_size).
            out: what ``flash_attention`` gave.
            lse: the logarithms that it gave with ``return_lse``.
            seqlens_q: int32 (batch,): queries of each sequence. Both or none.
            seqlens_k: int32 (batch,): keys of each sequence.
            layout: ``"bshd"``, as these shapes are, or ``"bhsd"``: (batch, heads, sequence, size).
            grads: where to put the gradients by q, k and v. Made if absent.
            **options: see ``AttentionOptions``.

        Returns:
            The gradients by q, k and v; then those by ``bias`` and by ``sink`` where these
            are given.

        Raises:
            ValueError: shapes or options that do not fit.
            TypeError: dtypes that do not fit.
            Unsupported: cuDNN does not have this combination; the message is cuDNN's.
            GpuRefStale: of an older generation, or freed.
            OutOfMemory: no room for the results.
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
            GpuRefStale: of an older generation, or freed.
            OutOfMemory: no room for the result.
        """

        def make() -> AttentionCall:
            chosen = checked("flash_attention_varlen", options, without=("bias",))
            call = self._ragged(
                q,
                k,
                v,
                (cu_seqlens_q, cu_seqlens_k),
                (max_seqlen_q, max_seqlen_k),
                block_table,
                chosen,
                backward=False,
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
            grad: gradient by the result.
            q: float16 or bfloat16, shape (total_q, heads, size).
            k: shape (total_k, kv_heads, size), not in pages.
            v: shape (total_k, kv_heads, value_size).
            out: what ``flash_attention_varlen`` gave.
            lse: the logarithms that it gave with ``return_lse``.
            cu_seqlens_q: int32 (batch + 1,): where each sequence begins in q, and the end.
            cu_seqlens_k: the same of ``k``.
            max_seqlen_q: the most queries of a sequence, or any more up to 2**31 - 1.
            max_seqlen_k: the most keys of a sequence, or any more up to 2**31 - 1.
            grads: where to put the gradients by q, k and v. Made if absent.
            **options: see ``AttentionOptions``; no ``bias``.

        Returns:
            The gradients by q, k and v, and by ``sink`` where it is given.

        Raises:
            ValueError: shapes or options that do not fit.
            TypeError: dtypes that do not fit.
            Unsupported: cuDNN does not have this combination; the message is cuDNN's.
            GpuRefStale: of an older generation, or freed.
            OutOfMemory: no room for the results.
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
            k: new keys, (batch, new, kv_heads, size). What does not fit is not written.
            v: new values, (batch, new, kv_heads, value_size). Both or none.
            cache_seqlens: int32 (batch,): how long each sequence is before.
            block_table: int32 (batch, columns): the pages of each sequence; what comes after
                its last one is not looked at.
            max_seqlen_k: the most keys of a sequence; by default what fits. With several
                queries and pages, scratch memory for as many is taken.
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
            GpuRefStale: of an older generation, or freed.
            OutOfMemory: no room for the result.
            GpuRefSealed: a cache to be written is sealed.
        """

        def make() -> AttentionCall:
            without = ("bias", "dropout_p", "seed", "offset", "deterministic")
            chosen = checked("flash_attention_with_kvcache", options, without=without)
            call = self._cached(
                q, k_cache, v_cache, k, v, cache_seqlens, block_table, max_seqlen_k, chosen
            )
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
        """``flash_attention`` of fp8 numbers, with a scale for each kind of them.

        Vendor function: the frontend's ``sdpa_fp8``, which takes two queries or more.

        Args:
            q: queries, float8_e4m3fn or float8_e5m2, shape (batch, queries, heads, size).
            k: keys, shape (batch, keys, kv_heads, size); ``heads`` is a multiple of
                ``kv_heads``.
            v: values, shape (batch, keys, kv_heads, value_size).
            scales: float32 buffers of one number each: what q, k, v and the rounded
                probabilities are multiplied by (``descale_q``, ``descale_k``,
                ``descale_v``, ``descale_s``), and what probabilities and the result are
                multiplied by before they are rounded (``scale_s``, ``scale_o``).
            seqlens_q: int32 (batch,): queries of each sequence. Both or none.
            seqlens_k: int32 (batch,): keys of each sequence.
            layout: ``"bshd"``, as these shapes are, or ``"bhsd"``: (batch, heads, sequence, size).
            out: where to put the result, of q's dtype. Made if absent.
            **options: ``softmax_scale``, ``causal``, ``window`` and ``align``.

        Returns:
            The result, the logarithms for the backward pass, and the largest magnitudes of
            probabilities and of the result before its scale, float32 of shape ().

        Raises:
            ValueError: shapes or options that do not fit.
            TypeError: dtypes that do not fit.
            Unsupported: cuDNN does not have this combination; the message is cuDNN's.
            GpuRefStale: of an older generation, or freed.
            OutOfMemory: no room for the results.
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
            grad: gradient by the result, of q's dtype.
            q: queries, float8_e4m3fn or float8_e5m2, shape (batch, queries, heads, size).
            k: keys, shape (batch, keys, kv_heads, size).
            v: values, shape (batch, keys, kv_heads, value_size).
            out: what ``flash_attention_fp8`` gave.
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
            GpuRefStale: of an older generation, or freed.
            OutOfMemory: no room for the results.
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

    # --- calls ----------------------------------------------------------------------------

    def _dense(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        seqlens_q: GpuRef | None,
        seqlens_k: GpuRef | None,
        layout: str,
        options: Options,
        *,
        backward: bool,
        dtypes: Any = HALF,
    ) -> AttentionCall:
        memory = self._device.memory
        if layout not in _LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(_LAYOUTS)}, not {layout!r}")
        # What is cleaned behind the ends of sequences, and gradients, lie without gaps.
        strided = not backward and dtypes is HALF and seqlens_q is None and seqlens_k is None
        for name, ref in (("q", q), ("k", k), ("v", v)):
            require_sequences(ref, memory, name, 4, _LAYOUTS[layout], dtypes, strided=strided)
            require_like(ref, q, name, "q")
        if layout == "bshd":
            (batch, queries, heads, size), (batch_k, keys, kv_heads, _) = q.shape, k.shape
        else:
            (batch, heads, queries, size), (batch_k, kv_heads, keys, _) = q.shape, k.shape
        _same_sizes(q, k, v, batch, batch_k)
        spec = AttentionSpec(
            *(q.dtype.name, batch, heads, kv_heads, queries, keys, size, v.shape[3]),
            layout=layout,
            scale=options.scale(size),
            strides=tuple(
                (name, steps_of(ref, layout))
                for name, ref in (("q", q), ("k", k), ("v", v))
                if not ref.contiguous
            ),
        )
        call = AttentionCall(spec, {"q": q, "k": k, "v": v})
        call = scored(call, options, memory, batch=batch, backward=backward)
        if (seqlens_q is None) != (seqlens_k is None):
            raise ValueError("seqlens_q and seqlens_k belong together")
        same = queries == keys and seqlens_q is seqlens_k
        spec = call.spec._replace(lengths=seqlens_q is not None)
        call.spec = mask_of(spec, options, same=same, bounded=True)
        for name, given, count in (
            ("seqlens_q", seqlens_q, queries),
            ("seqlens_k", seqlens_k, keys),
        ):
            tensor = {"seqlens_q": "seq_len_q", "seqlens_k": "seq_len_kv"}[name]
            if given is not None:
                require(given, memory, name, (_INT32,), (batch,))
                call.inputs[tensor] = given
            elif call.spec.lengths:
                call.derived[tensor] = alike(batch, count)
        call.padded = seqlens_q is not None
        return call

    def _ragged(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        cu_seqlens: tuple[GpuRef, GpuRef],
        longest: tuple[int, int],
        block_table: GpuRef | None,
        options: Options,
        *,
        backward: bool,
    ) -> AttentionCall:
        memory = self._device.memory
        rank, shape = (3, "total, heads, size") if block_table is None else (4, _PAGES)
        require_sequences(q, memory, "q", 3, "total, heads, size")
        for name, ref in (("k", k), ("v", v)):
            require_sequences(ref, memory, name, rank, shape)
            require_like(ref, q, name, "q")
        for name, ref in zip(("cu_seqlens_q", "cu_seqlens_k"), cu_seqlens, strict=True):
            require(ref, memory, name, (_INT32,))
            if len(ref.shape) != 1 or ref.shape != cu_seqlens[0].shape or len(ref) < 2:
                raise ValueError(
                    f"{name} must have shape (batch + 1,) with at least one sequence, as "
                    f"cu_seqlens_q, not {ref.shape}"
                )
        # No offset in int32 goes further, and no sequence is longer than all together, whatever
        # the caller allows for.
        most_q = whole(longest[0], "max_seqlen_q", 1, _MOST_INT32)
        most_q = min(most_q, max(1, rounded_up(q.shape[0])))
        most_k = whole(longest[1], "max_seqlen_k", 1, _MOST_INT32)
        if block_table is None:
            most_k = min(most_k, max(1, rounded_up(k.shape[0])))
        batch = cu_seqlens[0].shape[0] - 1
        heads, size = q.shape[1:]
        kv_heads, value_size = v.shape[-2:]
        _same_sizes(q, k, v, batch, batch)
        queries, keys = (-(-most // ROWS) * ROWS for most in (most_q, most_k))
        spec = AttentionSpec(
            *(q.dtype.name, batch, heads, kv_heads, queries, keys, size, value_size),
            ragged_q=True,
            ragged_k=block_table is None,
            lengths=True,
            scale=options.scale(size),
        )
        inputs = {"q": q, "k": k, "v": v}
        if block_table is not None:
            spec = self._paged(spec, inputs, k, block_table, most_k)
        elif backward:
            totals = (rounded_up(q.shape[0]), rounded_up(k.shape[0]))
            spec = spec._replace(total_q=totals[0], total_k=totals[1])
        call = AttentionCall(spec, inputs)
        call = scored(call, options, memory, batch=batch, backward=backward)
        same = cu_seqlens[0] is cu_seqlens[1] and longest[0] == longest[1] and queries == keys
        call.spec = mask_of(call.spec, options, same=same, bounded=False)
        begin_q, begin_k = "cu_seqlens_q", "cu_seqlens_k"
        call.derived["seq_len_q"] = DerivedInput(begin_q, batch, differences=True, most=most_q)
        call.derived["seq_len_kv"] = DerivedInput(begin_k, batch, differences=True, most=most_k)
        rows = [
            ("offsets_q", begin_q, heads * size),
            ("offsets_o", begin_q, heads * value_size),
            ("offsets_stats", begin_q, heads),
        ]
        if block_table is None:
            rows.append(("offsets_k", begin_k, kv_heads * size))
            rows.append(("offsets_v", begin_k, kv_heads * value_size))
        for name, source, width in rows:
            most = len(q if source == begin_q else k)
            call.derived[name] = DerivedInput(source, batch + 1, multiplier=width, most=most)
        return gathered(call)

    def _cached(
        self,
        q: GpuRef,
        k_cache: GpuRef,
        v_cache: GpuRef,
        k: GpuRef | None,
        v: GpuRef | None,
        cache_seqlens: GpuRef,
        block_table: GpuRef | None,
        max_seqlen_k: int | None,
        options: Options,
    ) -> AttentionCall:
        memory = self._device.memory
        require_sequences(q, memory, "q", 4, _LAYOUTS["bshd"])
        shape = _LAYOUTS["bshd"] if block_table is None else _PAGES
        for name, ref in (("k_cache", k_cache), ("v_cache", v_cache)):
            require_sequences(ref, memory, name, 4, shape)
            require_like(ref, q, name, "q")
        batch, queries, heads, size = q.shape
        require(cache_seqlens, memory, "cache_seqlens", (_INT32,), (batch,))
        kv_heads, value_size = v_cache.shape[2:]
        _same_sizes(q, k_cache, v_cache, batch, k_cache.shape[0] if block_table is None else batch)
        room = k_cache.shape[1] * (1 if block_table is None else columns_of(block_table))
        keys = room if max_seqlen_k is None else whole(max_seqlen_k, "max_seqlen_k", 1, room)
        inputs = {"q": q, "k": k_cache, "v": v_cache}
        spec = AttentionSpec(
            *(q.dtype.name, batch, heads, kv_heads, queries, room, size, value_size),
            lengths=True,
            scale=options.scale(size),
        )
        if block_table is not None:
            spec = self._paged(spec, inputs, k_cache, block_table, keys)
        new = self._new(k, v, k_cache, v_cache, batch)
        call = AttentionCall(spec, inputs)
        call = scored(call, options, memory, batch=batch, backward=False)
        call.spec = mask_of(call.spec, options, same=False, bounded=False)
        call.derived["seq_len_q"] = alike(batch, queries)
        call.derived["seq_len_kv"] = grown("cache_seqlens", batch, new, room)
        if k is not None and v is not None:
            columns = 1 if block_table is None else columns_of(block_table)
            call.appending = Appending(k, v, k_cache, v_cache, cache_seqlens, block_table, columns)
        call.padded = block_table is None and queries > 1
        return gathered(call)

    def _new(
        self,
        k: GpuRef | None,
        v: GpuRef | None,
        k_cache: GpuRef,
        v_cache: GpuRef,
        batch: int,
    ) -> int:
        """How many keys come for each sequence; checks them."""
        if (k is None) != (v is None):
            raise ValueError("k and v belong together: new keys and new values")
        if k is None or v is None:
            return 0
        memory = self._device.memory
        new = k.shape[1] if len(k.shape) == 4 else 0
        for name, ref, cache in (("k", k, k_cache), ("v", v, v_cache)):
            require(ref, memory, name, (cache.dtype,), (batch, new, *cache.shape[2:]))
        return int(new)

    def _paged(
        self,
        spec: AttentionSpec,
        inputs: dict[str, GpuRef],
        k: GpuRef,
        block_table: GpuRef,
        keys: int,
    ) -> AttentionSpec:
        """A spec about pages; adds the table to the inputs."""
        require(block_table, self._device.memory, "block_table", (_INT32,))
        columns = columns_of(block_table)
        if block_table.shape[0] != spec.batch:
            raise ValueError(
                f"block_table has {block_table.shape[0]} rows, but there are {spec.batch} sequences"
            )
        pages, page = k.shape[:2]
        inputs["table"] = block_table
        most = min(keys, columns * page)
        return spec._replace(page=page, pages=pages, columns=columns, keys=most)

    def _backward(
        self,
        call: AttentionCall,
        grad: GpuRef,
        out: GpuRef,
        lse: GpuRef,
        shape: tuple[int, ...],
        stats: tuple[int, ...],
        grads: tuple[GpuRef, GpuRef, GpuRef] | None = None,
    ) -> AttentionCall:
        """Add what the backward pass reads and writes."""
        memory, inputs, spec = self._device.memory, call.inputs, call.spec
        dtype = (DTYPES[spec.dtype],)
        require(grad, memory, "grad", dtype, shape)
        require(out, memory, "out", dtype, shape)
        require(lse, memory, "lse", (_FLOAT32,), stats)
        inputs.update(o=out, dO=grad, stats=lse)
        call.outputs.update(
            {
                name: inputs[like].shape
                for name, like, wanted in (
                    ("dQ", "q", True),
                    ("dK", "k", True),
                    ("dV", "v", True),
                    ("dBias", "bias", spec.dbias),
                    ("dSink_token", "sink", spec.sink),
                )
                if wanted
            }
        )
        call.out_names = {name: f"grads ({name})" for name in ("dQ", "dK", "dV")}
        if grads is not None and len(grads) != 3:
            raise ValueError(f"grads must be three buffers, for q, k and v, not {len(grads)}")
        return call

    def _scales(
        self, call: AttentionCall, scales: dict[str, GpuRef], names: tuple[str, ...]
    ) -> None:
        if scales.keys() != set(names):
            raise ValueError(f"scales must be exactly {', '.join(names)}, not {', '.join(scales)}")
        for name in names:
            require(scales[name], self._device.memory, name, (_FLOAT32,), (), (1,), (1, 1, 1, 1))
            call.inputs[name] = scales[name]

    @staticmethod
    def _shape(spec: AttentionSpec) -> tuple[int, ...]:
        """The shape of a dense result."""
        middle = (spec.queries, spec.heads)
        if spec.layout == "bhsd":
            middle = middle[::-1]
        return (spec.batch, *middle, spec.value_size)


_PAGES: Final = "pages, page, heads, size"
_BACKWARD: Final = ("o", "dO", "stats")
_SEQUENCES: Final = ("q", "k", "v", "seq_len_q", "seq_len_kv")
_DENSE: Final = (*_SEQUENCES, *BUFFERS)
_DENSE_GRAD: Final = (*_SEQUENCES, *_BACKWARD, *BUFFERS)
_LISTS: Final = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
_RAGGED: Final = (*_LISTS, "table", *BUFFERS)
_RAGGED_GRAD: Final = (*_LISTS, *_BACKWARD, *BUFFERS)
_CACHED: Final = ("q", "k", "v", "new_k", "new_v", "cache_seqlens", "table", *BUFFERS)
_NOT_FP8: Final = (*("softcap", "alibi_slopes", "bias", "sink", "dropout_p", "seed", "offset"),)


def forward(
    call: AttentionCall,
    shape: tuple[int, ...],
    *,
    return_lse: bool,
    lse: tuple[int, ...] | None = None,
) -> AttentionCall:
    """Add what the forward pass writes."""
    flag(return_lse, "return_lse")
    spec = call.spec
    call.outputs["o"] = shape
    if return_lse:
        each = (spec.batch, spec.heads, spec.queries) if lse is None else lse
        call.outputs["stats"] = each
    else:
        call.derived.pop("offsets_stats", None)
    call.spec = spec._replace(stats=return_lse)
    return call


def _same_sizes(q: GpuRef, k: GpuRef, v: GpuRef, batch: int, batch_k: int) -> None:
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"q has size {q.shape[-1]}, but k has {k.shape[-1]}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k {k.shape} and v {v.shape} differ in more than their size")
    if batch != batch_k:
        raise ValueError(f"q has a batch of {batch}, but k has {batch_k}")
