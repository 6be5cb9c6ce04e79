"""The functions of cuFFT in use (``cufft.h``, ``cufftXt.h``).

Plans are made and run by the ``Xt`` functions only: they take 64-bit sizes and every
precision, so one pair serves them all.
"""

from __future__ import annotations

from typing import Final

from ....executors.numbers import CUDA_TYPES, DATA_TYPES

_SET_CALLBACK: Final = "int str ptr size int ptr*"

PROTOTYPES: Final = {
    "cufftCreate": "int*",
    "cufftDestroy": "int",
    "cufftSetStream": "int ptr",
    "cufftSetAutoAllocation": "int int",
    "cufftSetWorkArea": "int ptr",
    "cufftGetVersion": "int*",
    "cufftXtMakePlanMany": ("int int i64* i64* i64 i64 int i64* i64 i64 int i64 size* int"),
    "cufftXtExec": "int ptr ptr int",
    "cufftXtSetJITCallback": _SET_CALLBACK,
    "__cufftXtSetJITCallback_12_7": _SET_CALLBACK,
}

STATUSES: Final = {
    "CUFFT_SUCCESS": 0,
    "CUFFT_INVALID_PLAN": 1,
    "CUFFT_ALLOC_FAILED": 2,
    "CUFFT_INVALID_TYPE": 3,
    "CUFFT_INVALID_VALUE": 4,
    "CUFFT_INTERNAL_ERROR": 5,
    "CUFFT_EXEC_FAILED": 6,
    "CUFFT_SETUP_FAILED": 7,
    "CUFFT_INVALID_SIZE": 8,
    "CUFFT_UNALIGNED_DATA": 9,
    "CUFFT_INVALID_DEVICE": 11,
    "CUFFT_NO_WORKSPACE": 13,
    "CUFFT_NOT_IMPLEMENTED": 14,
    "CUFFT_NOT_SUPPORTED": 16,
}
"""Status codes that both CUDA 12 and 13 have. The library has no function that names them."""

ENUMS: Final = {
    **STATUSES,
    "CUFFT_FORWARD": -1,
    "CUFFT_INVERSE": 1,
    "CUFFT_CB_LD_COMPLEX": 0,
    "CUFFT_CB_LD_COMPLEX_DOUBLE": 1,
    "CUFFT_CB_LD_REAL": 2,
    "CUFFT_CB_LD_REAL_DOUBLE": 3,
    "CUFFT_CB_ST_COMPLEX": 4,
    "CUFFT_CB_ST_COMPLEX_DOUBLE": 5,
    "CUFFT_CB_ST_REAL": 6,
    "CUFFT_CB_ST_REAL_DOUBLE": 7,
    **DATA_TYPES,
}
"""Values used here, as the headers name them; a test compares them with the headers."""

STATUS_NAMES: Final = {
    **{status: name for name, status in STATUSES.items()},
    10: "CUFFT_INCOMPLETE_PARAMETER_LIST",  # until CUDA 12
    12: "CUFFT_PARSE_ERROR",
    15: "CUFFT_LICENSE_ERROR",
    17: "CUFFT_MISSING_DEPENDENCY",  # from CUDA 13 on
    18: "CUFFT_NVRTC_FAILURE",
    19: "CUFFT_NVJITLINK_FAILURE",
    20: "CUFFT_NVSHMEM_FAILURE",
}

FORWARD: Final = ENUMS["CUFFT_FORWARD"]
INVERSE: Final = ENUMS["CUFFT_INVERSE"]

REFUSALS: Final = frozenset((STATUSES["CUFFT_NOT_IMPLEMENTED"], STATUSES["CUFFT_NOT_SUPPORTED"]))
"""The statuses by which the library says that it has no such transform."""

TRANSFORM_TYPES: Final = {
    **CUDA_TYPES,
    "float16x2": DATA_TYPES["CUDA_C_16F"],
    "bfloat16x2": DATA_TYPES["CUDA_C_16BF"],
}
"""``cudaDataType_t`` of a dtype, complex numbers of 16-bit parts included."""
