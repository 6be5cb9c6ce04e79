"""Recordings inside recordings: child graphs, and parts on which a flag decides."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, Final

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, GpuRefSealed, GpuRefStale, KernelHung, Unsupported
from atomr_accel.executors.device_code import read_kernels
from atomr_accel.libraries.nvrtc.kernel import Kernel
from atomr_accel.ops import Awaited
from atomr_accel.testing import poison

from ..fakes.graphs import graphs
from ..harness import ON_CUDA, cpu_only, on_shared, opened, program, settled, used_by
from .programs import adder

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests

FLAGS: Final = 2
CELLS: Final = 3
MIX, COUNT_DOWN, SET = range(3)

SOURCE: Final = """
    extern "C" __global__ void act(float* cells, int* flags, int what, int where, int value) {
        if (what == 0) cells[where] = fmodf(2 * cells[where] + cells[0] + value, 1021);
        if (what == 1) flags[where] = max(flags[where] - 1, 0);
        if (what == 2) flags[where] = value;
    }
"""


def act(cells: Any, flags: Any, what: int, where: int, value: int) -> None:
    """Run the kernel's action."""
    if what == 0:
        cells[where] = (2 * cells[where] + cells[0] + value) % 1021
    elif what == 1:
        flags[where] = max(flags[where] - 1, 0)
    else:
        flags[where] = value


async def actor(device: Device) -> Kernel[Awaited]:
    return await device.nvrtc.compile(SOURCE, "act", cpu=act)


Tree = list[tuple[Any, ...]]
"""``("act", what, where, value)``, or a section: ``(kind, flag, tree)``."""


def trees(depth: int = 3, looping: tuple[int, ...] = ()) -> st.SearchStrategy[Tree]:
    """Programs. No loop sets its flag again inside, so all loops end."""
    mix = st.tuples(st.just("act"), st.just(MIX), st.integers(0, CELLS - 1), st.integers(0, 9))
    free = [flag for flag in range(FLAGS) if flag not in looping]
    nodes: list[st.SearchStrategy[Any]] = [mix]
    if free:
        where = st.sampled_from(free)
        nodes.append(st.tuples(st.just("act"), st.just(SET), where, st.integers(0, 3)))
    if depth:
        inner = trees(depth - 1, looping)
        flag = st.integers(0, FLAGS - 1)
        nodes += [
            st.tuples(st.just("call"), st.just(0), inner),
            st.tuples(st.just("when"), flag, inner),
        ]
        nodes += [
            st.tuples(st.just("loop"), st.just(at), trees(depth - 1, (*looping, at))) for at in free
        ]
    return st.lists(st.one_of(nodes), max_size=4)


def model(tree: Tree, cells: Any, flags: Any) -> None:
    """Execute a tree."""
    for node in tree:
        if node[0] == "act":
            act(cells, flags, *node[1:])
        elif node[0] == "loop":
            while flags[node[1]]:
                model(node[2], cells, flags)
                act(cells, flags, COUNT_DOWN, node[1], 0)
        elif node[0] == "call" or flags[node[1]]:
            model(node[2], cells, flags)


async def record(
    device: Device, kernel: Kernel[Awaited], tree: Tree, cells: Any, flags: Any
) -> Any:
    """The recording of a tree. Called recordings are made with buffers of their own."""
    called = []
    for node in tree_calls(tree):
        own = await device.zeros(CELLS, "f4"), await device.zeros(FLAGS, "i4")
        called.append(await record(device, kernel, node[2], *own))
    inner = iter(called)

    def collect(nodes: Tree) -> None:
        for node in nodes:
            if node[0] == "act":
                recorded.launch(kernel, 1, 1, cells, flags, *node[1:])
            elif node[0] == "call":
                recorded.call(next(inner), cells, flags)
            elif node[0] == "when":
                with recorded.when(flags[node[1]]):
                    collect(node[2])
            else:
                with recorded.loop(flags[node[1] : node[1] + 1]):
                    collect(node[2])
                    recorded.launch(kernel, 1, 1, cells, flags, COUNT_DOWN, node[1], 0)

    async with device.record(cells, flags) as recorded:
        collect(tree)
    return recorded


def tree_calls(tree: Tree) -> Tree:
    """The calls of a program, those inside its sections included, in order."""
    found = []
    for node in tree:
        if node[0] == "call":
            found.append(node)
        elif node[0] != "act":
            found += tree_calls(node[2])
    return found


async def check(device: Device, tree: Tree, seeds: list[int]) -> None:
    kernel = await actor(device)
    unused = await device.zeros(CELLS, "f4"), await device.zeros(FLAGS, "i4")
    recorded = await record(device, kernel, tree, *unused)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        cells = rng.integers(0, 9, CELLS).astype("f4")
        flags = rng.integers(0, 3, FLAGS).astype("i4")
        refs = await device.put(cells), await device.put(flags)
        await recorded.replay(*refs)
        model(tree, cells, flags)
        assert (await device.get(refs[0])).tolist() == cells.tolist()
        assert (await device.get(refs[1])).tolist() == flags.tolist()
    assert (await device.get(unused[0])).tolist() == [0] * CELLS


@pytest.mark.slow
@settings(max_examples=40)
@given(tree=trees(), seeds=st.lists(st.integers(0, 99), min_size=1, max_size=3))
@on_shared
async def test_a_recording_of_recordings_is_what_its_parts_are(
    device: Device, tree: Tree, seeds: list[int]
) -> None:
    await check(device, tree, seeds)


@pytest.mark.slow
@cpu_only
@settings(max_examples=30, deadline=None)
@given(tree=trees(), seeds=st.lists(st.integers(0, 99), min_size=1, max_size=3))
def test_the_same_as_graphs(tree: Tree, seeds: list[int]) -> None:
    @program
    async def run() -> None:
        async with opened(isolation="thread", standby=None) as device:
            await check(device, tree, seeds)

    with graphs() as driver:
        run()
        assert not driver.alive  # all was released


@pytest.mark.parametrize("fake", [pytest.param(True, marks=cpu_only), False])
async def test_parameters_change_in_place_where_no_flag_decides(fake: bool) -> None:
    with graphs() if fake else nullcontext() as driver:
        async with opened(isolation="thread") as device:
            kernel = await adder(device)
            refs = [await device.full(4, n, np.float32) for n in range(3)]
            async with device.record(refs[0]) as inner:
                inner.launch(kernel, 1, 4, refs[0], 1.0)
            async with device.record(refs[0]) as outer:
                outer.call(inner, refs[0])
                outer.launch(kernel, 1, 4, refs[0], 10.0)
                outer.call(inner, refs[0])
            for ref in refs:
                await outer.replay(ref)
            assert [(await device.get(ref))[0] for ref in refs] == [12, 13, 14]
            if driver is not None:
                assert driver.updates == [True, True]


@cpu_only
async def test_a_driver_without_conditional_nodes() -> None:
    with graphs(driver_version=12020) as driver:
        async with opened(isolation="thread") as device:
            kernel = await adder(device)
            x, flag = await device.zeros(4, np.float32), await device.put(np.True_)
            async with device.record() as recorded:
                with recorded.when(flag):
                    recorded.launch(kernel, 1, 4, x, 1.0)
            with pytest.raises(Unsupported, match=r"12\.3 or newer; this one is of CUDA 12\.2"):
                await recorded.replay()
            async with device.record() as outer:
                outer.launch(kernel, 1, 4, x, 1.0)
            await outer.replay()
            assert (await device.get(x)).tolist() == [1] * 4
        assert not driver.alive


@pytest.mark.headers
def test_the_kernel_that_looks_at_flags_assembles() -> None:
    """Linked with a function in the place of the one that drivers have."""
    linker = pytest.importorskip("cuda.bindings.nvjitlink")
    kernel = read_kernels("atomr_accel.libraries.recordings.host", "set_conditional.ptx")
    there = """
        .version 6.0
        .target sm_50
        .address_size 64
        .visible .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value) { ret; }
    """
    try:
        handle = linker.create(1, ["-arch=sm_90"])
    except RuntimeError as error:
        pytest.skip(str(error))
    for name, text in (("kernel", kernel), ("there", there)):
        data = text.encode() + b"\0"
        linker.add_data(handle, linker.InputType.PTX, data, len(data), name)
    linker.complete(handle)
    assert linker.get_linked_cubin_size(handle) > 0
    linker.destroy(handle)


# --- buffers -------------------------------------------------------------------------------


@on_shared
async def test_replaced_input_replaces_its_views(device: Device) -> None:
    kernel = await adder(device)
    x, z = await device.zeros(8, np.float32), await device.zeros(8, np.float32)
    async with device.record(x) as recorded:
        recorded.launch(kernel, 1, 4, x[4:], 1.0)
        recorded.launch(kernel, 1, 2, x[4:][:2].reshape(1, 2), 10.0)
        square = recorded.blas.gemm(x.reshape(4, 2)[2:], np_eye := x.reshape(4, 2)[2:])
    await recorded.replay(z)
    assert (await device.get(z)).tolist() == [0] * 4 + [11, 11, 1, 1]
    assert (await device.get(x)).tolist() == [0] * 8
    assert (await device.get(square)).tolist() == [[132, 132], [12, 12]]
    with pytest.raises(ValueError, match="is a view of"):
        await recorded.replay(replace={np_eye: z.reshape(4, 2)[2:]})


@on_shared
async def test_views_that_were_taken_before_their_whole(device: Device) -> None:
    kernel = await adder(device)
    x, z = await device.zeros(8, np.float32), await device.zeros(8, np.float32)
    async with device.record() as inner:
        inner.launch(kernel, 1, 1, x[5:6], 1.0)
        inner.launch(kernel, 1, 2, x[4:6], 10.0)
        inner.launch(kernel, 1, 4, x[2:6], 100.0)
        square = inner.blas.gemm(x.reshape(4, 2)[2:], x.reshape(4, 2)[2:])
        square = inner.blas.gemm(square, x[:4].reshape(2, 2))
        inner.launch(kernel, 1, 8, x, 1000.0)
    async with device.record(x) as outer:
        outer.call(inner, replace={x: x})
    once = np.array([1000, 1000, 1100, 1100, 1110, 1111, 1000, 1000])
    await inner.replay(replace={x: z})
    assert (await device.get(z)).tolist() == once.tolist()
    await outer.replay(z)
    assert (await device.get(z)).tolist() == (2 * once).tolist()
    assert (await device.get(x)).tolist() == [0] * 8
    assert square.shape == (2, 2)


@on_shared
async def test_results_of_a_recording_that_is_called(device: Device) -> None:
    """The results are always the same refs, also while the program replays itself."""
    x = await device.put(np.full((2, 2), 2, np.float32))
    async with device.record(x) as inner:
        square = inner.blas.gemm(x, x)
    async with device.record(x) as outer:
        outer.call(inner, x)
        fourth = outer.blas.gemm(square, square)
    del inner
    await outer.replay()
    assert (await device.get(square)).tolist() == [[8, 8], [8, 8]]
    assert (await device.get(fourth)).tolist() == [[128, 128], [128, 128]]
    await outer.replay(await device.put(np.eye(2, dtype=np.float32)))
    assert (await device.get(square)).tolist() == [[1, 0], [0, 1]]
    assert (await device.get(fourth)).tolist() == [[1, 0], [0, 1]]


@pytest.mark.slow
async def test_after_a_rebuild_called_recordings_are_made_anew() -> None:
    async with opened(isolation="process", max_restarts=10) as device:
        x = await device.put(np.full((2, 2), 2, np.float32), sealed=True)
        flag = await device.put(np.True_, sealed=True)
        async with device.record(x) as inner:
            square = inner.blas.gemm(x, x)
        async with device.record(x) as outer:
            with outer.when(flag):
                outer.call(inner, x)
                fourth = outer.blas.gemm(square, square)
        await outer.replay()
        await poison(device)
        assert square.is_stale
        await outer.replay()
        assert (await device.get(square)).tolist() == [[8, 8], [8, 8]]
        assert (await device.get(fourth)).tolist() == [[128, 128], [128, 128]]
        await settled(device)
        del x, flag, inner, outer, square, fourth
        assert used_by(device) == 0


@on_shared
async def test_a_result_that_was_sealed_is_not_written_again(device: Device) -> None:
    x = await device.put(np.eye(2, dtype=np.float32))
    async with device.record(x) as recorded:
        square = recorded.blas.gemm(x, x)
    async with device.record(x) as outer:
        outer.call(recorded, x)
    await recorded.replay()
    await device.seal(square)
    for replay in (recorded.replay, outer.replay):
        with pytest.raises(GpuRefSealed, match="a result of the recording"):
            await replay(await device.put(np.ones((2, 2), np.float32)))
    assert (await device.get(square)).tolist() == [[1, 0], [0, 1]]


@on_shared
async def test_a_result_that_was_freed_has_other_memory(device: Device) -> None:
    x = await device.put(np.eye(2, dtype=np.float32))
    async with device.record(x) as recorded:
        square = recorded.blas.gemm(x, x)
    await recorded.replay()
    await device.free(square)
    other = await device.full((2, 2), 7, np.float32)  # perhaps where it was
    await recorded.replay()
    assert (await device.get(square)).tolist() == [[1, 0], [0, 1]]
    assert (await device.get(other)).tolist() == [[7, 7], [7, 7]]


# --- what is refused -----------------------------------------------------------------------


@on_shared
async def test_sections_refuse_invalid_nesting(device: Device) -> None:
    kernel = await adder(device)
    x, flag = await device.zeros(4, np.float32), await device.put(np.int32(1))
    sealed = await device.put(np.int32(1), sealed=True)
    async with device.record(x) as inner:
        inner.launch(kernel, 1, 4, x, 1.0)
        with pytest.raises(RuntimeError, match="after its block"):
            inner.call(inner)
    async with device.record(x) as outer:
        for wrong in (x, x[0]):
            with pytest.raises(TypeError, match="bool or an integer"), outer.when(wrong):
                pass
        with pytest.raises(TypeError, match="must be a GpuRef"), outer.when(True):  # type: ignore[arg-type]
            pass
        with pytest.raises(ValueError, match="one element"), outer.when(x.view(np.int32)):
            pass
        with pytest.raises(GpuRefSealed), outer.loop(sealed):
            pass
        with (
            pytest.raises(
                ValueError,
                match="an op in this loop must write its flag, or the loop runs for ever",
            ),
            outer.loop(flag),
        ):
            outer.launch(kernel, 1, 4, x, 1.0)
        with pytest.raises(KeyError), outer.when(flag):
            outer.launch(kernel, 1, 4, x, 1.0)
            raise KeyError
        with pytest.raises(TypeError, match="takes a recording"):
            outer.call(x)  # type: ignore[arg-type]
        with pytest.raises(
            ValueError, match="replay must be given 1 inputs, as were recorded, not 2"
        ):
            outer.call(inner, x, x)
        with pytest.raises(ValueError, match="has not the shape"):
            outer.call(inner, x[:2])
        with pytest.raises(GpuRefSealed):
            outer.call(inner, await device.put(np.zeros(4, np.float32), sealed=True))
        outer.call(inner, x)
        freed = await device.zeros(4, np.float32)
        await device.free(freed)
        with pytest.raises(GpuRefStale):
            outer.call(inner, freed)
    with pytest.raises(RuntimeError, match="has ended"):
        outer.call(inner)
    with pytest.raises(RuntimeError, match="has ended"), outer.when(flag):
        pass
    await outer.replay()
    assert (await device.get(x)).tolist() == [1] * 4  # what was refused is not there


async def test_a_recording_of_another_device() -> None:
    async with opened(isolation="thread") as one, opened(isolation="thread") as other:
        async with one.record() as inner:
            pass
        async with other.record() as outer:
            with pytest.raises(ValueError, match="was made on"):
                outer.call(inner)


@pytest.mark.slow
async def test_a_loop_that_never_ends_is_an_op_that_hangs() -> None:
    async with opened(isolation="process", op_deadline=0.5, max_restarts=10) as device:
        kernel = await actor(device)
        cells = await device.zeros(CELLS, "f4")
        flags = await device.put(np.ones(FLAGS, np.int32))
        async with device.record() as recorded:
            with recorded.loop(flags[0]):
                recorded.launch(kernel, 1, 1, cells, flags, SET, 0, 1)
        with pytest.raises(KernelHung):
            await recorded.replay()


@on_shared
async def test_a_recording_of_recordings_can_be_looked_at(device: Device) -> None:
    kernel = await adder(device)
    x, flag = await device.zeros(4, np.float32), await device.put(np.True_)
    async with device.record(x) as inner:
        inner.launch(kernel, 1, 4, x, 1.0)
        inner.launch(kernel, 1, 4, x, 1.0)
    async with device.record(x) as outer:
        outer.call(inner, x)
        with outer.when(flag):
            outer.call(inner, x)
    await outer.replay()
    text = await outer.dot()
    assert text.startswith("digraph")
    if not ON_CUDA:
        assert text.count('label="kernel add"') == 4
        assert text.count("subgraph") == 3
