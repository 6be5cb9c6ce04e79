"""Questions to a driver, with a pretended one in the place of CUDA's."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from atomr_accel.testing import _driver


class PretendedDriver:
    """A driver with two devices and given statuses."""

    def __init__(self, *, started: bool, current: int = 0, primary: tuple[int, int] = (0, 0)):
        self.started = started
        self.current = current
        self.primary = primary
        self.active = [bool(status) for status in primary]
        self.retained = 0
        self.pushed: list[int] = []

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0 if self.started else 3

    def cuCtxSynchronize(self) -> int:  # noqa: N802
        return self.primary[self.pushed[-1]] if self.pushed else self.current

    def cuDevicePrimaryCtxGetState(self, device: int, flags: Any, active: Any) -> int:  # noqa: N802
        active._obj.value = self.active[device]
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:  # noqa: N802
        context._obj.value = device + 1
        self.retained += 1
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: int) -> int:  # noqa: N802
        self.retained -= 1
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:  # noqa: N802
        self.pushed.append(context.value - 1)
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:  # noqa: N802
        self.pushed.pop()
        return 0

    def cuGetErrorName(self, status: int, name: Any) -> int:  # noqa: N802
        name._obj.value = b"CUDA_ERROR_%d" % status
        return 0

    def cuGetErrorString(self, status: int, words: Any) -> int:  # noqa: N802
        words._obj.value = b"words"
        return 0


def load(monkeypatch: pytest.MonkeyPatch, driver: PretendedDriver) -> PretendedDriver:
    monkeypatch.setattr(ctypes, "CDLL", lambda name, mode: driver)
    return driver


def test_no_driver_is_loaded_to_ask_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, mode: int) -> object:
        assert mode & 4, "RTLD_NOLOAD"
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert not _driver.in_use()
    assert _driver.fault() is None


def test_a_driver_that_is_loaded_only_is_not_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, PretendedDriver(started=False, current=700))
    assert not _driver.in_use()
    assert _driver.fault() is None


@pytest.mark.parametrize("status", [0, 201, 900])
def test_other_statuses_are_no_faults(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    load(monkeypatch, PretendedDriver(started=True, current=status, primary=(0, status)))
    assert _driver.in_use()
    assert _driver.fault() is None


def test_the_current_context_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, PretendedDriver(started=True, current=700))
    assert _driver.fault() == "CUDA_ERROR_700 (700): words"


def test_the_contexts_of_other_devices_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = load(monkeypatch, PretendedDriver(started=True, current=201, primary=(0, 719)))
    assert _driver.fault() == "CUDA_ERROR_719 (719): words"
    assert driver.retained == 0
    assert driver.pushed == []
