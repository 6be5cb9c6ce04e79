"""The CUDA executor on a frontend of NumPy: the same rows, the vendor's conventions."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, LibraryError, Unsupported
from atomr_accel.executors.disk_cache import DiskCache
from atomr_accel.libraries.dnn.host import _lowering
from atomr_accel.libraries.dnn.wire._graph import DnnGraph
from atomr_accel.wire.recent import Recent

from .... import seeds
from ....differential import graphs
from ....fakes import cudnn as fake_cudnn
from ....fakes.cudnn import FakeFrontend, FakeLibrary
from ....fakes.driver import FakeDriver
from ...conformance import conform, on_cuda
from ..rows.ops import OPERATIONS

pytestmark = pytest.mark.skipif(on_cuda(), reason="the real one is there")


@pytest.fixture(autouse=True)
def frontend(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, tmp_path: Path) -> FakeFrontend:
    fake = FakeFrontend()

    def elapsed(start: int, end: int) -> tuple[int, float]:
        # The last candidate is the fastest.
        return 0, 10.0 - fake.runs[-1]

    def launch(_executable: int, _stream: object) -> tuple[int]:
        fake.launches += 1
        return (0,)

    driver.change(
        cuEventElapsedTime=elapsed,
        cuStreamBeginCapture=lambda _stream, _mode: (0,),
        cuStreamEndCapture=lambda _stream: (fake.uncapturable, 1),
        cuGraphInstantiate=lambda _graph, _flags: (0, 1),
        cuGraphLaunch=launch,
        cuGraphExecDestroy=lambda _executable: (0,),
        cuGraphDestroy=lambda _graph: (0,),
    )
    fake_cudnn.install(monkeypatch, FakeLibrary(), lambda: fake, tmp_path)
    return fake


test_conforms = conform(OPERATIONS, take=5, of="the executor of dnn")


@pytest.fixture
def _only_single_nodes(frontend: FakeFrontend) -> None:
    frontend.refused = lambda ops: len(ops) > 1


test_conforms_in_parts = pytest.mark.usefixtures("_only_single_nodes")(
    conform(
        [row for row in OPERATIONS if row.name in ("dnn.conv_fused", "dnn.reduce")],
        take=7,
        of="the executor of dnn",
    )
)


@pytest.fixture
def _by_array(monkeypatch: pytest.MonkeyPatch) -> None:
    from atomr_accel.libraries.dnn.host import _runs

    monkeypatch.setattr(_runs, "BY_ARRAY", True)


test_conforms_by_array = pytest.mark.usefixtures("_by_array")(
    conform(OPERATIONS, take=5, of="the executor of dnn")
)


async def images(device: Device) -> tuple[Any, Any]:
    x = await device.put(np.ones((1, 4, 5, 5), np.float32))
    return x, await device.put(np.ones((3, 4, 3, 3), np.float32))


@pytest.mark.parametrize("uncapturable", [0, 900])
async def test_tuning_runs_every_candidate_and_keeps_the_fastest(
    device: Device, frontend: FakeFrontend, uncapturable: int
) -> None:
    frontend.uncapturable = uncapturable
    x, w = await images(device)
    y = await device.dnn.conv(x, w, autotune=True)
    assert set(frontend.runs) == {0, 1, 2}
    assert frontend.runs[-1] == 2
    runs = len(frontend.runs)
    await device.dnn.conv(x, w, autotune=True)
    assert frontend.runs[runs:] == [2]
    np.testing.assert_array_equal(await device.get(y), np.full((1, 3, 3, 3), 36))
    assert device.dnn.statistics().tuned == 1
    assert bool(frontend.launches) is not bool(uncapturable)


def test_a_capture_ends_whatever_happens_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from atomr_accel.libraries.dnn.host import _timing

    ended: list[int] = []

    def end(stream: int) -> tuple[int, int]:
        ended.append(stream)
        return 0, 1

    calls = itertools.count()

    def execute() -> None:
        if next(calls):  # not yet when it is tried out
            raise KeyError("no plan is like that")

    monkeypatch.setattr(f"{_timing.__name__}.driver.cuStreamEndCapture", end)
    with pytest.raises(KeyError):
        _timing.milliseconds(7, execute)
    assert ended == [7]


async def test_run_before_tuning_does_not_count_as_tuned(
    device: Device, frontend: FakeFrontend
) -> None:
    x, w = await images(device)
    async with device.batch() as batch:  # which cannot wait for the answer to tuning
        batch.dnn.conv(x, w, autotune=True)
    assert set(frontend.runs) == {0}
    await device.dnn.conv(x, w, autotune=True)
    assert frontend.runs[-1] == 2


async def test_plans_are_found_on_disk(device: Device, frontend: FakeFrontend) -> None:
    x, w = await images(device)
    y = await device.get(await device.dnn.conv(x, w, activation="relu"))
    assert device.dnn.statistics().built == 1
    device.dnn.clear_plans()
    again = await device.get(await device.dnn.conv(x, w, activation="relu"))
    np.testing.assert_array_equal(again, y)
    assert device.dnn.statistics().loaded == 1
    assert frontend.built == 1


async def test_a_plan_on_disk_that_cannot_be_read_is_made_again(
    device: Device, frontend: FakeFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = await images(device)
    monkeypatch.setattr(DiskCache, "get", lambda _self, _key: b"\x91\x92\x90\xc4\x01x")
    y = await device.dnn.conv(x, w)
    assert (await device.get(y)).sum() == 36 * 27
    assert device.dnn.statistics().built == 1


@pytest.mark.parametrize("op", ["instance_norm_grad", "gelu", "tanh"])
async def test_a_plan_on_disk_for_what_cudnn_gets_wrong_is_made_again(
    device: Device, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    from atomr_accel.libraries.dnn.host import _lowering

    x = await device.put(np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4))
    weight = await device.put(np.ones(4, np.float32))
    saved = [await device.put(np.ones((1, 4), np.float32)) for _ in range(2)]

    async def gradients() -> list[int]:
        device.dnn.clear_plans()
        if op in ("gelu", "tanh"):
            await getattr(device.dnn, op)(x)
        else:
            await device.dnn.instance_norm_grad(x, x, weight, *saved, layout="NHWC")
        found = device.dnn.statistics()
        return [found.built, found.loaded]

    with monkeypatch.context() as unknown:
        unknown.setattr(_lowering, "_wrong", lambda _graph, _node: "")
        assert [await gradients(), await gradients()] == [[1, 0], [1, 1]]
    assert [await gradients(), await gradients()] == [[2, 1], [2, 2]]


@pytest.mark.parametrize("tuned", [False, True])
async def test_graph_that_cudnn_refuses_to_build_is_computed_all_the_same(
    device: Device, frontend: FakeFrontend, *, tuned: bool
) -> None:
    frontend.unbuildable = lambda ops: "mul" in ops
    graph = device.dnn.graph()
    x = graph.tensor((4,), "int64", name="x")
    plan = await graph.build(graph.relu(x * 0.5), autotune=tuned)
    made = await plan(x=await device.put(np.array([-2, 3, 2**40, 7], np.int64)))
    assert (await device.get(made)).tolist() == [0, 1.5, 2**39, 3.5]


@pytest.fixture
def offered(frontend: FakeFrontend) -> list[list[str]]:
    """Return the nodes of the graphs that reach cuDNN."""
    found: list[list[str]] = []

    def ref_error(ops: list[str]) -> bool:
        found.append(ops)
        return False

    frontend.refused = ref_error
    return found


async def test_booleans_in_memory_are_not_given_to_cudnn(
    device: Device, offered: list[list[str]]
) -> None:
    """Its masks are single bits."""
    graph = device.dnn.graph()
    x = graph.tensor((3, 40), "float32", name="x")
    column = graph.gen_index(x, axis=1)
    length = graph.tensor((3, 1), "int32", name="length")
    plan = await graph.build(
        graph.binary_select(x, -1.0, graph.cmp_lt(column, length)),
        graph.binary_select(x, 0.0, graph.cmp_gt(x, 0.5)),
        graph.cmp_gt(x, 0.5),
    )
    rng = np.random.default_rng(1)
    array, lengths = rng.random((3, 40), np.float32), np.array([[3], [40], [17]], np.int32)
    made = await plan(x=await device.put(array), length=await device.put(lengths))
    selected, chosen, larger = [await device.get(each) for each in made]
    np.testing.assert_array_equal(selected, np.where(np.arange(40) < lengths, array, -1))
    np.testing.assert_array_equal(chosen, np.where(array > 0.5, array, 0))
    np.testing.assert_array_equal(larger, array > 0.5)
    assert not any("cmp_gt" in ops or "binary_select" in ops for ops in offered)


async def test_random_graphs_come_to_cudnn_in_parts_that_it_gets_right(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN reads and writes past buffers that are broadcast, reduced or unused."""
    from atomr_accel.libraries.dnn.host import _plans

    parts: list[DnnGraph] = []

    def lower(frontend: Any, graph: DnnGraph, **options: Any) -> Any:
        made = _lowering.lower(frontend, graph, **options)
        parts.append(graph)
        return made

    monkeypatch.setattr(_plans, "lower", lower)
    rng = np.random.default_rng(seeds.draw())
    for _ in range(5):
        drawn = graphs.draw(rng)
        arrays = graphs.values(rng, drawn)
        plan = await graphs.plan_of(device, drawn)
        graphs.compare(drawn, arrays, await graphs.run(device, drawn, arrays, plan))
    assert parts
    for part in parts:
        assert len(part.written()) == 1
        made = [id_ for node in part.nodes for _, id_ in node.outputs]
        used = {id_ for node in part.nodes for _, id_ in node.inputs}
        assert {*made} <= used | {*part.written()}
        inner = [part.tensors[id_].shape for id_ in made if id_ in used]
        assert len({*inner}) <= 1


async def test_engines_at_fault_are_not_taken(device: Device, frontend: FakeFrontend) -> None:
    frontend.engines = ("eng20", "eng1", "eng0")
    x = await device.put(np.ones((1, 2, 4, 4), np.float16))
    padding: Any
    for padding, first in (((0, 1), (0, 0)), 2), (1, 0):
        rows, columns = (5, 4) if first else (6, 6)
        grad = await device.put(np.ones((1, 3, rows - 1, columns - 1), np.float16))
        await device.dnn.conv_weight_grad(grad, x, (3, 2, 2, 2), padding=padding)
        assert frontend.runs.pop() == first
    frontend.engines = ("eng70", "eng70", "eng70")
    grad = await device.put(np.ones((1, 3, 3, 3), np.float16))
    await device.dnn.conv_weight_grad(grad, x, (3, 2, 2, 2))  # by our own kernels
    assert not frontend.runs


async def test_tuning_leaves_out_engines_at_fault(device: Device, frontend: FakeFrontend) -> None:
    frontend.engines = ("eng0", "eng2", "eng70")
    x = await device.put(np.ones((1, 2, 4, 4), np.float16))
    grad = await device.put(np.ones((1, 3, 3, 3), np.float16))
    await device.dnn.conv_weight_grad(grad, x, (3, 2, 2, 2), autotune=True)
    assert set(frontend.runs) == {0, 1}
    assert frontend.runs[-1] == 1


async def test_gaps_between_elements_are_not_given_to_cudnn(
    device: Device, offered: list[list[str]]
) -> None:
    """cuDNN reads the elements as if they were adjacent."""
    graph = device.dnn.graph()
    plan = await graph.build(
        graph.abs(graph.tensor((4, 8), "float32", name="x", strides=(32, 4))),
        graph.neg(graph.tensor((4, 8), "float32", name="y", strides=(32, 1))),
        graph.exp(graph.tensor((32, 4), "float32", name="z", strides=(1, 32))),
    )
    rows = np.arange(128, dtype=np.float32).reshape(4, 32) / 128
    x, y, z = [
        await device.get(m) for m in await plan(**dict.fromkeys("xyz", await device.put(rows)))
    ]
    np.testing.assert_array_equal(x, rows[:, ::4])
    np.testing.assert_array_equal(y, -rows[:, :8])
    np.testing.assert_allclose(z, np.exp(rows.T), rtol=1e-6)
    assert offered == [["exp"]]


async def test_a_product_needs_rows_or_columns_that_lie_side_by_side(
    device: Device, offered: list[list[str]]
) -> None:
    graph = device.dnn.graph()
    b = graph.tensor((1, 4, 2), "float16", name="b")
    plan = await graph.build(
        graph.matmul(graph.tensor((1, 3, 4), "float16", name="a", strides=(48, 16, 4)), b),
        graph.matmul(graph.tensor((1, 3, 4), "float16", name="c", strides=(48, 16, 1)), b),
    )
    rng = np.random.default_rng(1)
    rows, b_ = rng.random((1, 3, 16)).astype("f2"), rng.random((1, 4, 2)).astype("f2")
    ref = await device.put(rows)
    found = [await device.get(m) for m in await plan(a=ref, b=await device.put(b_), c=ref)]
    for made, factor in zip(found, (rows[:, :, ::4], rows[:, :, :4]), strict=True):
        np.testing.assert_allclose(made, factor.astype("f4") @ b_.astype("f4"), rtol=2e-3)
    assert offered == [["matmul"]]


async def test_activations_without_limits_are_given_to_cudnn_with_others_only(
    device: Device, offered: list[list[str]]
) -> None:
    x = await device.put(np.array([[1, -1, np.inf, -np.inf, np.nan, 3]], np.float32))
    dnn = device.dnn
    for name, more in (("gelu", {}), ("gelu", {"approximate": "tanh"}), ("silu", {})):
        options: dict[str, Any] = more
        y = await device.get(await getattr(dnn, name)(x, **options))
        assert y[0, 3] == 0
        await getattr(dnn, f"{name}_grad")(x, x, **options)
    assert np.isnan((await device.get(await dnn.relu_grad(x, x)))[0, 4])
    await dnn.leaky_relu_grad(x, x)
    assert offered == []
    await dnn.relu(x)
    graph = dnn.graph()
    graph.output(graph.gelu(graph.tensor((1, 6), "float32") + 1.0))
    await graph.build()
    assert offered == [["relu"], ["add", "gelu"]]


async def test_graph_that_cudnn_refuses_is_unsupported_with_its_reason(
    device: Device, frontend: FakeFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atomr_accel.libraries.dnn.host import _cuda

    monkeypatch.setattr(_cuda, "computes", lambda _graph: False)
    frontend.refused = lambda _ops: True
    x, w = await images(device)
    with pytest.raises(Unsupported, match="the fake was told so"):
        await device.dnn.conv(x, w)
    frontend.refused = lambda _ops: False
    await device.dnn.conv(x, w)  # nothing is left of it


async def test_failures_have_their_status(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from atomr_accel.libraries.dnn.host import _lowering

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED; Reason: a fake")

    x, w = await images(device)
    monkeypatch.setattr(_lowering, "status_codes", lambda: {"CUDNN_STATUS_EXECUTION_FAILED": 5000})
    monkeypatch.setattr(fake_cudnn.FakeGraph, "execute", fail)
    with pytest.raises(LibraryError) as caught:
        await device.dnn.conv(x, w)
    assert (caught.value.status, caught.value.library) == (5000, "cudnn")
    assert caught.value.status_name == "CUDNN_STATUS_EXECUTION_FAILED"


async def test_a_batch_brings_no_workspace_and_the_lane_has_its_own(device: Device) -> None:
    x, w = await images(device)
    async with device.batch() as batch:
        y = batch.dnn.conv(x, w)
        z = batch.dnn.relu(y)
    assert (await device.get(z)).sum() == 36 * 27


async def test_evicted_plans_are_forgotten_by_the_host_too(
    device: Device, frontend: FakeFrontend
) -> None:
    device.dnn.plan_limit = 1
    x, w = await images(device)
    for _ in range(2):
        await device.dnn.conv(x, w)
        await device.dnn.relu(x)
    plans = device.statistics().caches["dnn.plans"]
    assert (plans.entries, plans.evictions) == (1, 3)
    assert device.dnn.statistics().loaded == 2


async def test_integers_are_not_given_to_cudnn(device: Device, offered: list[list[str]]) -> None:
    """cuDNN would compute them in single precision."""
    graph = device.dnn.graph()
    x = graph.tensor((2, 3), "int32", name="x")
    plan = await graph.build(graph.relu((x * x + 1) * 0.5))
    array = np.array([[2**24 + 1, 2, -3], [0, 2**15, 2**31 - 1]], np.int32)
    made = await device.get(await plan(x=await device.put(array)))
    whole = array * array + 1
    np.testing.assert_array_equal(made, np.maximum(whole.astype(np.float32) * np.float32(0.5), 0))
    assert offered == [["mul", "relu"]]


def test_plan_store_drops_the_least_recently_used_plan() -> None:
    from atomr_accel.libraries.dnn.host import _plans

    store: Any = object.__new__(_plans.DnnPlanStore)
    store._plans = Recent(2)
    for name in (b"hot", b"one", b"other"):
        store._plans.keep((name, False), name)
        assert store.find(b"hot", 0, tuned=False) == (b"hot", "memory")
    assert [*store._plans] == [(b"other", False), (b"hot", False)]


@pytest.mark.parametrize("by_array", [False, True])
async def test_a_plan_that_runs_again_has_other_pointers_and_numbers(
    device: Device, frontend: FakeFrontend, monkeypatch: pytest.MonkeyPatch, by_array: bool
) -> None:
    from atomr_accel.libraries.dnn.host import _runs

    monkeypatch.setattr(_runs, "BY_ARRAY", by_array)
    array = np.random.default_rng(3).normal(size=(4, 8)).astype(np.float32)
    scale, bias = [await device.put(np.full(8, each, np.float32)) for each in (2, 3)]
    for factor, epsilon in ((1, 1e-5), (3, 2.0), (1, 1e-5), (1, 0.5)):
        x = await device.put(factor * array)
        y = await device.get(await device.dnn.layer_norm(x, scale, bias, eps=epsilon))
        centred = factor * (array - array.mean(1, keepdims=True))
        expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + epsilon) * 2 + 3
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert frontend.built == 1
    assert frontend.arrays == (4 if by_array else 0)


@pytest.mark.usefixtures("_by_array")
async def test_a_frontend_that_takes_no_arrays_is_given_tables(
    device: Device, frontend: FakeFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(fake_cudnn.FakeGraph, "_execute_with_raw_ptrs")
    x, _ = await images(device)
    np.testing.assert_array_equal(
        await device.get(await device.dnn.relu(x)), np.ones((1, 4, 5, 5), np.float32)
    )
    assert frontend.arrays == 0


async def test_a_run_that_failed_leaves_the_next_one_right(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no")

    x, w = await images(device)
    expected = await device.get(await device.dnn.conv(x, w))
    with monkeypatch.context() as patch:
        patch.setattr(fake_cudnn.FakeGraph, "execute", fail)
        with pytest.raises(Unsupported):
            await device.dnn.conv(await device.put(np.zeros((1, 4, 5, 5), np.float32)), w)
    np.testing.assert_array_equal(await device.get(await device.dnn.conv(x, w)), expected)


def test_runs_go_with_their_plan_and_with_their_lane(
    frontend: FakeFrontend, driver: FakeDriver
) -> None:
    from atomr_accel.libraries.dnn.graph._builder import Builder
    from atomr_accel.libraries.dnn.host._cuda import CudaDnn
    from atomr_accel.libraries.dnn.wire._graph import encode
    from atomr_accel.libraries.dnn.wire._messages import ForgetGraph, RunGraph

    driver.change(cuMemAlloc=lambda nbytes: (0, place(np.zeros(nbytes, np.uint8))))
    driver.change(cuMemFree=lambda _pointer: (0,))
    held: list[Any] = []

    def place(array: Any) -> int:
        held.append(array)
        return int(array.ctypes.data)

    builder = Builder()
    x = builder.tensor((4,), "float32")
    builder.output(builder.node("relu", input=x)["y"])
    graph = encode(builder.finish())
    context: Any = fake_cudnn.FakeDnnContext(None)  # type: ignore[arg-type]
    context.pointer = lambda address: address
    stream: Any = SimpleNamespace(handle=0, pointer=0)
    lanes = [CudaDnn(context, stream) for _ in range(2)]

    def run(lane: CudaDnn, value: float) -> list[float]:
        source, target = np.full(4, value, np.float32), np.zeros(4, np.float32)
        lane.handlers[RunGraph](RunGraph(graph, False, (place(source), place(target)), (), 0, 0))
        return target.tolist()

    for lane, value in itertools.product(lanes, (1.0, 2.0)):
        assert run(lane, value) == [value] * 4
    (plan,) = lanes[0]._store._plans.values()
    assert {*plan.runs} == {*lanes}
    lanes[1].close()
    assert {*plan.runs} == {lanes[0]}
    lanes[0].handlers[ForgetGraph](ForgetGraph(graph, False))
    assert run(lanes[0], 3.0) == [3.0] * 4
    (again,) = lanes[0]._store._plans.values()
    assert again is not plan
    with pytest.raises(ValueError, match="2 buffers and 0 numbers, not 1 and 0"):
        lanes[0].handlers[RunGraph](RunGraph(graph, False, (place(np.zeros(4)),), (), 0, 0))
    lanes[0].close()
    assert not again.runs


@pytest.mark.parametrize(("size", "value_size"), [(20, 20), (16, 5), (3, 8)])
async def test_heads_of_any_size_come_to_cudnn_as_multiples_of_8(
    device: Device,
    frontend: FakeFrontend,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    value_size: int,
) -> None:
    built: list[list[int]] = []
    build = fake_cudnn.FakeGraph.build_operation_graph

    def checked(graph: Any) -> None:
        for op, given, _ in graph._nodes:
            if op.startswith("sdpa"):
                sizes = [given[name].dim[3] for name in "qkv"]
                if any(each % 8 for each in sizes):
                    raise fake_cudnn.cudnnGraphNotSupportedError("Reason: sizes at: true")
                built.append(sizes)
        build(graph)

    monkeypatch.setattr(fake_cudnn.FakeGraph, "build_operation_graph", checked)
    rng = np.random.default_rng(1)
    shapes = [(2, 5, 4, size), (2, 7, 2, size), (2, 7, 2, value_size), (2, 5, 4, value_size)]
    q, k, v, grad = [rng.standard_normal(shape).astype(np.float16) for shape in shapes]

    def wide(x: Any) -> Any:
        return np.pad(x, [(0, 0)] * 3 + [(0, -x.shape[3] % 8)])

    results = []
    changes: list[Any] = [np.asarray, wide]
    for change in changes:
        refs = [await device.put(change(each)) for each in (q, k, v)]
        top = await device.put(change(grad))
        q2, k2, v2 = refs
        out, lse = await device.dnn.flash_attention_with_lse(q2, k2, v2, softmax_scale=size**-0.5)
        grads = await device.dnn.flash_attention_grad(
            top, q2, k2, v2, out, lse, softmax_scale=size**-0.5
        )
        results.append([await device.get(each) for each in (out, lse, *grads)])
    for odd, even in zip(*results, strict=True):
        np.testing.assert_array_equal(odd, even[..., : odd.shape[-1]])
    assert built == [[-(-each // 8) * 8 for each in (size, size, value_size)]] * 4
