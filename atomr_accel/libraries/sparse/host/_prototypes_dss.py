"""The functions of cuDSS in use (``cudss.h``)."""

from __future__ import annotations

from typing import Final

from ....executors.numbers import DATA_TYPES

PROTOTYPES: Final = {
    "cudssCreate": "ptr*",
    "cudssDestroy": "ptr",
    "cudssSetStream": "ptr ptr",
    "cudssConfigCreate": "ptr*",
    "cudssConfigDestroy": "ptr",
    "cudssConfigSet": "ptr int ptr size",
    "cudssConfigGet": "ptr int ptr size size*",
    "cudssDataCreate": "ptr ptr*",
    "cudssDataDestroy": "ptr ptr",
    "cudssDataGet": "ptr ptr int ptr size size*",
    "cudssMatrixCreateCsr": "ptr* i64 i64 i64 ptr ptr ptr ptr int int int int int int",
    "cudssMatrixCreateDn": "ptr* i64 i64 i64 ptr int int",
    "cudssMatrixSetCsrPointers": "ptr ptr ptr ptr ptr",
    "cudssMatrixDestroy": "ptr",
    "cudssExecute": "ptr int ptr ptr ptr ptr ptr",
}

STATUSES: Final = {
    "CUDSS_STATUS_SUCCESS": 0,
    "CUDSS_STATUS_NOT_INITIALIZED": 1,
    "CUDSS_STATUS_ALLOC_FAILED": 2,
    "CUDSS_STATUS_INVALID_VALUE": 3,
    "CUDSS_STATUS_NOT_SUPPORTED": 4,
    "CUDSS_STATUS_EXECUTION_FAILED": 5,
    "CUDSS_STATUS_INTERNAL_ERROR": 6,
    "CUDSS_STATUS_IR_FAILED": 7,
}
STATUS_NAMES: Final = {value: name for name, value in STATUSES.items()}
NOT_SUPPORTED: Final = STATUSES["CUDSS_STATUS_NOT_SUPPORTED"]

ENUMS: Final = {
    **STATUSES,
    "CUDSS_CONFIG_REORDERING_ALG": 0,
    "CUDSS_CONFIG_SOLVE_MODE": 4,
    "CUDSS_CONFIG_IR_N_STEPS": 5,
    "CUDSS_CONFIG_PIVOT_TYPE": 7,
    "CUDSS_CONFIG_PIVOT_THRESHOLD": 8,
    "CUDSS_CONFIG_PIVOT_EPSILON": 9,
    "CUDSS_CONFIG_DETERMINISTIC_MODE": 24,
    "CUDSS_DATA_INFO": 0,
    "CUDSS_DATA_NPIVOTS": 2,
    "CUDSS_DATA_DIAG": 8,
    "CUDSS_PHASE_ANALYSIS": 3,
    "CUDSS_PHASE_FACTORIZATION": 4,
    "CUDSS_PHASE_REFACTORIZATION": 8,
    "CUDSS_PHASE_SOLVE": 1008,
    "CUDSS_MTYPE_GENERAL": 0,
    "CUDSS_MTYPE_SYMMETRIC": 1,
    "CUDSS_MTYPE_HERMITIAN": 2,
    "CUDSS_MTYPE_SPD": 3,
    "CUDSS_MTYPE_HPD": 4,
    "CUDSS_MVIEW_FULL": 0,
    "CUDSS_MVIEW_LOWER": 1,
    "CUDSS_MVIEW_UPPER": 2,
    "CUDSS_BASE_ZERO": 0,
    "CUDSS_LAYOUT_COL_MAJOR": 0,
    "CUDSS_REORDERING_ALG_DEFAULT": 0,
    "CUDSS_REORDERING_ALG_BTF_COLAMD": 1,
    "CUDSS_REORDERING_ALG_COLAMD": 2,
    "CUDSS_REORDERING_ALG_AMD": 3,
    "CUDSS_REORDERING_ALG_NESTED_DISSECTION": 4,
    "CUDSS_REORDERING_ALG_NONE": 5,
    "CUDSS_PIVOT_AUTO": 0,
    "CUDSS_PIVOT_NONE": 1,
    "CUDSS_PIVOT_GLOBAL_COL": 2,
    "CUDSS_PIVOT_GLOBAL_ROW": 3,
    "CUDSS_PIVOT_DIAGONAL": 4,
    "CUDSS_PIVOT_LOCAL_BLOCK": 5,
    "CUDSS_PIVOT_BUNCH_KAUFMAN": 6,
    **DATA_TYPES,
    "CUDA_R_64I": 24,
}
"""Values used here, as the headers name them; a test compares them with the headers."""

INDEX_TYPES: Final = {"int32": ENUMS["CUDA_R_32I"], "int64": ENUMS["CUDA_R_64I"]}

OPTIONS: Final = {
    "REORDERING_ALG": "int",
    "SOLVE_MODE": "int",
    "IR_N_STEPS": "int",
    "PIVOT_TYPE": "int",
    "PIVOT_THRESHOLD": "double",
    "PIVOT_EPSILON": "double",
    "DETERMINISTIC_MODE": "int",
}
"""The types of options, which are passed by pointer; a test asks the library for their sizes."""
