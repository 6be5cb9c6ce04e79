"""The functions of cuBLASLt in use (``cublasLt.h``), and the values that go with them."""

from __future__ import annotations

from typing import Final

from ....executors.numbers import DATA_TYPES

STATUS_NAME: Final = "cublasLtGetStatusName"
NOT_SUPPORTED: Final = 15

PROTOTYPES: Final = {
    "cublasLtCreate": "ptr*",
    "cublasLtDestroy": "ptr",
    "cublasLtMatmulDescCreate": "ptr* int int",
    "cublasLtMatmulDescDestroy": "ptr",
    "cublasLtMatmulDescSetAttribute": "ptr int ptr size",
    "cublasLtMatrixLayoutCreate": "ptr* int u64 u64 i64",
    "cublasLtMatrixLayoutDestroy": "ptr",
    "cublasLtMatrixLayoutSetAttribute": "ptr int ptr size",
    "cublasLtMatmulPreferenceCreate": "ptr*",
    "cublasLtMatmulPreferenceDestroy": "ptr",
    "cublasLtMatmulPreferenceSetAttribute": "ptr int ptr size",
    "cublasLtMatmulAlgoGetHeuristic": "ptr ptr ptr ptr ptr ptr ptr int ptr int*",
    "cublasLtMatmulAlgoConfigGetAttribute": "ptr int ptr size size*",
    "cublasLtMatmul": "ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr size ptr",
}

ENUMS: Final = {
    **DATA_TYPES,
    "CUBLAS_COMPUTE_16F": 64,
    "CUBLAS_COMPUTE_16F_PEDANTIC": 65,
    "CUBLAS_COMPUTE_32F": 68,
    "CUBLAS_COMPUTE_32F_PEDANTIC": 69,
    "CUBLAS_COMPUTE_32F_FAST_16F": 74,
    "CUBLAS_COMPUTE_32F_FAST_16BF": 75,
    "CUBLAS_COMPUTE_32F_FAST_TF32": 77,
    "CUBLAS_COMPUTE_64F": 70,
    "CUBLAS_COMPUTE_64F_PEDANTIC": 71,
    "CUBLAS_COMPUTE_32I": 72,
    "CUBLAS_COMPUTE_32I_PEDANTIC": 73,
    "CUBLAS_STATUS_NOT_SUPPORTED": NOT_SUPPORTED,
    "CUBLASLT_EPILOGUE_DEFAULT": 1,
    "CUBLASLT_EPILOGUE_RELU": 2,
    "CUBLASLT_EPILOGUE_RELU_AUX": 130,
    "CUBLASLT_EPILOGUE_BIAS": 4,
    "CUBLASLT_EPILOGUE_RELU_BIAS": 6,
    "CUBLASLT_EPILOGUE_RELU_AUX_BIAS": 134,
    "CUBLASLT_EPILOGUE_DRELU": 136,
    "CUBLASLT_EPILOGUE_DRELU_BGRAD": 152,
    "CUBLASLT_EPILOGUE_GELU": 32,
    "CUBLASLT_EPILOGUE_GELU_AUX": 160,
    "CUBLASLT_EPILOGUE_GELU_BIAS": 36,
    "CUBLASLT_EPILOGUE_GELU_AUX_BIAS": 164,
    "CUBLASLT_EPILOGUE_DGELU": 192,
    "CUBLASLT_EPILOGUE_DGELU_BGRAD": 208,
    "CUBLASLT_EPILOGUE_BGRADA": 256,
    "CUBLASLT_EPILOGUE_BGRADB": 512,
    "CUBLASLT_MATMUL_DESC_POINTER_MODE": 2,
    "CUBLASLT_MATMUL_DESC_TRANSA": 3,
    "CUBLASLT_MATMUL_DESC_TRANSB": 4,
    "CUBLASLT_MATMUL_DESC_EPILOGUE": 7,
    "CUBLASLT_MATMUL_DESC_BIAS_POINTER": 8,
    "CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE": 10,
    "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER": 11,
    "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD": 12,
    "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE": 13,
    "CUBLASLT_MATMUL_DESC_A_SCALE_POINTER": 17,
    "CUBLASLT_MATMUL_DESC_B_SCALE_POINTER": 18,
    "CUBLASLT_MATMUL_DESC_C_SCALE_POINTER": 19,
    "CUBLASLT_MATMUL_DESC_D_SCALE_POINTER": 20,
    "CUBLASLT_MATMUL_DESC_AMAX_D_POINTER": 21,
    "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE": 22,
    "CUBLASLT_MATMUL_DESC_FAST_ACCUM": 25,
    "CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE": 26,
    "CUBLASLT_MATMUL_DESC_A_SCALE_MODE": 31,
    "CUBLASLT_MATMUL_DESC_B_SCALE_MODE": 32,
    "CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3": 1,
    "CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0": 2,
    "CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F": 3,
    "CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST": 4,
    "CUBLASLT_ALGO_CONFIG_ID": 0,
    "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT": 5,
    "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET": 6,
    "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": 1,
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES": 5,
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES": 6,
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES": 7,
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES": 8,
}
"""Values used here, as the headers name them; a test compares them with the headers."""


def attribute(name: str) -> int:
    """An attribute of a product's description: ``attribute("TRANSA")``."""
    return ENUMS[f"CUBLASLT_MATMUL_DESC_{name}"]


ALGORITHM_BYTES: Final = 64
"""Size of ``cublasLtMatmulAlgo_t``: eight words of 64 bits."""

RESULT_BYTES: Final = 96
"""Size of ``cublasLtMatmulHeuristicResult_t``: the algorithm, then at 64 its workspace
(size_t), at 72 a status (int), at 76 a float, and four reserved ints."""
