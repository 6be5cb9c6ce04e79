"""Descriptor of the library: ``device.dnn``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import Library, LibraryCheck, Requirement
from .graph._run import LANE, PLANNER

if TYPE_CHECKING:
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    x = rng.standard_normal((32, 256), np.float32)
    weight, bias = rng.standard_normal((2, 256), np.float32)
    refs = [await device.put(each) for each in (x, weight, bias)]
    made = await device.dnn.layer_norm(*refs)
    wide = x.astype("f8")
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias
    return await device.get(made), expected


LIBRARY: Final = Library(
    name="dnn",
    summary="neural networks' operations and graphs of them (cuDNN)",
    facade="atomr_accel.libraries.dnn.facade:Dnn",
    lanes=(LANE, PLANNER),
    objects=(
        "atomr_accel.libraries.dnn.graph.user_graph:GraphPlan",
        "atomr_accel.libraries.dnn.attention.paged:PagedKVCache",
        "atomr_accel.libraries.dnn.attention.pages:DurablePages",
        "atomr_accel.libraries.dnn.rnn.facade:Rnn",
    ),
    needs=(
        Requirement("cudnn", "device.dnn", "cuda12", vendor=True),
        Requirement("nvidia-cudnn-frontend", "device.dnn", "cuda12"),
    ),
    check=LibraryCheck("layer_norm of 32 rows, float32", 1e-5, _check),
)
