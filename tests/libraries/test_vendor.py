"""What all vendors' libraries share: numbers are not cut off, and nothing is left behind."""

from __future__ import annotations

import ctypes
import itertools
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import LibraryError, OutOfMemory, Unsupported
from atomr_accel._dtypes import DTYPES
from atomr_accel.backends import cuda
from atomr_accel.device._core import DeviceCore
from atomr_accel.libraries.blaslt.wire._messages import Heuristic, Operand, Spec
from atomr_accel.libraries.dnn.wire._graph import Tensor
from atomr_accel.libraries.dnn.wire._routine_messages import (
    Normalize,
    Pool,
    RnnData,
    RnnPack,
    RnnSizes,
    RnnSpec,
    Softmax,
)
from atomr_accel.libraries.host import _vendor
from atomr_accel.libraries.host._numbers import Scalars, number_cell
from atomr_accel.libraries.host._vendor import TYPES, VendorLibrary, array, undone_on_error
from atomr_accel.memory import GpuRef

from ..harness import on_shared
from .vendor_tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from atomr_accel import Device

    from ..fake_driver import FakeDriver

# --- numbers -------------------------------------------------------------------------------

FLOAT_MAX: Final = float(np.finfo(np.float32).max)
LIMITS: Final[dict[str, tuple[Any, Any]]] = {
    "int": (-(2**31), 2**31 - 1),
    "uint": (0, 2**32 - 1),
    "i64": (-(2**63), 2**63 - 1),
    "u64": (0, 2**64 - 1),
    "size": (0, 2**64 - 1),
    "float": (-FLOAT_MAX, FLOAT_MAX),
}


class Listener:
    """A library that only notes what it is called with."""

    def __init__(self, names: Any = ()) -> None:
        self.calls: list[tuple[Any, ...]] = []
        for name in names:
            setattr(self, name, self._function())

    def _function(self) -> Callable[..., int]:
        def call(*args: Any) -> int:
            self.calls.append(args)
            return 0

        return call

    def __getitem__(self, name: str) -> Callable[..., int]:
        return self._function()


def listening(
    monkeypatch: pytest.MonkeyPatch, prototypes: dict[str, str]
) -> tuple[VendorLibrary, Listener]:
    listener = Listener(prototypes)
    monkeypatch.setattr(_vendor, "_load", lambda _name: listener)
    return VendorLibrary("a library", prototypes, {1: "FAILED"}), listener


@pytest.mark.parametrize("name", TABLES)
def test_no_function_of_a_table_takes_what_it_would_cut_off(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prototypes = TABLES[name].tables.PROTOTYPES
    library, listener = listening(monkeypatch, prototypes)
    for function, text in prototypes.items():
        words = text.split()
        plain: list[Any] = [
            0 if word in LIMITS or word == "double" else ctypes.c_void_p() for word in words
        ]
        for at, word in enumerate(words):
            if word not in LIMITS:
                continue
            least, most = LIMITS[word]
            good = [least, most, np.float32(most) if word == "float" else np.int64(7)]
            good += [np.inf, -np.inf, np.nan] if word == "float" else [True]
            beyond = [most * 1.001, least * 1.001] if word == "float" else [most + 1, least - 1]
            if word in ("int", "uint"):
                beyond.append(np.int64(most + 1))
            for value in good:
                args = [*plain[:at], value, *plain[at + 1 :]]
                library.call(function, *args)
                assert str(listener.calls.pop()) == str(tuple(args))
                library.prepare(function, *args)
            for value in beyond:
                args = [*plain[:at], value, *plain[at + 1 :]]
                with pytest.raises(OverflowError, match=f"^{function} takes '{word}' at"):
                    library.call(function, *args)
                with pytest.raises(OverflowError, match=f"^{function} takes '{word}' at"):
                    library.prepare(function, *args)
    assert listener.calls == []


@given(word=st.sampled_from(sorted(LIMITS)), data=st.data())
def test_an_array_holds_what_it_was_given_or_there_is_none(word: str, data: st.DataObject) -> None:
    numbers = st.floats() if word == "float" else st.integers(-(2**65), 2**65)
    values = data.draw(st.lists(numbers, max_size=4))
    least, most = LIMITS[word]
    special = (np.inf, -np.inf) if word == "float" else ()
    if all(least <= each <= most or each in special or np.isnan(float(each)) for each in values):
        expected = [TYPES[word](value).value for value in values]
        np.testing.assert_array_equal([*array(word, values)], expected)
        if word != "float":
            assert expected == values
    else:
        with pytest.raises(OverflowError):
            array(word, values)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@given(
    dtype=st.sampled_from(("float16", "bfloat16", "float32", "float64", "complex64", "complex128")),
    values=st.lists(st.tuples(st.floats(), st.floats()), min_size=1, max_size=3),
)
def test_a_number_that_is_set_again_is_as_one_that_is_made(
    dtype: str, values: list[tuple[float, float]]
) -> None:
    cell, pointer = number_cell(dtype)
    for value in values:
        number = value if dtype.startswith("complex") else value[0]
        cell.value = number
        expected = np.frombuffer(bytes(Scalars().pointer(dtype, number)._obj), DTYPES[dtype])
        made = np.frombuffer(bytes(pointer._obj), DTYPES[dtype])
        np.testing.assert_array_equal(made.view(np.uint8), expected.view(np.uint8))


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facades believe so; what they send would go nowhere."""
    monkeypatch.setattr(DeviceCore, "capabilities", cuda.BACKEND.capabilities)
    monkeypatch.setattr(DeviceCore, "open_lane", None)
    monkeypatch.setattr(DeviceCore, "try_empty", None)


@pytest.mark.usefixtures("on_cuda")
@on_shared
async def test_sizes_that_cudnn_cannot_count_are_refused_before_anything_is_sent(
    device: Device,
) -> None:
    buffer = device._core.memory.promise()

    def ref(*shape: int) -> GpuRef:
        kind = np.dtype(np.float16)
        return GpuRef(buffer, shape, kind, 2 * int(np.prod(shape, dtype=object)))

    dnn, big, half = device.dnn, 2**31, 2**16
    image = ref(1, half, half)
    calls: list[Callable[[], Any]] = [
        lambda: dnn.softmax(ref(big)),
        lambda: dnn.softmax(ref(big, 1)),
        lambda: dnn.softmax(ref(1, half, half), axis=1),
        lambda: dnn.log_softmax(ref(1, big), axis=0),
        lambda: dnn.softmax_grad(ref(big), ref(big)),
        lambda: dnn.max_pool(ref(1, 1, big), 2),
        lambda: dnn.max_pool(ref(2, 1, half, half), 2),
        lambda: dnn.max_pool(ref(1, 1, 8), 2, stride=big),
        lambda: dnn.avg_pool(ref(big, 1, 4), 2),
        lambda: dnn.avg_pool_grad(ref(1, 1, big // 2), (1, 1, big), 2),
        lambda: dnn.local_response_norm(ref(1, half, half), 3),
        lambda: dnn.local_response_norm_grad(image, image, image, 3),
        lambda: dnn.rnn("lstm", big, 4, dtype=np.float16).pack([]),
        lambda: dnn.rnn("gru", 4, big, dtype=np.float16).pack([]),
        lambda: dnn.rnn("gru", 4, 4, num_layers=big, dtype=np.float16).pack([]),
        lambda: dnn.rnn("gru", 4, big // 2, bidirectional=True, dtype=np.float16).pack([]),
        lambda: dnn.rnn("relu", 1, 4, dtype=np.float16).forward(ref(big, 1, 1), ref(4)),
        lambda: dnn.rnn("relu", 1, half, dtype=np.float16).forward(ref(1, half, 1), ref(4)),
    ]
    for call in calls:
        with pytest.raises(Unsupported, match="counts elements and strides with 32 bits"):
            await call()


@on_shared
async def test_seeds_of_networks_are_checked(device: Device) -> None:
    network = device.dnn.rnn("relu", 2, 2)
    x = await device.zeros((1, 1, 2), np.float32)
    wrong: tuple[tuple[object, type[Exception]], ...] = (
        (-1, ValueError),
        (2**63, ValueError),
        (0.5, TypeError),
    )
    for seed, kind in wrong:
        with pytest.raises(kind, match="seed must be a whole number from 0"):
            await network.forward(x, x, seed=seed)  # type: ignore[arg-type]


# --- what is made --------------------------------------------------------------------------


def test_what_a_block_made_is_undone_in_turn_if_it_fails() -> None:
    log: list[str] = []

    def undo(name: str) -> None:
        log.append(name)
        if name == "second":
            raise RuntimeError("undoing fails, too")

    with pytest.raises(ValueError, match="why"), undone_on_error() as made:
        for name in ("first", "second", "third"):
            made.callback(undo, name)
        raise ValueError("why")
    assert log == ["third", "second", "first"]
    log.clear()
    with undone_on_error() as made:
        made.callback(undo, "first")
    assert log == []
    made.close()
    assert log == ["first"]


class Making:
    """A library, and a driver, of which one call fails; what is made and not destroyed.

    Args:
        failing: which call, counted from 1.
    """

    def __init__(self, failing: int) -> None:
        self.failing = failing
        self.alive: dict[int, str] = {}
        self.calls = 0
        self.handles = itertools.count(1)
        self.functions = self

    def __getitem__(self, function: str) -> Callable[..., int]:
        def call(*args: Any) -> int:
            if "Destroy" in function:
                assert self.alive.pop(args[0])
                return 0
            self.calls += 1
            if self.calls == self.failing:
                return 1
            if "Create" in function:
                handle = next(self.handles)
                self.alive[handle] = function
                args[0]._obj.value = handle
            return 0

        return call

    def call(self, function: str, *args: Any) -> None:
        if status := self[function](*args):
            raise self.error(function, status)

    def error(self, function: str, status: int) -> LibraryError:
        return LibraryError(
            function, library="", call=function, status=status, status_name="FAILED"
        )

    def allocate(self, nbytes: int) -> tuple[int, int]:
        self.calls += 1
        if self.calls == self.failing:
            return 2, 0
        pointer = next(self.handles)
        self.alive[pointer] = f"{nbytes} bytes"
        return 0, pointer

    def free(self, pointer: int) -> tuple[int]:
        assert self.alive.pop(pointer)
        return (0,)

    def events(self, *_: Any) -> tuple[int, int]:
        return self.allocate(0)


SPEC: Final = RnnSpec("lstm", 2, 3, 0, 1, False, True, 0.5, "float32")
IMAGE: Final = Tensor("float32", (1, 2, 4, 4), (32, 16, 4, 1))
OPERAND: Final = Operand(4, 4, 4, 16, "float32")
PRODUCT: Final = Spec(
    *(4, 4, 4, 2, OPERAND, OPERAND, OPERAND, OPERAND, 0, 0, "32F", "float32", "relu_bias"),
    *("float32", 4, 0, 256, 256, "", False, False, False, False, False),
)


def a_network(library: Making, message: Any) -> Callable[[], None]:
    from atomr_accel.libraries.dnn.host._cuda_rnn import CudaRnn
    from atomr_accel.libraries.dnn.host._cuda_routines import CudaRoutines, Descriptors

    descriptors = Descriptors(1)
    network = CudaRnn(descriptors, lambda address: address, SimpleNamespace(handle=0))  # type: ignore[arg-type]
    routines = CudaRoutines(descriptors, lambda address: address)
    handlers = {**network.handlers, **routines.handlers}
    library.alive.clear()

    def close() -> None:
        network.close()
        descriptors.close()

    try:
        handlers[type(message)](message)
    except BaseException:
        close()
        raise
    return close


def a_product(_library: Making) -> Callable[[], None]:
    from atomr_accel.libraries.blaslt.host._cuda import CudaBlasLt

    context: Any = SimpleNamespace(pointer=int, compute_capability=(9, 0))
    executor = CudaBlasLt(context, SimpleNamespace(handle=0, pointer=0))  # type: ignore[arg-type]
    try:
        executor.handlers[Heuristic](Heuristic(msgspec.msgpack.encode(PRODUCT), 0, 1))
    except Unsupported:
        pass  # of all that this library does, it finds no algorithm
    except BaseException:
        executor.close()
        raise
    return executor.close


def a_handle(_library: Making) -> Callable[[], None]:
    from atomr_accel.libraries.blas.host._cuda_handle import Handle

    stream: Any = SimpleNamespace(handle=0, pointer=0, captures=True)
    return Handle(SimpleNamespace(pointer=int), stream).close  # type: ignore[arg-type]


def a_pair_of_events(_library: Making) -> Callable[[], None]:
    from atomr_accel.libraries.dnn.host import _timing

    with _timing._events():
        return lambda: None


MESSAGES: Final = (
    RnnSizes(SPEC, RnnData("time", 2, (2, 1)), training=True),
    RnnPack(SPEC, (1, 2, 3, 4), 1, 100, out=True),
    Pool("max", (2, 2), (0, 0), (2, 2), IMAGE, IMAGE, 1, 2),
    Softmax(False, (2, 3, 4), "float32", 1, 2),
    Normalize(3, 1e-4, 0.75, 1.0, IMAGE, 1, 2),
)
THINGS: Final[dict[str, Callable[[Making], Callable[[], None]]]] = {
    **{type(message).__name__: partial(a_network, message=message) for message in MESSAGES},
    "product": a_product,
    "handle": a_handle,
    "events": a_pair_of_events,
}


@pytest.mark.parametrize("thing", THINGS)
def test_nothing_is_left_of_what_could_not_be_made(
    thing: str, monkeypatch: pytest.MonkeyPatch, driver: FakeDriver
) -> None:
    """Whichever call failed."""
    from atomr_accel.libraries.blas.host import _cuda_handle
    from atomr_accel.libraries.blaslt.host import _cuda as blaslt
    from atomr_accel.libraries.dnn.host import _cuda_routines

    for failing in itertools.count(1):
        library = Making(failing)
        driver.change(cuMemAlloc=library.allocate, cuMemFree=library.free)
        driver.change(cuEventCreate=library.events, cuEventDestroy=library.free)
        driver.change(cuMemcpyDtoDAsync=lambda *_: (0,))
        monkeypatch.setattr(_cuda_handle, "load_cublas", lambda made=library: made)
        monkeypatch.setattr(blaslt, "load_cublaslt", lambda made=library: made)
        monkeypatch.setattr(_cuda_routines, "load_cudnn", lambda made=library: made)
        library.prepare = lambda *_: int  # type: ignore[attr-defined]
        try:
            close = THINGS[thing](library)
        except (LibraryError, OutOfMemory):
            assert not library.alive, f"call {failing} failed"
            continue
        close()
        assert not library.alive
        assert failing > 2
        break
