"""Callbacks on CUDA: compiled by NVRTC, and linked into a transform's kernels by cuFFT."""

from __future__ import annotations

from ctypes import c_int
from typing import TYPE_CHECKING, Final, NamedTuple

from ...nvrtc.host._compiler import compile_linkable
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

_DECLARED: Final = {
    "LD": "{type} {name}(void*, unsigned long long, void*, void*)",
    "ST": "void {name}(void*, unsigned long long, {type}, void*, void*)",
}

_KINDS: Final = {
    "complex64": ("COMPLEX", "cufftComplex"),
    "complex128": ("COMPLEX_DOUBLE", "cufftDoubleComplex"),
    "float32": ("REAL", "cufftReal"),
    "float64": ("REAL_DOUBLE", "cufftDoubleReal"),
}
"""What cuFFT calls callbacks of a dtype, and their elements."""

_RENAMED: Final = 12_000
"""The first release whose function has its own name again; before, that name is another one's."""


class Linkable(NamedTuple):
    """A callback, ready for plans.

    Attributes:
        name: of the function.
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
    """
    made = []
    for hook, role, element in (
        (spec.load, "LD", spec.source),
        (spec.store, "ST", result_type(spec)),
    ):
        if hook is not None:
            kind, name = _KINDS[element]
            declared = _DECLARED[role].format(type=name, name=hook.name)
            source = (
                f'{_TYPES}extern "C" __device__ {declared};\n#line 1 "callback"\n{hook.source}\n'
            )
            image = compile_linkable(source, hook.name, capability, ())
            number = ENUMS[f"CUFFT_CB_{role}_{kind}"]
            made.append(Linkable(hook.name.encode(), image, number))
    return made


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
