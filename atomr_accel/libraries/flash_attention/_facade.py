"""``device.flash_attention``: the functions of the package flash-attn."""

from __future__ import annotations

import inspect
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Unpack, final

import msgspec

from ..._dtypes import DTYPES
from ...ops import D, Request, Submission, op, require_ref
from ...wire.options import flag, whole
from ..dnn.attention.call import ARGUMENTS, CACHES, FP8, NARROW, AttentionWork, require
from ..dnn.attention.checked import NOT_CACHED, AttentionCalls, forward
from ..dnn.attention.options import ExtraOptions, checked
from ._call import LANE, MOST_SPLITS, KernelCall, workspaces
from ._choice import Case, by_kernel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...arrays import GpuRef
    from ...ops import DeviceView, Preparer
    from ..dnn.attention.call import AttentionCall
    from ..dnn.facade import Dnn

_INT32: Final = DTYPES["int32"]
_FLOAT32: Final = DTYPES["float32"]
_NO_SCALES: Final[Mapping[str, GpuRef | None]] = MappingProxyType({})


class FlashOptions(ExtraOptions, total=False):
    """Options that flash-attn does not have: those of ``ExtraOptions``, and one more.

    Attributes:
        backend: ``"cudnn"``, ``"kernel"`` for those of this package, or ``"auto"``.
    """

    backend: str


class AttnProbs(NamedTuple):
    """Results of a call with ``return_attn_probs``.

    Attributes:
        out: the result.
        softmax_lse: the logarithms that the backward pass needs.
        S_dmask: None. The probabilities are never in memory.
    """

    out: GpuRef
    softmax_lse: GpuRef
    S_dmask: None = None


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

    templated = True
    _renamed: ClassVar[Mapping[str, str]] = {"window": "window_size"}
    _called: ClassVar[Mapping[str, str]] = {**ARGUMENTS, "dO": "dout", "stats": "softmax_lse"}

    def __init__(self, device: DeviceView, dnn: Dnn[Any]) -> None:
        super().__init__(device, dnn.plans)
        self._scratch: Final = workspaces()

    # --- forward --------------------------------------------------------------------------

    @op
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
    ) -> Request[GpuRef | AttnProbs]:
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
        return self._dense_attention("flash_attn_func", (q, k, v), locals())

    @op
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
    ) -> Request[GpuRef | AttnProbs]:
        """``flash_attn_func`` of keys and values in one buffer, (batch, keys, 2, kv_heads, size).

        Nothing is copied. Arguments and results are those of ``flash_attn_func``, but without
        lengths. For gradients pass ``flash_attn_backward`` the parts, such as ``kv[:, :, 0]``.
        """
        k, v = _parts(kv, "kv", 2)
        return self._dense_attention("flash_attn_kvpacked_func", (q, k, v), locals())

    @op
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
    ) -> Request[GpuRef | AttnProbs]:
        """``flash_attn_func`` of one buffer, (batch, sequence, 3, heads, size).

        Nothing is copied. Arguments and results are those of ``flash_attn_func``, but without
        lengths. For gradients pass ``flash_attn_backward`` the parts, such as ``qkv[:, :, 0]``.
        """
        q, k, v = _parts(qkv, "qkv", 3)
        return self._dense_attention("flash_attn_qkvpacked_func", (q, k, v), locals())

    @op
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
    ) -> Request[GpuRef | AttnProbs]:
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
        name = "flash_attn_varlen_func"
        given, backend = _options(name, locals())
        lse = flag(return_attn_probs, "return_attn_probs")
        lists, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
        ragged = (q, k, v, lists, longest, block_table)
        work = self._ragged_work(name, *ragged, given, out=out, lse=lse)
        return self._computed(work, backend, probs=lse)

    @op
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
        autotune: bool = False,
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
            autotune: see ``FlashOptions``.
            backend: see ``FlashOptions``.

        Returns:
            Shape (batch, queries, heads, value_size), of q's dtype, or bfloat16 if that is in
            fp8; with ``return_softmax_lse`` also float32 (batch, heads, queries).

        Raises:
            GpuRefSealed: a cache to be written is sealed.
        """
        name = "flash_attn_with_kvcache"
        given, backend = _options(name, locals())
        lse = flag(return_softmax_lse, "return_softmax_lse")
        splits = whole(num_splits, "num_splits", 0, MOST_SPLITS)
        if cache_batch_idx is not None:
            if block_table is not None:
                raise ValueError("cache_batch_idx is for caches without pages")
            require(cache_batch_idx, self.home.memory, "cache_batch_idx", (_INT32,), q.shape[:1])
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
                raise ValueError(
                    f"max_seqlen_k must be at least {most}, the most "
                    f"keys of a sequence, not {max_seqlen_k}"
                )
        caches = (k_cache, v_cache)
        if lengths is None:

            def make() -> AttentionCall:
                """Attention to all rows of the cache, or to none if it is empty."""
                chosen = checked(name, given, without=NOT_CACHED, called=self._renamed)
                dense = (q, *caches, None, None, "bshd", chosen)
                call = self._dense(*dense, backward=False, dtypes=NARROW)
                if count == 0:
                    call.spec = call.spec._replace(keys=0)
                return forward(call, self._shape(call.spec), lse=lse)

            called, refs = {**self._called, **CACHES}, (q, *caches)
            values = (lse, count == 0)
            work = self._work(name, ("q", "k", "v"), refs, (out,), make, given, values, called)
        else:
            cached = (q, caches, (k, v), lengths, block_table, max_seqlen_k)
            work = self._cached_work(name, *cached, given, out=out, lse=lse, dtypes=NARROW)
        scales = {"q": q_descale, "k": k_descale, "v": v_descale}
        if splits and backend == "auto":
            backend = "kernel"
        return self._computed(work, backend, splits=splits, scales=scales)

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

        Kernels of this package always sum in one order. ``deterministic`` says whether cuDNN, too,
        has to. ``dout`` is the gradient with respect to ``out``, the result, and ``softmax_lse``
        the logarithms that came with it. ``grads`` are buffers for the gradients with respect to q,
        k and v, made if absent. Other arguments are those of the forward pass.

        Returns:
            The gradients with respect to q, k and v; then to ``bias`` and ``sink`` if given. Those
            of our kernels are 0 behind the ends of sequences.
        """
        name = "flash_attn_backward"
        chosen, backend = _options(name, locals())
        given, lengths = (dout, q, k, v, out, softmax_lse), (seqlens_q, seqlens_k)
        work = self._dense_grad_work(name, given, lengths, chosen, grads=grads)
        return self._computed(work, backend)

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

        Keys cannot be in pages. Other arguments are those of ``flash_attn_backward`` and of the
        forward pass.

        Returns:
            The gradients with respect to q, k and v, and to ``sink`` if given.
        """
        name = "flash_attn_varlen_backward"
        chosen, backend = _options(name, locals())
        given, lists = (dout, q, k, v, out, softmax_lse), (cu_seqlens_q, cu_seqlens_k)
        longest = (max_seqlen_q, max_seqlen_k)
        work = self._ragged_grad_work(name, given, lists, longest, chosen, grads=grads)
        return self._computed(work, backend)

    # --- implementations --------------------------------------------------------------------

    def _dense_attention(
        self, name: str, parts: tuple[GpuRef, GpuRef, GpuRef], called: Mapping[str, Any]
    ) -> Request[GpuRef | AttnProbs]:
        """Return the request for attention to ``parts``, with the arguments of its method."""
        given, backend = _options(name, called)
        lse = flag(called["return_attn_probs"], "return_attn_probs")
        lengths = called.get("seqlens_q"), called.get("seqlens_k")
        work = self._dense_work(name, *parts, lengths, given, out=called["out"], lse=lse)
        return self._computed(work, backend, probs=lse)

    def _computed(
        self,
        work: AttentionWork,
        backend: str,
        *,
        probs: bool = False,
        splits: int = 0,
        scales: Mapping[str, GpuRef | None] = _NO_SCALES,
    ) -> Request[Any]:
        """Return the request for cuDNN or for our kernels.

        Args:
            work: the call.
            backend: one of ``BACKENDS``.
            probs: whether the caller gets flash-attn's three results.
            splits: as for ``KernelCall``.
            scales: factors of numbers in fp8, by ``"q"``, ``"k"`` and ``"v"``.
        """

        def make() -> AttentionCall:
            call = work.make()
            self._check_scales(call, scales)
            return call

        if by_kernel(work.name.partition(".")[2], backend, Case.of(make(), work.reads)):

            def prepare(preparer: Preparer) -> Submission[Any]:
                call = KernelCall(work, make(), scales, splits)
                made = call.submission(preparer, self._scratch)
                self.plans.note_kernel(made.message.form)
                return made

            request = Request(LANE, work.name, prepare)
        else:
            request = self._attend(work)
        return _with_probs(request) if probs else request

    def _check_scales(self, call: AttentionCall, scales: Mapping[str, GpuRef | None]) -> None:
        for name, scale in scales.items():
            if scale is None:
                continue
            if call.inputs[name].dtype not in FP8:
                raise ValueError(f"{name}_descale is for numbers in fp8, and {name} has none")
            shape = (call.spec.batch, call.spec.kv_heads)
            require(scale, self.home.memory, f"{name}_descale", (_FLOAT32,), (), (1,), shape)


def _with_probs(request: Request[Any]) -> Request[AttnProbs]:
    """Have a request return the three results of flash-attn."""

    def prepare(preparer: Preparer) -> Submission[AttnProbs]:
        submission = request.prepare(preparer)
        assert submission.result is not None
        return msgspec.structs.replace(submission, result=AttnProbs(*submission.result))

    return Request(request.lane, request.name, prepare)


def _options(op: str, called: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the options that differ from their defaults, by our names, and the backend.

    Args:
        op: the method.
        called: its arguments, by name.
    """
    options = called.get("options", {})
    known = FlashOptions.__annotations__.keys()
    if unknown := sorted(options.keys() - known):
        named = inspect.signature(getattr(FlashAttention, op)).parameters.keys()
        taken = sorted((named - {"self", "options"}) | known)
        raise TypeError(f"{op} has no {', '.join(unknown)}; it takes {', '.join(taken)}")
    names = ("dropout_p", "softmax_scale", "causal", "softcap", "deterministic", "alibi_slopes")
    given = {name: called[name] for name in (*names, *known) if name in called}
    given |= {"window": called["window_size"], **options}
    if given["alibi_slopes"] is False:
        del given["alibi_slopes"]
    backend = given.pop("backend", "auto")
    found = {
        name: value
        for name, value in given.items()
        if type(value) is not type(default := _DEFAULTS.get(name)) or value != default
    }
    return found, backend


_DEFAULTS: Final = {
    "dropout_p": 0.0,
    "causal": False,
    "window": (-1, -1),
    "softcap": 0.0,
    "deterministic": False,
    "autotune": False,
}


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
