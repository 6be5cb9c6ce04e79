"""The functions of cuBLAS in use (``cublas_api.h``); ``_64`` take 64-bit sizes.

Those of levels 1 to 3 are in ``wire/_rows``: a name that takes the type's letter, and the
words for its arguments. The words give the prototype, and the executor looks the arguments up
by them, so the two cannot disagree.
"""

from __future__ import annotations

from typing import Final

from ....executors.numbers import DATA_TYPES
from ..wire._rows import ROWS

STATUS_NAME: Final = "cublasGetStatusName"
NOT_SUPPORTED: Final = 15

ENUMS: Final = {
    **DATA_TYPES,
    "CUBLAS_COMPUTE_16F": 64,
    "CUBLAS_COMPUTE_16F_PEDANTIC": 65,
    "CUBLAS_COMPUTE_32F": 68,
    "CUBLAS_COMPUTE_32F_PEDANTIC": 69,
    "CUBLAS_COMPUTE_32F_FAST_16F": 74,
    "CUBLAS_COMPUTE_32F_FAST_16BF": 75,
    "CUBLAS_COMPUTE_32F_FAST_TF32": 77,
    "CUBLAS_COMPUTE_32F_EMULATED_16BFX9": 78,
    "CUBLAS_COMPUTE_64F": 70,
    "CUBLAS_COMPUTE_64F_PEDANTIC": 71,
    "CUBLAS_COMPUTE_32I": 72,
    "CUBLAS_COMPUTE_32I_PEDANTIC": 73,
    "CUBLAS_OP_N": 0,
    "CUBLAS_OP_T": 1,
    "CUBLAS_OP_C": 2,
    "CUBLAS_FILL_MODE_LOWER": 0,
    "CUBLAS_FILL_MODE_UPPER": 1,
    "CUBLAS_DIAG_NON_UNIT": 0,
    "CUBLAS_DIAG_UNIT": 1,
    "CUBLAS_SIDE_LEFT": 0,
    "CUBLAS_SIDE_RIGHT": 1,
    "CUBLAS_POINTER_MODE_HOST": 0,
    "CUBLAS_POINTER_MODE_DEVICE": 1,
    "CUBLAS_GEMM_DEFAULT": -1,
    "CUBLAS_STATUS_NOT_SUPPORTED": NOT_SUPPORTED,
}
"""Values used here, as the headers name them; a test compares them with the headers."""

OP_N: Final = ENUMS["CUBLAS_OP_N"]
OP_T: Final = ENUMS["CUBLAS_OP_T"]
OP_C: Final = ENUMS["CUBLAS_OP_C"]
GEMM_DEFAULT: Final = ENUMS["CUBLAS_GEMM_DEFAULT"]

EMULATED: Final = {"64F_EMULATED_FIXEDPOINT": 79}
"""Compute types that releases before ``EMULATES`` do not know."""

EMULATES: Final = 130_100
"""The first release, as it numbers itself, that multiplies float64 in integers (13.1)."""

COMPUTES: Final = EMULATED | {
    name.removeprefix("CUBLAS_COMPUTE_"): value
    for name, value in ENUMS.items()
    if name.startswith("CUBLAS_COMPUTE_")
}
"""``cublasComputeType_t`` by name."""

WORDS: Final = {
    word: kind
    for kind, words in {
        "i64": ("m", "n", "k", "kl", "ku", "lda", "ldb", "ldc", "incx", "incy", "batch"),
        "int": ("trans", "trans_a", "trans_b", "uplo", "side", "diag", "type", "scale"),
        "ptr": (
            *("alpha", "beta", "cosine", "sine", "a", "ap", "b", "c", "x", "y", "result"),
            *("param", "d1", "d2", "x1", "y1"),
        ),
    }.items()
    for word in words
} | dict.fromkeys(("stride_a", "stride_x", "stride_y"), "i64")
"""C type of each argument word; every routine takes the handle first."""

LETTERS: Final = {
    "float32": {"t": "S", "r": "S", "i": "Is", "u": "S{}", "c": "S{}"},
    "float64": {"t": "D", "r": "D", "i": "Id", "u": "D{}", "c": "D{}"},
    "complex64": {"t": "C", "r": "Sc", "i": "Ic", "u": "C{}u", "c": "C{}c"},
    "complex128": {"t": "Z", "r": "Dz", "i": "Iz", "u": "Z{}u", "c": "Z{}c"},
}
"""Beginning of a symbol for a dtype: t is the plain form, r has a real result, i an index. With u
and c the name also ends differently, for unconjugated and conjugated complex numbers.
"""

HALF_GEMV: Final = {
    "float16": "cublasHSHgemvStridedBatched_64",
    "bfloat16": "cublasTSTgemvStridedBatched_64",
}
"""gemv of the 16-bit types exists for batches only."""

HALF_GEMV_BATCHED: Final = {
    "float16": "cublasHSHgemvBatched_64",
    "bfloat16": "cublasTSTgemvBatched_64",
}

GEMV_STRIDED: Final = "trans m n alpha a lda stride_a x incx stride_x beta y incy stride_y batch"
GEMV_BATCHED: Final = "trans m n alpha a lda x incx beta y incy batch"

BATCHED: Final = {
    "getrf": "ptr int ptr int ptr ptr int",
    "getrs": "ptr int int int ptr int ptr ptr int ptr int",
    "getri": "ptr int ptr int ptr ptr int ptr int",
    "geqrf": "ptr int int ptr int ptr ptr int",
    "gels": "ptr int int int int ptr int ptr int ptr ptr int",
    "trsm": "ptr int int int int int int ptr ptr int ptr int int",
    "matinv": "ptr int ptr int ptr int ptr int",
}
"""Functions that take stacks of matrices by pointer, with 32-bit sizes only."""


COUNTS_NOTHING: Final = ("rotg_v2", "rotmg_v2")
"""Functions that take no sizes, and so are there once."""


def symbol(kind: str, name: str, dtype: str) -> str:
    """The function of a routine for a dtype."""
    letter = LETTERS[dtype][kind]
    begun = letter.format(name) + "_v2" if "{" in letter else letter + name
    return f"cublas{begun}{'' if name in COUNTS_NOTHING else '_64'}"


def half_symbol(name: str) -> str:
    """The function of a routine for the 16-bit types, which compute in float32."""
    return f"cublas{name}_64"


def prototype(arguments: str) -> str:
    """The parameter types of a routine with these arguments."""
    return " ".join(["ptr", *(WORDS[word] for word in arguments.split())])


PROTOTYPES: Final = {
    "cublasCreate_v2": "ptr*",
    "cublasDestroy_v2": "ptr",
    "cublasGetVersion_v2": "ptr int*",
    "cublasSetStream_v2": "ptr ptr",
    "cublasSetWorkspace_v2": "ptr ptr size",
    "cublasSetPointerMode_v2": "ptr int",
    "cublasGemmEx_64": (
        "ptr int int i64 i64 i64 ptr ptr int i64 ptr int i64 ptr ptr int i64 int int"
    ),
    "cublasGemmStridedBatchedEx_64": (
        "ptr int int i64 i64 i64 ptr ptr int i64 i64 ptr int i64 i64 ptr ptr int i64 i64 i64 "
        "int int"
    ),
    "cublasGemmBatchedEx_64": (
        "ptr int int i64 i64 i64 ptr ptr int i64 ptr int i64 ptr ptr int i64 i64 int int"
    ),
    "cublasGemmGroupedBatchedEx_64": (
        "ptr ptr ptr ptr ptr ptr ptr ptr int ptr ptr int ptr ptr ptr int ptr i64 ptr int"
    ),
    **{
        symbol(row.vendor[0], row.vendor[1], dtype): prototype(row.vendor[2])
        for row in ROWS.values()
        if row.vendor is not None
        for dtype in row.dtypes
        if dtype in LETTERS
    },
    **{half_symbol(row.half[0]): prototype(row.half[1]) for row in ROWS.values() if row.half},
    **{name: prototype(GEMV_STRIDED) for name in HALF_GEMV.values()},
    **{name: prototype(GEMV_BATCHED) for name in HALF_GEMV_BATCHED.values()},
    **{
        f"cublas{letters['t']}{name}": prototype(arguments)
        for name, arguments in (
            ("gemvStridedBatched_64", GEMV_STRIDED),
            ("gemvBatched_64", GEMV_BATCHED),
        )
        for letters in LETTERS.values()
    },
    **{
        f"cublas{letters['t']}{routine}Batched": words
        for routine, words in BATCHED.items()
        for letters in LETTERS.values()
    },
}
