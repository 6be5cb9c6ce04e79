"""Our kernels themselves: compiled for the host, where they compute, and for GPUs.

On the host each thread is a fiber, and ``warps_on_host.h`` implements products and loads of
matrices after the PTX ISA. Indices, masks, lengths and sums are therefore those of a GPU. Unlike on
a GPU, copies are done at once, and warps keep step.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atomr_accel.executors.compiler import compile_cubin
from atomr_accel.libraries.flash_attention.host._launches import (
    BY_KEYS,
    BY_QUERIES,
    FORWARD_TILES,
    LEAST_SHARED,
    launches,
    width_of,
)
from atomr_accel.libraries.flash_attention.host._problem import AttentionProblem
from atomr_accel.libraries.flash_attention.wire._messages import AttentionForm

from ...harness import opened, sized
from ..conformance import MARKS, check, dtype_of, on_cuda
from ..dnn.attention.inputs import HALF, floats, integers, normal
from ..host_kernels import needs_compiler
from .on_host import HostKernels, replace_numpy
from .rows import OPERATIONS

pytestmark = MARKS

HOPPER = 227 << 10
"""Bytes of shared memory that a block may have there."""

on_host = [needs_compiler, pytest.mark.slow, pytest.mark.skipif(on_cuda(), reason="is for the CPU")]
E4M3, E5M2, BFLOAT16 = map(dtype_of, ("float8_e4m3fn", "float8_e5m2", "bfloat16"))


def form(kind: str, dtype: str = "float16", size: int = 64, **more: Any) -> AttentionForm:
    """A call of no particular sizes."""
    given: dict[str, Any] = {"kv_dtype": dtype, "out_dtype": dtype, "value_size": size, **more}
    given |= {"batch": 2, "heads": 4, "kv_heads": 2, "queries": 100, "keys": 200}
    steps = ((1, 1, 1),) * 6
    return AttentionForm(kind, dtype, size=size, rows_q=0, rows_k=0, steps=steps, **given)


def every_form() -> Iterator[tuple[AttentionForm, list[str]]]:
    """Calls that take every kernel: all options by themselves and together, all sizes."""
    bias = {"bias": (1, 4, 100, 200)}
    options: list[dict[str, Any]] = [
        {"softcap": softcap, "paper": paper, **which, "dropout": dropout}
        for softcap, paper, which, dropout in itertools.product(
            (0.0, 2.0), (False, True), ({}, bias), (0.0, 0.1)
        )
    ]
    for kind in ("forward", "backward"):
        for dtype in ("float16", "bfloat16"):
            for each in options:
                yield form(kind, dtype, **each), ["sink", "dsink", *["dbias"] * ("bias" in each)]
            for size in FORWARD_TILES:
                yield form(kind, dtype, size), []
                yield form(kind, dtype, size, value_size=64, **options[-1]), ["dbias"]
    everything = {"softcap": 2.0, "paper": True, "dropout": 0.1, "page": 16}
    for size, value_size in ((128, 128), (64, 128), (128, 64)):
        yield form("forward", "float16", size, value_size=value_size, **everything), []
    for dtype, cache in (
        *itertools.product(("float16", "bfloat16"), ("", "float8_e4m3fn", "float8_e5m2")),
        ("float8_e4m3fn", "float8_e4m3fn"),
        ("float8_e5m2", "float8_e4m3fn"),
    ):
        out = "bfloat16" if "8" in dtype else dtype
        for size in FORWARD_TILES:
            for softcap in (0.0, 2.0):
                more: dict[str, Any] = {"softcap": softcap, "paper": softcap > 0, "splits": 3}
                more |= {"kv_dtype": cache or dtype, "out_dtype": out}
                yield form("decode", dtype, size, **more), []


def every_launch(most: int, processors: int = 0) -> dict[str, Any]:
    return {
        launch.name: launch
        for each, given in every_form()
        for launch in launches(each, {*given, "scratch"}, most, processors)
    }


def test_tiles_fit_into_the_shared_memory_of_every_device() -> None:
    assert FORWARD_TILES.keys() == BY_KEYS.keys() == BY_QUERIES.keys()
    assert [width_of(size) for size in (8, 32, 40, 72, 128, 136, 248)] == [
        *(32, 32, 64, 96, 128, 192, 256)
    ]
    for most, processors in ((LEAST_SHARED, 0), (HOPPER, 0), (HOPPER, 132)):
        for launch in every_launch(most, processors).values():
            assert launch.shared <= most, launch.name
            assert launch.threads % 32 == 0


@pytest.mark.headers
@pytest.mark.slow
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 1)], ids=str)
def test_nvrtc_compiles_every_kernel(capability: tuple[int, int]) -> None:
    every = every_launch(HOPPER if capability == (9, 0) else LEAST_SHARED)
    assert len(every) > 100
    names = [*every][:: sized(8, 1) if capability == (9, 0) else sized(32, 4)]
    for name in names:
        source = every[name].source
        image, lowered, log = compile_cubin(source.text, name, source.options, capability)
        assert lowered.encode() in image
        assert "warning" not in log, (name, log)


@pytest.mark.headers
@pytest.mark.slow
def test_nvrtc_compiles_every_kernel_for_warpgroups() -> None:
    """Registers suffice, and products wait for none but those that are asked for."""
    every = every_launch(HOPPER, 132)
    names = [name for name in every if name.startswith("forward_groups")]
    assert len(names) > 10
    for name in names[:: sized(4, 1)]:
        source = every[name].source
        options = (*source.options, "--ptxas-options=-v")
        image, lowered, log = compile_cubin(source.text, name, options, (9, 0))
        assert lowered.encode() in image
        assert "warning" not in log, (name, log)
        assert "wgmma" not in log, (name, log)  # ptxas tells where it had to wait by itself


def test_arguments_have_the_order_of_the_kernels() -> None:
    (launch,) = launches(form("forward"), [])
    text = re.sub(r"//.*", "", launch.source.text)
    found = re.search(r"struct Problem \{(.*?)\};", text, re.DOTALL)
    assert found is not None
    declared = [
        re.sub(r"\W", "", each.split()[-1]) for each in re.split("[,;]", found[1].strip(" \n;"))
    ]
    assert declared == [name for name, *_ in AttentionProblem._fields_]


@pytest.mark.headers
def test_arguments_are_as_large_as_the_kernels_have_them() -> None:
    (launch,) = launches(form("forward"), [])
    size = ctypes.sizeof(AttentionProblem)
    source = f"{launch.source.text}\nstatic_assert(sizeof(Problem) == {size});\n"
    compile_cubin(source, "forward<h16, 32, 32, 1, 1, 16, 0>", (), (8, 0))


# --- on the host --------------------------------------------------------------------------


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HostKernels:
    made = HostKernels(tmp_path)
    replace_numpy(monkeypatch, made)
    return made


def mark(operation: Any) -> Any:
    return pytest.param(operation, id=operation.name.partition(".")[2], marks=on_host)


@pytest.mark.parametrize("operation", [mark(each) for each in OPERATIONS])
async def test_kernels_conform_on_the_host(operation: Any, kernels: HostKernels) -> None:
    """The rows of the library; the same dtype for all, since each takes compiling."""
    step = sized(6, 1)
    async with opened(isolation="thread", standby=None) as device:
        for case in operation.cases[::step]:
            await check(device, operation, "float16", case, "flash_attention on the host")
    assert kernels.ran


@pytest.mark.parametrize(
    ("dtype", "size", "options"),
    [
        pytest.param(dtype, size, options, marks=on_host, id=f"{name}-{size}")
        for name, dtype, size, options in (
            ("causal", HALF, 64, {"causal": True}),
            ("window", BFLOAT16, 56, {"window_size": (70, 20), "softcap": 3.0}),
            ("slopes", HALF, 120, {"alibi_slopes": True, "causal": True}),
            ("dropout", BFLOAT16, 128, {"dropout_p": 0.3, "seed": 5, "offset": 8}),
        )
    ],
)
async def test_warpgroups_on_the_host(
    dtype: Any,
    size: int,
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks take several works each, some without queries or keys."""
    rng = np.random.default_rng(size)
    kernels = HostKernels(tmp_path)
    async with opened(isolation="thread", standby=None) as device:
        q = await device.put(normal(rng, 3, 260, 2, size, dtype=dtype))
        k, v = [await device.put(normal(rng, 3, 280, 1, size, dtype=dtype)) for _ in "kv"]
        lengths = {
            name: await device.put(integers(each))
            for name, each in (("seqlens_q", [260, 0, 31]), ("seqlens_k", [280, 77, 0]))
        }
        found = []
        for processors in (3, 0):
            if processors:
                replace_numpy(monkeypatch, kernels, processors)
            else:
                monkeypatch.undo()
            flash: Any = device.flash_attention
            given = {**options, **lengths, "backend": "kernel"}
            out, lse, _ = await flash.flash_attn_func(q, k, v, return_attn_probs=True, **given)
            found.append([(await device.get(ref)).astype(float) for ref in (out, lse)])
    assert [name.partition("<")[0] for name in kernels.ran] == ["forward_groups"]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=0.04, rtol=0.02)


@pytest.mark.parametrize("size", [pytest.param(size, marks=on_host) for size in (72, 136)])
async def test_sizes_on_the_host(size: int, kernels: HostKernels, monkeypatch: Any) -> None:
    """In bfloat16; those above 128 have gradients by keys and values from two kernels."""
    rng = np.random.default_rng(size)
    async with opened(isolation="thread", standby=None) as device:
        q, k, v, do = [
            await device.put(normal(rng, 1, n, heads, width, dtype=BFLOAT16))
            for n, heads, width in ((70, 2, size), (90, 1, size), (90, 1, 40), (70, 2, 40))
        ]
        found = []
        for numpy in (False, True):
            if numpy:
                monkeypatch.undo()
            given: Any = {"causal": True, "backend": "kernel"}
            flash: Any = device.flash_attention
            out, lse, _ = await flash.flash_attn_func(q, k, v, return_attn_probs=True, **given)
            grads = await flash.flash_attn_backward(do, q, k, v, out, lse, **given)
            found.append([(await device.get(ref)).astype(float) for ref in (out, lse, *grads)])
    assert sum(name.startswith("by_keys") for name in kernels.ran) == (1 if size < 128 else 2)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=0.04, rtol=0.02)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, marks=on_host, id=name)
        for name, options in (
            ("dropout", {"dropout_p": 0.3, "seed": 2**40 + 5, "offset": 7, "keys": 90}),
            ("dropout by fours", {"dropout_p": 0.3, "seed": 3, "offset": 8, "keys": 92}),
            ("bias of one row", {"bias": (2, 1, 1, 90), "causal": True}),
            ("slopes of the paper", {"alibi_slopes": True, "causal": True}),
        )
    ],
)
async def test_options_on_the_host(
    options: dict[str, Any], kernels: HostKernels, monkeypatch: Any
) -> None:
    """Against what NumPy computes: masks of dropout are the very same."""
    rng = np.random.default_rng(0)
    given = {**options, "backend": "kernel"}
    keys = given.pop("keys", 90)
    async with opened(isolation="thread", standby=None) as device:
        q, k, v, do = [
            await device.put(normal(rng, 2, n, heads, 32))
            for n, heads in ((70, 6), (keys, 2), (keys, 2), (70, 6))
        ]
        if "bias" in options:
            given["bias"] = await device.put(normal(rng, *options["bias"]))
        found = []
        for numpy in (False, True):
            if numpy:
                monkeypatch.undo()
            flash: Any = device.flash_attention
            out, lse, _ = await flash.flash_attn_func(q, k, v, return_attn_probs=True, **given)
            grads = await flash.flash_attn_backward(do, q, k, v, out, lse, **given)
            found.append([(await device.get(ref)).astype(float) for ref in (out, lse, *grads)])
    for one, other in zip(*found, strict=True):
        size = max(1.0, np.abs(other).max())
        np.testing.assert_allclose(one / size, other / size, atol=0.004)


@pytest.mark.parametrize("queries", [pytest.param(n, marks=on_host) for n in (1, 9)])
@pytest.mark.parametrize(("dtype", "cache"), [(HALF, E5M2), (BFLOAT16, E4M3), (E4M3, E4M3)])
async def test_caches_in_fp8_on_the_host(
    dtype: Any, cache: Any, queries: int, kernels: HostKernels, monkeypatch: Any
) -> None:
    """Split among blocks, whose parts are added."""
    rng = np.random.default_rng(0)
    async with opened(isolation="thread", standby=None) as device:
        q = await device.put(normal(rng, 2, queries, 4, 32, dtype=dtype))
        k, v = [await device.put(normal(rng, 20, 33, 2, 32, dtype=cache)) for _ in "kv"]
        table = await device.put(rng.permutation(20).reshape(2, 10).astype(np.int32))
        lengths = await device.put(integers([300, 17]))
        scale = await device.put(floats([[0.5, 1.0], [2.0, 0.25]]))
        sink = await device.put(floats([0, 1, 2, 3]))
        found = []
        for numpy in (False, True):
            if numpy:
                monkeypatch.undo()
            flash: Any = device.flash_attention
            out, lse = await flash.flash_attn_with_kvcache(
                *(q, k, v),
                cache_seqlens=lengths,
                block_table=table,
                k_descale=scale,
                v_descale=scale,
                sink=sink,
                causal=True,
                num_splits=3,
                return_softmax_lse=True,
            )
            found.append([(await device.get(ref)).astype(float) for ref in (out, lse)])
    assert any(name.startswith("combine") for name in kernels.ran)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=0.02, rtol=0.01)


@pytest.mark.parametrize("queries", [pytest.param(n, marks=on_host) for n in (3, 70)])
async def test_a_cache_without_keys_on_the_host(
    queries: int, kernels: HostKernels, monkeypatch: Any
) -> None:
    """By the kernel for few queries, and by that for many."""
    rng = np.random.default_rng(0)
    async with opened(isolation="thread", standby=None) as device:
        q = await device.put(normal(rng, 2, queries, 4, 32))
        k, v = [await device.put(normal(rng, 2, 9, 2, 32)) for _ in "kv"]
        sink = await device.put(floats([0, 1, 2, 3]))
        found = []
        for numpy in (False, True):
            if numpy:
                monkeypatch.undo()
            flash: Any = device.flash_attention
            for given in ({}, {"sink": sink, "causal": True, "window_size": (3, 0)}):
                out, lse = await flash.flash_attn_with_kvcache(
                    q, k, v, cache_seqlens=0, return_softmax_lse=True, **given
                )
                assert not (await device.get(out)).any()
                found.append(await device.get(lse))
    assert any(name.startswith("decode" if queries == 3 else "forward") for name in kernels.ran)
    for one, other in zip(found[:2], found[2:], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
