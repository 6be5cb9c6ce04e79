"""The arguments of our kernels, as their source has them."""

from __future__ import annotations

import ctypes
from typing import Final, final

POINTERS: Final = (
    *("q", "k", "v", "o", "lse", "begin_q", "begin_k", "count_q", "count_k", "table"),
    *("slopes", "sink", "bias", "scale_q", "scale_k", "scale_v"),
    *("grad", "dq", "dk", "dv", "dbias", "dsink", "delta", "part_o", "part_lse"),
)
STEPS: Final = ("q", "k", "v", "o", "grad", "lse", "bias")
_INTEGERS: Final = (
    *("batch", "heads", "kv_heads", "queries", "keys", "size", "value_size"),
    *("page", "columns", "pages", "added", "before", "after", "bottom_right"),
    *("tiles", "splits", "bias_batch", "bias_heads", "bias_rows"),
    *("q_scales", "k_scales", "v_scales"),
)


class TensorSteps(ctypes.Structure):
    """Elements from one to the next."""

    _fields_ = (*((name, ctypes.c_int64) for name in ("batch", "head", "row")),)


@final
class AttentionProblem(ctypes.Structure):
    """``AttentionProblem`` of attention.cuh."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in POINTERS),
        *((f"{name}_steps", TensorSteps) for name in STEPS),
        ("slopes_batch", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        *((name, ctypes.c_int) for name in _INTEGERS),
        *((name, ctypes.c_float) for name in ("scale", "cap", "kept")),
        ("threshold", ctypes.c_uint32),
    )
