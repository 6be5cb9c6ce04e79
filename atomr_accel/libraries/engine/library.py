"""Descriptor of the library: ``device.engine``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...ops import Library, LibraryCheck, Requirement
from ._resident import LANE

if TYPE_CHECKING:
    from numpy.typing import NDArray


async def _check(device: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    x = rng.standard_normal((16, 32), np.float32)
    engine = await device.engine.build(_PRODUCT)
    return await device.get(await engine(x=await device.put(x))), x @ x.T


def _field(number: int, value: bytes | int) -> bytes:
    """A field of a message in the format of ONNX files, which are protocol buffers."""
    if isinstance(value, int):
        return bytes((number << 3, value))
    return bytes((number << 3 | 2, len(value))) + value


def _tensor(name: bytes, *extents: int) -> bytes:
    """A float32 tensor."""
    shape = b"".join(_field(1, _field(1, extent)) for extent in extents)
    return _field(1, name) + _field(2, _field(1, _field(1, 1) + _field(2, shape)))


_NODES: Final = (
    _field(1, b"x") + _field(2, b"t") + _field(4, b"Transpose"),
    _field(1, b"x") + _field(1, b"t") + _field(2, b"y") + _field(4, b"MatMul"),
)
_GRAPH: Final = b"".join(
    (
        *(_field(1, node) for node in _NODES),
        _field(2, b"product"),
        _field(11, _tensor(b"x", 16, 32)),
        _field(12, _tensor(b"y", 16, 16)),
    )
)
_PRODUCT: Final = _field(1, 8) + _field(7, _GRAPH) + _field(8, _field(2, 13))
"""``x @ x.T``, in opset 13. The program need not have the package onnx."""

LIBRARY: Final = Library(
    name="engine",
    summary="models in ONNX files (onnxruntime)",
    facade="atomr_accel.libraries.engine._facade:Engines",
    lanes=(LANE,),
    objects=("atomr_accel.libraries.engine.engine:OnnxEngine",),
    needs=(
        Requirement("onnx", "device.engine", "engine"),
        Requirement("onnxruntime", "device.engine", "engine"),
    ),
    check=LibraryCheck("a product of two nodes, float32", 1e-5, _check, optional=True),
)
