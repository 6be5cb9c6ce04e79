"""A language model server whose streams survive faults of the device."""

from ._requests import FinishReason, Piece, SamplingOptions, TokenRequest, TokenScore

__all__ = ["FinishReason", "Piece", "SamplingOptions", "TokenRequest", "TokenScore"]
