"""Engines on CUDA: tensors are device memory, and ops are queued on the lane's stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from ...._errors import Unsupported
from ....backends.cuda.host.driver import check, driver
from ._engines import SILENT, EngineExecutor
from ._library import onnxruntime

if TYPE_CHECKING:
    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ..wire.messages import LoadEngine, ModelDescription


@final
class CudaEngines(EngineExecutor):
    """Runs engines by onnxruntime's CUDA provider."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        index = context.info.index
        options = {"device_id": str(index), "user_compute_stream": str(stream.pointer)}
        super().__init__(
            context,
            ("cuda", index),
            [("CUDAExecutionProvider", options), "CPUExecutionProvider"],
        )
        self._stream = stream
        self._run_options = onnxruntime.RunOptions()
        self._run_options.log_severity_level = SILENT
        # The lane's stream tells when a run has ended.
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def _load(self, message: LoadEngine) -> ModelDescription:
        if self._stream.captures:
            raise Unsupported("engines are not recorded on CUDA; await them, or use a batch")
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise Unsupported(
                f"onnxruntime {onnxruntime.__version__} has no CUDA provider here; replace it by "
                "the package that has one: pip uninstall onnxruntime; pip install onnxruntime-gpu"
            )
        return super()._load(message)

    def _copy(self, address: int, pointer: int, nbytes: int) -> None:
        # On the lane's stream, which waits for what else uses the buffer.
        to = self._context.pointer(address)
        copied = driver.cuMemcpyDtoDAsync(to, pointer, nbytes, self._stream.handle)
        check("cuMemcpyDtoDAsync", copied)
