"""The functions of cuSOLVER in use (``cusolverDn.h``).

Those with an X have 64-bit sizes and take the dtype as an argument; a table of each one's own
arguments gives the prototypes of the function and of its ``_bufferSize``. The others have a letter
for the dtype, and 32-bit sizes.
"""

from __future__ import annotations

from typing import Final

from ....executors.numbers import DATA_TYPES

STATUSES: Final = {
    "CUSOLVER_STATUS_SUCCESS": 0,
    "CUSOLVER_STATUS_NOT_INITIALIZED": 1,
    "CUSOLVER_STATUS_ALLOC_FAILED": 2,
    "CUSOLVER_STATUS_INVALID_VALUE": 3,
    "CUSOLVER_STATUS_ARCH_MISMATCH": 4,
    "CUSOLVER_STATUS_MAPPING_ERROR": 5,
    "CUSOLVER_STATUS_EXECUTION_FAILED": 6,
    "CUSOLVER_STATUS_INTERNAL_ERROR": 7,
    "CUSOLVER_STATUS_MATRIX_TYPE_NOT_SUPPORTED": 8,
    "CUSOLVER_STATUS_NOT_SUPPORTED": 9,
    "CUSOLVER_STATUS_ZERO_PIVOT": 10,
    "CUSOLVER_STATUS_INVALID_LICENSE": 11,
    "CUSOLVER_STATUS_IRS_INTERNAL_ERROR": 20,
    "CUSOLVER_STATUS_IRS_NOT_SUPPORTED": 21,
    "CUSOLVER_STATUS_IRS_OUT_OF_RANGE": 22,
    "CUSOLVER_STATUS_IRS_MATRIX_SINGULAR": 30,
    "CUSOLVER_STATUS_INVALID_WORKSPACE": 31,
}

ENUMS: Final = {
    **STATUSES,
    "CUSOLVER_EIG_MODE_NOVECTOR": 0,
    "CUSOLVER_EIG_MODE_VECTOR": 1,
    "CUSOLVER_EIG_RANGE_I": 1002,
    "CUSOLVER_EIG_TYPE_1": 1,
    "CUSOLVER_EIG_TYPE_2": 2,
    "CUSOLVER_EIG_TYPE_3": 3,
    "CUSOLVER_DETERMINISTIC_RESULTS": 1,
    "CUSOLVER_ALLOW_NON_DETERMINISTIC_RESULTS": 2,
    "CUBLAS_FILL_MODE_LOWER": 0,
    "CUBLAS_FILL_MODE_UPPER": 1,
    "CUBLAS_OP_N": 0,
    "CUBLAS_OP_T": 1,
    "CUBLAS_OP_C": 2,
    **DATA_TYPES,
}
"""Values used here, as the headers name them; a test compares them with the headers."""

STATUS_NAMES: Final = {status: name for name, status in STATUSES.items()}

REFUSALS: Final = frozenset(
    STATUSES[f"CUSOLVER_STATUS_{name}"]
    for name in ("ARCH_MISMATCH", "MATRIX_TYPE_NOT_SUPPORTED", "NOT_SUPPORTED", "IRS_NOT_SUPPORTED")
)
"""The statuses by which the library says that it does no such thing here."""

SINGULAR: Final = STATUSES["CUSOLVER_STATUS_IRS_MATRIX_SINGULAR"]

LETTERS: Final = {"float32": "S", "float64": "D", "complex64": "C", "complex128": "Z"}

LOWER_PRECISIONS: Final = {
    "float32": {"tfloat32": "X", "bfloat16": "B", "float16": "H"},
    "float64": {"float32": "S", "tfloat32": "X", "bfloat16": "B", "float16": "H"},
    "complex64": {"tfloat32": "Y", "bfloat16": "E", "float16": "K"},
    "complex128": {"float32": "C", "tfloat32": "Y", "bfloat16": "E", "float16": "K"},
}
"""The letter of the precision that a dtype is factorized in, to be refined."""

WIDE: Final = {
    "Xpotrf": "int i64 int ptr i64 int",
    "Xgeqrf": "i64 i64 int ptr i64 int ptr int",
    "Xsyevd": "int int i64 int ptr i64 int ptr int",
    "Xsyevdx": "int int int i64 int ptr i64 ptr ptr i64 i64 i64* int ptr int",
    "Xgeev": "int int i64 int ptr i64 int ptr int ptr i64 int ptr i64 int",
    "Xgesvd": "char char i64 i64 int ptr i64 int ptr int ptr i64 int ptr i64 int",
    "Xgesvdp": "int int i64 i64 int ptr i64 int ptr int ptr i64 int ptr i64 int",
    "Xgesvdr": "char char i64 i64 i64 i64 i64 int ptr i64 int ptr int ptr i64 int ptr i64 int",
}
"""Functions with the arguments that both they and their ``_bufferSize`` have."""

BY_LETTER: Final = {
    "orgqr": "int int int ptr int ptr",
    "syevj": "int int int ptr int ptr",
    "sygvd": "int int int int ptr int ptr int ptr",
    "gesvdj": "int int int int ptr int ptr ptr int ptr int",
    "gesvdjBatched": "int int int ptr int ptr ptr int ptr int",
    "syevjBatched": "int int int ptr int ptr",
    "gesvdaStridedBatched": "int int int int ptr int i64 ptr i64 ptr int i64 ptr int i64",
}
"""Arguments of functions with a letter; elements of workspace follow."""

TAILS: Final = {
    "Xgesvdp": ("", "ptr"),
    "syevj": ("ptr", "ptr"),
    "gesvdj": ("ptr", "ptr"),
    "gesvdjBatched": ("ptr int", "ptr int"),
    "syevjBatched": ("ptr int", "ptr int"),
    "gesvdaStridedBatched": ("int", "ptr int"),
}
"""Arguments after the workspace: of ``_bufferSize``, and of the function."""

_COMPLEX_NAMES: Final = {
    "orgqr": "ungqr",
    "syevj": "heevj",
    "syevjBatched": "heevjBatched",
    "sygvd": "hegvd",
}


def symbol(name: str, dtype: str) -> str:
    """The function for a dtype."""
    if dtype.startswith("complex"):
        name = _COMPLEX_NAMES.get(name, name)
    return f"cusolverDn{LETTERS[dtype]}{name}"


def _wide() -> dict[str, str]:
    rows = {}
    for name, words in WIDE.items():
        rows[f"cusolverDn{name}_bufferSize"] = f"ptr ptr {words} size* size*"
        tail = TAILS.get(name, ("", ""))[1]
        rows[f"cusolverDn{name}"] = f"ptr ptr {words} ptr size ptr size ptr {tail}".strip()
    return rows


def _by_letter() -> dict[str, str]:
    rows = {}
    for name, words in BY_LETTER.items():
        asked, run = TAILS.get(name, ("", ""))
        for dtype in LETTERS:
            function = symbol(name, dtype)
            rows[f"{function}_bufferSize"] = f"ptr {words} int* {asked}".strip()
            rows[function] = f"ptr {words} ptr int ptr {run}".strip()
    return rows


def _refined() -> dict[str, str]:
    rows = {}
    for dtype, letters in LOWER_PRECISIONS.items():
        for letter in letters.values():
            for name, words in {
                "gesv": "int int ptr int ptr ptr int ptr int ptr",
                "gels": "int int int ptr int ptr int ptr int ptr",
            }.items():
                function = f"cusolverDn{LETTERS[dtype]}{letter}{name}"
                rows[f"{function}_bufferSize"] = f"ptr {words} size*"
                rows[function] = f"ptr {words} size int* ptr"
    return rows


PROTOTYPES: Final = {
    "cusolverDnCreate": "ptr*",
    "cusolverDnDestroy": "ptr",
    "cusolverDnSetStream": "ptr ptr",
    "cusolverDnSetDeterministicMode": "ptr int",
    "cusolverDnCreateParams": "ptr*",
    "cusolverDnDestroyParams": "ptr",
    "cusolverDnCreateSyevjInfo": "ptr*",
    "cusolverDnDestroySyevjInfo": "ptr",
    "cusolverDnCreateGesvdjInfo": "ptr*",
    "cusolverDnDestroyGesvdjInfo": "ptr",
    "cusolverDnXgetrf_bufferSize": "ptr ptr i64 i64 int ptr i64 int size* size*",
    "cusolverDnXgetrf": "ptr ptr i64 i64 int ptr i64 ptr int ptr size ptr size ptr",
    "cusolverDnXgetrs": "ptr ptr int i64 i64 int ptr i64 ptr int ptr i64 ptr",
    **{f"cusolverDn{letter}potrfBatched": "ptr int int ptr int ptr int" for letter in "SDCZ"},
    **_wide(),
    **_by_letter(),
    **_refined(),
}
