"""Errors of requests for tokens."""

from __future__ import annotations

from .._errors import AccelError


class PromptTooLong(AccelError, ValueError):
    """A prompt leaves no room for a token in the model's context, or in the cache.

    Attributes:
        tokens: the number of tokens of the prompt.
        most: the most tokens that a prompt may have.
    """

    _fields = ("tokens", "most")

    def __init__(self, message: str, *, tokens: int, most: int) -> None:
        super().__init__(message)
        self.tokens = tokens
        self.most = most


class RequestAtFault(AccelError):
    """Steps with this request failed, at last one of it alone; ``__cause__`` is the error of that.

    Other requests go on as if it had never been there.
    """


class GrammarInvalid(AccelError, ValueError):
    """A grammar of a request does not compile, or no text follows it with this tokenizer."""
