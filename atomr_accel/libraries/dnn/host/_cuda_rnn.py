"""Recurrent networks on CUDA: cuDNN's RNN routines."""

from __future__ import annotations

import math
from ctypes import byref, c_size_t, c_void_p
from typing import TYPE_CHECKING, Any, Final, final

from ...._dtypes import DTYPES
from ....backends.cuda.host.driver import check, driver
from ....executors.vendor import array, undone_on_error
from ....wire.recent import Recent
from ..wire._routine_messages import RnnBackward, RnnForward, RnnPack, RnnSizes
from ._routine_prototypes import CELLS, DATA_LAYOUTS, DATA_NUMBERS, ENUMS

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from ....backends.cuda.host.context import CudaStream
    from ..wire._routine_messages import RnnData, RnnSpec
    from ._cuda_routines import Descriptors

_MOST_NETWORKS: Final = 64
_PROJECTION: Final = 8
"""The number of an LSTM's projection among the matrices of a layer."""


@final
class CudaRnn:
    """Executes messages of recurrent networks."""

    def __init__(
        self, descriptors: Descriptors, pointer: Callable[[int], int], stream: CudaStream
    ) -> None:
        self._descriptors: Final = descriptors
        self._pointer: Final = pointer
        self._stream: Final = stream
        self._networks: Recent[RnnSpec, tuple[int, int, ExitStack]] = Recent(
            _MOST_NETWORKS, lambda network: network[2].close()
        )
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            RnnSizes: self._sizes,
            RnnPack: self._pack,
            RnnForward: self._forward,
            RnnBackward: self._backward,
        }

    def close(self) -> None:
        """Destroy the descriptors of networks."""
        self._networks.clear()

    # --- messages -------------------------------------------------------------------------

    def _sizes(self, message: RnnSizes) -> tuple[int, int, int, int]:
        call, handle = self._descriptors.call, self._descriptors.handle
        spec, network = message.spec, self._network(message.spec)[0]
        weights, work, reserve, states = (c_size_t() for _ in range(4))
        call("cudnnGetRNNWeightSpaceSize", handle, network, byref(weights))
        if message.data is not None:
            x = self._data(spec, message.data, spec.input_size)
            mode = _mode(training=message.training)
            sizes = (byref(work), byref(reserve))
            call("cudnnGetRNNTempSpaceSizes", handle, network, mode, x, *sizes)
            if spec.dropout:
                call("cudnnDropoutGetStatesSize", handle, byref(states))
        return weights.value, work.value, reserve.value, states.value

    def _pack(self, message: RnnPack) -> None:
        spec, weights = message.spec, self._pointer(message.weights)
        itemsize = DTYPES[spec.dtype].itemsize
        if not message.out:
            check(
                "cuMemsetD8Async",
                driver.cuMemsetD8Async(weights, 0, message.weight_bytes, self._stream.handle),
            )
        for address, (at, name, shape) in zip(message.parameters, spec.parameters(), strict=True):
            parameter = self._pointer(address)
            gates = 1 if name == "weight_hr" else spec.gates
            nbytes = math.prod(shape) // gates * itemsize
            for gate in range(gates):
                place = self._place(message, weights, at, name, gate)
                pair = (place, parameter + gate * nbytes)
                target, source = reversed(pair) if message.out else pair
                check(
                    "cuMemcpyDtoDAsync",
                    driver.cuMemcpyDtoDAsync(target, source, nbytes, self._stream.handle),
                )

    def _place(self, message: RnnPack, weights: int, at: int, name: str, gate: int) -> int:
        """Return the address of a gate's part of a parameter (``cudnnGetRNNWeightParams``)."""
        descriptors, spec = self._descriptors, message.spec
        matrix, bias = c_void_p(), c_void_p()
        number = {"weight_hr": _PROJECTION}.get(name, gate + spec.gates * name.endswith("_hh"))
        with undone_on_error() as made:
            kinds = [descriptors.create("Tensor", made) for _ in range(2)]
            descriptors.call(
                "cudnnGetRNNWeightParams",
                *(descriptors.handle, self._network(spec)[0], at, message.weight_bytes, weights),
                *(number, kinds[0], byref(matrix), kinds[1], byref(bias)),
            )
        made.close()
        return (bias if name.startswith("bias") else matrix).value or 0

    def _forward(self, message: RnnForward) -> None:
        spec, data, call = message.spec, message.data, self._descriptors.call
        network = self._seeded(message)
        weights, *_ = message.sizes
        call(
            "cudnnRNNForward",
            *(self._descriptors.handle, network, _mode(training=message.training), None),
            *(self._data(spec, data, spec.input_size), self._at(message.x)),
            *(self._data(spec, data, _width(spec)), self._at(message.y)),
            *(self._states(message, spec.output_size), self._at(message.h0), self._at(message.hn)),
            *(self._states(message, spec.hidden_size), self._at(message.c0), self._at(message.cn)),
            *(weights, self._at(message.weights), *self._scratch(message)),
        )

    def _backward(self, message: RnnBackward) -> None:
        forward = message.forward
        spec, data, call = forward.spec, forward.data, self._descriptors.call
        network = self._network(spec)[0]
        handle, weights = self._descriptors.handle, forward.sizes[0]
        x, y = (self._data(spec, data, size) for size in (spec.input_size, _width(spec)))
        h = self._states(forward, spec.output_size)
        c = self._states(forward, spec.hidden_size)
        at, scratch = self._at, self._scratch(forward)
        call(
            "cudnnRNNBackwardData_v8",
            *(handle, network, None, y, at(forward.y), at(message.dy), x, at(message.dx)),
            *(h, at(forward.h0), at(message.dhn), at(message.dh0)),
            *(c, at(forward.c0), at(message.dcn), at(message.dc0)),
            *(weights, at(forward.weights), *scratch),
        )
        # The library adds to what is there.
        check(
            "cuMemsetD8Async",
            driver.cuMemsetD8Async(at(message.dweights), 0, weights, self._stream.handle),
        )
        call(
            "cudnnRNNBackwardWeights_v8",
            *(handle, network, ENUMS["CUDNN_WGRAD_MODE_ADD"], None, x, at(forward.x)),
            *(h, at(forward.h0), y, at(forward.y)),
            *(weights, at(message.dweights), *scratch),
        )

    # --- descriptions ---------------------------------------------------------------------

    def _network(self, spec: RnnSpec) -> tuple[int, int]:
        """Return the description of a network, without a state, and that of its dropout."""
        found = self._networks.get(spec)
        if found is not None:
            return found[:2]
        descriptors = self._descriptors
        with undone_on_error() as made:
            dropout = descriptors.create("Dropout", made)
            network = descriptors.create("RNN", made)
            descriptors.call(
                "cudnnSetDropoutDescriptor",
                *(dropout, descriptors.handle, spec.dropout, None, 0, 0),
            )
            self._describe(network, dropout, spec)
        self._networks.keep(spec, (network, dropout, made))
        return network, dropout

    def _describe(self, network: int, dropout: int, spec: RnnSpec) -> None:
        double = spec.dtype == "float64"
        half = DTYPES[spec.dtype].itemsize == 2
        self._descriptors.call(
            "cudnnSetRNNDescriptor_v8",
            network,
            ENUMS["CUDNN_RNN_ALGO_STANDARD"],
            CELLS[spec.cell],
            ENUMS["CUDNN_RNN_DOUBLE_BIAS" if spec.bias else "CUDNN_RNN_NO_BIAS"],
            ENUMS["CUDNN_BIDIRECTIONAL" if spec.bidirectional else "CUDNN_UNIDIRECTIONAL"],
            ENUMS["CUDNN_LINEAR_INPUT"],
            DATA_NUMBERS[spec.dtype],
            DATA_NUMBERS["float64" if double else "float32"],
            ENUMS["CUDNN_TENSOR_OP_MATH" if half else "CUDNN_FMA_MATH"],
            *(spec.input_size, spec.hidden_size, spec.output_size, spec.layers),
            dropout,
            ENUMS["CUDNN_RNN_PADDED_IO_ENABLED"],
        )

    def _seeded(self, message: RnnForward) -> int:
        """Return the descriptor of a network, with the seed of the message if it has dropout.

        The backward pass needs no seed, because the mask is kept for it.
        """
        network, dropout = self._network(message.spec)
        if message.spec.dropout and message.training:
            descriptors = self._descriptors
            size = message.sizes[3]
            descriptors.call(
                "cudnnSetDropoutDescriptor",
                *(dropout, descriptors.handle, message.spec.dropout),
                *(self._at(message.states), size, message.seed),
            )
            self._describe(network, dropout, message.spec)
        return network

    def _data(self, spec: RnnSpec, data: RnnData, size: int) -> int:
        filler = (c_size_t * 1)(0)  # a zero of every type
        return self._descriptors.get(
            "RNNData",
            "cudnnSetRNNDataDescriptor",
            *(DATA_NUMBERS[spec.dtype], DATA_LAYOUTS[data.layout], data.steps),
            *(len(data.lengths), size, array("int", data.lengths), filler),
            key=(spec.dtype, data.layout, data.steps, data.lengths, size),
        )

    def _states(self, message: RnnForward, size: int) -> int:
        spec = message.spec
        shape = (spec.layers * spec.directions, len(message.data.lengths), size)
        return self._descriptors.get(
            "Tensor",
            "cudnnSetTensorNdDescriptor",
            *(DATA_NUMBERS[spec.dtype], 3, array("int", shape)),
            array("int", (shape[1] * size, size, 1)),
            key=("states", spec.dtype, shape),
        )

    def _scratch(self, message: RnnForward) -> tuple[int, int, int, int]:
        _, work, reserve, _ = message.sizes
        return work, self._at(message.workspace), reserve, self._at(message.reserve)

    def _at(self, address: int) -> int:
        """A pointer; a null pointer for 0."""
        return self._pointer(address) if address else 0


def _mode(*, training: bool) -> int:
    return ENUMS["CUDNN_FWD_MODE_TRAINING" if training else "CUDNN_FWD_MODE_INFERENCE"]


def _width(spec: RnnSpec) -> int:
    """Return the size of a step's output, in all directions."""
    return spec.output_size * spec.directions
