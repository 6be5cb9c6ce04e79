"""The example's product for Hopper: what can be known of it without a GPU."""

from __future__ import annotations

import sys
from typing import Any, Final

import cloudpickle
import ml_dtypes
import numpy as np
import pytest

from atomr_accel import Device
from atomr_accel.executors import compiler as _compiler

from ...harness import ON_CUDA, ROOT, cpu_only, on_shared

sys.path.append(str(ROOT))
from examples import hopper_gemm

cloudpickle.register_pickle_by_value(hopper_gemm)  # the host cannot import examples

BF16: Final = np.dtype(ml_dtypes.bfloat16)
E4M3: Final = np.dtype(ml_dtypes.float8_e4m3fn)
DTYPES: Final = pytest.mark.parametrize("dtype", [BF16, E4M3], ids=lambda dtype: dtype.name)

PLANS: Final = [
    hopper_gemm.Plan(),
    hopper_gemm.Plan(cluster=1, stages=3, group=8),
    hopper_gemm.Plan(tile_n=128),
    hopper_gemm.Plan(tile_n=128, promote=4),
]

NAMES: Final = ["wide", "alone", "narrow", "promoted"]


@pytest.mark.headers
@DTYPES
@pytest.mark.parametrize("plan", PLANS, ids=NAMES)
def test_hopper_kernel_compiles_without_spills_and_overlaps_its_multiplications(
    plan: hopper_gemm.Plan, dtype: np.dtype[Any]
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    _compiler.load_nvrtc()
    options = ("--gpu-architecture=sm_90a", "--std=c++17", "--ptxas-options=-v")
    with _compiler.NvrtcProgram(plan.source(dtype), "kernel.cu") as compiling:
        log = compiling.compile("kernel 'gemm'", options)
        ptx = compiling.output("PTX").decode()
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    assert "Used 168 registers" in log  # a third of what a multiprocessor has, for 3 warpgroups
    assert "(C75" not in log  # wgmma that is serialized, setmaxnreg that is ignored
    kind = hopper_gemm.KINDS[dtype.name]
    k = 32 // dtype.itemsize
    assert f"wgmma.mma_async.sync.aligned.m64n{plan.tile_n}k{k}.f32.{kind}.{kind}" in ptx
    assert ("multicast::cluster" in ptx) == (plan.cluster > 1)


@pytest.mark.parametrize("plan", PLANS, ids=NAMES)
def test_hopper_kernel_fits_into_shared_memory(plan: hopper_gemm.Plan) -> None:
    assert plan.shared <= 227 << 10
    assert hopper_gemm.Plan(stages=5).shared > 227 << 10


@on_shared
@DTYPES
async def test_hopper_kernel_multiplies(device: Device, dtype: np.dtype[Any]) -> None:
    if device.info.compute_capability not in ((0, 0), (9, 0)):
        pytest.skip("wgmma is of compute capability 9.0")
    rng = np.random.default_rng()
    for m, n, k in ((70, 136, 80), (1, 8, 16)):
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (n, k)))
        out = await device.full((m, n), np.nan, BF16)
        left, right = await device.put(a), await device.put(b)
        await hopper_gemm.gemm(device, left, right, out, alpha=0.25)
        exact = 0.25 * a.astype(np.float64) @ b.astype(np.float64).T
        got = (await device.get(out)).astype(np.float64)
        # Of sums of fp8 the tensor cores keep some 14 bits, which may tip how they are rounded.
        rtol, slack = (2**-8, 1e-5) if dtype == BF16 or not ON_CUDA else (2**-7, 2.0**-12)
        np.testing.assert_allclose(got, exact, rtol=rtol, atol=slack * np.abs(exact).max())


@cpu_only
@on_shared
async def test_hopper_kernel_refuses_unsupported_sizes(device: Device) -> None:
    async def multiply(
        a: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...], *dtypes: Any
    ) -> None:
        dtypes = dtypes or (BF16, BF16, BF16)
        shapes = zip((a, b, out), dtypes, strict=True)
        refs = [await device.zeros(*each) for each in shapes]
        await hopper_gemm.gemm(device, refs[0], refs[1], refs[2])

    for shapes, why in (
        (((8, 12), (8, 12), (8, 8)), "multiple of 16"),
        (((8, 16), (9, 16), (8, 9)), "multiple of 16"),
        (((8, 16), (8, 24), (8, 8)), r"a @ b\.T takes"),
        (((8, 16), (8, 16), (8, 16)), r"a @ b\.T takes"),
    ):
        with pytest.raises(ValueError, match=why):
            await multiply(*shapes)
    fitting = ((8, 16), (8, 16), (8, 8))
    for dtypes in ((BF16, E4M3, BF16), (BF16, BF16, np.float32), (np.float32,) * 2 + (BF16,)):
        with pytest.raises(ValueError, match="a and b are both of"):
            await multiply(*fitting, *dtypes)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"tile_n": 64}, "tile_n"),
        ({"cluster": 4}, "cluster"),
        ({"stages": 1}, "stages"),
        ({"group": 0}, "positive"),
        ({"blocks": -1}, "positive"),
        ({"promote": -1, "tile_n": 128}, "positive"),
        ({"promote": 4}, "promote"),
    ],
    ids=str,
)
def test_plans_that_the_kernel_is_not_made_for_are_refused(wrong: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        hopper_gemm.Plan(**wrong)
