"""A language model server whose streams survive faults of the device."""

from ._requests import FinishReason, SamplingOptions, TokenPiece, TokenRequest, TokenScore

__all__ = ["FinishReason", "SamplingOptions", "TokenPiece", "TokenRequest", "TokenScore"]
