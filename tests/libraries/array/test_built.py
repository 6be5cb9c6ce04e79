"""Kernels of expressions from program to launch: built on one lane, launched on another.

The device is the CPU's, with executors that compile kernels for the host.
"""

from __future__ import annotations

import ctypes
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from atomr_accel import Device, Unsupported, open_device
from atomr_accel.backends.cpu import BACKEND
from atomr_accel.libraries.array import evaluate as _evaluate
from atomr_accel.libraries.array.evaluate import BUILDS
from atomr_accel.libraries.array.host import _cuda_expression
from atomr_accel.libraries.array.host._codegen import NAME, PRELUDE, body_of
from atomr_accel.libraries.array.host.cpu import CpuArrayExecutor
from atomr_accel.libraries.array.wire._program import (
    BuildKernels,
    ExpressionLaunch,
    ForgetKernel,
    ForgetKernels,
    KernelForm,
    RunKernels,
)
from atomr_accel.ops import ARRAY_LANE as LANE
from atomr_accel.ops import CallTemplate

from ...fakes.driver import FakeDriver, installed
from ..host_kernels import compile_bodies, needs_compiler, on_host
from .generated import Case, Leaves, aligned

BUILT: Final[dict[int, tuple[KernelForm, Any]]] = {}
LOG: Final[list[str]] = []


class HostBuilder:
    """Builds kernels for this processor."""

    def __init__(self, context: Any, stream: Any) -> None:
        self.handlers = {
            BuildKernels: self._build,
            ForgetKernel: self._forget,
            ForgetKernels: lambda _message: None,
        }

    def close(self) -> None:
        """Keep the module loaded."""

    def _build(self, message: BuildKernels) -> None:
        LOG.append("build")
        bodies = [body_of(form) for form in message.forms]
        with tempfile.TemporaryDirectory() as folder:
            made = compile_bodies(on_host(PRELUDE), bodies, NAME, Path(folder))
        BUILT.update(zip(message.kernels, zip(message.forms, made, strict=True), strict=True))

    def _forget(self, message: ForgetKernel) -> None:
        LOG.append("forget")
        BUILT.pop(message.kernel, None)


class HostArray(CpuArrayExecutor):  # type: ignore[misc] # final for all but this
    """Launches them."""

    def __init__(self, context: Any, stream: Any) -> None:
        super().__init__(context, stream)
        self.handlers[RunKernels] = self._run

    def on(self, stream: Any) -> HostArray:
        return HostArray(self._context, stream)

    def _run(self, message: RunKernels) -> None:
        for launch in message.launches:
            form, run = BUILT[launch.kernel]
            pointers = [
                self._context.pointer(address) if address else 0 for address in launch.addresses
            ]
            words = struct.pack(f"={len(pointers)}Q", *pointers)
            words += struct.pack(f"={len(launch.numbers)}q", *launch.numbers)
            words += struct.pack(f"={len(launch.scalars)}I", *launch.scalars)
            run(words, launch.blocks, form.threads)


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU's device compiles kernels."""
    capabilities: Any = BACKEND.capabilities
    monkeypatch.setitem(LANE.executors, "cpu", f"{__name__}:HostArray")
    monkeypatch.setitem(BUILDS.executors, "cpu", f"{__name__}:HostBuilder")
    computing = _evaluate.computing
    monkeypatch.setattr(
        _evaluate,
        "computing",
        lambda _interpreted, *rest, **named: computing(False, *rest, **named),
    )
    assert capabilities.python_kernels
    LOG.clear()
    yield
    BUILT.clear()


async def held(device: Device, ref: Any, wanted: Any) -> None:
    """A ref holds what NumPy has."""
    np.testing.assert_allclose(await device.get(ref), wanted, rtol=1e-5, atol=1e-6)


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("compiling")
async def test_nothing_is_built_for_a_refused_sort() -> None:
    async with open_device(0, backend="cpu", isolation="thread") as device:
        x = await device.put(np.ones((2, 2), np.complex64))
        for call in (device.array.sort, device.array.argsort):
            for given, descending in ((x, False), (x[0], True)):
                with pytest.raises(TypeError, match="has no order"):
                    await call(given, descending=descending)
        assert LOG == []


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("compiling")
async def test_kernels_are_built_once_and_launched_by_all() -> None:
    array = np.random.default_rng(3).standard_normal((6, 40)).astype(np.float32)
    async with open_device(0, backend="cpu", isolation="thread") as device:
        x = await device.put(array)
        for number in (2.0, 3.0):
            await held(device, await device.evaluate(x * number + 1), array * number + 1)
        assert LOG == ["build"]

        # The memory that is read, transposed: by way of scratch memory.
        square = await device.put(array[:, :6])
        await device.evaluate(square.T * 2, out=square)
        await held(device, square, array[:, :6].T * 2)
        await device.evaluate(square - square.mean(0), out=square)
        wanted = array[:, :6].T * 2
        await held(device, square, wanted - wanted.mean(0))

        # In a batch only the launches of a kernel wait until it is built.
        LOG.clear()
        async with device.batch() as batch:
            y = batch.evaluate(np.sqrt(abs(x)))
            z = batch.evaluate(np.sqrt(abs(y)))
        assert LOG == ["build"]
        await held(device, z, abs(array) ** 0.25)

        LOG.clear()
        async with device.record(x) as recording:
            z = recording.evaluate(np.cbrt(x).sum(axis=0))
        for factor in (1, 3):
            await device.evaluate(x * factor, out=x)
            array = array * np.float32(factor)
            await recording.replay()
            await held(device, z, np.cbrt(array).sum(axis=0))
        assert "build" in LOG

        mean, scaled = await device.evaluate(x.mean(), x * x.mean())
        await held(device, mean, array.mean())
        await held(device, scaled, array * array.mean())
        empty = await device.evaluate(x[:0] + 1, x.sum(0))
        assert (await device.get(empty[0])).shape == (0, 40)


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("compiling")
async def test_calls_that_are_traced_have_kernels_built_where_they_are_missing() -> None:
    array = np.random.default_rng(4).standard_normal((6, 40)).astype(np.float32)
    async with open_device(0, backend="cpu", isolation="thread") as device:
        x = await device.put(array)
        await device.copy(x.T)  # the lane that launches is open, that which builds is not
        LOG.clear()
        async with device.batch() as one:
            first = one.array.sum(x, axis=0)  # builds when its block is left
            async with device.batch() as other:
                made = [other.array.sum(x, axis=0) for _ in range(3)]
        assert 1 <= LOG.count("build") <= 2
        LOG.clear()
        made += [await device.array.sum(x, axis=0) for _ in range(3)]
        async with device.batch() as batch:
            made += [batch.array.sum(x, axis=0) for _ in range(3)]
        assert not LOG
        epoch = device.core.memory.epoch
        known = [
            each
            for each in device.array.call_templates.known.values()
            if type(each) is CallTemplate
        ]
        assert [each.epoch for each in known] == [epoch] * 2  # awaited, and in batches
        for each in (first, *made):
            await held(device, each, array.sum(axis=0))


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("compiling")
async def test_steps_have_their_kernels_built_one_after_the_other() -> None:
    async with open_device(0, backend="cpu", isolation="thread") as device:
        shades = np.random.default_rng(2).integers(0, 8, 500).astype(np.float32)
        x = await device.put(shades)
        counts, edges = await device.array.histogram(x, 8, (0, 8))
        exact, bounds = np.histogram(shades, 8, (0, 8))
        np.testing.assert_array_equal(await device.get(counts), exact)
        np.testing.assert_allclose(await device.get(edges), bounds)
        ordered = await device.get(await device.array.sort(x))
        np.testing.assert_array_equal(ordered, np.sort(shades))


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("compiling")
async def test_a_kernel_that_is_not_used_any_more_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_evaluate, "_MOST_KERNELS", 1)
    monkeypatch.setattr(_evaluate, "_MOST_PLANS", 1)
    async with open_device(0, backend="cpu", isolation="thread") as device:
        x = await device.put(np.ones(8, np.float32))
        for function in (np.sin, np.cos, np.tan):
            await device.evaluate(function(x))
        await device.evaluate(np.tan(x))
    assert LOG.count("forget") >= 1


# --- the executors for CUDA -----------------------------------------------------------------------


class Driver(FakeDriver):
    """A fake driver that records loaded modules and launch arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[int] = []
        self.launched: list[tuple[Any, ...]] = []
        self.status = 0

    def cuModuleLoadData(self, _image: bytes) -> tuple[int, int]:  # noqa: N802
        self.loaded.append(len(self.loaded) + 1)
        return 0, self.loaded[-1]

    def cuModuleGetFunction(self, module: int, _name: bytes) -> tuple[int, int]:  # noqa: N802
        return 0, module

    def cuModuleUnload(self, module: int) -> tuple[int]:  # noqa: N802
        self.loaded.remove(module)
        return (0,)

    def cuLaunchKernel(self, *arguments: Any) -> tuple[int]:  # noqa: N802
        _, data, _, size, _ = (ctypes.c_void_p * 5).from_address(arguments[-1])
        count = ctypes.c_size_t.from_address(size or 0).value
        self.launched.append((*arguments[:-1], ctypes.string_at(data or 0, count)))
        return (self.status,)


class Context:
    """A context of no device."""

    compute_capability = (9, 0)

    def pointers(self, addresses: Any) -> list[int]:
        return [address + 1 for address in addresses]


@pytest.mark.headers
def test_built_kernels_stay_while_an_executor_holds_them() -> None:
    leaves = Leaves()
    x = leaves.put(aligned(np.ones(1024, np.float32)))
    (form,) = Case(leaves, [x * 2]).forms
    context: Any = Context()
    stream: Any = SimpleNamespace(handle=7)
    with installed(driver := Driver()):
        one = _cuda_expression.CudaBuilder(context, stream)
        other = _cuda_expression.CudaBuilder(context, stream)
        for builder in (one, one, other):
            builder.handlers[BuildKernels](BuildKernels((5,), (form,)))
        assert len(driver.loaded) == 1
        one.handlers[BuildKernels](BuildKernels((5, 8), (form, form)))
        assert len(driver.loaded) == 2
        run = _cuda_expression.CudaExpressions(context, stream).handlers[RunKernels]
        launch = ExpressionLaunch(5, (3, 1), (16, 32), (1, 2, -3), (8, 9))
        run(RunKernels((launch, launch)))
        words = struct.pack("=QQqqq", 17, 33, 1, 2, -3) + struct.pack("=II", 8, 9)
        assert driver.launched == [(1, 3, 1, 1, form.threads, 1, 1, 0, 7, 0, words)] * 2
        one.handlers[ForgetKernels](ForgetKernels((5, 8)))
        assert len(driver.loaded) == 1
        one.handlers[ForgetKernel](ForgetKernel(5))
        one.handlers[ForgetKernel](ForgetKernel(6))
        assert len(driver.loaded) == 1
        with pytest.raises(Unsupported, match="could not be built"):
            run(RunKernels((msgspec.structs.replace(launch, kernel=9),)))
        driver.status = 1
        with pytest.raises(Exception, match="cuLaunchKernel"):
            run(RunKernels((launch,)))
        other.close()
        assert not driver.loaded


def test_uncompiled_function_is_unsupported_on_cuda() -> None:
    leaves = Leaves()
    x = leaves.put(aligned(np.ones(8, np.complex64)))
    half = leaves.put(aligned(np.ones(8, np.float16)))
    for expression in (np.rint(x), np.spacing(half)):
        (form,) = Case(leaves, [expression]).forms
        with pytest.raises(Unsupported, match="is not computed on CUDA devices"):
            body_of(form)
