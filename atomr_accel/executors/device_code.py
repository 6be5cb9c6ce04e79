"""CUDA C++ of this package: files next to the executors that launch it.

The files of an executor are in a folder ``kernels`` next to it. Code that several of them share is
in the folder next to this module. They need no header of the vendor, because NVRTC's wheel has
none.
"""

from __future__ import annotations

import re
from functools import cache, cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INCLUDE: Final = re.compile(r'#include "(.+)"')
_ONCE: Final = "#pragma once"
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@final
class CudaSource:
    """A file with its includes and the constants that it shares with Python.

    An ``#include "name"`` is looked for next to the file, then among the shared ones, and inserted
    here, once. So the compiler gets one complete text, and a kernel kept on disk is used again only
    while none of its files changes. ``package`` has the folder ``kernels`` next to its modules;
    constants become macros. ``options`` are NVRTC's.
    """

    def __init__(self, package: str, name: str, *options: str, **macros: int) -> None:
        self._package = package
        self._name = name
        self._macros = macros
        self.options: Final = options

    @cached_property
    def text(self) -> str:
        """Text that NVRTC compiles."""
        return self.preprocess(_NO_HEADERS)

    def preprocess(self, headers: Mapping[str, str]) -> str:
        """The text with other headers in the place of some, by name."""
        head = [f"#define {name} {value}" for name, value in self._macros.items()]
        lines = self._lines(self._name, headers, {self._name})
        return "\n".join([*head, *lines, ""])

    def _lines(self, name: str, headers: Mapping[str, str], seen: set[str]) -> Iterator[str]:
        """Yield the lines of a file, with directives that name their origin to the compiler."""
        text = headers[name] if name in headers else read_kernels(self._package, name)
        yield f'#line 1 "{name}"'
        for number, line in enumerate(text.splitlines(), 1):
            found = _INCLUDE.fullmatch(line)
            if found is None:
                yield "" if line == _ONCE else line
            elif found[1] in seen:
                yield ""
            else:
                seen.add(found[1])
                yield from self._lines(found[1], headers, seen)
                yield f'#line {number + 1} "{name}"'


@cache
def read_kernels(package: str, name: str) -> str:
    """Return an unchanged file: from the folder ``kernels`` of a package, or a shared one."""
    from importlib.resources import files  # a host that compiles nothing does without

    file = files(package) / "kernels" / name
    if not file.is_file():
        file = files(__package__) / "kernels" / name
    return file.read_text(encoding="utf-8")


C_TYPES: Final = {
    "bool": "unsigned char",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "uint64": "unsigned long long",
    "float16": "h16",
    "bfloat16": "b16",
    "float32": "float",
    "float64": "double",
}
"""Names of dtypes in CUDA C++."""
