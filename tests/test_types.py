"""Type checkers know what calls give, in every form: mypy holds the types, pytest runs the calls.

How options change what normalisations give is in their own tests.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, assert_type

import numpy as np
import pytest

from atomr_accel import Device, GpuRef, System
from atomr_accel.device.batches.batch import BatchResult
from atomr_accel.libraries.dnn.graph._operations import GraphOperations
from atomr_accel.libraries.dnn.graph.user_graph import GraphPlan, GraphTensor
from atomr_accel.libraries.dnn.wire._nodes import NODES
from atomr_accel.libraries.flash_attention._facade import AttnProbs
from atomr_accel.libraries.linalg._spectra import SVD
from atomr_accel.libraries.nvrtc.kernel import Kernel
from atomr_accel.libraries.rng.generator import Generator
from atomr_accel.ops import AsRequests, Awaited, Collected, Request

from .harness import BACKEND, on_shared

pytestmark = [pytest.mark.gpu] if BACKEND == "cuda" else []

INC = 'extern "C" __global__ void inc(float* x) { x[0] += 1; }'


def inc(x: Any) -> None:
    x[0] += 1


def seven() -> int:
    return 7


class Kind(IntEnum):
    """DLPack's types of devices."""

    CPU = 1


class Elsewhere:
    """An array of another library."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[Kind, int]:
        return Kind.CPU, 0

    def __dlpack__(self, **_options: object) -> Any:
        return self.array.__dlpack__()


def one_of_numpy() -> np.ndarray[Any, Any]:
    return np.ones(3)


def arrays_of_numpy() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.ones(3), np.zeros(3)


def an_array() -> Elsewhere:
    return Elsewhere(np.ones(3))


def two_arrays() -> tuple[Elsewhere, Elsewhere]:
    return an_array(), an_array()


def whatever() -> Any:
    return "whatever"


@on_shared
async def test_on_a_device_calls_are_awaited(device: Device) -> None:
    a = assert_type(await device.put(np.eye(16, dtype=np.float32)), GpuRef)
    assert_type(await device.blas.gemm(a, a), GpuRef)
    assert_type(await device.blaslt.matmul(a, a), GpuRef)
    assert_type(await device.dnn.relu(a), GpuRef)
    spectrum = assert_type(await device.fft.rfft(a), GpuRef)
    assert_type(await device.cub.sort_pairs(a, a), tuple[GpuRef, GpuRef])
    kept, count = assert_type(await device.cub.unique(a), tuple[GpuRef, GpuRef])
    assert_type(await device.cub.trim(count, kept), GpuRef)
    assert_type(await device.fft.fft(spectrum), GpuRef)
    generator = assert_type(device.rng.default_rng(7), Generator[Awaited])
    assert_type(await generator.normal(size=8), GpuRef)
    kernel = assert_type(await device.nvrtc.compile(INC, "inc", cpu=inc), Kernel[Awaited])
    assert assert_type(await kernel.launch(1, 1, a), None) is None
    assert_type(await device.zeros(3), GpuRef)
    assert assert_type(await device.get(a), np.ndarray[Any, Any])[0, 0] == 2


@on_shared
async def test_the_system_of_a_device_opens_devices(device: Device) -> None:
    system = assert_type(device.system, System)
    assert isinstance(system, System)
    other = assert_type(await system.spawn_device(0, backend=BACKEND, name="other"), Device)
    await other.ref.stop()
    assert other.closed


@on_shared
async def test_in_a_batch_calls_give_their_results_at_once(device: Device) -> None:
    generator = device.rng.default_rng(7)
    kernel = await device.nvrtc.compile(INC, "inc", cpu=inc)
    async with device.batch() as batch:
        a = assert_type(batch.put(np.eye(16, dtype=np.float32)), GpuRef)
        assert_type(batch.blas.gemm(a, a), GpuRef)
        assert_type(batch.blaslt.matmul(a, a), GpuRef)
        assert_type(batch.dnn.relu(a), GpuRef)
        spectrum = assert_type(batch.fft.rfft(a), GpuRef)
        assert_type(batch.cub.unique_by_key(a, a), tuple[GpuRef, GpuRef, GpuRef])
        assert_type(batch.fft.fft(spectrum), GpuRef)
        drawing = assert_type(batch.using(generator), Generator[Collected])
        assert_type(drawing.normal(size=8), GpuRef)
        launching = assert_type(batch.using(kernel), Kernel[Collected])
        launching.launch(1, 1, a)
        batch.launch(kernel, 1, 1, a)
        assert_type(batch.zeros(3), GpuRef)
        got = assert_type(batch.get(a), BatchResult[np.ndarray[Any, Any]])
        later = assert_type(batch.run(seven), BatchResult[int])
    assert got.value[0, 0] == 3
    assert assert_type(later.value, int) == 7


@on_shared
async def test_in_a_recording_calls_give_their_results_at_once(device: Device) -> None:
    a = await device.put(np.eye(16, dtype=np.float32))
    generator = device.rng.default_rng(7)
    kernel = await device.nvrtc.compile(INC, "inc", cpu=inc)
    async with device.record(a) as recording:
        assert_type(recording.blas.gemm(a, a), GpuRef)
        assert_type(recording.blaslt.matmul(a, a), GpuRef)
        assert_type(recording.dnn.relu(a), GpuRef)
        spectrum = assert_type(recording.fft.rfft(a), GpuRef)
        assert_type(recording.fft.fft(spectrum), GpuRef)
        drawing = assert_type(recording.using(generator), Generator[Collected])
        assert_type(drawing.normal(size=8), GpuRef)
        assert_type(recording.using(kernel), Kernel[Collected]).launch(1, 1, a)
        recording.launch(kernel, 1, 1, a)
        assert_type(recording.zeros(3), GpuRef)
    assert_type(await recording.replay(a), None)
    assert (await device.get(a))[0, 0] == 3
    array = assert_type(await recording.replay(get=a), np.ndarray[Any, Any])
    arrays = assert_type(await recording.replay(a, get=[a]), list[np.ndarray[Any, Any]])
    assert (array[0, 0], arrays[0][0, 0]) == (5, 7)


@on_shared
async def test_requests_say_what_they_are_answered_with(device: Device) -> None:
    a = await device.put(np.eye(16, dtype=np.float32))
    requests = device.requests
    gemm = assert_type(requests.blas.gemm(a, a), Request[GpuRef])
    assert_type(requests.blaslt.matmul(a, a), Request[GpuRef])
    assert_type(requests.dnn.relu(a), Request[GpuRef])
    assert_type(requests.fft.fft(a), Request[GpuRef])
    assert_type(requests.cub.reduce(a, lambda x, y: x + y), Request[GpuRef])
    generator = requests.using(device.rng.default_rng(7))
    assert_type(generator, Generator[AsRequests])
    assert_type(generator.normal(size=8), Request[GpuRef])
    kernel = requests.using(await device.nvrtc.compile(INC, "inc", cpu=inc))
    assert_type(kernel, Kernel[AsRequests])
    assert_type(kernel.launch(1, 1, a), Request[None])
    product = assert_type(await device.blas.ref.ask(gemm), GpuRef)
    np.testing.assert_array_equal(await device.get(product), np.eye(16))


@on_shared
async def test_flash_attn_names_give_a_union_of_one_and_three_results(device: Device) -> None:
    qkv = await device.put(np.ones((2, 4, 3, 2, 16), np.float16))
    flash = device.flash_attention
    assert isinstance(
        assert_type(await flash.flash_attn_qkvpacked_func(qkv), GpuRef | AttnProbs), GpuRef
    )
    three = await flash.flash_attn_qkvpacked_func(qkv, return_attn_probs=True)
    assert isinstance(three, AttnProbs)
    assert three.S_dmask is None


async def test_attention_with_lse_gives_two_results(device: Device) -> None:
    q = await device.put(np.ones((2, 4, 2, 16), np.float16))
    cache = await device.dnn.kv_cache(8, 4, 2, 16, dtype="float16")
    sequences = [cache.new(), cache.new()]
    await cache.append(sequences, q, q)
    assert_type(await device.dnn.flash_attention(q, q, q), GpuRef)
    two = await device.dnn.flash_attention_with_lse(q, q, q)
    assert len(assert_type(two, tuple[GpuRef, GpuRef])) == 2
    assert_type(await cache.attend(q, sequences), GpuRef)
    request = device.requests.using(cache).attend_with_lse(q, sequences)
    assert_type(request, Request[tuple[GpuRef, GpuRef]])
    two = await device.dnn.ref.ask(request)
    assert len(assert_type(two, tuple[GpuRef, GpuRef])) == 2


def test_type_checkers_know_the_operations_of_graphs() -> None:
    known = GraphOperations.__annotations__
    assert known.keys() == NODES.keys()
    assert {name: row for name, row in known.items() if row == "One"}.keys() == {
        name for name, row in NODES.items() if len(row.outputs) == 1
    }


@on_shared
async def test_build_arguments_decide_the_type_of_a_plans_result(device: Device) -> None:
    x = await device.put(np.array([-1, 2], np.float32))
    graph = device.dnn.graph()
    tensor = graph.tensor((2,), "float32", name="x")
    y, z = assert_type(tensor * 2, GraphTensor), assert_type(graph.relu(tensor), GraphTensor)
    one = assert_type(await graph.build(y), GraphPlan[Awaited, GpuRef])
    two = assert_type(await graph.build(y, z), GraphPlan[Awaited, tuple[GpuRef, ...]])
    unknown = assert_type(await graph.build(), GraphPlan[Awaited, GpuRef | tuple[GpuRef, ...]])

    assert_type(await one(x=x), GpuRef)
    assert len(assert_type(await two(x=x), tuple[GpuRef, ...])) == 2
    either = assert_type(await unknown(x=x), GpuRef | tuple[GpuRef, ...])
    assert isinstance(either, tuple)
    assert_type(await device.dnn.run(one, x=x), GpuRef)
    made = await device.dnn.run(two, x=x)
    assert len(assert_type(made, tuple[GpuRef, ...])) == 2

    for collector in device.batch(), device.record():
        async with collector as collected:
            assert_type(collected.using(one), GraphPlan[Collected, GpuRef])
            assert_type(collected.using(one)(x=x), GpuRef)
            assert len(assert_type(collected.using(two)(x=x), tuple[GpuRef, ...])) == 2
            assert_type(collected.dnn.run(one, x=x), GpuRef)
            assert len(assert_type(collected.dnn.run(two, x=x), tuple[GpuRef, ...])) == 2

    requests = device.requests
    assert_type(requests.using(one), GraphPlan[AsRequests, GpuRef])
    assert_type(requests.using(one)(x=x), Request[GpuRef])
    assert_type(requests.dnn.run(one, x=x), Request[GpuRef])
    request = assert_type(requests.dnn.run(two, x=x), Request[tuple[GpuRef, ...]])
    made = await device.dnn.ref.ask(request)
    assert len(assert_type(made, tuple[GpuRef, ...])) == 2


@on_shared
async def test_svd_gives_vectors_unless_told_otherwise(device: Device) -> None:
    a = await device.put(np.eye(3))
    some = bool(a.size)
    u, s, _ = assert_type(await device.linalg.svd(a, algorithm="gesvdr", k=2), SVD)
    assert (u.shape, s.shape) == ((3, 2), (2,))
    assert_type(await device.linalg.svd(a, False, True, True), SVD)
    values = assert_type(await device.linalg.svd(a, compute_uv=False), GpuRef)
    assert values.shape == (3,)
    assert_type(await device.linalg.svd(a, True, False, hermitian=True), GpuRef)
    assert isinstance(assert_type(await device.linalg.svd(a, compute_uv=some), SVD | GpuRef), SVD)
    async with device.batch() as batch:
        assert_type(batch.linalg.svd(a), SVD)
        assert_type(batch.linalg.svd(a, compute_uv=False), GpuRef)
    request = assert_type(device.requests.linalg.svd(a), Request[SVD])
    assert_type(device.requests.linalg.svd(a, compute_uv=False), Request[GpuRef])
    assert assert_type(await device.linalg.ref.ask(request), SVD).S.shape == (3,)


@on_shared
async def test_functions_give_what_they_return_and_refs_for_arrays(device: Device) -> None:
    assert assert_type(await device.run(seven), int) == 7
    assert assert_type(await device.run(whatever), Any) == "whatever"
    array = assert_type(await device.run(one_of_numpy), np.ndarray[Any, Any])
    assert array.sum() == 3
    ones, zeros = assert_type(
        await device.run(arrays_of_numpy), tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
    )
    assert (ones.sum(), zeros.sum()) == (3, 0)


@pytest.mark.skipif(BACKEND == "cuda", reason="the arrays are not on the GPU")
@on_shared
async def test_arrays_of_other_libraries_become_refs(device: Device) -> None:
    assert (await device.get(assert_type(await device.run(an_array), GpuRef))).sum() == 3
    refs = assert_type(await device.run(two_arrays), tuple[GpuRef, ...])
    assert [type(ref) for ref in refs] == [GpuRef, GpuRef]
    async with device.batch() as batch:
        number = assert_type(batch.run(seven), BatchResult[int])
        assert_type(batch.run(whatever), BatchResult[Any])
        array = assert_type(batch.run(an_array), BatchResult[GpuRef])
        arrays = assert_type(batch.run(two_arrays), BatchResult[tuple[GpuRef, ...]])
        unchanged = batch.run(arrays_of_numpy)
        assert_type(unchanged, BatchResult[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]])
    assert number.value == 7
    assert type(array.value) is GpuRef
    assert len(arrays.value) == 2
