"""``device.blaslt``: matrix products with epilogues, scales and narrow types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Unpack, final

from ..._dtypes import as_dtype
from ..._errors import Unsupported
from ...arrays import GpuRef
from ...ops import (
    Collected,
    D,
    Facade,
    LaneSpec,
    Request,
    Submission,
    Workspaces,
    op,
    require_no_race,
    with_tf32,
)
from ...wire.options import flag, whole
from ...wire.recent import Recent
from ..blas.checks import TF32, Number, Trans, operation
from ._product import (
    BlasLtOptions,
    HeuristicOptions,
    MatmulOptions,
    MatmulResults,
    ProductOperands,
    check,
)
from .wire._messages import Heuristic, TuneBlasLt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import DTypeLike

    from ...memory import MemoryMap
    from ...ops import DeviceView, Preparer
    from ._product import BlasLtProduct
    from .wire._layout import Layout

    _Checked = Callable[[MemoryMap], BlasLtProduct]

LANE: Final = LaneSpec(
    "blaslt",
    {
        "cpu": "atomr_accel.libraries.blaslt.host.cpu:CpuBlasLt",
        "cuda": "atomr_accel.libraries.blaslt.host._cuda:CudaBlasLt",
    },
    max_streams=4,
)

WORKSPACE: Final = 32 << 20
"""The most memory that an algorithm may want: what the vendor recommends for Hopper."""

_CANDIDATES: Final = 8
_MOST_ALGORITHMS: Final = 4096

_MOST_OFFERED: Final = 128

_Choice = tuple[bytes, int, int]
"""An algorithm, the bytes of workspace that it gets, and its number."""

_Wanted = tuple[bytes, bool, int | None]
"""A product, whether its candidates are tried, and which is wanted."""


@dataclass(frozen=True, slots=True)
class BlasLtStatistics:
    """The algorithms and workspaces of products.

    Attributes:
        tuned: products whose algorithm was found by timing.
        workspace: bytes of the workspaces that all products share.
    """

    tuned: int
    workspace: int


@final
class BlasLt(Facade[D]):
    """Matrix products that do more than multiply: cuBLASLt on CUDA, NumPy on the CPU.

    An algorithm is looked up once for every combination of shapes and options, and kept.
    Products share up to four workspaces of at most 32 MiB, in the device's memory; those that
    are in flight together have different ones.

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
    ``trans_a=False, trans_b=True`` has them; fp4, and block scales of fp8 (mxfp8), need compute
    capability 10.0, and always matrices laid out so. The CPU
    backend takes all of it on any machine. Results beyond the range of fp8 or int8 become
    its largest number of that sign; NaN stays NaN in fp8.
    """

    templated = True

    def __init__(self, device: DeviceView) -> None:
        self.home = device
        self._choices: Recent[_Wanted, _Choice] = Recent(_MOST_ALGORITHMS, name="algorithms")
        self.caches: tuple[Recent[Any, Any], ...] = (self._choices,)
        self._workspaces = Workspaces(LANE.max_streams, WORKSPACE)

    @op
    def matmul(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        out: GpuRef | None = None,
        c: GpuRef | None = None,
        alpha: Number | GpuRef = 1.0,
        beta: Number = 0.0,
        trans_a: Trans = False,
        trans_b: Trans = False,
        dtype: DTypeLike | None = None,
        compute_type: str | None = None,
        allow_tf32: bool = False,
        epilogue: str | None = None,
        bias: GpuRef | None = None,
        aux: GpuRef | None = None,
        scale_a: GpuRef | None = None,
        scale_b: GpuRef | None = None,
        scale_out: GpuRef | None = None,
        fast_accum: bool = False,
        layout_a: Layout | None = None,
        layout_b: Layout | None = None,
        layout_out: Layout | None = None,
        autotune: bool = False,
        algorithm: int | None = None,
    ) -> Request[GpuRef]:
        """Matrix product with an epilogue: ``epilogue(alpha * op(a) @ op(b) + beta * c)``.

        Vendor function: ``cublasLtMatmul``.

        ======================================== ==============================================
        epilogue                                 effect on x, the product
        ======================================== ==============================================
        ``bias``                                 ``x + bias``
        ``relu``, ``relu_bias``                  ``max(x, 0)``
        ``gelu``, ``gelu_bias``                  GELU, by its tanh approximation
        ``drelu``, ``dgelu``                     ``x`` times the derivative, given ``aux``
        ======================================== ==============================================

        NaN stays NaN with ``relu`` and ``gelu``, and at infinities ``gelu`` gives its limits. On
        CUDA the vendor's kernel decides: ``relu`` of NaN is NaN or 0, and its bit may be 1;
        ``gelu`` of an infinity may be NaN.

        Args:
            a: shape (..., m, k), or (..., k, m) with ``trans_a``.
            b: shape (..., k, n), or (..., n, k) with ``trans_b``. Leading dimensions are broadcast
                if one stride describes them. Views of ``a`` and ``b`` whose rows or columns have no
                gaps are read directly. Other views are copied first, as are views of other
                arguments and of dtypes of one byte.
            out: where to put the result: shape (..., m, n), not sealed, no memory in common with
                other arguments but ``c``. Made if absent.
            c: an array to add: shape (..., m, n); by default ``out``. For fp8 results it is
                bfloat16 or float16.
            alpha: scales the product; or a buffer of shape (n,) with a factor for each column, of
                the type of scalars (float32 for all narrower types).
            beta: scales ``c``; 0 ignores it, NaNs included.
            trans_a: use the transpose of ``a``; 2 (``"C"``) for its conjugate.
            trans_b: use the transpose of ``b``; 2 (``"C"``) for its conjugate.
            dtype: the dtype of the result, see the class.
            compute_type: the vendor's, without ``CUBLAS_COMPUTE_``: for float32
                ``"32F_FAST_16F"``, ``"32F_FAST_16BF"``; for float16 ``"16F"``; ``_PEDANTIC`` after
                any plain one.
            allow_tf32: whether products of 32-bit floats may round their factors to ten bits, to
                run faster.
            epilogue: see above; with ``bias`` alone it is ``"bias"``.
            bias: shape (n,), or (..., n) with one for each product of a batch.
            aux: ``aux`` of the epilogue of the forward pass.
            scale_a: float32, for fp8: one number that ``a`` is multiplied by, or with ``scale_b``
                one for each row of op(a). Scales in blocks are also possible. For fp4 (nvfp4) they
                are float8_e4m3fn of shape (m, k/16), one for each 16 elements along k. For fp8
                (mxfp8) they are uint8 of shape (m, k/32): exponents e of ``2**(e - 127)``, the
                bytes of ``ml_dtypes.float8_e8m0fnu``.
            scale_b: the same for ``b``: one number, one for each column of op(b), or in blocks
                shape (n, k/16) or (n, k/32).
            scale_out: float32, one number: an fp8 result is multiplied by it at the end.
            fast_accum: let fp8 accumulate less precisely, and faster.
            layout_a: how to read ``a``, regardless of its shape.
            layout_b: how to read ``b``.
            layout_out: how to write ``out``.
            autotune: the first time, run the best candidates on these operands and keep the
                fastest; by default the vendor's heuristic chooses.
            algorithm: use the best one with this number, as ``algorithms`` lists them. In a batch,
                it must be one that an earlier call outside of a batch found.

        Returns:
            ``out``, or a new buffer. For epilogues with more results there is ``matmul_extra``.

        Raises:
            Unsupported: the device, or the library, does not have this combination.
        """
        return self._matmul("matmul", locals())

    @op
    def matmul_extra(
        self, a: GpuRef, b: GpuRef, **options: Unpack[MatmulOptions]
    ) -> Request[MatmulResults]:
        """Matrix product with more results than one, as training and fp8 need them.

        Vendor function: ``cublasLtMatmul``.

        ======================================== ==============================================
        epilogue                                 effect on x, the product
        ======================================== ==============================================
        ``relu_aux``, ``relu_aux_bias``          as ``relu``; ``aux`` is one bit for each x > 0
        ``gelu_aux``, ``gelu_aux_bias``          as ``gelu``; ``aux`` is the input of GELU
        ``drelu_bgrad``, ``dgelu_bgrad``         as ``drelu``; ``bias_grad`` is its sum over rows
        ``bgrada``, ``bgradb``                   ``x``; ``bias_grad`` sums op(a) or op(b) over k
        ======================================== ==============================================

        Args:
            a: as for ``matmul``.
            b: as for ``matmul``.
            options: as for ``matmul``. The epilogue may also be one of the above, with ``aux`` a
                buffer for the auxiliary output. ``amax=True`` also returns the largest magnitude of
                an fp8 result before ``scale_out``, a float32 of shape (); with any epilogue.

        Returns:
            ``(out, aux, bias_grad, amax)``, with None for those that the options do not ask for. A
            bias gradient has shape (n,) if one ``b`` serves all products, and (..., n) otherwise;
            for ``bgrada`` it has shape (..., m).

        Raises:
            ValueError: an epilogue with one result, for which there is ``matmul``.
        """
        _require_known("matmul_extra", options, MatmulOptions)
        return self._matmul("matmul_extra", {"a": a, "b": b, **options})

    def _matmul(self, name: str, given: Mapping[str, Any]) -> Request[Any]:
        """Return the request for a product, with the arguments of a method."""
        alpha, beta = given.get("alpha", 1.0), given.get("beta", 0.0)
        algorithm = given.get("algorithm")
        operands, chosen = _read(given)
        autotune = flag(given.get("autotune", False), "autotune")
        require_no_race(self.home, autotune=autotune)
        if algorithm is not None:
            algorithm = whole(algorithm, "algorithm")
            if autotune:
                raise ValueError(
                    "autotune must be False if algorithm is given, because it looks for one"
                )

        factor = 1.0 if isinstance(alpha, GpuRef) else alpha
        several = name != "matmul"

        def checked(memory: MemoryMap) -> BlasLtProduct:
            product = check(operands, chosen, factor, beta, memory)
            if product.plan.several != several:
                have, other = ("one result", "matmul") if several else ("more", "matmul_extra")
                raise ValueError(
                    f"{name} must not have epilogue {chosen.epilogue!r} with amax={chosen.amax}, "
                    f"which has {have}; call device.blaslt.{other}"
                )
            return product

        def prepare(preparer: Preparer) -> Submission[Any]:
            product = checked(preparer.memory)
            key = (product.plan.encoded, autotune, algorithm)
            choice = self._choices.get(key)
            found, nbytes, _ = choice or self._choose(preparer, checked, key)
            choices = self._choices  # not self, which would keep the batch that it is part of
            preparer.depends(lambda: choices.get(key) is choice)
            return product.submission(preparer, found, nbytes, self._workspaces)

        return Request(LANE, f"blaslt.{name}", prepare)

    @op
    def algorithms(
        self, a: GpuRef, b: GpuRef, **options: Unpack[HeuristicOptions]
    ) -> Request[list[int]]:
        """The numbers of the algorithms that the library has for a product, its best guess first.

        They are those of the release and the device. An algorithm has settings beside, of which
        ``matmul`` takes the best that the library knows. Vendor functions:
        ``cublasLtMatmulAlgoGetHeuristic``, ``cublasLtMatmulAlgoConfigGetAttribute``.

        Args:
            a: as for ``matmul``.
            b: as for ``matmul``.
            options: as for ``matmul_extra``, but ``autotune`` and ``algorithm``.

        Returns:
            Numbers for ``matmul(algorithm=)``, each once.
        """
        _require_known("algorithms", options, HeuristicOptions)
        operands, chosen = _read({"a": a, "b": b, **options})
        alpha, beta = options.get("alpha", 1.0), options.get("beta", 0.0)
        factor = 1.0 if isinstance(alpha, GpuRef) else alpha

        def prepare(preparer: Preparer) -> Submission[list[int]]:
            product = check(operands, chosen, factor, beta, preparer.memory)
            message = Heuristic(product.plan.encoded, WORKSPACE, _MOST_OFFERED)
            return Submission(message, (), (), finish=_numbers)

        return Request(LANE, "blaslt.algorithms", prepare)

    def statistics(self) -> BlasLtStatistics:
        """Return the number of tuned products, and the size of the workspaces."""
        tuned = sum(autotune for _, autotune, _ in self._choices)
        return BlasLtStatistics(tuned, self._workspaces.nbytes(self.home))

    def _choose(self, preparer: Preparer, checked: _Checked, wanted: _Wanted) -> _Choice:
        """Ask the lane for an algorithm, and have it try the candidates if that is wanted."""
        spec, autotune, number = wanted
        if (
            preparer.home.call_mode is Collected
        ):  # no answer comes: the lane has to choose by itself
            if number is not None:
                raise Unsupported(
                    f"algorithm {number} in a batch: call it once before, so that it is known"
                )
            return b"", WORKSPACE if self.home.capabilities.needs_scratch else 0, -1
        most = _CANDIDATES if autotune else 1 if number is None else _MOST_OFFERED
        message = Heuristic(spec, WORKSPACE, most)
        heuristic: Request[list[_Choice]] = Request(
            LANE, "blaslt.heuristic", lambda _preparer: Submission(message, (), ())
        )
        candidates = preparer.perform(heuristic)
        assert candidates is not None
        fastest = 0
        if number is not None:
            numbers = _numbers(candidates)
            if number not in numbers:
                raise Unsupported(
                    "algorithm must be one that cuBLASLt has for this product, "
                    f"{numbers}, not {number}"
                )
            candidates = [each for each in candidates if each[2] == number]
        if autotune and len(candidates) > 1:
            tuned = preparer.perform(self._tuning(checked, candidates))
            assert tuned is not None
            fastest = tuned
        return self._choices.add(wanted, candidates[fastest])

    def _tuning(self, checked: _Checked, candidates: list[_Choice]) -> Request[int]:
        """Time the candidates; answered by the position of the fastest."""
        most = max(nbytes for _, nbytes, _ in candidates)

        def prepare(preparer: Preparer) -> Submission[int]:
            trial = checked(preparer.memory).submission(
                preparer, b"", most, self._workspaces, scratch=True
            )
            message = TuneBlasLt(trial.message, tuple(candidates))
            return Submission(message, trial.reads, trial.writes)

        return Request(LANE, "blaslt.tune", prepare)


def _require_known(name: str, options: Mapping[str, object], known: Any) -> None:
    """Refuse options that a method does not have."""
    for each in options:
        if each not in known.__optional_keys__:
            raise TypeError(f"{name} takes no {each!r}")


def _numbers(candidates: list[_Choice]) -> list[int]:
    """The numbers of algorithms, each once."""
    return list(dict.fromkeys(number for _, _, number in candidates))


def _read(given: Mapping[str, Any]) -> tuple[ProductOperands, BlasLtOptions]:
    """The arguments of a method by what part they take; some may be absent."""
    buffers: dict[str, Any] = {name: given.get(name) for name in ProductOperands._fields}
    if not isinstance(buffers["alpha"], GpuRef):
        del buffers["alpha"]
    operands = ProductOperands(**buffers)
    dtype, compute_type, epilogue = map(given.get, ("dtype", "compute_type", "epilogue"))
    options = BlasLtOptions(
        given.get("layout_a"),
        given.get("layout_b"),
        given.get("layout_out"),
        operation(given.get("trans_a", False), "trans_a"),
        operation(given.get("trans_b", False), "trans_b"),
        None if dtype is None else as_dtype(dtype),
        with_tf32(compute_type, TF32, allow_tf32=given.get("allow_tf32", False)),
        epilogue if epilogue is not None else "bias" if given.get("bias") is not None else "",
        flag(given.get("fast_accum", False), "fast_accum"),
        flag(given.get("amax", False), "amax"),
    )
    return operands, options
