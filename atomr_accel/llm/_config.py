"""The architecture of a model, as ``config.json`` of its folder describes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .._errors import Unsupported, said_of
from ._folder_errors import ModelFolderBroken


@dataclass(frozen=True, slots=True)
class _Family:
    """Properties that an architecture has by its name, and defaults of its config.

    Attributes:
        kv_heads: default number of heads of keys; None for as many as heads.
        head_size: default size of a head; None for a share of the hidden size.
        biased: whether queries, keys and values have biases whatever the config says.
        qk_norm: whether queries and keys are normalized.
        window: default of ``sliding_window``.
        optional_window: whether windows need ``use_sliding_window``.
    """

    kv_heads: int | None = None
    head_size: int | None = None
    biased: bool = False
    qk_norm: bool = False
    window: int | None = None
    optional_window: bool = False


_FAMILIES: Final = {
    "LlamaForCausalLM": _Family(),
    "MistralForCausalLM": _Family(kv_heads=8, window=4096),
    "Qwen2ForCausalLM": _Family(kv_heads=32, biased=True, optional_window=True),
    "Qwen3ForCausalLM": _Family(kv_heads=32, head_size=128, qk_norm=True, optional_window=True),
}

ARCHITECTURES: Final = tuple(_FAMILIES)
"""The architectures that `LlamaModel` computes, by the names in ``config.json``."""

_MOST_LAYERS: Final = 10_000
_MOST_COUNT: Final = 2**31 - 1
_MOST_SIZE: Final = 256
"""Largest size of a head: the kernel for attention keeps sums in shared memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryEmbedding:
    """Angles by which queries and keys are turned, as a function of their position.

    Attributes:
        frequencies: angle from one position to the next, for each pair of numbers of a head.
        scale: factor of sines and cosines.
    """

    frequencies: tuple[float, ...]
    scale: float = 1.0

    def table(self, positions: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return cosines and sines, float32 of shape (positions, 2, pairs)."""
        angles = np.outer(np.arange(positions), np.array(self.frequencies))
        return (self.scale * np.stack([np.cos(angles), np.sin(angles)], 1)).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """The architecture of a model of the Llama family.

    Attributes:
        architecture: one of ``ARCHITECTURES``.
        vocabulary: number of tokens.
        hidden: size of the vector of a token.
        intermediate: size inside of a layer's last part.
        layers: number of layers.
        heads: heads of queries.
        kv_heads: heads of keys and values, a divisor of ``heads``.
        head_size: numbers of a head, an even number.
        context: the most positions of a sequence.
        epsilon: added to mean squares.
        qkv_bias: whether queries, keys and values have biases.
        output_bias: whether the product after attention has a bias.
        mlp_bias: whether the products of a layer's last part have biases.
        qk_norm: whether queries and keys are normalized, head by head.
        tied: whether logits are computed with the embedding.
        windows: for each layer the number of latest positions that a token sees, itself included,
            or 0 for all.
        rotary: angles of positions.
    """

    architecture: str
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    context: int
    epsilon: float
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied: bool
    windows: tuple[int, ...]
    rotary: RotaryEmbedding

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors, by their names in a folder."""
        wide, narrow = self.heads * self.head_size, self.kv_heads * self.head_size
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocabulary, self.hidden)
        products = {
            "self_attn.q_proj": (wide, self.hidden, self.qkv_bias),
            "self_attn.k_proj": (narrow, self.hidden, self.qkv_bias),
            "self_attn.v_proj": (narrow, self.hidden, self.qkv_bias),
            "self_attn.o_proj": (self.hidden, wide, self.output_bias),
            "mlp.gate_proj": (self.intermediate, self.hidden, self.mlp_bias),
            "mlp.up_proj": (self.intermediate, self.hidden, self.mlp_bias),
            "mlp.down_proj": (self.hidden, self.intermediate, self.mlp_bias),
        }
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            for name in ("input_layernorm", "post_attention_layernorm"):
                shapes[f"{prefix}.{name}.weight"] = (self.hidden,)
            for name, (rows, columns, biased) in products.items():
                shapes[f"{prefix}.{name}.weight"] = (rows, columns)
                if biased:
                    shapes[f"{prefix}.{name}.bias"] = (rows,)
            if self.qk_norm:
                for name in ("q_norm", "k_norm"):
                    shapes[f"{prefix}.self_attn.{name}.weight"] = (self.head_size,)
        return shapes


def as_config(found: Mapping[str, Any]) -> LlamaConfig:
    """Return the architecture that a ``config.json`` describes."""
    fields = _ConfigFields(found)
    names = found.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ModelFolderBroken(
            f"architectures in config.json must be a list of one name, not {names!r}"
        )
    family = _FAMILIES.get(names[0])
    if family is None:
        raise Unsupported(
            f"architectures in config.json must be one of {', '.join(ARCHITECTURES)}, not "
            f"{names[0]!r}"
        )
    _refuse_features(found)
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads")
    layers = fields.count("num_hidden_layers", most=_MOST_LAYERS)
    kv_heads = fields.count("num_key_value_heads", family.kv_heads or heads)
    head_size = fields.count("head_dim", family.head_size or hidden // heads)
    context = fields.count("max_position_embeddings")
    if heads % kv_heads:
        raise ModelFolderBroken(
            f"num_key_value_heads in config.json must divide num_attention_heads, {heads}, and "
            f"{kv_heads} does not"
        )
    if head_size % 2:
        raise ModelFolderBroken(f"head_dim in config.json must be even, not {head_size}")
    if head_size > _MOST_SIZE:
        raise Unsupported(f"head_dim in config.json must be {_MOST_SIZE} at most, not {head_size}")
    biased = fields.flag("attention_bias")
    if family.optional_window and not family.qk_norm:
        biased = False  # the output has none
    return LlamaConfig(
        architecture=names[0],
        vocabulary=fields.count("vocab_size"),
        hidden=hidden,
        intermediate=fields.count("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        context=context,
        epsilon=fields.number("rms_norm_eps", 1e-6),
        qkv_bias=family.biased or biased,
        output_bias=biased,
        mlp_bias=fields.flag("mlp_bias"),
        qk_norm=family.qk_norm,
        tied=fields.flag("tie_word_embeddings"),
        windows=_windows(fields, family, layers),
        rotary=_rotary(fields, head_size, context),
    )


class _ConfigFields:
    """The fields of a config. Each is checked when it is read."""

    def __init__(self, found: Mapping[str, Any], place: str = "config.json") -> None:
        self.found: Final = found
        self.place: Final = place

    def _get(self, name: str, default: Any) -> Any:
        value = self.found.get(name)
        value = default if value is None else value
        if value is None:
            raise ModelFolderBroken(f"{self.place} must have a field {name}, and has none")
        return value

    def count(self, name: str, default: int | None = None, most: int = _MOST_COUNT) -> int:
        """Return a number that is at least 1."""
        value = self._get(name, default)
        if type(value) is not int or not 1 <= value <= most:
            raise ModelFolderBroken(
                f"{name} in {self.place} must be a whole number from 1 to {most}, not {value!r}"
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number above 0."""
        value = self._get(name, default)
        if type(value) not in (int, float) or not (0 < value < math.inf):
            raise ModelFolderBroken(
                f"{name} in {self.place} must be a number above 0, not {value!r}"
            )
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return whether something is so."""
        value = self._get(name, default)
        if type(value) is not bool:
            raise ModelFolderBroken(f"{name} in {self.place} must be true or false, not {value!r}")
        return value


def _refuse_features(found: Mapping[str, Any]) -> None:
    """Refuse features that would change results and are not computed here."""
    wanted = {
        "hidden_act": ("silu", "swish"),
        "quantization_config": (None,),
        "partial_rotary_factor": (1, 1.0),
        "pretraining_tp": (1,),
    }
    for name, values in wanted.items():
        value = found.get(name)
        if value is not None and value not in values:
            raise Unsupported(
                f"{name} in config.json must be "
                f"{'absent' if values == (None,) else values[0]}, not {value!r:.80}"
            )


def _windows(fields: _ConfigFields, family: _Family, layers: int) -> tuple[int, ...]:
    """Return the window of each layer."""
    used = not family.optional_window or fields.flag("use_sliding_window")
    given = fields.found.get("sliding_window", family.window)
    window = 0
    if used and (family.window or family.optional_window) and given is not None:
        window = fields.count("sliding_window", family.window)
    kinds = fields.found.get("layer_types")
    if kinds is None:
        first = 0
        if family.optional_window and window:
            first = fields.found.get("max_window_layers", 28)
            if type(first) is not int or first < 0:
                raise ModelFolderBroken(
                    f"max_window_layers in config.json must be a whole number, not {first!r}"
                )
        return tuple([window if layer >= first else 0 for layer in range(layers)])
    names = {"full_attention": 0, "sliding_attention": window}
    if (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or not all(isinstance(kind, str) for kind in kinds)
    ):
        raise ModelFolderBroken(
            f"layer_types in config.json must be a list of {layers} names, not {said_of(kinds)}"
        )
    strange = next((kind for kind in kinds if kind not in names), None)
    if strange is not None:
        raise Unsupported(
            f"layer_types in config.json must be {' or '.join(names)}, not {strange!r}"
        )
    if "sliding_attention" in kinds and not window:
        raise ModelFolderBroken(
            "config.json has layers of sliding_attention, and no sliding_window"
        )
    return tuple([names[kind] for kind in kinds])


def _rotary(fields: _ConfigFields, size: int, context: int) -> RotaryEmbedding:
    """Return the angles of positions."""
    newer = fields.found.get("rope_parameters")
    given = fields.found.get("rope_scaling") if newer is None else newer
    if given is not None and not isinstance(given, dict):
        raise ModelFolderBroken(f"rope_scaling in config.json must be an object, not {given!r}")
    options = _ConfigFields(given or {}, "rope_parameters" if newer is not None else "rope_scaling")
    theta = fields.number("rope_theta", 10000.0)
    theta = options.number("rope_theta", theta)
    if options.number("partial_rotary_factor", 1.0) != 1:
        raise Unsupported("partial_rotary_factor in rope_parameters must be 1")
    kind = options.found.get("rope_type", options.found.get("type", "default"))
    plain = theta ** -(np.arange(0, size, 2) / size)
    scale = 1.0
    # "dynamic" changes angles beyond max_position_embeddings only, where no sequence goes.
    if kind == "linear":
        plain = plain / options.number("factor")
    elif kind == "llama3":
        plain = _llama3(plain, options)
    elif kind == "yarn":
        plain, scale = _yarn(plain, options, theta, context)
    elif kind not in ("default", "dynamic"):
        raise Unsupported(
            f"rope_type in {options.place} must be default, dynamic, linear, llama3 or yarn, not "
            f"{kind!r}"
        )
    return RotaryEmbedding(frequencies=tuple(plain.tolist()), scale=scale)


def _llama3(plain: np.ndarray[Any, Any], options: _ConfigFields) -> np.ndarray[Any, Any]:
    """Stretch long waves, and short ones not."""
    factor = options.number("factor")
    low, high = options.number("low_freq_factor"), options.number("high_freq_factor")
    original = options.count("original_max_position_embeddings")
    if low >= high:
        raise ModelFolderBroken(
            f"low_freq_factor in {options.place} must be less than high_freq_factor, {high}, not "
            f"{low}"
        )
    waves = original * plain / (2 * np.pi)  # in the original context
    share = np.clip((waves - low) / (high - low), 0, 1)
    stretched: np.ndarray[Any, Any] = (1 - share) * plain / factor + share * plain
    return stretched


def _yarn(
    plain: np.ndarray[Any, Any], options: _ConfigFields, theta: float, context: int
) -> tuple[np.ndarray[Any, Any], float]:
    """Stretch slow pairs, and fast ones not; the second result is the factor of cosines."""
    for name in ("mscale", "mscale_all_dim"):
        if options.found.get(name) is not None:
            raise Unsupported(f"{name} in {options.place} must be absent")
    factor, size = options.number("factor"), 2 * len(plain)
    original = options.count("original_max_position_embeddings", context)

    def pair(turns: float) -> float:
        """Return the pair that makes a number of turns in the original context."""
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(options.number("beta_fast", 32.0)), pair(options.number("beta_slow", 1.0))
    if options.flag("truncate", default=True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    high += 0.001 if low == high else 0
    slow = np.clip((np.arange(len(plain)) - low) / (high - low), 0, 1)
    default = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return slow * plain / factor + (1 - slow) * plain, options.number("attention_factor", default)
