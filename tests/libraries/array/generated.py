"""Runs the kernels that expressions become, on the host, with NumPy's arrays for buffers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from atomr_accel._dtypes import as_dtype
from atomr_accel.arrays import GpuRef
from atomr_accel.libraries.array._plan import BufferLayout, EvaluationPlan, make_plan
from atomr_accel.libraries.array.graph import ExpressionGraph
from atomr_accel.libraries.array.host._codegen import NAME, PRELUDE, body_of
from atomr_accel.libraries.array.wire._program import KernelForm
from atomr_accel.memory import Block, block_at

from ..host_kernels import compile_bodies, on_host

Array = np.ndarray[Any, Any]


class _Memory:
    device = "none"
    dropped: Final[list[object]] = []
    epoch = type("Epoch", (), {"generation": 1})()


class Leaves:
    """Refs that stand for arrays."""

    def __init__(self) -> None:
        self._arrays: dict[Block, Array] = {}

    def put(self, array: Array) -> GpuRef:
        """A ref for an array, which may be a view."""
        dtype = as_dtype(array.dtype)
        memory: Any = _Memory
        strides = None if array.flags.c_contiguous else array.strides
        ref = GpuRef(block_at(memory, 0, 0), array.shape, dtype, array.nbytes, strides)
        self._arrays[ref.block] = array
        return ref

    def pointer(self, ref: GpuRef) -> int:
        """Return the address of the first element of a ref or a view."""
        return self._arrays[ref.block.base].ctypes.data + ref.block.offset


class Case:
    """An expression, its plan, and where its results go."""

    def __init__(self, leaves: Leaves, expressions: Sequence[Any]) -> None:
        self.graph = ExpressionGraph(expressions)
        self.operands = [leaves.pointer(ref) for ref in self.graph.operands]
        self.outputs = [
            _garbage(each.shape, each.dtype)
            for each in (self.graph.values[at] for at in self.graph.results)
        ]
        operands = [
            BufferLayout(ref.shape, ref.strides, ref.dtype, _alignment(pointer))
            for ref, pointer in zip(self.graph.operands, self.operands, strict=True)
        ]
        outputs = [
            BufferLayout(array.shape, array.strides, as_dtype(array.dtype), 256)
            for array in self.outputs
        ]
        self.plan: EvaluationPlan = make_plan(
            self.graph.values, self.graph.results, operands, outputs
        )

    @property
    def forms(self) -> list[KernelForm]:
        """Its kernels."""
        return [each.form for each in self.plan.launches]

    def run(self, launches: Sequence[Any]) -> list[Array]:
        """Launch its kernels; its results."""
        scratch = [_garbage((count,), dtype) for count, dtype in self.plan.scratch]
        buffers = {
            "operand": self.operands,
            "output": [array.ctypes.data for array in self.outputs],
            "scratch": [array.ctypes.data for array in scratch],
        }
        constants = [
            struct.pack(f"={len(words)}I{len(words) % 2 * 4}x", *words)
            for words in self.graph.words
        ]
        for launch, each in zip(launches, self.plan.launches, strict=True):
            pointers = [
                0 if place is None else buffers[place.kind][place.number] for place in each.places
            ]
            words = struct.pack(f"={len(pointers)}Q", *pointers)
            words += struct.pack(f"={len(each.numbers)}q", *each.numbers)
            words += b"".join(constants[at] for at in each.constants)
            # A driver refuses a launch with more words than the kernel takes.
            assert f"u64 words[{max(1, len(words) // 8)}];" in body_of(each.form)
            launch(words, each.blocks, each.form.threads)
        return self.outputs


def run_all(cases: Sequence[Case], folder: Path) -> list[list[Array]]:
    """The results of some expressions, whose kernels are compiled together."""
    forms = list(dict.fromkeys(form for case in cases for form in case.forms))
    compiled = compile_bodies(on_host(PRELUDE), [body_of(form) for form in forms], NAME, folder)
    by_form = dict(zip(forms, compiled, strict=True))
    return [case.run([by_form[form] for form in case.forms]) for case in cases]


def _garbage(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    nbytes = int(np.prod(shape, dtype=int)) * dtype.itemsize
    # Aligned as device memory is.
    memory = np.full(nbytes + 256, 0xA5, np.uint8)
    start = -memory.ctypes.data % 256
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def aligned(array: Array) -> Array:
    """A copy that begins where a device's buffer would."""
    copy = _garbage(array.shape, array.dtype)
    copy[...] = array
    return copy


def _alignment(place: int) -> int:
    return min(256, place & -place) if place else 256
