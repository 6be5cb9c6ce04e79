"""The packages that read and run models, or the error that says how to install them."""

from __future__ import annotations

from ...._errors import LibraryMissing
from ...._install import install_command

try:
    import onnx
    import onnxruntime
    from google.protobuf.message import DecodeError
    from onnx import checker, helper, shape_inference
except ImportError as error:
    raise LibraryMissing(
        f"device.engine needs onnx and onnxruntime, which cannot be imported ({error}); "
        f"{install_command('engine')}",
        library="onnxruntime",
    ) from error

__all__ = ["DecodeError", "checker", "helper", "onnx", "onnxruntime", "shape_inference"]
