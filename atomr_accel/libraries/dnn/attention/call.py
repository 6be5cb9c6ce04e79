"""One call of attention: its buffers, their checks, and its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from ...._dtypes import DTYPES
from ....arrays import GpuRef
from ....ops import D, picker, require_readable, require_writable
from ..graph._run import DnnPart, GraphCall, RunOutput
from ..wire._messages import TuneGraph
from ..wire.sequence_messages import (
    Append,
    Attend,
    Blank,
    Clean,
    Derived,
    Grow,
    SequenceUpload,
    Trial,
    encode_derived,
)
from .graph import AttentionSpec, attention_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ....memory import Block, MemoryMap
    from ....ops import Request
    from ..graph._run import DnnPlanCache
    from ..wire._messages import RunGraph
    from .graph import AttentionGraph
    from .options import CheckedAttentionOptions

HALF: Final = tuple(DTYPES[name] for name in ("float16", "bfloat16"))
FP8: Final = tuple(DTYPES[name] for name in ("float8_e4m3fn", "float8_e5m2"))
NARROW: Final = (*HALF, *FP8)
"""Dtypes of calls whose caches may be in fp8."""

_INT32: Final = DTYPES["int32"]
_FLOAT32: Final = DTYPES["float32"]
_ALIGNMENT: Final = 256
"""Alignment of buffers in scratch memory, in bytes."""
_ROW_ALIGNMENT: Final = 16
"""Alignment of rows with gaps between them, in bytes."""

ROWS: Final = 64
"""Longest sequences are rounded up to a multiple, so that there are fewer plans."""


class DerivedInput(NamedTuple):
    """Integers that the lane makes for a graph.

    Attributes:
        source: name of the int32 buffer to make them from; empty for their own positions.
        length: number of integers.
        multiplier, addend: numbers that each source is multiplied by, and that is added.
        differences: whether they are made from differences of neighbours.
        data: the integers themselves, if the program has them.
        most: upper limit of the values of ``source``, or of their differences; -1 for any.
        ceiling: upper limit to which results are clipped.
    """

    source: str
    length: int
    multiplier: int = 1
    addend: int = 0
    differences: bool = False
    data: bytes = b""
    most: int = -1
    ceiling: int = 2**63 - 1


def alike(length: int, number: int) -> DerivedInput:
    """Return ``length`` copies of a number."""
    return DerivedInput("", length, multiplier=0, addend=number)


def grown(source: str, count: int, addend: int, room: int, most: int) -> DerivedInput:
    """Return the lengths of sequences after ``addend`` more rows, at most ``room`` each.

    The lengths before are at most ``most``, and ``room`` rows fit in a sequence.
    """
    return DerivedInput(source, count, addend=addend, most=most, ceiling=room)


class Pages(NamedTuple):
    """Sizes of pages and tables of keys and values that are copied for a graph without pages."""

    page: int = 0
    columns: int = 0
    pages: int = 0


_NO_PAGES: Final = Pages()


@dataclass(frozen=True, slots=True)
class Appending:
    """New keys and values, written to a cache before the graph reads it.

    Attributes:
        k, v: new rows, (batch, new, heads, size).
        k_cache, v_cache: the caches, (pages, page, heads, size).
        lengths: lengths of the sequences before, int32 (batch,); None if the call uploads the
            lengths afterwards.
        table: pages of the sequences, int32 (batch, columns); None if the call uploads
            it, or if page i is sequence i.
        columns: number of columns of the table; 1 without a table.
        copies: pages to copy first, from and to, in all layers.
        k_layers, v_layers: the caches of all layers, (layers, pages, page, heads, size).
    """

    k: GpuRef
    v: GpuRef
    k_cache: GpuRef
    v_cache: GpuRef
    lengths: GpuRef | None = None
    table: GpuRef | None = None
    columns: int = 1
    copies: tuple[tuple[int, int], ...] = ()
    k_layers: GpuRef | None = None
    v_layers: GpuRef | None = None

    def message(self, lengths: Any, table: Any) -> Append:
        """Return the message for the lane, with addresses of the lengths and of the table."""
        order = (self.k, self.v, self.k_cache, self.v_cache)
        places = [*(ref.block.address for ref in order), lengths, table]
        return Append(*places, *self.sizes())

    def sizes(self) -> tuple[Any, ...]:
        """Return the fields of the message except for addresses."""
        pages, page = self.k_cache.shape[:2]
        batch, new = self.k.shape[:2]
        row = pages * page
        widths = (self.k_cache.nbytes // row, self.v_cache.nbytes // row)
        shift = -new if self.lengths is None else 0
        layers: tuple[Any, ...] = (1, 0, 0)
        if self.k_layers is not None and self.v_layers is not None:
            first = [ref.block.address for ref in (self.k_layers, self.v_layers)]
            layers = (self.k_layers.shape[0], *first)
        return (batch, new, pages, page, self.columns, *widths, shift, self.copies, *layers)

    def blocks(self, memory: MemoryMap) -> tuple[list[Block], list[Block]]:
        """Return the blocks that are read, and those that are written."""
        reads = {
            "k": self.k,
            "v": self.v,
            "cache_seqlens": self.lengths,
            "block_table": self.table,
        }
        writes = {"k_cache": self.k_cache, "v_cache": self.v_cache}
        return (
            [require_readable(ref, memory, name) for name, ref in reads.items() if ref is not None],
            [require_writable(ref, memory, name) for name, ref in writes.items()],
        )


_CLEANED: Final = {
    False: ("k", "v"),
    True: ("q", "k", "v", "o", "dO", "stats"),
}
"""Tensors that a graph multiplies by zeros behind the ends of sequences, by ``backward``. Forward,
rows of q behind an end make only results that are never read."""

_BLANKED: Final = {"o": 0, "stats": 0xFF800000, "dQ": 0}
"""Results of queries that see no key, as bits: an empty sum, and its logarithm."""

_HIDDEN: Final = 0x7149F2CA
"""1e30, a statistic that makes all of a query's probabilities 0. cuDNN makes NaN of -infinity."""


@final
class SetupStage:
    """The work before a graph of attention runs, for any buffers.

    Places are positions among the addresses of a call: first those of its inputs, then of its
    outputs, then of the tensors in its scratch memory, and a 0 for absent buffers.

    Attributes:
        ids: ids of the tensors that are made.
        offsets: their offsets in scratch memory.
        nbytes: bytes of scratch memory.
    """

    __slots__ = (
        "_after",
        "_append",
        "_before",
        "_clean",
        "_derived",
        "_kind",
        "_places",
        "_sizes",
        "_uploads",
        "ids",
        "nbytes",
        "offsets",
    )

    def __init__(self, call: AttentionCall, attention: AttentionGraph, names: list[str]) -> None:
        """Prepare for a call whose buffers are ``names``, in this order."""
        places = {name: at for at, name in enumerate((*names, *call.derived))}
        tensors = attention.graph.tensors
        cleaned = _CLEANED[call.spec.backward] if call.padded else ()
        # A table may be for the copies alone.
        self.ids: Final = [attention.ids.get(name, -1) for name in (*call.derived, *cleaned)]
        first = len(names) + len(call.derived)
        # Statistics that hide queries from the gradient are no longer those of the caller.
        hidden = call.blind and call.spec.backward
        copied = hidden and "stats" not in cleaned
        if copied:
            self.ids.append(attention.ids["stats"])
        places[""] = first + len(cleaned) + copied
        offsets: list[int] = []
        end = 0
        derived: list[Derived] = []
        order: list[int] = []
        self._clean: list[tuple[Any, ...]] = []
        self._uploads: list[tuple[int, bytes]] = []
        for (name, making), id_ in zip(call.derived.items(), self.ids, strict=False):
            wide = id_ >= 0 and tensors[id_].dtype == "int64"
            offsets.append(end)
            end += -(-making.length * (8 if wide else 4) // _ALIGNMENT) * _ALIGNMENT
            if making.data:
                self._uploads.append((places[name], making.data))
                continue
            order += (places[name], places[making.source])
            numbers = (making.length, making.multiplier, making.addend, making.differences, wide)
            limits = (making.most, making.ceiling)
            derived.append(Derived(*numbers, making.source, *limits))
        for at, what in enumerate(cleaned):
            tensor = tensors[attention.ids[what]]
            batch, heads, rows, _ = tensor.shape
            row = tensor.strides[2]
            # Heads lie side by side in a row, or are sequences of their own. With one row the
            # strides of both are equal, so it is the row's length that tells.
            groups = 1 if row >= heads * tensor.strides[1] else heads
            nbytes = row * DTYPES[tensor.dtype].itemsize
            ends = places["seq_len_kv" if what in ("k", "v") else "seq_len_q"]
            table = places["table" if call.pages.page else ""]
            sizes = (batch, groups, rows, nbytes, *call.pages)
            self._clean.append((first + at, places[what], ends, table, sizes))
            offsets.append(end)
            end += -(-batch * groups * rows * nbytes // _ALIGNMENT) * _ALIGNMENT
        self._before: list[tuple[Any, ...]] = []
        if hidden:
            target = places[""] - 1 if copied else first + cleaned.index("stats")
            nbytes = call.inputs["stats"].nbytes if copied else 0
            blank = _blanked(call, attention, places, "stats", nbytes, _HIDDEN)
            source = places["stats"] if copied else places[""]
            self._before.append((target, source, *blank))
            if copied:
                offsets.append(end)
                end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self._after: list[tuple[Any, ...]] = []
        for name, value in _BLANKED.items() if call.blind else ():
            if name in call.outputs:
                blank = _blanked(call, attention, places, name, 0, value)
                self._after.append((places[name], places[""], *blank))
        self._derived = encode_derived(derived)
        self._places = picker(order)
        self.offsets: Final = tuple(offsets)
        self.nbytes: Final = end
        appending = call.appending
        self._append: tuple[int, ...] = ()
        self._sizes: tuple[Any, ...] = ()
        self._kind: type[Attend] = Attend
        if appending is not None:
            uploaded = appending.lengths is None
            lengths = "seq_len_kv" if uploaded else "cache_seqlens"
            buffers = ("new_k", "new_v", "k", "v", lengths, "table")
            self._append = tuple(places[name] for name in buffers)
            self._sizes = appending.sizes()
            self._kind = Grow if uploaded else Attend

    def message(self, run: RunGraph | TuneGraph, addresses: list[Any]) -> Attend:
        """Return the message that makes the graph's inputs, and then runs it."""
        append = None
        if self._append:
            append = Append(*[addresses[at] for at in self._append], *self._sizes)
        uploads: tuple[SequenceUpload, ...] = ()
        if self._uploads:
            uploads = tuple([SequenceUpload(addresses[at], data) for at, data in self._uploads])
        clean: tuple[Clean, ...] = ()
        if self._clean:
            clean = tuple(
                [Clean(*[addresses[at] for at in where], *sizes) for *where, sizes in self._clean]
            )
        kind = Trial if type(run) is TuneGraph else self._kind
        places = tuple(self._places(addresses))
        if not self._after:
            return kind(uploads, append, self._derived, places, run, clean)
        before, after = (
            tuple([Blank(*[addresses[at] for at in each[:6]], *each[6:]) for each in blanks])
            for blanks in (self._before, self._after)
        )
        return kind(uploads, append, self._derived, places, run, clean, before, after)


def _blanked(
    call: AttentionCall,
    attention: AttentionGraph,
    places: dict[str, int],
    name: str,
    nbytes: int,
    value: int,
) -> tuple[Any, ...]:
    """Return the fields of ``Blank`` except target and source, with places for addresses."""
    spec, tensor = call.spec, attention.graph.tensors[attention.ids[name]]
    nowhere = places[""]
    lengths = [places.get(each, nowhere) for each in ("seq_len_q", "seq_len_kv")]
    offsets = places.get(f"offsets_{'q' if name == 'dQ' else name}", nowhere)
    sinks = places["sink"] if spec.sink and name == "stats" and not spec.backward else nowhere
    batch, heads, rows, width = tensor.shape
    band = [-1 if side is None else side for side in (spec.left, spec.right)]
    sizes = (batch, heads, rows, spec.keys, *tensor.strides[:3], width)
    itemsize = DTYPES[tensor.dtype].itemsize
    return (*lengths, offsets, sinks, *sizes, itemsize, *band, spec.top_left, nbytes, value)


@final
@dataclass(slots=True)
class AttentionCall:
    """A checked call.

    Attributes:
        spec: the graph that it needs.
        inputs: buffers that the graph reads, by the names of its tensors.
        outputs: shapes of the buffers that it writes, by the same names.
        out_names: names in errors of outputs that are not called ``out``.
        derived: integers that are made first, by name.
        scalars: numbers, by name.
        appending: rows that are written to a cache first.
        padded: whether memory behind the ends of sequences may hold any values, even NaN.
        pages: sizes of the pages that are copied for the graph, if any.
    """

    spec: AttentionSpec
    inputs: dict[str, GpuRef]
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    out_names: dict[str, str] = field(default_factory=dict)
    derived: dict[str, DerivedInput] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    appending: Appending | None = None
    padded: bool = False
    pages: Pages = _NO_PAGES

    @property
    def blind(self) -> bool:
        """``True`` if a query may see no key. cuDNN leaves such queries to this package."""
        spec = self.spec
        keys = self.derived.get("seq_len_kv")
        if not spec.lengths or (keys is not None and not keys.multiplier):
            shift = 0 if spec.top_left else spec.keys - spec.queries
            before = spec.right is not None and shift + spec.right < 0
            return before or (
                spec.left is not None and spec.queries - 1 + shift - spec.left >= spec.keys
            )
        if spec.top_left and not (spec.left is None and spec.right is None):
            return True
        least = 0
        if keys is not None and keys.data:
            least = min(memoryview(keys.data).cast("i"))
        elif keys is not None and not spec.ragged_q:
            least = min(keys.addend, keys.ceiling)
        masked = spec.left is not None or spec.right is not None
        return least < (spec.queries if masked else 1)

    def cached(
        self, plans: DnnPlanCache, names: Sequence[str], called: Mapping[str, str]
    ) -> GraphCall:
        """Return the call without its buffers, which come in the order of ``names``.

        Args:
            plans: keeps the graph.
            names: names of the buffers in the graph.
            called: argument names of buffers that have other names in the graph.
        """
        spec = self.spec
        attention = plans.graph(("attention", spec), lambda: attention_graph(spec))
        ids = attention.ids
        numbers = {
            **attention.scalars,
            **{ids[name]: value for name, value in self.scalars.items()},
        }
        setup = None
        if self.derived or self.appending is not None or self.padded or self.blind:
            setup = SetupStage(self, attention, [*names, *self.outputs])
        updates: tuple[tuple[int, str], ...] = ()
        if self.appending is not None:
            updates = tuple((names.index(name), f"{name}_cache") for name in "kv")
        return GraphCall(
            attention.graph,
            [
                (ids[name] if name in self.inputs else -1, label)
                for name, label in ((name, called.get(name, name)) for name in names)
            ],
            [
                RunOutput(ids[name], shape, self.out_names.get(name, "out"))
                for name, shape in self.outputs.items()
            ],
            tuple(numbers[id_] for id_ in attention.graph.scalars),
            setup,
            updates,
            strided=frozenset(called.get(name, name) for name, _ in spec.strides),
        )


ARGUMENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "dO": "grad",
        "new_k": "k",
        "new_v": "v",
        "o": "out",
        "seq_len_kv": "seqlens_k",
        "seq_len_q": "seqlens_q",
        "stats": "lse",
        "table": "block_table",
    }
)
"""Argument names of buffers that have other names in graphs."""

CACHES: Final[Mapping[str, str]] = MappingProxyType({"k": "k_cache", "v": "v_cache"})
"""Argument names of caches, which are the keys and values of a graph."""


@final
class AttentionWork(NamedTuple):
    """The arguments of a call of attention, before they are checked.

    Attributes:
        name: name of the request.
        key: values on which ``make`` depends besides shapes and dtypes; None if it must be
            called each time.
        reads: the inputs by the names of the graph's tensors, or of their sources; None for
            absent ones.
        outs: buffers for results, as for ``DnnPart._request``.
        make: checks everything.
        tune: whether the first run tries all plans.
        called: argument names of inputs that have other names in ``reads``.
    """

    name: str
    key: Hashable
    reads: Mapping[str, GpuRef | None]
    outs: Sequence[GpuRef | None]
    make: Callable[[], AttentionCall]
    tune: bool = False
    called: Mapping[str, str] = ARGUMENTS


def require(
    ref: Any,
    memory: MemoryMap,
    name: str,
    dtypes: Any,
    *shapes: tuple[int, ...],
    strided: bool = False,
) -> None:
    """A usable ref of one of the dtypes and one of the shapes (or of any shape)."""
    require_readable(ref, memory, name, strided=strided)
    given = ref.dtype
    for dtype in dtypes:  # equality, which ``in`` asks for, takes longer
        if given is dtype:
            break
    else:
        names = " or ".join(dtype.name for dtype in dtypes)
        raise TypeError(f"{name} must be {names}, not {ref.dtype.name}")
    if shapes and ref.shape not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ValueError(f"{name} must have shape {expected}, not {ref.shape}")


def require_sequences(
    ref: Any,
    memory: MemoryMap,
    name: str,
    rank: int,
    layout: str,
    dtypes: Any = HALF,
    *,
    strided: bool = False,
) -> None:
    """Check that a ref of q, k or v is usable for this kind of attention.

    ``layout`` names the dimensions. With ``strided`` rows may have gaps between them.
    """
    if dtypes is HALF and getattr(ref, "dtype", None) in FP8:
        raise TypeError(
            f"{name} must be float16 or bfloat16, not {ref.dtype.name}, which "
            "flash_attention_fp8 takes"
        )
    require(ref, memory, name, dtypes, strided=strided and _has_whole_rows(ref))
    if len(ref.shape) != rank or 0 in ref.shape:
        raise ValueError(f"{name} must have shape ({layout}) without zeros, not {ref.shape}")


def _has_whole_rows(ref: Any) -> bool:
    """Return whether a view has gaps only between rows, and rows aligned as the vendor needs."""
    if not isinstance(ref, GpuRef) or not ref.shape:
        return False
    *steps, last = ref.strides
    return last == ref.dtype.itemsize and not any(step % _ROW_ALIGNMENT for step in steps)


def steps_of(ref: GpuRef, layout: str) -> tuple[int, ...]:
    """Elements from one to the next along batch, heads, rows and sizes."""
    batch, *between, size = (step // ref.dtype.itemsize for step in ref.strides)
    heads, rows = between if layout == "bhsd" else reversed(between)
    return batch, heads, rows, size


def require_like(ref: GpuRef, other: GpuRef, name: str, like: str) -> None:
    """Check that two refs have the same dtype."""
    if ref.dtype is not other.dtype:
        raise TypeError(
            f"{name} must have the dtype of {like}, {other.dtype.name}, not {ref.dtype.name}"
        )


def columns_of(block_table: GpuRef) -> int:
    """Return the number of pages that a sequence may have."""
    if len(block_table.shape) != 2 or 0 in block_table.shape:
        raise ValueError(f"block_table must have shape (batch, columns), not {block_table.shape}")
    return int(block_table.shape[1])


def gathered(call: AttentionCall) -> AttentionCall:
    """Copy keys and values out of their pages if several queries attend to them.

    cuDNN reads whole tiles of keys, even beyond the end of a sequence. It multiplies that memory
    by zeros, but infinities and NaN from earlier users of the page then become NaN. So it gets
    copies with zeros there. Single queries use another kernel, which reads only the keys.
    """
    spec = call.spec
    odd = spec.size % 8 or spec.value_size % 8  # these are padded, which pages cannot be
    if not spec.page or (spec.queries == 1 and not spec.ragged_q and not odd):
        return call
    keys = -(-spec.keys // ROWS) * ROWS
    call.padded = True
    call.pages = Pages(spec.page, spec.columns, spec.pages)
    call.inputs.pop("table", None)
    if spec.ragged_q:
        for name, size in (("offsets_k", spec.size), ("offsets_v", spec.value_size)):
            width = keys * spec.kv_heads * size
            call.derived[name] = DerivedInput("", spec.batch + 1, multiplier=width)
    dense = spec._replace(keys=keys, ragged_k=spec.ragged_q)
    call.spec = dense._replace(**_NO_PAGES._asdict())
    return call


def mask_of(
    spec: AttentionSpec, options: CheckedAttentionOptions, *, same: bool, bounded: bool
) -> AttentionSpec:
    """A spec with the mask that options ask for, as simple as it can be.

    ``same`` means that each sequence has as many queries as keys, ``bounded`` that the alignment is
    known without lengths.
    """
    left, right = options.left, options.right
    top_left = options.align == "top_left"
    if spec.queries == 1 and not top_left and not spec.paper:
        right = None  # the only query is the last one, which sees everything before it
    aligned = left is None and right is None and not spec.slopes and not spec.paper
    if aligned or same:
        top_left = True
    # The vendor aligns more queries than keys only where they have lengths.
    lengths = spec.lengths or (bounded and not top_left and spec.queries > spec.keys)
    return spec._replace(left=left, right=right, top_left=top_left, lengths=lengths)


def masked_by_scores(call: AttentionCall) -> None:
    """Let operations on scores apply a mask for which cuDNN has no option.

    It has no windows if there are more queries than keys. Graphs with slopes are masked by such
    operations, and slopes of 0 change no score.
    """
    spec = call.spec
    if spec.left is None or spec.queries <= spec.keys or spec.fp8 or spec.paper:
        return
    if not (spec.softcap or spec.slopes):
        call.derived["alibi_slopes"] = alike(spec.heads, 0)
        call.spec = spec._replace(slopes=(1, spec.heads, 1, 1))
    call.spec = call.spec._replace(lengths=False)


def scored(
    call: AttentionCall,
    options: CheckedAttentionOptions,
    memory: MemoryMap,
    *,
    batch: int,
    backward: bool,
) -> AttentionCall:
    """Add the options for scores: caps, slopes, biases, sinks, dropout."""
    spec, inputs = call.spec, call.inputs
    heads = spec.heads
    if options.softcap:
        call.scalars["softcap"] = options.softcap
    slopes = options.alibi_slopes
    shape: tuple[int, ...] = ()
    if slopes is not None and not isinstance(slopes, bool):
        require(slopes, memory, "alibi_slopes", (_FLOAT32,), (heads,), (batch, heads))
        inputs["alibi_slopes"] = slopes
        shape = (1 if len(slopes.shape) == 1 else batch, heads, 1, 1)
    bias: tuple[int, ...] = ()
    if options.bias is not None:
        require(options.bias, memory, "bias", (DTYPES[spec.dtype],))
        bias = options.bias.shape
        inputs["bias"] = options.bias
    if options.sink is not None:
        require(options.sink, memory, "sink", (_FLOAT32,), (heads,))
        inputs["sink"] = options.sink
    if options.dropout_p:
        for name in ("seed", "offset"):
            call.derived[name] = alike(1, getattr(options, name))
    call.spec = spec._replace(
        softcap=bool(options.softcap),
        slopes=shape,
        paper=slopes is True,
        bias=bias,
        sink=options.sink is not None,
        dropout=options.dropout_p,
        backward=backward,
        dbias=backward and bool(bias),
        deterministic=backward and options.deterministic,
    )
    return call


class AttentionPart(DnnPart[D]):
    """Base of the facades that call attention: the library, and the caches that it makes."""

    def _attend(
        self, work: AttentionWork, *, sent: Callable[[], None] | None = None
    ) -> Request[Any]:
        """Return the request for cuDNN; ``sent`` is as for ``_request``."""
        plans, names = self.plans, tuple(work.reads)

        def check() -> GraphCall:
            return gathered(work.make()).cached(plans, names, work.called)

        key = None if work.key is None else (work.name, work.key)
        given = tuple(work.reads.values())
        return self._request(work.name, key, given, work.outs, check, tune=work.tune, sent=sent)
