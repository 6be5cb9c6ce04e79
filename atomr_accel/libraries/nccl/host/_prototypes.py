"""The functions of NCCL in use (``nccl.h``)."""

from __future__ import annotations

import ctypes
import struct
from typing import Final

PROTOTYPES: Final = {
    "ncclGetVersion": "int*",
    "ncclGetUniqueId": "ptr",
    "ncclCommInitRankConfig": "ptr* int id128 int ptr",
    "ncclCommSplit": "ptr int int ptr* ptr",
    "ncclCommGetAsyncError": "ptr int*",
    "ncclCommAbort": "ptr",
    "ncclGroupStart": "",
    "ncclGroupEnd": "",
    "ncclAllReduce": "ptr ptr size int int ptr ptr",
    "ncclReduce": "ptr ptr size int int int ptr ptr",
    "ncclBroadcast": "ptr ptr size int int ptr ptr",
    "ncclAllGather": "ptr ptr size int ptr ptr",
    "ncclReduceScatter": "ptr ptr size int int ptr ptr",
    "ncclSend": "ptr size int int ptr ptr",
    "ncclRecv": "ptr size int int ptr ptr",
    "ncclRedOpCreatePreMulSum": "int* ptr int int ptr",
    "ncclRedOpDestroy": "int ptr",
}

STATUSES: Final = {
    "ncclSuccess": 0,
    "ncclUnhandledCudaError": 1,
    "ncclSystemError": 2,
    "ncclInternalError": 3,
    "ncclInvalidArgument": 4,
    "ncclInvalidUsage": 5,
    "ncclRemoteError": 6,
    "ncclInProgress": 7,
}
STATUS_NAMES: Final = {status: name for name, status in STATUSES.items()}
"""The library has sentences for them, no names."""

_TYPES: Final = {
    "int8": ("ncclInt8", 0),
    "uint8": ("ncclUint8", 1),
    "int32": ("ncclInt32", 2),
    "uint32": ("ncclUint32", 3),
    "int64": ("ncclInt64", 4),
    "uint64": ("ncclUint64", 5),
    "float16": ("ncclFloat16", 6),
    "float32": ("ncclFloat32", 7),
    "float64": ("ncclFloat64", 8),
    "bfloat16": ("ncclBfloat16", 9),
    "float8_e4m3fn": ("ncclFloat8e4m3", 10),
    "float8_e5m2": ("ncclFloat8e5m2", 11),
}

TYPES: Final = {
    **{dtype: number for dtype, (_, number) in _TYPES.items()},
    "complex64": 7,  # of twice as many elements
    "complex128": 8,
}
"""``ncclDataType_t`` of a dtype that reductions take."""

BYTES: Final = 1
"""``ncclUint8``: elements that are only moved travel as bytes."""

REDUCTIONS: Final = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
"""``ncclRedOp_t`` of a reduction."""

ENUMS: Final = {
    **dict(_TYPES.values()),
    **{f"nccl{name.capitalize()}": number for name, number in REDUCTIONS.items()},
    **STATUSES,
    "ncclScalarHostImmediate": 1,
    "NCCL_UNIQUE_ID_BYTES": 128,
}
"""Values used here, as the header names them; a test compares them with the header."""

IN_PROGRESS: Final = ENUMS["ncclInProgress"]
HOST_IMMEDIATE: Final = ENUMS["ncclScalarHostImmediate"]

CONFIG_BYTES: Final = 48
"""``sizeof(ncclConfig_t)`` of release 2.18. Later releases accept this size."""
CONFIG_BLOCKING_AT: Final = 16

_MAGIC: Final = 0xCAFEBEEF
_VERSION: Final = 21800
_UNDEFINED: Final = -(2**31)


def config(*, blocking: bool) -> ctypes.Array[ctypes.c_char]:
    """A configuration (``ncclConfig_t``). A communicator shares its flags with its split ones."""
    undefined = (_UNDEFINED,) * 3
    packed = struct.pack(
        "@QIIiiiiQii", CONFIG_BYTES, _MAGIC, _VERSION, blocking, *undefined, 0, 1, _UNDEFINED
    )
    return ctypes.create_string_buffer(packed, len(packed))
