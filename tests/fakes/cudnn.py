"""cuDNN's frontend in NumPy, behind the same names: what runs ``CudaDnn`` without a GPU.

A graph of it is built by the same calls as a real one and knows only what these said: shapes,
strides, types and uids. So what our executor makes of a graph, a plan and a run is checked on
any machine. It refuses the graphs that a test configures. ``FakeCudaDnn`` is an executor for the
CPU backend.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_accel._dtypes import DTYPES
from atomr_accel.backends.cpu.host.context import CpuContext
from atomr_accel.libraries.dnn.graph._run import LANE, PLANNER
from atomr_accel.libraries.dnn.host._cpu import FUNCTIONS, interpret
from atomr_accel.libraries.dnn.host._prototypes import DATA_TYPES
from atomr_accel.libraries.dnn.wire._nodes import NODES, REDUCTIONS

from .lapack import memory
from .vendor import FakeContext, FakeCuda

Array = np.ndarray[Any, Any]

DTYPE_OF = {vendor: DTYPES[name] for name, vendor in DATA_TYPES.items()}


class cudnnGraphNotSupportedError(Exception):  # noqa: N801 - the vendor's name
    pass


class FakeTensor:
    """A tensor's attributes in a graph."""

    def __init__(self, **known: Any) -> None:
        self.dim: list[int] = known.get("dim", [])
        self.stride: list[int] = known.get("stride", [])
        self.type: str = known.get("data_type", "")
        self.uid: int = known.get("uid", -1)
        self.number: bool = known.get("is_pass_by_value", False)
        self.written = False

    def set_dim(self, dim: list[int]) -> FakeTensor:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> FakeTensor:
        self.stride = stride
        return self

    def set_uid(self, uid: int) -> FakeTensor:
        self.uid = uid
        return self

    def set_output(self, written: bool) -> FakeTensor:
        self.written = written
        return self

    def set_data_type(self, name: str) -> FakeTensor:
        self.type = name
        return self

    def view(self, pointer: int) -> Array:
        dtype = DTYPE_OF[self.type]
        extent = 1 + sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True))
        if dtype.kind == "b" and not self.number:  # single bits, which are only read
            bits = np.unpackbits(memory(pointer, -(-extent // 8)), bitorder="little")
            return np.ndarray(self.dim, np.bool_, bits, 0, self.stride)
        strides = [step * dtype.itemsize for step in self.stride]
        return np.ndarray(self.dim, dtype, memory(pointer, extent * dtype.itemsize), 0, strides)


class FakeFrontend:
    """The module ``cudnn``.

    Attributes:
        refused: refuses a graph, by the names of its nodes.
        unbuildable: likewise, but not before it is built.
        graphs: the serialised graphs.
        runs: the candidates that were run, by position.
        candidates: how many a graph has.
        engines: the engines of the first of them.
        arrays: how many runs had their pointers in an array.
        launches: how often captured runs were launched.
        uncapturable: the status of captured work.
    """

    __version__ = "1.0"

    def __init__(self) -> None:
        self.data_type = SimpleNamespace(**{name: name for name in DATA_TYPES.values()})
        self.norm_forward_phase = SimpleNamespace(TRAINING="TRAINING", INFERENCE="INFERENCE")
        self.reduction_mode = SimpleNamespace(**{mode: mode for mode in REDUCTIONS})
        self.diagonal_alignment = SimpleNamespace(TOP_LEFT="TOP_LEFT", BOTTOM_RIGHT="BOTTOM_RIGHT")
        self.heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
        self.numerical_note = SimpleNamespace(
            TENSOR_CORE=1, DOWN_CONVERT_INPUTS=2, NONDETERMINISTIC=3
        )
        self.refused: Callable[[list[str]], bool] = lambda _ops: False
        self.unbuildable: Callable[[list[str]], bool] = lambda _ops: False
        self.graphs: list[FakeGraph] = []
        self.runs: list[int] = []
        self.deselected: list[int] = []
        self.candidates = 3
        self.engines: tuple[str, ...] = ()
        self.built = 0
        self.launches = 0
        self.arrays = 0
        self.uncapturable = 0

    def pygraph(self, **options: Any) -> FakeGraph:
        return FakeGraph(self, options)


class FakeGraph:
    """A ``cudnn.pygraph``."""

    def __init__(self, frontend: FakeFrontend, options: dict[str, Any]) -> None:
        assert options["handle"]
        self._frontend = frontend
        self._compute = options.get("compute_data_type", "FLOAT")
        self._tensors: list[FakeTensor] = []
        self._nodes: list[tuple[str, dict[str, Any], list[tuple[str, FakeTensor]]]] = []
        self._candidate: int | None = None

    def tensor(self, **known: Any) -> FakeTensor:
        made = FakeTensor(**known)
        self._tensors.append(made)
        return made

    def __getattr__(self, op: str) -> Any:
        row = NODES.get(op)
        if row is None or op.startswith("groupnorm"):
            raise AttributeError(op)

        def add(**arguments: Any) -> Any:
            inference = arguments.get("norm_forward_phase") == "INFERENCE"
            names = row.outputs[:1] if inference else row.outputs
            outputs = [(name, FakeTensor()) for name in names]
            self._nodes.append((op, arguments, outputs))
            made: list[FakeTensor | None] = [tensor for _, tensor in outputs]
            made += [None] * (len(row.outputs) - len(made))
            return made[0] if len(made) == 1 else made

        return add

    def validate(self) -> None:
        for _, _, outputs in self._nodes:
            for _, tensor in outputs:
                assert not tensor.dim or len(tensor.dim) == len(tensor.stride) >= 3

    def build_operation_graph(self) -> None:
        if self._frontend.refused([op for op, _, _ in self._nodes]):
            raise cudnnGraphNotSupportedError("Reason: the fake was told so at: true")

    def create_execution_plans(self, modes: list[str]) -> None:
        assert modes == ["A", "FALLBACK"]

    def deselect_workspace_greater_than(self, nbytes: int) -> None:
        assert nbytes > 0

    def deselect_numeric_notes(self, notes: list[int]) -> None:
        assert notes
        self._frontend.deselected += notes

    def check_support(self) -> None:
        pass

    def get_plan_name_at_index(self, index: int) -> str:
        names = self._frontend.engines
        return f"{names[index] if index < len(names) else f'eng{100 + index}'}_k2=6"

    def get_execution_plan_count(self) -> int:
        return self._frontend.candidates

    def _build(self) -> None:
        if self._frontend.unbuildable([op for op, _, _ in self._nodes]):
            raise cudnnGraphNotSupportedError("[cudnn_frontend] Error: No valid execution plans")
        self._frontend.built += 1

    def build_plans(self) -> None:
        self._build()
        if self._candidate is None:
            self._candidate = 0

    def build_plan_at_index(self, index: int) -> None:
        self._build()
        self._candidate = index

    def get_workspace_size(self) -> int:
        return 64 * (1 + (self._candidate or 0))

    def serialize(self) -> list[int]:
        self._frontend.graphs.append(self)
        number = len(self._frontend.graphs) - 1
        return list(json.dumps([number, self._candidate]).encode())

    def deserialize(self, handle: int, data: list[int]) -> None:
        assert handle
        number, self._candidate = json.loads(bytes(data))
        other = self._frontend.graphs[number]
        self._nodes, self._tensors = other._nodes, other._tensors
        self._compute = other._compute

    def execute(self, pointers: dict[int, int], workspace: int, handle: int) -> None:
        assert self._candidate is not None
        self.execute_plan_at_index(pointers, workspace, self._candidate, handle)

    def _prepare_variant_pack_template(self) -> None:
        pass

    def _get_variant_pack_uids_sorted(self) -> list[int]:
        written = [each for _, _, outputs in self._nodes for _, each in outputs if each.written]
        return sorted({tensor.uid for tensor in (*self._tensors, *written)})

    def _execute_with_raw_ptrs(self, array: int, count: int, workspace: int, handle: int) -> None:
        uids = self._get_variant_pack_uids_sorted()
        pointers = memory(array, 8 * count).view(np.uint64).tolist()
        self._frontend.arrays += 1
        self.execute(dict(zip(uids, pointers, strict=True)), workspace, handle)

    def execute_plan_at_index(
        self, pointers: dict[int, int], workspace: int, index: int, handle: int
    ) -> None:
        assert handle
        memory(workspace, 64 * (1 + index))[:] = 0xAA  # it may
        self._frontend.runs.append(index)
        wide = DTYPE_OF[self._compute]
        values: dict[int, Any] = {}
        for tensor in self._tensors:
            view = tensor.view(pointers[tensor.uid])
            whole = view.dtype.kind in "biu"
            values[id(tensor)] = view if whole else view.astype(wide)
            if tensor.number:
                values[id(tensor)] = values[id(tensor)].reshape(())[()]
        with np.errstate(all="ignore"):
            for op, arguments, outputs in self._nodes:
                self._compute_node(op, arguments, outputs, values, pointers)

    def _compute_node(
        self,
        op: str,
        arguments: dict[str, Any],
        outputs: list[tuple[str, FakeTensor]],
        values: dict[int, Any],
        pointers: dict[int, int],
    ) -> None:
        row = NODES[op]
        names = (*row.inputs, *row.optional)
        inputs = {
            name: values[id(arguments[name])]
            for name in names
            if isinstance(arguments.get(name), FakeTensor)
        }
        attributes = {
            name: arguments.get(name, default) for name, default in row.attributes.items()
        }
        used = [(name, tensor) for name, tensor in outputs if tensor.dim]
        if op == "reduction":  # which axes go is told by the result's shape
            source, target = inputs["input"], used[0][1]
            attributes["axes"] = tuple(
                axis for axis in range(source.ndim) if target.dim[axis] != source.shape[axis]
            )
        shapes = {name: SimpleNamespace(shape=tuple(tensor.dim)) for name, tensor in used}
        results = FUNCTIONS[op](inputs, attributes, shapes)
        for name, tensor in used:
            values[id(tensor)] = results[name]
            if tensor.written:
                view = tensor.view(pointers[tensor.uid])
                view[...] = np.broadcast_to(results[name], view.shape).astype(view.dtype)


class FakeLibrary:
    """The C library: handles."""

    def __init__(self) -> None:
        self.handles = 0

    def call(self, function: str, *arguments: Any) -> None:
        if function == "cudnnCreate":
            arguments[0]._obj.value = 4096
            self.handles += 1
        if function == "cudnnDestroy":
            self.handles -= 1


class FakeOwn:
    """Our own kernels."""

    def __init__(self, *_: Any) -> None:
        pass

    def prepare(self, graph: Any, pointers: dict[int, int], numbers: dict[int, int]) -> Any:
        def run(values: list[int], scalars: list[float], _scratch: int) -> None:
            addresses = {id_: values[at] for id_, at in pointers.items()}
            interpret(graph, addresses, {id_: scalars[at] for id_, at in numbers.items()}, memory)

        return run

    def close(self) -> None:
        pass


class FakeDnnContext(FakeContext):
    info = SimpleNamespace(name="a fake")


_CONTEXTS: dict[int, FakeDnnContext] = {}


class FakeCudaDnn(FakeCuda):
    """``CudaDnn`` on host memory."""

    executor = "atomr_accel.libraries.dnn.host._cuda:CudaDnn"

    @classmethod
    def context(cls, context: CpuContext) -> FakeDnnContext:
        """Return one context for all lanes, like a real one, because its plans are shared."""
        return _CONTEXTS.setdefault(id(context), FakeDnnContext(context))


def install(
    monkeypatch: pytest.MonkeyPatch,
    library: object,
    frontend: Callable[[], FakeFrontend],
    cache: Path,
) -> None:
    """Have devices of the CPU use the executors for CUDA, which call fakes."""
    from atomr_accel.libraries.dnn.host import (
        _cuda,
        _cuda_losses,
        _cuda_routines,
        _cuda_sampling,
        _plans,
        cuda_sequences,
    )

    monkeypatch.setenv("ATOMR_CACHE_DIR", str(cache))  # the fakes' files are their own
    monkeypatch.setattr(sys.modules[__name__], "_CONTEXTS", {})
    for module in (_cuda, _cuda_routines):
        monkeypatch.setattr(module, "load_cudnn", lambda: library)
    for module in (_cuda, _plans):
        monkeypatch.setattr(module, "load_frontend", frontend)
    monkeypatch.setattr(_plans, "version", lambda: 90000)
    monkeypatch.setattr(_cuda, "Own", FakeOwn)
    for module in (_cuda_losses, _cuda_sampling, cuda_sequences):
        monkeypatch.setattr(module, "Kernels", FakeOwn)
    FakeCudaDnn.install(monkeypatch, LANE, PLANNER)
