"""Parking hosts on CUDA: the calls of the driver, and their prototypes."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import LibraryError, OutOfMemory, Unsupported
from atomr_accel.backends.cuda.host import parking
from atomr_accel.backends.cuda.host.parking import (
    CHECKPOINTED,
    LOCK_MILLISECONDS,
    MARGIN,
    NVML_PROTOTYPES,
    PROTOTYPES,
    RUNNING,
    CudaParker,
    LockArguments,
    MemoryInfo,
)

from ..fakes.checkpoints import FAILED, NOT_SUPPORTED, FakeCheckpoints, FakeMemoryReadings

UUID: Final = "00112233445566778899aabbccddeeff"
NAME: Final = "GPU-00112233-4455-6677-8899-aabbccddeeff"
GIB: Final = 1 << 30


def made(free: int = 8 * GIB, held: int = GIB) -> tuple[FakeCheckpoints, CudaParker]:
    """A driver with process 7 on its device, and a parker."""
    driver = FakeCheckpoints(free)
    driver.states[7], driver.held[7] = RUNNING, held
    return driver, CudaParker(driver, FakeMemoryReadings(driver, NAME))


def test_a_process_is_parked_and_returns() -> None:
    driver, parker = made()
    parker.check()
    assert parker.park(7, UUID) == GIB
    assert driver.timeout == LOCK_MILLISECONDS
    assert (driver.states[7], driver.free) == (CHECKPOINTED, 9 * GIB)
    parker.restore(7, UUID, GIB)
    assert (driver.states[7], driver.free) == (RUNNING, 8 * GIB)
    assert driver.calls == ["lock", "checkpoint", "restore", "unlock"]


@given(st.integers(0, 4 * GIB), st.integers(0, 4 * GIB))
def test_no_process_returns_without_room(held: int, others: int) -> None:
    driver, parker = made(free=0, held=held)
    parker.park(7, UUID)
    driver.free = others
    if others < held + MARGIN:
        with pytest.raises(OutOfMemory, match=f"a parked host needs {held + MARGIN} bytes"):
            parker.restore(7, UUID, held)
        assert driver.states[7] == CHECKPOINTED
        driver.free = held + MARGIN
    parker.restore(7, UUID, held)
    assert driver.states[7] == RUNNING


@pytest.mark.parametrize("call", ["lock", "checkpoint"])
def test_a_process_that_is_not_parked_is_told(call: str) -> None:
    driver, parker = made()
    driver.fails[call] = NOT_SUPPORTED
    with pytest.raises(LibraryError, match="returned CUDA_ERROR_NOT_SUPPORTED") as caught:
        parker.park(7, UUID)
    assert (caught.value.library, caught.value.status) == ("cuda", NOT_SUPPORTED)
    assert driver.states[7] == FAILED


@pytest.mark.parametrize("call", ["restore", "unlock"])
def test_a_process_that_does_not_return_is_told(call: str) -> None:
    driver, parker = made()
    parker.park(7, UUID)
    driver.fails[call] = NOT_SUPPORTED
    with pytest.raises(LibraryError, match="CUDA_ERROR_NOT_SUPPORTED"):
        parker.restore(7, UUID, GIB)
    with pytest.raises(LibraryError, match="has no checkpoint to return from"):
        parker.restore(7, UUID, GIB)


def test_a_device_that_nvml_does_not_know_is_told() -> None:
    driver, parker = made()
    with pytest.raises(LibraryError, match="nvmlDeviceGetHandleByUUID returned NVML status 6"):
        parker.park(7, UUID[::-1])
    assert driver.states[7] == RUNNING


@pytest.mark.parametrize("name", PROTOTYPES)
def test_a_driver_without_checkpoints_has_advice(name: str) -> None:
    driver, _ = made()
    functions = {each: getattr(driver, each) for each in PROTOTYPES if each != name}
    with pytest.raises(Unsupported, match=f"needs {name} of the driver; update NVIDIA's driver to"):
        CudaParker(SimpleNamespace(**functions), FakeMemoryReadings(driver, NAME))


def test_a_machine_without_the_driver_has_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(
        Unsupported, match=r"needs libcuda\.so\.1 of NVIDIA's driver, which cannot be"
    ):
        CudaParker()


ASK: Final = r"""
#include <cuda.h>
#include <cstddef>
#include <type_traits>

template <class Is, class Told> constexpr bool fits() {
  if constexpr (std::is_same_v<Told, void*>) return std::is_pointer_v<Is>;
  else if constexpr (std::is_same_v<Told, int*>)
    return std::is_pointer_v<Is> && sizeof(std::remove_pointer_t<Is>) == sizeof(int);
  else if constexpr (std::is_same_v<Told, int>) return sizeof(Is) == sizeof(int);
  else return std::is_same_v<Is, Told>;
}
template <class F, class... Told> struct Row;
template <class R, class... Is, class... Told> struct Row<R(Is...), Told...> {
  static_assert(sizeof(R) == sizeof(int));
  static_assert(sizeof...(Is) == sizeof...(Told));
  static_assert((fits<Is, Told>() && ...));
};
"""

IN_C: Final = {
    ctypes.c_int: "int",
    ctypes.c_uint: "unsigned",
    ctypes.c_void_p: "void*",
    ctypes.POINTER(ctypes.c_int): "int*",
    ctypes.POINTER(ctypes.c_char_p): "const char**",
}


@pytest.mark.headers
def test_prototypes_are_those_of_the_header(tmp_path: Path) -> None:
    folder = _headers()
    rows = [
        f"template struct Row<decltype({name}), {', '.join(IN_C[each] for each in types)}>;"
        for name, types in PROTOTYPES.items()
    ]
    facts = {
        f"sizeof(CUcheckpointLockArgs) == {ctypes.sizeof(LockArguments)}",
        f"offsetof(CUcheckpointLockArgs, timeoutMs) == {LockArguments.timeoutMs.offset}",
        f"CU_PROCESS_STATE_RUNNING == {RUNNING}",
        f"CU_PROCESS_STATE_LOCKED == {parking.LOCKED}",
        f"CU_PROCESS_STATE_CHECKPOINTED == {CHECKPOINTED}",
        f"CU_PROCESS_STATE_FAILED == {FAILED}",
    }
    assert _compiles(tmp_path, folder, [*rows, *(f"static_assert({fact});" for fact in facts)])
    wrong = "template struct Row<decltype(cuCheckpointProcessLock), unsigned>;"
    assert not _compiles(tmp_path, folder, [wrong])


@pytest.mark.headers
def test_nvml_is_that_of_its_package() -> None:
    pynvml = pytest.importorskip("pynvml")
    theirs = pynvml.c_nvmlMemory_t
    assert ctypes.sizeof(MemoryInfo) == ctypes.sizeof(theirs)
    for name, _ in MemoryInfo._fields_:
        assert getattr(MemoryInfo, name).offset == getattr(theirs, name).offset
    text = Path(pynvml.__file__).read_text(encoding="utf-8")
    assert all(f'"{name}"' in text for name in NVML_PROTOTYPES)


def _headers() -> Path:
    finder = pytest.importorskip("cuda.pathfinder")
    found = finder.find_nvidia_header_directory("cudart")
    if found is None or not (Path(found) / "cuda.h").exists():
        pytest.skip("cuda.h is not installed")
    if "cuCheckpointProcessLock" not in (Path(found) / "cuda.h").read_text(encoding="utf-8"):
        pytest.skip("this cuda.h is older than checkpoints of processes")
    return Path(found)


def _compiles(folder: Path, headers: Path, lines: list[str]) -> bool:
    source = folder / "ask.cpp"
    source.write_text("\n".join((ASK, *lines)))
    command = ["c++", "-std=c++17", "-fsyntax-only", f"-isystem{headers}", str(source)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no C++ compiler")
    return done.returncode == 0
