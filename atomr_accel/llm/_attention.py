"""Attention of a step's rows to pages, by the kernels that fit the model and the device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np

from .. import CompileOptions
from .wire import tensor_attention as tensor
from .wire.kernels import SOURCE, THREADS, TWINS

if TYPE_CHECKING:
    from .. import Batch, Device, GpuRef, Kernel, Recording
    from ._config import LlamaConfig
    from ._step_inputs import StepInputs

KINDS: Final = {"float32": 0, "float16": 1, "bfloat16": 2}
"""Numbers that kernels have for dtypes."""

_MOST_HEADS: Final = 8
"""Heads of queries that a block of the kernel for any numbers computes, at most."""

_TENSOR_SIZES: Final = (64, 128)
"""Sizes of a head that the kernels for tensor cores take."""

_TENSOR_CORES: Final = (8, 0)
"""First compute capability whose tensor cores have the instruction."""

_BUSY: Final = 2048
"""Warps that keep a device busy. Where tiles are fewer, each chunk of keys gets a warp."""

_MOST_PARTS: Final = 256 << 20
"""Bytes of parts of sums, at most."""


class AttentionRows(NamedTuple):
    """Rows of a step, on the device.

    Attributes:
        inputs: the sizes.
        positions: the position of each row, int32; -1 for none.
        owners: the row of ``tables`` of each.
        tables: pages of each sequence.
    """

    inputs: StepInputs
    positions: GpuRef
    owners: GpuRef
    tables: GpuRef


@final
class PagedAttention:
    """Kernels of a model, and how they are launched."""

    def __init__(
        self,
        config: LlamaConfig,
        pages: int,
        page_size: int,
        kernels: dict[str, Kernel[Any]],
        tensor_kernels: dict[str, Kernel[Any]] | None,
    ) -> None:
        self.kernels: Final = kernels
        self._config: Final = config
        self._pages: Final = pages
        self._page_size: Final = page_size
        self._tensor_kernels: Final = tensor_kernels
        self._block: Final = _heads_of_block(config)

    @classmethod
    async def compile(
        cls, device: Device, config: LlamaConfig, dtype: np.dtype[Any], pages: int, page_size: int
    ) -> PagedAttention:
        """Compile all kernels of layers."""
        kind, group = KINDS[dtype.name], config.heads // config.kv_heads
        macros = {"KIND": kind, "SIZE": config.head_size, "HEADS": _heads_of_block(config)}
        module = await device.nvrtc.compile_module(
            SOURCE, [*TWINS], cpu=TWINS, options=CompileOptions(define=macros)
        )
        kernels = {name: await module.kernel(name) for name in TWINS}
        if (
            device.backend == "cpu"
            or device.info.compute_capability < _TENSOR_CORES
            or kind == KINDS["float32"]
            or config.head_size not in _TENSOR_SIZES
            or group > tensor.TILE
        ):
            return cls(config, pages, page_size, kernels, None)
        macros = {"KIND": kind, "SIZE": config.head_size, "GROUP": group, "PAGE": page_size}
        module = await device.nvrtc.compile_module(
            tensor.SOURCE, tensor.NAMES, options=CompileOptions(define=macros)
        )
        others = {name: await module.kernel(name) for name in tensor.NAMES}
        return cls(config, pages, page_size, kernels, others)

    def launch(
        self,
        batch: Batch | Recording,
        out: GpuRef,
        q: GpuRef,
        k: GpuRef,
        v: GpuRef,
        rows: AttentionRows,
        window: int,
    ) -> None:
        """Attend rows of ``q`` to their sequences, up to their own positions."""
        inputs, positions, owners, tables = rows
        config, total, columns = self._config, inputs.total, inputs.columns
        heads, kv_heads, scale = config.heads, config.kv_heads, 1 / math.sqrt(config.head_size)
        kernels = self._tensor_kernels
        if kernels is None:
            batch.launch(
                *(self.kernels["attend"], total * (heads // self._block), THREADS, out, q, k, v),
                *(positions, owners, tables, total, heads, kv_heads, columns),
                *(self._page_size, self._pages, window, scale),
            )
            return
        together = 1 if inputs.single else tensor.TILE // (heads // kv_heads)
        tiles = -(-total // together)
        chunks = -(-columns * self._page_size // tensor.CHUNK)
        numbers = total * heads * chunks * (config.head_size + 2)
        blocks, threads = -(-tiles // tensor.WARPS), 32 * tensor.WARPS
        scale *= math.log2(math.e)
        sizes = total, kv_heads, columns, self._pages, window
        if chunks == 1 or tiles * kv_heads >= _BUSY or 4 * numbers > _MOST_PARTS:
            batch.launch(
                *(kernels["attend_rows"], (blocks, kv_heads), threads, out, q, k, v),
                *(positions, owners, tables, *sizes, together, scale),
            )
            return
        parts = batch.empty((numbers,), np.float32)
        blocks = -(-tiles * kv_heads // tensor.WARPS)
        batch.launch(
            *(kernels["attend_chunks"], (blocks, chunks), threads, parts, q, k, v),
            *(positions, owners, tables, *sizes, chunks, together, scale),
        )
        batch.launch(
            *(kernels["merge"], -(-total * heads // tensor.WARPS), threads, out, parts, positions),
            *(total, heads, columns, window, chunks),
        )


def _heads_of_block(config: LlamaConfig) -> int:
    """Return the number of heads of queries that a block computes: a divisor of a group's."""
    group = config.heads // config.kv_heads
    return max(each for each in range(1, _MOST_HEADS + 1) if group % each == 0)
