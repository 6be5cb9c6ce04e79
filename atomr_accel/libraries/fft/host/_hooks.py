"""Callbacks on CUDA: compiled by NVRTC, and linked into a transform's kernels by cuFFT."""

from __future__ import annotations

import re
from ctypes import c_int
from typing import TYPE_CHECKING, Final, NamedTuple

from ...nvrtc.host._compiler import compile_linkable
from ...nvrtc.host._linker import load_nvjitlink
from ..wire._plan import result_type
from ._prototypes import ENUMS

if TYPE_CHECKING:
    from ...host._vendor import VendorLibrary
    from ..wire._messages import Spec

_TYPES: Final = """typedef float cufftReal;
typedef double cufftDoubleReal;
typedef float2 cufftComplex;
typedef double2 cufftDoubleComplex;
"""
"""Those of ``cufft.h``, which is not needed then."""

_ENTRIES: Final = {
    "LD": """__device__ {type} atomr_load(
    void* data, unsigned long long offset, void* info, void* shared) {{
  return {name}(data, offset, info, shared);
}}
""",
    "ST": """__device__ void atomr_store(
    void* data, unsigned long long offset, {type} element, void* info, void* shared) {{
  {name}(data, offset, element, info, shared);
}}
""",
}
"""What cuFFT is told the name of.

It compiles a call of that name against a declaration with exactly these types and the linkage of
C++. So ``extern "C"``, or a ``size_t`` for the offset, is a symbol that it does not find, and all
that it says then is ``CUFFT_INTERNAL_ERROR`` for the plan.
"""

_NAMES: Final = {"LD": b"atomr_load", "ST": b"atomr_store"}

_KINDS: Final = {
    "complex64": ("COMPLEX", "cufftComplex"),
    "complex128": ("COMPLEX_DOUBLE", "cufftDoubleComplex"),
    "float32": ("REAL", "cufftReal"),
    "float64": ("REAL_DOUBLE", "cufftDoubleReal"),
}
"""What cuFFT calls callbacks of a dtype, and their elements."""

_INCLUDE: Final = re.compile(r"[ \t]*#[ \t]*include\b")

_RENAMED: Final = 12_000
"""The first release whose function has its own name again; before, that name is another one's."""


class Linkable(NamedTuple):
    """A callback, ready for plans.

    Attributes:
        name: of what cuFFT calls. It reads name and image when a plan is made.
        image: what it was compiled to.
        kind: where it is called, and with what type.
    """

    name: bytes
    image: bytes
    kind: int


def compile_hooks(spec: Spec, capability: tuple[int, int]) -> list[Linkable]:
    """The callbacks of a transform.

    Raises:
        CompileError: with the compiler's log.
        LibraryMissing: NVRTC, nvJitLink or cuda-bindings is not installed.
    """
    made = []
    for hook, role, element in (
        (spec.load, "LD", spec.source),
        (spec.store, "ST", result_type(spec)),
    ):
        if hook is not None:
            kind, name = _KINDS[element]
            entry = _ENTRIES[role].format(type=name, name=hook.name)
            source = f'{_TYPES}{_own(hook.source)}\n#line 1 "call of the callback"\n{entry}'
            image = compile_linkable(source, hook.name, capability, ())
            made.append(Linkable(_NAMES[role], image, ENUMS[f"CUFFT_CB_{role}_{kind}"]))
    if made:
        load_nvjitlink()  # which cuFFT looks for by name only, so it has to be there before
    return made


def _own(source: str) -> str:
    """A source that shares no symbols, so that those of both callbacks may define the same.

    What it includes stays outside of the namespace that does this.
    """
    lines = (
        f"}}\n{_line(number)}\n{line}\nnamespace {{\n{_line(number + 1)}"
        if _INCLUDE.match(line)
        else line
        for number, line in enumerate(source.split("\n"), 1)
    )
    return "\n".join(("namespace {", _line(1), *lines, "}"))


def _line(number: int) -> str:
    return f'#line {number} "callback"'


def link(library: VendorLibrary, handle: int, hooks: list[Linkable]) -> None:
    """Have a plan that is not made yet call them."""
    if not hooks:
        return
    version = (c_int * 1)()
    library.call("cufftGetVersion", version)
    own = version[0] >= _RENAMED
    function = "cufftXtSetJITCallback" if own else "__cufftXtSetJITCallback_12_7"
    for name, image, kind in hooks:
        library.call(function, handle, name, image, len(image), kind, None)
