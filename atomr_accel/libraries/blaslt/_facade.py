"""``device.blaslt``: matrix products with epilogues, scales and narrow types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from ..._dtypes import DTYPES
from .._arguments import usable, writable
from .._library import LaneSpec
from .._perform import Prepared, perform
from ..blas._checks import Number, Trans, operation, scalar
from ._messages import Heuristic, Matmul, Tune
from ._plan import FP8, Given, Plan, Question, make_plan

if TYPE_CHECKING:
    from ...memory import Block, GpuRef
    from .._library import Submitter
    from .._perform import Room
    from ._layout import Layout

LANE: Final = LaneSpec(
    "blaslt",
    {
        "cpu": "atomr_accel.libraries.blaslt._cpu:CpuBlasLt",
        "cuda": "atomr_accel.libraries.blaslt._cuda:CudaBlasLt",
    },
    ways=4,
)

WORKSPACE: Final = 32 << 20
"""The most memory that an algorithm may want: what the vendor recommends for Hopper."""

_UNKNOWN: Final = 4 << 20
"""What an algorithm gets that the lane has to choose by itself, in a batch."""

_CANDIDATES: Final = 8
_MOST_PLANS: Final = 4096
_UINT8: Final = DTYPES["uint8"]
_FLOAT32: Final = DTYPES["float32"]

_Choice = tuple[bytes, int]


@final
class BlasLt:
    """Matrix products that do more than multiply: cuBLASLt on CUDA, NumPy on the CPU.

    An algorithm is looked up once for every combination of shapes and options, and kept.

    | a and b | result (the first is the default) | bias |
    |---|---|---|
    | float16 | float16, float32 | as the result |
    | bfloat16 | bfloat16, float32 | as the result |
    | float32, float64, complex64, complex128 | the same | the same |
    | int8 | int32 | none |
    | int8 | int8 (saturating) | float32 |
    | float8_e4m3fn, or one of them float8_e5m2 | bfloat16, float16 | as the result |
    | the same | float32 | bfloat16 |
    | the same | float8_e4m3fn; float8_e5m2 if an input is | bfloat16 or float16, as ``c`` |
    | float4_e2m1fn | bfloat16, float16, float32 | as for fp8 |

    fp8 needs compute capability 8.9 and, before 10.0, matrices laid out as
    ``trans_a=False, trans_b=True`` has them; fp4 needs compute capability 10.0. The CPU
    backend takes all of it on any machine. Results beyond the range of fp8 or int8 become
    its largest number of that sign; NaN stays NaN in fp8.
    """

    def __init__(self, device: Submitter) -> None:
        self._device = device
        self._plans: dict[Question, Plan] = {}
        self._choices: dict[tuple[bytes, bool], _Choice] = {}

    async def matmul(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        c: GpuRef | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        trans_a: Trans = False,
        trans_b: Trans = False,
        dtype: Any = None,
        compute_type: str | None = None,
        epilogue: str | None = None,
        bias: GpuRef | None = None,
        aux: GpuRef | None = None,
        scale_a: GpuRef | None = None,
        scale_b: GpuRef | None = None,
        scale_out: GpuRef | None = None,
        amax: bool = False,
        fast_accum: bool = False,
        layout_a: Layout | None = None,
        layout_b: Layout | None = None,
        layout_out: Layout | None = None,
        autotune: bool = False,
    ) -> Any:
        """Matrix product with an epilogue: ``epilogue(alpha * op(a) @ op(b) + beta * c)``.

        Vendor function: ``cublasLtMatmul``.

        ======================================== ==============================================
        epilogue                                 what it does to x, the product
        ======================================== ==============================================
        ``bias``                                 ``x + bias``
        ``relu``, ``relu_bias``                  ``max(x, 0)``; NaN becomes 0
        ``gelu``, ``gelu_bias``                  GELU, by its tanh approximation
        ``relu_aux``, ``relu_aux_bias``          as ``relu``; ``aux`` is one bit for each x > 0
        ``gelu_aux``, ``gelu_aux_bias``          as ``gelu``; ``aux`` is what GELU was taken of
        ``drelu``, ``dgelu``                     ``x`` times the derivative, given ``aux``
        ``drelu_bgrad``, ``dgelu_bgrad``         the same, and its sum over the rows
        ``bgrada``, ``bgradb``                   ``x``; and the sum of op(a) or op(b) over k
        ======================================== ==============================================

        Args:
            a: shape (..., m, k), or (..., k, m) with ``trans_a``.
            b: shape (..., k, n), or (..., n, k) with ``trans_b``. Leading dimensions are
                broadcast where one step walks through them.
            out: where to put the result: shape (..., m, n), not sealed, no memory in
                common with other arguments but ``c``. Made if absent.
            c: what to add: shape (..., m, n); by default ``out``. For fp8 results it is
                bfloat16 or float16.
            alpha: scales the product.
            beta: scales ``c``; 0 ignores it, NaNs included.
            trans_a: use the transpose of ``a``; 2 (``"C"``) for its conjugate.
            trans_b: use the transpose of ``b``; 2 (``"C"``) for its conjugate.
            dtype: the dtype of the result, see the class.
            compute_type: the vendor's, without ``CUBLAS_COMPUTE_``: for float32
                ``"32F_FAST_TF32"``, ``"32F_FAST_16F"``, ``"32F_FAST_16BF"``; for float16
                ``"16F"``; ``_PEDANTIC`` after any plain one.
            epilogue: see above; with ``bias`` alone it is ``"bias"``.
            bias: shape (n,), or (..., n) with one for each product.
            aux: what the epilogue of the forward pass returned; or a buffer for it.
            scale_a: float32, for fp8: one number that ``a`` is multiplied by, or with
                ``scale_b`` one for each row of op(a). For fp4 float8_e4m3fn of shape
                (m, k/16): one for each 16 elements along k.
            scale_b: the same for ``b``: one number, one for each column of op(b), or for
                fp4 shape (n, k/16).
            scale_out: float32, one number: an fp8 result is multiplied by it at the end.
            amax: also return the largest magnitude of an fp8 result before ``scale_out``,
                a float32 of shape ().
            fast_accum: let fp8 accumulate less precisely, and faster.
            layout_a: how to read ``a``, whatever its shape.
            layout_b: how to read ``b``.
            layout_out: where in ``out`` the result goes.
            autotune: the first time, run the best candidates on these operands and keep
                the fastest; by default the vendor's own guess is taken.

        Returns:
            ``out``, or a new buffer. Epilogues with more results return a tuple:
            ``(out, aux)``, or ``(out, bias gradient)``; ``amax`` comes last.

        Raises:
            ValueError: shapes, layouts, alignment or options that do not fit, aliasing.
            TypeError: dtypes that do not fit, an argument that is no GpuRef.
            Unsupported: the device, or the library, does not have this combination.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: a sealed ref to be written.
            OutOfMemory: no room for the result.
        """
        name = epilogue if epilogue is not None else "bias" if bias is not None else ""
        ops = operation(trans_a, "trans_a"), operation(trans_b, "trans_b")
        inputs = {"a": a, "b": b, "c": c, "bias": bias, "scale_a": scale_a, "scale_b": scale_b}
        inputs["scale_out"] = scale_out

        def plan_now() -> Plan:
            memory = self._device.memory
            for argument, ref in (*inputs.items(), ("out", out), ("aux", aux)):
                if ref is not None or argument in ("a", "b"):
                    usable(ref, memory, argument)  # type: ignore[arg-type]
            question = Question(
                _given(a),
                _given(b),
                _given(c),
                _given(out),
                _given(bias),
                _given(aux),
                _given(scale_a),
                _given(scale_b),
                _given(scale_out),
                layout_a,
                layout_b,
                layout_out,
                *ops,
                dtype,
                compute_type,
                name,
                bool(fast_accum),
                bool(amax),
            )
            plan = self._plans.get(question)
            if plan is None:
                if len(self._plans) >= _MOST_PLANS:
                    self._plans.clear()
                plan = self._plans[question] = make_plan(question)
            return plan

        def prepare(room: Room, choice: _Choice, *, scratch: bool = False) -> Prepared:
            memory = self._device.memory
            plan = plan_now()
            epilogue = plan.epilogue
            factor = scalar(alpha, DTYPES[plan.spec.scale_type], "alpha")
            scale = scalar(beta, DTYPES[plan.spec.scale_type], "beta")
            adds = scale not in (0.0, (0.0, 0.0))
            added = c
            if plan.spec.scale_type == "int32" and not {factor, scale} <= {0.0, 1.0}:
                raise ValueError(f"for int8 alpha and beta are 0 or 1, not {alpha} and {beta}")
            if adds and c is None:
                if out is None or plan.spec.d.dtype in FP8:
                    what = (
                        "an fp8 result cannot be added to" if out is not None else "no out either"
                    )
                    raise ValueError(f"beta={beta} scales c, but there is no c, and {what}")
                added = out
            if out is None or scratch:
                result = room.empty(out.shape if out is not None else plan.shape, plan.dtype)
            else:
                result = out
            written = [("out", writable(result, memory, "out"))]
            results = [result]
            kept, gradient, largest = aux, None, None
            if epilogue.makes_aux:
                kept = room.empty(plan.aux_shape, plan.aux_dtype) if aux is None or scratch else aux
                written.append(("aux", writable(kept, memory, "aux")))
                results.append(kept)
            if epilogue.bias_gradient:
                gradient = room.empty(plan.gradient_shape, DTYPES[plan.bias_dtype])
                written.append(("the gradient", gradient._block))
                results.append(gradient)
            if amax:
                largest = room.empty((), _FLOAT32)
                written.append(("amax", largest._block))
                results.append(largest)
            reads = [(key, ref._block) for key, ref in inputs.items() if ref is not None]
            if epilogue.takes_aux and aux is not None:
                reads.append(("aux", aux._block))
            _require_apart(written, reads, in_place=c is out or c is None)
            algorithm, nbytes = choice
            temporary = [
                room.empty((size,), _UINT8)._block if size else None
                for size in (nbytes, plan.zeros, *plan.packed)
            ]
            workspace, zeros, packed_a, packed_b, packed_scales = (
                block.address if block else 0 for block in temporary
            )
            side = gradient if gradient is not None else bias
            message = Matmul(
                plan.encoded,
                algorithm,
                zeros or a._block.address + plan.offset_a,
                zeros or b._block.address + plan.offset_b,
                _address(added) + (plan.offset_d if added is out and added is not None else 0),
                result._block.address + plan.offset_d,
                _address(side),
                _address(kept),
                _address(scale_a),
                _address(scale_b),
                _address(scale_out),
                _address(largest),
                workspace,
                nbytes,
                packed_a,
                packed_b,
                packed_scales,
                plan.zeros,
                factor,
                scale,
            )
            if adds and added is not None:
                reads.append(("c", added._block))
            return Prepared(
                message,
                [block for _, block in reads],
                [*(block for _, block in written), *(block for block in temporary if block)],
                results[0] if len(results) == 1 else tuple(results),
            )

        key = (plan_now().encoded, autotune)
        choice = self._choices.get(key)
        if choice is None:
            candidates = await self._candidates(key[0], _CANDIDATES if autotune else 1)
            if autotune and len(candidates) > 1:
                candidates = await self._tune(prepare, candidates)
            choice = candidates[0]
            if choice[0]:
                self._choices[key] = choice
        found = choice
        return await perform(self._device, LANE, "blaslt.matmul", lambda room: prepare(room, found))

    async def _candidates(self, spec: bytes, most: int) -> list[_Choice]:
        """Ask the lane for algorithms, best guess first."""
        message = Heuristic(spec, WORKSPACE, most)
        answer = await perform(
            self._device, LANE, "blaslt.heuristic", lambda _room: Prepared(message, (), ())
        )
        if answer is None:  # inside a batch there is no answer yet: the lane has to choose
            return [(b"", _UNKNOWN)]
        return [(algorithm, nbytes) for algorithm, nbytes in answer]

    async def _tune(self, prepare: Any, candidates: list[_Choice]) -> list[_Choice]:
        """Put the fastest of the candidates first."""
        most = max(nbytes for _, nbytes in candidates)

        def prepare_tuning(room: Room) -> Prepared:
            message, reads, writes, _ = prepare(room, (b"", most), scratch=True)
            return Prepared(Tune(message, tuple(candidates)), reads, writes)

        best = await perform(self._device, LANE, "blaslt.tune", prepare_tuning)
        return candidates if best is None else [candidates[best]]


def _given(ref: GpuRef | None) -> Any:
    return None if ref is None else Given(ref.shape, ref.dtype.name, ref.size)


def _address(ref: GpuRef | None) -> int:
    return 0 if ref is None else ref._block.address


def _require_apart(
    written: list[tuple[str, Block]], reads: list[tuple[str, Block]], *, in_place: bool
) -> None:
    """Nothing that is written is anything else, except that ``out`` may be ``c``."""
    for position, (name, block) in enumerate(written):
        for other, another in (*reads, *written[:position]):
            if block is another and not (in_place and (name, other) == ("out", "c")):
                raise ValueError(f"{name} and {other} share memory, which matmul cannot take")
