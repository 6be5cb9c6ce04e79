"""cuTENSOR 2: prototypes and the values in use, from ``cutensor.h``.

Compute types are no numbers but objects that the library exports: ``COMPUTE_PREFIX`` and their
name is that of the symbol.
"""

from __future__ import annotations

from typing import Final

from ....executors.numbers import CUDA_TYPES, DATA_TYPES
from ..wire._operators import BINARY, UNARY

_TENSOR: Final = "ptr int* int"
"""A tensor's description, its modes, and the operator on its elements."""
_OUTPUT: Final = "ptr int*"
_EXECUTE: Final = "ptr ptr ptr"
"""The handle, the plan, and the first scalar."""

PROTOTYPES: Final = {
    "cutensorCreate": "ptr*",
    "cutensorDestroy": "ptr",
    "cutensorReadKernelCacheFromFile": "ptr str",
    "cutensorWriteKernelCacheToFile": "ptr str",
    "cutensorCreateTensorDescriptor": "ptr ptr* uint i64* i64* int uint",
    "cutensorDestroyTensorDescriptor": "ptr",
    "cutensorCreateContraction": f"ptr ptr* {_TENSOR} {_TENSOR} {_TENSOR} {_OUTPUT} ptr",
    "cutensorCreateContractionTrinary": (
        f"ptr ptr* {_TENSOR} {_TENSOR} {_TENSOR} {_TENSOR} {_OUTPUT} ptr"
    ),
    "cutensorCreateReduction": f"ptr ptr* {_TENSOR} {_TENSOR} {_OUTPUT} int ptr",
    "cutensorCreatePermutation": f"ptr ptr* {_TENSOR} {_OUTPUT} ptr",
    "cutensorCreateElementwiseBinary": f"ptr ptr* {_TENSOR} {_TENSOR} {_OUTPUT} int ptr",
    "cutensorCreateElementwiseTrinary": (
        f"ptr ptr* {_TENSOR} {_TENSOR} {_TENSOR} {_OUTPUT} int int ptr"
    ),
    "cutensorDestroyOperationDescriptor": "ptr",
    "cutensorOperationDescriptorGetAttribute": "ptr ptr int ptr size",
    "cutensorCreatePlanPreference": "ptr ptr* int int",
    "cutensorDestroyPlanPreference": "ptr",
    "cutensorCreatePlan": "ptr ptr* ptr ptr u64",
    "cutensorDestroyPlan": "ptr",
    "cutensorPlanGetAttribute": "ptr ptr int ptr size",
    "cutensorContract": f"{_EXECUTE} ptr ptr ptr ptr ptr ptr u64 ptr",
    "cutensorContractTrinary": f"{_EXECUTE} ptr ptr ptr ptr ptr ptr ptr u64 ptr",
    "cutensorReduce": f"{_EXECUTE} ptr ptr ptr ptr ptr u64 ptr",
    "cutensorPermute": f"{_EXECUTE} ptr ptr ptr",
    "cutensorElementwiseBinaryExecute": f"{_EXECUTE} ptr ptr ptr ptr ptr",
    "cutensorElementwiseTrinaryExecute": f"{_EXECUTE} ptr ptr ptr ptr ptr ptr ptr",
}

_STATUSES: Final = {
    "CUTENSOR_STATUS_NOT_INITIALIZED": 1,
    "CUTENSOR_STATUS_ALLOC_FAILED": 3,
    "CUTENSOR_STATUS_INVALID_VALUE": 7,
    "CUTENSOR_STATUS_ARCH_MISMATCH": 8,
    "CUTENSOR_STATUS_MAPPING_ERROR": 11,
    "CUTENSOR_STATUS_EXECUTION_FAILED": 13,
    "CUTENSOR_STATUS_INTERNAL_ERROR": 14,
    "CUTENSOR_STATUS_NOT_SUPPORTED": 15,
    "CUTENSOR_STATUS_LICENSE_ERROR": 16,
    "CUTENSOR_STATUS_CUBLAS_ERROR": 17,
    "CUTENSOR_STATUS_CUDA_ERROR": 18,
    "CUTENSOR_STATUS_INSUFFICIENT_WORKSPACE": 19,
    "CUTENSOR_STATUS_INSUFFICIENT_DRIVER": 20,
    "CUTENSOR_STATUS_IO_ERROR": 21,
}

_OPERATORS: Final = {
    "IDENTITY": 1,
    "SQRT": 2,
    "RELU": 8,
    "CONJ": 9,
    "RCP": 10,
    "SIGMOID": 11,
    "TANH": 12,
    "EXP": 22,
    "LOG": 23,
    "ABS": 24,
    "NEG": 25,
    "SIN": 26,
    "COS": 27,
    "TAN": 28,
    "SINH": 29,
    "COSH": 30,
    "ASIN": 31,
    "ACOS": 32,
    "ATAN": 33,
    "ASINH": 34,
    "ACOSH": 35,
    "ATANH": 36,
    "CEIL": 37,
    "FLOOR": 38,
    "MISH": 39,
    "SWISH": 40,
    "SOFT_PLUS": 41,
    "SOFT_SIGN": 42,
    "ADD": 3,
    "MUL": 5,
    "MAX": 6,
    "MIN": 7,
}

ENUMS: Final = {
    **_STATUSES,
    **{f"CUTENSOR_OP_{name}": value for name, value in _OPERATORS.items()},
    "CUTENSOR_ALGO_DEFAULT_PATIENT": -6,
    "CUTENSOR_ALGO_GETT": -4,
    "CUTENSOR_ALGO_TGETT": -3,
    "CUTENSOR_ALGO_TTGT": -2,
    "CUTENSOR_ALGO_DEFAULT": -1,
    "CUTENSOR_JIT_MODE_NONE": 0,
    "CUTENSOR_JIT_MODE_DEFAULT": 1,
    "CUTENSOR_OPERATION_DESCRIPTOR_SCALAR_TYPE": 1,
    "CUTENSOR_PLAN_REQUIRED_WORKSPACE": 0,
    **DATA_TYPES,
}
"""Values used here, as the headers name them; a test compares them with the headers."""

STATUS_NAMES: Final = {status: name for name, status in _STATUSES.items()}

REFUSALS: Final = frozenset(
    ENUMS[f"CUTENSOR_STATUS_{name}"]
    for name in ("NOT_SUPPORTED", "ARCH_MISMATCH", "INSUFFICIENT_DRIVER")
)
"""The statuses by which the library says that it does not do such an operation here."""

OPERATORS: Final = {
    name: ENUMS[f"CUTENSOR_OP_{vendor}"] for name, vendor in {**UNARY, **BINARY}.items()
}
"""Operators by the names that operations have."""

DEFAULT: Final = ENUMS["CUTENSOR_ALGO_DEFAULT"]
CANDIDATES: Final = tuple(
    ENUMS[f"CUTENSOR_ALGO_{name}"]
    for name in ("DEFAULT", "DEFAULT_PATIENT", "GETT", "TGETT", "TTGT")
)
"""The algorithms that are tried where the fastest is wanted."""

COMPUTE_PREFIX: Final = "CUTENSOR_COMPUTE_DESC_"

SCALAR_TYPES: Final = {value: name for name, value in CUDA_TYPES.items()}
"""The dtype of a number that the library wants for a scalar."""
