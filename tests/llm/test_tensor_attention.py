"""Attention by tensor cores, compiled for the host, where a function stands for the instruction."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from atomr_accel.executors.compiler import NvrtcProgram, toolkit_flags
from atomr_accel.llm.wire.kernels import TWINS
from atomr_accel.llm.wire.tensor_attention import CHUNK, SOURCE, TILE, WARPS

from ..libraries.host_kernels import Launch, compile_bodies, needs_compiler

Array = np.ndarray[Any, Any]

TYPES = r"""
typedef h16 __half;
typedef b16 __nv_bfloat16;
static h16 __float2half(float x) { h16 made; narrow(made, x); return made; }
static b16 __float2bfloat16(float x) { b16 made; narrow(made, x); return made; }
static float __fmul_rn(float a, float b) { volatile float made = a * b; return made; }
static float __fadd_rn(float a, float b) { volatile float made = a + b; return made; }
static float __fsub_rn(float a, float b) { volatile float made = a - b; return made; }
static float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }

// What a lane has of the three matrices is in the reference of ``mma.sync.m16n8k16``.
template <class T> static void multiply_by(
    float* c, const unsigned* a, unsigned b0, unsigned b1, T
) {
    static unsigned all[1024][6];
    unsigned* mine = all[threadIdx.x];
    for (int i = 0; i < 4; i++) mine[i] = a[i];
    mine[4] = b0;
    mine[5] = b1;
    __syncthreads();
    unsigned (*warp)[6] = all + threadIdx.x / 32 * 32;
    int lane = threadIdx.x % 32;
    auto number = [&](unsigned word, int upper) {
        T numbers[2];
        std::memcpy(numbers, &word, 4);
        return (float)widen(numbers[upper]);
    };
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float sum = c[i];
        for (int k = 0; k < 16; k++) {
            int group = k % 8 / 2;
            float x = number(warp[row % 8 * 4 + group][row / 8 + k / 8 * 2], k % 2);
            float y = number(warp[column * 4 + group][4 + k / 8], k % 2);
            sum = std::fma(x, y, sum);
        }
        c[i] = sum;
    }
    __syncthreads();
}
"""

MULTIPLY = """
static void multiply(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    multiply_by(c, a, b0, b1, T());
}
"""

RUN = r"""
struct Arguments { long long which; void* p[7]; float f; int n[8]; };
static void run(Arguments a) {
    void** p = a.p;
    int* n = a.n;
    const T *q = (T*)p[2], *k = (T*)p[3], *v = (T*)p[4];
    const int *positions = (int*)p[5], *owners = (int*)p[6], *tables = owners + n[0];
    if (a.which == 0)
        attend_rows((T*)p[0], q, k, v, positions, owners, tables, n[0], n[1], n[2], n[3], n[4],
                    n[6], a.f);
    if (a.which == 1)
        attend_chunks((float*)p[1], q, k, v, positions, owners, tables, n[0], n[1], n[2], n[3],
                      n[4], n[5], n[6], a.f);
    if (a.which == 2)
        merge((T*)p[0], (float*)p[1], positions, n[0], n[1] * GROUP, n[2], n[4], n[5]);
}
"""


class Form(NamedTuple):
    """Macros of the kernels."""

    kind: int
    dtype: Any
    size: int
    group: int
    page: int


FORMS = [
    Form(1, np.float16, 64, 1, 16),
    Form(2, ml_dtypes.bfloat16, 64, 4, 16),
    Form(2, ml_dtypes.bfloat16, 128, 7, 5),
    Form(1, np.float16, 128, 16, 64),
]


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> list[Launch]:
    """Return the kernels for all forms."""
    folder: Path = tmp_path_factory.mktemp("kernels")
    source = SOURCE.replace('extern "C" ', "")
    source = "\n".join(line for line in source.split("\n") if not line.startswith("#include"))
    head, mark, tail = source.partition("#ifdef __CUDACC__")
    source = head + MULTIPLY + mark + tail
    names = [line.split()[1] for line in source.split("\n") if line.startswith("#define")]
    undefined = "".join(f"#undef {name}\n" for name in {*names, "KIND", "SIZE", "GROUP", "PAGE"})
    bodies = []
    for form in FORMS:
        macros = {"KIND": form.kind, "SIZE": form.size, "GROUP": form.group, "PAGE": form.page}
        defined = "".join(f"#define {name} {value}\n" for name, value in macros.items())
        bodies.append(f"{defined}{source}{RUN}{undefined}")
    return compile_bodies(TYPES, bodies, "run", folder)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(FORMS)))
def test_attention(launches: list[Launch], number: int) -> None:
    """Results are right, and the same bits however rows and chunks are shared out."""
    rng, form, launch = np.random.default_rng(number), FORMS[number], launches[number]
    kv_heads, context = 2, 300
    heads, columns = kv_heads * form.group, -(-context // form.page)
    tables = rng.permutation(2 * columns).reshape(2, columns).astype(np.int32) + 1
    tables[1, : 64 // form.page] = tables[0, : 64 // form.page]  # a prefix that they share
    pages = 2 * columns + 2
    shape = (pages, form.page, kv_heads, form.size)
    k, v = (rng.normal(size=shape).astype(form.dtype) for _ in "kv")
    # A prompt's end, rows without a position, and two sequences.
    positions = np.array([*range(250, 256), -1, 0, 127, 128, 299, 5, 40], np.int32)
    sequences = np.array([0] * 6 + [0, 1, 1, 1, 1, 0, 1], np.int32)
    for each in (k, v):
        each[[0, pages - 1]] = np.nan
        for sequence in (0, 1):
            last = int(positions[sequences == sequence].max()) + 1
            if last < columns * form.page:
                each[tables[sequence, last // form.page], last % form.page :] = np.nan
    rows, chunks = len(positions), -(-columns * form.page // CHUNK)
    q = rng.normal(size=(rows, heads * form.size)).astype(form.dtype)
    for window in (0, 1, 100):
        expected = np.full_like(q, 7)
        scale = form.size**-0.5
        TWINS["attend"](
            *(expected, q, k, v, positions, sequences, tables, rows, heads, kv_heads),
            *(columns, form.page, pages, window, scale),
        )
        found = []
        owners = np.concatenate([sequences, tables.ravel()])
        for together, split in ((1, 0), (1, 1), (TILE // form.group, 0), (TILE // form.group, 1)):
            out = np.full_like(q, 7)
            parts = np.full(rows * heads * chunks * (form.size + 2), np.nan, np.float32)
            pointers = [each.ctypes.data for each in (out, parts, q, k, v, positions, owners)]
            numbers = (rows, kv_heads, columns, pages, window, chunks, together, 0)

            def run(which: int, x: int, y: int) -> None:
                given = struct.pack("q7Qf8i", which, *pointers, scale * np.log2(np.e), *numbers)  # noqa: B023
                launch(given + bytes(-len(given) % 8), (x, y), 32 * WARPS)

            tiles = -(-rows // together)
            if split:
                run(1, -(-tiles * kv_heads // WARPS), chunks)
                run(2, -(-rows * heads // WARPS), 1)
            else:
                run(0, -(-tiles // WARPS), kv_heads)
            found.append(out)
            assert np.isfinite(out.astype(float)).all()
        for other in found[1:]:
            assert other.tobytes() == found[0].tobytes()
        tolerance = {1: 4e-3, 2: 3e-2}[form.kind]
        np.testing.assert_allclose(
            found[0].astype(float), expected.astype(float), rtol=tolerance, atol=tolerance
        )
        assert (found[0][6] == 0).all()


@pytest.mark.headers
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
@pytest.mark.parametrize("form", FORMS)
def test_nvrtc_compiles_every_kernel(form: Form, capability: tuple[int, int]) -> None:
    macros = {"KIND": form.kind, "SIZE": form.size, "GROUP": form.group, "PAGE": form.page}
    defined = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    with NvrtcProgram(defined + SOURCE, "kernel.cu") as program:
        flag = f"--gpu-architecture={program.architecture(capability)}"
        log = program.compile("the kernels", (flag, *toolkit_flags()))
        assert "warning" not in log
        assert program.output("CUBIN")[:4] == b"\x7fELF"
