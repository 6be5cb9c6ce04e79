"""Descriptor of the library: ``device.flash_attention``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import Library, LibraryCheck
from ._call import LANE

if TYPE_CHECKING:
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """One sequence with a softcap, by the kernels of this package."""
    q, k, v = (rng.standard_normal((1, 100, 2, 64)).astype(np.float16) for _ in range(3))
    refs = [await device.put(each) for each in (q, k, v)]
    made = await device.flash_attention.flash_attn_func(
        refs[0], refs[1], refs[2], softcap=5.0, backend="kernel"
    )
    scores = 5 * np.tanh(np.einsum("bqhd,bkhd->bhqk", q.astype("f8"), k.astype("f8")) / 40)
    shares = np.exp(scores)
    shares /= shares.sum(-1, keepdims=True)
    return await device.get(made), np.einsum("bhqk,bkhd->bqhd", shares, v.astype("f8"))


LIBRARY: Final = Library(
    name="flash_attention",
    summary="attention by flash-attn's names (cuDNN, or kernels of this package)",
    facade="atomr_accel.libraries.flash_attention._facade:FlashAttention",
    lanes=(LANE,),
    uses=("dnn",),
    check=LibraryCheck("100 queries, 2 heads of 64, float16", 4e-3, _check),
)
