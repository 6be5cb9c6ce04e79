"""The executor for CUDA, among stand-ins for the context, the stream and the session."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest

from atomr_accel import LibraryError, LibraryMissing, Unsupported
from atomr_accel.host.templates import HostTemplate
from atomr_accel.libraries.engine.host import _cuda
from atomr_accel.libraries.engine.host._cuda import CudaEngines
from atomr_accel.libraries.engine.wire.messages import (
    BoundTensor,
    EngineOptions,
    LoadEngine,
    RunAndHold,
    RunEngine,
    SupplyModel,
    TakeHeld,
)
from atomr_accel.wire import PLACE

from .models import linear

_BASE = 1 << 48
_STREAM = 0xABC0
_FLOAT = 1
"""``TensorProto.FLOAT``"""


class _Value:
    """A result that onnxruntime holds."""

    def shape(self) -> list[int]:
        return [3, 4]

    def data_ptr(self) -> int:
        return 0xD00


class _Session:
    """Notes the bound tensors of each run.

    Attributes:
        all_absent: whether the libraries of the provider cannot be loaded.
    """

    all_absent = False

    def __init__(self, serialized: bytes, options: Any, providers: list[Any]) -> None:
        self.providers = providers
        self.absent = _Session.all_absent
        self.runs: list[tuple[dict[str, Any], Any]] = []
        self.error: Exception | None = None
        if options.optimized_model_filepath:
            Path(options.optimized_model_filepath).write_bytes(serialized)

    def get_providers(self) -> list[str]:
        names = [each if isinstance(each, str) else each[0] for each in self.providers]
        return names[1:] if self.absent else names

    def io_binding(self) -> Any:
        bound: dict[str, Any] = {}

        def bind(name: str, *how: Any) -> None:
            bound[name] = how

        return SimpleNamespace(
            bound=bound, bind_input=bind, bind_output=bind, get_outputs=lambda: [_Value()]
        )

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        if self.error is not None:
            raise self.error
        self.runs.append((dict(binding.bound), options))


class _Host:
    """An executor among stand-ins."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, captures: bool = False) -> None:
        self.sessions: list[_Session] = []
        self.steps: list[Any] = []

        def session(
            serialized: bytes, options: Any, providers: list[Any], enable_fallback: int
        ) -> _Session:
            assert enable_fallback == 0
            self.sessions.append(_Session(serialized, options, providers))
            return self.sessions[-1]

        def copy(*args: Any) -> tuple[int]:
            self.steps.append(args)
            return (0,)

        monkeypatch.setattr(onnxruntime, "InferenceSession", session)
        monkeypatch.setattr(_cuda, "driver", SimpleNamespace(cuMemcpyDtoDAsync=copy))
        context: Any = SimpleNamespace(
            info=SimpleNamespace(index=3),
            check=lambda: None,
            pointer=lambda address: _BASE + address,
            synchronize=lambda: self.steps.append("synchronize"),
        )
        stream: Any = SimpleNamespace(pointer=_STREAM, handle="handle", captures=captures)
        self.engines = CudaEngines(context, stream)

    def load(self) -> None:
        model = linear(np.random.default_rng(0))[0].SerializeToString()
        options = EngineOptions("model", (), 0, False, "")
        self.engines.handlers[SupplyModel](SupplyModel(1, len(model), 0, model))
        self.engines.handlers[LoadEngine](LoadEngine(1, options))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Host:
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path))
    there = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: there)
    return _Host(monkeypatch)


def _run(x: int, y: int) -> RunEngine:
    return RunEngine(
        1, (BoundTensor("x", x, (3, 8), "float32"),), (BoundTensor("y", y, (3, 4), "float32"),)
    )


def _bound(x: int, y: int) -> dict[str, Any]:
    return {
        "x": ("cuda", 3, _FLOAT, (3, 8), _BASE + x),
        "y": ("cuda", 3, _FLOAT, (3, 4), _BASE + y),
    }


def test_sessions_queue_on_the_stream_of_the_lane_and_do_not_wait(host: _Host) -> None:
    host.load()
    device = {"device_id": "3", "user_compute_stream": str(_STREAM), "use_tf32": "0"}
    for each in host.sessions:
        assert each.providers == [("CUDAExecutionProvider", device), "CPUExecutionProvider"]
    host.engines.handlers[RunEngine](_run(256, 512))
    ((bound, options),) = host.sessions[-1].runs
    assert bound == _bound(256, 512)
    assert options.get_run_config_entry("disable_synchronize_execution_providers") == "1"
    assert host.steps == []


def test_calls_by_template_bind_their_own_pointers(host: _Host) -> None:
    host.load()
    encoded = msgspec.msgpack.encode(_run(PLACE, PLACE | 1))
    template = HostTemplate(encoded, msgspec.msgpack.Decoder(RunEngine).decode)
    run = host.engines.preparers[RunEngine](template)
    assert run is not None
    for x, y in ((256, 512), (1024, 256)):
        run((x, y))
        assert host.sessions[-1].runs[-1][0] == _bound(x, y)


def test_results_of_unknown_shape_are_copied_on_the_stream_of_the_lane(host: _Host) -> None:
    host.load()
    hold = RunAndHold(1, _run(256, 0).inputs, ("y",), 7)
    assert host.engines.handlers[RunAndHold](hold) == [[3, 4]]
    assert host.sessions[-1].runs[-1][0]["y"] == ("cuda", 3)
    assert host.steps == ["synchronize"]  # the shapes are those of a run that is over
    host.engines.handlers[TakeHeld](TakeHeld(7, (512,), (48,)))
    assert host.steps[1:] == [(_BASE + 512, 0xD00, 48, "handle")]


def test_errors_of_runs_are_those_of_the_library(host: _Host) -> None:
    host.load()
    host.sessions[-1].error = RuntimeError("cuDNN said no")
    with pytest.raises(LibraryError, match="cuDNN said no"):
        host.engines.handlers[RunEngine](_run(256, 512))


def test_builds_without_the_provider(host: _Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(Unsupported, match="pip install onnxruntime-gpu"):
        host.load()


def test_builds_without_the_libraries_of_the_provider(
    host: _Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Session, "all_absent", True)  # onnxruntime then has a session on the CPU
    with pytest.raises(LibraryMissing, match="cannot load its CUDA provider, which needs cudart"):
        host.load()


def test_libraries_are_loaded_before_the_first_session(
    host: _Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def load(name: str) -> None:
        assert not host.sessions
        found.append(name)
        if name == "nvrtc":
            raise RuntimeError("not found")

    pathfinder = ModuleType("cuda.pathfinder")
    pathfinder.load_nvidia_dynamic_lib = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    host.load()
    assert found == ["cudart", "nvrtc", "cublasLt", "cublas", "cufft", "curand", "cudnn"]


def test_recordings_are_refused(host: _Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="not recorded on CUDA"):
        _Host(monkeypatch, captures=True).load()
