"""A language model server whose streams survive faults of the device."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._chat import ChatTemplate
    from ._checkpoint import Checkpoint, OpenCheckpoint
    from ._config import ARCHITECTURES, LlamaConfig, RotaryEmbedding
    from ._folder import ModelFolder, load_folder
    from ._folder_errors import ChatRefused, ModelFolderBroken
    from ._http import ServerLimits
    from ._model import LlamaModel, LlamaStatistics, WeightsDamaged
    from ._request_errors import GrammarInvalid, PromptTooLong, RequestAtFault
    from ._requests import FinishReason, SamplingOptions, TokenPiece, TokenRequest, TokenScore
    from ._served import LanguageModel, LanguageModelStatistics, open_language_model
    from ._served_model import ServedModel
    from ._server import LanguageModelServer, LanguageModelServerStatistics, serve_language_model
    from ._steps import (
        ChoosingRunner,
        DurableRunner,
        Runner,
        StepChoices,
        StepLogits,
        StepSlice,
        StepTokens,
        StepWork,
    )

__all__ = [
    "ARCHITECTURES",
    "ChatRefused",
    "ChatTemplate",
    "Checkpoint",
    "ChoosingRunner",
    "DurableRunner",
    "FinishReason",
    "GrammarInvalid",
    "LanguageModel",
    "LanguageModelServer",
    "LanguageModelServerStatistics",
    "LanguageModelStatistics",
    "LlamaConfig",
    "LlamaModel",
    "LlamaStatistics",
    "ModelFolder",
    "ModelFolderBroken",
    "OpenCheckpoint",
    "PromptTooLong",
    "RequestAtFault",
    "RotaryEmbedding",
    "Runner",
    "SamplingOptions",
    "ServedModel",
    "ServerLimits",
    "StepChoices",
    "StepLogits",
    "StepSlice",
    "StepTokens",
    "StepWork",
    "TokenPiece",
    "TokenRequest",
    "TokenScore",
    "WeightsDamaged",
    "load_folder",
    "open_language_model",
    "serve_language_model",
]

# Hosts import the kernels' functions, and with them this package: it must not load the program's.
_HOMES = {
    "_server": "LanguageModelServer LanguageModelServerStatistics serve_language_model",
    "_served_model": "ServedModel",
    "_http": "ServerLimits",
    "_chat": "ChatTemplate",
    "_checkpoint": "Checkpoint OpenCheckpoint",
    "_config": "ARCHITECTURES LlamaConfig RotaryEmbedding",
    "_folder": "ModelFolder load_folder",
    "_folder_errors": "ChatRefused ModelFolderBroken",
    "_model": "LlamaModel LlamaStatistics WeightsDamaged",
    "_request_errors": "GrammarInvalid PromptTooLong RequestAtFault",
    "_requests": "FinishReason SamplingOptions TokenPiece TokenRequest TokenScore",
    "_served": "LanguageModel LanguageModelStatistics open_language_model",
    "_steps": (
        "ChoosingRunner DurableRunner Runner StepChoices StepLogits StepSlice StepTokens StepWork"
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value
