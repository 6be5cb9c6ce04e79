"""Engines on CUDA: tensors are device memory, and ops are queued on the lane's stream."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, final

from ...._errors import LibraryMissing, Unsupported
from ....backends.cuda.host.driver import check, driver
from ._engines import SILENT, EngineExecutor
from ._library import onnxruntime

if TYPE_CHECKING:
    from pathlib import Path

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ..wire.messages import EngineOptions, LoadEngine, ModelDescription

_PROVIDER: Final = "CUDAExecutionProvider"

_NEEDED: Final = ("cudart", "nvrtc", "cublasLt", "cublas", "cufft", "curand", "cudnn")
"""Libraries that the provider loads, by their names in cuda-pathfinder."""


@final
class CudaEngines(EngineExecutor):
    """Runs engines by onnxruntime's CUDA provider."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        index = context.info.index
        options = {
            "device_id": str(index),
            "user_compute_stream": str(stream.pointer),
            "use_tf32": "0",  # products of float32 round no factors, as everywhere
        }
        super().__init__(
            context,
            ("cuda", index),
            [(_PROVIDER, options), "CPUExecutionProvider"],
        )
        self._stream = stream
        self._run_options = onnxruntime.RunOptions()
        self._run_options.log_severity_level = SILENT
        # The lane's stream tells when a run has ended.
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    @staticmethod
    def preload() -> None:
        """Load the libraries of the vendor that onnxruntime needs and does not look for.

        It then finds them in the process by their names. Without them it would run on the CPU.
        """
        with suppress(ImportError):
            from cuda.pathfinder import load_nvidia_dynamic_lib

            for name in _NEEDED:
                with suppress(RuntimeError, OSError):  # the session tells that something is missing
                    load_nvidia_dynamic_lib(name)

    def _load(self, message: LoadEngine) -> ModelDescription:
        if self._stream.captures:
            raise Unsupported("engines are not recorded on CUDA; await them, or use a batch")
        if _PROVIDER not in onnxruntime.get_available_providers():
            raise Unsupported(
                f"onnxruntime {onnxruntime.__version__} has no CUDA provider here; replace it by "
                "the package that has one: pip uninstall onnxruntime; pip install onnxruntime-gpu"
            )
        self.preload()
        return super()._load(message)

    def _open(self, serialized: bytes, options: EngineOptions, save: Path | None = None) -> Any:
        session = super()._open(serialized, options, save)
        if _PROVIDER not in session.get_providers():
            raise LibraryMissing(
                f"onnxruntime {onnxruntime.__version__} cannot load its CUDA provider, which needs "
                f"{', '.join(_NEEDED)} of the CUDA that it was built for; install these, or the "
                "onnxruntime-gpu for the CUDA that is here",
                library="onnxruntime",
            )
        return session

    def _copy(self, address: int, pointer: int, nbytes: int) -> None:
        # On the lane's stream, which waits for what else uses the buffer.
        to = self._context.pointer(address)
        copied = driver.cuMemcpyDtoDAsync(to, pointer, nbytes, self._stream.handle)
        check("cuMemcpyDtoDAsync", copied)
