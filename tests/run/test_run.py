"""Functions of the program, run in the host."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import UserList
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trio
from hypothesis import given

from atomr_accel import ContextPoisoned, Device, GpuRef, GpuRefStale, RemoteError, traceparent
from atomr_accel.lanes import Isolation
from atomr_accel.testing import kill_host, poison
from atomr_accel.testing._faults import simulate

from ..array_samples import Array, arrays
from ..harness import Gate, cancelled_at, cpu_only, on_shared, opened, same_bits, settled

pytestmark = cpu_only  # functions here take NumPy arrays; those for a GPU are in test_gpu.py

# Hosts cannot import this module, so functions travel by value; and what is made here is
# found by name, as in a program that is run as a script.


def made_here() -> Any:
    """Functions of a function, which cloudpickle takes by value."""

    class Functions:
        @staticmethod
        def total(x: Any) -> float:
            return float(x.sum())

        @staticmethod
        def add(x: Any, y: Any, out: Any) -> None:
            out[...] = x + y

        @staticmethod
        def where() -> tuple[int, str]:
            import threading

            return os.getpid(), threading.current_thread().name

        @staticmethod
        def fail(error: BaseException) -> None:
            raise error

        @staticmethod
        def end() -> None:
            os._exit(7)

        @staticmethod
        def end_with(state: object) -> None:
            os._exit(7)

    return Functions


F = made_here()


# --- arguments and results --------------------------------------------------------------------


@given(array=arrays())
@on_shared
async def test_buffers_arrive_as_arrays(device: Device, array: Array) -> None:
    ref = await device.put(array)
    same = await device.run(
        lambda x, y: (x.shape, x.dtype.name, x.tobytes() == y), ref, array.tobytes()
    )
    assert same == (array.shape, array.dtype.name, True)


@on_shared
async def test_importable_functions_and_builtins(device: Device) -> None:
    ref = await device.put(np.arange(10.0))
    assert await device.run(np.sum, ref) == 45
    assert await device.run(partial(np.sum, axis=0), ref.reshape(2, 5)[1]) == 35
    assert await device.run(len, ref[2:]) == 8


@on_shared
async def test_refs_are_found_inside_of_things(device: Device) -> None:
    refs = [await device.put(np.full(3, k)) for k in range(4)]
    state = {"a": refs[0], "b": [refs[1], (refs[2], refs[3])], "n": 5}
    assert await device.run(
        lambda s: float(s["a"][0] + s["b"][0][1] + s["b"][1][1][2] + s["n"]), state
    ) == (0 + 1 + 3 + 5)
    assert await device.run(partial(F.add, refs[1], refs[2]), refs[3]) is None
    assert (await device.get(refs[3]) == 3).all()


@given(array=arrays())
@on_shared
async def test_numpy_arrays_come_back_as_numpy(device: Device, array: Array) -> None:
    ref = await device.put(array)
    assert same_bits(await device.run(lambda x: x, ref), array)
    back = await device.run(lambda x: {"it": [x.copy()], "size": x.size}, ref)
    assert same_bits(back["it"][0], array)
    assert back["size"] == array.size


@pytest.mark.parametrize("nbytes", [1 << 16, (1 << 16) + 1, 3 << 20, 20 << 20])
@on_shared
async def test_large_results_come_back_whole(device: Device, nbytes: int) -> None:
    two = await device.run(
        lambda n: (np.arange(n) % 251).astype(np.uint8).reshape(1, -1)[:, ::-1], nbytes
    )
    assert same_bits(two, (np.arange(nbytes) % 251).astype(np.uint8).reshape(1, -1)[:, ::-1])
    await settled(device)
    assert device.core.staging._pool.in_use == 0


def speaking() -> Any:
    """Arrays of another library than NumPy, as far as anybody can tell."""

    class Tensor:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **kwargs: Any) -> Any:
            return self.array.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    return Tensor


@on_shared
async def test_arrays_of_other_libraries_become_refs(device: Device) -> None:
    tensor = speaking()
    ref = await device.put(np.arange(6.0).reshape(2, 3))
    once = await device.run(lambda x: tensor(x * 2), ref)
    assert isinstance(once, GpuRef)
    assert same_bits(await device.get(once), np.arange(6.0).reshape(2, 3) * 2)
    views, text = await device.run(lambda x: ([tensor(x.T), tensor(x[::-1])], "and more"), ref)
    assert text == "and more"
    assert same_bits(await device.get(views[0]), np.arange(6.0).reshape(2, 3).T.copy())
    assert same_bits(await device.get(views[1]), np.arange(6.0).reshape(2, 3)[::-1].copy())
    assert not once.sealed


@on_shared
async def test_a_sealed_buffer_cannot_be_written(device: Device) -> None:
    ref = await device.put(np.zeros(3), sealed=True)

    def write(x: Any) -> None:
        x[0] = 1

    with pytest.raises(ValueError, match="read-only"):
        await device.run(write, ref)
    assert (await device.get(ref) == 0).all()


# --- order ---------------------------------------------------------------------------------------


@on_shared
async def test_calls_take_their_place_among_ops(device: Device) -> None:
    x = await device.put(np.ones((4, 4), np.float32))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.run, F.add, x, x, x)
        nursery.start_soon(device.run, F.add, x, x, x)
    y = await device.blas.gemm(x, x)
    assert (await device.get(x) == 4).all()
    assert (await device.get(y) == 64).all()


async def test_lanes_run_side_by_side(gate: Gate, isolation: Isolation) -> None:
    path = str(gate.path)

    def wait() -> str:
        fd = os.open(path, os.O_RDONLY)
        os.read(fd, 1)
        os.close(fd)
        return "waited"

    async with opened(isolation=isolation) as device, trio.open_nursery() as nursery:
        done: list[str] = []

        async def slow() -> None:
            done.append(await device.run(wait, lane="slow"))

        nursery.start_soon(slow)
        await trio.testing.wait_all_tasks_blocked()
        pid, thread = await device.run(F.where, lane="quick")
        assert (pid == os.getpid()) == (isolation == "thread")
        assert "run.quick" in thread
        assert not done
        gate.open()


async def test_an_answer_does_not_wait_for_the_next_call(gate: Gate, isolation: Isolation) -> None:
    path = str(gate.path)

    def wait(_number: int) -> None:
        fd = os.open(path, os.O_RDONLY)
        os.read(fd, 1)
        os.close(fd)

    def work(number: int) -> int:
        time.sleep(2e-3)
        return number

    async with opened(isolation=isolation) as device, trio.open_nursery() as nursery:

        async def call(function: Callable[[int], Any]) -> None:
            await device.run(function, 7, lane="one")
            if function is work:
                gate.open()  # for the last one

        await device.run(work, 7, lane="one")  # the lane is open: calls come in their order
        # While the first waits the host gets the others, which it then takes at once.
        for function in (wait, work, wait):
            nursery.start_soon(call, function)
            await trio.testing.wait_all_tasks_blocked()
        gate.open()


# --- state ----------------------------------------------------------------------------------------


def counting() -> tuple[Callable[..., Any], Callable[..., Any]]:
    class Model:
        def __init__(self, weights: Any) -> None:
            self.weights = weights
            self.calls = 0

    def make(weights: Any) -> Any:
        return Model(weights)

    def call(model: Any, x: Any) -> tuple[int, float]:
        model.calls += 1
        return model.calls, float((model.weights * x).sum())

    return make, call


@pytest.mark.slow
async def test_a_lane_keeps_its_state_and_makes_it_anew(isolation: Isolation) -> None:
    make, call = counting()
    async with opened(isolation=isolation, max_restarts=9) as device:
        weights = await device.put(np.arange(4.0), sealed=True)
        init = partial(make, weights)
        x = await device.put(np.ones(4))
        assert await device.run(call, x, lane="model", init=init) == (1, 6.0)
        assert await device.run(call, x, lane="model", init=init) == (2, 6.0)
        # An equal initializer makes no other state, an unequal one does.
        assert await device.run(call, x, lane="model", init=partial(make, weights)) == (3, 6.0)
        assert await device.run(call, x, lane="other", init=init) == (1, 6.0)
        doubled = await device.put(np.arange(4.0) * 2, sealed=True)
        assert await device.run(call, x, lane="model", init=partial(make, doubled)) == (1, 12.0)
        if isolation == "process":
            for blow in (poison, kill_host):
                await blow(device)
                x = await device.put(np.ones(4))
                assert await device.run(call, x, lane="other", init=init) == (1, 6.0)
                assert await device.run(call, x, lane="other", init=init) == (2, 6.0)


@on_shared
async def test_new_functions_of_one_line_make_one_state(device: Device) -> None:
    def count(state: list[int]) -> int:
        state[0] += 1
        return state[0]

    def initializer(start: int, step: int = 0, *, twice: bool = False) -> Callable[[], list[int]]:
        return lambda step=step, *, twice=twice: [(start + step) * (1 + twice)]  # type: ignore[misc]

    async def counted(init: Callable[[], list[int]]) -> int:
        return await device.run(count, lane="lambdas", init=init)

    assert [await counted(lambda: [0]) for _ in range(3)] == [1, 2, 3]
    assert [await counted(initializer(5)) for _ in range(2)] == [6, 7]
    assert await counted(initializer(7)) == 8  # another variable around it
    assert await counted(initializer(7, 1)) == 9  # another default
    assert await counted(initializer(7, 1, twice=True)) == 17
    assert await counted(lambda: [0]) == 1  # the same code on another line
    for kind in (list, UserList):  # methods of C and of Python
        one: Any = kind([20])
        assert [await counted(one.copy) for _ in range(2)] == [21, 22]
        other: Any = kind([20])
        assert await counted(other.copy) == 21
    await device.close_lane("lambdas")


@on_shared
async def test_call_without_the_initializer_of_its_lane_says_what_is_missing(
    device: Device,
) -> None:
    def use(state: int, x: int) -> int:
        return state + x

    def make() -> int:
        return 1

    with pytest.raises(TypeError) as info:
        await device.run(use, 1, lane="stateful")
    assert not any("pass init=" in note for note in info.value.__notes__)  # it has no state yet
    assert await device.run(use, 1, lane="stateful", init=make) == 2
    with pytest.raises(TypeError, match="missing 1 required positional argument") as info:
        await device.run(use, 1, lane="stateful")
    assert any("pass init=, too" in note for note in info.value.__notes__)
    await device.close_lane("stateful")


@on_shared
async def test_many_first_calls_make_one_state(device: Device) -> None:
    make, call = counting()
    weights = await device.put(np.arange(4.0), sealed=True)
    x = await device.put(np.ones(4), sealed=True)
    counts: list[int] = []

    async def once() -> None:
        count, _ = await device.run(call, x, lane="many", init=partial(make, weights))
        counts.append(count)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(once)
    assert sorted(counts) == list(range(1, 11))
    calls: Any = device._host_calls
    calls._lanes.pop("many")


@on_shared
async def test_weights_live_as_long_as_the_state_that_uses_them(device: Device) -> None:
    make, call = counting()
    weights = await device.put(np.arange(4.0))
    init = partial(make, weights)
    x = await device.put(np.ones(4))
    assert await device.run(call, x, lane="weights", init=init) == (1, 6.0)
    await device.free(weights)
    with pytest.raises(GpuRefStale, match="was freed"):
        await device.run(call, x, lane="weights", init=init)
    calls: Any = device._host_calls
    calls._lanes.pop("weights")


@on_shared
async def test_a_state_that_cannot_be_made_fails_its_calls_until_it_can(device: Device) -> None:
    def make() -> int:
        raise OSError("no such model")

    def use(state: int) -> int:
        return state

    for _ in range(2):
        with pytest.raises(OSError, match="no such model"):
            await device.run(use, lane="broken", init=make)
    assert await device.run(use, lane="broken", init=lambda: 5) == 5


async def test_state_of_a_buffer_that_did_not_survive() -> None:
    make, call = counting()
    async with opened() as device:
        init = partial(make, await device.put(np.arange(4.0)))
        await device.run(call, await device.put(np.ones(4)), init=init)
        await poison(device)
        with pytest.raises(GpuRefStale):
            await device.run(call, await device.put(np.ones(4)), init=init)


# --- errors -----------------------------------------------------------------------------------


@on_shared
async def test_errors_keep_their_type_and_where_they_came_from(device: Device) -> None:
    for error in (ValueError("wrong"), KeyError("k"), ZeroDivisionError("zero"), OSError("gone")):
        with pytest.raises(type(error), match=str(error.args[0])) as caught:
            await device.run(F.fail, error)
        assert "in fail" in "".join(caught.value.__notes__)
    with pytest.raises(RemoteError, match="SystemExit: 3"):
        await device.run(sys.exit, 3)
    with pytest.raises(RemoteError, match="KeyboardInterrupt"):
        await device.run(F.fail, KeyboardInterrupt())
    assert await device.run(len, "still there") == 11


async def made_later(x: int = 3) -> int:
    return x


class MadeLater:
    async def __call__(self) -> int:
        return 3


def made_in_turn() -> Iterator[int]:
    yield 3


@on_shared
async def test_unpicklable_argument_is_refused_in_the_caller(device: Device) -> None:
    submitted = sum(lane.submitted for lane in device.statistics().lanes)
    with pytest.raises(TypeError, match="takes a callable, not int"):
        await device.run(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="init must be callable"):
        await device.run(len, init=3)  # type: ignore[call-overload]
    for wrong, kind in (
        (made_later, "an async one"),
        (partial(made_later, 3), "an async one"),
        (MadeLater(), "an async one"),
        (made_in_turn, "a generator function"),
        (partial(made_in_turn), "a generator function"),
    ):
        with pytest.raises(TypeError, match=f"run takes a plain function, not {kind}"):
            await device.run(wrong)
        with pytest.raises(TypeError, match=f"init takes a plain function, not {kind}"):
            await device.run(len, init=wrong)
    for carries in (lambda: device.name, partial(str, device)):
        with pytest.raises(TypeError, match="cannot be pickled or copied: a device stays"):
            await device.run(carries)
    with pytest.raises(TypeError, match="cannot be pickled or copied: a device stays"):
        await device.run(str, [device])
    with pytest.raises(TypeError, match="lane must be a name"):
        await device.run(len, lane=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"cannot pickle|pickle"):
        await device.run(len, trio.lowlevel.current_task())
    with pytest.raises(ValueError, match="put large arrays on the device"):
        await device.run(len, bytes(65 << 20))
    ref = await device.zeros(3)
    await device.free(ref)
    with pytest.raises(GpuRefStale):
        await device.run(len, [ref])
    assert sum(lane.submitted for lane in device.statistics().lanes) == submitted + 1
    with pytest.raises(TypeError, match=r"cannot pickle|pickle"):
        await device.run(lambda: sys.stdout.buffer)


def raising() -> dict[str, Any]:
    """Functions that raise what no function should."""
    import asyncio

    from atomr_accel import OutOfMemory

    class Odd(BaseException):
        """An error that no code catches."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise Odd

        def __reduce__(self) -> Any:
            raise Odd

    def odd() -> None:
        raise Odd("odd")

    def mute() -> None:
        raise Mute(1, 2)

    def cancelled() -> None:
        raise asyncio.CancelledError("a timeout inside")

    def generator_exit() -> None:
        raise GeneratorExit

    def stop() -> None:
        raise StopIteration(3)

    def wrong_fields() -> None:
        raise OutOfMemory("no room", requested=object())  # type: ignore[arg-type]

    def no_fields() -> None:
        error = OutOfMemory("no room", requested=1)
        del error.requested
        raise error

    def group() -> None:
        raise BaseExceptionGroup("several", [Odd("one"), ValueError("two")])

    return {
        "Odd": odd,
        "Mute": mute,
        "CancelledError": cancelled,
        "GeneratorExit": generator_exit,
        "StopIteration": stop,
        "OutOfMemory": wrong_fields,
        "BaseExceptionGroup": group,
        "no_fields": no_fields,
    }


@pytest.mark.parametrize("name", raising())
@on_shared
async def test_whatever_a_function_raises_is_an_answer(device: Device, name: str) -> None:
    function = raising()[name]
    with pytest.raises(Exception) as caught:  # noqa: PT011 (what it is follows)
        await device.run(function)
    error = caught.value
    if name not in ("no_fields", "Mute"):  # which can be pickled, or cannot be asked
        assert isinstance(error, RemoteError)
        assert error.type_name == name
    assert any("In the host" in note for note in error.__notes__)
    # The lane's state, too.
    for _ in range(2):
        with pytest.raises(type(error)):
            await device.run(len, lane="state", init=function)
    assert await device.run(len, "still there", lane="state") == 11
    await device.close_lane("state")


def dropping() -> Any:
    def drop(x: Any, version: Any) -> Any:
        from atomr_accel.wire.interop import DeviceArray

        array = DeviceArray(1 << 40, x.shape, np.dtype("bfloat16"), device=0, sealed=True)
        return [array.__dlpack__(max_version=version), x.__dlpack__(max_version=version), 1 // 0]

    return drop


async def test_an_error_passes_while_a_function_drops_arrays() -> None:
    """The host is a process: it crashed where this went wrong."""
    async with opened(isolation="process") as device:
        x = await device.put(np.ones((2, 3)))
        for version in (None, (1, 0)):
            with pytest.raises(ZeroDivisionError):
                await device.run(dropping(), x, version)
        assert device.generation == 1


@on_shared
async def test_a_child_of_a_function_answers_nothing(device: Device) -> None:
    def fork(*, fail: bool) -> int:
        pid = os.fork()
        if not pid and fail:
            sys.exit(3)
        return pid

    def ended(pid: int) -> int:
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)

    for fail in (False, True):
        pid = await device.run(partial(fork, fail=fail))
        assert pid > 0
        assert await device.run(ended, pid) == (3 if fail else 0)


@pytest.mark.slow
def test_function_output_is_not_lost(tmp_path: Path) -> None:
    script = tmp_path / "prints.py"
    script.write_text(PRINTS)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    found = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, check=True
    )
    assert found.stdout.split("\n") == ["a line", "from C", "part of one", "the last words", "end"]


PRINTS: Final = """
import ctypes, os, trio
from atomr_accel import ContextPoisoned, open_device

def say(text, end):
    print(text, end=end)

def from_c():
    ctypes.CDLL(None).puts(b"from C")

def last_words():
    print("\\nthe last words")
    os._exit(3)

async def main():
    async with open_device(0, backend="cpu") as device:
        await device.run(say, "a line", "\\n")
        await device.run(from_c)
        await device.run(say, "part of one", "")
        try:
            await device.run(last_words)
        except ContextPoisoned:
            pass
    print("end", end="")

trio.run(main)
"""


async def test_a_function_that_ends_its_host() -> None:
    async with opened() as device:
        with pytest.raises(ContextPoisoned, match="exit code 7"):
            await device.run(F.end)
        assert await device.run(len, "abc") == 3
        assert device.generation == 2


async def test_the_call_that_ends_its_host_is_named_not_the_initializer() -> None:
    async with opened() as device:
        with pytest.raises(ContextPoisoned) as info:
            await device.run(F.end_with, lane="model", init=F.where)
        assert info.value.op == "run end_with"


async def test_a_fault_inside_is_a_fault_of_the_context() -> None:
    async with opened() as device:
        x = await device.put(np.ones(3))
        with pytest.raises(ContextPoisoned, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
            await device.run(partial(simulate, "illegal_address"), x)
        assert x.is_stale
        assert device.statistics().faults == 1


# --- cancellation -------------------------------------------------------------------------------


@on_shared
async def test_a_cancelled_call_leaves_nothing(device: Device) -> None:
    tensor = speaking()
    ref = await device.put(np.ones(1 << 17))
    step = 1
    while await cancelled_at(
        step, lambda: device.run(lambda x: (tensor(x * 2), np.zeros(1 << 20)), ref, lane="c")
    ):
        step += 1
        await settled(device)
        assert device.core.staging._pool.in_use == 0
    assert step > 3
    await settled(device)
    lanes = {lane.name: lane for lane in device.statistics().lanes}
    assert lanes["run.c"].in_flight == 0


def _place_in_a_trace() -> str | None:
    return traceparent.get()


@pytest.mark.slow
async def test_functions_see_their_callers_place_in_a_trace(device: Device) -> None:
    assert await device.run(_place_in_a_trace) is None
    given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    token = traceparent.set(given)
    assert await device.run(_place_in_a_trace) == given
    traceparent.reset(token)
    assert await device.run(_place_in_a_trace) is None
