"""``device.xp``: every name of the standard, awaited, in batches and in recordings.

The standard's own suite asks for values of all kinds: ``python3 noxfile.py array_api``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, Unsupported
from atomr_accel._other_names import is_other_name
from atomr_accel.libraries.xp._facade import ArrayApi

from ...harness import on_shared
from ..array.calls import LAYOUTS, fetched, put, same, sample
from ..conformance import MARKS

pytestmark = MARKS

_ONE = (
    "abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag "
    "isfinite isinf isnan log log1p log2 log10 logical_not negative positive real reciprocal round "
    "sign signbit sin sinh square sqrt tan tanh trunc"
)
ONE = _ONE.split()
_TWO = (
    "add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign "
    "divide equal floor_divide greater greater_equal hypot less less_equal logaddexp logical_and "
    "logical_or logical_xor maximum minimum multiply nextafter not_equal pow remainder subtract"
)
TWO = _TWO.split()
_OTHERS = (
    "arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones "
    "ones_like tril triu zeros zeros_like astype can_cast finfo iinfo isdtype result_type clip "
    "where take take_along_axis __array_namespace_info__ matmul matrix_transpose tensordot vecdot "
    "broadcast_arrays broadcast_to concat expand_dims flip moveaxis permute_dims repeat reshape "
    "roll squeeze stack tile unstack argmax argmin count_nonzero nonzero searchsorted unique_all "
    "unique_counts unique_inverse unique_values argsort sort cumulative_prod cumulative_sum max "
    "mean min prod std sum var all any diff bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float32 float64 complex64 complex128 e inf nan newaxis pi __array_api_version__"
)
OTHERS = _OTHERS.split()
WHOLE = ("bitwise_invert", *(name for name in TWO if name.startswith("bitwise")))
PLAIN = ("can_cast", "finfo", "iinfo", "isdtype", "result_type", "__array_namespace_info__")

CALLS: dict[str, Callable[..., Any]] = {
    "concat": lambda on, x, y: on.concat([x, y], axis=1),
    "concat flat": lambda on, x, y: on.concat([x, y], axis=None),
    "stack": lambda on, x, y: on.stack([x, y], axis=1),
    "matmul": lambda on, x, y: on.matmul(x, y),
    "vecdot": lambda on, x, y: on.vecdot(x, y, axis=-1),
    "tensordot": lambda on, x, y: on.tensordot(x, y, axes=((0,), (1,))),
    "matrix_transpose": lambda on, x, y: on.matrix_transpose(x),
    "permute_dims": lambda on, x, y: on.permute_dims(x, (1, 0)),
    "moveaxis": lambda on, x, y: on.moveaxis(x, 0, 1),
    "flip": lambda on, x, y: on.flip(x, axis=0),
    "expand_dims": lambda on, x, y: on.expand_dims(x, axis=-1),
    "squeeze": lambda on, x, y: on.squeeze(x[:1], axis=0),
    "unstack": lambda on, x, y: on.unstack(x, axis=1),
    "broadcast_arrays": lambda on, x, y: on.broadcast_arrays(x, y[:1]),
    "broadcast_to": lambda on, x, y: on.broadcast_to(x, (2, 4, 4)),
    "reshape": lambda on, x, y: on.reshape(x, (2, 8)),
    "reshape copy": lambda on, x, y: on.reshape(x, (-1,), copy=True),
    "cumulative_sum": lambda on, x, y: on.cumulative_sum(x, axis=1),
    "cumulative_sum from 0": lambda on, x, y: on.cumulative_sum(x, axis=0, include_initial=True),
    "cumulative_prod": lambda on, x, y: on.cumulative_prod(x, axis=-1, include_initial=True),
    "clip": lambda on, x, y: on.clip(x, min=-1.0, max=2),
    "zeros": lambda on, x, y: on.zeros((2, 3), dtype=np.float32),
    "ones_like": lambda on, x, y: on.ones_like(x, device=None),
    "astype": lambda on, x, y: on.astype(x, np.float32, copy=False),
    "argsort": lambda on, x, y: on.argsort(x, axis=0, stable=True),
    "std": lambda on, x, y: on.std(x, axis=1, correction=1.0),
    "diff": lambda on, x, y: on.diff(x, axis=0, n=2),
}


def test_all_names_of_the_standard_are_there() -> None:
    for name in [*ONE, *TWO, *OTHERS]:
        assert hasattr(ArrayApi, name), name
        assert not is_other_name(ArrayApi, name), name


def reference(name: str, *args: Any) -> Any:
    with np.errstate(all="ignore"):
        return getattr(np, name)(*args)


@pytest.mark.parametrize("name", [*ONE, *TWO])
@settings(max_examples=3)
@given(seed=st.integers(0, 99), layout=st.sampled_from(LAYOUTS))
@on_shared
async def test_elementwise_functions(device: Device, name: str, seed: int, layout: str) -> None:
    dtype = "int64" if name in WHOLE else "float64"
    args = [sample(seed + at, (3, 4), dtype) for at in range(2 if name in TWO else 1)]
    if "shift" in name:
        args[1] = abs(args[1])
    expected = reference(name, *args)
    refs = [await put(device, each, layout) for each in args]
    same(await fetched(device, await getattr(device.xp, name)(*refs)), expected, near=1e-12)
    async with device.batch() as batch:
        made = getattr(batch.xp, name)(*refs)
    same(await fetched(device, made), expected, near=1e-12)


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=3)
@given(seed=st.integers(0, 99), layout=st.sampled_from(LAYOUTS))
@on_shared
async def test_other_functions(device: Device, name: str, seed: int, layout: str) -> None:
    call = CALLS[name]
    one, other = sample(seed, (4, 4), "float64"), sample(seed + 1, (4, 4), "float64")
    expected = call(np, one, other)
    x, y = await put(device, one, layout), await put(device, other, layout)
    for _ in range(3):  # by a template, where there is one
        same(await fetched(device, await call(device.xp, x, y)), _listed(expected), near=1e-12)
    async with device.batch() as batch:
        together = call(batch.xp, x, y)
    same(await fetched(device, together), _listed(expected), near=1e-12)
    async with device.record() as recording:
        later = call(recording.xp, x, y)
    await recording.replay()
    same(await fetched(device, later), _listed(expected), near=1e-12)


def _listed(expected: Any) -> Any:
    return [*expected] if isinstance(expected, tuple | list) else expected


@on_shared
async def test_values_of_the_program(device: Device) -> None:
    xp: Any = device.xp
    requests: Any = device.requests.xp
    ref = await xp.asarray([[1, 2], [3, 4]], dtype=xp.float32, device=ref_device(device))
    same(await device.get(ref), np.array([[1, 2], [3, 4]], "float32"))
    assert (await xp.asarray(ref)).block is ref.block
    assert (await xp.asarray(ref, copy=True)).block is not ref.block
    same(await device.get(await xp.asarray(ref, dtype="int64")), np.array([[1, 2], [3, 4]]))
    same(await device.get(await xp.from_dlpack(np.arange(3))), np.arange(3))
    async with device.batch() as batch:
        added = batch.xp.add(batch.xp.asarray([1.0, 2.0]), 1)
    same(await device.get(added), np.array([2.0, 3.0]))
    with pytest.raises(Unsupported, match=r"await device\.put"):
        requests.asarray([1])
    for bad in ({"copy": False}, {"device": "cpu:99"}):
        with pytest.raises(ValueError, match=r"copy must not be False|device must be"):
            xp.asarray([1], **bad)


def ref_device(device: Device) -> str:
    return device.xp.__array_namespace_info__().default_device()


@on_shared
async def test_functions_of_dtypes_are_plain(device: Device) -> None:
    xp = device.xp
    x = await xp.ones(3, dtype=xp.float32)
    assert xp.result_type(x, 1.5) == xp.float32
    assert xp.result_type(xp.int32, xp.uint32) == xp.int64
    assert xp.can_cast(x, xp.float64)
    assert not xp.can_cast(xp.float64, xp.int8)
    assert xp.isdtype(xp.uint8, ("real floating", "unsigned integer"))
    assert xp.finfo(x).eps == np.finfo("f4").eps
    assert xp.finfo(xp.complex128).dtype == xp.float64
    assert xp.iinfo(xp.int16).max == 2**15 - 1
    info = xp.__array_namespace_info__()
    assert info.devices() == [device.name]
    assert (
        info.dtypes(kind="integral").keys()
        == info.dtypes(kind=("signed integer", "unsigned integer")).keys()
    )
    assert info.default_dtypes()["indexing"] == xp.int64
    assert info.capabilities()["data-dependent shapes"]
    for name in PLAIN:
        assert not inspect.iscoroutinefunction(getattr(ArrayApi, name))


@on_shared
async def test_what_a_batch_cannot_know(device: Device) -> None:
    x = await device.xp.arange(4)
    async with device.batch() as batch:
        assert not batch.xp.__array_namespace_info__().capabilities()["boolean indexing"]
        for name in ("nonzero", "unique_all", "unique_values"):
            with pytest.raises(Unsupported, match="await it before"):
                getattr(batch.xp, name)(x)
    found = await device.xp.unique_counts(x)
    same(await device.get(found.counts), np.ones(4, "int64"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda xp, x: xp.cumulative_sum(x), "axis must be given"),
        (lambda xp, x: xp.vecdot(x, x, axis=0), "axis must be from -2 to -1"),
        (lambda xp, x: xp.reshape(x.T, (4,), copy=False), "copy it first"),
        (lambda xp, x: xp.reshape(x + 1, (4,), copy=False), "copy must not be False"),
        (lambda xp, x: xp.zeros(3, device="cpu:99"), "device must be"),
        (lambda xp, x: xp.eye(3, device="cpu:99"), "device must be"),
        (lambda xp, x: xp.asarray(x + 1, copy=False), "copy must not be False"),
    ],
)
@on_shared
async def test_bad_arguments(device: Device, call: Callable[..., Any], words: str) -> None:
    x = await device.xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(ValueError, match=words):
        await call(device.xp, x)
