"""The functions of cuBLAS in use (``cublas_api.h``); ``_64`` take 64-bit sizes."""

from __future__ import annotations

from typing import Final

STATUS_NAME: Final = "cublasGetStatusName"

PROTOTYPES: Final = {
    "cublasCreate_v2": "ptr*",
    "cublasDestroy_v2": "ptr",
    "cublasSetStream_v2": "ptr ptr",
    "cublasSetWorkspace_v2": "ptr ptr size",
    "cublasGetVersion_v2": "ptr int*",
    "cublasSetMathMode": "ptr int",
    "cublasGemmEx_64": (
        "ptr int int i64 i64 i64 ptr ptr int i64 ptr int i64 ptr ptr int i64 int int"
    ),
}

# Element types, as library_types.h numbers them.
CUDA_TYPES: Final = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}

# cublas_api.h: cublasComputeType_t; 16-bit products accumulate in float32
COMPUTE_TYPES: Final = {"float32": 68, "float64": 70, "float16": 68, "bfloat16": 68}

ENUMS: Final = {
    "CUDA_R_32F": 0,
    "CUDA_R_64F": 1,
    "CUDA_R_16F": 2,
    "CUDA_R_16BF": 14,
    "CUBLAS_COMPUTE_32F": 68,
    "CUBLAS_COMPUTE_64F": 70,
    "CUBLAS_OP_N": 0,
    "CUBLAS_OP_T": 1,
    "CUBLAS_GEMM_DEFAULT": -1,
    "CUBLAS_DEFAULT_MATH": 0,
}
"""Values used here, as the headers name them; a test compares them with the headers."""

OP_N: Final = ENUMS["CUBLAS_OP_N"]
OP_T: Final = ENUMS["CUBLAS_OP_T"]
GEMM_DEFAULT: Final = ENUMS["CUBLAS_GEMM_DEFAULT"]
