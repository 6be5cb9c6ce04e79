"""Collectives as plans: checks of what a caller gave, outputs, and what each rank does.

Everything is checked before anything is sent to any device.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeGuard, final, get_args

import msgspec

from .._dtypes import NAMES
from ..arrays import GpuRef
from ..libraries.nccl.wire.exchange import numbers_of
from ..libraries.nccl.wire.messages import CollectiveStep, Reduction
from ..memory import origin
from ..ops import (
    overlap,
    require_dtype,
    require_no_alias,
    require_readable,
    require_shape,
    require_writable,
)
from ..wire.options import count, real, whole
from ._interfaces import RankPart

if TYPE_CHECKING:
    import numpy as np

    from ..libraries.nccl.wire.messages import Kind
    from ..memory import Block, MemoryMap

REDUCTIONS: Final = get_args(Reduction)

_INTEGERS: Final = frozenset({"int8", "uint8", "int32", "uint32", "int64", "uint64"})
_FLOATS: Final = frozenset(
    {"float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"}
)
_COMPLEX: Final = frozenset({"complex64", "complex128"})
REDUCED: Final = _INTEGERS | _FLOATS | _COMPLEX
"""The dtypes that NCCL reduces; complex ones are only added up."""


class OutputPending(Exception):
    """An output finds no room at once."""

    def __init__(self, rank: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        super().__init__()
        self.wanted = rank, shape, dtype


class RankSite(Protocol):
    """A device, or a batch or a recording of one, as plans see it."""

    @property
    def name(self) -> str:
        """The device's name, for messages."""

    @property
    def memory(self) -> MemoryMap:
        """The memory of its buffers."""

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> GpuRef | None:
        """Return a new buffer, or None if it finds no room at once."""


@final
class CollectivePlan:
    """One or more collectives that go together.

    Args:
        cores: the devices, in the order of their ranks.
        at: the number of the first round.
        outputs: those that were made for a former try, which are used again.

    Attributes:
        at: the number of the round after the last.
        rounds: how many it has.
    """

    def __init__(
        self, cores: Sequence[RankSite], at: int, outputs: list[tuple[int, GpuRef]]
    ) -> None:
        self.cores: Final = cores
        self.size: Final = len(cores)
        self.at = at
        self.rounds = 0
        self.names: list[str] = []
        self._outputs = outputs
        self._given = 0
        self._steps: dict[int, list[CollectiveStep]] = {}
        self._reads: dict[int, list[Block]] = {}
        self._writes: dict[int, list[Block]] = {}
        self._used: dict[int, list[tuple[GpuRef, bool]]] = {}

    @property
    def name(self) -> str:
        """Name of the plan."""
        return self.names[0] if len(self.names) == 1 else "group"

    def require_placed(self) -> None:
        """Refuse buffers that have no memory yet, before anything is sent.

        Raises:
            RuntimeError: a batch or a recording has promised one.
        """
        for steps in self._steps.values():
            for step in steps:
                operator.index(step.source)
                operator.index(step.target)

    def begin_at(self, at: int) -> None:
        """Move the plan to another first round."""
        by = at - self.at + self.rounds
        self.at += by
        for steps in self._steps.values():
            steps[:] = [msgspec.structs.replace(step, at=step.at + by) for step in steps]

    @property
    def parts(self) -> list[RankPart]:
        """Each rank's part."""
        return [
            RankPart(rank, tuple(steps), tuple(self._reads[rank]), tuple(self._writes[rank]))
            for rank, steps in sorted(self._steps.items())
        ]

    # --- what collectives are made of ------------------------------------------------------

    def rank_of(self, ref: GpuRef, name: str) -> int:
        """The rank whose device a buffer is on."""
        if not isinstance(ref, GpuRef):
            raise TypeError(f"{name} must be a GpuRef, not {type(ref).__name__}")
        for rank, core in enumerate(self.cores):
            if ref.block.memory is core.memory:
                return rank
        raise ValueError(f"{name} is on {ref.device}, which is no device of this world")

    def require_there(self, ref: GpuRef, rank: int, name: str) -> None:
        """Refuse a buffer that is not on the device of its rank."""
        found = self.rank_of(ref, name)
        if found != rank:
            raise ValueError(
                f"{name} must be on the device of rank {rank}, "
                f"{self.cores[rank].name}, not on that of rank {found}, {ref.device}"
            )

    def inputs(self, refs: Sequence[GpuRef], name: str) -> list[GpuRef]:
        """One buffer for each rank, all of one shape and dtype."""
        found = self.each(refs, name)
        first = found[0]
        for rank, ref in enumerate(found):
            if self._is_ready(ref, rank) and ref.dtype is first.dtype and ref.shape == first.shape:
                continue
            self.require_there(ref, rank, f"{name}[{rank}]")
            require_readable(ref, self.cores[rank].memory, f"{name}[{rank}]")
            require_dtype(ref, found[0].dtype, f"{name}[{rank}]", f"{name}[0]")
            if ref.shape != found[0].shape:
                raise ValueError(
                    f"{name}[{rank}] must have the shape of {name}[0], "
                    f"{found[0].shape}, not {ref.shape}; all ranks give the same"
                )
        return found

    def _is_ready(self, ref: object, rank: int) -> TypeGuard[GpuRef]:
        """Return True if a contiguous buffer of this epoch is on its rank's device.

        This is so in most calls, and spares the names in messages. Others are looked at closely.
        """
        return (
            type(ref) is GpuRef
            and ref.block.epoch is self.cores[rank].memory.epoch
            and ref.own_strides is None
        )

    def each(self, refs: Sequence[GpuRef], name: str) -> list[GpuRef]:
        """Return a list of buffers that has one for each rank."""
        given: object = refs
        if not isinstance(given, Sequence):
            raise TypeError(f"{name} must be a list of GpuRefs, one for each rank")
        if len(refs) != self.size:
            raise ValueError(
                f"{name} must have {self.size} buffers, one for each rank, not {len(refs)}"
            )
        return list(refs)

    def outputs(
        self,
        shapes: Sequence[tuple[int, ...]],
        dtype: np.dtype[Any],
        out: Sequence[GpuRef] | None,
    ) -> list[GpuRef]:
        """A buffer on each rank: the caller's, or new ones."""
        given = [None] * self.size if out is None else self.each(out, "out")
        found = []
        for rank, (shape, ref) in enumerate(zip(shapes, given, strict=True)):
            if (
                self._is_ready(ref, rank)
                and not ref.block.sealed
                and ref.shape == shape
                and ref.dtype is dtype
            ):
                found.append(ref)
            else:
                found.append(self.output(rank, shape, dtype, ref, f"out[{rank}]"))
        return found

    def output(
        self,
        rank: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        out: GpuRef | None,
        name: str = "out",
    ) -> GpuRef:
        """A buffer on one rank: the caller's, or a new one.

        Raises:
            Pending: a new buffer finds no room at once.
        """
        core = self.cores[rank]
        if out is not None:
            self.require_there(out, rank, name)
            require_writable(out, core.memory, name)
            if out.dtype is not dtype:
                has, needs = out.dtype.name, dtype.name
                raise TypeError(f"{name} must have dtype {needs}, not {has}")
            require_shape(out, shape, name)
            return out
        if self._given < len(self._outputs):
            where, made = self._outputs[self._given]
            good = where == rank and made.shape == shape and made.dtype is dtype
            if good and made.block.epoch is core.memory.epoch:
                self._given += 1
                return made
            del self._outputs[self._given :]
        made_now = core.try_empty(shape, dtype, math.prod(shape) * dtype.itemsize)
        if made_now is None:
            raise OutputPending(rank, shape, dtype)
        self._outputs.append((rank, made_now))
        self._given += 1
        return made_now

    def add(
        self,
        kind: Kind,
        dtype: np.dtype[Any],
        longest: int,
        ends: Mapping[int, tuple[GpuRef | None, GpuRef | None]],
        *,
        counts: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
        **options: Any,
    ) -> None:
        """Add a collective.

        ``counts`` is how much each rank gives to each and gets from each, where that differs.
        """
        self.names.append(kind)
        name = NAMES[dtype]
        for rank, (source, target) in ends.items():
            self._require_apart(rank, source, target)
            sends, receives = ((), ()) if counts is None else counts[rank]
            step = CollectiveStep(
                kind,
                name,
                longest,
                0 if source is None else source.block.address,
                0 if target is None else target.block.address,
                sends=sends,
                receives=receives,
                longest=longest,
                at=self.at,
                **options,
            )
            self._steps.setdefault(rank, []).append(step)
            reads = self._reads.setdefault(rank, [])
            writes = self._writes.setdefault(rank, [])
            if source is not None:
                reads.append(source.block)
            if target is not None:
                writes.append(target.block)
        rounds = numbers_of(kind, longest, self.size, dtype.itemsize)
        self.at += rounds
        self.rounds += rounds

    def _require_apart(self, rank: int, source: GpuRef | None, target: GpuRef | None) -> None:
        """Nothing goes together that has an order: in a group there is none."""
        used = self._used.setdefault(rank, [])
        for ref, written in used:
            for other, writes in (source, False), (target, True):
                if other is not None and (written or writes) and overlap(ref, other):
                    raise ValueError(
                        "two collectives of a group share memory that one of them writes; call "
                        "them one after the other"
                    )
        if target is not None:
            used.append((target, True))
        if source is not None and source is not target:
            used.append((source, False))


# --- the collectives -----------------------------------------------------------------------

Refs = Sequence[GpuRef]


def all_reduce(
    plan: CollectivePlan, x: Refs, op: str, scale: float | None, out: Refs | None
) -> list[GpuRef]:
    """See ``Collectives.all_reduce``."""
    refs = plan.inputs(x, "x")
    options = _reduction(refs[0].dtype, op, scale)
    results = plan.outputs([ref.shape for ref in refs], refs[0].dtype, out)
    _require_own("all_reduce", results, refs, in_place=True)
    ends = dict(enumerate(zip(refs, results, strict=True)))
    plan.add("all_reduce", refs[0].dtype, refs[0].size, ends, **options)
    return results


def reduce(
    plan: CollectivePlan, x: Refs, root: int, op: str, scale: float | None, out: GpuRef | None
) -> GpuRef:
    """See ``Collectives.reduce``."""
    refs = plan.inputs(x, "x")
    options = _reduction(refs[0].dtype, op, scale)
    root = require_rank(root, plan.size, "root")
    result = plan.output(root, refs[0].shape, refs[0].dtype, out)
    require_no_alias("reduce", [("out", result)], [("x", refs[root])], in_place={("out", "x")})
    ends = {rank: (ref, result if rank == root else None) for rank, ref in enumerate(refs)}
    plan.add("reduce", refs[0].dtype, refs[0].size, ends, root=root, **options)
    return result


def broadcast(plan: CollectivePlan, x: GpuRef, out: Refs | None) -> list[GpuRef]:
    """See ``Collectives.broadcast``."""
    root = plan.rank_of(x, "x")
    require_readable(x, plan.cores[root].memory, "x")
    if out is None:
        results = [
            x if rank == root else plan.output(rank, x.shape, x.dtype, None)
            for rank in range(plan.size)
        ]
    else:
        given = plan.each(out, "out")
        same = given[root] is x
        results = []
        for rank, ref in enumerate(given):
            kept = same and rank == root
            results.append(x if kept else plan.output(rank, x.shape, x.dtype, ref, f"out[{rank}]"))
        if not same:
            require_no_alias("broadcast", [("out", results[root])], [("x", x)])
    ends = {
        rank: (x if rank == root else None, None if ref is x else ref)
        for rank, ref in enumerate(results)
    }
    plan.add("broadcast", x.dtype, x.size, ends, root=root)
    return results


def all_gather(plan: CollectivePlan, x: Refs, out: Refs | None) -> list[GpuRef]:
    """See ``Collectives.all_gather``."""
    refs = plan.inputs(x, "x")
    shape = (plan.size, *refs[0].shape)
    results = plan.outputs([shape] * plan.size, refs[0].dtype, out)
    for rank, (ref, result) in enumerate(zip(refs, results, strict=True)):
        if not _is_row(ref, result, rank):
            _require_own("all_gather", [result], [ref])
    ends = dict(enumerate(zip(refs, results, strict=True)))
    plan.add("all_gather", refs[0].dtype, refs[0].size, ends)
    return results


def gather(plan: CollectivePlan, x: Refs, root: int, out: GpuRef | None) -> GpuRef:
    """See ``Collectives.gather``."""
    refs = plan.inputs(x, "x")
    root = require_rank(root, plan.size, "root")
    result = plan.output(root, (plan.size, *refs[0].shape), refs[0].dtype, out)
    require_no_alias("gather", [("out", result)], [("x", refs[root])])
    ends = {rank: (ref, result if rank == root else None) for rank, ref in enumerate(refs)}
    plan.add("gather", refs[0].dtype, refs[0].size, ends, root=root)
    return result


def scatter(plan: CollectivePlan, x: GpuRef, out: Refs | None) -> list[GpuRef]:
    """See ``Collectives.scatter``."""
    root = plan.rank_of(x, "x")
    require_readable(x, plan.cores[root].memory, "x")
    shape = _row(plan, x, "x")
    results = plan.outputs([shape] * plan.size, x.dtype, out)
    require_no_alias("scatter", [("out", results[root])], [("x", x)])
    ends = {rank: (x if rank == root else None, ref) for rank, ref in enumerate(results)}
    plan.add("scatter", x.dtype, math.prod(shape), ends, root=root)
    return results


def reduce_scatter(
    plan: CollectivePlan, x: Refs, op: str, scale: float | None, out: Refs | None
) -> list[GpuRef]:
    """See ``Collectives.reduce_scatter``."""
    refs = plan.inputs(x, "x")
    options = _reduction(refs[0].dtype, op, scale)
    shape = _row(plan, refs[0], "x[0]")
    results = plan.outputs([shape] * plan.size, refs[0].dtype, out)
    for rank, (ref, result) in enumerate(zip(refs, results, strict=True)):
        if not _is_row(result, ref, rank):
            _require_own("reduce_scatter", [result], [ref])
    ends = dict(enumerate(zip(refs, results, strict=True)))
    plan.add("reduce_scatter", refs[0].dtype, math.prod(shape), ends, **options)
    return results


def all_to_all(plan: CollectivePlan, x: Refs, out: Refs | None) -> list[GpuRef]:
    """See ``Collectives.all_to_all``."""
    refs = plan.inputs(x, "x")
    shape = _row(plan, refs[0], "x[0]")
    results = plan.outputs([refs[0].shape] * plan.size, refs[0].dtype, out)
    _require_own("all_to_all", results, refs)
    ends = dict(enumerate(zip(refs, results, strict=True)))
    plan.add("all_to_all", refs[0].dtype, math.prod(shape), ends)
    return results


def all_to_all_v(
    plan: CollectivePlan, x: Refs, counts: Sequence[Sequence[int]], out: Refs | None
) -> list[GpuRef]:
    """See ``Collectives.all_to_all_v``."""
    refs, size = plan.each(x, "x"), plan.size
    table = _table(counts)
    if [len(row) for row in table] != [size] * size or min(map(min, table)) < 0:
        raise ValueError(f"counts must be {size} rows of {size} numbers, none negative")
    rest = refs[0].shape[1:]
    for rank, ref in enumerate(refs):
        plan.require_there(ref, rank, f"x[{rank}]")
        require_readable(ref, plan.cores[rank].memory, f"x[{rank}]")
        require_dtype(ref, refs[0].dtype, f"x[{rank}]", "x[0]")
        if not ref.shape or ref.shape[1:] != rest or ref.shape[0] != sum(table[rank]):
            raise ValueError(
                f"x[{rank}] must have shape {(sum(table[rank]), *rest)}, as counts "
                f"say, not {ref.shape}"
            )
    row = math.prod(rest)
    received = [[table[giver][taker] for giver in range(size)] for taker in range(size)]
    shapes = [(sum(column), *rest) for column in received]
    results = plan.outputs(shapes, refs[0].dtype, out)
    _require_own("all_to_all_v", results, refs)
    elements = {
        rank: (
            tuple(count * row for count in table[rank]),
            tuple(count * row for count in received[rank]),
        )
        for rank in range(size)
    }
    longest = max(map(max, table)) * row
    ends = dict(enumerate(zip(refs, results, strict=True)))
    plan.add("all_to_all_v", refs[0].dtype, longest, ends, counts=elements)
    return results


def send(plan: CollectivePlan, x: GpuRef, to: int, out: GpuRef | None) -> GpuRef:
    """Both ends of ``Collectives.send`` and ``recv``."""
    source = plan.rank_of(x, "x")
    to = require_rank(to, plan.size, "to")
    require_readable(x, plan.cores[source].memory, "x")
    result = plan.output(to, x.shape, x.dtype, out)
    require_no_alias("send", [("out", result)], [("x", x)])
    ends: dict[int, tuple[GpuRef | None, GpuRef | None]] = {source: (x, None), to: (None, result)}
    if source == to:
        ends = {to: (x, result)}
    plan.add("send", x.dtype, x.size, ends, root=source, to=to)
    return result


# --- what they have in common --------------------------------------------------------------


def _require_own(op: str, results: Refs, refs: Refs, *, in_place: bool = False) -> None:
    """Refuse outputs that share memory with their ranks' inputs, unless they are all of them."""
    for result, ref in zip(results, refs, strict=True):
        if origin(result.block)[0] is not origin(ref.block)[0] or (in_place and result is ref):
            continue
        same = {("out", "x")} if in_place else ()
        require_no_alias(op, [("out", result)], [("x", ref)], in_place=same)


def _reduction(
    dtype: np.dtype[Any], op: str, scale: float | None
) -> dict[Literal["reduction", "scale"], Any]:
    """The options of a step that reduces."""
    if op not in REDUCTIONS:
        raise ValueError(f"op must be one of {', '.join(REDUCTIONS)}, not {op!r}")
    name = NAMES[dtype]
    if name not in REDUCED:
        raise TypeError(f"reductions take {', '.join(sorted(REDUCED))}, not {name}")
    if name in _COMPLEX and op not in ("sum", "avg"):
        raise TypeError(f"op must be sum or avg for complex numbers, not {op}")
    if scale is not None:
        if op != "sum":
            raise ValueError(f"scale goes with op='sum' only, not {op!r}")
        number = real(scale, "scale", finite=False)
        if name in _INTEGERS:
            raise TypeError(f"scale goes with floating dtypes, not {name}")
        scale = number
    return {"reduction": op, "scale": scale}


def _table(counts: Sequence[Sequence[int]]) -> list[list[int]]:
    try:
        table = [list(row) for row in counts]
    except TypeError:
        raise TypeError(f"counts must be rows of whole numbers, not {counts!r}") from None
    return [
        [count(each, f"counts[{giver}][{taker}]", 0) for taker, each in enumerate(row)]
        for giver, row in enumerate(table)
    ]


def require_rank(rank: int, size: int, name: str) -> int:
    """A rank that a caller has named."""
    return whole(rank, name, 0, size - 1)


def _row(plan: CollectivePlan, ref: GpuRef, name: str) -> tuple[int, ...]:
    """The shape of what each rank gets of a buffer with a row for each."""
    if not ref.shape or ref.shape[0] != plan.size:
        raise ValueError(
            f"{name} must have a first dimension of {plan.size}, a row for each rank, "
            f"not shape {ref.shape}"
        )
    return ref.shape[1:]


def _is_row(ref: GpuRef, whole: GpuRef, rank: int) -> bool:
    """Return True if a buffer is its rank's row of another, so the op is in place."""
    (block, start), (base, begin) = origin(ref.block), origin(whole.block)
    return block is base and start == begin + rank * ref.nbytes
