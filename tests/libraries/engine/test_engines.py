"""Engines: results of models, refusals, and faults."""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from atomr_accel import (
    ContextPoisoned,
    Device,
    GpuRefStale,
    LibraryError,
    LibraryMissing,
    Unsupported,
)
from atomr_accel.libraries.engine._shapes import bound_axes, checked_profiles, fixed_axes
from atomr_accel.libraries.engine.wire.messages import TensorOf
from atomr_accel.testing import kill_host, poison
from atomr_accel.testing.garbage import collect_garbage

from ...harness import opened
from ..conformance import on_cuda
from .models import linear, model, nonzero


def _without_provider() -> bool:
    import onnxruntime

    return on_cuda() and "CUDAExecutionProvider" not in onnxruntime.get_available_providers()


pytestmark = pytest.mark.skipif(_without_provider(), reason="onnxruntime has no CUDA provider")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(52)


# --- results ------------------------------------------------------------------------------------


async def test_results_are_those_of_numpy(device: Device, rng: np.random.Generator) -> None:
    made, w = linear(rng)
    engine = await device.engine.build(made.SerializeToString())
    for rows in (1, 5, 0):
        x = rng.standard_normal((rows, 8), np.float32)
        y = await device.get(await engine(x=await device.put(x)))
        np.testing.assert_allclose(y, np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)
    assert [(each.name, each.shape) for each in engine.outputs] == [("y", ("N", 4))]
    assert (engine.statistics().calls, engine.statistics().loads) == (3, 1)


async def test_views_are_taken_as_what_they_show(device: Device, rng: np.random.Generator) -> None:
    made, w = linear(rng)
    engine = await device.engine.build(made.SerializeToString())
    x = rng.standard_normal((8, 6), np.float32)
    y = await device.get(await engine(x=(await device.put(x)).T))
    np.testing.assert_allclose(y, np.maximum(x.T @ w, 0), rtol=1e-5, atol=1e-5)


async def test_inputs_stay_as_they_are(device: Device) -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])], {"x": [4]}, {"y": [4]})
    engine = await device.engine.build(made.SerializeToString())
    for sealed in (False, True):
        x = await device.put(np.array([-1, 2, -3, 4], np.float32), sealed=sealed)
        y = await engine(x=x)
        assert (await device.get(x)).tolist() == [-1, 2, -3, 4]
        assert (await device.get(y)).tolist() == [0, 2, 0, 4]


async def test_outputs_come_in_the_order_of_the_model(device: Device) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["b"]), helper.make_node("Abs", ["x"], ["a"])]
    made = model(nodes, {"x": [2]}, {"a": [2], "b": [2]})
    engine = await device.engine.build(made.SerializeToString())
    a, b = await engine(x=await device.put(np.array([-1, 2], np.float32)))
    assert (await device.get(a)).tolist() == [1, 2]
    assert (await device.get(b)).tolist() == [1, -2]


async def test_shapes_may_depend_on_values(device: Device) -> None:
    engine = await device.engine.build(nonzero().SerializeToString())
    for x in ([0, 1, 0, 2], [0, 0, 0], [3]):
        y = await engine(x=await device.put(np.array(x, np.float32)))
        assert (await device.get(y)).tolist() == [np.flatnonzero(x).tolist()]


async def test_shapes_that_a_model_declares_wrongly_are_not_believed(device: Device) -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ["N"]}, {"y": [1]})
    engine = await device.engine.build(made.SerializeToString())
    y = await engine(x=await device.put(np.ones(3, np.float32)))
    assert y.shape == (3,)


async def test_half_precision_is_near(device: Device, rng: np.random.Generator) -> None:
    made, w = linear(rng)
    engine = await device.engine.build(made.SerializeToString(), precision="fp16")
    x = rng.standard_normal((3, 8), np.float32)
    y = await device.get(await engine(x=await device.put(x)))
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, np.maximum(x @ w, 0), atol=3e-2)
    assert (y != np.maximum(x @ w, 0)).any()


async def test_bfloat16_goes_in_and_out(device: Device) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    made = model(nodes, {"x": [3]}, {"y": [3]}, dtype=TensorProto.BFLOAT16)
    engine = await device.engine.build(made.SerializeToString())
    x = np.array([1, -2, 0.5], np.float32)
    y = await engine(x=await device.put(x.astype("bfloat16")))
    assert (await device.get(y)).astype(np.float32).tolist() == x.tolist()


async def test_weights_that_older_models_list_as_inputs_are_not_asked_for(device: Device) -> None:
    made = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        {"x": [2], "w": [2]},
        {"y": [2]},
        {"w": np.ones(2, np.float32)},
    )
    engine = await device.engine.build(made.SerializeToString())
    y = await engine(x=await device.put(np.zeros(2, np.float32)))
    assert (await device.get(y)).tolist() == [1, 1]


async def test_models_larger_than_a_message_arrive_whole(device: Device) -> None:
    w = np.arange(3 << 18, dtype=np.float32)
    made = model(
        [helper.make_node("Add", ["x", "w"], ["y"])], {"x": [1]}, {"y": [len(w)]}, {"w": w}
    )
    engine = await device.engine.build(made.SerializeToString())
    y = await engine(x=await device.put(np.zeros(1, np.float32)))
    assert (await device.get(y) == w).all()


async def test_warm_calls_are_templates(device: Device, rng: np.random.Generator) -> None:
    made, w = linear(rng)
    engine = await device.engine.build(made.SerializeToString())
    for calls in range(1, 5):
        for rows in (2, 3):
            x = rng.standard_normal((rows, 8), np.float32)
            y = await device.get(await engine(x=await device.put(x)))
            np.testing.assert_allclose(y, np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)
        in_full = [each for each in engine.call_templates.known.values() if isinstance(each, int)]
        assert len(in_full) == (2 if calls == 1 else 0)
        assert engine.statistics().calls == 2 * calls


# --- batches and recordings ---------------------------------------------------------------------


async def test_engines_run_in_batches(device: Device, rng: np.random.Generator) -> None:
    made, w = linear(rng)
    engine = await device.engine.build(made.SerializeToString())
    x = rng.standard_normal((2, 8), np.float32)
    ref = await device.put(x)
    async with device.batch() as batch:
        y = batch.using(engine)(x=ref)
        z = batch.using(engine)(x=ref)
    expected = np.maximum(x @ w, 0)
    for each in (y, z):
        np.testing.assert_allclose(await device.get(each), expected, rtol=1e-5, atol=1e-5)


async def test_batches_do_not_wait_for_shapes(device: Device) -> None:
    engine = await device.engine.build(nonzero().SerializeToString())
    x = await device.put(np.ones(2, np.float32))
    async with device.batch() as batch:
        with pytest.raises(Unsupported, match="known only after the run"):
            batch.using(engine)(x=x)
        with pytest.raises(Unsupported, match="built by a device"):
            await batch.engine.build(nonzero().SerializeToString())


@pytest.mark.skipif(on_cuda(), reason="engines are not recorded on CUDA")
async def test_recordings_make_engines_of_their_own(device: Device) -> None:
    made = model([helper.make_node("Neg", ["x"], ["y"])], {"x": [2]}, {"y": [2]})
    engine = await device.engine.build(made.SerializeToString())
    x = await device.put(np.array([1, -2], np.float32))
    async with device.record() as recording:
        y = recording.using(engine)(x=x)
    await recording.replay()
    assert (await device.get(y)).tolist() == [-1, 2]


# --- profiles -----------------------------------------------------------------------------------


async def test_calls_fit_a_profile(device: Device, rng: np.random.Generator) -> None:
    made, _ = linear(rng)
    engine = await device.engine.build(
        made.SerializeToString(), profiles=[{"x": ((1, 4), 8)}, {"x": (32, 8)}]
    )
    for rows in (1, 4, 32):
        assert (await engine(x=await device.zeros((rows, 8), np.float32))).shape == (rows, 4)
    for rows in (0, 5, 33):
        with pytest.raises(ValueError, match="must fit a profile"):
            await engine(x=await device.zeros((rows, 8), np.float32))


async def test_a_fixed_axis_tells_shapes(device: Device) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["c"]),
        helper.make_node("Concat", ["c", "x"], ["y"], axis=0),
    ]
    made = model(nodes, {"x": ["N"]}, {"y": ["M"]}).SerializeToString()
    x = await device.put(np.ones(3, np.float32))
    assert (await device.engine.build(made)).outputs[0].shape == (None,)
    engine = await device.engine.build(made, profiles={"x": (3,)})
    assert engine.outputs[0].shape == (6,)
    async with device.batch() as batch:
        y = batch.using(engine)(x=x)
    assert (await device.get(y)).tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("profiles", "kind", "words"),
    [
        ({"z": (1, 8)}, ValueError, "not of 'z'"),
        ({"x": (1, 7)}, ValueError, "must allow the model's shape"),
        ({"x": (1,)}, ValueError, "must allow the model's shape"),
        ({"x": ((4, 1), 8)}, ValueError, "least extent first"),
        ({"x": ((1, 2, 3), 8)}, ValueError, "must have pairs"),
        ({"x": ((1.5, 2), 8)}, TypeError, "an extent in the profile"),
        ({"x": 8}, TypeError, "must be a tuple"),
        ({1: (8,)}, TypeError, "must be names"),
        ([], ValueError, "at least one"),
        (3, TypeError, "must be a mapping"),
        (["x"], TypeError, "must be a mapping"),
    ],
)
async def test_profiles_that_do_not_fit(
    device: Device, rng: np.random.Generator, profiles: Any, kind: type[Exception], words: str
) -> None:
    made, _ = linear(rng)
    with pytest.raises(kind, match=words):
        await device.engine.build(made.SerializeToString(), profiles=profiles)


extents = st.integers(0, 9)
pairs = st.tuples(extents, extents).map(lambda pair: tuple(sorted(pair)))


@given(st.lists(pairs, min_size=1, max_size=3), st.lists(extents, min_size=1, max_size=3))
def test_shapes_fit_a_profile_exactly_within_its_limits(limits: Any, shape: Any) -> None:
    profiles = checked_profiles({"x": limits})
    inputs = (TensorOf("x", "float32", None),)
    fits = len(limits) == len(shape) and all(
        low <= n <= high for n, (low, high) in zip(shape, limits, strict=True)
    )
    if fits:
        bound_axes(inputs, {"x": tuple(shape)}, profiles)
    else:
        with pytest.raises(ValueError, match="must fit a profile"):
            bound_axes(inputs, {"x": tuple(shape)}, profiles)
    assert fixed_axes(profiles) == tuple(
        ("x", axis, low) for axis, (low, high) in enumerate(limits) if low == high
    )


# --- bad input ----------------------------------------------------------------------------------


async def test_calls_with_wrong_inputs(device: Device, rng: np.random.Generator) -> None:
    made = model(
        [helper.make_node("Add", ["a", "b"], ["y"])], {"a": ["N", 2], "b": ["N", 2]}, {"y": None}
    )
    engine = await device.engine.build(made.SerializeToString())
    good = await device.zeros((3, 2), np.float32)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"a": good}, TypeError, "inputs must have 'b'"),
        ({"a": good, "b": good, "c": good}, TypeError, "not 'c'"),
        ({"a": good, "b": np.zeros((3, 2), np.float32)}, TypeError, "b"),
        ({"a": good, "b": await device.zeros((3, 2), np.float64)}, TypeError, "dtype float32"),
        ({"a": good, "b": await device.zeros((3, 3), np.float32)}, ValueError, r"shape \(N, 2\)"),
        ({"a": good, "b": await device.zeros(3, np.float32)}, ValueError, r"shape \(N, 2\)"),
        ({"a": good, "b": await device.zeros((4, 2), np.float32)}, ValueError, "with N = 3"),
    ]
    for inputs, kind, words in cases:
        with pytest.raises(kind, match=words):
            await engine(**inputs)
    assert engine.statistics().calls == 0
    await engine(a=good, b=good)


async def test_models_cut_off_anywhere(device: Device, rng: np.random.Generator) -> None:
    data = linear(rng)[0].SerializeToString()
    for end in [*range(0, len(data), 23), len(data) - 1]:
        with pytest.raises((ValueError, LibraryError, Unsupported)):
            await device.engine.build(data[:end])
    await device.engine.build(data)


@pytest.mark.parametrize(
    ("made", "kind", "words"),
    [
        (
            lambda node: model([node("Relu")], {"x": [1]}, {"y": [1]}, opset=99),
            Unsupported,
            "opset 99",
        ),
        (lambda node: model([node("Frob")], {"x": [1]}, {"y": [1]}), Unsupported, "no op Frob"),
        (
            lambda node: model(
                [node("Frob", domain="a.b")], {"x": [1]}, {"y": [1]}, domains=["a.b"]
            ),
            Unsupported,
            "Frob",
        ),
        (
            lambda node: model([node("Relu")], {"z": [1]}, {"y": [1]}),
            ValueError,
            "valid ONNX model",
        ),
        (
            lambda node: model([node("Relu")], {"x": [1]}, {"y": [1]}, dtype=TensorProto.STRING),
            Unsupported,
            "type STRING",
        ),
        (
            lambda node: model(
                [node("SequenceConstruct")],
                {"x": [1]},
                {"y": helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)},
            ),
            Unsupported,
            "is a sequence",
        ),
    ],
)
async def test_models_that_cannot_run(
    device: Device, made: Any, kind: type[Exception], words: str
) -> None:
    def node(name: str, **more: Any) -> Any:
        return helper.make_node(name, ["x"], ["y"], **more)

    with pytest.raises(kind, match=words):
        await device.engine.build(made(node).SerializeToString())


async def test_arguments_of_builds(device: Device, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="must be a path or bytes"):
        await device.engine.build(3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        await device.engine.build(tmp_path / "none.onnx")
    with pytest.raises(ValueError, match="precision must be"):
        await device.engine.build(b"", precision="int8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads must be"):
        await device.engine.build(b"", threads=-1)


def _in_file(folder: Path, location: str, offset: int, length: int) -> Any:
    w = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    made = model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [4]}, {"y": [4]})
    onnx.external_data_helper.set_external_data(w, location, offset=offset, length=length)
    w.ClearField("raw_data")
    made.graph.initializer.append(w)
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    return folder / "model.onnx"


async def test_weights_may_be_in_files(device: Device, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    path = _in_file(tmp_path, "w.bin", offset=0, length=16)
    engine = await device.engine.build(path)
    y = await engine(x=await device.zeros(4, np.float32))
    assert (await device.get(y)).tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="must be a path"):
        await device.engine.build(path.read_bytes())


@pytest.mark.parametrize(
    ("location", "length", "words"),
    [
        ("../w.bin", 16, "in the model's folder"),
        ("/etc/passwd", 16, "in the model's folder"),
        ("link.bin", 16, "in the model's folder"),
        ("none.bin", 16, "not missing"),
        ("short.bin", 16, "must be whole"),
    ],
)
async def test_files_outside_the_folder(
    device: Device, tmp_path: Path, location: str, length: int, words: str
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(16))
    (inside / "link.bin").symlink_to(tmp_path / "w.bin")
    (inside / "short.bin").write_bytes(bytes(15))
    with pytest.raises(ValueError, match=words):
        await device.engine.build(_in_file(inside, location, offset=0, length=length))


# --- faults and files ---------------------------------------------------------------------------


async def test_engines_outlive_hosts() -> None:
    made, w = linear(np.random.default_rng(1))
    async with opened() as device:
        engine = await device.engine.build(made.SerializeToString())
        x = await device.put(np.ones((2, 8), np.float32), sealed=True)
        for _ in range(2):
            y = await device.get(await engine(x=x))
            np.testing.assert_allclose(y, np.maximum(np.ones((2, 8)) @ w, 0), rtol=1e-5, atol=1e-5)
            await poison(device)
        assert (engine.statistics().loads, engine.statistics().from_disk) == (2, False)
        again = await device.engine.build(made.SerializeToString())
        assert again.statistics().from_disk


async def test_a_fault_in_the_middle_of_calls() -> None:
    made, w = linear(np.random.default_rng(3))
    results: list[np.ndarray[Any, Any] | None] = []
    async with opened() as device:
        engine = await device.engine.build(made.SerializeToString())
        x = await device.put(np.ones((2, 8), np.float32), sealed=True)

        async def call() -> None:
            for _ in range(20):
                try:
                    results.append(await device.get(await engine(x=x)))
                except (ContextPoisoned, GpuRefStale):
                    results.append(None)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call)
            await poison(device)
        results.append(await device.get(await engine(x=x)))
        assert device.generation == 2
    there = [each for each in results if each is not None]
    assert len(results) == 61
    for each in there:
        np.testing.assert_allclose(each, np.maximum(np.ones((2, 8)) @ w, 0), rtol=1e-5, atol=1e-5)
    assert results[-1] is not None


async def test_a_crash_in_the_middle_of_a_run(cache: Path) -> None:
    """The host ends while onnxruntime computes; the next call has an engine from the disk."""
    rng = np.random.default_rng(4)
    w = rng.standard_normal((256, 256), np.float32)
    nodes = [helper.make_node("MatMul", [f"h{at}", "w"], [f"h{at + 1}"]) for at in range(64)]
    made = model(nodes, {"h0": ["N", 256]}, {"h64": ["N", 256]}, {"w": w / 16})
    async with opened(isolation="process") as device:
        engine = await device.engine.build(made.SerializeToString(), threads=1)
        small = await device.put(rng.standard_normal((1, 256), np.float32), sealed=True)
        large = await device.put(rng.standard_normal((4096, 256), np.float32), sealed=True)
        before = await device.get(await engine(h0=small))
        failures: list[Exception] = []
        (file,) = (cache / "engines").iterdir()
        os.utime(file, (1, 1))

        async def call() -> None:
            try:
                await engine(h0=large)
            except ContextPoisoned as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            while engine.statistics().calls == 1:
                await trio.lowlevel.checkpoint()
            await kill_host(device)
        assert len(failures) == 1
        after = await device.get(await engine(h0=small))
        np.testing.assert_array_equal(after, before)
        assert (engine.statistics().loads, device.generation) == (2, 2)
        assert file.stat().st_mtime > 1  # it was used
        assert [*(cache / "engines").iterdir()] == [file]


async def test_damaged_files_are_not_used(cache: Path) -> None:
    made, _ = linear(np.random.default_rng(2))
    async with opened() as device:
        await device.engine.build(made.SerializeToString())
        for path in (cache / "engines").iterdir():
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
        engine = await device.engine.build(made.SerializeToString())
        assert not engine.statistics().from_disk
        await engine(x=await device.zeros((1, 8), np.float32))


async def test_a_run_that_is_refused_leaves_the_device_as_it_was(device: Device) -> None:
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    made = model([node], {"x": ["N"]}, {"y": [2]}, {"s": np.array([2], np.int64)})
    engine = await device.engine.build(made.SerializeToString())
    generation = device.generation
    with pytest.raises(LibraryError) as caught:
        await engine(x=await device.zeros(3, np.float32))
    assert (caught.value.library, caught.value.call) == ("onnxruntime", "run")
    assert (await engine(x=await device.zeros(2, np.float32))).shape == (2,)
    assert device.generation == generation


async def test_engines_go_with_their_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    from atomr_accel.libraries.engine.host._engines import EngineExecutor

    sessions: list[weakref.ref[Any]] = []
    original = EngineExecutor._session

    def noted(self: Any, *args: Any) -> Any:
        made = original(self, *args)
        sessions.append(weakref.ref(made[0]))
        return made

    monkeypatch.setattr(EngineExecutor, "_session", noted)
    made = model([helper.make_node("Relu", ["x"], ["y"])], {"x": [1]}, {"y": [1]})
    async with opened(isolation="thread") as device:
        engines = [await device.engine.build(made.SerializeToString()) for _ in range(2)]
        x = await device.zeros(1, np.float32)
        await engines.pop()(x=x)
        collect_garbage()
        for _ in range(2):  # the first one sends what is pending, too
            await engines[0](x=x)
        assert [each() is None for each in sessions] == [False, True]


async def test_without_the_packages() -> None:
    missing = {"onnxruntime": None, "onnx": None}
    hosts = [name for name in sys.modules if "libraries.engine.host" in name]
    with pytest.MonkeyPatch.context() as patch:
        for name in hosts:
            patch.delitem(sys.modules, name)
        for name, module in missing.items():
            patch.setitem(sys.modules, name, module)
        async with opened(isolation="thread") as device:
            with pytest.raises(LibraryMissing, match="onnxruntime"):
                await device.engine.build(b"")
