"""Callbacks on CUDA: compiled by NVRTC, and linked into a transform's kernels by cuFFT."""

from __future__ import annotations

import re
from ctypes import c_int
from typing import TYPE_CHECKING, Final, NamedTuple

from ....executors.compiler import compile_linkable
from ...nvrtc.host.linker import load_nvjitlink
from ..wire._plan import result_type
from ._prototypes import ENUMS

if TYPE_CHECKING:
    from ....executors.vendor import VendorLibrary
    from ..wire._messages import FftSpec

_TYPES: Final = """typedef float cufftReal;
typedef double cufftDoubleReal;
typedef float2 cufftComplex;
typedef double2 cufftDoubleComplex;
"""
"""Types of ``cufft.h``, so that the header is not needed."""

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
"""Functions that cuFFT calls by name.

cuFFT compiles a call of the name against a declaration with exactly these types and the linkage of
C++. With ``extern "C"``, or a ``size_t`` for the offset, it does not find the symbol, and reports
only ``CUFFT_INTERNAL_ERROR`` for the plan.
"""

_NAMES: Final = {"LD": b"atomr_load", "ST": b"atomr_store"}

_KINDS: Final = {
    "complex64": ("COMPLEX", "cufftComplex"),
    "complex128": ("COMPLEX_DOUBLE", "cufftDoubleComplex"),
    "float32": ("REAL", "cufftReal"),
    "float64": ("REAL_DOUBLE", "cufftDoubleReal"),
}
"""cuFFT's names for callbacks of a dtype, and for their elements."""

_INCLUDE: Final = re.compile(r"[ \t]*#[ \t]*include\b")

_RENAMED: Final = 12_000
"""The first release whose function has its own name again; before, that name is another one's."""


class Linkable(NamedTuple):
    """A compiled callback that plans can use.

    Attributes:
        name: of the function that cuFFT calls. cuFFT reads name and image when a plan is made.
        image: its compiled code.
        kind: load or store, and the element type, as cuFFT numbers them.
    """

    name: bytes
    image: bytes
    kind: int


def compile_hooks(spec: FftSpec, capability: tuple[int, int]) -> list[Linkable]:
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
    """Put a source in its own namespace, so that two callbacks may define the same symbols.

    Headers that it includes stay outside of the namespace.
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
