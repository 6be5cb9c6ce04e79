"""Questions of children to drivers, libraries and rivals, with stand-ins in this process."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from atomr_accel.cli._vendor import VendorAnswer
from atomr_accel.cli.host import _rivals, _vendor
from atomr_accel.cli.host._rivals import RivalQuestion, Task

UUID = bytes(range(16))


class Cuda:
    """The driver, of one GPU."""

    status = 0

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = 13010
        return 0

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuGetErrorName(self, status: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_UNKNOWN"
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = b"A GPU"
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> int:
        memory._obj.value = 141 << 30
        return 0

    def cuDeviceGetAttribute(self, value: Any, which: int, device: Any) -> int:
        value._obj.value = {75: 9, 76: 0, 20: 3}[which]
        return 0

    def cuDeviceGetUuid_v2(self, identity: Any, device: Any) -> int:
        identity[:] = list(UUID)
        return 0


class Nvml:
    """NVML, of the same GPU, which is divided."""

    mig = True
    status = 0

    def nvmlInit_v2(self) -> int:
        return self.status

    def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:
        text.value = b"580.65.06"
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        return 0

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: int) -> int:
        digits = UUID.hex()
        text.value = f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:]}".encode()
        return 0

    def nvmlDeviceGetMigMode(self, handle: Any, present: Any, pending: Any) -> int:
        present._obj.value = int(self.mig)
        return 0

    def nvmlShutdown(self) -> int:
        return 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The libraries that can be loaded, by their names."""
    there: dict[str, Any] = {"libcuda.so.1": Cuda(), "libnvidia-ml.so.1": Nvml()}

    def load(name: str) -> Any:
        if name not in there:
            raise OSError(f"{name}: cannot open shared object file")
        return there[name]

    monkeypatch.setattr(ctypes, "CDLL", load)
    return there


def told() -> VendorAnswer:
    answer = {**_vendor._driver(), "libraries": {}}
    return msgspec.json.decode(msgspec.json.encode(answer), type=VendorAnswer)


def test_a_gpu(machine: dict[str, Any]) -> None:
    answer = told()
    driver = answer.driver
    assert (driver.version, driver.cuda, driver.problem) == ("580.65.06", "13.1", None)
    (gpu,) = answer.gpus
    assert (gpu.name, gpu.memory, gpu.compute_capability) == ("A GPU", 141 << 30, "9.0")
    assert (gpu.compute_mode, gpu.mig) == ("exclusive-process", True)


def test_a_gpu_without_nvml(machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nvml, "status", 999)
    assert (told().driver.version, told().gpus[0].mig) == (None, None)
    del machine["libnvidia-ml.so.1"]
    monkeypatch.setattr(_vendor, "_DRIVER_FILE", SimpleNamespace(read_text=_of_the_kernel))
    assert (told().driver.version, told().gpus[0].mig) == ("575.57.08", None)


def _of_the_kernel(encoding: str) -> str:
    return "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build"


def test_a_driver_that_does_not_start(
    machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cuda, "status", 999)
    assert told().gpus == []
    assert told().driver.problem == "cuInit returned CUDA_ERROR_UNKNOWN (999)"


def test_no_driver(machine: dict[str, Any]) -> None:
    machine.clear()
    problem = told().driver.problem
    assert problem is not None
    assert problem.startswith("no NVIDIA driver")


def test_versions_of_libraries(machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """By one of two kinds of functions; one that is missing is reported with its reason."""

    def by_property(which: int, value: Any) -> int:
        value._obj.value = (12, 9, 3)[which]
        return 0

    def by_two(major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 12, 8
        return 0

    def find(name: str) -> Any:
        if name == "cufft":
            raise RuntimeError("Failure finding libcufft.so\nin many places")
        return SimpleNamespace(abs_path=name)

    pathfinder = ModuleType("cuda.pathfinder")
    pathfinder.load_nvidia_dynamic_lib = find  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)

    def by_number(version: Any) -> int:
        version._obj.value = 22304
        return 0

    machine["nccl"] = SimpleNamespace(ncclGetVersion=by_number)
    machine["cutensor"] = SimpleNamespace(cutensorGetVersion=lambda _: 20301)
    machine["cublas"] = SimpleNamespace(cublasGetProperty=by_property)
    machine["nvrtc"] = SimpleNamespace(nvrtcVersion=by_two)
    libraries = _vendor._libraries()
    assert libraries["cublas"] == {"version": "12.9.3", "path": "cublas", "problem": None}
    assert libraries["nvrtc"]["version"] == "12.8"
    assert libraries["nccl"]["version"] == "2.23.4"
    assert libraries["cutensor"]["version"] == "2.3.1"  # tells it as its result
    assert libraries["cufft"]["problem"] == "Failure finding libcufft.so"
    assert "cannot open" in str(libraries["curand"]["problem"])


# --- rivals --------------------------------------------------------------------------------


class Array(np.ndarray[Any, Any]):
    """The stand-in for `torch` and `cupy` arrays."""

    def to(self, place: str, *, copy: bool) -> Array:
        assert (place, copy) == ("cpu", True)
        return self

    def numpy(self) -> Array:
        return self


def rival(name: str) -> ModuleType:
    """Return a module of that name that computes with NumPy."""
    module = ModuleType(name)
    module.__dict__.update(vars(np))
    waits: list[object] = []
    given = {
        "__name__": name,
        "__version__": "1.0",
        "waits": waits,
        "tensor": lambda array, device: np.array(array).view(Array),
        "zeros": lambda _, device: None,
        "set_grad_enabled": lambda _: None,
        "sort": lambda x: SimpleNamespace(values=np.sort(x)) if name == "torch" else np.sort(x),
        "asnumpy": np.array,
        "nn": SimpleNamespace(functional=SimpleNamespace(layer_norm=lambda x, *_: x)),
        "cuda": SimpleNamespace(
            synchronize=waits.append,
            Device=lambda _: SimpleNamespace(use=lambda: None),
            get_current_stream=lambda: SimpleNamespace(synchronize=lambda: waits.append(0)),
        ),
    }
    module.__dict__.update(given)
    return module


TASKS = [Task(name, 8, 1) for name in ("ask", "many", "gemm", "fft", "sort", "norm", "put", "get")]


@pytest.mark.parametrize(
    ("name", "on_gpu"), [("numpy", None), ("torch", None), ("torch", 1), ("cupy", 0)]
)
def test_a_rival_measures_all_there_is(
    name: str, on_gpu: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = rival(name)
    monkeypatch.setitem(sys.modules, name, module if name != "numpy" else np)
    answer = _rivals._measured(RivalQuestion(name, on_gpu, TASKS))
    assert answer.problem is None
    assert answer.seconds.keys() == {task.name for task in TASKS}
    assert bool(module.waits) == (on_gpu is not None), "what is measured has ended"


@pytest.mark.parametrize(
    ("name", "on_gpu", "says"), [("numpy", 0, "on the CPU"), ("cupy", None, "on GPUs")]
)
def test_a_rival_that_has_no_such_device(
    name: str, on_gpu: int | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", rival("cupy"))
    answer = _rivals._measured(RivalQuestion(name, on_gpu, TASKS))
    assert says in str(answer.problem)
    assert answer.seconds == {}
