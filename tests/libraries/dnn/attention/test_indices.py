"""Lengths, ends and tables in device memory that point out of their buffers: the CPU refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ...conformance import MARKS, on_cuda

pytestmark = [*MARKS, pytest.mark.skipif(on_cuda(), reason="cuDNN does not look at them")]


async def zeros(device: Any, *shape: int) -> Any:
    return await device.zeros(shape, np.float16)


async def integers(device: Any, values: Any) -> Any:
    return await device.put(np.array(values, np.int32))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (([4, 9], [4, 4]), r"lengths of queries\[1\] must be from 0 to 8, not 9"),
        (([4, 8], [-1, 8]), r"lengths of keys\[0\] must be from 0 to 8, not -1"),
    ],
)
@pytest.mark.parametrize("backward", [False, True])
async def test_lengths(device: Any, lengths: Any, message: str, *, backward: bool) -> None:
    x = await zeros(device, 2, 8, 4, 16)
    ends = [await integers(device, each) for each in lengths]
    given = {"seqlens_q": ends[0], "seqlens_k": ends[1]}
    with pytest.raises(ValueError, match=message):
        if backward:
            lse = await device.zeros((2, 4, 8), np.float32)
            await device.dnn.flash_attention_grad(x, x, x, x, x, lse, **given)
        else:
            await device.dnn.flash_attention(x, x, x, **given)
    assert device.generation == 1


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([0, 6, 3, 9], r"length of sequences by cu_seqlens_q, \[1\] must be from 0 to 9, not"),
        ([0, 3, 6, 40], r"length of sequences by cu_seqlens_q, \[2\] must be from 0 to 9, not"),
        ([1, 4, 7, 10], r"cu_seqlens_q\[3\] must be from 0 to 9, not 10"),
        ([-3, 0, 3, 9], r"cu_seqlens_q\[0\] must be from 0 to 9, not -3"),
    ],
)
@pytest.mark.parametrize("backward", [False, True])
async def test_ends(device: Any, ends: list[int], message: str, *, backward: bool) -> None:
    x, cu = await zeros(device, 9, 4, 16), await integers(device, ends)
    around = [await device.put(np.full(64, 7, np.float16)) for _ in range(2)]
    with pytest.raises(ValueError, match=message):
        if backward:
            lse = await device.zeros((9, 4), np.float32)
            await device.dnn.flash_attention_varlen_grad(x, x, x, x, x, lse, cu, cu, 64, 64)
        else:
            await device.dnn.flash_attention_varlen(x, x, x, cu, cu, 64, 64)
    assert all([(await device.get(each) == 7).all() for each in around])


@pytest.mark.parametrize(
    ("lengths", "table", "message"),
    [
        ([5, 3], [[0, 6], [1, 2]], r"block_table.*\[.*1\] must be from 0 to 5, not 6"),
        ([5, 3], [[-1, 0], [1, 2]], r"block_table.*\[.*0\] must be from 0 to 5, not -1"),
        ([5, 9], [[0, 3], [1, 2]], r"cache_seqlens\[1\] must be from 0 to 8, not 9"),
        ([-2, 3], [[0, 3], [1, 2]], r"cache_seqlens\[0\] must be from 0 to 8, not -2"),
    ],
)
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("new", [False, True])
async def test_tables(
    device: Any, lengths: Any, table: Any, message: str, queries: int, *, new: bool
) -> None:
    q = await zeros(device, 2, queries, 4, 16)
    caches = [await device.put(np.full((6, 4, 2, 16), 7, np.float16)) for _ in "kv"]
    more = [await zeros(device, 2, queries, 2, 16) for _ in "kv"] if new else []
    given = {
        "cache_seqlens": await integers(device, lengths),
        "block_table": await integers(device, table),
    }
    with pytest.raises(ValueError, match=message):
        await device.dnn.flash_attention_with_kvcache(q, *caches, *more, **given)
    assert all([(await device.get(cache) == 7).all() for cache in caches])
