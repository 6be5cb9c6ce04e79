"""Tiny models: folders with random weights, and their logits by NumPy in float64."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy
import tokenizers

Array = np.ndarray[Any, Any]

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role not in ('system', 'user', 'assistant', 'tool') %}"
    "{{ raise_exception('unknown role: ' + message.role) }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""A chat template."""

SPECIAL = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


@functools.cache
def tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer of bytes, a few pairs and special tokens."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(SPECIAL),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = ["the cat sat on the mat and the dog ran to the other side of the river"] * 2
    made.train_from_iterator(text, trainer)
    return made


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """A tiny model, whose weights are random by a seed.

    Attributes:
        family: a key of ``ARCHITECTURES``.
        seed: the seed of weights.
        options: further fields of the config.
    """

    family: str = "llama"
    seed: int = 0
    hidden: int = 32
    intermediate: int = 48
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 8
    context: int = 128
    vocabulary: int = 300
    tied: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """The fields of ``config.json``."""
        return {
            "architectures": [ARCHITECTURES[self.family]],
            "model_type": self.family,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "max_position_embeddings": self.context,
            "vocab_size": self.vocabulary,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            "sliding_window": None,
            **self.options,
        }

    def weights(self) -> dict[str, Array]:
        """Return the tensors in float32, each rounded to bfloat16."""
        rng = np.random.default_rng(self.seed)
        config = self.config
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        bias = config.get("attention_bias", False)
        biases = {"q": bias, "k": bias, "v": bias, "o": bias}
        if self.family == "qwen2":
            biases = {"q": True, "k": True, "v": True, "o": False}
        made: dict[str, Array] = {}

        def product(name: str, rows: int, columns: int, biased: bool = False) -> None:
            made[f"{name}.weight"] = rng.normal(0, 1 / math.sqrt(columns), (rows, columns))
            if biased:
                made[f"{name}.bias"] = rng.normal(0, 0.3, rows)

        def norm(name: str, size: int) -> None:
            made[f"{name}.weight"] = rng.normal(1, 0.2, size)

        product("model.embed_tokens", self.vocabulary, self.hidden)
        made["model.embed_tokens.weight"] *= math.sqrt(self.hidden)
        for layer in range(self.layers):
            at = f"model.layers.{layer}"
            norm(f"{at}.input_layernorm", self.hidden)
            norm(f"{at}.post_attention_layernorm", self.hidden)
            for each, rows in (("q", q), ("k", kv), ("v", kv)):
                product(f"{at}.self_attn.{each}_proj", rows, self.hidden, biases[each])
            product(f"{at}.self_attn.o_proj", self.hidden, q, biases["o"])
            if self.family == "qwen3":
                norm(f"{at}.self_attn.q_norm", self.head_size)
                norm(f"{at}.self_attn.k_norm", self.head_size)
            mlp = config.get("mlp_bias", False)
            product(f"{at}.mlp.gate_proj", self.intermediate, self.hidden, mlp)
            product(f"{at}.mlp.up_proj", self.intermediate, self.hidden, mlp)
            product(f"{at}.mlp.down_proj", self.hidden, self.intermediate, mlp)
        norm("model.norm", self.hidden)
        if not self.tied:
            product("lm_head", self.vocabulary, self.hidden)
        return {
            name: each.astype(ml_dtypes.bfloat16).astype(np.float32) for name, each in made.items()
        }


def make_folder(path: Path, model: TinyModel | None = None, *, shards: int = 1) -> Path:
    """Make a model folder, and return its path.

    Args:
        path: the folder, which is made.
        model: the model.
        shards: number of files of tensors; with more than one there is an index.
    """
    model = model or TinyModel()
    path.mkdir(parents=True, exist_ok=True)
    write(path / "config.json", model.config)
    tensors = {name: each.astype(ml_dtypes.bfloat16) for name, each in model.weights().items()}
    if shards == 1:
        safetensors.numpy.save_file(tensors, path / "model.safetensors")
    else:
        names = [list(each) for each in np.array_split(np.array([*tensors]), shards)]
        places: dict[str, str] = {}
        for number, each in enumerate(names):
            file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
            safetensors.numpy.save_file({str(n): tensors[n] for n in each}, path / file)
            places |= {str(name): file for name in each}
        write(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": places})
    tokenizer().save(str(path / "tokenizer.json"))
    about = {
        "bos_token": {"__type": "AddedToken", "content": SPECIAL[0]},
        "eos_token": SPECIAL[1],
        "chat_template": TEMPLATE,
    }
    write(path / "tokenizer_config.json", about)
    write(path / "generation_config.json", {"eos_token_id": [1], "temperature": 0.7})
    return path


def write(path: Path, content: object) -> None:
    """Write a file of JSON."""
    path.write_text(json.dumps(content))


# --- the reference ----------------------------------------------------------------------


def reference(model: TinyModel, tokens: Any) -> tuple[list[Array], Array]:
    """Return hidden states after the embedding and each layer, and the logits, in float64."""
    w = {name: each.astype(float) for name, each in model.weights().items()}
    config, count, size = model.config, len(tokens), model.head_size
    epsilon = config["rms_norm_eps"]
    angles = np.outer(np.arange(count), frequencies(model))
    scale = _attention_factor(config.get("rope_scaling"))
    cosine, sine = (scale * np.tile(f(angles), (1, 2))[:, None] for f in (np.cos, np.sin))

    def norm(x: Array, name: str) -> Array:
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * w[name])

    def linear(x: Array, name: str) -> Array:
        return np.asarray(x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0))

    def turned(x: Array) -> Array:
        a, b = np.split(x, 2, -1)
        return x * cosine + np.concatenate([-b, a], -1) * sine

    x = w["model.embed_tokens.weight"][np.asarray(tokens)]
    states = [x]
    for layer in range(model.layers):
        at = f"model.layers.{layer}"
        h = norm(x, f"{at}.input_layernorm.weight")
        q, k, v = (
            linear(h, f"{at}.self_attn.{each}_proj").reshape(count, -1, size) for each in "qkv"
        )
        if model.family == "qwen3":
            q = norm(q, f"{at}.self_attn.q_norm.weight")
            k = norm(k, f"{at}.self_attn.k_norm.weight")
        q, k = turned(q), turned(k)
        k, v = (each.repeat(model.heads // model.kv_heads, axis=1) for each in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(size)
        distance = np.arange(count)[:, None] - np.arange(count)
        seen = distance >= 0
        window = _window(model, layer)
        if window:
            seen &= distance < window
        shares = np.exp(np.where(seen, scores - scores.max(-1, keepdims=True), -np.inf))
        shares /= shares.sum(-1, keepdims=True)
        y = np.einsum("hqk,khd->qhd", shares, v).reshape(count, -1)
        x = x + linear(y, f"{at}.self_attn.o_proj")
        h = norm(x, f"{at}.post_attention_layernorm.weight")
        gate = linear(h, f"{at}.mlp.gate_proj")
        h = gate / (1 + np.exp(-gate)) * linear(h, f"{at}.mlp.up_proj")
        x = x + linear(h, f"{at}.mlp.down_proj")
        states.append(x)
    head = "model.embed_tokens" if model.tied else "lm_head"
    return states, np.asarray(norm(x, "model.norm.weight") @ w[f"{head}.weight"].T)


def _window(model: TinyModel, layer: int) -> int:
    config = model.config
    window = int(config.get("sliding_window") or 0)
    if model.family == "mistral":
        return window
    if model.family == "llama" or not config.get("use_sliding_window"):
        return 0
    return window if layer >= config["max_window_layers"] else 0


def frequencies(model: TinyModel) -> Array:
    """Return the angles from one position to the next, pair by pair."""
    config, size = model.config, model.head_size
    theta = config["rope_theta"]
    scaling = config.get("rope_scaling") or {"rope_type": "default"}
    found = []
    for pair in range(size // 2):
        plain = theta ** (-2 * pair / size)
        wave = 2 * math.pi / plain
        factor = scaling.get("factor", 1.0)
        match scaling["rope_type"]:
            case "linear":
                plain /= factor
            case "llama3":
                original = scaling["original_max_position_embeddings"]
                low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
                if wave > original / low:
                    plain /= factor
                elif wave >= original / high:
                    smooth = (original / wave - low) / (high - low)
                    plain = (1 - smooth) * plain / factor + smooth * plain
            case "yarn":
                original = scaling["original_max_position_embeddings"]
                ends = [
                    size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
                    for turns in (32, 1)
                ]
                first, last = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), size - 1)
                ramp = min(max((pair - first) / max(last - first, 0.001), 0), 1)
                plain = ramp * plain / factor + (1 - ramp) * plain
        found.append(plain)
    return np.array(found)


def _attention_factor(scaling: Any) -> float:
    if scaling and scaling["rope_type"] == "yarn":
        return 0.1 * math.log(scaling["factor"]) + 1
    return 1.0
