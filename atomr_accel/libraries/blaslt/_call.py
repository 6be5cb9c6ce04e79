"""One call of ``matmul``: its arguments, their checks, and the message they become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from ..._dtypes import DTYPES, NAMES
from .._arguments import alignment, require_apart, usable, writable
from .._perform import Prepared
from ..blas._checks import scalar
from .wire._layout import Layout
from .wire._messages import Matmul, Scalar
from .wire._plan import FP8, Given, Plan, Question, make_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...memory import Block, GpuRef, MemoryMap
    from .._perform import Room
    from ..wire._recent import Recent

_UINT8: Final = DTYPES["uint8"]
_FLOAT32: Final = DTYPES["float32"]
_IN_PLACE: Final = (("out", "c"),)


class Checked(NamedTuple):
    """A call that was checked.

    Attributes:
        plan: how it is carried out.
        alpha, beta: the scalars as messages carry them.
        added: what is added: c, or out.
        adds: whether anything is.
    """

    plan: Plan
    alpha: Scalar
    beta: Scalar
    added: GpuRef | None
    adds: bool


@final
@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of ``BlasLt.matmul``, by the same names."""

    memory: MemoryMap
    plans: Recent[Question, Plan]
    a: GpuRef
    b: GpuRef
    out: GpuRef | None
    c: GpuRef | None
    alpha: Any
    beta: Any
    op_a: int
    op_b: int
    dtype: Any
    compute_type: str | None
    epilogue: str
    bias: GpuRef | None
    aux: GpuRef | None
    scale_a: GpuRef | None
    scale_b: GpuRef | None
    scale_out: GpuRef | None
    amax: bool
    fast: bool
    layout_a: Layout | None
    layout_b: Layout | None
    layout_out: Layout | None

    def check(self) -> Checked:
        """Check everything that can be checked before outputs are made."""
        plan = self._plan()
        scale_dtype = DTYPES[plan.spec.scale_type]
        alpha = scalar(self.alpha, scale_dtype, "alpha")
        beta = scalar(self.beta, scale_dtype, "beta")
        if scale_dtype.kind == "i" and not {alpha, beta} <= {0.0, 1.0}:
            raise ValueError(
                f"for int8 alpha and beta are 0 or 1, not {self.alpha} and {self.beta}"
            )
        adds = beta not in (0.0, (0.0, 0.0))
        added = self.c
        if adds and added is None:
            added = self.out
            if added is None or plan.spec.d.dtype in FP8:
                why = "no out either" if added is None else "an fp8 result cannot be added to"
                raise ValueError(f"beta={self.beta} scales c, but there is no c, and {why}")
        written = []
        if self.out is not None:
            writable(self.out, self.memory, "out")
            written.append(("out", self.out))
        if plan.epilogue.makes_aux and self.aux is not None:
            writable(self.aux, self.memory, "aux")
            written.append(("aux", self.aux))
        require_apart("matmul", written, self._reads(plan), in_place=_IN_PLACE)
        return Checked(plan, alpha, beta, added, adds)

    def prepare(
        self,
        room: Room,
        algorithm: bytes,
        workspace_bytes: int,
        take: Callable[[Room, int], Block],
        *,
        scratch: bool = False,
        checked: Checked | None = None,
    ) -> Prepared:
        """Make outputs, and say what to send.

        Args:
            room: where to make them.
            algorithm: what the lane recommended; empty to let it choose.
            workspace_bytes: the memory that the algorithm gets.
            take: makes that memory.
            scratch: write to buffers that nobody sees, whatever the arguments.
            checked: what ``check`` said, if nothing was awaited since; else it checks again.
        """
        plan, alpha, beta, added, adds = checked or self.check()
        epilogue, out, aux = plan.epilogue, self.out, self.aux
        result = out
        if result is None or scratch:
            result = room.empty(plan.shape if out is None else out.shape, plan.dtype)
        results = [result]
        if epilogue.makes_aux:
            if aux is None or scratch:
                aux = room.empty(plan.aux_shape, plan.aux_dtype)
            results.append(aux)
        side = self.bias
        if epilogue.bias_gradient:
            side = room.empty(plan.gradient_shape, DTYPES[plan.bias_dtype])
            results.append(side)
        largest = None
        if self.amax:
            largest = room.empty((), _FLOAT32)
            results.append(largest)
        temporary = [
            room.empty((size,), _UINT8)._block if size else None
            for size in (plan.zeros, *plan.packed)
        ]
        zeros, packed_a, packed_b, packed_scales = (
            block.address if block else 0 for block in temporary
        )
        # After everything that may have to wait, and so be asked for again.
        workspace = take(room, workspace_bytes) if workspace_bytes else None
        temporary.append(workspace)
        message = Matmul(
            plan.encoded,
            algorithm,
            zeros or self.a._block.address + plan.offset_a,
            zeros or self.b._block.address + plan.offset_b,
            0 if added is None else added._block.address + (plan.offset_d if added is out else 0),
            result._block.address + plan.offset_d,
            _address(side),
            _address(aux),
            _address(self.scale_a),
            _address(self.scale_b),
            _address(self.scale_out),
            _address(largest),
            workspace.address if workspace else 0,
            workspace_bytes,
            packed_a,
            packed_b,
            packed_scales,
            plan.zeros,
            alpha,
            beta,
        )
        reads = [ref._block for _, ref in self._reads(plan)]
        if adds and added is not None:
            reads.append(added._block)
        writes = [*(ref._block for ref in results), *(block for block in temporary if block)]
        return Prepared(message, reads, writes, results[0] if len(results) == 1 else tuple(results))

    def _plan(self) -> Plan:
        for name, ref in (*self._inputs(), ("out", self.out), ("aux", self.aux)):
            if ref is not None or name in ("a", "b"):
                usable(ref, self.memory, name)  # type: ignore[arg-type]
        layouts = (("a", self.layout_a), ("b", self.layout_b), ("out", self.layout_out))
        for name, layout in layouts:
            if layout is not None and not isinstance(layout, Layout):
                raise TypeError(f"layout_{name} must be a Layout, not {type(layout).__name__}")
        question = Question(
            _given(self.a),
            _given(self.b),
            _given(self.c),
            _given(self.out),
            _given(self.bias),
            _given(self.aux),
            _given(self.scale_a),
            _given(self.scale_b),
            _given(self.scale_out),
            self.layout_a,
            self.layout_b,
            self.layout_out,
            self.op_a,
            self.op_b,
            self.dtype,
            self.compute_type,
            self.epilogue,
            self.fast,
            self.amax,
        )
        plan = self.plans.get(question)
        if plan is None:
            plan = self.plans.keep(question, make_plan(question))
        return plan

    def _inputs(self) -> tuple[tuple[str, GpuRef | None], ...]:
        return (
            ("a", self.a),
            ("b", self.b),
            ("c", self.c),
            ("bias", self.bias),
            ("scale_a", self.scale_a),
            ("scale_b", self.scale_b),
            ("scale_out", self.scale_out),
        )

    def _reads(self, plan: Plan) -> list[tuple[str, GpuRef]]:
        reads = [(name, ref) for name, ref in self._inputs() if ref is not None]
        if plan.epilogue.takes_aux and self.aux is not None:
            reads.append(("aux", self.aux))
        return reads


def _given(ref: GpuRef | None) -> Any:
    return None if ref is None else Given(ref.shape, NAMES[ref.dtype], alignment(ref))


def _address(ref: GpuRef | None) -> Any:
    return 0 if ref is None else ref._block.address
