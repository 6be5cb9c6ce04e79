"""Models beside transformers': vectors after every layer, and logits, in float32.

Neither torch nor transformers is one of this repository's packages, so that this is skipped unless
an environment has both. The logs, by ``-rP --log-level INFO``, have the differences of each layer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from atomr_accel.llm import LlamaModel, StepSlice, StepWork, load_folder

from .. import seeds
from ..harness import opened
from .tiny import TinyModel, make_folder

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

LONG_CONTEXT = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
WINDOWS = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}

MODELS = {
    "llama": TinyModel(layers=3),
    "llama, biased": TinyModel(options={"attention_bias": True, "mlp_bias": True}),
    "llama, llama3": TinyModel(tied=True, options={"rope_scaling": LONG_CONTEXT}),
    "llama, linear": TinyModel(options={"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "llama, yarn": TinyModel(options={"rope_scaling": YARN}),
    "mistral": TinyModel(family="mistral", layers=3),
    "mistral, window": TinyModel(family="mistral", options={"sliding_window": 7}),
    "qwen2": TinyModel(family="qwen2", layers=3),
    "qwen2, window": TinyModel(family="qwen2", tied=True, layers=3, options=WINDOWS),
    "qwen3": TinyModel(family="qwen3", layers=3),
    "qwen3, wide heads": TinyModel(family="qwen3", head_size=16, tied=True),
    "qwen3, window": TinyModel(family="qwen3", layers=3, options=WINDOWS),
}

CLOSE = 2e-5
"""The largest difference as a share of the largest number: some roundings of float32."""


def transformers_states(folder: Path, tokens: Any) -> tuple[list[Any], Any]:
    """Return vectors after the embedding and each layer, and logits after each token."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    states: list[Any] = []

    def keep(_module: Any, _given: Any, made: Any) -> None:
        states.append((made[0] if isinstance(made, tuple) else made).squeeze(0).numpy())

    # Hooks, since `output_hidden_states` has the last layer's after the norm.
    for module in (model.model.embed_tokens, *model.model.layers):
        module.register_forward_hook(keep)
    with torch.no_grad():
        logits = model(torch.tensor([list(map(int, tokens))])).logits[0].numpy()
    return states, logits


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
async def test_each_layer_is_transformers(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    path = make_folder(tmp_path / "model", model)
    tokens = np.random.default_rng(seeds.draw()).integers(model.vocabulary, size=50)
    expected, expected_logits = transformers_states(path, tokens)
    async with opened(isolation="thread") as device:
        made = await LlamaModel.load(
            device, load_folder(path), pages=32, page_size=4, dtype=np.float32
        )
        piece = StepSlice(
            sequence=0,
            tokens=tuple(map(int, tokens)),
            start=0,
            pages=tuple(range(13)),
            sample=True,
            every=True,
        )
        states = await made.hidden_states(StepWork(slices=(piece,)))
        logits = await made.step(StepWork(slices=(piece,)))
    assert len(states) == len(expected) == model.layers + 1
    differences = [
        float(np.abs(found - known).max() / np.abs(known).max())
        for found, known in zip([*states, logits], [*expected, expected_logits], strict=True)
    ]
    _log.info("%s: %s", name, ", ".join(f"{each:.1e}" for each in differences))
    assert max(differences) < CLOSE
