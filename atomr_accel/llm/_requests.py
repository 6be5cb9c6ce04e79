"""What a client asks of a language model, and the tokens that it gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

FinishReason = Literal["stop", "length", "tool_calls"]
"""Why a stream ended, in OpenAI's words."""


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen from logits.

    Attributes:
        temperature: divides the logits; 0 takes the largest one.
        top_k: how many of the largest logits are left; 0 leaves all.
        top_p: the smallest set of tokens whose probabilities add up to this is left.
        min_p: tokens below this share of the largest probability are left out.
        presence_penalty: subtracted from the logits of tokens that were generated.
        frequency_penalty: subtracted once for each time that a token was generated.
        repetition_penalty: divides positive logits of tokens that occurred, multiplies others.
        logit_bias: added to the logits of tokens, by token.
        seed: the tokens of a seed are the same in any batch, and after a fault.
        stop: texts that end the stream, and are not part of it.
        max_tokens: how many tokens are generated at most; None leaves it to the context.
        logprobs: how many of the most likely tokens are told beside each one; None tells none.
        ignore_eos: whether the model's end of text ends the stream.
        grammar: llguidance's grammar that the text has to follow, such as one of a JSON schema.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    logprobs: int | None = None
    ignore_eos: bool = False
    grammar: str | None = None


@dataclass(frozen=True, kw_only=True)
class TokenRequest:
    """One request for tokens.

    Attributes:
        prompt: the tokens that it continues, one at least.
        sampling: how tokens are chosen.
        priority: requests with a higher one go first.
        key: requests of different keys get fair shares.
    """

    prompt: tuple[int, ...]
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    priority: int = 0
    key: str = ""


@dataclass(frozen=True)
class TokenScore:
    """A token with the logarithm of its probability."""

    token: int
    logprob: float


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one step adds to a stream.

    Attributes:
        token: the token.
        text: what it adds to the text, which is empty as long as a character is incomplete or
            a stop text may have begun.
        logprob: the logarithm of its probability before sampling, if asked for.
        top: the most likely tokens, if asked for.
        finish: why the stream ends with this piece, or None.
    """

    token: int
    text: str
    logprob: float | None = None
    top: tuple[TokenScore, ...] = ()
    finish: FinishReason | None = None
