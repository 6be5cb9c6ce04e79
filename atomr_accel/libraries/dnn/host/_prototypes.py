"""cuDNN's C functions, as tables that tests hold against the vendor's header."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache
from pathlib import Path
from typing import Final

from ....executors.vendor import Prototypes, VendorLibrary
from ._routine_prototypes import ENUMS as ROUTINE_ENUMS
from ._routine_prototypes import ROUTINES

STATUS_NAME: Final = "cudnnGetErrorString"

PROTOTYPES: Final[Prototypes] = {
    "cudnnCreate": "ptr*",
    "cudnnDestroy": "ptr",
    "cudnnSetStream": "ptr ptr",
    **ROUTINES,
}
"""Functions that return a status."""

ENUMS: Final[dict[str, int]] = {**ROUTINE_ENUMS}
"""Values of the header's enumerations."""

DATA_TYPES: Final[dict[str, str]] = {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "float16": "HALF",
    "bfloat16": "BFLOAT16",
    "int8": "INT8",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "bool": "BOOLEAN",
    "float8_e4m3fn": "FP8_E4M3",
    "float8_e5m2": "FP8_E5M2",
}
"""The vendor's names of our dtypes, without ``CUDNN_DATA_``."""

_MOST_CHARACTERS: Final = 4096
_STATUS_FAMILIES: Final = (1000, 2000, 3000, 4000, 5000)


@cache
def load_cudnn() -> VendorLibrary:
    """The library, loaded once."""
    return VendorLibrary("cudnn", PROTOTYPES, STATUS_NAME)


def preload_parts() -> None:
    """Load the libraries that cuDNN loads for its first plans, if they are in its folder.

    cuDNN then finds them in the process by their names.
    """
    from cuda.pathfinder import load_nvidia_dynamic_lib

    load_cudnn()
    main = Path(load_nvidia_dynamic_lib("cudnn").abs_path)
    _, dot, release = main.name.partition(".so")
    for part in sorted(main.parent.glob(f"libcudnn_*{dot}{release}")):
        with contextlib.suppress(OSError):  # for want of something that this program does not use
            ctypes.CDLL(str(part))


@cache
def _others() -> ctypes.CDLL:
    """The library for its few functions that return no status."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    load_cudnn()
    return ctypes.CDLL(load_nvidia_dynamic_lib("cudnn").abs_path)


@cache
def version() -> int:
    """The version of the library that is loaded, such as 91900 (``cudnnGetVersion``)."""
    function = _others().cudnnGetVersion
    function.restype, function.argtypes = ctypes.c_size_t, []
    return int(function())


def last_error() -> str:
    """Return the library's message for its last failure in this thread, on one line."""
    function = _others().cudnnGetLastErrorString
    function.restype, function.argtypes = None, [ctypes.c_char_p, ctypes.c_size_t]
    buffer = ctypes.create_string_buffer(_MOST_CHARACTERS)
    function(buffer, _MOST_CHARACTERS)
    return " ".join(buffer.value.decode(errors="replace").split())


@cache
def status_codes() -> dict[str, int]:
    """The status codes by name, as the library itself names them."""
    namer = _others().cudnnGetErrorString
    namer.restype, namer.argtypes = ctypes.c_char_p, [ctypes.c_int]
    codes = (code for family in _STATUS_FAMILIES for code in range(family, family + 100))
    return {(namer(code) or b"").decode(): code for code in codes}


def library_handle() -> int:
    """Return the library's handle from ``dlopen``, so that the frontend uses the same library."""
    return _others()._handle
