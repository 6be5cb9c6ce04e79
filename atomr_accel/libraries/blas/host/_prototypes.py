"""The functions of cuBLAS in use (``cublas_api.h``); ``_64`` take 64-bit sizes.

Routines that come once per type are rows of ``ROUTINES``: a symbol with a hole for the
type's letter, and the words for its arguments. The words give the prototype, and the
executor looks the arguments up by them, so the two cannot disagree.
"""

from __future__ import annotations

from typing import Final

from ...host._numbers import DATA_TYPES

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

COMPUTES: Final = {
    name.removeprefix("CUBLAS_COMPUTE_"): value
    for name, value in ENUMS.items()
    if name.startswith("CUBLAS_COMPUTE_")
}
"""``cublasComputeType_t`` by name."""

COMPUTE_TYPES: Final = {
    "float16": COMPUTES["32F"],
    "bfloat16": COMPUTES["32F"],
    "float32": COMPUTES["32F"],
    "float64": COMPUTES["64F"],
}
"""How plain products of a dtype are computed; those of 16 bits accumulate in float32."""

WORDS: Final = {
    word: kind
    for kind, words in {
        "i64": ("m", "n", "k", "kl", "ku", "lda", "ldb", "ldc", "incx", "incy", "batch"),
        "int": ("trans", "trans_a", "trans_b", "uplo", "side", "diag", "type", "scale"),
        "ptr": ("alpha", "beta", "cosine", "sine", "a", "b", "c", "x", "y", "result"),
    }.items()
    for word in words
} | dict.fromkeys(("stride_a", "stride_x", "stride_y"), "i64")
"""What the words for arguments are in C; every routine takes the handle first."""

LETTERS: Final = {
    "float32": {"t": "S", "r": "S", "i": "Is", "u": "S{}", "c": "S{}"},
    "float64": {"t": "D", "r": "D", "i": "Id", "u": "D{}", "c": "D{}"},
    "complex64": {"t": "C", "r": "Sc", "i": "Ic", "u": "C{}u", "c": "C{}c"},
    "complex128": {"t": "Z", "r": "Dz", "i": "Iz", "u": "Z{}u", "c": "Z{}c"},
}
"""How a symbol begins for a dtype: t plainly, r with a real result, i with an index;
u and c also end differently where complex numbers come unconjugated and conjugated."""

ROUTINES: Final = {
    # routine: (kind of letter, name, arguments)
    "axpy": ("t", "axpy_v2", "n alpha x incx y incy"),
    "scal": ("t", "scal_v2", "n alpha x incx"),
    "copy": ("t", "copy_v2", "n x incx y incy"),
    "swap": ("t", "swap_v2", "n x incx y incy"),
    "dot": ("u", "dot", "n x incx y incy result"),
    "dotc": ("c", "dot", "n x incx y incy result"),
    "nrm2": ("r", "nrm2_v2", "n x incx result"),
    "asum": ("r", "asum_v2", "n x incx result"),
    "amax": ("i", "amax_v2", "n x incx result"),
    "amin": ("i", "amin_v2", "n x incx result"),
    "rot": ("t", "rot_v2", "n x incx y incy cosine sine"),
    "gemv": ("t", "gemv_v2", "trans m n alpha a lda x incx beta y incy"),
    "gbmv": ("t", "gbmv_v2", "trans m n kl ku alpha a lda x incx beta y incy"),
    "symv": ("t", "symv_v2", "uplo n alpha a lda x incx beta y incy"),
    "trmv": ("t", "trmv_v2", "uplo trans diag n a lda x incx"),
    "trsv": ("t", "trsv_v2", "uplo trans diag n a lda x incx"),
    "ger": ("u", "ger", "m n alpha x incx y incy a lda"),
    "symm": ("t", "symm_v2", "side uplo m n alpha a lda b ldb beta c ldc"),
    "syrk": ("t", "syrk_v2", "uplo trans n k alpha a lda beta c ldc"),
    "syr2k": ("t", "syr2k_v2", "uplo trans n k alpha a lda b ldb beta c ldc"),
    "trmm": ("t", "trmm_v2", "side uplo trans diag m n alpha a lda b ldb c ldc"),
    "trsm": ("t", "trsm_v2", "side uplo trans diag m n alpha a lda c ldc"),
    "geam": ("t", "geam", "trans_a trans_b m n alpha a lda beta b ldb c ldc"),
    "dgmm": ("t", "dgmm", "side m n a lda x incx c ldc"),
}
"""Routines of all four types."""

COMPLEX_ROUTINES: Final = {
    "hemm": ("t", "hemm_v2", "side uplo m n alpha a lda b ldb beta c ldc"),
    "herk": ("t", "herk_v2", "uplo trans n k alpha a lda beta c ldc"),
    "her2k": ("t", "her2k_v2", "uplo trans n k alpha a lda b ldb beta c ldc"),
}
"""Routines of the complex types alone."""

HALF_ROUTINES: Final = {
    "axpy": ("cublasAxpyEx_64", "n alpha scale x type incx y type incy scale"),
    "scal": ("cublasScalEx_64", "n alpha scale x type incx scale"),
    "copy": ("cublasCopyEx_64", "n x type incx y type incy"),
    "swap": ("cublasSwapEx_64", "n x type incx y type incy"),
    "dot": ("cublasDotEx_64", "n x type incx y type incy result type scale"),
    "dotc": ("cublasDotcEx_64", "n x type incx y type incy result type scale"),
    "nrm2": ("cublasNrm2Ex_64", "n x type incx result type scale"),
    "asum": ("cublasAsumEx_64", "n x type incx result type scale"),
    "amax": ("cublasIamaxEx_64", "n x type incx result"),
    "amin": ("cublasIaminEx_64", "n x type incx result"),
    "rot": ("cublasRotEx_64", "n x type incx y type incy cosine sine type scale"),
}
"""Level 1 of the 16-bit types, which compute in float32."""

HALF_GEMV: Final = {
    "float16": "cublasHSHgemvStridedBatched_64",
    "bfloat16": "cublasTSTgemvStridedBatched_64",
}
"""gemv of the 16-bit types exists for batches only."""

HALF_GEMV_ARGUMENTS: Final = (
    "trans m n alpha a lda stride_a x incx stride_x beta y incy stride_y batch"
)

BATCHED: Final = {
    "getrf": "ptr int ptr int ptr ptr int",
    "getrs": "ptr int int int ptr int ptr ptr int ptr int",
    "getri": "ptr int ptr int ptr ptr int ptr int",
    "geqrf": "ptr int int ptr int ptr ptr int",
    "gels": "ptr int int int int ptr int ptr int ptr ptr int",
}
"""Batched factorizations, which have 32-bit sizes only."""


def symbol(kind: str, name: str, dtype: str) -> str:
    """The function of a routine for a dtype."""
    letter = LETTERS[dtype][kind]
    return f"cublas{letter.format(name) + '_v2' if '{' in letter else letter + name}_64"


def prototype(arguments: str) -> str:
    """The parameter types of a routine with these arguments."""
    return " ".join(["ptr", *(WORDS[word] for word in arguments.split())])


PROTOTYPES: Final = {
    "cublasCreate_v2": "ptr*",
    "cublasDestroy_v2": "ptr",
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
        symbol(kind, name, dtype): prototype(arguments)
        for kind, name, arguments in ROUTINES.values()
        for dtype in LETTERS
    },
    **{
        symbol(kind, name, dtype): prototype(arguments)
        for kind, name, arguments in COMPLEX_ROUTINES.values()
        for dtype in ("complex64", "complex128")
    },
    **{name: prototype(arguments) for name, arguments in HALF_ROUTINES.values()},
    **{name: prototype(HALF_GEMV_ARGUMENTS) for name in HALF_GEMV.values()},
    **{
        f"cublas{letters['t']}{routine}Batched": words
        for routine, words in BATCHED.items()
        for letters in LETTERS.values()
    },
}
