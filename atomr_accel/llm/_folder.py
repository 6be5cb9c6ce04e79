"""Model folders in Hugging Face's form: the config, tensors, tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .._errors import Unsupported
from ._chat import ChatTemplate
from ._checkpoint import Checkpoint
from ._config import LlamaConfig, as_config
from ._folder_errors import ModelFolderBroken
from ._json_file import read_json
from ._packages import package
from ._token_text import tokens_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
_SAMPLING: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, kw_only=True)
class ModelFolder:
    """A folder that `load_folder` has checked.

    Attributes:
        path: the folder.
        config: the architecture.
        checkpoint: the tensors, still in their files.
        tokenizer: of the package ``tokenizers``.
        chat: the chat template, or None if the model has none.
        special: texts of special tokens by their names, such as ``"bos_token"``.
        end_tokens: tokens that end a text.
        sampling: defaults of ``generation_config.json``, by the names in `SamplingOptions`.
    """

    path: Path
    config: LlamaConfig
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    chat: ChatTemplate | None
    special: Mapping[str, str] = field(default_factory=dict)
    end_tokens: tuple[int, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """Return messages as tokens, by the chat template.

        Arguments are those of `ChatTemplate.render`.

        Raises:
            ChatRefused: the template refuses the messages, or cannot render them.
            Unsupported: the model has no chat template.
        """
        if self.chat is None:
            raise Unsupported(f"{self.name} has no chat template; pass a prompt instead")
        text = self.chat.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            options=options,
        )
        return tuple(tokens_of(self.tokenizer, text, special=False))


def load_folder(path: str | PathLike[str]) -> ModelFolder:
    """Read a model folder in Hugging Face's form, and check it.

    It has ``config.json``, ``tokenizer.json`` and ``model.safetensors``, or shards with
    ``model.safetensors.index.json``. These files may be missing: ``tokenizer_config.json``,
    ``chat_template.jinja`` and ``generation_config.json``. Of tensors only the headers are read.
    This waits for files: call it in a thread from async code.

    Args:
        path: the folder.

    Raises:
        ModelFolderBroken: a file is missing, damaged, or does not fit the others.
        Unsupported: another architecture than those of ``LlamaModel``.
        OSError: a file cannot be read.
        LibraryMissing: the extra ``llm`` is not installed.
    """
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise ModelFolderBroken(f"{folder} must be a folder, and is none; check the path")
    found = read_json(folder / "config.json")
    assert found is not None
    config = as_config(found)
    checkpoint = Checkpoint(folder)
    if not config.tied and "lm_head.weight" not in checkpoint:
        raise ModelFolderBroken(
            "the folder must have a tensor lm_head.weight, because tie_word_embeddings in "
            "config.json is not true"
        )
    checkpoint.check(config.shapes(), config.layers)
    tokenizer = _tokenizer(folder, config.vocabulary)
    about = read_json(folder / "tokenizer_config.json", optional=True) or {}
    generation = read_json(folder / "generation_config.json", optional=True) or {}
    special = {name: _text(about.get(name)) for name in _SPECIAL}
    tokens = {name: text for name, text in special.items() if text is not None}
    source = _template(folder, about)
    return ModelFolder(
        path=folder,
        config=config,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        chat=None if source is None else ChatTemplate(source, tokens),
        special=tokens,
        end_tokens=_end_tokens(found, generation, tokenizer, tokens, config.vocabulary),
        sampling={
            name: generation[name]
            for name in _SAMPLING
            if type(generation.get(name)) in (int, float)
        },
    )


def _tokenizer(folder: Path, vocabulary: int) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelFolderBroken(
            f"{folder} must have tokenizer.json, and has none; save the model's tokenizer in the "
            "fast form"
        )
    tokenizers = package("tokenizers", "tokenizers")
    text = path.read_bytes()
    try:
        made: Tokenizer = tokenizers.Tokenizer.from_buffer(text)
    except Exception as error:
        raise ModelFolderBroken(f"{path} must be a tokenizer: {error}") from error
    most = max(made.get_vocab(with_added_tokens=True).values(), default=-1)
    if most >= vocabulary:
        raise ModelFolderBroken(
            f"{path} must have tokens below vocab_size in config.json, {vocabulary}, and has {most}"
        )
    made.no_truncation()
    made.no_padding()
    return made


def _text(token: object) -> str | None:
    """Return the text of a special token, which is a text or an object with one."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _template(folder: Path, about: Mapping[str, Any]) -> str | None:
    """Return the source of the chat template."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise ModelFolderBroken(f"{path} must be UTF-8: {error}") from error
    found = about.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    if found is not None and not isinstance(found, str):
        raise ModelFolderBroken(
            f"chat_template in tokenizer_config.json must be a text, not {type(found).__name__}"
        )
    return found


def _end_tokens(
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tokenizer: Tokenizer,
    special: Mapping[str, str],
    vocabulary: int,
) -> tuple[int, ...]:
    """Return the tokens that end a text."""
    for file, fields in (("generation_config.json", generation), ("config.json", config)):
        found = fields.get("eos_token_id")
        if found is None:
            continue
        ids = found if isinstance(found, list) else [found]
        for each in ids:
            if type(each) is not int or not 0 <= each < vocabulary:
                raise ModelFolderBroken(
                    f"eos_token_id in {file} must be tokens below {vocabulary}, not {found!r}"
                )
        return tuple(dict.fromkeys(ids))
    token = tokenizer.token_to_id(special.get("eos_token", ""))
    return () if token is None else (token,)
