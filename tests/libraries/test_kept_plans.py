"""Plans that libraries keep from call to call change only the duration of a call.

Every call is made twice: by a library that has seen others, and by one that has seen none.
Among them are arguments that Python takes for equal (4, 4.0, True), and views of equal shape and
dtype that begin elsewhere in a buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, is_dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atomr_accel import AccelError, Device, GpuRef
from atomr_accel.executors.numbers import Scalars
from atomr_accel.libraries.blaslt.wire._layout import Layout
from atomr_accel.libraries.facades import Libraries
from atomr_accel.wire.recent import Recent

from ..harness import on_shared, sized
from .conformance import dtype_of

NUMBERS: list[Any] = [0, 1, 2, 4, 0.0, 1.0, 2.0, 4.0, False, True, np.int64(4), np.float32(4), "N"]
FLAGS: list[Any] = [False, True, 0, 1, np.True_, 0.0, "no", None]
DTYPES: list[Any] = [None, "float32", np.float32, np.dtype(np.float32), "int32", float, 4, []]
NORMS: list[Any] = [None, "backward", "ortho", "sideways", [], 1]
LAYOUT: Any = (4, 4, 4, "row", 0, 1, 16)


def view_of(buffers: dict[str, GpuRef], dtype: str, first: int) -> GpuRef:
    return buffers[dtype][first : first + 64].reshape(8, 8)


def layout(place: int, number: Any) -> Layout:
    values = [*LAYOUT]
    values[place] = number
    return Layout(*values)


Views = Any

CALLS: dict[str, Callable[[Any, Views, Any, Any, Any], Any]] = {
    "gemm": lambda lib, a, b, x, _y: lib.blas.gemm(a, b, trans_a=x),
    "gemm dtype": lambda lib, a, b, _x, y: lib.blas.gemm(a, b, dtype=y["dtype"]),
    "gemm batch": lambda lib, a, b, x, _y: lib.blas.gemm(a.reshape(2, 4, 8), b, trans_b=x),
    "matmul": lambda lib, a, b, _x, y: lib.blas.matmul(a, b, dtype=y["dtype"]),
    "gemm list": lambda lib, a, b, x, _y: lib.blas.gemm_batched([a, a], [b, b], trans_a=x),
    "lt": lambda lib, a, b, x, _y: lib.blaslt.matmul(a, b, trans_b=x),
    "lt dtype": lambda lib, a, b, _x, y: lib.blaslt.matmul(a, b, dtype=y["dtype"]),
    "lt bias": lambda lib, a, b, _x, y: lib.blaslt.matmul(a, b, bias=b[0], amax=y["flag"]),
    "lt c": lambda lib, a, b, x, y: lib.blaslt.matmul(a, b, c=a, beta=x, autotune=y["flag"]),
    "lt layout": lambda lib, a, b, x, y: lib.blaslt.matmul(
        a, b, layout_a=layout(y["place"], x), layout_b=Layout(*LAYOUT)
    ),
    "fft": lambda lib, a, _b, x, y: lib.fft.fft(a, x, norm=y["norm"], half=y["flag"]),
    "fft axis": lambda lib, a, _b, x, _y: lib.fft.fft(a, None, x),
    "rfft": lambda lib, a, _b, x, _y: lib.fft.rfft(a, x),
    "irfft": lambda lib, a, b, x, _y: lib.fft.irfft(a, x),
    "rfft in place": lambda lib, a, b, _x, _y: lib.fft.irfft(b, 8, out=a),
    "fft2": lambda lib, a, _b, x, y: lib.fft.fft2(a, (x, 4), norm=y["norm"]),
    "fftn": lambda lib, a, _b, x, _y: lib.fft.fftn(a, axes=(x,)),
    "fftfreq": lambda lib, _a, _b, x, _y: lib.fft.fftfreq(4, x),
    "random": lambda lib, a, _b, x, _y: lib.rng.default_rng(5).normal(x, 1.0, out=a),
    "integers": lambda lib, a, _b, x, y: lib.rng.default_rng(5).integers(
        0, 5, 3, endpoint=y["flag"]
    ),
}


class Unused(Libraries[Any]):
    """Libraries that have seen no calls yet."""

    def __init__(self, device: Device) -> None:
        self._add_libraries(device.core)


async def outcome(device: Device, call: Callable[[], Any]) -> object:
    try:
        result = await call()
    except (TypeError, ValueError, OverflowError, AccelError) as error:
        return type(error), str(error)
    results = result if isinstance(result, list | tuple) else [result]
    return [(ref.shape, ref.dtype, (await device.get(ref)).tobytes()) for ref in results]


ARGUMENTS = st.fixed_dictionaries(
    {
        "flag": st.sampled_from(FLAGS),
        "dtype": st.sampled_from(DTYPES),
        "norm": st.sampled_from(NORMS),
        "place": st.sampled_from([0, 1, 2, 4, 5, 6]),
    }
)
ONE = st.tuples(
    st.sampled_from(["int8", "float32", "float64", "complex64", "float16"]),
    st.sampled_from([0, 1, 2, 4, 16, 64]),
    st.sampled_from([0, 1, 4]),
    st.sampled_from(NUMBERS),
    ARGUMENTS,
)
PLAIN = {"flag": False, "dtype": None, "norm": None, "place": 0}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=sized(8, 25))
@given(calls=st.lists(ONE, min_size=2, max_size=4))
@example(calls=[("int8", 0, 0, 0, PLAIN), ("int8", 1, 0, 0, PLAIN), ("int8", 0, 1, 0, PLAIN)])
@example(calls=[("float32", 0, 0, 4, PLAIN), ("float32", 0, 0, 4.0, PLAIN)])
@example(calls=[("float32", 0, 0, 1, PLAIN), ("float32", 1, 0, True, PLAIN)])
@example(calls=[("float32", 0, 0, 1, PLAIN), ("float32", 0, 0, 1.0, PLAIN)])
@on_shared
async def test_a_call_means_the_same_whatever_came_before(
    device: Device, name: str, calls: Any
) -> None:
    numbers = np.random.default_rng(3).integers(-4, 5, 192)
    buffers: dict[str, GpuRef] = {}
    used = Unused(device)
    for dtype, first, second, x, y in calls:
        outcomes = []
        for libraries in (used, Unused(device)):
            for each in (dtype, "own"):
                buffers[each] = await device.put(numbers.astype(dtype_of(dtype)))
            a, b = view_of(buffers, dtype, first), view_of(buffers, "own", second)
            call = partial(CALLS[name], libraries, a, b, x, y)
            outcomes.append(await outcome(device, call))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("equal", [(1, 1.0, True), (0.0, -0.0), (0j, complex(0.0, -0.0))])
def test_numbers_that_are_equal_but_not_the_same_have_places_of_their_own(equal: Any) -> None:
    scalars, dtype = Scalars(), "complex64" if isinstance(equal[0], complex) else "float32"
    for value in equal:
        given = (value.real, value.imag) if isinstance(value, complex) else value
        expected = np.asarray(value).astype(dtype).tobytes()
        for _ in range(2):
            assert scalars.pointer(dtype, given)._obj.raw[: len(expected)] == expected


# --- plans kept and dropped ----------------------------------------------------------------------


@given(limit=st.integers(1, 5), uses=st.lists(st.integers(0, 9)))
def test_least_recently_used_plan_goes_first(limit: int, uses: list[int]) -> None:
    gone: list[int] = []
    kept: Recent[int, int] = Recent(limit, gone.append)
    model: list[int] = []
    dropped: list[int] = []
    for key in uses:
        value = kept.get(key)
        assert (value is not None) == (key in model)
        if key in model:
            model.remove(key)
        else:
            kept.keep(key, key)
            if len(model) == limit:
                dropped.append(model.pop(0))
        model.append(key)
        assert [*kept] == model
        assert gone == dropped
    kept.clear()
    assert gone == dropped + model
    assert not len(kept)


def test_a_value_takes_the_place_of_the_one_before() -> None:
    gone: list[str] = []
    kept: Recent[int, str] = Recent(2, gone.append)
    for key, value in ((1, "a"), (2, "b"), (1, "c"), (3, "d")):
        assert kept.keep(key, value) == value
    assert gone == ["a", "b"]
    assert [*kept.values()] == ["c", "d"]


@on_shared
async def test_a_call_template_in_use_is_kept_when_others_come(device: Device) -> None:
    blas = type(device.blas)(device.core)
    hot = await device.put(np.zeros((3, 3), np.float32))
    blas.call_templates.known.limit = 4
    for _ in range(2):
        await blas.gemm(hot, hot)
    for size in range(4, 12):
        await blas.gemm(x := await device.put(np.zeros((size, size), np.float32)), x)
        await blas.gemm(hot, hot)
    found = blas.call_templates.known.statistics("blas.templates")
    assert found.hits == 8
    assert found.entries == found.limit == 4


def test_layouts_are_whole_numbers() -> None:
    for place in (0, 1, 2, 4, 5, 6):
        with pytest.raises(TypeError, match="must be a whole number"):
            layout(place, 4.0)
    made = layout(0, np.int64(4))
    assert is_dataclass(made)
    assert [type(each) for each in astuple(made)].count(int) == 6
