"""FlashAttention on the CPU: the results of our kernels, with NumPy and in the same layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ....executors.indices import require_within
from ...dnn.host.cpu_attention import FUNCTIONS
from ...dnn.host.cpu_sequences import CpuSequences, table_name
from ..wire._messages import PLACES, STEPPED, Flash

if TYPE_CHECKING:
    from ....backends.cpu.host.context import CpuContext, CpuStream

Array = np.ndarray[Any, Any]

_KEYS: Final = frozenset(("k", "v", "dk", "dv"))
_VALUES: Final = frozenset(("v", "dv", "o", "grad"))
_STEPS_LIKE: Final = {"dq": "q", "dk": "k", "dv": "v"}
_RESULTS: Final = {"dq": "dQ", "dk": "dK", "dv": "dV"}


@final
class CpuFlashAttention:
    """Executes the messages with NumPy."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self._sequences: Final = CpuSequences(context, {})
        self.handlers: Final = {Flash: self._flash}

    def close(self) -> None:
        """Nothing is held."""

    def _flash(self, message: Flash) -> None:
        self._context.check()
        call = CpuCall(self._context, message)  # looks at lengths, before anything is written
        if message.append is not None:
            self._sequences.append(message.append)
        call.run()


@final
class CpuCall:
    """One call: its buffers as arrays, and its computation."""

    def __init__(self, context: CpuContext, message: Flash) -> None:
        self._context = context
        self._form = message.form
        self._places = dict(zip(PLACES, message.places, strict=True))
        self._counts_q = self._counts("begin_q", "count_q", self._form.queries, 0)
        self._counts_k = self._counts("begin_k", "count_k", self._form.keys, self._form.added)

    def run(self) -> None:
        form = self._form
        attributes = {
            "attn_scale": form.scale,
            "diagonal_alignment": "BOTTOM_RIGHT" if form.bottom_right else "TOP_LEFT",
            "diagonal_band_left_bound": None if form.before < 0 else form.before + 1,
            "diagonal_band_right_bound": None if form.after < 0 else form.after,
            "use_alibi_mask": form.paper,
            "dropout": form.dropout,
        }
        inputs: dict[str, Any] = {name: self._padded(name) for name in "qkv"}
        shape = (form.batch, 1, 1, 1)
        inputs["seq_len_q"] = self._counts_q.reshape(shape)
        inputs["seq_len_kv"] = self._counts_k.reshape(shape)
        if form.softcap:
            inputs["softcap"] = form.softcap
        if self._places["slopes"]:
            shape = (form.batch if form.slopes_by_sequence else 1, form.heads, 1, 1)
            inputs["alibi_slopes"] = self._array("slopes", shape, "float32")
        if form.bias:
            inputs["bias"] = self._array("bias", form.bias, form.dtype).astype(np.float32)
        if self._places["sink"]:
            inputs["sink_token"] = self._array("sink", (1, form.heads, 1, 1), "float32")
        if form.dropout:
            inputs |= {name: np.array(getattr(form, name)) for name in ("seed", "offset")}
        if form.kind == "backward":
            self._backward(inputs, attributes)
        else:
            found = FUNCTIONS["sdpa"](inputs, attributes, {})
            self._put("o", found["o"])
            if self._places["lse"]:
                inside = np.arange(form.queries)[:, None] < inputs["seq_len_q"]
                self._put("lse", np.where(inside, found["stats"], -np.inf))

    def _backward(self, inputs: dict[str, Any], attributes: dict[str, Any]) -> None:
        form = self._form
        inputs |= {"o": self._padded("o"), "dO": self._padded("grad"), "stats": self._padded("lse")}
        outputs: dict[str, Any] = {}
        if self._places["dbias"]:
            outputs["dBias"] = np.empty(form.bias, bool)
        if self._places["dsink"]:
            outputs["dSink_token"] = inputs["sink_token"]
        found = FUNCTIONS["sdpa_backward"](inputs, attributes, outputs)
        for name, result in _RESULTS.items():
            self._put(name, found[result])
        for name, result, dtype in (
            ("dbias", "dBias", form.dtype),
            ("dsink", "dSink_token", "float32"),
        ):
            if result in found:
                target = self._array(name, found[result].shape, dtype)
                target[...] = found[result].astype(target.dtype)

    # --- lengths --------------------------------------------------------------------------

    def _counts(self, begin: str, count: str, most: int, added: int) -> Array:
        """Return the length of each sequence."""
        batch = self._form.batch
        if self._places[count]:
            cache = not self._places["count_q"]
            name = "cache_seqlens" if cache else f"seqlens_{count[-1]}"
            found = self._array(count, (batch,), "int32").astype(np.int64)
            limit = self._form.limit if cache else -1
            require_within(found, 0, most if limit < 0 else limit, name)
            return np.minimum(found + added, most)
        if self._places[begin]:
            ends = self._array(begin, (batch + 1,), "int32").astype(np.int64)
            found, name = np.diff(ends), f"cu_seqlens_{begin[-1]}"
            require_within(found, 0, most, f"length of sequences by {name}, ")
            rows = self._form.rows_q if begin == "begin_q" else self._form.rows_k
            if rows:
                require_within(ends, 0, rows, name)
            return found
        return np.full(batch, most, np.int64)

    # --- buffers --------------------------------------------------------------------------

    def _array(self, name: str, shape: tuple[int, ...], dtype: str) -> Array:
        return self._context.array(self._places[name], shape, DTYPES[dtype])

    def _view(self, name: str) -> Array:
        """A buffer as (batch, heads, rows, size): of pages, as (pages, heads, rows, size)."""
        form = self._form
        keys = name in _KEYS
        heads = form.kv_heads if keys else form.heads
        size = form.value_size if name in _VALUES else form.size
        count, rows = form.batch, form.keys if keys else form.queries
        ragged = form.rows_k if keys else form.rows_q
        if keys and form.page:
            count, rows = form.pages, form.page
        elif ragged:
            count, rows = 1, ragged
        if name == "lse":
            size = 1
        dtype = "float32" if name == "lse" else form.kv_dtype if keys else form.dtype
        if name == "o":
            dtype = form.out_dtype
        steps = form.steps[STEPPED.index(_STEPS_LIKE.get(name, name))]
        shape = (count, heads, rows, size)
        last = [max(0, each - 1) for each in shape]
        extent = 1 + sum(each * step for each, step in zip(last, (*steps, 1), strict=True))
        flat = self._array(name, (extent,), dtype)
        width = flat.dtype.itemsize
        strides = (*(step * width for step in steps), width)
        bits = flat.view(f"u{width}")  # NumPy makes no such views of types that are not its own
        return np.lib.stride_tricks.as_strided(bits, shape, strides).view(flat.dtype)

    def _padded(self, name: str) -> Array:
        """A buffer's sequences, (batch, heads, longest, size), in single precision."""
        form = self._form
        view = self._view(name)
        keys = name in _KEYS
        longest = form.keys if keys else form.queries
        counts = self._counts_k if keys else self._counts_q
        ragged = form.rows_k if keys else form.rows_q
        scale = self._scale(name)
        if not (ragged or (keys and form.page)):
            return np.asarray(view.astype(np.float32) * scale)
        found = np.zeros((form.batch, view.shape[1], longest, view.shape[3]), np.float32)
        for entry, count in enumerate(counts):
            found[entry, :, :count] = self._rows(view, name, entry, int(count))
        return np.asarray(found * scale)

    def _rows(self, view: Array, name: str, entry: int, count: int) -> Array:
        form = self._form
        if name in _KEYS and form.page:
            table = self._array("table", (form.batch, form.columns), "int32")[entry]
            used = table[: -(-count // form.page)]
            require_within(used, 0, form.pages - 1, f"{table_name(form.columns)}, row {entry}, ")
            rows = view[used].swapaxes(0, 1)
            return np.asarray(rows.reshape(view.shape[1], -1, view.shape[3])[:, :count])
        first = self._first(name, entry)
        return np.asarray(view[0, :, first : first + count])

    def _first(self, name: str, entry: int) -> int:
        """Return the first row of a sequence."""
        begin = "begin_k" if name in _KEYS else "begin_q"
        return int(self._array(begin, (self._form.batch + 1,), "int32")[entry])

    def _scale(self, name: str) -> Any:
        """Return the factor of numbers in fp8."""
        count = self._form.scales["qkv".index(name)] if name in "qkv" else 0
        if not count:
            return np.float32(1)
        shape = (1,) if count == 1 else (self._form.batch, self._form.kv_heads, 1, 1)
        scales = self._array(f"scale_{name}", shape, "float32")
        if name == "q" and count > 1:
            scales = np.repeat(scales, self._form.heads // self._form.kv_heads, axis=1)
        return scales

    def _put(self, name: str, found: Array) -> None:
        """Write sequences to a buffer, in its layout and dtype."""
        view = self._view(name)
        form = self._form
        if not (form.rows_k if name in _KEYS else form.rows_q):
            view[...] = found.astype(view.dtype)
            return
        counts = self._counts_k if name in _KEYS else self._counts_q
        for entry, count in enumerate(counts):
            first = self._first(name, entry)
            view[0, :, first : first + count] = found[entry, :, :count].astype(view.dtype)
