"""Numeric parameters of the public callables, found by their annotations."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from atomr_accel.actors.util import NoPublicConstructor
from atomr_accel.worlds._collectives import collective

PACKAGES: Final = (
    "atomr_accel", "atomr_accel.actors", "atomr_accel.arrays", "atomr_accel.arrays.expressions",
    "atomr_accel.dashboard", "atomr_accel.patterns", "atomr_accel.replay", "atomr_accel.solvers",
    "atomr_accel.telemetry", "atomr_accel.testing", "atomr_accel.worlds",
)  # fmt: skip
"""Packages whose ``__all__`` is for programs. The others' is for libraries and backends, whose
numbers the callables here have checked."""

_NUMBER: Final = re.compile(r"\b(?:int|float|Number)\b")


@dataclass(frozen=True)
class PublicCallable:
    """A public function, constructor or method, and its numeric parameters."""

    name: str
    numbers: tuple[str, ...]


def _numbers(called: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(called).parameters.values()
    return tuple(each.name for each in parameters if _NUMBER.search(str(each.annotation)))


def _callables(name: str, thing: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    if not inspect.isclass(thing):
        if inspect.isfunction(thing):
            yield name, thing
        return
    if issubclass(thing, BaseException):
        return
    protocol = getattr(thing, "_is_protocol", False)
    if not isinstance(thing, NoPublicConstructor) and not protocol:
        made = inspect.getattr_static(thing, "__init__")
        if inspect.isfunction(made):
            yield name, made
    for one in thing.__mro__:
        if one.__module__.startswith("atomr_accel"):
            for key, value in vars(one).items():
                method = getattr(value, "__func__", value)
                if isinstance(value, collective):
                    method = value.__get__(None)
                if inspect.isfunction(method) and not key.startswith("_"):
                    yield f"{one.__name__}.{key}", method


def public_callables() -> list[PublicCallable]:
    """Return those that have numeric parameters, each once."""
    found: dict[Any, PublicCallable] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            for full, called in _callables(name, getattr(module, name)):
                numbers = _numbers(called)
                if numbers:
                    found.setdefault(inspect.unwrap(called), PublicCallable(full, numbers))
    return sorted(found.values(), key=lambda each: each.name)
