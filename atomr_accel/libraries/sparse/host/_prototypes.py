"""The functions of cuSPARSE in use (``cusparse.h``): the generic ones, and banded solvers."""

from __future__ import annotations

from typing import Final

from ....executors.numbers import DATA_TYPES

LETTERS: Final = {"float32": "S", "float64": "D", "complex64": "C", "complex128": "Z"}
"""Letters of element types in names of functions."""

_SPMV: Final = "ptr int ptr ptr ptr ptr ptr int int"
_SPMM: Final = "ptr int int ptr ptr ptr ptr ptr int int"
_SPSV: Final = "ptr int ptr ptr ptr ptr int int ptr"
_SPSM: Final = "ptr int int ptr ptr ptr ptr int int ptr"
_SPGEMM: Final = "ptr int int ptr ptr ptr int ptr"
_COMPRESSED: Final = "ptr* i64 i64 i64 ptr ptr ptr int int int int"

PROTOTYPES: Final = {
    "cusparseCreate": "ptr*",
    "cusparseDestroy": "ptr",
    "cusparseSetStream": "ptr ptr",
    "cusparseSetPointerMode": "ptr int",
    "cusparseGetVersion": "ptr int*",
    # --- what operands are
    "cusparseCreateCsr": _COMPRESSED,
    "cusparseCreateCsc": _COMPRESSED,
    "cusparseCreateBsr": "ptr* i64 i64 i64 i64 i64 ptr ptr ptr int int int int int",
    "cusparseCreateBlockedEll": "ptr* i64 i64 i64 i64 ptr ptr int int int",
    "cusparseCreateSlicedEll": "ptr* i64 i64 i64 i64 i64 ptr ptr ptr int int int int",
    "cusparseDestroySpMat": "ptr",
    "cusparseSpMatSetAttribute": "ptr int ptr size",
    "cusparseSpMatGetSize": "ptr i64* i64* i64*",
    "cusparseCsrSetPointers": "ptr ptr ptr ptr",
    "cusparseCreateSpVec": "ptr* i64 i64 ptr ptr int int int",
    "cusparseDestroySpVec": "ptr",
    "cusparseCreateDnVec": "ptr* i64 ptr int",
    "cusparseDestroyDnVec": "ptr",
    "cusparseCreateDnMat": "ptr* i64 i64 i64 ptr int int",
    "cusparseDestroyDnMat": "ptr",
    # --- vectors
    "cusparseAxpby": "ptr ptr ptr ptr ptr",
    "cusparseGather": "ptr ptr ptr",
    "cusparseScatter": "ptr ptr ptr",
    "cusparseSpVV_bufferSize": "ptr int ptr ptr ptr int size*",
    "cusparseSpVV": "ptr int ptr ptr ptr int ptr",
    # --- products
    "cusparseSpMV_bufferSize": f"{_SPMV} size*",
    "cusparseSpMV": f"{_SPMV} ptr",
    "cusparseSpMM_bufferSize": f"{_SPMM} size*",
    "cusparseSpMM": f"{_SPMM} ptr",
    "cusparseSDDMM_bufferSize": f"{_SPMM} size*",
    "cusparseSDDMM": f"{_SPMM} ptr",
    "cusparseSpGEMM_createDescr": "ptr*",
    "cusparseSpGEMM_destroyDescr": "ptr",
    "cusparseSpGEMMreuse_workEstimation": f"{_SPGEMM} size* ptr",
    "cusparseSpGEMMreuse_nnz": f"{_SPGEMM} size* ptr size* ptr size* ptr",
    "cusparseSpGEMMreuse_copy": f"{_SPGEMM} size* ptr",
    "cusparseSpGEMMreuse_compute": "ptr int int ptr ptr ptr ptr ptr int int ptr",
    # --- systems
    "cusparseSpSV_createDescr": "ptr*",
    "cusparseSpSV_destroyDescr": "ptr",
    "cusparseSpSV_bufferSize": f"{_SPSV} size*",
    "cusparseSpSV_analysis": f"{_SPSV} ptr",
    "cusparseSpSV_solve": _SPSV,
    "cusparseSpSM_createDescr": "ptr*",
    "cusparseSpSM_destroyDescr": "ptr",
    "cusparseSpSM_bufferSize": f"{_SPSM} size*",
    "cusparseSpSM_analysis": f"{_SPSM} ptr",
    "cusparseSpSM_solve": _SPSM,
    **{
        f"cusparse{letter}{name}": words
        for letter in LETTERS.values()
        for name, words in {
            "gtsv2_bufferSizeExt": "ptr int int ptr ptr ptr ptr int size*",
            "gtsv2": "ptr int int ptr ptr ptr ptr int ptr",
            "gtsv2StridedBatch_bufferSizeExt": "ptr int ptr ptr ptr ptr int int size*",
            "gtsv2StridedBatch": "ptr int ptr ptr ptr ptr int int ptr",
            "gpsvInterleavedBatch_bufferSizeExt": ("ptr int int ptr ptr ptr ptr ptr ptr int size*"),
            "gpsvInterleavedBatch": "ptr int int ptr ptr ptr ptr ptr ptr int ptr",
        }.items()
    },
}

STATUSES: Final = {
    "CUSPARSE_STATUS_SUCCESS": 0,
    "CUSPARSE_STATUS_NOT_INITIALIZED": 1,
    "CUSPARSE_STATUS_ALLOC_FAILED": 2,
    "CUSPARSE_STATUS_INVALID_VALUE": 3,
    "CUSPARSE_STATUS_ARCH_MISMATCH": 4,
    "CUSPARSE_STATUS_MAPPING_ERROR": 5,
    "CUSPARSE_STATUS_EXECUTION_FAILED": 6,
    "CUSPARSE_STATUS_INTERNAL_ERROR": 7,
    "CUSPARSE_STATUS_MATRIX_TYPE_NOT_SUPPORTED": 8,
    "CUSPARSE_STATUS_ZERO_PIVOT": 9,
    "CUSPARSE_STATUS_NOT_SUPPORTED": 10,
    "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES": 11,
}

ENUMS: Final = {
    **STATUSES,
    "CUSPARSE_POINTER_MODE_HOST": 0,
    "CUSPARSE_POINTER_MODE_DEVICE": 1,
    "CUSPARSE_OPERATION_NON_TRANSPOSE": 0,
    "CUSPARSE_OPERATION_TRANSPOSE": 1,
    "CUSPARSE_OPERATION_CONJUGATE_TRANSPOSE": 2,
    "CUSPARSE_INDEX_BASE_ZERO": 0,
    "CUSPARSE_INDEX_32I": 2,
    "CUSPARSE_INDEX_64I": 3,
    "CUSPARSE_ORDER_COL": 1,
    "CUSPARSE_ORDER_ROW": 2,
    "CUSPARSE_SPMAT_FILL_MODE": 0,
    "CUSPARSE_SPMAT_DIAG_TYPE": 1,
    "CUSPARSE_FILL_MODE_LOWER": 0,
    "CUSPARSE_FILL_MODE_UPPER": 1,
    "CUSPARSE_DIAG_TYPE_NON_UNIT": 0,
    "CUSPARSE_DIAG_TYPE_UNIT": 1,
    "CUSPARSE_SPMV_ALG_DEFAULT": 0,
    "CUSPARSE_SPMV_CSR_ALG2": 3,
    "CUSPARSE_SPMV_SELL_ALG1": 5,
    "CUSPARSE_SPMM_ALG_DEFAULT": 0,
    "CUSPARSE_SPMM_CSR_ALG2": 6,
    "CUSPARSE_SPMM_CSR_ALG3": 12,
    "CUSPARSE_SPMM_BLOCKED_ELL_ALG1": 13,
    "CUSPARSE_SDDMM_ALG_DEFAULT": 0,
    "CUSPARSE_SPSV_ALG_DEFAULT": 0,
    "CUSPARSE_SPSM_ALG_DEFAULT": 0,
    "CUSPARSE_SPGEMM_DEFAULT": 0,
    **DATA_TYPES,
}
"""Values used here, as the headers name them; a test compares them with the headers."""

STATUS_NAME: Final = "cusparseGetErrorName"
NOT_SUPPORTED: Final = frozenset(
    STATUSES[f"CUSPARSE_STATUS_{name}"]
    for name in ("ARCH_MISMATCH", "MATRIX_TYPE_NOT_SUPPORTED", "NOT_SUPPORTED")
)
"""The statuses by which the library says that it has no such call."""

INDEX_TYPES: Final = {
    "int32": ENUMS["CUSPARSE_INDEX_32I"],
    "int64": ENUMS["CUSPARSE_INDEX_64I"],
}
