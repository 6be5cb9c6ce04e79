"""Memory in which the ranks of one communicator on this machine meet.

Each rank has a word, which it alone counts up, and a slot, which it alone writes. A round has two
numbers. A rank's word reaches the first when its slot is filled, and the second when it has
finished reading the slots of others. A rank that waits for a word sleeps until it changes
(``futex``).

The program numbers the rounds, for all ranks alike, so ranks that take no part in some of them need
not count them. An abort sets a word that all ranks check, and changes all other words to wake the
ranks that sleep.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
import time
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

SLOT_BYTES: Final = 1 << 18
"""Largest number of bytes that a rank gives in one round."""

_PAGE: Final = 4096
_STRIDE: Final = 8
"""Words from one rank's word to the next, so that each has its own cache line."""

_ABORTED: Final = (1 << 64) - 1
_FUTEX_WAIT, _FUTEX_WAKE, _EVERYBODY = 0, 1, (1 << 31) - 1
_FUTEX: Final = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(platform.machine())
_LOOK_SECONDS: Final = 1
_NAP_SECONDS: Final = 1e-4
"""Time of one sleep on platforms without ``futex``."""


class Aborted(Exception):
    """The communicator was aborted."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _syscall() -> Any:
    if sys.platform != "linux" or _FUTEX is None or sys.byteorder != "little":
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    call.argtypes = [
        *(ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32),
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32),
    ]
    return call


_CALL: Final = _syscall()


@final
class Area:
    """The memory, as one process has it mapped.

    Args:
        memory: all of it, as bytes.
        size: the number of ranks that meet in it.
    """

    def __init__(self, memory: np.ndarray[Any, np.dtype[np.uint8]], size: int) -> None:
        begin = _slots_begin(size)
        self._words: Final = memory[: (size + 1) * _STRIDE * 8].view(np.uint64)[::_STRIDE]
        self._address: Final[int] = self._words.ctypes.data
        self._slots: Final = memory[begin : begin + size * SLOT_BYTES].reshape(size, SLOT_BYTES)

    @staticmethod
    def nbytes(size: int) -> int:
        """Return the bytes of memory for ``size`` ranks."""
        return _slots_begin(size) + size * SLOT_BYTES

    def slot(self, rank: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """A rank's slot, as elements."""
        found: np.ndarray[Any, Any] = self._slots[rank].view(dtype)
        return found

    def arrive(self, rank: int, number: int) -> None:
        """Note that a rank has reached a number."""
        self._words[rank + 1] = number
        self._wake(rank + 1)

    def wait(self, ranks: Iterable[int], number: int) -> None:
        """Wait until ranks have reached a number.

        Raises:
            Aborted: it was aborted meanwhile, or before.
        """
        for rank in ranks:
            while True:
                seen = int(self._words[rank + 1])
                if self.aborted:
                    raise Aborted
                if seen >= number:
                    break
                self._sleep(rank + 1, seen)

    @property
    def aborted(self) -> bool:
        """True if the communicator was aborted."""
        return bool(self._words[0])

    def abort(self) -> None:
        """Release all present and future waiters; any process may call it, any number of times."""
        self._words[0] = 1
        for at in range(1, len(self._words)):
            self._words[at] = _ABORTED
            self._wake(at)

    def _sleep(self, at: int, seen: int) -> None:
        """Sleep until a word differs from the value ``seen``."""
        if _CALL is None:
            time.sleep(_NAP_SECONDS)
            return
        limit = _Timespec(_LOOK_SECONDS, 0)
        word = self._address + at * _STRIDE * 8
        seen_half = seen & 0xFFFFFFFF  # the kernel looks at 32 bits
        if _CALL(_FUTEX, word, _FUTEX_WAIT, seen_half, ctypes.byref(limit), None, 0):
            number = ctypes.get_errno()
            if number not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
                raise OSError(number, "futex")

    def _wake(self, at: int) -> None:
        if _CALL is not None:
            word = self._address + at * _STRIDE * 8
            _CALL(_FUTEX, word, _FUTEX_WAKE, _EVERYBODY, None, None, 0)


def _slots_begin(size: int) -> int:
    words = (size + 1) * _STRIDE * 8
    return -(-words // _PAGE) * _PAGE
