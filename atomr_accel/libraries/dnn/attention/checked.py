"""Checked calls of attention: their inputs and outputs, and the graphs that compute them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...._dtypes import DTYPES
from ....ops import D
from ....wire.options import whole
from .call import (
    ARGUMENTS,
    CACHES,
    FP8,
    HALF,
    NARROW,
    ROWS,
    Appending,
    AttentionCall,
    AttentionPart,
    AttentionWork,
    DerivedInput,
    alike,
    columns_of,
    grown,
    mask_of,
    masked_by_scores,
    require,
    require_like,
    require_sequences,
    scored,
    steps_of,
)
from .graph import AttentionSpec, rounded_up
from .options import BUFFERS, CheckedAttentionOptions, checked, split

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ....arrays import GpuRef

_INT32: Final = DTYPES["int32"]
_FLOAT32: Final = DTYPES["float32"]
_MOST_INT32: Final = 2**31 - 1
_LAYOUTS: Final = {"bshd": "batch, sequence, heads, size", "bhsd": "batch, heads, sequence, size"}
SEQUENCES: Final = ("q", "k", "v", "seq_len_q", "seq_len_kv")
_LISTS: Final = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
BACKWARD: Final = ("o", "dO", "stats")
_CACHED: Final = ("q", "k", "v", "new_k", "new_v", "cache_seqlens", "table")
NOT_CACHED: Final = ("bias", "dropout_p", "seed", "offset", "deterministic")
"""Options that calls with a cache do not have."""

_PAGES: Final = "pages, page, heads, size"


class AttentionCalls(AttentionPart[D]):
    """Checks arguments, and makes calls of them.

    ``dense``, ``ragged``, ``cached`` and their gradients are the one implementation of attention.
    ``device.dnn`` has cuDNN compute them, and ``device.flash_attention`` what suits the call.
    """

    _renamed: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Argument names of options that have other names in ``AttentionOptions``."""

    _called: ClassVar[Mapping[str, str]] = ARGUMENTS
    """Argument names of inputs that have other names in graphs."""

    def _dense_work(
        self,
        name: str,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        seqlens: tuple[GpuRef | None, GpuRef | None],
        options: Any,
        *,
        layout: str = "bshd",
        out: GpuRef | None = None,
        lse: bool = False,
    ) -> AttentionWork:
        """Attention of sequences of one length, or padded; with ``lse`` also its logarithms."""

        def make() -> AttentionCall:
            chosen = checked(name, options, called=self._renamed)
            call = self._dense(q, k, v, *seqlens, layout, chosen, backward=False)
            return forward(call, self._shape(call.spec), lse=lse)

        values = (layout, lse, seqlens[0] is seqlens[1])
        return self._work(name, SEQUENCES, (q, k, v, *seqlens), (out,), make, options, values)

    def _dense_grad_work(
        self,
        name: str,
        given: tuple[GpuRef, GpuRef, GpuRef, GpuRef, GpuRef, GpuRef],
        seqlens: tuple[GpuRef | None, GpuRef | None],
        options: Any,
        *,
        layout: str = "bshd",
        grads: Sequence[GpuRef] | None = None,
    ) -> AttentionWork:
        """The gradients of ``_dense_work``; ``given`` is grad, q, k, v, out and lse."""
        grad, q, k, v, out, lse = given

        def make() -> AttentionCall:
            chosen = checked(name, options, called=self._renamed)
            call = self._dense(q, k, v, *seqlens, layout, chosen, backward=True)
            spec = call.spec
            rows = (spec.batch, spec.heads, spec.queries)
            return self._backward(call, grad, out, lse, self._shape(spec), rows, grads)

        values = (layout, seqlens[0] is seqlens[1], grads is None or len(grads))
        names, refs = (*SEQUENCES, *BACKWARD), (q, k, v, *seqlens, out, grad, lse)
        return self._work(name, names, refs, grads or (), make, options, values)

    def _ragged_work(
        self,
        name: str,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        lists: tuple[GpuRef, GpuRef],
        longest: tuple[int, int],
        block_table: GpuRef | None,
        options: Any,
        *,
        out: GpuRef | None = None,
        lse: bool = False,
    ) -> AttentionWork:
        """Attention of sequences that lie one after the other; ``lse`` as for ``_dense_work``."""

        def make() -> AttentionCall:
            chosen = checked(name, options, without=("bias",), called=self._renamed)
            call = self._ragged(q, k, v, lists, longest, block_table, chosen, backward=False)
            shape = (*q.shape[:2], call.spec.value_size)
            return forward(call, shape, lse=lse, rows=q.shape[:2])

        values = (lse, lists[0] is lists[1], *longest)
        names, refs = (*_LISTS, "table"), (q, k, v, *lists, block_table)
        return self._work(name, names, refs, (out,), make, options, values)

    def _ragged_grad_work(
        self,
        name: str,
        given: tuple[GpuRef, GpuRef, GpuRef, GpuRef, GpuRef, GpuRef],
        lists: tuple[GpuRef, GpuRef],
        longest: tuple[int, int],
        options: Any,
        *,
        grads: Sequence[GpuRef] | None = None,
    ) -> AttentionWork:
        """The gradients of ``_ragged_work``; ``given`` is as for ``_dense_grad_work``."""
        grad, q, k, v, out, lse = given

        def make() -> AttentionCall:
            chosen = checked(name, options, without=("bias",), called=self._renamed)
            call = self._ragged(q, k, v, lists, longest, None, chosen, backward=True)
            shape = (*q.shape[:2], call.spec.value_size)
            return self._backward(call, grad, out, lse, shape, q.shape[:2], grads)

        values = (lists[0] is lists[1], *longest, grads is None or len(grads))
        names, refs = (*_LISTS, *BACKWARD), (q, k, v, *lists, out, grad, lse)
        return self._work(name, names, refs, grads or (), make, options, values)

    def _cached_work(
        self,
        name: str,
        q: GpuRef,
        caches: tuple[GpuRef, GpuRef],
        new: tuple[GpuRef | None, GpuRef | None],
        lengths: GpuRef,
        block_table: GpuRef | None,
        max_seqlen_k: int | None,
        options: Any,
        *,
        out: GpuRef | None = None,
        lse: bool = False,
        dtypes: Any = HALF,
    ) -> AttentionWork:
        """Attention with a cache. ``dtypes``: as for ``_cached``; ``lse``: as for others."""

        def make() -> AttentionCall:
            chosen = checked(name, options, without=NOT_CACHED, called=self._renamed)
            cached = (q, *caches, *new, lengths, block_table, max_seqlen_k, chosen)
            call = self._cached(*cached, dtypes=dtypes)
            return forward(call, self._shape(call.spec), lse=lse)

        values, refs = (lse, max_seqlen_k), (q, *caches, *new, lengths, block_table)
        called = {**self._called, **CACHES}
        return self._work(name, _CACHED, refs, (out,), make, options, values, called)

    def _work(
        self,
        name: str,
        names: Sequence[str],
        refs: Sequence[GpuRef | None],
        outs: Sequence[GpuRef | None],
        make: Callable[[], AttentionCall],
        options: Any,
        values: Sequence[Any],
        called: Mapping[str, str] | None = None,
    ) -> AttentionWork:
        """A call with its key; ``values`` are the arguments that are neither refs nor options."""
        key, buffers = split(options, *values)
        reads = dict(zip((*names, *BUFFERS), (*refs, *buffers), strict=False))
        tune = options.get("autotune", False)
        return AttentionWork(
            f"{self.library}.{name}", key, reads, outs, make, tune, called or self._called
        )

    def _dense(
        self,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        seqlens_q: GpuRef | None,
        seqlens_k: GpuRef | None,
        layout: str,
        options: CheckedAttentionOptions,
        *,
        backward: bool,
        dtypes: Any = HALF,
    ) -> AttentionCall:
        """Check attention of sequences of one length, or padded. ``dtypes``: as for ``_cached``."""
        memory = self.home.memory
        if layout not in _LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(_LAYOUTS)}, not {layout!r}")
        # What is cleaned behind the ends of sequences, and gradients, lie without gaps.
        strided = not backward and dtypes is not FP8 and seqlens_q is None and seqlens_k is None
        for name, ref in (("q", q), ("k", k), ("v", v)):
            require_sequences(ref, memory, name, 4, _LAYOUTS[layout], dtypes, strided=strided)
        _alike(q, k, v, "kv", dtypes)
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
        if seqlens_q is None:
            masked_by_scores(call)
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
        options: CheckedAttentionOptions,
        *,
        backward: bool,
    ) -> AttentionCall:
        memory = self.home.memory
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
        return call

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
        options: CheckedAttentionOptions,
        *,
        dtypes: Any = HALF,
    ) -> AttentionCall:
        """Check attention with a cache. If ``dtypes`` is NARROW, only the cache may be in fp8."""
        memory = self.home.memory
        require_sequences(q, memory, "q", 4, _LAYOUTS["bshd"], dtypes)
        shape = _LAYOUTS["bshd"] if block_table is None else _PAGES
        for name, ref in (("k_cache", k_cache), ("v_cache", v_cache)):
            require_sequences(ref, memory, name, 4, shape, dtypes)
        _alike(q, k_cache, v_cache, ("k_cache", "v_cache"), dtypes)
        batch, queries, heads, size = q.shape
        require(cache_seqlens, memory, "cache_seqlens", (_INT32,), (batch,))
        kv_heads, value_size = v_cache.shape[2:]
        _same_sizes(q, k_cache, v_cache, batch, k_cache.shape[0] if block_table is None else batch)
        room = k_cache.shape[1] * (1 if block_table is None else columns_of(block_table))
        new = self._new(k, v, k_cache, v_cache, batch)
        keys, longest = room, room
        if max_seqlen_k is not None:
            keys = whole(max_seqlen_k, "max_seqlen_k", max(1, min(new, room)), room)
        if keys < room:
            longest = keys - new  # new ones that do not fit are left out only where room ends
        inputs = {"q": q, "k": k_cache, "v": v_cache}
        spec = AttentionSpec(
            *(q.dtype.name, batch, heads, kv_heads, queries, room, size, value_size),
            lengths=True,
            scale=options.scale(size),
        )
        if block_table is not None:
            spec = self._paged(spec, inputs, k_cache, block_table, keys)
        call = AttentionCall(spec, inputs)
        call = scored(call, options, memory, batch=batch, backward=False)
        call.spec = mask_of(call.spec, options, same=False, bounded=False)
        call.derived["seq_len_q"] = alike(batch, queries)
        call.derived["seq_len_kv"] = grown("cache_seqlens", batch, new, room, longest)
        if k is not None and v is not None:
            columns = 1 if block_table is None else columns_of(block_table)
            call.appending = Appending(k, v, k_cache, v_cache, cache_seqlens, block_table, columns)
        call.padded = block_table is None and queries > 1
        return call

    def _new(
        self,
        k: GpuRef | None,
        v: GpuRef | None,
        k_cache: GpuRef,
        v_cache: GpuRef,
        batch: int,
    ) -> int:
        """Check the new keys and values, and return their number for each sequence."""
        if (k is None) != (v is None):
            raise ValueError("k and v belong together: new keys and new values")
        if k is None or v is None:
            return 0
        memory = self.home.memory
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
        require(block_table, self.home.memory, "block_table", (_INT32,))
        columns = columns_of(block_table)
        if block_table.shape[0] != spec.batch:
            raise ValueError(
                f"block_table must have {spec.batch} rows, one for each sequence, not "
                f"{block_table.shape[0]}"
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
        grads: Sequence[GpuRef] | None = None,
    ) -> AttentionCall:
        """Add the inputs and outputs of the backward pass."""
        memory, inputs, spec = self.home.memory, call.inputs, call.spec
        dtype = (DTYPES[spec.dtype],)
        require(grad, memory, self._called["dO"], dtype, shape)
        require(out, memory, "out", dtype, shape)
        require(lse, memory, self._called["stats"], (_FLOAT32,), stats)
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
        call.out_names = {name: f"grads ({name.lower()})" for name in ("dQ", "dK", "dV")}
        if grads is not None and len(grads) != 3:
            raise ValueError(f"grads must be three buffers, for q, k and v, not {len(grads)}")
        return call

    def _scales(
        self, call: AttentionCall, scales: dict[str, GpuRef], names: tuple[str, ...]
    ) -> None:
        if scales.keys() != set(names):
            raise ValueError(f"scales must be exactly {', '.join(names)}, not {', '.join(scales)}")
        for name in names:
            require(scales[name], self.home.memory, name, (_FLOAT32,), (), (1,), (1, 1, 1, 1))
            call.inputs[name] = scales[name]

    @staticmethod
    def _shape(spec: AttentionSpec) -> tuple[int, ...]:
        """The shape of a dense result."""
        middle = (spec.queries, spec.heads)
        if spec.layout == "bhsd":
            middle = middle[::-1]
        return (spec.batch, *middle, spec.value_size)


def forward(
    call: AttentionCall,
    shape: tuple[int, ...],
    *,
    lse: bool,
    rows: tuple[int, ...] | None = None,
) -> AttentionCall:
    """Add the outputs of the forward pass; ``rows`` is the shape of logarithms if not the usual."""
    spec = call.spec
    call.outputs["o"] = shape
    if lse:
        call.outputs["stats"] = rows or (spec.batch, spec.heads, spec.queries)
    else:
        call.derived.pop("offsets_stats", None)
    call.spec = spec._replace(stats=lse)
    return call


def _alike(q: GpuRef, k: GpuRef, v: GpuRef, names: Sequence[str], dtypes: Any) -> None:
    """Dtypes are the same; keys and values in fp8 may be those of queries in another one."""
    if dtypes is not NARROW or k.dtype not in FP8:
        require_like(k, q, names[0], "q")
        require_like(v, q, names[1], "q")
    require_like(v, k, names[1], names[0])


def _same_sizes(q: GpuRef, k: GpuRef, v: GpuRef, batch: int, batch_k: int) -> None:
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"q must have the size of k, {k.shape[-1]}, not {q.shape[-1]}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k {k.shape} and v {v.shape} differ in more than their size")
    if batch != batch_k:
        raise ValueError(f"q must have the batch of k, {batch_k}, not {batch}")
