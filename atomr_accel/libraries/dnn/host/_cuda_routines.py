"""cuDNN's routines on a lane: pooling, softmax, local response normalisation."""

from __future__ import annotations

from ctypes import byref, c_double, c_float, c_void_p
from typing import TYPE_CHECKING, Any, Final, final

from ...._errors import Unsupported
from ....executors.vendor import array, undone_on_error
from ....wire.recent import Recent
from ..wire._routine_messages import Normalize, Pool, Softmax
from ._prototypes import last_error, load_cudnn
from ._routine_prototypes import DATA_NUMBERS, ENUMS, POOLINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from contextlib import ExitStack

    from ..wire._graph import DnnTensor

_MOST_DESCRIPTORS: Final = 256
_NOT_SUPPORTED: Final = range(3000, 4000)
_LEAST_DIMS: Final = 4
_ONE: Final = {8: byref(c_double(1.0)), 4: byref(c_float(1.0))}
_ZERO: Final = {8: byref(c_double(0.0)), 4: byref(c_float(0.0))}


@final
class Descriptors:
    """cuDNN's functions on a handle, and the descriptors that they take, kept for a while.

    Attributes:
        handle: cuDNN's.
    """

    def __init__(self, handle: int) -> None:
        self.handle: Final = handle
        self._library: Final = load_cudnn()
        self._made: Recent[Hashable, tuple[int, ExitStack]] = Recent(
            _MOST_DESCRIPTORS, lambda made: made[1].close()
        )

    def close(self) -> None:
        """Destroy all descriptors."""
        self._made.clear()

    def call(self, function: str, *args: Any) -> None:
        """Call a function."""
        status = self._library.functions[function](*args)
        if status:
            error = self._library.error(function, status)
            if status in _NOT_SUPPORTED:
                raise Unsupported(f"{error}: {last_error()}")
            raise error

    def get(self, kind: str, setter: str, *values: Any, key: Hashable) -> int:
        """Return a descriptor of cuDNN's ``kind``, set to ``values``.

        ``kind`` is as in ``cudnnCreate...Descriptor``.
        """
        found = self._made.get((kind, key))
        if found is not None:
            return found[0]
        with undone_on_error() as made:
            descriptor = self.create(kind, made)
            self.call(setter, descriptor, *values)
        self._made.keep((kind, key), (descriptor, made))
        return descriptor

    def create(self, kind: str, made: ExitStack) -> int:
        """A new descriptor, which ``made`` destroys."""
        cell = c_void_p()
        self.call(f"cudnnCreate{kind}Descriptor", byref(cell))
        descriptor = cell.value or 0
        made.callback(self.call, f"cudnnDestroy{kind}Descriptor", descriptor)
        return descriptor

    def tensor(self, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> int:
        """A tensor's descriptor; missing dimensions come last, with size 1."""
        missing = max(0, _LEAST_DIMS - len(shape))
        dims = (*shape, *[1] * missing)
        steps = (*strides, *[1] * missing)
        return self.get(
            "Tensor",
            "cudnnSetTensorNdDescriptor",
            *(DATA_NUMBERS[dtype], len(dims), array("int", dims), array("int", steps)),
            key=(dtype, dims, steps),
        )


@final
class CudaDnnRoutines:
    """Executes pooling, softmax and local response normalisation."""

    def __init__(self, descriptors: Descriptors, pointer: Callable[[int], int]) -> None:
        self._descriptors: Final = descriptors
        self._pointer: Final = pointer
        self.handlers: Final[dict[type, Callable[[Any], None]]] = {
            Pool: self._pool,
            Softmax: self._softmax,
            Normalize: self._normalize,
        }

    def _pool(self, message: Pool) -> None:
        # Of a single dimension of space cuDNN wants two.
        window, padding, stride = message.window, message.padding, message.stride
        if len(window) == 1:
            window, padding, stride = (*window, 1), (*padding, 0), (*stride, 1)
        descriptors = self._descriptors
        pooling = descriptors.get(
            "Pooling",
            "cudnnSetPoolingNdDescriptor",
            *(POOLINGS[message.mode], ENUMS["CUDNN_PROPAGATE_NAN"], len(window)),
            *(array("int", window), array("int", padding), array("int", stride)),
            key=(message.mode, window, padding, stride),
        )
        x, y = self._of(message.x_tensor), self._of(message.y_tensor)
        one, zero = _scalars(message.x_tensor.dtype)
        at = self._places(message)
        if not message.dx:
            descriptors.call(
                "cudnnPoolingForward",
                *(descriptors.handle, pooling, one, x, at["x"], zero, y, at["y"]),
            )
            return
        # Averages read neither x nor y; something has to be there.
        descriptors.call(
            "cudnnPoolingBackward",
            *(descriptors.handle, pooling, one, y, at["y"] or at["dy"], y, at["dy"]),
            *(x, at["x"] or at["dx"], zero, x, at["dx"]),
        )

    def _softmax(self, message: Softmax) -> None:
        outer, length, inner = message.shape
        if not outer * length * inner:
            return
        descriptors = self._descriptors
        shape, strides = (outer, length, inner, 1), (length * inner, inner, 1, 1)
        tensor = descriptors.tensor(message.dtype, shape, strides)
        algorithm = ENUMS["CUDNN_SOFTMAX_LOG" if message.log else "CUDNN_SOFTMAX_ACCURATE"]
        mode = ENUMS[f"CUDNN_SOFTMAX_MODE_{'INSTANCE' if inner == 1 else 'CHANNEL'}"]
        one, zero = _scalars(message.dtype)
        at = self._places(message)
        head = (descriptors.handle, algorithm, mode, one)
        if message.dx:
            gradients = (tensor, at["dy"], zero, tensor, at["dx"])
            descriptors.call("cudnnSoftmaxBackward", *head, tensor, at["y"], *gradients)
        else:
            values = (tensor, at["x"], zero, tensor, at["y"])
            descriptors.call("cudnnSoftmaxForward", *head, *values)

    def _normalize(self, message: Normalize) -> None:
        descriptors = self._descriptors
        numbers = (message.size, message.alpha, message.beta, message.k)
        norm = descriptors.get("LRN", "cudnnSetLRNDescriptor", *numbers, key=numbers)
        tensor = self._of(message.tensor)
        one, zero = _scalars(message.tensor.dtype)
        at = self._places(message)
        head = (descriptors.handle, norm, ENUMS["CUDNN_LRN_CROSS_CHANNEL_DIM1"], one)
        if message.dx:
            given = (tensor, at["y"], tensor, at["dy"], tensor, at["x"])
            result = (zero, tensor, at["dx"])
            descriptors.call("cudnnLRNCrossChannelBackward", *head, *given, *result)
        else:
            values = (tensor, at["x"], zero, tensor, at["y"])
            descriptors.call("cudnnLRNCrossChannelForward", *head, *values)

    def _of(self, tensor: DnnTensor) -> int:
        return self._descriptors.tensor(tensor.dtype, tensor.shape, tensor.strides)

    def _places(self, message: Pool | Softmax | Normalize) -> dict[str, int]:
        """Return the pointers of a message; 0 for absent ones."""
        addresses = {name: getattr(message, name) for name in ("x", "y", "dy", "dx")}
        return {name: self._pointer(at) if at else 0 for name, at in addresses.items()}


def _scalars(dtype: str) -> tuple[Any, Any]:
    """Return one and zero in the type of these routines: float, but double for double."""
    size = 8 if dtype == "float64" else 4
    return _ONE[size], _ZERO[size]
