"""Losses on CUDA: kernels of our own, and on request the vendor's CTC."""

from __future__ import annotations

import struct
from ctypes import byref, c_size_t
from typing import TYPE_CHECKING, Any, Final, final

from ....executors.cuda_kernels import KernelArguments, Kernels
from ....executors.device_code import C_TYPES, CudaSource
from ....executors.vendor import array
from ..wire._loss_messages import CrossEntropy, Ctc
from ..wire._nodes import wider
from ._routine_prototypes import DATA_NUMBERS, ENUMS
from .fallback._launch import THREADS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ._cuda_routines import Descriptors

SOURCE: Final = CudaSource(__package__, "losses.cu", THREADS=THREADS)

_ALIGNMENT: Final = 256
_FEW: Final = 32
"""Largest number of consecutive classes that a single thread takes."""


def group_of(classes: int, behind: int) -> int:
    """Return the number of threads for a row: one if it is short, or interleaved with others."""
    return 1 if behind > 1 or classes <= _FEW else THREADS


@final
class CudaLosses:
    """Executes losses and their gradients.

    ``scratch_of`` returns scratch memory from its size in bytes.
    """

    def __init__(
        self,
        context: CudaContext,
        stream: CudaStream,
        descriptors: Descriptors,
        scratch_of: Callable[[int], int],
    ) -> None:
        self._descriptors: Final = descriptors
        self._scratch_of: Final = scratch_of
        self._pointer: Final = context.pointer
        self._kernels: Final = Kernels(context, stream, SOURCE)
        self.handlers: Final[dict[type, Callable[[Any], None]]] = {
            CrossEntropy: self._cross_entropy,
            Ctc: self._ctc,
        }

    def close(self) -> None:
        """Unload the kernels."""
        self._kernels.close()

    def _cross_entropy(self, message: CrossEntropy) -> None:
        before, classes, behind = message.shape
        count = before * behind
        at = self._places(message, "x", "target", "weight", "y", "scratch", "dy", "dx")
        dtype, index, compute = message.dtype, message.index, wider(message.dtype)
        how = struct.pack("<4qd", count, classes, behind, message.ignore, message.smoothing)
        group, mean = group_of(classes, behind), message.reduction == "mean"
        read = (at["x"], at["target"], at["weight"])
        if not index:
            self._soft(message, at, how, group)
            return
        if message.dx:
            if mean:
                places = struct.pack("<3Q", at["scratch"], at["target"], at["weight"])
                self._launch("weigh", (compute, dtype, index), THREADS, places + how)
            places = struct.pack("<6Q", at["dx"], at["dy"], *read, at["scratch"] if mean else 0)
            data = places + how + struct.pack("<q", message.reduction == "none")
            self._launch("gradient", (group, compute, dtype, index), count * group, data)
            return
        if message.reduction == "none":
            places = struct.pack("<5Q", at["y"], 0, *read)
            self._launch("rows", (group, compute, dtype, dtype, index), count * group, places + how)
            return
        losses = at["scratch"]
        counts = losses + count * _size(compute) if mean else 0
        places = struct.pack("<5Q", losses, counts, *read)
        self._launch("rows", (group, compute, compute, dtype, index), count * group, places + how)
        self._total(message.y, losses, counts, count, 1.0, (compute, dtype))

    def _soft(self, message: CrossEntropy, at: dict[str, int], how: bytes, group: int) -> None:
        """Execute a cross-entropy with targets that are probabilities."""
        before, _, behind = message.shape
        count, dtype, compute = before * behind, message.dtype, wider(message.dtype)
        read, each = (at["x"], at["target"], at["weight"]), message.reduction == "none"
        divisor = float(count) if message.reduction == "mean" else 1.0
        if message.dx:
            data = struct.pack("<5Q", at["dx"], at["dy"], *read) + how
            data += struct.pack("<qd", each, divisor)
            self._launch("soft_gradient", (group, compute, dtype), count * group, data)
            return
        data = struct.pack("<4Q", at["y"] if each else at["scratch"], *read) + how
        kinds = (group, compute, dtype if each else compute, dtype)
        self._launch("soft_rows", kinds, count * group, data)
        if not each:
            self._total(message.y, at["scratch"], 0, count, divisor, (compute, dtype))

    def _ctc(self, message: Ctc) -> None:
        steps, batch, classes = message.shape
        read = ("log_probs", "targets", "input_lengths", "target_lengths")
        at = self._places(message, *read, "y", "scratch", "dy", "dx")
        dtype, index, compute = message.dtype, message.index, wider(message.dtype)
        mean, each = message.reduction == "mean", message.reduction == "none"
        sizes = (steps, batch, classes, message.size, message.width, message.blank)
        how = struct.pack("<9q", *sizes, mean, each, message.zero_infinity)
        costs = self._asked(message, at, how) if message.vendor and batch else 0
        states = at["scratch"] + batch * _size(compute)
        written = at["y"] if each else at["scratch"]
        kinds = (compute, dtype if each else compute, dtype, index)
        sources = (*(at[name] for name in read), states, costs)
        places = struct.pack("<9Q", 0 if message.dx else written, at["dx"], at["dy"], *sources)
        self._launch("ctc", kinds, batch * THREADS, places + how)
        if not message.dx and not each:
            divisor = float(batch) if mean else 1.0
            self._total(message.y, at["scratch"], 0, batch, divisor, (compute, dtype))

    def _asked(self, message: Ctc, at: dict[str, int], how: bytes) -> int:
        """Compute ordinary sequences by the vendor's routine; return the address of the losses."""
        descriptors, (_, batch, classes) = self._descriptors, message.shape
        numbers = (ENUMS["CUDNN_LOSS_NORMALIZATION_SOFTMAX"], ENUMS["CUDNN_CTC_ZERO_OOB_GRADIENTS"])
        setting = (DATA_NUMBERS["float32"], *numbers, message.width)
        loss = descriptors.get("CTCLoss", "cudnnSetCTCLossDescriptor_v9", *setting, key=setting)
        probabilities = descriptors.get(
            "Tensor",
            "cudnnSetTensorNdDescriptor",
            *(DATA_NUMBERS["float32"], 3, array("int", message.shape)),
            array("int", (batch * classes, classes, 1)),
            key=("of three", message.shape),
        )
        gradients = probabilities if message.dx else 0
        algorithm = ENUMS["CUDNN_CTC_LOSS_ALGO_DETERMINISTIC"]
        head = (descriptors.handle, algorithm, loss, probabilities)
        size = c_size_t()
        descriptors.call("cudnnGetCTCLossWorkspaceSize_v8", *head, gradients, byref(size))
        pieces = (4 * batch * message.width, 4 * batch, 4 * batch, 4 * batch, size.value)
        starts = [0]
        for nbytes in pieces:
            starts.append(starts[-1] + -(-nbytes // _ALIGNMENT) * _ALIGNMENT)
        base = self._scratch_of(starts[-1])
        labels, counts, lengths, costs, workspace = (base + start for start in starts[:-1])
        whole = (at["targets"], at["input_lengths"], at["target_lengths"])
        data = struct.pack("<6Q", labels, counts, lengths, *whole) + how
        self._launch("pack", ("float32", "float32", message.index), THREADS, data)
        given = (at["log_probs"], labels, counts, lengths, costs, gradients, at["dx"])
        descriptors.call("cudnnCTCLoss_v8", *head, *given, size.value, workspace)
        return costs

    def _total(
        self,
        y: int,
        values: int,
        weights: int,
        count: int,
        divisor: float,
        kinds: tuple[str, str],
    ) -> None:
        data = struct.pack("<3Qqd", self._pointer(y), values, weights, count, divisor)
        self._launch("total", kinds, THREADS, data)

    def _places(self, message: Any, *names: str) -> dict[str, int]:
        """Return the pointers of a message; 0 for absent ones."""
        addresses = {name: getattr(message, name) for name in names}
        return {name: self._pointer(at) if at else 0 for name, at in addresses.items()}

    def _launch(self, kernel: str, kinds: tuple[int | str, ...], items: int, data: bytes) -> None:
        if items:
            function = self._kernels.function(loss_name(kernel, *kinds))
            self._kernels.launch(function, items, KernelArguments(data))


def loss_name(kernel: str, *kinds: int | str) -> str:
    """A kernel with its template arguments: how many threads, and dtypes."""
    names = [str(each) if isinstance(each, int) else C_TYPES[each] for each in kinds]
    return f"{kernel}<{', '.join(names)}>"


def _size(dtype: str) -> int:
    return 8 if dtype == "float64" else 4
