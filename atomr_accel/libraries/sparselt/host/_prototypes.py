"""The functions of cuSPARSELt in use (``cusparseLt.h``)."""

from __future__ import annotations

from typing import Final

from ....executors.numbers import DATA_TYPES

PROTOTYPES: Final = {
    "cusparseLtInit": "ptr",
    "cusparseLtDestroy": "ptr",
    # --- what operands are
    "cusparseLtDenseDescriptorInit": "ptr ptr i64 i64 i64 uint int int",
    "cusparseLtStructuredDescriptorInit": "ptr ptr i64 i64 i64 uint int int int",
    "cusparseLtMatDescriptorDestroy": "ptr",
    # --- pruned and compressed matrices
    "cusparseLtSpMMAPrune2": "ptr ptr int int ptr ptr int ptr",
    "cusparseLtSpMMAPruneCheck2": "ptr ptr int int ptr ptr ptr",
    "cusparseLtSpMMACompressedSize2": "ptr ptr size* size*",
    "cusparseLtSpMMACompress2": "ptr ptr int int ptr ptr ptr ptr",
    # --- products
    "cusparseLtMatmulDescriptorInit": "ptr ptr int int ptr ptr ptr ptr int",
    "cusparseLtMatmulDescSetAttribute": "ptr ptr int ptr size",
    "cusparseLtMatmulAlgSelectionInit": "ptr ptr ptr int",
    "cusparseLtMatmulAlgSelectionDestroy": "ptr",
    "cusparseLtMatmulAlgGetAttribute": "ptr ptr int ptr size",
    "cusparseLtMatmulAlgSetAttribute": "ptr ptr int ptr size",
    "cusparseLtMatmulPlanInit": "ptr ptr ptr ptr",
    "cusparseLtMatmulPlanDestroy": "ptr",
    "cusparseLtMatmulGetWorkspace": "ptr ptr size*",
    "cusparseLtMatmul": "ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr* int",
}

STATUSES: Final = {
    "CUSPARSE_STATUS_SUCCESS": 0,
    "CUSPARSE_STATUS_NOT_INITIALIZED": 1,
    "CUSPARSE_STATUS_ALLOC_FAILED": 2,
    "CUSPARSE_STATUS_INVALID_VALUE": 3,
    "CUSPARSE_STATUS_ARCH_MISMATCH": 4,
    "CUSPARSE_STATUS_EXECUTION_FAILED": 6,
    "CUSPARSE_STATUS_INTERNAL_ERROR": 7,
    "CUSPARSE_STATUS_NOT_SUPPORTED": 10,
}

ENUMS: Final = {
    **STATUSES,
    "CUSPARSE_OPERATION_NON_TRANSPOSE": 0,
    "CUSPARSE_ORDER_COL": 1,
    "CUSPARSE_ORDER_ROW": 2,
    "CUSPARSE_COMPUTE_32I": 0,
    "CUSPARSE_COMPUTE_32F": 2,
    "CUSPARSELT_SPARSITY_50_PERCENT": 0,
    "CUSPARSELT_PRUNE_SPMMA_TILE": 0,
    "CUSPARSELT_PRUNE_SPMMA_STRIP": 1,
    "CUSPARSELT_MATMUL_ALG_DEFAULT": 0,
    "CUSPARSELT_MATMUL_ALG_CONFIG_ID": 0,
    "CUSPARSELT_MATMUL_ALG_CONFIG_MAX_ID": 1,
    "CUSPARSELT_MATMUL_ACTIVATION_RELU": 0,
    "CUSPARSELT_MATMUL_ACTIVATION_GELU": 3,
    "CUSPARSELT_MATMUL_BIAS_POINTER": 8,
    **DATA_TYPES,
}
"""Values used here, as the headers name them; a test compares them with the headers."""

STATUS_NAME: Final = "cusparseLtGetErrorName"
REFUSALS: Final = frozenset(
    STATUSES[f"CUSPARSE_STATUS_{name}"]
    for name in ("INVALID_VALUE", "ARCH_MISMATCH", "NOT_SUPPORTED")
)
"""By these the library says, of a product that is to be planned, that it has none such."""

STRUCT_BYTES: Final = 512
"""Bytes of each of the library's structs, which callers have memory for."""
STRUCT_ALIGNMENT: Final = 16
