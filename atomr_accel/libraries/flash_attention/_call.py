"""One call of our own kernels: its checked buffers, and the message that it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from ..._dtypes import DTYPES
from ..._errors import Unsupported
from ...arrays import GpuRef
from ...ops import (
    LaneSpec,
    Submission,
    Workspaces,
    require_no_alias,
    require_readable,
    require_writable,
)
from ..dnn.attention.call import FP8, steps_of
from .wire._messages import (
    PLACES,
    STEPPED,
    AttentionForm,
    Flash,
    scratch_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from ...memory import Block, MemoryMap
    from ...ops import DeviceView, Preparer
    from ..dnn.attention.call import AttentionCall, AttentionWork

LANE: Final = LaneSpec(
    "flash_attention",
    {
        "cpu": f"{__package__}.host._cpu:CpuFlashAttention",
        "cuda": f"{__package__}.host._cuda:CudaFlashAttention",
    },
    max_streams=4,
    own_thread=True,  # it compiles kernels
)

_ALIGNMENT: Final = 16
"""Alignment of rows in bytes. Kernels read 16 bytes at a time."""

_CAPABILITY: Final = (8, 0)

_TILE: Final = 64
"""Keys that a block of the kernel for few queries takes at a time."""

_LEAST_TILES: Final = 4
"""Smallest number of tiles of a split. With fewer, the final sum costs more than a split saves."""

_MOST_ROWS: Final = 64
"""Queries, times the heads that share keys, up to which keys are split among blocks."""

_BLOCKS: Final = 3
"""Blocks for each processor that keys are split into."""

MOST_SPLITS: Final = 128

_GRADIENTS: Final = {
    "dQ": "dq",
    "dK": "dk",
    "dV": "dv",
    "dBias": "dbias",
    "dSink_token": "dsink",
}
_OUTPUTS: Final = {"o": "o", "stats": "lse", **_GRADIENTS}
_READS: Final = {
    "seq_len_q": "count_q",
    "seq_len_kv": "count_k",
    "cache_seqlens": "count_k",
    "cu_seqlens_q": "begin_q",
    "cu_seqlens_k": "begin_k",
    "alibi_slopes": "slopes",
    "dO": "grad",
    "stats": "lse",
}
"""Names that our kernels have for outputs and inputs of graphs."""


def workspaces() -> Workspaces:
    """Return new workspaces for the lane."""
    return Workspaces(LANE.max_streams, 1 << 22)


@final
class KernelCall:
    """A checked call of our own kernels.

    Args:
        work: the call.
        call: its checked arguments.
        scales: factors of numbers in fp8, by ``"q"``, ``"k"`` and ``"v"``.
        splits: number of blocks among which to split keys; 0 for an automatic choice.
    """

    def __init__(
        self,
        work: AttentionWork,
        call: AttentionCall,
        scales: Mapping[str, GpuRef | None],
        splits: int,
    ) -> None:
        given = {
            _READS.get(name, name): (work.called.get(name, name), ref)
            for name, ref in work.reads.items()
            if name not in ("new_k", "new_v")
        }
        given |= {f"scale_{name}": (f"{name}_descale", ref) for name, ref in scales.items()}
        self._op: Final = work.name
        self._call: Final = call
        self._reads: Final = {name: ref for name, (_, ref) in given.items() if ref is not None}
        self._names: Final = {name: called for name, (called, _) in given.items()}
        self._outputs: Final = {_OUTPUTS[name]: shape for name, shape in call.outputs.items()}
        self._outs: Final = dict(zip(self._outputs, work.outs, strict=False))
        self._labels: Final = {
            _OUTPUTS[name]: call.out_names.get(name, "out") for name in call.outputs
        }
        self._splits: Final = splits
        self._cached: Final = "count_k" in self._reads and "count_q" not in self._reads

    def submission(self, preparer: Preparer, kept: Workspaces) -> Submission[Any]:
        """Prepare the submission, whose result is the outputs; a single one is not in a tuple."""
        _require_tensor_cores(preparer.home)
        form = self._form(preparer.home)
        appending = self._call.appending
        blocks = self._readable(preparer.memory)
        self._check_outputs(preparer.memory)
        made = {}
        for name, shape in self._outputs.items():
            given = self._outs.get(name)
            made[name] = preparer.output(shape, self._dtype(name)) if given is None else given
        writes = [ref.block for ref in made.values()]
        addresses = {name: block.address for name, block in blocks.items()}
        addresses |= {name: ref.block.address for name, ref in made.items()}
        nbytes = scratch_of(form)
        if nbytes:
            block = kept.obtain(preparer, nbytes)
            writes.append(block)
            addresses["scratch"] = block.address
        reads = list(blocks.values())
        append = None
        if appending is not None:
            table = addresses.get("table", 0)
            append = appending.message(addresses["count_k"], table)
            more_reads, more_writes = appending.blocks(preparer.memory)
            reads = [block for block in reads if block not in more_writes]
            reads += [block for block in more_reads if block not in reads]
            writes += more_writes
        message = Flash(form, tuple([addresses.get(name, 0) for name in PLACES]), append)
        results = tuple(made.values())
        return Submission(message, reads, writes, results if len(results) > 1 else results[0])

    # --- sizes ----------------------------------------------------------------------------

    def _form(self, home: DeviceView) -> AttentionForm:
        call, reads = self._call, self._reads
        spec = call.spec
        new = 0 if call.appending is None else call.appending.k.shape[1]
        ragged_q = "begin_q" in reads
        ragged_k = "begin_k" in reads and not spec.page
        sequences = {
            "q": (reads["q"], ragged_q),
            "k": (reads["k"], ragged_k),
            "v": (reads["v"], ragged_k),
        }
        rows = (spec.batch, spec.heads, spec.queries)
        steps = {name: _steps(ref, ragged=ragged) for name, (ref, ragged) in sequences.items()}
        steps["o"] = steps["grad"] = _packed(spec.heads, spec.queries, spec.value_size, ragged_q)
        heads, queries = rows[1:]
        steps["lse"] = (0, 1, heads) if ragged_q else (heads * queries, queries, 1)
        dtype = reads["q"].dtype
        group = spec.heads // spec.kv_heads
        plain = not spec.bias and not spec.dropout
        narrow = reads["k"].dtype in FP8
        kind = "forward"
        if spec.backward:
            kind = "backward"
        elif narrow or (plain and "count_q" not in reads and spec.queries * group <= _MOST_ROWS):
            kind = "decode"
        slopes = reads.get("slopes")
        return AttentionForm(
            kind,
            dtype.name,
            reads["k"].dtype.name,
            self._dtype("o").name,
            *(spec.batch, spec.heads, spec.kv_heads, spec.size, spec.value_size),
            *(spec.queries, spec.keys),
            rows_q=reads["q"].shape[0] if ragged_q else 0,
            rows_k=reads["k"].shape[0] if ragged_k else 0,
            steps=tuple(steps[name] for name in STEPPED),
            page=spec.page,
            columns=spec.columns,
            pages=spec.pages,
            added=new,
            scale=spec.scale,
            softcap=call.scalars.get("softcap", 0.0),
            before=-1 if spec.left is None else spec.left,
            after=-1 if spec.right is None else spec.right,
            bottom_right=not spec.top_left,
            paper=spec.paper,
            slopes_by_sequence=slopes is not None and len(slopes.shape) == 2,
            bias=spec.bias,
            dropout=spec.dropout,
            seed=call.derived["seed"].addend if spec.dropout else 0,
            offset=call.derived["offset"].addend if spec.dropout else 0,
            scales=(self._scales("q"), self._scales("k"), self._scales("v")),
            splits=self._split(home) if kind == "decode" else 1,
            limit=call.derived["seq_len_kv"].most if self._cached else -1,
        )

    def _scales(self, name: str) -> int:
        ref = self._reads.get(f"scale_{name}")
        return 0 if ref is None else ref.size

    def _split(self, home: DeviceView) -> int:
        """Return the number of blocks among which to split the keys of a sequence."""
        tiles = -(-self._call.spec.keys // _TILE)
        if self._splits:
            return min(self._splits, MOST_SPLITS)
        spec = self._call.spec
        rows = spec.queries * (spec.heads // spec.kv_heads)
        blocks = spec.batch * spec.kv_heads * -(-rows // 16)
        processors = 0 if home.info is None else home.info.multiprocessors
        most = min(tiles // _LEAST_TILES, MOST_SPLITS)
        return max(1, min(_BLOCKS * processors // blocks, most))

    def _dtype(self, name: str) -> np.dtype[Any]:
        if name in ("lse", "dsink"):
            return DTYPES["float32"]
        dtype = self._reads["q"].dtype
        return DTYPES["bfloat16"] if dtype in FP8 else dtype

    # --- buffers --------------------------------------------------------------------------

    def _readable(self, memory: MemoryMap) -> dict[str, Block]:
        """Return the blocks of the inputs, by name."""
        found = {}
        for name, ref in self._reads.items():
            called = self._names[name]
            block = require_readable(ref, memory, called, strided=name in ("q", "k", "v"))
            if block.offset % _ALIGNMENT and name in (*"qkvo", "grad"):
                raise ValueError(
                    f"{called} is a view that begins {block.offset} bytes into its buffer; it "
                    f"must be a multiple of {_ALIGNMENT}: copy it to a buffer of its own"
                )
            found[name] = block
        return found

    def _check_outputs(self, memory: MemoryMap) -> None:
        written = []
        for name, shape in self._outputs.items():
            out = self._outs.get(name)
            if out is None:
                continue
            called = self._labels[name]
            block = require_writable(out, memory, called)
            dtype = self._dtype(name)
            if out.shape != shape or out.dtype is not dtype:
                raise (ValueError if out.shape != shape else TypeError)(
                    f"{called} is {out.dtype.name} of shape {out.shape}, but the result is "
                    f"{dtype.name} of shape {shape}"
                )
            if block.offset % _ALIGNMENT:
                raise ValueError(
                    f"{called} is a view that begins {block.offset} bytes into its buffer; it "
                    f"must be a multiple of {_ALIGNMENT}"
                )
            written.append((called, out))
        read = [(self._names[name], ref) for name, ref in self._reads.items()]
        appending = self._call.appending
        if appending is not None:
            caches = {"k": appending.k_cache, "v": appending.v_cache}
            read = [each for each in read if each[0] not in ("k_cache", "v_cache")]
            read += [("k", appending.k), ("v", appending.v)]
            written += [(f"{name}_cache", ref) for name, ref in caches.items()]
        require_no_alias(self._op, written, read)


def _require_tensor_cores(home: DeviceView) -> None:
    """Check that the device has the tensor cores and copies that the kernels use."""
    capability = (0, 0) if home.info is None else home.info.compute_capability
    if (0, 0) < capability < _CAPABILITY:
        raise Unsupported(
            "kernels of this package for attention need compute capability "
            f"{'.'.join(map(str, _CAPABILITY))}, and this device has "
            f"{'.'.join(map(str, capability))}"
        )


def _steps(ref: GpuRef, *, ragged: bool) -> tuple[int, int, int]:
    """Elements from one batch (or page), head and row to the next."""
    if ragged:
        row, head, _ = (step // ref.dtype.itemsize for step in ref.strides)
        return 0, head, row
    batch, head, row, _ = steps_of(ref, "bshd")
    return batch, head, row


def _packed(heads: int, rows: int, size: int, ragged: bool) -> tuple[int, int, int]:
    return (0 if ragged else rows * heads * size, size, heads * size)
