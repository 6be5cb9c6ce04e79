"""``help()`` of public classes, which evaluates the types of a Struct's fields."""

from __future__ import annotations

import inspect
import pkgutil
import pydoc
from importlib import import_module

import pytest

import atomr_accel

CIRCLES = {"lanes", "memory"}
"""Packages with classes whose fields are of each other's types; programs have no use for them."""

PACKAGES = [
    "atomr_accel",
    *(
        f"atomr_accel.{package.name}"
        for package in pkgutil.iter_modules(atomr_accel.__path__)
        if package.ispkg and package.name not in CIRCLES
    ),
]


@pytest.mark.parametrize("package", PACKAGES)
def test_help_of_public_classes(package: str) -> None:
    module = import_module(package)
    for name in getattr(module, "__all__", ()):
        found = getattr(module, name)
        if inspect.isclass(found):
            assert name in pydoc.render_doc(found)
