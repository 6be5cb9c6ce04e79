"""Names of other array libraries: errors about them say what to write."""

from __future__ import annotations

import pydoc
import re
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from atomr_accel import Device, GpuRef
from atomr_accel._other_names import WRITE, HasOtherNames, is_other_name
from atomr_accel.arrays.expressions import Expression
from atomr_accel.libraries.registry import catalogue

from ..harness import cpu_only, opened, program

if TYPE_CHECKING:
    from collections.abc import Callable

Attempt = tuple["Callable[[Any, Any], object]", str]

ATTEMPTS: dict[str, Attempt] = {
    "device.array.zeros": (lambda d, _: d.array.zeros(3), "write: await device.zeros(shape)"),
    "device.array.exp": (lambda d, x: d.array.exp(x), "write: np.exp(x)"),
    "device.exp": (lambda d, x: d.exp(x), "write: np.exp(x)"),
    "device.arange": (lambda d, _: d.arange(3), "write: await device.array.arange(...)"),
    "device.close": (lambda d, _: d.close(), "the 'async with' block closes the device"),
    "device.requests.exp": (lambda d, _: d.requests.exp, "write: np.exp(x)"),
    "ref.get": (lambda _, x: x.get(), "write: await device.get(x)"),
    "ref.dot": (lambda _, x: x.dot(x), "write: x @ y"),
    "ref.tanh": (lambda _, x: x.tanh(), "write: np.tanh(x)"),
    "ref.erf": (lambda _, x: x.erf(), "write: scipy.special.erf(x)"),
    "expression.sort": (lambda _, x: (x + 1).sort(), "write: await device.array.sort(...)"),
    "expression.get": (lambda _, x: (x + 1).get(), "write: await device.get(x)"),
}


@cpu_only
@program
async def test_missing_attribute_has_an_error_that_says_what_to_write() -> None:
    async with opened(isolation="thread") as device:
        x = await device.put(np.ones((2, 2)))
        for attempt, advice in ATTEMPTS.values():
            with pytest.raises(AttributeError, match=re.escape(advice)):
                attempt(device, x)
        for function in (np.outer, np.linalg.outer):
            with pytest.raises(TypeError, match=re.escape("write: x[:, None] * y")):
                function(x[0], x[0])


@cpu_only
@program
async def test_code_to_write_names_attributes_that_exist() -> None:
    async with opened(isolation="thread") as device:
        x = await device.put(np.ones((2, 2)))
        for name, code in WRITE.items():
            for path in re.findall(r"\bdevice\.([a-z_.0-9]+[a-z0-9])", code):
                found: object = device
                for part in path.split("."):
                    found = getattr(found, part)
            for attribute in re.findall(r"\bx\.([a-zA-Z]\w*)", code):
                assert hasattr(x, attribute), name
            for path in re.findall(r"\b((?:np|scipy\.special)\.\w+)", code):
                resolve_name(path.replace("np.", "numpy:").replace("special.", "special:"))


@cpu_only
@program
async def test_names_of_others_are_in_help_but_not_in_dir() -> None:
    async with opened(isolation="thread") as device:
        x = await device.put(np.ones(2))
        for thing in (device, x, x + 1, device.array):
            assert not {"tanh", "get" if thing is not device else "exp"} & {*dir(thing)}
            assert not hasattr(thing, "tolist")
            text = pydoc.render_doc(type(thing), renderer=pydoc.plaintext)  # type: ignore[attr-defined]
            assert "tolist = <write: (await device.get(x)).tolist()>" in text


def test_names_of_others_replace_no_attribute() -> None:
    kinds = [Device, GpuRef, Expression, *catalogue().facades.values()]
    kinds += [resolve_name(each) for one in catalogue().all.values() for each in one.objects]
    assert len(kinds) > 20
    for kind in kinds:
        own = {name for base in kind.__mro__ if base is not HasOtherNames for name in vars(base)}
        assert [name for name in own & WRITE.keys() if is_other_name(kind, name)] == []
