"""Functions on CUDA: buffers speak DLPack and the CUDA array interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from ...._dtypes import DTYPES
from ....backends.cuda.host.driver import check, driver
from ....wire.interop import ON_GPU, Borrowed, DeviceArray, contiguous, device_type
from ._runner import FunctionRunner

if TYPE_CHECKING:
    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ..wire.messages import Buffer


@final
class CudaRunner(FunctionRunner):
    """Executes calls in the device's primary context, which CuPy, PyTorch and JAX use too."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        super().__init__(context)
        self._stream = stream

    def array_of(self, buffer: Buffer) -> DeviceArray:
        """Return the buffer's memory."""
        return DeviceArray(
            self._context.pointer(buffer.address),
            buffer.shape,
            DTYPES[buffer.dtype],
            device=self._context.info.index,
            sealed=buffer.sealed,
            strides=buffer.strides,
        )

    def on_device(self, thing: Any) -> bool:
        """Whatever lies in a GPU's memory."""
        return device_type(thing) in ON_GPU

    def hold(self, thing: Any) -> Borrowed:
        """Return the array itself if it is contiguous, or a contiguous copy."""
        return contiguous(thing)

    def keep(self, held: Borrowed, address: int) -> None:
        """Copy it on the device."""
        if held.nbytes:
            check(
                "cuMemcpyAsync",
                driver.cuMemcpyAsync(
                    self._context.pointer(address), held.pointer, held.nbytes, self._stream.handle
                ),
            )
            # The caller lets go of it next.
            self._stream.synchronize()

    def begin(self) -> None:
        """Wait for the buffers: the function's streams do not wait for the lane's."""
        self._context.make_current()
        self._stream.synchronize()

    def end(self) -> None:
        """Wait for all of the device's streams, since the function may have used any."""
        # The function may also have changed to another device.
        self._context.make_current()
        check("cuCtxSynchronize", driver.cuCtxSynchronize())
