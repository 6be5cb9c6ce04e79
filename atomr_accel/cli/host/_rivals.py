"""Rivals of `bench`: NumPy, PyTorch and CuPy, each in its own process.

They do the same as ``_bench`` does on a device, in the way that their own programs would.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import msgspec
import numpy as np

from ._answering import answer

_WARM: Final = 2

THREADS: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables by which NumPy and PyTorch learn how many threads they may use."""


class Task(msgspec.Struct, frozen=True):
    """A measurement to make.

    Attributes:
        name: the name of the measurement.
        size: the size, as ``_bench`` defines it.
        repeats: the number of repeats.
    """

    name: str
    size: int
    repeats: int


class RivalQuestion(msgspec.Struct, frozen=True):
    """The question for a rival.

    Attributes:
        rival: its module.
        on_gpu: the index of the GPU to use; None for the CPU.
        tasks: the measurements to make.
    """

    rival: str
    on_gpu: int | None
    tasks: list[Task]


class Answer(msgspec.Struct, frozen=True):
    """The results of a rival.

    Attributes:
        version: the rival's version; None if it is missing.
        problem: the reason why all measurements failed; None if they did not.
        seconds: medians, by measurement; unsupported ones are left out.
    """

    version: str | None
    problem: str | None
    seconds: dict[str, float]


def main() -> None:
    """Answer a `RivalQuestion` with an `Answer`."""
    answer(lambda question: _measured(msgspec.json.decode(question, type=RivalQuestion)))


def _measured(question: RivalQuestion) -> Answer:
    try:
        module = import_module(question.rival)
    except ImportError:
        return Answer(None, "not installed", {})
    version = str(module.__version__)
    try:
        rival = RIVALS[question.rival](module, question.on_gpu)
    except Exception as error:  # noqa: BLE001 (told)
        return Answer(version, f"{type(error).__name__}: {error}", {})
    seconds = {}
    for task in question.tasks:
        made = rival.prepared(task.name, task.size)
        if made is not None:
            seconds[task.name] = _median(made, rival.wait, task.repeats)
    return Answer(version, None, seconds)


def _median(once: Callable[[], object], wait: Callable[[], object], repeats: int) -> float:
    for _ in range(_WARM):
        once()
    wait()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        once()
        wait()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def data_of(name: str, size: int) -> list[np.ndarray[Any, Any]]:
    """Return the input arrays of a measurement, the same for us and for rivals."""
    rng = np.random.default_rng(size)
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "ask": ((size, size), (size, size)),
        "many": ((size, size), (size, size)),
        "gemm": ((size, size), (size, size)),
        "fft": ((size, 1024),),
        "sort": ((size,),),
        "norm": ((size, 1024), (1024,), (1024,)),
        "put": ((size,),),
        "get": ((size,),),
    }
    return [rng.standard_normal(shape, np.float32) for shape in shapes[name]]


MANY: Final = 64
"""Products of the measurement ``many``."""


class _NumPy:
    """NumPy, or whatever has its functions."""

    def __init__(self, module: Any, on_gpu: int | None) -> None:
        if on_gpu is not None and module.__name__ == "numpy":
            raise ValueError("it computes on the CPU")
        self.xp = module

    def wait(self) -> None:
        """Wait until all work is done."""

    def put(self, array: np.ndarray[Any, Any]) -> Any:
        return self.xp.array(array)

    def get(self, array: Any) -> Any:
        return self.xp.array(array)

    def rfft(self, x: Any) -> Any:
        return self.xp.fft.rfft(x)

    def sort(self, x: Any) -> Any:
        return self.xp.sort(x)

    def norm(self, x: Any, weight: Any, bias: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred / self.xp.sqrt(variance + 1e-5) * weight + bias

    def prepared(self, name: str, size: int) -> Callable[[], object] | None:
        """Return the function for a measurement; None if this rival does not support it."""
        arrays = data_of(name, size)
        there = [self.put(array) for array in arrays]
        calls: dict[str, Callable[[], object]] = {
            "ask": lambda: there[0] @ there[1],
            "many": lambda: [there[0] @ there[1] for _ in range(MANY)],
            "gemm": lambda: there[0] @ there[1],
            "fft": lambda: self.rfft(there[0]),
            "sort": lambda: self.sort(there[0]),
            "norm": lambda: self.norm(*there),
            "put": lambda: self.put(arrays[0]),
            "get": lambda: self.get(there[0]),
        }
        return calls.get(name)


class _CuPy(_NumPy):
    def __init__(self, module: Any, on_gpu: int | None) -> None:
        if on_gpu is None:
            raise ValueError("it computes on GPUs")
        super().__init__(module, on_gpu)
        module.cuda.Device(on_gpu).use()

    def wait(self) -> None:
        self.xp.cuda.get_current_stream().synchronize()

    def get(self, array: Any) -> Any:
        return self.xp.asnumpy(array)


class _Torch(_NumPy):
    def __init__(self, module: Any, on_gpu: int | None) -> None:
        super().__init__(module, on_gpu)
        self._place = "cpu" if on_gpu is None else f"cuda:{on_gpu}"
        module.zeros(1, device=self._place)  # or this tells why not
        module.set_grad_enabled(False)

    def wait(self) -> None:
        if self._place != "cpu":
            self.xp.cuda.synchronize(self._place)

    def put(self, array: np.ndarray[Any, Any]) -> Any:
        return self.xp.tensor(array, device=self._place)

    def get(self, array: Any) -> Any:
        return array.to("cpu", copy=True).numpy()

    def rfft(self, x: Any) -> Any:
        return self.xp.fft.rfft(x)

    def sort(self, x: Any) -> Any:
        return self.xp.sort(x).values

    def norm(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.xp.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias)


RIVALS: Final[dict[str, Callable[[Any, int | None], Any]]] = {
    "numpy": _NumPy,
    "torch": _Torch,
    "cupy": _CuPy,
}
"""Rivals by the names of their modules."""
