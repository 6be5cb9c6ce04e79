"""One call of attention: its buffers, their checks, and the messages they become."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from ..._dtypes import DTYPES
from .._arguments import usable, writable
from ._attention_graph import Attention, Question, attention_graph
from ._run import Bound, Output
from ._sequence_messages import Append, Attend, Derived, Grow, Upload

if TYPE_CHECKING:
    from ...memory import Block, GpuRef, MemoryMap
    from .._perform import Prepared
    from ._attention_options import Options
    from ._run import PlanCache

HALF: Final = tuple(DTYPES[name] for name in ("float16", "bfloat16"))
FP8: Final = tuple(DTYPES[name] for name in ("float8_e4m3fn", "float8_e5m2"))
_INT32: Final = DTYPES["int32"]
_FLOAT32: Final = DTYPES["float32"]


class Making(NamedTuple):
    """Integers that the lane makes for a graph.

    Attributes:
        source: int32 to make them from; None for zeros.
        length: how many.
        multiplier, addend: numbers.
        differences: whether they are made from differences of neighbours.
        data: the integers themselves, where the program has them.
    """

    source: GpuRef | None
    length: int
    multiplier: int = 1
    addend: int = 0
    differences: bool = False
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Appending:
    """New keys and values for a cache, before anything is read.

    Attributes:
        k, v: what is new, (batch, new, heads, size).
        k_cache, v_cache: the caches, (pages, page, heads, size).
        lengths: of the sequences before, int32 (batch,); None where the call uploads the
            lengths afterwards.
        table: pages of the sequences, int32 (batch, columns); None where the call uploads
            it, or where page i is sequence i.
        columns: of the table; 1 where there is none.
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
        """What the lane executes.

        Args:
            lengths: where lengths are that the call uploads.
            table: where its table is; 0 for none.
        """
        pages, page = self.k_cache.shape[:2]
        batch, new = self.k.shape[:2]
        before = self.lengths
        return Append(
            k=self.k._block.address,
            v=self.v._block.address,
            k_cache=self.k_cache._block.address,
            v_cache=self.v_cache._block.address,
            lengths=lengths if before is None else before._block.address,
            table=table if self.table is None else self.table._block.address,
            batch=batch,
            new=new,
            pages=pages,
            page=page,
            columns=self.columns,
            k_bytes=self.k_cache.nbytes // (pages * page),
            v_bytes=self.v_cache.nbytes // (pages * page),
            shift=-new if before is None else 0,
            copies=self.copies,
            layers=1 if self.k_layers is None else self.k_layers.shape[0],
            k_layers=0 if self.k_layers is None else self.k_layers._block.address,
            v_layers=0 if self.v_layers is None else self.v_layers._block.address,
        )

    def blocks(self, memory: MemoryMap) -> tuple[list[Block], list[Block]]:
        """What is read, and what is written."""
        reads = {
            "k": self.k,
            "v": self.v,
            "cache_seqlens": self.lengths,
            "block_table": self.table,
        }
        writes = {"k_cache": self.k_cache, "v_cache": self.v_cache}
        return (
            [usable(ref, memory, name) for name, ref in reads.items() if ref is not None],
            [writable(ref, memory, name) for name, ref in writes.items()],
        )


@final
@dataclass(slots=True)
class Call:
    """A call that was checked.

    Attributes:
        question: which graph it needs.
        inputs: buffers that it reads, by the names of the graph's tensors.
        outputs: buffers that it writes, likewise.
        results: the names of what the caller gets.
        making: integers that are made before, by name.
        scalars: numbers, by name.
        appending: what is written to a cache before.
    """

    question: Question
    inputs: dict[str, GpuRef]
    outputs: dict[str, Output]
    results: tuple[str, ...]
    making: dict[str, Making] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    appending: Appending | None = None

    def bound(self, plans: PlanCache) -> Bound:
        """The graph with its buffers."""
        graph = self._graph(plans)
        ids = graph.ids
        numbers = {**graph.scalars, **{ids[name]: value for name, value in self.scalars.items()}}
        made = {name: Output((each.length,)) for name, each in self.making.items()}
        return Bound(
            graph.program,
            [(ids[name], ref, name) for name, ref in self.inputs.items()],
            {ids[name]: output for name, output in {**made, **self.outputs}.items()},
            tuple(numbers[id_] for id_ in graph.program.scalars),
            tuple(ids[name] for name in self.results),
        )

    def wrapped(self, plans: PlanCache, memory: MemoryMap, prepared: Prepared) -> Prepared:
        """The message that makes what the graph needs, and then runs it."""
        graph = self._graph(plans)
        run: Any = prepared.message
        addresses = getattr(run, "run", run).addresses
        places = dict(zip(graph.program.buffers, addresses, strict=True))
        reads, writes = [*prepared.reads], [*prepared.writes]
        uploads, derived = [], []
        for name, making in self.making.items():
            id_ = graph.ids[name]
            if making.data:
                uploads.append(Upload(places[id_], making.data))
                continue
            source: Any = 0
            if making.source is not None:
                reads.append(usable(making.source, memory, name))
                source = making.source._block.address
            wide = graph.program.graph.tensors[id_].dtype == "int64"
            numbers = (making.length, making.multiplier, making.addend, making.differences)
            derived.append(Derived(places[id_], source, *numbers, wide))
        append = None
        if self.appending is not None:
            for blocks, more in zip((reads, writes), self.appending.blocks(memory), strict=True):
                blocks.extend(more)
            uploaded = "table" in self.making
            append = self.appending.message(
                places[graph.ids["seq_len_kv"]], places[graph.ids["table"]] if uploaded else 0
            )
        noted = self.appending is not None and self.appending.lengths is None
        kind = Grow if noted else Attend
        message = kind(tuple(uploads), append, tuple(derived), run)
        return prepared._replace(message=message, reads=reads, writes=writes)

    def _graph(self, plans: PlanCache) -> Attention:
        question = self.question
        return plans.program(("attention", question), lambda: attention_graph(question))


def require(ref: Any, memory: MemoryMap, name: str, dtypes: Any, *shapes: tuple[int, ...]) -> None:
    """A usable ref of one of the dtypes and one of the shapes (or of any shape)."""
    usable(ref, memory, name)
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


def require_sequences(ref: Any, memory: MemoryMap, name: str, rank: int, layout: str) -> None:
    """A usable ref of q, k or v: of a dtype for attention, with so many dimensions."""
    require(ref, memory, name, (*HALF, *FP8))
    if len(ref.shape) != rank or 0 in ref.shape:
        raise ValueError(f"{name} must have shape ({layout}) without zeros, not {ref.shape}")


def require_like(ref: GpuRef, other: GpuRef, name: str, like: str) -> None:
    """The same dtype."""
    if ref.dtype is not other.dtype:
        raise TypeError(
            f"{name} has dtype {ref.dtype.name}, but {like} has {other.dtype.name}; they must "
            "be the same"
        )


def mask_of(question: Question, options: Options, *, same: bool, bounded: bool) -> Question:
    """A question with the mask that options ask for, as simple as it can be.

    Args:
        question: sizes.
        options: what the caller wants.
        same: whether each sequence has as many queries as keys.
        bounded: whether the alignment is known without lengths.
    """
    left, right = options.left, options.right
    top_left = options.align == "top_left"
    if question.queries == 1 and not top_left and right is not None:
        right = None  # the only query is the last one, which sees everything before it
    aligned = left is None and right is None and not question.slopes
    if aligned or same:
        top_left = True
    # The vendor aligns more queries than keys only where they have lengths.
    lengths = question.lengths or (bounded and not top_left and question.queries > question.keys)
    return question._replace(left=left, right=right, top_left=top_left, lengths=lengths)


def scored(call: Call, options: Options, memory: MemoryMap, *, batch: int, backward: bool) -> Call:
    """Add what options say of scores: caps, slopes, biases, sinks, dropout."""
    question, inputs = call.question, call.inputs
    heads = question.heads
    if options.softcap:
        call.scalars["softcap"] = float(options.softcap)
    slopes = options.alibi_slopes
    shape: tuple[int, ...] = ()
    if slopes is not None and not isinstance(slopes, bool):
        require(slopes, memory, "alibi_slopes", (_FLOAT32,), (heads,), (batch, heads))
        inputs["alibi_slopes"] = slopes
        shape = (1 if len(slopes.shape) == 1 else batch, heads, 1, 1)
    bias: tuple[int, ...] = ()
    if options.bias is not None:
        require(options.bias, memory, "bias", (DTYPES[question.dtype],))
        bias = options.bias.shape
        inputs["bias"] = options.bias
    if options.sink is not None:
        require(options.sink, memory, "sink", (_FLOAT32,), (heads,))
        inputs["sink"] = options.sink
    if options.dropout_p:
        for name in ("seed", "offset"):
            call.making[name] = Making(None, 1, addend=int(getattr(options, name)))
    call.question = question._replace(
        softcap=bool(options.softcap),
        slopes=shape,
        paper=slopes is True,
        bias=bias,
        sink=options.sink is not None,
        dropout=float(options.dropout_p),
        backward=backward,
        dbias=backward and bool(bias),
        deterministic=backward and bool(options.deterministic),
    )
    return call
