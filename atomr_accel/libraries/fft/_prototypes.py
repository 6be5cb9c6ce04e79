"""The functions of cuFFT in use (``cufft.h``, ``cufftXt.h``).

Plans are made and run by the ``Xt`` functions only: they take 64-bit sizes and every
precision, so one pair serves them all.
"""

from __future__ import annotations

from typing import Final

PROTOTYPES: Final = {
    "cufftCreate": "int*",
    "cufftDestroy": "int",
    "cufftSetStream": "int ptr",
    "cufftSetAutoAllocation": "int int",
    "cufftSetWorkArea": "int ptr",
    "cufftGetVersion": "int*",
    "cufftXtMakePlanMany": ("int int i64* i64* i64 i64 int i64* i64 i64 int i64 size* int"),
    "cufftXtExec": "int ptr ptr int",
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
"""Those that both CUDA 12 and 13 have. The library has no function that names them."""

ENUMS: Final = {
    **STATUSES,
    "CUFFT_FORWARD": -1,
    "CUFFT_INVERSE": 1,
    "CUDA_R_32F": 0,
    "CUDA_R_64F": 1,
    "CUDA_R_16F": 2,
    "CUDA_C_32F": 4,
    "CUDA_C_64F": 5,
    "CUDA_C_16F": 6,
    "CUDA_R_16BF": 14,
    "CUDA_C_16BF": 15,
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

CUDA_TYPES: Final = {
    "float32": ENUMS["CUDA_R_32F"],
    "float64": ENUMS["CUDA_R_64F"],
    "float16": ENUMS["CUDA_R_16F"],
    "bfloat16": ENUMS["CUDA_R_16BF"],
    "complex64": ENUMS["CUDA_C_32F"],
    "complex128": ENUMS["CUDA_C_64F"],
    "float16x2": ENUMS["CUDA_C_16F"],
    "bfloat16x2": ENUMS["CUDA_C_16BF"],
}
"""Element types as ``library_types.h`` numbers them."""
