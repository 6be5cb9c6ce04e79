"""The host's half of lanes against a device that runs behind them; see ``behind``."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.lanes import Op
from atomr_accel.wire import HostClass

from ..fakes import behind
from ..harness import cpu_only, opened, program, sized
from .programs import KINDS, Array, Run
from .running import Delayed, compiled, programs

pytestmark = cpu_only


_CLASSES = "tests.fakes.host_classes"

SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"completion": name} for name in ("blocking", "polled", "hybrid", "callback")},
    "per_library": {"threads": "per_library"},
    "per_library, pooled": {"threads": "per_library", "streams": "pooled", "stream_pool": 2},
    "per_library, single": {"threads": "per_library", "streams": "single"},
    "erratic": {"completion": HostClass(f"{_CLASSES}:ErraticCompletion", {"seed": 1})},
    "scattered": {"streams": HostClass(f"{_CLASSES}:ScatteredStreams", {"seed": 2, "count": 3})},
    "scattered, per_library": {
        "streams": HostClass(f"{_CLASSES}:ScatteredStreams", {"seed": 3, "count": 2}),
        "threads": "per_library",
    },
}


@pytest.fixture(scope="module", params=SETTINGS)
def late(request: pytest.FixtureRequest) -> Iterator[Delayed]:
    options: dict[str, Any] = {"backend": behind.BACKEND, "isolation": "thread"}
    with (
        behind.backend(),
        contextlib.closing(Delayed(**options, **SETTINGS[request.param])) as device,
    ):
        yield device


@pytest.mark.slow
@settings(max_examples=sized(10, 25))
@given(ops=programs(100))
def test_ops_behave_as_if_run_one_after_the_other(
    late: Delayed, ops: list[tuple[str, int]]
) -> None:
    late.run(lambda: late.check(ops))


async def goes_wrong(most: int) -> bool:
    """Return whether the model disagrees with one of the programs."""
    async with opened(backend=behind.BACKEND, isolation="thread", completion="polled") as device:
        kernel = await compiled(device)
        for seed in range(most):
            ops = [(kind, seed * 100 + at) for at, kind in enumerate(KINDS * 3)]
            try:
                await Run(device, kernel).run(ops)
            except AssertionError:
                return True
        return False


@pytest.mark.parametrize("missing", ["nothing", "dependencies", "follow"])
async def test_missing_dependency_is_detected(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Or the test above would prove nothing."""
    if missing == "dependencies":
        nothing = property(lambda op: (), lambda op, dependencies: None)
        monkeypatch.setattr(Op, "dependencies", nothing)
    elif missing == "follow":
        monkeypatch.setattr(behind.Stream, "follow", lambda stream, other: None)
    with behind.backend():
        if missing == "nothing":
            assert not await goes_wrong(10)
        else:
            assert await goes_wrong(100)


@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=60),
    chained=st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_small_products_go_together(sizes: list[int], chained: list[bool]) -> None:
    """Products of one shape, in a row and independent of each other, are joined."""

    @program
    async def run() -> None:
        with behind.backend() as world:
            async with opened(backend=behind.BACKEND, isolation="thread") as device:
                rng = np.random.default_rng(0)
                arrays = {n: rng.integers(-3, 4, (n, n)).astype("f4") for n in (1, 2, 3)}
                refs = {n: await device.put(array) for n, array in arrays.items()}
                await device.blas.gemm(refs[1], refs[1])
                world.fused.clear()
                made: list[tuple[int, Any, Array]] = []
                async with device.batch() as batch:
                    for n, chain in zip(sizes, chained, strict=False):
                        if chain and made and made[-1][0] == n:
                            _, last, product = made[-1]
                            ref = batch.blas.gemm(last, refs[n])
                            made.append((n, ref, product @ arrays[n]))
                        else:
                            ref = batch.blas.gemm(refs[n], refs[n])
                            made.append((n, ref, arrays[n] @ arrays[n]))
                for _, ref, expected in made:
                    assert np.allclose(await device.get(ref), expected, rtol=1e-4)
                assert all(2 <= count <= behind.TOGETHER for count in world.fused)

    run()


@pytest.mark.parametrize("strategy", ["shared", "per_actor", "pooled", "single"])
async def test_grouped_ops_keep_order_over_several_streams(strategy: Any) -> None:
    with behind.backend() as world:
        before = world.opened - world.closed  # of other devices
        opening = opened(backend=behind.BACKEND, isolation="thread", streams=strategy)
        async with opening as device:
            a = await device.put(np.eye(2, dtype=np.float32))
            await device.blas.gemm(a, a)
            streams = len(world.streams)
            async with device.batch() as batch:
                refs = [batch.blas.gemm(a, a) for _ in range(200)]
            assert sum(world.fused) > 100
            assert max(world.fused) == behind.TOGETHER
            assert (len(world.streams) > streams) == (strategy != "single")
            for ref in refs:
                assert np.array_equal(await device.get(ref), np.eye(2))
        assert world.opened - world.closed == before  # each of them once


async def test_a_program_with_very_many_descriptors() -> None:
    """``select`` takes none above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        stack.enter_context(behind.backend())
        options: dict[str, Any] = {"backend": behind.BACKEND, "completion": "hybrid"}
        async with opened(isolation="thread", **options) as device:
            x = a = await device.put(np.eye(300, dtype=np.float32))
            async with device.batch() as batch:
                for _ in range(100):
                    x = batch.blas.gemm(x, a)
            assert np.array_equal(await device.get(x), np.eye(300))
