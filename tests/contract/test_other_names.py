"""Names of other array libraries: errors about them say what to write."""

from __future__ import annotations

import pydoc
import re
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

import atomr_accel
from atomr_accel import Device, GpuRef
from atomr_accel._other_names import PACKAGE, SYSTEM, WRITE, HasOtherNames, is_other_name
from atomr_accel.arrays.expressions import Expression
from atomr_accel.libraries.registry import catalogue

from ..harness import ROOT, cpu_only, opened

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
    "device.allocate_f32": (
        lambda d, _: d.allocate_f32(3),
        "write: await device.zeros(shape, dtype)",
    ),
    "device.copy_from_numpy": (lambda d, x: d.copy_from_numpy(x), "write: await device.put(array)"),
    "device.blas.gemm_f32": (
        lambda d, x: d.blas.gemm_f32(x, x),
        "write: await device.blas.gemm(x, y)",
    ),
    "system.open_device": (
        lambda d, _: d.system.open_device(0),
        "write: await system.spawn_device(index)",
    ),
    "System.open": (
        lambda d, _: type(d.system).open("app"),
        "write: async with open_system(name) as system:",
    ),
    "expression.sort": (lambda _, x: (x + 1).sort(), "write: await device.array.sort(...)"),
    "expression.get": (lambda _, x: (x + 1).get(), "write: await device.get(x)"),
}


@cpu_only
async def test_missing_attribute_has_an_error_that_says_what_to_write() -> None:
    async with opened(isolation="thread") as device:
        x = await device.put(np.ones((2, 2)))
        for attempt, advice in ATTEMPTS.values():
            with pytest.raises(AttributeError, match=re.escape(advice)):
                attempt(device, x)
        for function, folder in ((np.outer, "array"), (np.linalg.outer, "linalg")):
            write = f"write: await device.{folder}.outer(...)"
            with pytest.raises(TypeError, match=re.escape(write)):
                function(x[0], x[0])


@cpu_only
async def test_code_to_write_names_attributes_that_exist() -> None:
    async with opened(isolation="thread") as device:
        x = await device.put(np.ones((2, 2)))
        for name, code in [*WRITE.items(), *PACKAGE.items()]:
            for path in re.findall(r"\batomr_accel\.([a-z_A-Z.]+)", code):
                resolve_name(f"atomr_accel.{path}")
            for path in re.findall(r"\bdevice\.([a-z_.0-9]+[a-z0-9])", code):
                found: object = device
                for part in path.split("."):
                    found = getattr(found, part)
            for attribute in re.findall(r"\bx\.([a-zA-Z]\w*)", code):
                assert hasattr(x, attribute), name
            for path in re.findall(r"\b((?:np|scipy\.special)\.\w+)", code):
                resolve_name(path.replace("np.", "numpy:").replace("special.", "special:"))


@cpu_only
async def test_names_of_others_are_in_help_but_not_in_dir() -> None:
    async with opened(isolation="thread") as device:
        x = await device.put(np.ones(2))
        assert SYSTEM.keys() & {*dir(device.system)} == {"spawn_device"}
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


@pytest.mark.parametrize("name", PACKAGE)
def test_names_of_the_toolkits_package_say_what_to_write(name: str) -> None:
    said = re.escape(PACKAGE[name])
    with pytest.raises(ImportError, match=said):
        exec(f"from atomr_accel import {name}")
    with pytest.raises(AttributeError, match=said):
        getattr(atomr_accel, name)
    assert not hasattr(atomr_accel, name)


def test_a_name_that_nobody_has_is_missing_as_in_other_modules() -> None:
    with pytest.raises(ImportError, match=r"cannot import name 'nothing' from 'atomr_accel' \("):
        exec("from atomr_accel import nothing")
    with pytest.raises(AttributeError, match=r"module 'atomr_accel' has no attribute 'nothing'$"):
        atomr_accel.nothing  # noqa: B018


@pytest.mark.style
def test_the_page_has_the_names_of_the_toolkits_package() -> None:
    page = (ROOT / "docs/reference/original-names.md").read_text(encoding="utf-8")
    assert [name for name in (*PACKAGE, *SYSTEM) if not re.search(rf"\b{name}\b", page)] == []


@cpu_only
async def test_refs_have_numpys_methods_or_say_what_to_write() -> None:
    async with opened(isolation="thread") as device:
        x = await device.put(np.ones((2, 2)))
        for name in dir(np.ndarray):
            if name.startswith("_") or hasattr(x, name):
                continue
            with pytest.raises(AttributeError, match=f"'{name}'; (write: |it is not needed)"):
                getattr(x, name)
