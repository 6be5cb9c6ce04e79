"""C++ types, read from the compiler's names (the mangling of the Itanium C++ ABI).

The compiler names an instance of a template after its arguments, so such a name gives the type of
a kernel exactly. Types without a name in C++, such as lambdas, are not read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

_BUILTIN: Final = {
    "v": "void",
    "b": "bool",
    "c": "char",
    "a": "signed char",
    "h": "unsigned char",
    "s": "short",
    "t": "unsigned short",
    "i": "int",
    "j": "unsigned int",
    "l": "long",
    "m": "unsigned long",
    "x": "long long",
    "y": "unsigned long long",
    "n": "__int128",
    "o": "unsigned __int128",
    "f": "float",
    "d": "double",
    "e": "long double",
    "w": "wchar_t",
    "g": "__float128",
    "z": "...",
    "Di": "char32_t",
    "Ds": "char16_t",
    "Du": "char8_t",
    "Dn": "decltype(nullptr)",
}
_QUALIFIERS: Final = {"r": "__restrict__", "V": "volatile", "K": "const"}
_POINTERS: Final = {"P": "*", "R": "&", "O": "&&"}


@dataclass(frozen=True, slots=True)
class CppType:
    """A type of C++.

    Attributes:
        before: its text before the name of a variable of the type.
        after: its text behind that name, such as ``[4]``.
        kind: the outermost part of the type.
        constant: whether it is ``const``. An array is if its elements are.
        target: type of what a pointer points to, or of an array's elements.
        parameters: types of a function's parameters.
    """

    before: str
    after: str = ""
    kind: Literal["builtin", "class", "pointer", "array", "function"] = "builtin"
    constant: bool = False
    target: CppType | None = None
    parameters: tuple[CppType, ...] = ()

    @property
    def text(self) -> str:
        """The type as C++ spells it."""
        return self.before + self.after


def function_type(symbol: str) -> CppType | None:
    """Return the function type that is the first argument of a template.

    Args:
        symbol: the mangled name of the instance, such as ``"_Z1tIFvPfEE"``.

    Returns:
        The type, also for a pointer to such a function; None if it is not one that is read here.
    """
    reader = _NameReader(symbol)
    try:
        reader.known.append(CppType(reader.component()))
        found: CppType | str | None = reader.arguments()[0]
    except (LookupError, RecursionError, ValueError):
        return None
    if isinstance(found, CppType) and found.kind == "pointer":
        found = found.target
    return found if isinstance(found, CppType) and found.kind == "function" else None


def function_name(symbol: str) -> str | None:
    """Return the qualified name of a function; None if it is an instance of a template.

    Args:
        symbol: its name in an image: mangled, or that of an ``extern "C"`` function.
    """
    if not symbol.startswith("_Z"):
        return symbol
    reader = _NameReader(symbol)
    try:
        nested = reader.skip("N")
        names = [reader.component()]
        while nested and not reader.skip("E"):
            names.append(reader.component())
        return None if symbol.startswith("I", reader.at) else "::".join(filter(None, names))
    except (LookupError, ValueError):
        return None


class _NameReader:
    """Position in a mangled name, with the parts so far that later ones may refer to."""

    def __init__(self, symbol: str) -> None:
        self.text = symbol
        self.at = len("_Z")
        self.known: list[CppType] = []

    def skip(self, text: str) -> bool:
        """Move past a text if it is next."""
        found = self.text.startswith(text, self.at)
        self.at += len(text) * found
        return found

    def until(self, end: str) -> str:
        """Return the text up to an end, and move past it."""
        begun = self.at
        self.at = self.text.index(end, begun) + len(end)
        return self.text[begun : self.at - len(end)]

    def component(self) -> str:
        """Read a part of a qualified name; empty for an unnamed namespace."""
        self.skip("L")
        begun = self.at
        while self.text[self.at].isdecimal():
            self.at += 1
        end = self.at + int(self.text[begun : self.at])
        if end > len(self.text):
            raise ValueError(self.text)
        name, self.at = self.text[self.at : end], end
        while self.skip("B"):
            self.component()  # a tag, which C++ does not spell
        return "" if name.startswith("_GLOBAL__N") else name

    def type(self) -> CppType:
        """Read a type."""
        letter = self.text[self.at]
        if letter in "NS" or letter.isdecimal():
            return self.named()
        if letter == "D" and not self.skip("Do"):  # Do: noexcept
            letter += self.text[self.at + 1]
        elif letter == "D":
            letter = self.text[self.at]
        self.at += len(letter)
        if letter in _BUILTIN:
            return CppType(_BUILTIN[letter])
        return self.note(self._compound(letter))

    def note(self, made: CppType) -> CppType:
        """Let later parts refer to a type."""
        self.known.append(made)
        return made

    def _compound(self, letter: str) -> CppType:
        if letter in _QUALIFIERS:
            words = [_QUALIFIERS[letter]]
            while self.text[self.at] in _QUALIFIERS:
                words.insert(0, _QUALIFIERS[self.text[self.at]])
                self.at += 1
            inner, said = self.type(), " ".join(words)
            is_pointer = inner.kind == "pointer"
            before = f"{inner.before} {said}" if is_pointer else f"{said} {inner.before}"
            return replace(inner, before=before, constant="const" in words)
        if letter in _POINTERS:
            inner, mark = self.type(), _POINTERS[letter]
            if inner.kind in ("array", "function"):
                before, after = f"{inner.before} ({mark}", f"){inner.after}"
            else:
                before, after = inner.before + mark, inner.after
            return CppType(before, after, "pointer", target=inner)
        if letter == "A":
            size, item = self.until("_"), self.type()
            after = f"[{size}]{item.after}"
            return CppType(item.before, after, "array", item.constant, item)
        if letter == "F":
            self.skip("Y")  # extern "C"
            result, *parameters = self.types()
            if [each.text for each in parameters] == ["void"]:
                parameters = []
            inside = ", ".join(each.text for each in parameters)
            after = f"({inside}){result.after}"
            return CppType(result.before, after, "function", parameters=tuple(parameters))
        if letter == "u":
            return CppType(self.component(), kind="class")
        raise ValueError(f"{letter} at {self.at} of {self.text}")

    def types(self) -> list[CppType]:
        """Read the types up to an ``E``."""
        found = []
        while not self.skip("E"):
            found.append(self.type())
        return found

    def named(self) -> CppType:
        """Read a class, an enumeration, or what stands for an earlier part."""
        if not self.skip("N"):
            found = self.segment(None)
            return self.segment(found) if self.text.startswith("I", self.at) else found
        found = self.segment(None)
        while not self.skip("E"):
            found = self.segment(found)
        return found

    def segment(self, outer: CppType | None) -> CppType:
        """Read the next part of a qualified name: a name, or the arguments of a template."""
        if outer is not None and self.text.startswith("I", self.at):
            inside = ", ".join(
                each if isinstance(each, str) else each.text for each in self.arguments()
            )
            return self.note(CppType(f"{outer.before}<{inside}>", kind="class"))
        if self.skip("St"):
            return self.segment(CppType("std"))
        if self.skip("S"):
            number = self.until("_")
            return self.known[int(number, 36) + 1 if number else 0]
        names = "" if outer is None else outer.before, self.component()
        return self.note(CppType("::".join(filter(None, names)), kind="class"))

    def arguments(self) -> list[CppType | str]:
        """Read the arguments of a template."""
        if not self.skip("I"):
            raise ValueError(self.text)
        found: list[CppType | str] = []
        packs = 0
        while packs or not self.skip("E"):
            if self.skip("J"):
                packs += 1
            elif self.skip("E"):
                packs -= 1
            elif self.skip("L"):
                kind, value = self.type().text, self.until("E").replace("n", "-", 1)
                if kind == "bool":
                    value = "true" if value == "1" else "false"
                found.append(value if kind in _BUILTIN.values() else f"({kind}){value}")
            else:
                found.append(self.type())
        return found
