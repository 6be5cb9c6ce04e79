"""Kernels of layers, compiled for the host, against their NumPy functions."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from atomr_accel.executors.compiler import NvrtcProgram, toolkit_flags
from atomr_accel.llm.wire.kernels import SOURCE, THREADS, TWINS

from ..libraries.host_kernels import Launch, compile_bodies, needs_compiler

Array = np.ndarray[Any, Any]

TYPES = r"""
// A barrier of all threads, however often their warps have shuffled before.
static unsigned arrived, generation;
static void block_barrier() {
    unsigned now = generation;
    if (++arrived == blockDim.x) { arrived = 0; generation++; }
    while (now == generation) __syncthreads();
}
typedef h16 __half;
typedef b16 __nv_bfloat16;
static float __half2float(h16 x) { return widen(x); }
static float __bfloat162float(b16 x) { return widen(x); }
static h16 __float2half(float x) { h16 made; narrow(made, x); return made; }
static b16 __float2bfloat16(float x) { b16 made; narrow(made, x); return made; }
"""

RUN = r"""
struct Arguments { long long which; void* p[8]; float f; int n[9]; };
static void run(Arguments a) {
    void** p = a.p;
    int* n = a.n;
    if (a.which == 0) norm_rows((T*)p[0], (T*)p[1], (T*)p[2], n[0], n[1], a.f);
    if (a.which == 1)
        turn((T*)p[0], (T*)p[1], (T*)p[2], (T*)p[3], (T*)p[4], (float*)p[5], (int*)p[6],
             (int*)p[7], n[0], n[1], n[2], n[3], n[4], n[5], a.f);
    if (a.which == 3) choose_rows((int*)p[0], (float*)p[1], (int*)p[2], n[0], n[1]);
    if (a.which == 2)
        attend((T*)p[0], (T*)p[1], (T*)p[2], (T*)p[3], (int*)p[4], (int*)p[5], (int*)p[6], n[0],
               n[1], n[2], n[3], n[4], n[5], n[6], a.f);
}
"""


class Form(NamedTuple):
    """Macros of the kernels, and sizes of a test."""

    kind: int
    dtype: Any
    size: int
    heads: int
    kv_heads: int

    @property
    def block(self) -> int:
        """Heads of a block: half of those that share keys, if there are more than one."""
        group = self.heads // self.kv_heads
        return group // 2 if group % 2 == 0 else group


FORMS = [
    Form(0, np.float32, 8, 4, 2),
    Form(0, np.float32, 66, 3, 1),
    Form(1, np.float16, 40, 2, 2),
    Form(2, ml_dtypes.bfloat16, 32, 8, 2),
]


class Pair:
    """A kernel beside its NumPy function."""

    def __init__(self, form: Form, launch: Launch) -> None:
        self.form = form
        self._launch = launch

    def run(self, name: str, blocks: int, arrays: list[Array], *numbers: Any) -> list[Array]:
        """Run both on copies of arrays, and return what the kernel has made of them."""
        mine, theirs = ([each.copy() for each in arrays] for _ in range(2))
        *whole, factor = numbers
        TWINS[name](*theirs, *whole, factor)
        pointers = [each.ctypes.data for each in mine] + [0] * (8 - len(mine))
        given = struct.pack(
            "q8Qf9i", [*TWINS].index(name), *pointers, factor, *whole, *[0] * (9 - len(whole))
        )
        self._launch(given, (blocks, 1), THREADS)
        tolerance = {0: 2e-6, 1: 2e-3, 2: 2e-2}[self.form.kind]
        for found, expected in zip(mine, theirs, strict=True):
            kept = [np.nan_to_num(each.astype(float)) for each in (found, expected)]
            np.testing.assert_allclose(kept[0], kept[1], rtol=tolerance, atol=tolerance)
        return mine

    def run_choices(self, tokens: Array, logits: Array, choices: Array, threads: int) -> Array:
        """Run the kernel that chooses tokens."""
        pointers = [each.ctypes.data for each in (tokens, logits, choices)] + [0] * 5
        which = [*TWINS].index("choose_rows")
        given = struct.pack("q8Qf9i", which, *pointers, 0.0, *logits.shape, *[0] * 7)
        self._launch(given, (len(tokens), 1), threads)
        return tokens


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    """Return the kernels for all forms."""
    folder: Path = tmp_path_factory.mktemp("kernels")
    source = SOURCE.replace('extern "C" ', "").replace("__syncthreads", "block_barrier")
    source = "\n".join(line for line in source.split("\n") if not line.startswith("#include"))
    bodies = []
    for form in FORMS:
        macros = {"KIND": form.kind, "SIZE": form.size, "HEADS": form.block}
        head = "".join(f"#define {name} {value}\n" for name, value in macros.items())
        tail = "".join(f"#undef {name}\n" for name in (*macros, "WARPS", "PER"))
        bodies.append(f"{head}{source}{RUN}{tail}")
    launches = compile_bodies(TYPES, bodies, "run", folder)
    return [Pair(form, launch) for form, launch in zip(FORMS, launches, strict=True)]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(FORMS)))
def test_norms(pairs: list[Pair], number: int) -> None:
    rng, pair = np.random.default_rng(number), pairs[number]
    for size in (1, 33, 300, 1048):
        x = rng.normal(size=(4, size)).astype(pair.form.dtype)
        x[2] = 0
        weight = rng.normal(1, 0.5, size).astype(pair.form.dtype)
        pair.run("norm_rows", 5, [np.full_like(x, 7), x, weight], 4, size, 1e-5)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(FORMS)))
def test_turns(pairs: list[Pair], number: int) -> None:
    """Rows without a position or a slot write nothing."""
    rng, pair = np.random.default_rng(number), pairs[number]
    form, rows, context = pair.form, 7, 16
    cache = np.full((5, 2, form.kv_heads, form.size), 7, form.dtype)
    q = np.full((rows, form.heads * form.size), 7, form.dtype)
    qkv = rng.normal(size=(rows, (form.heads + 2 * form.kv_heads) * form.size))
    weights = rng.normal(1, 0.5, (2, form.size)).astype(form.dtype)
    table = rng.uniform(-1, 1, (context, 2, form.size // 2)).astype(np.float32)
    positions = np.array([0, 15, -1, 3, 4, 16, 2], np.int32)
    slots = np.array([9, 0, 1, -1, 10, 2, 5], np.int32)
    warps = rows * (form.heads + 2 * form.kv_heads)
    for normed in (0, 1):
        arrays = [q, cache, cache, qkv.astype(form.dtype), weights, table, positions, slots]
        numbers = (rows, form.heads, form.kv_heads, context, 10, normed, 1e-5)
        found = pair.run("turn", -(-warps // 4), arrays, *numbers)
        written = [slot for slot in range(10) if (found[2].reshape(10, -1)[slot] != 7).any()]
        assert written == [0, 5, 9]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(FORMS)))
def test_attention(pairs: list[Pair], number: int) -> None:
    """Pages lie anywhere, and those behind a position may hold anything."""
    rng, pair = np.random.default_rng(number), pairs[number]
    form, rows, page_size, pages, columns = pair.form, 6, 4, 9, 8
    shape = (pages, page_size, form.kv_heads, form.size)
    k, v = (rng.normal(size=shape).astype(form.dtype) for _ in "kv")
    q = rng.normal(size=(rows, form.heads * form.size)).astype(form.dtype)
    tables = np.zeros((2, columns), np.int32)
    tables[0, :5], tables[1, :4] = [4, 2, 8, 6, 1], [4, 2, 7, 3]
    positions = np.array([0, 18, 13, -1, 7, 2], np.int32)
    sequences = np.array([0, 0, 1, 0, 1, 1], np.int32)
    k[[0, 5]], v[[0, 5]] = np.nan, np.nan
    k[1, 3], v[1, 3] = np.nan, np.nan
    for window in (0, 1, 5):
        arrays = [np.full_like(q, 7), q, k, v, positions, sequences, tables]
        numbers = (rows, form.heads, form.kv_heads, columns, page_size, pages, window)
        blocks = rows * (form.heads // form.block)
        found = pair.run("attend", blocks, arrays, *numbers, form.size**-0.5)
        assert np.isfinite(found[0].astype(float)).all()
        assert (found[0][3] == 0).all()


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("threads", [32, 128])
def test_choices(pairs: list[Pair], threads: int) -> None:
    """Tokens are those of a cumulated sum, whose last bits may differ."""
    rng, rows = np.random.default_rng(threads), 10
    for size in (1, 31, 1000, 40_000):
        logits = rng.normal(0, 2, (rows, size)).astype(np.float32)
        logits[1] = logits[1, 0]  # the first of equal ones
        logits[2, : size // 2] = -np.inf
        logits[3, size // 2] = np.nan
        logits[4, size // 2] = np.inf
        logits[5] = -np.inf
        choices = np.stack([rng.choice([0, 0.01, 0.7, 1, 50], rows), rng.random(rows)], 1)
        choices[6], choices[7] = (1, 0), (1, 1 - 1e-9)
        tokens = np.full(rows, 7, np.int32)
        found = pairs[0].run_choices(tokens, logits, choices, threads)
        expected = np.full(rows, 7, np.int32)
        TWINS["choose_rows"](expected, logits, choices.view(np.int32), rows, size)
        assert found.tolist() == expected.tolist()
        assert (found[[3, 4, 5]] == -1).all()


@pytest.mark.headers
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_nvrtc_compiles_every_kernel(kind: int, capability: tuple[int, int]) -> None:
    for size, heads in ((64, 4), (80, 1), (128, 8)):
        macros = f"#define KIND {kind}\n#define SIZE {size}\n#define HEADS {heads}\n"
        with NvrtcProgram(macros + SOURCE, "kernel.cu") as program:
            flag = f"--gpu-architecture={program.architecture(capability)}"
            log = program.compile("the kernels", (flag, *toolkit_flags()))
            assert "warning" not in log
            assert program.output("CUBIN")[:4] == b"\x7fELF"
