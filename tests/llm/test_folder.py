"""Model folders, whole and broken."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Unsupported
from atomr_accel.llm import ChatRefused, ChatTemplate, ModelFolderBroken, load_folder

from .tiny import ARCHITECTURES, TinyModel, make_folder, write


def change(path: Path, **fields: Any) -> None:
    """Change fields of a file of JSON; None removes one."""
    found: dict[str, Any] = json.loads(path.read_text())
    found.update(fields)
    write(path, {name: value for name, value in found.items() if value is not None})


@pytest.mark.parametrize("family", ARCHITECTURES)
@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder(tmp_path: Path, family: str, shards: int) -> None:
    model = TinyModel(family=family)
    folder = load_folder(make_folder(tmp_path / "tiny", model, shards=shards))
    assert (folder.name, folder.config.architecture) == ("tiny", ARCHITECTURES[family])
    assert folder.end_tokens == (1,)
    assert folder.sampling == {"temperature": 0.7}
    weights = model.weights()
    assert folder.config.shapes() == {name: each.shape for name, each in weights.items()}
    with folder.checkpoint.opened() as file:
        for name, expected in weights.items():
            np.testing.assert_array_equal(file.read(name).astype(np.float32), expected)
    text = "the cat and the dog"
    assert folder.tokenizer.decode(folder.tokenizer.encode(text).ids) == text


def cut(path: Path) -> None:
    """Cut the end of a file off."""
    path.write_bytes(path.read_bytes()[:-5])


def tensors(path: Path, **changed: Any) -> None:
    """Change tensors, whose names have double underscores for dots; None removes one."""
    found: dict[str, Any] = safetensors.numpy.load_file(path)
    found |= {name.replace("__", "."): array for name, array in changed.items()}
    kept = {name: array for name, array in found.items() if array is not None}
    safetensors.numpy.save_file(kept, path)


BREAKS: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "no config": (lambda p: (p / "config.json").unlink(), ModelFolderBroken, "config.json"),
    "no JSON": (
        lambda p: (p / "config.json").write_text("{"),
        ModelFolderBroken,
        "config.json must be JSON",
    ),
    "a list": (
        lambda p: (p / "config.json").write_text("[]"),
        ModelFolderBroken,
        "must have an object, not list",
    ),
    "architecture": (
        lambda p: change(p / "config.json", architectures=["GPT2LMHeadModel"]),
        Unsupported,
        "LlamaForCausalLM.*GPT2LMHeadModel",
    ),
    "no architecture": (
        lambda p: change(p / "config.json", architectures=None),
        ModelFolderBroken,
        "architectures",
    ),
    "no hidden size": (
        lambda p: change(p / "config.json", hidden_size=None),
        ModelFolderBroken,
        "hidden_size",
    ),
    "hidden size": (
        lambda p: change(p / "config.json", hidden_size="32"),
        ModelFolderBroken,
        "hidden_size.*'32'",
    ),
    "layers": (
        lambda p: change(p / "config.json", num_hidden_layers=10**9),
        ModelFolderBroken,
        "num_hidden_layers.*from 1 to 10000",
    ),
    "head size": (
        lambda p: change(p / "config.json", head_dim=10**9),
        Unsupported,
        "head_dim.*256 at most",
    ),
    "activation": (
        lambda p: change(p / "config.json", hidden_act="gelu"),
        Unsupported,
        "hidden_act.*'gelu'",
    ),
    "quantized": (
        lambda p: change(p / "config.json", quantization_config={"bits": 4}),
        Unsupported,
        "quantization_config",
    ),
    "rotary kind": (
        lambda p: change(p / "config.json", rope_scaling={"rope_type": "longrope"}),
        Unsupported,
        "longrope",
    ),
    "rotary factor": (
        lambda p: change(p / "config.json", rope_scaling={"rope_type": "linear", "factor": -1}),
        ModelFolderBroken,
        "factor in rope_scaling.*-1",
    ),
    "heads": (
        lambda p: change(p / "config.json", num_key_value_heads=3),
        ModelFolderBroken,
        "num_key_value_heads",
    ),
    "no tensors": (
        lambda p: (p / "model.safetensors").unlink(),
        ModelFolderBroken,
        "model.safetensors",
    ),
    "truncated": (
        lambda p: cut(p / "model.safetensors"),
        ModelFolderBroken,
        "model.safetensors must be a whole file",
    ),
    "no tensor": (
        lambda p: tensors(p / "model.safetensors", model__norm__weight=None),
        ModelFolderBroken,
        "tensor model.norm.weight",
    ),
    "fewer layers": (
        lambda p: change(p / "config.json", num_hidden_layers=1),
        ModelFolderBroken,
        r"num_hidden_layers in config.json .* not 1: model.safetensors has model\.layers\.1\.",
    ),
    "more layers": (
        lambda p: change(p / "config.json", num_hidden_layers=3),
        ModelFolderBroken,
        r"tensor model\.layers\.2\.\S+, because num_hidden_layers in config.json is 3",
    ),
    "no head": (
        lambda p: tensors(p / "model.safetensors", lm_head__weight=None),
        ModelFolderBroken,
        "lm_head.weight.*tie_word_embeddings",
    ),
    "a shape": (
        lambda p: tensors(p / "model.safetensors", model__norm__weight=np.ones(31, np.float32)),
        ModelFolderBroken,
        r"model.norm.weight in model.safetensors must have shape \(32,\).*\(31,\)",
    ),
    "a dtype": (
        lambda p: tensors(p / "model.safetensors", model__norm__weight=np.ones(32, np.int8)),
        ModelFolderBroken,
        "model.norm.weight in model.safetensors must be of F32.*I8",
    ),
    "no tokenizer": (
        lambda p: (p / "tokenizer.json").unlink(),
        ModelFolderBroken,
        "tokenizer.json",
    ),
    "a tokenizer": (
        lambda p: (p / "tokenizer.json").write_text("{}"),
        ModelFolderBroken,
        "tokenizer.json must be a tokenizer",
    ),
    "a template": (
        lambda p: change(p / "tokenizer_config.json", chat_template="{% if %}"),
        ModelFolderBroken,
        "chat template.*line 1",
    ),
    "no template": (
        lambda p: change(p / "tokenizer_config.json", chat_template=5),
        ModelFolderBroken,
        "chat_template.*int",
    ),
    "end of text": (
        lambda p: change(p / "generation_config.json", eos_token_id=[1, 1000]),
        ModelFolderBroken,
        "eos_token_id in generation_config.json.*1000",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_broken_folders(tmp_path: Path, name: str) -> None:
    path = make_folder(tmp_path / "tiny")
    action, kind, words = BREAKS[name]
    action(path)
    with pytest.raises(kind, match=words):
        load_folder(path)


def test_broken_shards(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderBroken, match="must be a folder"):
        load_folder(tmp_path / "none")
    path = make_folder(tmp_path / "tiny", shards=3)
    index = path / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    moved = dict(good["weight_map"], **{"model.norm.weight": "model-00001-of-00003.safetensors"})
    write(index, {"weight_map": moved})
    with pytest.raises(ModelFolderBroken, match=r"00001-of-00003.*model\.norm\.weight"):
        load_folder(path)
    for outside in ("../model.safetensors", 5):
        write(index, {"weight_map": {"model.norm.weight": outside}})
        with pytest.raises(ModelFolderBroken, match="weight_map"):
            load_folder(path)
    write(index, good)
    (path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelFolderBroken, match=r"all 3 shards.*model-00002-of-00003"):
        load_folder(path)


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["config.json", "tokenizer_config.json"]))
def test_damaged_files_raise_what_is_documented(
    tmp_path_factory: pytest.TempPathFactory, seed: int, name: str
) -> None:
    """Any fields may be lost or have other types."""
    path = tmp_path_factory.getbasetemp() / "damaged"
    if not path.exists():
        make_folder(path, TinyModel(options={"rope_scaling": {"rope_type": "yarn", "factor": 2}}))
    file = path / name
    whole = file.read_text()
    rng = np.random.default_rng(seed)
    fields = json.loads(whole)
    values = [None, -1, 0, 7, 1.5, "x", [], [1], {}, {"content": 3}, True, math.inf]
    for each in rng.choice([*fields], 2):
        fields[str(each)] = values[rng.integers(len(values))]
    write(file, fields)
    try:
        load_folder(path)
    except (ModelFolderBroken, Unsupported) as error:
        assert str(error)  # noqa: PT017 - either it loads, or it says why not
    finally:
        file.write_text(whole)


def test_older_and_newer_configs(tmp_path: Path) -> None:
    """Newer folders have ``rope_parameters``, and lists of layer types."""
    scaling = {"rope_type": "linear", "factor": 4.0}
    old = make_folder(tmp_path / "old", TinyModel(options={"rope_scaling": scaling}))
    new = make_folder(tmp_path / "new")
    change(new / "config.json", rope_theta=None, rope_parameters={**scaling, "rope_theta": 10000.0})
    assert load_folder(old).config == load_folder(new).config
    change(new / "config.json", sliding_window=4, layer_types=["full_attention"] * 2)
    assert load_folder(new).config.windows == (0, 0)
    model = TinyModel(family="qwen3", options={"use_sliding_window": True, "sliding_window": 4})
    path = make_folder(tmp_path / "qwen3", model)
    change(path / "config.json", layer_types=["full_attention", "sliding_attention"])
    assert load_folder(path).config.windows == (0, 4)
    change(path / "config.json", layer_types=["full_attention", "chunked_attention"])
    with pytest.raises(Unsupported, match="chunked_attention"):
        load_folder(path)


def test_a_chat(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "tiny")
    folder = load_folder(path)
    messages = [{"role": "user", "content": "the <cat>"}]
    tokens = folder.render(messages, tools=[{"name": "é"}])
    text = folder.tokenizer.decode(tokens, skip_special_tokens=False)
    assert text == '<|begin|><|user|>the <cat><|end|>[{"name": "é"}]<|assistant|>'
    assert tokens[:2] == (0, 3)
    assert folder.render(messages, add_generation_prompt=False)[-1] == 1
    for wrong in ([{"role": "pope", "content": ""}], [{"role": "user", "content": {}}["role"]]):
        with pytest.raises(ChatRefused, match="the chat template refuses"):
            folder.render(wrong)  # type: ignore[arg-type]
    (path / "chat_template.jinja").write_text("{{ messages | length }}")
    assert load_folder(path).tokenizer.decode(load_folder(path).render(messages)) == "1"
    (path / "chat_template.jinja").unlink()
    change(path / "tokenizer_config.json", chat_template=None)
    with pytest.raises(Unsupported, match="no chat template"):
        load_folder(path).render(messages)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for each in range(10000000) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ messages[5].role }}",
        "{{ none() }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_templates_are_in_a_sandbox(source: str) -> None:
    with pytest.raises(ChatRefused):
        ChatTemplate(source, {}).render([{"role": "user", "content": ""}])


def test_template_functions() -> None:
    def rendered(source: str, **options: Any) -> str:
        return ChatTemplate(source, {"bos_token": "<s>"}).render([], options=options)

    assert rendered("{{ bos_token }}{{ thinking }}", thinking=3) == "<s>3"
    assert rendered("{{ strftime_now('%Y') | length }}") == "4"
    assert rendered("{{ {'b': 1, 'a': '<'} | tojson(sort_keys=True) }}") == '{"a": "<", "b": 1}'
    loop = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert rendered(loop) == "01"
    assert rendered("a{% generation %}b{% endgeneration %}c") == "abc"
