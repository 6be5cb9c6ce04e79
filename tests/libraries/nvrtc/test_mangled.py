"""Types read from mangled names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel.libraries.nvrtc.signature import read_signature
from atomr_accel.libraries.nvrtc.wire._mangled import function_name, function_type

BUILTIN = {"i": "int", "f": "float", "y": "unsigned long long", "a": "signed char", "b": "bool"}

Tree = tuple[Any, ...]
"""A type: its kind, then its parts."""

TYPES = st.recursive(
    st.one_of(
        st.tuples(st.just("builtin"), st.sampled_from([*BUILTIN])),
        st.tuples(st.just("class"), st.sampled_from([("S",), ("deep", "S"), ("deep", "er", "T")])),
    ),
    lambda inner: st.one_of(
        st.tuples(st.just("pointer"), inner),
        st.tuples(st.just("const pointer"), inner),
        st.tuples(st.just("template"), inner, st.integers(-3, 3)),
    ),
    max_leaves=6,
)


def spell(tree: Tree) -> str:
    """Return a type as C++ spells it."""
    match tree:
        case ("builtin", letter):
            return BUILTIN[letter]
        case ("class", names):
            return "::".join(names)
        case ("template", inner, number):
            return f"V<{spell(inner)}, {number}>"
        case ("pointer", inner):
            return f"{spell(inner)}*"
        case ("const pointer", inner) if "pointer" in inner[0]:
            return f"{spell(inner)} const*"
        case _:
            return f"const {spell(tree[1])}*"


class Mangler:
    """Mangled names of types, with references to earlier names."""

    def __init__(self) -> None:
        self.known = ["t"]

    def once(self, key: str, make: Callable[[], str]) -> str:
        if key in self.known:
            at = self.known.index(key)
            return f"S{'' if not at else '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ'[at - 1]}_"
        made = make()
        self.known.append(key)
        return made

    def mangle(self, tree: Tree) -> str:
        match tree:
            case ("builtin", letter):
                return str(letter)
            case ("class", names):
                return self.once(spell(tree), lambda: self.nested(names))
            case ("template", inner, number):
                value = f"n{-number}" if number < 0 else number
                return self.once(
                    spell(tree),
                    lambda: f"{self.once('V', lambda: '1V')}I{self.mangle(inner)}Li{value}EE",
                )
            case ("pointer", inner):
                return self.once(spell(tree), lambda: f"P{self.mangle(inner)}")
            case _:
                inner = tree[1]
                constant = spell(tree)[:-1]
                return self.once(
                    spell(tree),
                    lambda: "P" + self.once(constant, lambda: f"K{self.mangle(inner)}"),
                )

    def nested(self, names: tuple[str, ...]) -> str:
        if len(names) == 1:
            return f"{len(names[0])}{names[0]}"
        return f"N{self.prefix(names[:-1])}{len(names[-1])}{names[-1]}E"

    def prefix(self, names: tuple[str, ...]) -> str:
        def make() -> str:
            outer = self.prefix(names[:-1]) if len(names) > 1 else ""
            return f"{outer}{len(names[-1])}{names[-1]}"

        return self.once("::".join(names), make)


@given(st.lists(TYPES, max_size=5))
def test_mangled_types_are_read_as_they_were_spelled(trees: list[Tree]) -> None:
    mangler = Mangler()
    symbol = f"_Z1tIFv{''.join(map(mangler.mangle, trees)) or 'v'}EE"
    found = function_type(symbol)
    if len(mangler.known) > 37:
        return  # references of two letters, which the mangler above does not write
    assert found is not None, symbol
    assert [each.text for each in found.parameters] == [*map(spell, trees)]
    parameters = read_signature(symbol)
    assert parameters is not None
    assert [each.pointer for each in parameters] == ["pointer" in tree[0] for tree in trees]
    for parameter, tree in zip(parameters, trees, strict=True):
        if parameter.pointer:
            assert parameter.written is (tree[0] == "pointer")


@given(st.text("PKFINSEL_ZvifD123AJotV", max_size=60))
def test_names_that_are_no_types_give_none(text: str) -> None:
    for symbol in (text, f"_Z{text}", f"_Z1tIFv{text}EE"):
        found = function_type(symbol)
        assert found is None or found.kind == "function"
        function_name(symbol)


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("k", "k"),
        ("_Z5scalePf", "scale"),
        ("_ZL5scalePf", "scale"),
        ("_ZN4deep5scaleEPfi", "deep::scale"),
        ("_ZN12_GLOBAL__N_15scaleEv", "scale"),
        ("_Z5scaleIfEvPT_", None),
        ("_ZN4deep5scaleIfEEvPT_", None),
    ],
)
def test_a_function_name_is_none_for_templates(symbol: str, name: str | None) -> None:
    assert function_name(symbol) == name


def test_a_pointer_to_arrays_is_constant_as_their_elements() -> None:
    found = read_signature("_Z1tIFvPA4_KiPA4_A2_fEE")
    assert found is not None
    assert [(each.text, each.written) for each in found] == [
        ("const int (*)[4]", False),
        ("float (*)[4][2]", True),
    ]
    assert [each.dtype and each.dtype.name for each in found] == ["int32", "float32"]
