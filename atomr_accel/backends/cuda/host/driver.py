"""The CUDA driver API with errors as exceptions.

All code for CUDA in a host takes the driver's functions from ``driver``, so the implementation is
chosen in one place. Statuses after which every later call of the process fails too (sticky ones)
become ``StickyFault``; the host then ends. All others leave the context healthy.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, final

from ...._errors import DeviceUnavailable, LibraryError, LibraryMissing, OutOfMemory
from ...._install import cuda_command
from ....wire import StickyFault

if TYPE_CHECKING:
    from collections.abc import Iterator

MINIMUM_DRIVER: Final = 12000
"""CUDA 12.0, the oldest driver that has all the virtual memory management used here."""

STICKY: Final = frozenset(
    {
        214,  # ECC_UNCORRECTABLE
        220,  # NVLINK_UNCORRECTABLE
        226,  # CONTAINED
        700,  # ILLEGAL_ADDRESS
        702,  # LAUNCH_TIMEOUT
        709,  # CONTEXT_IS_DESTROYED
        710,  # ASSERT
        714,  # HARDWARE_STACK_ERROR
        715,  # ILLEGAL_INSTRUCTION
        716,  # MISALIGNED_ADDRESS
        717,  # INVALID_ADDRESS_SPACE
        718,  # INVALID_PC
        719,  # LAUNCH_FAILED
        721,  # TENSOR_MEMORY_LEAK
    }
)
"""Statuses after which the process can do no more on the device (vendor documentation,
CUresult)."""

NOT_READY: Final = 600
"""``CUDA_ERROR_NOT_READY``"""
_OUT_OF_MEMORY: Final = 2


@final
class CudaDriver:
    """The driver's functions, types and numbers, by the names that ``cuda.bindings`` has.

    They are loaded when the first one is wanted.
    """

    def __init__(self) -> None:
        self._stand_in: Any = None

    def __getattr__(self, name: str) -> Any:
        """Load an attribute at its first use."""
        if name.startswith("_"):
            raise AttributeError(name)
        if self._stand_in is not None:
            return getattr(self._stand_in, name)
        try:
            from cuda.bindings import driver as bindings
        except ImportError as error:
            raise LibraryMissing(
                f"the CUDA backend needs cuda-bindings: {cuda_command()}",
                library="cuda-bindings",
            ) from error
        found = getattr(bindings, name)
        setattr(self, name, found)  # launches take it from here the next time
        return found

    @property
    def major(self) -> int:
        """Major version of CUDA whose functions these are."""
        if self._stand_in is not None:
            return int(self._stand_in.major)
        return int(version("cuda-bindings").split(".")[0])

    @contextmanager
    def replaced(self, stand_in: object) -> Iterator[None]:
        """Replace the driver for all executors, as tests without a GPU do."""
        known = {name: self.__dict__.pop(name) for name in [*self.__dict__] if name[0] != "_"}
        before, self._stand_in = self._stand_in, stand_in
        try:
            yield
        finally:
            self._stand_in = before
            self.__dict__.update(known)


driver: Final = CudaDriver()
"""The one that all executors and the context use."""


def failure(call: str, status: Any) -> Exception:
    """The exception for a status that is not success."""
    code = int(status)
    name = getattr(status, "name", str(code))
    text = f"{call} returned {name} ({code})"
    if code in STICKY:
        return StickyFault(text, status=code, status_name=name)
    if code == _OUT_OF_MEMORY:
        return OutOfMemory(text, requested=0)
    return LibraryError(text, library="cuda", call=call, status=code, status_name=name)


def check(call: str, answer: tuple[Any, ...]) -> Any:
    """The results of a driver call: none, one, or a tuple."""
    status, *results = answer
    if status:
        raise failure(call, status)
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


def start_driver() -> int:
    """Initialise the driver and return its version, such as 13000."""
    # cuda-bindings looks libcuda up at the first call and raises RuntimeError if it is
    # not there; cuInit has its own statuses for a driver that does not work.
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:
        raise DeviceUnavailable(f"no CUDA driver library (libcuda.so.1): {error}") from error
    if status:
        raise DeviceUnavailable(f"the CUDA driver does not start: cuInit returned {status.name}")
    version: int = check("cuDriverGetVersion", driver.cuDriverGetVersion())
    if version < MINIMUM_DRIVER:
        raise DeviceUnavailable(
            f"the CUDA driver supports CUDA {version // 1000}.{version % 1000 // 10}, "
            f"but CUDA {MINIMUM_DRIVER // 1000}.0 or newer is needed; update the driver"
        )
    return version
