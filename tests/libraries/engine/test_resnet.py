"""A ResNet-50 in three precisions, next to onnxruntime alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.transformers.float16 import convert_float_to_float16

from examples.onnx_engine import in_int8, resnet50

from ...harness import opened

WIDTH, PIXELS = 4, 32


def _alone(model: Any, pictures: Any) -> Any:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"pictures": pictures})[0]


async def test_results_are_those_of_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path / "cache"))
    rng = np.random.default_rng(50)
    model = resnet50(rng, WIDTH, PIXELS)
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds.count("Conv"), kinds.count("Gemm")) == (53, 1)
    path = tmp_path / "resnet.onnx"
    onnx.save(model, path)
    pictures = rng.standard_normal((2, 3, PIXELS, PIXELS), np.float32)
    int8 = onnx.load(in_int8(path, [pictures]))
    assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in int8.graph.node}
    half = convert_float_to_float16(onnx.load(path), keep_io_types=True)
    exact = _alone(model, pictures)
    async with opened(backend="cpu") as device:
        x = await device.put(pictures)
        for made, precision, alone, off in (
            (model, "model", model, 1e-4),
            (int8, "model", int8, 0.2),
            (model, "fp16", half, 1e-2),
        ):
            engine = await device.engine.build(
                made.SerializeToString(),
                precision=precision,  # type: ignore[arg-type]
            )
            y = await device.get(await engine(pictures=x))
            expected = _alone(alone, pictures)
            scale = np.abs(expected).max()
            np.testing.assert_allclose(y, expected, atol=scale * (2e-2 if off > 1e-3 else 1e-4))
            assert np.linalg.norm(y - exact) < off * np.linalg.norm(exact)
