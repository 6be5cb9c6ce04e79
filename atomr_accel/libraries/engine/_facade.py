"""``device.engine``: models in ONNX files, called with buffers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, final, get_args

import trio

from ..._errors import Unsupported, said_of
from ...ops import Awaited, D, Facade, perform
from ...wire.options import whole
from ._resident import ResidentEngine
from ._shapes import checked_profiles, fixed_axes, require_inputs
from .engine import OnnxEngine
from .wire.messages import EngineOptions, Precision

if TYPE_CHECKING:
    from ...ops import DeviceView
    from .wire.messages import ModelDescription

Extents = Sequence[int | tuple[int, int]]
Profile = Mapping[str, Extents]

_MOST_THREADS: Final = 1024


@final
class Engines(Facade[D]):
    """Models in ONNX files, run by onnxruntime in the host."""

    def __init__(self, device: DeviceView) -> None:
        self.home = device

    async def build(
        self,
        model: str | os.PathLike[str] | bytes,
        *,
        precision: Precision = "model",
        profiles: Profile | Iterable[Profile] | None = None,
        threads: int = 0,
    ) -> OnnxEngine[Awaited]:
        """Make an engine of an ONNX model.

        The program keeps the model, and the host makes the engine again after a rebuild. Optimized
        models are kept on disk, in the folder ``engines`` of ``ATOMR_CACHE_DIR``.

        Args:
            model: the path of the file, or its bytes. Files of external data must be in the
                folder of the file, and stay there as long as the engine is used.
            precision: "model" computes in the model's types, with its quantize and dequantize
                nodes; "fp16" computes in float16, and inputs and outputs keep their types.
            profiles: the shapes that calls may have, by input: for each axis an extent or a pair of
                the least and the largest one. Of several profiles a call has to fit one. By
                default the model's own shapes are the only limits. An axis with one extent in all
                profiles is fixed in the engine, which may then know the shapes of its outputs.
            threads: the threads of an op on the CPU; 0 takes all cores.

        Returns:
            The engine.

        Raises:
            OSError: the file cannot be read.
            ValueError: the model is truncated or invalid; its external data is missing, or outside
                its folder; a profile does not fit the model; an unknown precision.
            LibraryError: onnxruntime refuses the model.
            LibraryMissing: onnx or onnxruntime is not installed; on CUDA, onnxruntime's
                provider for it cannot be loaded.
            Unsupported: the model has an opset, an op or a type that is unknown; on CUDA,
                onnxruntime has no CUDA provider; in a batch or a recording.
        """
        if self.home.call_mode is not Awaited:
            raise Unsupported(
                "engines are built by a device; build one before, and call batch.using(engine)"
            )
        if precision not in get_args(Precision):
            raise ValueError(
                f"precision must be 'model' or 'fp16', not {precision!r}; for int8, quantize the "
                "model"
            )
        checked = checked_profiles(profiles)
        count = whole(threads, "threads", least=0, most=_MOST_THREADS)
        data, folder = await _read(model)
        options = EngineOptions(
            precision, fixed_axes(checked), count, self.home.deterministic, folder
        )
        resident = ResidentEngine(data, options)
        home: Any = self.home

        def finish(description: ModelDescription) -> OnnxEngine[Awaited]:
            require_inputs(checked, description.inputs)
            return OnnxEngine(home, resident, checked, description)

        return await perform(home, resident.build(finish))


async def _read(model: object) -> tuple[bytes, str]:
    """Return the bytes of a model, and the folder of its file; empty if there is none."""
    if isinstance(model, bytes):
        return model, ""
    if not isinstance(model, str | os.PathLike):
        raise TypeError(f"model must be a path or bytes, not {said_of(model)}; serialize it")
    path = Path(cast("str | os.PathLike[str]", model))
    return await trio.to_thread.run_sync(path.read_bytes), str(path.parent.absolute())
