"""A language model server whose streams survive faults of the device."""

from ._request_errors import GrammarInvalid, PromptTooLong, RequestAtFault
from ._requests import FinishReason, SamplingOptions, TokenPiece, TokenRequest, TokenScore
from ._steps import Runner, StepLogits, StepSlice, StepWork

__all__ = [
    "FinishReason",
    "GrammarInvalid",
    "PromptTooLong",
    "RequestAtFault",
    "Runner",
    "SamplingOptions",
    "StepLogits",
    "StepSlice",
    "StepWork",
    "TokenPiece",
    "TokenRequest",
    "TokenScore",
]
