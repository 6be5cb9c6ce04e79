"""cuDNN's routines in NumPy, behind the same functions: what runs their executors without a GPU.

Descriptors hold only the values that were set. Packed weights lie otherwise than on the CPU: all
matrices first, gate by gate, and then, after a gap, all biases.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from atomr_accel import LibraryError
from atomr_accel.libraries.dnn.host._cpu_losses import classified
from atomr_accel.libraries.dnn.host._cpu_rnn import CpuRnn
from atomr_accel.libraries.dnn.host._cpu_routines import CpuRoutines
from atomr_accel.libraries.dnn.host._routine_prototypes import (
    CELLS,
    DATA_LAYOUTS,
    DATA_NUMBERS,
    ENUMS,
    POOLINGS,
    ROUTINES,
)
from atomr_accel.libraries.dnn.wire._graph import DnnTensor
from atomr_accel.libraries.dnn.wire._routine_messages import (
    Normalize,
    Pool,
    RnnBackward,
    RnnData,
    RnnForward,
    RnnSpec,
    Softmax,
)

from ..libraries.conformance import dtype_of
from .lapack import memory

Array = np.ndarray[Any, Any]

DTYPES = {number: name for name, number in DATA_NUMBERS.items()}
MODES = {number: mode for mode, number in POOLINGS.items()}
CELL_NAMES = {number: cell for cell, number in CELLS.items()}
LAYOUTS = {number: layout for layout, number in DATA_LAYOUTS.items()}
HANDLE = 4096
GAP = 3
"""Elements between matrices and biases."""


def reach(pointer: int, shape: tuple[int, ...], dtype: Any) -> Array:
    count = math.prod(shape) * np.dtype(dtype).itemsize
    found: Array = memory(pointer, count).view(dtype).reshape(shape)
    return found


class FakeRoutines:
    """The C library, as ``VendorLibrary`` shows it."""

    def __init__(self) -> None:
        self.made: dict[int, dict[str, Any]] = {}
        self.seeds: dict[int, int] = {}
        self.ref_error: dict[str, int] = {}
        self.classified = 0
        self._next = 1
        context: Any = SimpleNamespace(check=lambda: None, array=reach, bytes_at=memory)
        self._execute: dict[type, Callable[[Any], Any]] = {
            **CpuRoutines(context).handlers,
            **CpuRnn(context).handlers,
        }
        self.functions = {name: self._function(name) for name in ROUTINES}

    def call(self, function: str, *arguments: Any) -> None:
        if function == "cudnnCreate":
            arguments[0]._obj.value = HANDLE

    def error(self, function: str, status: int) -> LibraryError:
        return LibraryError(
            f"{function} returned {status}",
            library="cudnn",
            call=function,
            status=status,
            status_name="a fake one",
        )

    def _function(self, name: str) -> Callable[..., int]:
        def function(*arguments: Any) -> int:
            assert len(arguments) == len(ROUTINES[name].split()), name
            if name in self.ref_error:
                return self.ref_error[name]
            if name.startswith("cudnnCreate"):
                arguments[0]._obj.value = self._next
                self.made[self._next] = {}
                self._next += 1
            elif name.startswith("cudnnDestroy"):
                del self.made[arguments[0]]
            else:
                getattr(self, name.removeprefix("cudnn"))(*arguments)
            return 0

        return function

    # --- connectionist temporal classification --------------------------------------------

    def SetCTCLossDescriptor_v9(self, made: int, *numbers: int) -> None:  # noqa: N802
        dtype, normalized, gradients, most = numbers
        assert DTYPES[dtype] == "float32"
        assert normalized == ENUMS["CUDNN_LOSS_NORMALIZATION_SOFTMAX"]
        assert gradients == ENUMS["CUDNN_CTC_ZERO_OOB_GRADIENTS"]
        self.made[made]["most"] = most

    def GetCTCLossWorkspaceSize_v8(self, *given: Any) -> None:  # noqa: N802
        _handle, _algorithm, _loss, _probabilities, _gradients, size = given
        size._obj.value = 1000

    def CTCLoss_v8(self, *given: Any) -> None:  # noqa: N802
        _handle, _algorithm, loss, tensor, logs, labels, counts, steps, *rest = given
        costs, tensor_of_gradients, gradients, nbytes, workspace = rest
        assert nbytes == 1000
        memory(workspace, nbytes)[...] = 0x7F
        shape = self.made[tensor]["tensor"].shape
        assert bool(gradients) == bool(tensor_of_gradients)
        lengths, widths = (reach(each, shape[1:2], np.int32) for each in (steps, counts))
        assert widths.min() > 0
        assert widths.max() <= self.made[loss]["most"]
        assert lengths.max() <= shape[0]
        given_labels = reach(labels, (int(widths.sum()),), np.int32)
        x = reach(logs, shape, np.float32).astype(np.float64)
        found = reach(costs, shape[1:2], np.float32)
        slopes = np.zeros(shape)
        for n, each in enumerate(np.split(given_labels, np.cumsum(widths)[:-1])):
            states = np.zeros(2 * len(each) + 1, np.int64)
            states[1::2] = each
            end = lengths[n]
            # What is out of bounds has a finite loss, and no gradient that is of any use.
            cost, slope = classified(x[:end, n], states, gradient=True)
            found[n], slopes[:end, n] = cost if np.isfinite(cost) else 0.0, np.nan_to_num(slope)
            self.classified += 1
        if gradients:
            reach(gradients, shape, np.float32)[...] = slopes

    # --- descriptors ----------------------------------------------------------------------

    def SetTensorNdDescriptor(self, made: int, dtype: int, n: int, dims: Any, steps: Any) -> None:  # noqa: N802
        tensor = DnnTensor(DTYPES[dtype], tuple(dims)[:n], tuple(steps)[:n])
        self.made[made]["tensor"] = tensor

    def SetPoolingNdDescriptor(self, made: int, *given: Any) -> None:  # noqa: N802
        mode, nans, n, *sizes = given
        assert nans == ENUMS["CUDNN_PROPAGATE_NAN"]
        window, padding, stride = (tuple(each)[:n] for each in sizes)
        self.made[made].update(pool=(MODES[mode], window, padding, stride))

    def SetLRNDescriptor(self, made: int, *numbers: Any) -> None:  # noqa: N802
        self.made[made]["numbers"] = numbers

    def SetDropoutDescriptor(self, made: int, handle: int, *given: Any) -> None:  # noqa: N802
        assert handle == HANDLE
        p, states, size, seed = given
        assert bool(states) == bool(size)
        self.made[made].update(p=p, seed=seed if states else None)

    def DropoutGetStatesSize(self, handle: int, size: Any) -> None:  # noqa: N802
        size._obj.value = 64

    def SetRNNDescriptor_v8(self, made: int, algorithm: int, *given: Any) -> None:  # noqa: N802
        cell, bias, direction, linear, dtype, precision, math_, *sizes, dropout, flags = given
        assert (algorithm, linear, flags) == (0, 0, ENUMS["CUDNN_RNN_PADDED_IO_ENABLED"])
        name = DTYPES[dtype]
        assert DTYPES[precision] == ("float64" if name == "float64" else "float32")
        half = dtype_of(name).itemsize == 2
        assert math_ == ENUMS["CUDNN_TENSOR_OP_MATH" if half else "CUDNN_FMA_MATH"]
        inputs, hidden, proj, layers = sizes
        p = self.made[dropout]["p"]
        self.made[made]["spec"] = RnnSpec(
            *(CELL_NAMES[cell], inputs, hidden, proj if proj != hidden else 0, layers),
            *(bool(direction), bool(bias), p, name),
        )
        self.made[made]["dropout"] = dropout

    def SetRNNDataDescriptor(self, made: int, dtype: int, layout: int, *given: Any) -> None:  # noqa: N802
        steps, batch, size, lengths, filler = given
        assert filler[0] == 0
        data = RnnData(LAYOUTS[layout], steps, tuple(lengths)[:batch])
        self.made[made].update(data=data, size=size, dtype=DTYPES[dtype])

    # --- pooling, softmax, normalisation --------------------------------------------------

    def _tensor(self, made: int) -> DnnTensor:
        tensor: DnnTensor = self.made[made]["tensor"]
        assert len(tensor.shape) >= 4
        return tensor

    def _pool(self, made: int) -> tuple[str, Any, Any, Any]:
        found: tuple[str, Any, Any, Any] = self.made[made]["pool"]
        return found

    @staticmethod
    def _scalars(tensor: DnnTensor, one: Any, zero: Any) -> None:
        double = tensor.dtype == "float64"
        for scalar, value in ((one, 1), (zero, 0)):
            assert type(scalar._obj).__name__ == ("c_double" if double else "c_float")
            assert scalar._obj.value == value

    def PoolingForward(self, handle: int, pool: int, one: Any, *given: Any) -> None:  # noqa: N802
        x_tensor, x, zero, y_tensor, y = given
        x_tensor, y_tensor = self._tensor(x_tensor), self._tensor(y_tensor)
        self._scalars(x_tensor, one, zero)
        self._execute[Pool](Pool(*self._pool(pool), x_tensor, y_tensor, x, y))

    def PoolingBackward(self, handle: int, pool: int, one: Any, *given: Any) -> None:  # noqa: N802
        y_tensor, y, dy_tensor, dy, x_tensor, x, zero, dx_tensor, dx = given
        assert (y_tensor, x_tensor) == (dy_tensor, dx_tensor)
        assert all((y, dy, x, dx))
        x_tensor, y_tensor = self._tensor(x_tensor), self._tensor(y_tensor)
        self._scalars(x_tensor, one, zero)
        self._execute[Pool](Pool(*self._pool(pool), x_tensor, y_tensor, x, y, dy, dx))

    def _softmax(self, algorithm: int, mode: int, tensor: DnnTensor, **places: int) -> None:
        outer, length, inner, one = tensor.shape
        assert one == 1
        assert tensor.strides[:3] == (length * inner, inner, 1)
        instance = mode == ENUMS["CUDNN_SOFTMAX_MODE_INSTANCE"]
        assert not instance or inner == 1
        log = algorithm == ENUMS["CUDNN_SOFTMAX_LOG"]
        self._execute[Softmax](Softmax(log, (outer, length, inner), tensor.dtype, **places))

    def SoftmaxForward(self, handle: int, algorithm: int, mode: int, *given: Any) -> None:  # noqa: N802
        one, x_tensor, x, zero, y_tensor, y = given
        assert x_tensor == y_tensor
        self._scalars(self._tensor(x_tensor), one, zero)
        self._softmax(algorithm, mode, self._tensor(x_tensor), x=x, y=y)

    def SoftmaxBackward(self, handle: int, algorithm: int, mode: int, *given: Any) -> None:  # noqa: N802
        one, y_tensor, y, _, dy, zero, _, dx = given
        self._scalars(self._tensor(y_tensor), one, zero)
        self._softmax(algorithm, mode, self._tensor(y_tensor), x=0, y=y, dy=dy, dx=dx)

    def LRNCrossChannelForward(self, handle: int, norm: int, mode: int, *given: Any) -> None:  # noqa: N802
        one, tensor, x, zero, _, y = given
        self._scalars(self._tensor(tensor), one, zero)
        numbers: tuple[int, float, float, float] = self.made[norm]["numbers"]
        self._execute[Normalize](Normalize(*numbers, self._tensor(tensor), x, y))

    def LRNCrossChannelBackward(self, handle: int, norm: int, mode: int, *given: Any) -> None:  # noqa: N802
        one, tensor, y, _, dy, _, x, zero, _, dx = given
        self._scalars(self._tensor(tensor), one, zero)
        numbers: tuple[int, float, float, float] = self.made[norm]["numbers"]
        self._execute[Normalize](Normalize(*numbers, self._tensor(tensor), x, y, dy, dx))

    # --- recurrent networks ---------------------------------------------------------------

    def _places(self, spec: RnnSpec) -> tuple[dict[tuple[int, str, int], tuple[int, int]], int]:
        """Return the offset and length of each gate's parameters, and the total, in elements."""
        found: dict[tuple[int, str, int], tuple[int, int]] = {}
        at = 0
        for biases in (False, True):
            for layer, name, shape in spec.parameters():
                if name.startswith("bias") == biases:
                    gates = 1 if name == "weight_hr" else spec.gates
                    size = math.prod(shape) // gates
                    for gate in range(gates):
                        found[layer, name, gate] = at, size
                        at += size
            at += GAP
        return found, at

    def GetRNNWeightSpaceSize(self, handle: int, network: int, size: Any) -> None:  # noqa: N802
        spec: RnnSpec = self.made[network]["spec"]
        size._obj.value = self._places(spec)[1] * dtype_of(spec.dtype).itemsize

    def GetRNNTempSpaceSizes(self, handle: int, network: int, mode: int, *given: Any) -> None:  # noqa: N802
        x, work, reserve = given
        assert self.made[x]["size"] == self.made[network]["spec"].input_size
        work._obj.value = 256
        reserve._obj.value = 64 if mode == ENUMS["CUDNN_FWD_MODE_TRAINING"] else 0

    def GetRNNWeightParams(self, handle: int, network: int, layer: int, *given: Any) -> None:  # noqa: N802
        size, weights, number, _, matrix, _, bias = given
        spec: RnnSpec = self.made[network]["spec"]
        places, count = self._places(spec)
        itemsize = dtype_of(spec.dtype).itemsize
        assert size == count * itemsize
        if number == 8:
            matrix._obj.value = weights + places[layer, "weight_hr", 0][0] * itemsize
            return
        kind = "hh" if number >= spec.gates else "ih"
        gate = number % spec.gates
        matrix._obj.value = weights + places[layer, f"weight_{kind}", gate][0] * itemsize
        if spec.bias:
            bias._obj.value = weights + places[layer, f"bias_{kind}", gate][0] * itemsize

    def _plain(self, spec: RnnSpec, pointer: int) -> Array:
        """Packed weights as the CPU has them."""
        places, count = self._places(spec)
        packed = reach(pointer, (count,), dtype_of(spec.dtype))
        parts = []
        for layer, name, _ in spec.parameters():
            gates = 1 if name == "weight_hr" else spec.gates
            for gate in range(gates):
                at, size = places[layer, name, gate]
                parts.append(packed[at : at + size])
        return np.concatenate(parts)

    def _ran(self, network: int, given: tuple[Any, ...], *, seed: int, training: bool) -> Any:
        """Return the CPU's message for this run, and the objects that must live meanwhile."""
        x_data, x, y_data, y, h_tensor, h0, hn, c_tensor, c0, cn, size, weights = given[:12]
        spec: RnnSpec = self.made[network]["spec"]
        assert self.made[x_data]["size"] == spec.input_size
        assert self.made[y_data]["size"] == spec.output_size * spec.directions
        for made, width in ((h_tensor, spec.output_size), (c_tensor, spec.hidden_size)):
            batch = len(self.made[x_data]["data"].lengths)
            expected = (spec.layers * spec.directions, batch, width)
            assert self.made[made]["tensor"].shape == expected
        plain = self._plain(spec, weights)
        data = self.made[x_data]["data"]
        places = (x, y, plain.ctypes.data, h0, c0, hn, cn, 0, 0, 0)
        return RnnForward(spec, data, training, seed, *places, (size, 0, 0, 0)), plain

    def RNNForward(self, handle: int, network: int, mode: int, lengths: Any, *given: Any) -> None:  # noqa: N802
        assert lengths is None
        training = mode == ENUMS["CUDNN_FWD_MODE_TRAINING"]
        work_size, work, reserve_size, reserve = given[12:]
        assert work
        assert work_size == 256
        assert bool(reserve) == training == bool(reserve_size)
        seed = self.made[self.made[network]["dropout"]]["seed"] or 0
        message, _plain = self._ran(network, given, seed=seed, training=training)
        if training:
            self.seeds[reserve] = seed
        self._execute[RnnForward](message)

    def RNNBackwardData_v8(self, handle: int, network: int, lengths: Any, *given: Any) -> None:  # noqa: N802
        y_data, y, dy, x_data, dx, h, h0, dhn, dh0, c, c0, dcn, dc0, *rest = given
        self._before = (y_data, y, dy, x_data, dx, h, h0, dhn, dh0, c, c0, dcn, dc0, *rest)
        assert rest[-1] in self.seeds

    def RNNBackwardWeights_v8(self, handle: int, network: int, add: int, *given: Any) -> None:  # noqa: N802
        lengths, x_data, x, h, h0, y_data, y, size, dweights, *scratch = given
        y2, y_at, dy, x2, dx, h2, h02, dhn, dh0, c, c0, dcn, dc0, *rest = self._before
        assert (y2, y_at, x2, h2, h02) == (y_data, y, x_data, h, h0)
        assert (add, lengths, rest[2:]) == (ENUMS["CUDNN_WGRAD_MODE_ADD"], None, scratch)
        spec: RnnSpec = self.made[network]["spec"]
        states = np.zeros((2, *self.made[c]["tensor"].shape), dtype_of(spec.dtype))
        forward = (x_data, x, y_data, y, h, h0, states[0].ctypes.data, c, c0, states[1].ctypes.data)
        seed = self.seeds[scratch[-1]]
        message, plain = self._ran(network, (*forward, size, rest[1]), seed=seed, training=True)
        found = np.zeros_like(plain)
        gradients = (dy, dhn, dcn, dx, dh0, dc0, found.ctypes.data)
        self._execute[RnnBackward](RnnBackward(message, *gradients))
        places, count = self._places(spec)
        packed = reach(dweights, (count,), dtype_of(spec.dtype))
        at = 0
        for layer, name, _ in spec.parameters():
            for gate in range(1 if name == "weight_hr" else spec.gates):
                first, length = places[layer, name, gate]
                packed[first : first + length] += found[at : at + length]
                at += length
