"""Address fields of messages are declared."""

from __future__ import annotations

import importlib
import pkgutil
import re
import typing
from typing import Any

import msgspec
import pytest

import atomr_accel
from atomr_accel.wire import Address, Message, Word, filled_fields

MODULES = [
    module.name
    for module in pkgutil.walk_packages(atomr_accel.__path__, "atomr_accel.")
    if ".wire." in module.name
]
NO_ADDRESSES = {
    "BlasLtSpec.bias_alignment",
    "BlasLtSpec.aux_alignment",
    "CallByTemplate.addresses",
    "CallWithTemplate.addresses",
    "Join.area",
    "MapVariable.slab",
    "MatrixLayout.alignment",
    "TensorLayout.alignment",
    "TextureObject.modes",
}
"""Fields whose description mentions addresses, and which are no places of a template."""


def structs() -> dict[str, type[msgspec.Struct]]:
    """Return all structs of the modules that programs and hosts share."""
    found = {}
    for module in map(importlib.import_module, MODULES):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, msgspec.Struct):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


def described(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the description of each field, from the docstring's list of attributes."""
    _, _, attributes = (kind.__doc__ or "").partition("Attributes:\n")
    entries = re.findall(r"^ {8}(\w[\w, ]*): (.*(?:\n {12}.*)*)", attributes, re.MULTILINE)
    return {name: text for names, text in entries for name in names.split(", ")}


def has_whole_numbers(hint: object) -> bool:
    """Return whether a field of this type can hold an address."""
    return hint is int or any(map(has_whole_numbers, typing.get_args(hint)))


@pytest.mark.parametrize("name", sorted(structs()))
def test_fields_that_are_described_as_addresses_are_declared(name: str) -> None:
    kind = structs()[name]
    hints = typing.get_type_hints(kind, include_extras=True)
    for field, text in described(kind).items():
        if has_whole_numbers(hints.get(field)) and re.search(r"\baddress(es)?\b", text):
            assert is_declared(hints[field]) or f"{kind.__name__}.{field}" in NO_ADDRESSES, field


def is_declared(hint: object) -> bool:
    """Return whether a type is, or contains, that of addresses."""
    return hint == Address or any(map(is_declared, typing.get_args(hint)))


class Part(msgspec.Struct, array_like=True, frozen=True):
    """A part of a message."""

    size: int
    at: Address | None


class Nested(Message, frozen=True):
    """A message with addresses in all kinds of fields."""

    seed: int
    first: Address
    several: tuple[Address, ...]
    parts: list[Part]
    numbers: tuple[tuple[Word, ...], ...]
    either: Part | int


def test_filled_fields_are_in_the_order_of_encoding() -> None:
    parts = [Part(90, 7), Part(91, None)]
    message: Any = Nested(1 << 63, 1, (2, 3), parts, ((8,), (9, 10)), Part(92, 11))
    assert filled_fields(message) == [1, 2, 3, 7, 8, 9, 10, 11]
    assert filled_fields(Part(1, 2)) == [2]
    assert filled_fields((1, 2)) == []
