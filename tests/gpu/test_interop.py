"""Buffers in PyTorch and CuPy, in this process and in the host."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import pytest

from atomr_accel import ContextPoisoned, GpuRefStale
from atomr_accel.lanes import Isolation
from atomr_accel.testing import kill_host, poison
from atomr_accel.testing.garbage import collect_garbage

from ..harness import opened, same_bits, settled, used_by

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

CONTENT: Final = np.random.default_rng(0).random((300, 400), dtype=np.float32)


class Library:
    """The functions of a library that these tests need, under its own names."""

    def __init__(self, name: str) -> None:
        self.name = name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.module: Any = importlib.import_module(name)
        self.from_dlpack: Callable[[Any], Any] = self.module.from_dlpack

    def view(self, export: Any) -> Any:
        """By the CUDA array interface."""
        if self.name == "torch":
            return self.module.as_tensor(export, device="cuda")
        return self.module.asarray(export)

    def make(self, array: np.ndarray[Any, Any]) -> Any:
        """An array of its own."""
        if self.name == "torch":
            return self.module.from_numpy(array).cuda()
        return self.module.asarray(array)

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        """Return the content of an array."""
        found: np.ndarray[Any, Any] = (
            array.cpu().numpy() if self.name == "torch" else self.module.asnumpy(array)
        )
        return found

    def finish(self) -> None:
        """Wait for its work."""
        if self.name == "torch":
            self.module.cuda.synchronize()
        else:
            self.module.cuda.get_current_stream().synchronize()


@pytest.fixture(params=["torch", "cupy"])
def library(request: pytest.FixtureRequest) -> Library:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not here")
    return Library(request.param)


# --- in this process ----------------------------------------------------------------------------


async def test_an_export_is_the_buffer_itself(library: Library, isolation: Isolation) -> None:
    async with opened(isolation=isolation) as device:
        ref = await device.put(CONTENT)
        export = await device.export(ref)
        for view in (library.view(export), library.from_dlpack(export)):
            assert same_bits(library.host(view), await device.get(ref))
            view[...] += 1
            library.finish()
            assert same_bits(library.host(view), await device.get(ref))
        row = library.view(await device.export(ref[7]))
        await device.fill(ref[7], 5)
        assert (library.host(row) == 5).all()
        sealed = await device.put(CONTENT, sealed=True)
        product = library.view(await device.export(sealed)) @ library.from_dlpack(export).T
        expected = CONTENT @ (await device.get(ref)).T
        np.testing.assert_allclose(library.host(product), expected, rtol=1e-3)
        del view, row, export, ref, sealed, product
        collect_garbage()
        await device.trim()
        assert used_by(device) == 0


async def test_errors_pass_while_views_are_dropped(library: Library, isolation: Isolation) -> None:
    async with opened(isolation=isolation) as device:
        ref = await device.put(CONTENT)
        export = await device.export(ref)
        for take in (library.from_dlpack, library.view, type(export).__dlpack__):
            with pytest.raises(ZeroDivisionError):
                max(take(export), [take(export)], 1 // 0)
        with pytest.raises((RuntimeError, ValueError)):
            library.from_dlpack(export) @ library.make(np.ones(7, np.float32))
        del ref, export
        collect_garbage()
        await settled(device)
        await device.trim()
        assert used_by(device) == 0


async def test_exports_outlive_faults_and_the_device(library: Library) -> None:
    async with opened(max_restarts=9) as device:
        ref = await device.put(CONTENT)
        sealed = await device.put(CONTENT, sealed=True)
        export = await device.export(ref)
        views = [library.view(export), library.view(await device.export(sealed))]
        for blow in (poison, kill_host):
            await blow(device)
            for view in views:
                assert same_bits(library.host(view), CONTENT)
            assert same_bits(library.host(library.view(await device.export(sealed))), CONTENT)
        with pytest.raises(GpuRefStale):
            library.from_dlpack(export)
        await device.free(sealed)
        await device.trim()
    for view in views:
        assert same_bits(library.host(view * 1), CONTENT)


async def test_arrays_are_adopted(library: Library, isolation: Isolation) -> None:
    async with opened(isolation=isolation) as device:
        array = library.make(CONTENT)
        array += 1  # which is queued, and comes first
        ref = await device.adopt(array)
        assert same_bits(await device.get(ref), CONTENT + 1)
        part = await device.adopt(array[10:20, 5:9])
        assert same_bits(await device.get(part), (CONTENT + 1)[10:20, 5:9])
        await device.fill(ref, 0)
        shared = isolation == "thread"
        assert same_bits(library.host(array), CONTENT * 0 if shared else CONTENT + 1)
        own = await device.put(CONTENT)
        home = library.view(await device.export(own))
        again = await device.adopt(home[3:5])
        await device.fill(again, 9)
        assert (await device.get(own))[3:5].min() == 9
        del ref, part, own, home, again
        collect_garbage()
        await settled(device)
        await device.trim()
        assert used_by(device) == 0


# --- in the host --------------------------------------------------------------------------------


def made_here() -> Any:
    """Functions of a function, which travel by value."""

    def of(library: str, array: Any) -> Any:
        module = importlib.import_module(library)
        return (
            module.as_tensor(array, device="cuda") if library == "torch" else module.asarray(array)
        )

    class Functions:
        @staticmethod
        def double(library: str, x: Any) -> Any:
            return of(library, x) * 2, float(of(library, x)[0, 0])

        @staticmethod
        def load(library: str, weights: Any) -> dict[str, Any]:
            return {"weights": of(library, weights), "library": library}

        @staticmethod
        def answer(model: dict[str, Any], x: Any) -> Any:
            return of(model["library"], x) @ model["weights"]

        @staticmethod
        def where(model: dict[str, Any], weights: Any) -> bool:
            interface = model["weights"].__cuda_array_interface__
            same: bool = interface["data"][0] == weights.pointer
            return same

        @staticmethod
        def drop(library: str, x: Any) -> Any:
            take = importlib.import_module(library).from_dlpack
            return [take(x), x.__dlpack__(), of(library, x), {"x": take(x)}, 1 // 0]

        @staticmethod
        def misfit(library: str, x: Any) -> Any:
            take = importlib.import_module(library).from_dlpack
            return take(x) @ take(x)  # whose shapes do not fit

        @staticmethod
        def fault(library: str) -> None:
            module = importlib.import_module(library)
            if library == "torch":
                module.zeros(3, device="cuda")[module.tensor([10**6], device="cuda")]
            else:
                source = 'extern "C" __global__ void fault() { *(volatile int*)(size_t)16 = 1; }'
                module.RawKernel(source, "fault")((1,), (1,), ())

    return Functions


F: Final = made_here()


async def test_functions_see_the_buffer_and_leave_results_on_the_device(library: Library) -> None:
    async with opened() as device:
        x = await device.put(CONTENT)
        ref, first = await device.run(F.double, library.name, x)
        assert first == CONTENT[0, 0]
        assert same_bits(await device.get(ref), CONTENT * 2)


async def test_a_functions_error_passes_while_it_drops_arrays(library: Library) -> None:
    async with opened() as device:
        x = await device.put(CONTENT)
        with pytest.raises(ZeroDivisionError):
            await device.run(F.drop, library.name, x)
        with pytest.raises((RuntimeError, ValueError)):
            await device.run(F.misfit, library.name, x)
        assert same_bits(await device.get(x), CONTENT)
        assert device.generation == 1


async def test_a_model_is_rebuilt_on_weights_that_were_not_uploaded_again(library: Library) -> None:
    async with opened(max_restarts=9) as device:
        weights = await device.put(CONTENT, sealed=True)
        init = partial(F.load, library.name, weights)
        for blow in (partial(poison, device), partial(kill_host, device), None):
            x = await device.put(np.ones((2, 300), np.float32))
            answer = await device.run(F.answer, x, lane="model", init=init)
            expected = np.ones((2, 300), np.float32) @ CONTENT
            np.testing.assert_allclose(await device.get(answer), expected, rtol=1e-3)
            assert await device.run(F.where, weights, lane="model", init=init)
            if blow is not None:
                await blow()
        assert device.generation == 3


async def test_a_fault_inside_a_function_is_a_fault_of_the_context(library: Library) -> None:
    async with opened(max_restarts=9) as device:
        sealed = await device.put(CONTENT, sealed=True)
        with pytest.raises(ContextPoisoned) as caught:
            await device.run(F.fault, library.name)
        assert caught.value.status == (710 if library.name == "torch" else 700)
        assert device.generation == 2
        ref, _ = await device.run(F.double, library.name, sealed)
        assert same_bits(await device.get(ref), CONTENT * 2)
