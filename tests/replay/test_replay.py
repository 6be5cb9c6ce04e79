"""A program that was recorded does the same again; differences are reported."""

from __future__ import annotations

import ctypes
import math
import os
import random
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from atomr_accel import CompileOptions, ContextPoisoned, Device, GpuRef, GpuRefSealed, GpuRefStale
from atomr_accel.device.data.transfer import SMALL
from atomr_accel.replay import (
    Compared,
    Deviation,
    Report,
    content_hash,
    open_journal,
    read_journal,
    replay_journal,
    state_at,
    view_of,
)
from atomr_accel.replay._compare import deviation, ulps_between
from atomr_accel.replay._entries import CallEntry, DoneEntry, HandleValue, Ref
from atomr_accel.replay._player import taken_down
from atomr_accel.replay._reading import JournalCall, reading
from atomr_accel.testing import kill_host

from ..durable.programs import CHANGED
from ..durable.scribbling import scribble
from ..harness import cpu_only, on_shared, opened, same_bits, sized
from ..ordering.programs import FAULTS, KINDS, SOURCE, Run, mix
from .ops import OPS
from .programs import SOURCE as PLAIN
from .programs import Random, Wide, array_of, dies, dies_when_told, drawn, scaled, shifted


async def again(path: Path, **options: Any) -> Report:
    """Replay a journal on a device of its own."""
    async with opened(isolation="thread") as device:
        return await replay_journal(path, device, **options)


# --- it is the same ------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=sized(15, 200))
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["large", "small", "scal", "gemm", "get", "fill", "seal", "free"]),
            st.integers(0, 1),
        ),
        max_size=10,
    )
)
@example([("large", 0), ("get", 0), ("free", 0)])  # the batch ends with the error of a call
@on_shared
async def test_frees_and_seals_during_deferred_calls_are_repeated(
    device: Device, steps: list[tuple[str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        async with open_journal(device, path, contents=True, results=True):
            refs = [await device.put(np.full((2, 2), 2.0 + n)) for n in range(2)]
            made: list[GpuRef] = []
            refused: tuple[type[Exception], ...] = (GpuRefStale, GpuRefSealed, ValueError)
            with suppress(*refused):
                async with device.batch() as batch:
                    for kind, which in steps:
                        ref = refs[which]
                        with suppress(*refused):
                            if kind in ("large", "small"):
                                batch.put(np.zeros(200_000 if kind == "large" else 3))
                            elif kind == "scal":
                                batch.blas.scal(3.0, ref.ravel())
                            elif kind == "gemm":
                                made.append(batch.blas.gemm(ref, refs[1 - which]))
                            elif kind == "get":
                                batch.get(ref)
                            elif kind == "fill":
                                await device.fill(ref, 7.0)
                            else:
                                await getattr(device, kind)(ref)
            for each in (*refs, *made):
                with suppress(GpuRefStale):
                    await device.get(each)
        report = await replay_journal(path, device)
        assert report.same, (report, *await read_journal(path))


async def test_a_buffer_that_is_freed_under_calls_of_a_batch_is_kept_for_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device:
        async with open_journal(device, path, contents=True):
            a = await device.put(np.full((2, 2), 3.0))
            async with device.batch() as batch:
                batch.put(np.zeros(200_000))  # what comes after it is put off
                batch.blas.scal(2.0, a.ravel())
                b = batch.blas.gemm(a, a.T)
                with pytest.raises(ValueError, match="an open batch has calls with it put off"):
                    await device.seal(a)
                await device.free(a)
                with pytest.raises(GpuRefStale):
                    batch.blas.gemm(a, a)
            assert (await device.get(b)).tolist() == [[72, 72], [72, 72]]
        report = await replay_journal(path, device)
    assert report.same, report
    assert not report.skipped


async def test_buffers_that_a_recording_knows_by_several_refs_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device:
        async with open_journal(device, path, contents=True, results=True):
            x, z = await device.put(np.ones((2, 2))), await device.put(np.full((2, 2), 3.0))
            async with device.record(x, x) as twice:
                y = twice.evaluate(x * 2)
            await twice.replay(z, z)
            await twice.replay(replace={x: z})
            async with device.record(x.T, x.T) as columns:
                columns.evaluate(x.T + 1, out=y)
            await columns.replay(z.T, z.T)
            await device.get(y)
        report = await replay_journal(path, device)
    assert report.same, report


async def test_what_a_replay_fetches_is_repeated_and_compared(tmp_path: Path) -> None:
    """A fetch is noted as a ``get`` right after the replay, also if another task writes then."""
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device:
        large = await device.put(np.ones((2, SMALL // 8)))
        async with open_journal(device, path, contents=True, results=True):
            x, z = await device.put(np.ones((2, 2))), await device.put(np.full((2, 2), 3.0))
            async with device.record(x, shared=True) as recording:
                y = recording.evaluate(x * 2)
                recording.evaluate(x + 1, out=x)
            with pytest.raises(TypeError, match=r"^get must be a ref or a sequence of refs"):
                await recording.replay(get=3)  # type: ignore[call-overload]
            await device.free(z)
            with pytest.raises(GpuRefStale, match=r"^get\[1\] was freed"):
                await recording.replay(get=[y, z])
            found = await recording.replay(get=[y, x.T, large])
            assert [each.flat[0] for each in found] == [2, 2, 1]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: recording.replay(get=y))
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(device.fill, x, 50.0)
            with trio.CancelScope() as scope:
                scope.cancel()
                await recording.replay(get=y)
            assert (await recording.replay(get=y))[0, 0] == 100
        lines = await read_journal(path)
        report = await replay_journal(path, device)
    assert report.same, report
    assert report.compared >= 10
    told = [line.partition(" ")[2].partition(" raised")[0] for line in lines[6:]]
    assert told == [
        *("#3.replay(get=3)", "device.free(#2)", "#3.replay(get=[#4, #2])"),
        *("#3.replay()", "device.get(#4)", "device.get(#1[2x2 at 0])", "device.get(#6)"),
        *("#3.replay()", "device.get(#4)", "device.fill(#1, 50.0) -> #1"),
        *("#3.replay()", "device.get(#4)"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "few", "steps"), [(Random, 10, 25), (Wide, 3, 18)])
async def test_random_programs_are_replayed_bit_for_bit(
    kind: type[Random | Wide], few: int, steps: int, tmp_path: Path
) -> None:
    """Programs of arrays and products, and programs over every library."""
    async with opened(isolation="thread") as one, opened(isolation="thread") as other:
        for seed in range(sized(few, 500)):
            path = tmp_path / f"{seed}.journal"
            async with open_journal(one, path, contents=True, results=True):
                await kind(one, seed).run(steps)
            report = await replay_journal(path, other)
            assert report.same, f"{seed}: {report}"
            assert report.complete
            assert report.compared >= steps // 3
            path.unlink()


@pytest.mark.parametrize("at", range(4))
async def test_every_op_of_the_table_is_replayed(at: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device:
        wide = Wide(device, at)
        async with open_journal(device, path, contents=True, results=True):
            for name in [*OPS][at::4]:
                await OPS[name].call(device, *await wide.given(name))
        report = await replay_journal(path, device)
    assert report.same, str(report)
    assert report.compared == sum(each.outputs for each in report.methods.values())
    async with reading(path) as recorded:
        assert report.compared == sum(len(each.outputs) for each in recorded.calls)


async def test_sparse_matrices_in_the_host_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "sparse.journal"
    matrix = scipy.sparse.csr_array(np.array([[4.0, 1, 0], [1, 3, 0], [0, 0, 2]]))
    async with (
        opened(isolation="thread") as device,
        open_journal(device, path, contents=True, results=True),
    ):
        a, b = await device.sparse.put(matrix), await device.put(np.ones(3))
        lu = await device.sparse.splu(a)
        await lu.refactorize(a.with_data(await device.evaluate(a.data * 2)))
        await lu.solve(b)
        await device.sparse.matmul(await device.sparse.put_sliced_ell(matrix), b)
        pruned = await device.sparselt.prune(await device.put(np.ones((8, 8), np.float32)))
        compressed = await device.sparselt.compress(pruned)
        columns = (await device.put(np.ones((4, 8), np.float32))).T
        await device.sparselt.matmul(compressed, columns)
    report = await again(path)
    assert report.same, str(report)


async def replays(one: Device, other: Device, path: Path, ops: list[tuple[str, int]]) -> None:
    """A program on one device is the same on the other, by its journal."""
    async with open_journal(one, path, contents=True, results=True):
        kernel = await one.nvrtc.compile(SOURCE, "mix", cpu=mix)
        await Run(one, kernel).run(ops)
    report = await replay_journal(path, other)
    assert report.differences == [], (path, report)


@pytest.mark.slow
async def test_programs_of_many_tasks_are_replayed_in_the_order_of_the_program(
    tmp_path: Path,
) -> None:
    """Programs cancel calls and batches, whose results are then undefined."""
    async with opened(isolation="thread") as one, opened(isolation="thread") as other:
        for seed in range(sized(10, 500)):
            rng = random.Random(seed)
            ops = [(rng.choice(KINDS), rng.randrange(2**16)) for _ in range(rng.randrange(1, 60))]
            path = tmp_path / f"{seed}.journal"
            await replays(one, other, path, ops)
            path.unlink()


@pytest.mark.slow
@cpu_only
async def test_programs_with_faults_are_replayed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_restarts": 1000, "standby": None}
    async with opened(**options) as one, opened(**options) as other:
        for seed in range(sized(1, 20)):
            rng = random.Random(seed)
            ops = [(rng.choice(KINDS), rng.randrange(2**16)) for _ in range(rng.randrange(1, 30))]
            ops.insert(rng.randrange(len(ops) + 1), (rng.choice(FAULTS), 0))
            await replays(one, other, tmp_path / f"{seed}.journal", ops)


async def test_modules_structs_and_variables_are_replayed(tmp_path: Path) -> None:
    class Line(ctypes.Structure):
        _fields_ = (("slope", ctypes.c_float), ("offset", ctypes.c_float))

    fields = np.dtype([("slope", "f4"), ("offset", "f4")], align=True)
    source = """
        struct Line { float slope, offset; };
        __device__ float steps[2];
        template <class T> __global__ void line(T* out, Line line, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) out[i] = line.slope * i + line.offset + steps[0];
        }
    """
    async with (
        opened(isolation="thread") as device,
        open_journal(device, tmp_path / "module", contents=True, results=True),
    ):
        module = await device.nvrtc.compile_module(
            source,
            ["line<float>"],
            cpu=drawn,
            options=CompileOptions(ftz=True),
            structs={"Line": fields},
            variables={"steps": np.ones(2, np.float32)},
        )
        kernel, out = await module.kernel("line<float>"), await device.zeros(8, "f4")
        await device.fill(await module.variable("steps"), 3.0)
        for line in ((1, 2.0), np.array((3, 4), fields), np.array((3, 4), fields)[()], Line(5, 6)):
            await kernel.launch(None, 32, out, line, 8, elements=8)
            await device.get(out)
        async with device.batch() as batch:
            batch.launch(kernel, None, 32, out, (0, 1), 8, elements=8, priority=0)
        assert (await device.get(out)).tolist() == [4.0] * 8
    report = await again(tmp_path / "module")
    assert report.same, str(report)
    assert report.complete


async def test_the_state_after_each_call_can_be_had(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device, open_journal(device, path, contents=True):
        x = await device.put(np.zeros(3, np.float32))  # 1
        await device.fill(x, 1)  # 2
        y = await device.evaluate(x + 1)  # 3
        await device.put(np.full(3, 9, np.float32), out=x)  # 4
        await device.free(x)  # 5
        assert not y.is_stale
    wanted: list[dict[int, list[float]]] = [
        {},
        {1: [0, 0, 0]},
        {1: [1, 1, 1]},
        {1: [1, 1, 1], 2: [2, 2, 2]},
        {1: [9, 9, 9], 2: [2, 2, 2]},
        {2: [2, 2, 2]},
    ]
    for number, values in enumerate(wanted):
        async with opened(isolation="thread") as device:
            refs = await state_at(path, number, device)
            assert {at: (await device.get(ref)).tolist() for at, ref in refs.items()} == values
    async with opened(isolation="thread") as device:
        with pytest.raises(ValueError, match="go up to 5, not 6"):
            await state_at(path, 6, device)


# --- it is not the same --------------------------------------------------------------------


def doubled(x: Any) -> None:
    array = array_of(x)
    array *= 2


def doubled_wrongly(x: Any) -> None:
    array = array_of(x)
    array *= 2
    array[1] = np.nextafter(np.float32(float(array[1])), np.float32(np.inf))


async def record_three(path: Path, **options: Any) -> None:
    async with opened(isolation="thread") as device, open_journal(device, path, **options):
        x = await device.put(np.arange(3, dtype=np.float32))
        await device.run(shifted, x)
        await device.run(doubled, x)
        await device.get(await device.evaluate(x + 1))


async def test_functions_that_nothing_calls_are_refused(tmp_path: Path) -> None:
    """A misspelt name would otherwise test the recorded function."""
    path = tmp_path / "journal"
    await record_three(path, contents=True, results=True)
    whole = f"{doubled.__module__}.doubled"
    assert not (await again(path, functions={whole: doubled_wrongly})).same
    with pytest.raises(ValueError, match="names 'duobled', which the journal does not call; it"):
        await again(path, functions={"duobled": doubled_wrongly})


async def test_arrays_in_another_byte_order_are_recorded(tmp_path: Path) -> None:
    """A journal has the numbers, in the order that the device has them."""
    path = tmp_path / "journal"
    swapped = np.arange(3, dtype=">f4")
    async with opened(isolation="thread") as device:
        async with open_journal(device, path, results=True):
            x = await device.put(swapped)
            await device.get(await device.evaluate(2 * x))
        report = await replay_journal(path, device, inputs={content_hash(swapped): swapped})
    assert report.same, report
    assert content_hash(swapped) == content_hash(swapped.astype(np.float32))


async def test_arguments_of_replays_are_refused_where_they_are_given(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    await record_three(path)
    wrong: Any
    async with opened(isolation="thread") as device:
        for call in (read_journal, lambda given: replay_journal(given, device)):
            with pytest.raises(TypeError, match="a journal must be a path or a storage, not int"):
                await call(3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a journal must be a path or a storage, not int"):
            open_journal(device, 3)  # type: ignore[arg-type]
        for wrong, match in (
            ({"inputs": {"a": 1}}, "inputs must be arrays by the bytes of content_hash"),
            ({"inputs": [1]}, "inputs must be an instance of Mapping"),
            ({"functions": {"doubled": 3}}, r"functions\['doubled'\] must be a function, not int"),
        ):
            with pytest.raises(TypeError, match=match):
                await replay_journal(path, device, **wrong)
            with pytest.raises(TypeError, match=match):
                await state_at(path, 1, device, **wrong)
    for made in (
        lambda: replay_journal(path, None),  # type: ignore[arg-type]
        lambda: state_at(path, 1, None),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="device must be an instance of Device"):
            await made()
    with pytest.raises(TypeError, match="device must be an instance of Device"):
        open_journal(None, tmp_path / "other")  # type: ignore[arg-type]


async def test_a_bug_in_one_op_is_named_with_the_element_and_by_how_much(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    await record_three(path, contents=True, results=True)
    report = await again(path, functions={"doubled": doubled_wrongly})
    (only,) = report.differences  # what follows starts from what was recorded
    assert (only.call, only.where) == (3, "args[1]")
    assert only.deviation == Deviation(
        (1,), 4.0, float(np.nextafter(np.float32(4), np.float32(5))), 2.0**-21, 1, 1, 3
    )
    assert "device.run" in only.message
    assert "[1]: 4.000000476837158 instead of 4.0, by 4.76837e-07 (1 ulps)" in only.message
    assert not report.same


async def test_without_results_the_first_thing_that_is_fetched_tells(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    await record_three(path, contents=True)
    report = await again(path, functions={"doubled": doubled_wrongly})
    assert [each.call for each in report.differences] == [5]
    within = await again(path, functions={"doubled": doubled_wrongly}, tolerance=2.0**-20)
    assert within.same
    assert within.methods == {"device.get": Compared(1, 2.0**-21 / (7 * 2.0**-20))}
    exact = {"float32": 0.0}
    assert not (await again(path, functions={"doubled": doubled_wrongly}, tolerance=exact)).same


async def test_without_contents_inputs_come_from_elsewhere_and_hashes_are_compared(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    await record_three(path, results=True)
    report = await again(path)
    assert [each.call for each in report.skipped] == [1, 2, 3, 4, 5]
    assert "record with contents=True, or give it by inputs=" in str(report.skipped[0])
    array = np.arange(3, dtype=np.float32)
    inputs = {content_hash(array): array}
    assert (await again(path, inputs=inputs)).same
    wrong = await again(path, inputs=inputs, functions={"doubled": doubled_wrongly})
    assert [each.call for each in wrong.differences] == [3, 4, 5]
    assert wrong.methods["device.run"] == Compared(2, math.inf)
    assert wrong.differences[0].deviation is None


async def test_a_tolerance_is_a_number_or_numbers_by_dtypes(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device:
        async with open_journal(device, path, contents=True):
            await device.put(np.ones(2))
        exact: Any = np.float32(0)
        assert (await replay_journal(path, device, tolerance={"float64": exact})).same
        for kind in ("x", True, {"float64": (1, 1)}, {"float64": False}):
            with pytest.raises(TypeError, match=r"tolerance.* must be a real number"):
                await replay_journal(path, device, tolerance=kind)  # type: ignore[arg-type]
        for value in (math.nan, -1, {"float64": -1.0}):
            with pytest.raises(ValueError, match=r"tolerance.* must be at least 0, not"):
                await replay_journal(path, device, tolerance=value)
        with pytest.raises(ValueError, match="none is 'float46'"):
            await replay_journal(path, device, tolerance={"float46": 1.0})
        for number in (0.5, True):
            with pytest.raises(TypeError, match="number must be a whole number"):
                await state_at(path, number, device)  # type: ignore[arg-type]


async def test_different_error_is_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "journal"

    def raises(_x: Any) -> None:
        raise LookupError("not found")

    await record_three(path, contents=True, results=True)
    report = await again(path, functions={"doubled": raises, "shifted": lambda x: None})
    assert [(each.call, each.where) for each in report.differences] == [(2, "args[1]"), (3, "")]
    assert "raised LookupError: not found" in str(report)


async def test_a_function_whose_source_has_changed_is_not_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    await record_three(path, contents=True)
    monkeypatch.setitem(globals(), "doubled", doubled_wrongly)
    report = await again(path)
    assert [each.call for each in report.skipped] == [3]
    assert "its source has changed" in report.skipped[0].reason


async def test_a_function_without_a_name_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    step = 3

    def local(x: Any) -> None:
        x += step

    async with opened(isolation="thread") as device, open_journal(device, path, contents=True):
        x = await device.put(np.zeros(2))
        await device.run(local, x)
        await device.get(x)
    report = await again(path)
    (skipped,) = report.skipped
    assert "give it by functions=" in skipped.reason
    assert report.differences == []  # nobody knows what x holds
    assert (await again(path, functions={local.__qualname__: local})).same


@cpu_only
async def test_buffers_lost_to_a_fault_are_lost_in_the_replay(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with opened() as device, open_journal(device, path, contents=True):
        kept = await device.put(np.ones(2), sealed=True)
        gone = await device.put(np.ones(2))
        await kill_host(device)
        with pytest.raises(GpuRefStale):
            await device.get(gone)
        assert (await device.get(kept)).tolist() == [1, 1]
    report = await again(path)
    assert report.same, report
    assert "raised GpuRefStale" in (await read_journal(path))[2]


@cpu_only
async def test_durable_buffers_are_made_and_lost_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with opened() as device:
        before = await device.put(np.arange(5.0), durable=True)
        async with open_journal(device, path, contents=True, results=True):
            put = await device.put(np.ones(2), durable=True)
            zeros = await device.zeros((2, 3), np.float32, durable=True)
            full = await device.full(4, 7, durable=True)
            made = await device.make_durable(await device.put(np.full(3, 2.0)))
            changed = await device.zeros(10, durable=True)
            await device.fill(zeros[1], 5)
            await device.fill(before[2:], 8)
            scribble(changed, 3, b"x")
            recorder: Any = device.core.recorder
            await recorder.settled()  # or the fault takes the content of ``before``
            await kill_host(device)
            with pytest.raises(GpuRefStale, match=CHANGED):
                await device.get(changed)
            await device.fill(full[:1], 1)
            found = [await device.get(ref) for ref in (before, put, zeros, full, made)]
    assert [array.tolist() for array in found] == [
        [0, 1, 8, 8, 8],
        [1, 1],
        [[0, 0, 0], [5, 5, 5]],
        [1, 7, 7, 7],
        [2, 2, 2],
    ]
    report = await again(path)
    assert report.same, report
    told = "\n".join(await read_journal(path))
    for call in ("zeros((2, 3)", "full(4, 7", "put("):
        assert any(call in line and "durable=True" in line for line in told.splitlines()), told
    assert "make_durable" in told
    async with opened() as device:
        refs = await state_at(path, report.calls, device)
        assert sum(ref.durable for ref in refs.values()) == 5


@pytest.mark.slow
@cpu_only
async def test_results_of_unknown_inputs_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device:
        async with open_journal(device, path, contents=True):
            kernel = await device.nvrtc.compile(PLAIN, "scaled", cpu=scaled)
            x = await device.put(np.ones(4, np.float32))
            y = await device.zeros(4, np.float32)
            with trio.CancelScope() as scope:
                scope.cancel()
                await device.fill(x, 5)  # it is sent at once, and happens
            await kernel.launch(1, 4, x, np.float32(2), y)
            assert (await device.get(y) == 10).all()
        report = await replay_journal(path, device)
    assert report.differences == [], report


@pytest.mark.parametrize(
    ("wrong", "error"), [(False, KeyError), (True, TypeError)], ids=["its own", "of a call"]
)
async def test_error_of_a_batch_block_is_no_difference(
    wrong: bool, error: type[Exception], tmp_path: Path
) -> None:
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device:
        async with open_journal(device, path, contents=True, results=True):
            x = await device.put(np.eye(4))
            with pytest.raises(error):
                async with device.batch() as batch:
                    batch.blas.gemm(x, x)
                    if wrong:
                        batch.blas.gemm(x, 3)  # type: ignore[arg-type]
                    raise KeyError("mine")
            await device.get(x)
        report = await replay_journal(path, device)
    assert report.same, report
    assert f"leave() raised {error.__name__}" in (await read_journal(path))[-2]


@cpu_only
async def test_call_that_ended_well_next_to_a_fault_ends_well_again(tmp_path: Path) -> None:
    path, pipe = tmp_path / "journal", tmp_path / "pipe"
    os.mkfifo(pipe)
    async with opened(standby=None) as device:
        async with open_journal(device, path, contents=True, results=True):
            x = await device.put(np.eye(4))
            await device.run(shifted, x)  # so that there is a lane
            async with trio.open_nursery() as nursery:

                async def die() -> None:
                    with pytest.raises(ContextPoisoned):
                        await device.run(dies_when_told, str(pipe))

                nursery.start_soon(die)
                await trio.testing.wait_all_tasks_blocked()
                await device.copy(x)
                async with await trio.open_file(pipe, "wb"):
                    pass
            await device.put(np.ones(2))
        assert "copy" in (await read_journal(path))[3]
        report = await replay_journal(path, device, functions={"dies_when_told": dies})
    assert report.same, report
    assert report.calls == 5


@pytest.mark.slow
@cpu_only
async def test_a_batch_that_went_down_with_a_call_before_it_goes_down_again(tmp_path: Path) -> None:
    path, pipe = tmp_path / "journal", tmp_path / "pipe"
    os.mkfifo(pipe)
    async with opened(standby=None) as device:
        async with open_journal(device, path, contents=True, results=True):
            x = await device.put(np.eye(4))
            await device.run(shifted, x)  # so that there is a lane
            await device.array.cumsum(await device.blas.gemm(x, x))
            async with trio.open_nursery() as nursery:

                async def die() -> None:
                    with pytest.raises(ContextPoisoned):
                        await device.run(dies_when_told, str(pipe), x)

                async def multiply() -> None:
                    with pytest.raises(ContextPoisoned):
                        async with device.batch() as batch:
                            batch.array.cumsum(batch.blas.gemm(x, x))  # after the function

                nursery.start_soon(die)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(multiply)
                await trio.testing.wait_all_tasks_blocked()
                async with await trio.open_file(pipe, "wb"):
                    pass
            await device.put(np.ones(2))
        report = await replay_journal(path, device, functions={"dies_when_told": dies})
    assert report.same, report


def recalled(
    number: int, method: str, *given: int, outcome: str = "ok", **named: Any
) -> JournalCall:
    fault = outcome == "fault"
    made = HandleValue(9) if method == "batch" else None
    target = HandleValue(9) if method == "leave" else "device"
    args = tuple(Ref(each, "float32", (1,)) for each in given)
    done = DoneEntry(number, "error" if fault else outcome, made, fault=fault)
    return JournalCall(CallEntry(number, target, method, args, **named), done)


def test_a_call_of_a_batch_that_went_down_keeps_its_place_if_others_used_its_buffers() -> None:
    calls = [
        recalled(1, "batch"),
        recalled(2, "fill", 1, outcome="sent", collector=9),
        recalled(3, "fill", 2, outcome="sent", collector=9),
        recalled(4, "get", 1),
        recalled(5, "leave", outcome="fault"),
        recalled(6, "get", 2, generation=2),
    ]
    assert taken_down(calls) == {3, 5}


# --- by how much ---------------------------------------------------------------------------

FLOATS = st.sampled_from([np.dtype(name) for name in ("float16", "float32", "float64")])


@given(FLOATS.flatmap(lambda dtype: st_numpy.arrays(dtype, st.integers(1, 5))), st.data())
def test_neighbours_are_one_ulp_apart(array: np.ndarray[Any, Any], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(array) - 1))
    other = array.copy()
    with np.errstate(over="ignore"):
        other[at] = np.nextafter(array[at], np.asarray(np.inf, array.dtype))
    _, found = deviation(array, other, 0)
    if np.isnan(array[at]) or same_bits(array, other):
        assert found is None
        return
    assert found is not None
    assert (found.index, found.count, found.size) == ((at,), 1, len(array))
    assert found.ulps == 1


def test_comparison_finds_differences() -> None:
    nan, inf = float("nan"), float("inf")

    def differ(one: Any, other: Any, tolerance: float = 0.0, dtype: Any = np.float64) -> int:
        _, found = deviation(np.array(one, dtype), np.array(other, dtype), tolerance)
        return 0 if found is None else found.count

    assert differ([nan, 1], [nan, 1]) == 0
    assert differ([nan, 1], [2, 1], 0.5) == 1
    assert differ([inf, 1], [inf, 1.1], 0.2) == 0
    assert differ([inf, 1], [1, 1], 0.2) == 1
    assert differ([0.0], [-0.0]) == 1
    assert differ([100, 1], [100, 1.5], 0.01) == 0  # as a part of the largest
    assert differ([2**63 - 1], [2**63 - 2], 0.0, np.int64) == 1
    assert differ([1 + 1j, 2], [1 + 1j, 2j], 0.0, np.complex128) == 1
    assert differ([], []) == 0
    assert differ(3, 5, dtype=np.int64) == 1
    assert ulps_between(np.float32(-0.0), np.float32(0)) == 0
    assert ulps_between(np.float32(-1e-45), np.float32(1e-45)) == 2
    assert ulps_between(np.int8(-128), np.int8(127)) == 255
    assert ulps_between(np.complex64(1), np.complex64(2)) is None


def test_how_much_of_what_is_allowed_a_difference_takes() -> None:
    def share(one: Any, other: Any, tolerance: float, dtype: Any = np.float64) -> float:
        return deviation(np.array(one, dtype), np.array(other, dtype), tolerance)[0]

    nan, inf = float("nan"), float("inf")
    assert share([8.0, 1], [8, 1.25], 0.125) == 0.25
    assert share([8.0, nan, inf], [9, nan, inf], 0.0625) == 2
    assert share([8.0, 0.0], [8, -0.0], 0.5) == 0
    assert share([8.0, 1], [8, nan], 0.5) == inf
    assert share([8.0, 1], [8, 2], 0) == inf
    assert share([0.0, 0], [0, 2], 0.5) == inf
    assert share(3, 5, 0.5, np.int64) == inf
    assert share(8j, 9j, 0.25, np.complex64) == 0.5
    assert share([], [], 0.0) == 0


async def test_views_are_told_by_where_they_lie() -> None:
    async with opened(isolation="thread") as device:
        x = await device.put(np.arange(12, dtype=np.float32).reshape(3, 4))
        for ref in (x, x[1:], x.T, x[::-1, ::2], x[2, 1], x.broadcast_to((2, 3, 4)), x[:0]):
            view = view_of(x, ref.shape, ref.dtype, ref.block.offset, ref.own_strides)
            assert same_bits(await device.get(view), await device.get(ref))
        for offset, strides in ((8, None), (-4, None), (0, (16, 8)), (0, (-16, 4))):
            with pytest.raises(ValueError, match="is in 48 bytes"):
                view_of(x, (3, 4), np.float32, offset, strides)


async def test_a_transfer_has_its_place_where_it_is_submitted(tmp_path: Path) -> None:
    """A task that the caller has started submits nothing before it."""
    path = tmp_path / "journal"
    large = np.zeros(1 << 19, np.float32)
    async with opened(isolation="thread") as device:
        async with open_journal(device, path, contents=True):
            x, y = await device.put(large), await device.zeros(4)
            for _ in range(5):
                async with trio.open_nursery() as nursery:
                    for value in range(4):
                        nursery.start_soon(device.fill, y, value)
                        nursery.start_soon(device.fill, x, value)
                    await device.put(large, out=x)
                    await device.get(y)
                await device.get(x[:8])
        report = await replay_journal(path, device)
    assert report.same, report
