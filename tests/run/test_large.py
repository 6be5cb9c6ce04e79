"""Arguments and results of functions, of any size and kind."""

from __future__ import annotations

import pickle
import threading
import tracemalloc
from functools import partial
from typing import Any, Final

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import ContextPoisoned, Device
from atomr_accel.lanes import Isolation
from atomr_accel.libraries.run.wire.pickling import INLINE, PickleTooLarge, TakesLong, dumps, loads
from atomr_accel.testing import kill_host

from ..harness import Gate, cpu_only, on_shared, opened, settled

pytestmark = cpu_only

# --- arrays of every kind -----------------------------------------------------------------------

DTYPES: Final = (
    *("bool", "i1", "<i2", ">i4", "u8", "f2", ">f4", "<f8", ">f8", "c8", ">c16"),
    *("S7", "<U3", ">U3", "M8[s]", "m8[ns]", "V5"),
)
STRUCTURED: Final = np.dtype([("a", ">i2"), ("b", "f8", (2,)), ("c", "S3")], align=True)
KINDS: Final = (
    "plain",
    "fortran",
    "strided",
    "reversed",
    "read-only",
    "masked",
    "record",
    "object",
    "broadcast",
)


def array_of(kind: str, dtype: Any, rows: int, columns: int) -> Any:
    """An array, made in the same way here and in the host."""
    import numpy as np  # it travels by value

    raw = np.arange(rows * columns * dtype.itemsize, dtype=np.uint64) % 251
    if dtype.kind == "U":
        filled = np.full(rows * columns, "\u00e9\u4e00x", dtype)
    elif dtype.kind == "b":
        filled = raw[: rows * columns] % 2 == 0
    else:
        filled = np.frombuffer(raw.astype(np.uint8).tobytes(), dtype).copy()
    array: Any = filled.reshape(rows, columns)
    match kind:
        case "fortran":
            return np.asfortranarray(array)
        case "strided":
            return array[::2, ::3]
        case "reversed":
            return array[::-1, ::-1]
        case "read-only":
            array.setflags(write=False)
        case "masked":
            mask = np.arange(array.size).reshape(array.shape) % 3 == 0
            fill = array.reshape(-1)[0]  # the default does not fit into every dtype
            return np.ma.masked_array(array, mask=mask, fill_value=fill)
        case "record":
            return array.view(np.recarray)
        case "object":
            return array.astype(object)
        case "broadcast":
            return np.broadcast_to(array[:1], array.shape)
    return array


def bits(array: Any) -> Any:
    """Return all that distinguishes an array."""
    if isinstance(array, np.ma.MaskedArray):
        return bits(array.data), bits(array.mask)
    if array.dtype.names:  # padding is nobody's
        content: Any = [array[name].tobytes() for name in array.dtype.names]
    else:
        content = repr(array.tolist()) if array.dtype.hasobject else array.tobytes()
    return content, array.shape, array.dtype, array.dtype.isnative, array.flags.writeable


def same_kind(one: Any, other: Any) -> bool:
    """Return whether two arrays are equal in type, dtype, order, writability and every bit."""
    return (
        type(one) is type(other)
        and bits(one) == bits(other)
        and one.flags.fnc == other.flags.fnc
        and one.strides == other.strides
    )


@pytest.mark.slow
@settings(max_examples=80)
@given(
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from([*map(np.dtype, DTYPES), STRUCTURED]),
    nbytes=st.sampled_from([1, 100, INLINE - 4096, INLINE, INLINE + 4096, 3 * INLINE]),
    columns=st.sampled_from([1, 2, 7]),
)
@on_shared
async def test_arrays_travel_as_what_they_are(
    device: Device, kind: str, dtype: np.dtype[Any], nbytes: int, columns: int
) -> None:
    rows = max(1, nbytes // (dtype.itemsize * columns))
    here = array_of(kind, dtype, rows, columns)
    # What pickle makes of it, which knows of no sizes.
    wanted = pickle.loads(pickle.dumps(here, protocol=5))
    assert same_kind(await device.run(array_of, kind, dtype, rows, columns), wanted)
    inside = await device.run(lambda *args: {"it": [args]}, here, 5)
    assert same_kind(inside["it"][0][0], wanted)
    assert inside["it"][0][1] == 5


@on_shared
async def test_a_masked_array_keeps_its_mask_at_any_size(device: Device) -> None:
    def masked(n: int) -> Any:
        return np.ma.masked_array(np.arange(n, dtype=float), mask=np.arange(n) % 2 == 0)

    for n in (8_000, 9_000, 100_000):
        result = await device.run(masked, n)
        assert type(result) is np.ma.MaskedArray
        assert result.mean() == masked(n).mean()


@on_shared
async def test_arrays_without_dimensions_and_shared_ones(device: Device) -> None:
    zero = await device.run(lambda: np.array(2.5, ">f4"))
    assert (zero.shape, zero.dtype, float(zero)) == ((), np.dtype(">f4"), 2.5)
    one, other = await device.run(lambda: [np.zeros(INLINE)] * 2)
    assert one is other
    a, b = await device.run(lambda x: (x, x[:5]), np.arange(INLINE))
    assert (a[:5] == b).all()


# --- large things -------------------------------------------------------------------------------

SIZES: Final = (INLINE - 100, INLINE, INLINE + 1, 1 << 20, (20 << 20) + 3)


@pytest.mark.slow
@pytest.mark.parametrize("nbytes", SIZES)
@on_shared
async def test_large_things_travel_both_ways(device: Device, nbytes: int) -> None:
    content = bytes(range(256)) * (nbytes // 256) + b"x" * (nbytes % 256)
    things = (content, bytearray(content), content.decode("latin-1"), {"n": [nbytes] * 10})
    for thing in things:
        assert await device.run(lambda x: x, thing) == thing
    numbers = list(range(nbytes // 100))
    assert await device.run(lambda x: x[::-1], numbers) == numbers[::-1]
    await settled(device)
    assert device.core.staging._pool.in_use == 0


@on_shared
async def test_large_initializers(device: Device) -> None:
    table = np.arange(1 << 18)
    init = partial(lambda array: array * 2, table)
    for _ in range(2):
        assert await device.run(lambda state, k: int(state[k]), 1000, lane="t", init=init) == 2000
    await device.close_lane("t")


async def test_large_initializers_are_kept_for_rebuilds() -> None:
    table = np.arange(1 << 18)
    init = partial(lambda array: array * 2, table)
    async with opened() as device:
        assert await device.run(lambda state: int(state[7]), init=init) == 14
        table[7] = 0  # what is kept is what was given
        await kill_host(device)
        assert await device.run(lambda state: int(state[7]), init=init) == 14


async def test_a_host_that_dies_while_much_is_on_its_way() -> None:
    async with opened(max_restarts=9) as device:
        large = np.ones(8 << 20, np.uint8)

        async def call() -> None:
            try:
                assert await device.run(np.sum, large) == large.size
            except ContextPoisoned:
                pass
            else:
                done.append(None)

        done: list[None] = []
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            await kill_host(device)
        assert await device.run(np.sum, large) == large.size
        await settled(device)


@on_shared
async def test_oversized_argument_is_refused_before_it_is_copied(device: Device) -> None:
    much = np.zeros(200 << 20, np.uint8)  # of zeros that nobody has touched
    submitted = sum(lane.submitted for lane in device.statistics().lanes)
    things = (much, much[::2], np.ma.masked_array(much), np.broadcast_to(much[:1], 1 << 40), [much])
    for thing in things:
        tracemalloc.start()
        with pytest.raises(ValueError, match="put large arrays on the device"):
            await device.run(len, thing)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 16 << 20
    assert sum(lane.submitted for lane in device.statistics().lanes) == submitted


@pytest.mark.slow
async def test_a_busy_lane_does_not_keep_others_from_their_results(
    gate: Gate, isolation: Isolation
) -> None:
    path = str(gate.path)

    def wait(content: bytes) -> int:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (it travels by value)
            file.read(1)
        return len(content)

    async with opened(isolation=isolation) as device, trio.open_nursery() as nursery:
        counts: list[int] = []

        async def slow() -> None:
            counts.append(await device.run(wait, bytes(48 << 20), lane="slow"))

        async def result() -> None:
            results.append(await device.run(np.ones, 1 << 20, lane="slow"))

        results: list[Any] = []
        await device.run(len, b"", lane="slow")  # it is open: what is called first comes first
        nursery.start_soon(result)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(4):  # more than the staging memory holds
            nursery.start_soon(slow)
        while not results:
            await trio.testing.wait_all_tasks_blocked()
        array = np.ones(1 << 20)
        assert (await device.get(await device.put(array)) == array).all()
        assert not counts
        gate.open(4)
    assert counts == [48 << 20] * 4


# --- pickling -----------------------------------------------------------------------------------


def nothing(_thing: object) -> None:
    """Nothing stays behind."""


class Tracked:
    """Notes the process that pickles it."""

    threads: Final[list[str]] = []

    def __reduce__(self) -> Any:
        self.threads.append(threading.current_thread().name)
        return int, (5,)


@on_shared
async def test_small_arguments_are_pickled_at_once_and_large_ones_in_a_thread(
    device: Device,
) -> None:
    Tracked.threads.clear()
    here = threading.current_thread().name
    assert await device.run(lambda x: x, Tracked()) == 5
    assert Tracked.threads == [here]
    Tracked.threads.clear()
    assert await device.run(len, [*range(10_000), Tracked()]) == 10_001
    assert Tracked.threads
    assert here not in Tracked.threads


@on_shared
async def test_unpicklable_argument_gives_one_error_wherever_it_is_found(device: Device) -> None:
    for many in (0, 10_000):
        with pytest.raises(TypeError, match=r"cannot pickle|pickle") as caught:
            await device.run(len, [*range(many), threading.Lock()])
        assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "thing",
    [
        list(range(10_000)),
        [bytes(100)] * 3 + [bytes([n % 256]) * 999 for n in range(100)],
        "x" * (2 << 20),
        np.zeros((2048, 2048))[::2],
        np.ma.zeros((1024, 1024)),
    ],
    ids=["many", "bytes", "text", "strided", "masked"],
)
def test_slow_pickling_can_be_cancelled(thing: Any) -> None:
    with pytest.raises(TakesLong):
        dumps(thing, nothing, quick=True)
    packed = dumps(thing, nothing)
    back = loads(packed.data, packed.parts, nothing)
    assert type(back) is type(thing)
    assert np.array_equal(back, thing)


def test_large_arrays_are_not_copied() -> None:
    array = np.zeros((1 << 10, 1 << 10))
    packed = dumps([array, array.T], nothing, quick=True)
    assert [np.shares_memory(part, array) for part in packed.parts] == [True, True]
    assert len(packed.data) < 1000


def test_there_is_a_limit() -> None:
    dumps([bytes(500)], nothing, most=1000)
    for thing in ([bytes(500), bytes(501)] * 200, np.zeros(126), np.zeros(1 << 20), "x" * 1001):
        with pytest.raises(PickleTooLarge):
            dumps(thing, nothing, most=1000)
