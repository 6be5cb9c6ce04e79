"""The CUDA executor on a cuTENSOR of NumPy: the same rows, through the vendor's prototypes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, LibraryMissing, Unsupported
from atomr_accel.libraries.tensor._operations import LANE
from atomr_accel.libraries.tensor.host import _cuda
from atomr_accel.wire.recent import Recent
from tests.harness import opened

from ...fakes.cublaslt import FakeEvents
from ...fakes.cutensor import FakeCudaTensors, FakeTensors
from ...fakes.driver import FakeDriver
from ..conformance import conform, on_cuda, put_strided
from .expressions import OPT_EINSUM, operands_for
from .rows import ROWS

pytestmark = pytest.mark.skipif(on_cuda(), reason="the real one is there")


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> FakeTensors:
    fake: Any = FakeTensors()
    fake.events = FakeEvents(driver, fake)
    monkeypatch.setattr(_cuda, "load_cutensor", lambda: fake)
    monkeypatch.setattr(_cuda, "_version", lambda _library: 20000)
    monkeypatch.setattr(_cuda, "_compute_type", lambda _library, _name: 1)
    FakeCudaTensors.install(monkeypatch, LANE)
    found: FakeTensors = fake
    return found


test_conforms = conform(ROWS, take=3, of="the executor of tensor")
test_views_conform = conform(ROWS[:1], take=3, of="the executor of tensor", put=put_strided)


async def test_einsum_asks_for_contractions_where_products_would_take_copies(
    device: Device, library: FakeTensors
) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(-3, 4, (5, 4, 3)).astype("f8"), rng.integers(-3, 4, (3, 4, 2)).astype("f8")
    x, y = await device.put(a), await device.put(b)
    for subscripts, contractions in (("ijk,kjl->il", 1), ("ijk,klm->ijlm", 0)):
        library.launched.clear()
        made = await device.tensor.einsum(subscripts, x, y)
        np.testing.assert_array_equal(await device.get(made), np.einsum(subscripts, a, b))
        assert len(library.launched) == contractions
    for subscripts in OPT_EINSUM[::9]:
        arrays = operands_for(subscripts, rng, "complex64")
        refs = [await device.put(array) for array in arrays]
        made = await device.tensor.einsum(subscripts, *refs)
        np.testing.assert_array_equal(await device.get(made), np.einsum(subscripts, *arrays))


async def test_on_a_deterministic_device_einsum_does_the_same_whatever_is_installed(
    library: FakeTensors,
) -> None:
    async with opened(isolation="thread", deterministic=True) as device:
        x = await device.put(np.ones((4, 3, 2)))
        made = await device.tensor.einsum("ijk,ljk->kil", x, x)
        assert (await device.get(made) == 3).all()
        assert library.launched == []
        with pytest.raises(ValueError, match="autotune"):
            await device.tensor.contract(x, "ijk", x, "ljk", "il", autotune=True)


async def test_without_the_library_einsum_does_without(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atomr_accel.libraries.tensor.host import _cuda

    def load() -> Any:
        raise LibraryMissing("the vendor library cutensor is not installed", library="cutensor")

    monkeypatch.setattr(_cuda, "load_cutensor", load)
    x = await device.put(np.ones((4, 3, 2)))
    made = await device.tensor.einsum("ijk,kji->", x, x.T.reshape(2, 3, 4))
    assert await device.get(made) == 24
    made = await device.tensor.einsum("ijk,ljk->kil", x, x)
    assert made.shape == (2, 4, 4)
    with pytest.raises(LibraryMissing, match="cutensor"):
        await device.tensor.permute(x, "ijk", "kji")


async def test_plans_are_kept_by_all_that_they_depend_on(
    device: Device, library: FakeTensors
) -> None:
    x = await device.put(np.ones((8, 8), np.float32))

    def plans() -> int:
        return sum(
            hasattr(thing, "algorithm") and hasattr(thing, "operation")
            for thing in library.things.values()
        )

    async def made_by(*calls: Any) -> int:
        before = plans()
        for call in calls:
            await call
        return plans() - before

    tensor = device.tensor
    assert await made_by(tensor.permute(x, "ab", "ba"), tensor.permute(x, "uv", "vu")) == 1
    assert await made_by(tensor.permute(x, "ab", "ba", alpha=3)) == 0
    assert await made_by(tensor.permute(x[:4], "ab", "ba")) == 1
    assert await made_by(tensor.permute(x[4:], "ab", "ba")) == 0  # as aligned as before
    assert await made_by(tensor.permute(x[:4, 4:], "ab", "ba")) == 1
    assert await made_by(tensor.permute(x, "ab", "ba", compute_type="3XTF32")) == 1
    assert await made_by(tensor.permute(x, "ab", "ba", op_a="exp")) == 1


async def test_contractions_work_in_memory_of_the_programs_or_of_their_plans(
    device: Device, library: FakeTensors
) -> None:
    x = await device.put(np.ones((8, 8), np.float32))
    await device.tensor.contract(x, "ab", x, "bc", "ac")
    (scratch,) = library.scratch  # the CPU backend brings none
    assert scratch


async def test_tuning_keeps_the_fastest_also_for_later_processes(
    device: Device, library: FakeTensors
) -> None:
    x = await device.put(np.ones((6, 6), np.float32))
    library.events.milliseconds["GETT"] = 0.25  # type: ignore[attr-defined]
    made = await device.tensor.contract(x, "ab", x, "bc", "ac", autotune=True)
    assert (await device.get(made) == 6).all()
    assert {*library.launched} == {"DEFAULT", "DEFAULT_PATIENT", "GETT", "TGETT"}
    assert library.launched[-1] == "GETT"
    launched = len(library.launched)
    await device.tensor.contract(x, "ab", x, "bc", "ac", autotune=True)
    assert library.launched[launched:] == ["GETT"]
    await device.tensor.contract(x, "ab", x, "bc", "ac")
    assert library.launched[-1] == "DEFAULT"
    async with device.batch() as batch:
        batch.tensor.contract(x, "ab", x, "bc", "ca", autotune=True)
    assert library.launched[-1] == "DEFAULT"


async def test_compiled_kernels_are_kept_on_the_disk(device: Device, library: FakeTensors) -> None:
    x = await device.put(np.ones((6, 6), np.float32))
    await device.tensor.contract(x, "ab", x, "bc", "ac", jit=True)
    await device.tensor.contract(x, "ab", x, "bc", "ac", jit=True)
    assert library.files == ["write"]


async def test_refusal_of_the_library_is_unsupported(device: Device, library: FakeTensors) -> None:
    library.refused = {"DEFAULT"}
    x = await device.put(np.ones((6, 6), np.float32))
    with pytest.raises(Unsupported, match="cuTENSOR does not contract float32 in TF32"):
        await device.tensor.contract(x, "ab", x, "bc", "ac", allow_tf32=True)


def test_a_plan_stays_as_long_as_a_graph_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[Any] = []
    monkeypatch.setattr(_cuda._TensorPlan, "__init__", lambda *_: None)
    monkeypatch.setattr(_cuda.CudaTensors, "_launch", lambda *_: None)
    kept: list[Callable[[], None]] = []
    stream = SimpleNamespace(captures=True, keep=lambda _, give_back: kept.append(give_back))
    executor: Any = object.__new__(_cuda.CudaTensors)
    executor._stream, executor._opened = stream, None
    executor._plans = Recent(2, lambda plan: plan.drop())

    def plan(number: int) -> Any:
        made: Any = object.__new__(_cuda._TensorPlan)
        made._made, made._own, made.graphs, made._dropped = ExitStack(), 0, 0, False
        made._made.callback(freed.append, number)
        return made

    executor._plan = plan
    for number in (1, 2, 1, 3, 4, 5):
        executor._run(SimpleNamespace(operation=number))
    assert freed == []
    for give_back in kept[:3]:
        give_back()
    assert freed == [2, 1]  # 1 has been launched twice
    for give_back in kept[3:]:
        give_back()
    assert freed == [2, 1, 3]
    executor.close()
    assert sorted(freed) == [1, 2, 3, 4, 5]
