"""Tests that need a GPU: real faults, each in a process of its own, and surviving objects."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from atomr_accel import ContextPoisoned
from atomr_accel.testing import FAULTS, poison
from tests.harness import opened

from .. import seeds

pytestmark = pytest.mark.gpu

_ONE_FAULT = """
import sys
import numpy as np, trio
from atomr_accel import ContextPoisoned, open_device
from atomr_accel.testing import FAULTS, poison

async def main(kind):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((300, 200)), rng.standard_normal((200, 100))
    async with open_device(0, backend="cuda") as device:
        fault = await poison(device, kind)
        assert fault.status == FAULTS[kind].status, fault
        assert fault.status_name == FAULTS[kind].status_name, fault
        assert isinstance(fault.__cause__, ContextPoisoned)
        out = await device.full((300, 100), np.nan)
        await device.blas.gemm(await device.put(a), await device.put(b), out=out)
        np.testing.assert_allclose(await device.get(out), a @ b, rtol=1e-12, atol=1e-12)
        assert device.generation == 2

trio.run(main, sys.argv[1])
"""


@pytest.mark.parametrize("kind", FAULTS)
def test_a_real_fault_is_survived_by_a_fresh_process(kind: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", _ONE_FAULT, kind], check=True, timeout=60)


async def test_the_hardware_protects_sealed_memory() -> None:
    host = seeds.rng().standard_normal(1000).astype(np.float32)
    source = "__global__ void cheat(const float* x) { ((float*)x)[threadIdx.x] = 1.0f; }"
    async with opened() as device:
        sealed = await device.put(host, sealed=True)
        cheat = await device.nvrtc.compile(source, "cheat")
        with pytest.raises(ContextPoisoned) as caught:
            await cheat.launch(1, 32, sealed)
        assert caught.value.status == 700
        np.testing.assert_array_equal(await device.get(sealed), host)


@pytest.mark.slow
async def test_fifty_faults_in_a_row() -> None:
    weights = seeds.rng().standard_normal((64, 64))
    async with opened(max_restarts=1000) as device:
        sealed = await device.put(weights, sealed=True)
        before = device.statistics().memory.used
        for index in range(50):
            fault = await poison(device, list(FAULTS)[index % len(FAULTS)])
            assert fault.generation == index + 1
            product = await device.get(await device.blas.gemm(sealed, sealed))
            np.testing.assert_allclose(product, weights @ weights, rtol=1e-12, atol=1e-12)
        assert device.generation == 51
        assert device.statistics().memory.used == before
        assert device.statistics().in_flight == 0


async def test_forty_gib_survive_a_fault_bit_for_bit() -> None:
    tile = seeds.rng().integers(0, 2**63, 1 << 27, dtype=np.int64)  # 1 GiB
    async with opened() as device:
        if device.info.total_memory < 48 << 30:
            pytest.skip(f"needs 48 GiB on the device; it has {device.info.total_memory >> 30}")
        refs = [await device.put(tile ^ index, sealed=True) for index in range(40)]
        await poison(device)
        back = np.empty_like(tile)
        for index, ref in enumerate(refs):
            assert not ref.is_stale
            await device.get(ref, out=back)
            assert np.array_equal(back, tile ^ index), f"GiB {index} has changed"
