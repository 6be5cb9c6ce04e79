"""Questions to a CUDA driver that others have loaded: nothing here loads or starts one."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_NOT_INITIALIZED: Final = 3

_STICKY: Final = frozenset(
    {
        214,  # ECC_UNCORRECTABLE
        220,  # NVLINK_UNCORRECTABLE
        226,  # CONTAINED
        700,  # ILLEGAL_ADDRESS
        702,  # LAUNCH_TIMEOUT
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
"""Statuses after which each later call of the process fails, too."""


def _started() -> tuple[ctypes.CDLL, int] | None:
    """Return the driver and the number of its devices, if this process has initialized it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None
    # A driver that is loaded but not initialized answers all calls but cuInit with this status.
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) == _NOT_INITIALIZED:
        return None
    return driver, count.value


def in_use() -> bool:
    """Return whether this process has initialized a CUDA driver."""
    return _started() is not None


def fault() -> str | None:
    """Return the name of a sticky fault of this process's contexts, after all of their work.

    Asked are the thread's current context and the primary contexts, which the runtime uses.
    """
    started = _started()
    if started is None:
        return None
    driver, count = started
    if (status := driver.cuCtxSynchronize()) in _STICKY:
        return _name(driver, status)
    for device in range(count):
        if (status := _synchronize_primary(driver, device)) in _STICKY:
            return _name(driver, status)
    return None


def _synchronize_primary(driver: ctypes.CDLL, device: int) -> int:
    flags, active, context = ctypes.c_uint(), ctypes.c_int(), ctypes.c_void_p()
    status: int = driver.cuDevicePrimaryCtxGetState(
        device, ctypes.byref(flags), ctypes.byref(active)
    )
    if status or not active.value:
        return status
    status = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if status:
        return status
    try:
        status = driver.cuCtxPushCurrent_v2(context) or driver.cuCtxSynchronize()
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
    return status


def _name(driver: ctypes.CDLL, status: int) -> str:
    name, words = ctypes.c_char_p(), ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(name))
    driver.cuGetErrorString(status, ctypes.byref(words))
    return f"{(name.value or b'').decode()} ({status}): {(words.value or b'').decode()}"
