"""Every function that writes, with valid arguments, and the buffers it reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from atomr_accel import Device, GpuRef
from atomr_accel.libraries.blas.wire._rows import COMPLEX, packed
from atomr_accel.libraries.blas.wire._rows import ROWS as BLAS
from atomr_accel.libraries.blas.wire._rows import Row as BlasRow

from .conformance import dtype_of

SHIFT: Final = 64
"""Bytes between two that overlap: no library minds a view that begins there."""

LIBRARIES: Final = ("blas", "blaslt", "cub", "dnn", "fft", "rng", "tensor")

Buffer = tuple[tuple[int, ...], str]


def _by_name(function: Any, refs: dict[str, Any], options: dict[str, Any]) -> Any:
    return function(**refs, **options)


@dataclass(frozen=True)
class Row:
    """One way to call a function.

    Attributes:
        name: ``library.function``.
        buffers: shapes and dtypes of its buffers, by name.
        written: names of the buffers that it writes.
        in_place: names of the buffers it reads that may be exactly a written one.
        options: other arguments.
        call: the function that makes the call.
    """

    name: str
    buffers: dict[str, Buffer]
    written: tuple[str, ...] = ("out",)
    in_place: tuple[tuple[str, str], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    call: Callable[[Any, dict[str, Any], dict[str, Any]], Any] = _by_name


def row(
    name: str,
    *in_place: str,
    dtype: Any = "float32",
    written: Any = ("out",),
    options: Any = None,
    call: Any = _by_name,
    **buffers: Any,
) -> Row:
    """A row; a buffer is a shape, or a shape and a dtype."""
    given = {
        each: what if isinstance(what[0] if what else None, tuple) else (what, dtype)
        for each, what in buffers.items()
    }
    pairs = tuple((written[0], each) for each in in_place)
    return Row(name, given, written, pairs, options or {}, call)


def _lists(function: Any, refs: dict[str, Any], options: dict[str, Any]) -> Any:
    """``x[0]``, ``x[1]`` as a list x."""
    lists: dict[str, list[Any]] = {}
    for name, ref in refs.items():
        lists.setdefault(name[0], []).append(ref)
    return function(lists["a"], lists["b"], out=lists["o"], **options)


def _pairs(function: Any, refs: dict[str, Any], options: dict[str, Any]) -> Any:
    rest = {name: ref for name, ref in refs.items() if not name.startswith("out")}
    return function(**rest, out=(refs["out[0]"], refs["out[1]"]), **options)


def _grads(function: Any, refs: dict[str, Any], options: dict[str, Any]) -> Any:
    grads = tuple(refs[f"grads (d{name})"] for name in "qkv")
    rest = {name: ref for name, ref in refs.items() if not name.startswith("grads")}
    return function(**rest, grads=grads, **options)


def _scales(function: Any, refs: dict[str, Any], options: dict[str, Any]) -> Any:
    scales = {name: ref for name, ref in refs.items() if "scale" in name}
    rest = {name: ref for name, ref in refs.items() if "scale" not in name}
    return function(**rest, scales=scales, **options)


def _einsum(function: Any, refs: dict[str, Any], options: dict[str, Any]) -> Any:
    return function("ij,jk->ik", refs["operand 0"], refs["operand 1"], out=refs["out"], **options)


M: Final = (16, 16)
V: Final = (16,)
I: Final = (2, 8, 4, 4)  # noqa: E741
C: Final = (8,)
S: Final = (2, 8, 2, 16)
R: Final = (16, 2, 16)
INT: Final = "int32"
HALF: Final = "float16"
_GRADS: Final = tuple(f"grads (d{name})" for name in "qkv")
_SCALES: Final = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
_LABELS: Final = {
    "targets": ((2, 2), INT),
    "input_lengths": ((2,), INT),
    "target_lengths": ((2,), INT),
}
_BY_IMAGE: Final = {"x": I, "out": I}
_BY_GRAD: Final = {"grad": I, "x": I, "out": I}


ROTATIONS: Final = ("rotg", "rotm", "rotmg")


def of_blas(routine: BlasRow) -> Row:
    """A routine of levels 1 to 3, from its own row."""
    dtype = "complex64" if routine.dtypes == COMPLEX else "float32"
    buffers: dict[str, Any] = {}
    for operand in routine.operands:
        shape = (16,) * len(operand.shape)
        if operand.form:
            shape = (3, 16) if operand.form == "band" else (packed(16),)
        buffers[operand.name] = (shape, operand.dtype_of(dtype))
    options: dict[str, Any] = {name: 0.6 for name, _ in routine.numbers if name in ("c", "s")}
    if "kl" in routine.counts:
        options |= {"m": 16, "n": 16, "kl": 1, "ku": 1}
    if routine.name in ROTATIONS:
        shapes = {"x": V, "y": V, "param": (5,)}
        buffers = {name: (shapes.get(name, ()), dtype) for name, (_, dtype) in buffers.items()}
    written = tuple(routine.operands[at].name for at in routine.written)
    return row(
        f"blas.{routine.name}",
        *routine.in_place,
        written=written,
        options=options,
        **buffers,
    )


ROWS: Final = [
    *(of_blas(each) for each in BLAS.values() if len(each.operands) > 1),
    row("blas.geam", "b", a=M, b=M, out=M, options={"trans_a": 1}),
    *(row(f"blas.{name}", a=M, b=M, out=M) for name in ("gemm", "matmul")),
    *(
        row(
            f"blas.{name}",
            written=("out[0]", "out[1]"),
            call=_lists,
            **{f"{each}[{at}]": M for at in range(2) for each in ("a", "b", "out")},
        )
        for name in ("gemm_batched", "gemm_grouped_batched")
    ),
    row("blas.gemm_grouped", a=M, b=(2, 16, 16), out=M, options={"sizes": (7, 9)}),
    row("blas.getrf_batched", "a", a=(2, 8, 8), out=(2, 8, 8)),
    row("blas.geqrf_batched", "a", a=(2, 8, 8), out=(2, 8, 8)),
    row("blas.getrs_batched", "b", lu=(2, 8, 8), piv=((2, 8), INT), b=(2, 8, 8), out=(2, 8, 8)),
    row("blas.getri_batched", lu=(2, 8, 8), piv=((2, 8), INT), out=(2, 8, 8)),
    row("blas.matinv_batched", a=(2, 8, 8), out=(2, 8, 8)),
    row("blas.gemv_batched", a=(2, 8, 8), x=(2, 8), out=(2, 8)),
    row("blas.trsm_batched", "b", a=(2, 8, 8), b=(2, 8, 8), out=(2, 8, 8)),
    row("blas.gels_batched", a=(2, 8, 8), b=(2, 8), out=(2, 8)),
    row("blaslt.matmul", "c", a=M, b=M, c=M, out=M, options={"beta": 1.0}),
    row(
        "blaslt.matmul_extra",
        a=M,
        b=M,
        bias=V,
        out=M,
        aux=M,
        written=("out", "aux"),
        options={"epilogue": "gelu_aux_bias"},
    ),
    *(row(f"cub.{name}", x=V, out=()) for name in ("reduce",)),
    *(row(f"cub.{name}", x=V, out=((), "int64")) for name in ("argmin", "argmax")),
    *(
        row(f"cub.{name}", "x", x=V, out=V, options={"init": 1.0})
        for name in ("inclusive_scan", "exclusive_scan")
    ),
    row("cub.segmented_reduce", x=V, begins=((4,), INT), ends=((4,), INT), out=(4,)),
    row("cub.sort", keys=V, out=V),
    row("cub.argsort", keys=V, out=(V, "int64")),
    row("cub.segmented_sort", keys=V, begins=((4,), INT), ends=((4,), INT), out=V),
    *(
        row(
            f"cub.{name}",
            written=("out[0]", "out[1]"),
            call=_pairs,
            **{"keys": V, "values": V, "out[0]": V, "out[1]": V, **more},
        )
        for name, more in (
            ("sort_pairs", {}),
            ("segmented_sort_pairs", {"begins": ((4,), INT), "ends": ((4,), INT)}),
        )
    ),
    *(
        row(f"cub.{name}", data=V, values=V, out=(V, "int64"))
        for name in ("lower_bound", "upper_bound")
    ),
    row("cub.unary_transform", "x", x=V, out=V, options={"op": "negate"}),
    row("cub.binary_transform", "a", "b", a=V, b=V, out=V, options={"op": "plus"}),
    row(
        "cub.histogram_even",
        x=V,
        out=((4,), "int64"),
        options={"bins": 4, "lower": 0.0, "upper": 1.0},
    ),
    *(
        row(f"dnn.{name}{end}", **(_BY_GRAD if end else _BY_IMAGE))
        for name in ("relu", "leaky_relu", "sigmoid", "tanh", "gelu", "silu", "elu", "softplus")
        for end in ("", "_grad")
    ),
    row("dnn.reduce", x=M, out=V, options={"mode": "sum", "axis": 1}),
    row("dnn.conv", x=I, w=(8, 8, 1, 1), bias=C, out=I),
    row("dnn.conv_transpose", x=I, w=(8, 8, 1, 1), bias=C, out=I),
    row("dnn.conv_input_grad", grad=I, w=(8, 8, 1, 1), out=I, options={"shape": I}),
    row(
        "dnn.conv_weight_grad",
        x=I,
        grad=I,
        out=(8, 8, 1, 1),
        options={"shape": (8, 8, 1, 1)},
    ),
    row("dnn.conv_bias_grad", grad=I, out=C),
    row(
        "dnn.batch_norm_train",
        x=I,
        weight=C,
        bias=C,
        out=I,
        running_mean=C,
        running_var=C,
        written=("out", "running_mean", "running_var"),
    ),
    row(
        "dnn.batch_norm",
        x=I,
        weight=C,
        bias=C,
        out=I,
        running_mean=C,
        running_var=C,
    ),
    *(
        each
        for end in ("", "_train")
        for each in (
            row(f"dnn.instance_norm{end}", x=I, weight=C, bias=C, out=I),
            row(f"dnn.group_norm{end}", x=I, weight=C, bias=C, out=I, options={"num_groups": 2}),
            row(f"dnn.layer_norm{end}", x=M, weight=V, bias=V, out=M),
            row(f"dnn.rms_norm{end}", x=M, weight=V, bias=V, out=M),
        )
    ),
    row("dnn.max_pool", x=I, out=(2, 8, 2, 2), options={"window": 2}),
    row("dnn.avg_pool", x=I, out=(2, 8, 2, 2), options={"window": 2}),
    row(
        "dnn.max_pool_grad",
        grad=(2, 8, 2, 2),
        y=(2, 8, 2, 2),
        x=I,
        out=I,
        options={"window": 2},
    ),
    row(
        "dnn.avg_pool_grad",
        grad=(2, 8, 2, 2),
        out=I,
        options={"shape": I, "window": 2},
    ),
    *(
        row(f"dnn.adaptive_{name}_pool", x=I, out=(2, 8, 3, 3), options={"output_size": 3})
        for name in ("avg", "max")
    ),
    row("dnn.adaptive_avg_pool_grad", grad=(2, 8, 3, 3), out=I, options={"shape": I}),
    row("dnn.adaptive_max_pool_grad", grad=(2, 8, 3, 3), x=I, out=I),
    row("dnn.interpolate", x=I, out=(2, 8, 3, 3), options={"size": 3}),
    row("dnn.interpolate_grad", grad=(2, 8, 3, 3), out=I, options={"shape": I}),
    row("dnn.affine_grid", theta=(2, 2, 3), out=(2, 3, 5, 2), options={"size": (2, 8, 3, 5)}),
    row("dnn.affine_grid_grad", grad=(2, 3, 5, 2), out=(2, 2, 3)),
    row("dnn.grid_sample", x=I, grid=(2, 3, 5, 2), out=(2, 8, 3, 5)),
    row(
        "dnn.grid_sample_input_grad",
        grad=(2, 8, 3, 5),
        grid=(2, 3, 5, 2),
        out=I,
        options={"shape": I},
    ),
    row("dnn.grid_sample_grid_grad", grad=(2, 8, 3, 5), x=I, grid=(2, 3, 5, 2), out=(2, 3, 5, 2)),
    row("dnn.unfold", x=I, out=(2, 32, 9), options={"window": 2}),
    row("dnn.fold", x=(2, 32, 9), out=I, options={"output_size": (4, 4), "window": (2, 2)}),
    row("dnn.max_pool_with_indices", x=I, out=(2, 8, 2, 2), options={"window": 2}),
    row(
        "dnn.max_unpool",
        x=(2, 8, 2, 2),
        indices=((2, 8, 2, 2), "int64"),
        out=I,
        options={"window": 2},
    ),
    row("dnn.max_unpool_grad", grad=I, indices=((2, 8, 2, 2), "int64"), out=(2, 8, 2, 2)),
    row("dnn.cross_entropy", x=M, target=((16,), INT), weight=V, out=()),
    row("dnn.cross_entropy_grad", grad=(), x=M, target=((16,), INT), weight=V, out=M),
    row("dnn.ctc_loss", log_probs=(5, 2, 3), **_LABELS, out=()),
    row("dnn.ctc_loss_grad", grad=(), log_probs=(5, 2, 3), **_LABELS, out=(5, 2, 3)),
    *(row(f"dnn.{name}softmax", "x", x=M, out=M) for name in ("", "log_")),
    *(row(f"dnn.{name}softmax_grad", "grad", "y", grad=M, y=M, out=M) for name in ("", "log_")),
    row("dnn.dropout", "x", x=M, out=M, options={"p": 0.5, "seed": 1}),
    row("dnn.local_response_norm", x=I, out=I, options={"size": 3}),
    row("dnn.local_response_norm_grad", grad=I, y=I, x=I, out=I, options={"size": 3}),
    *(
        row(
            name,
            q=S,
            k=S,
            v=S,
            out=S,
            **dict.fromkeys(("seqlens_q", "seqlens_k"), ((2,), INT)),
            dtype=HALF,
        )
        for name in ("dnn.flash_attention", "dnn.flash_attention_with_lse")
    ),
    row(
        "dnn.flash_attention_grad",
        **dict.fromkeys(("grad", "q", "k", "v", "out", *_GRADS), S),
        **dict.fromkeys(("seqlens_q", "seqlens_k"), ((2,), INT)),
        lse=((2, 2, 8), "float32"),
        dtype=HALF,
        written=_GRADS,
        call=_grads,
    ),
    *(
        row(
            name,
            **dict.fromkeys(("q", "k", "v", "out"), R),
            **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), ((3,), INT)),
            options={"max_seqlen_q": 8, "max_seqlen_k": 8},
            dtype=HALF,
        )
        for name in ("dnn.flash_attention_varlen", "dnn.flash_attention_varlen_with_lse")
    ),
    row(
        "dnn.flash_attention_varlen",
        q=R,
        k=S,
        v=S,
        out=R,
        **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), ((3,), INT)),
        block_table=((2, 1), INT),
        options={"max_seqlen_q": 8, "max_seqlen_k": 8},
        dtype=HALF,
    ),
    row(
        "dnn.flash_attention_varlen_grad",
        **dict.fromkeys(("grad", "q", "k", "v", "out", *_GRADS), R),
        **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), ((3,), INT)),
        lse=((16, 2), "float32"),
        options={"max_seqlen_q": 8, "max_seqlen_k": 8},
        dtype=HALF,
        written=_GRADS,
        call=_grads,
    ),
    row(
        "dnn.flash_attention_with_kvcache",
        q=(2, 1, 2, 16),
        out=(2, 1, 2, 16),
        k_cache=S,
        v_cache=S,
        k=(2, 1, 2, 16),
        v=(2, 1, 2, 16),
        cache_seqlens=((2,), INT),
        dtype=HALF,
        written=("out", "k_cache", "v_cache"),
    ),
    row(
        "dnn.flash_attention_fp8",
        q=S,
        k=S,
        v=S,
        out=S,
        **dict.fromkeys(_SCALES, ((), "float32")),
        dtype="float8_e4m3fn",
        call=_scales,
    ),
    *(
        row(f"fft.{name}", "a", a=M, out=M, dtype="complex64")
        for name in ("fft", "ifft", "fft2", "ifft2", "fftn", "ifftn")
    ),
    *(
        row(f"fft.{name}", a=M, out=((16, 9), "complex64"))
        for name in ("rfft", "ihfft", "rfft2", "rfftn", "ihfft2", "ihfftn")
    ),
    *(
        row(f"fft.{name}", a=((16, 9), "complex64"), out=M)
        for name in ("irfft", "hfft", "irfft2", "irfftn", "hfft2", "hfftn")
    ),
    *(
        row(f"fft.{inverse}{name}", x=M, out=M)
        for name in ("dct", "dst", "dctn", "dstn")
        for inverse in ("", "i")
    ),
    *(
        row(f"fft.{name}", in1=M, in2=M, out=M, options={"mode": "same"})
        for name in ("fftconvolve", "oaconvolve")
    ),
    row("fft.fht", a=M, out=M, options={"dln": 0.1, "mu": 0.0}),
    row("fft.ifht", A=M, out=M, options={"dln": 0.1, "mu": 0.0}),
    row("fft.czt", x=M, out=(M, "complex64")),
    row("rng.choice", a=M, out=(4, 16), options={"size": 4}),
    row("tensor.einsum", out=M, call=_einsum, **{"operand 0": M, "operand 1": M}),
    row(
        "tensor.contract",
        "c",
        a=M,
        b=M,
        c=M,
        out=M,
        options={"modes_a": "ij", "modes_b": "jk", "modes": "ik", "beta": 1.0},
    ),
    row(
        "tensor.contract_trinary",
        "d",
        a=M,
        b=M,
        c=M,
        d=M,
        out=M,
        options={
            "modes_a": "ij",
            "modes_b": "jk",
            "modes_c": "kl",
            "modes": "il",
            "beta": 1.0,
        },
    ),
    row(
        "tensor.reduce",
        "c",
        a=M,
        c=V,
        out=V,
        options={"modes_a": "ij", "modes": "j", "beta": 1.0},
    ),
    row("tensor.permute", a=M, out=M, options={"modes_a": "ij", "modes": "ji"}),
    row(
        "tensor.elementwise_binary",
        "c",
        a=M,
        c=M,
        out=M,
        options={"modes_a": "ij", "modes_c": "ji"},
    ),
    row(
        "tensor.elementwise_trinary",
        "c",
        a=M,
        b=M,
        c=M,
        out=M,
        options={"modes_a": "ij", "modes_b": "ij", "modes_c": "ji"},
    ),
]


async def put_all(device: Device, each: Row, rng: np.random.Generator) -> dict[str, GpuRef]:
    refs = {}
    for name, (shape, dtype) in each.buffers.items():
        array = rng.uniform(0.5, 1, shape)
        if len(shape) >= 2 and shape[-1] == shape[-2]:
            array = array + 4 * np.eye(shape[-1])  # easily solved
        if dtype == INT:
            array = np.zeros(shape)
        refs[name] = await device.put(array.astype(dtype_of(dtype)))
    return refs
