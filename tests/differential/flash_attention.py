"""Random cases of ``device.flash_attention``: any mask, any lengths, pages and caches."""

from __future__ import annotations

from typing import Final

import numpy as np

from atomr_accel import Device

from ..libraries.flash_attention.rows import OPERATIONS
from . import dnn

_BY_NAME: Final = {row.name.partition(".")[2]: row for row in reversed(OPERATIONS)}
_NAMES: Final = {
    "dnn.flash_attention": "flash_attn_func",
    "dnn.flash_attention_grad": "flash_attn_backward",
    "dnn.flash_attention_varlen": "flash_attn_varlen_func",
    "dnn.flash_attention_varlen_grad": "flash_attn_varlen_backward",
}


async def check(device: Device, random: np.random.Generator) -> str | None:
    """Check a random case; why it was refused, if it was."""
    if random.random() < 0.2:
        operation = dnn.one(random, OPERATIONS)
        dtype, case = dnn.one(random, operation.dtypes), dnn.one(random, operation.cases)
    else:
        structure = np.random.default_rng(int(random.integers(dnn.STRUCTURES)))
        drawn, dtype, case = dnn.scores(structure)
        operation = _BY_NAME[_NAMES[drawn.name.partition(".")[0] + "." + drawn.name.split(".")[1]]]
    return await dnn.checked(device, operation, dtype, case, int(random.integers(2**32)))
