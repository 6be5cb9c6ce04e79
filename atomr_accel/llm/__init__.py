"""A language model server whose streams survive faults of the device."""

from ._http import ServerLimits
from ._request_errors import GrammarInvalid, PromptTooLong, RequestAtFault
from ._requests import FinishReason, SamplingOptions, TokenPiece, TokenRequest, TokenScore
from ._served_model import ServedModel
from ._server import (
    LanguageModelServer,
    LanguageModelServerStatistics,
    serve_language_model,
)
from ._steps import Runner, StepLogits, StepSlice, StepWork

__all__ = [
    "FinishReason",
    "GrammarInvalid",
    "LanguageModelServer",
    "LanguageModelServerStatistics",
    "PromptTooLong",
    "RequestAtFault",
    "Runner",
    "SamplingOptions",
    "ServedModel",
    "ServerLimits",
    "StepLogits",
    "StepSlice",
    "StepWork",
    "TokenPiece",
    "TokenRequest",
    "TokenScore",
    "serve_language_model",
]
