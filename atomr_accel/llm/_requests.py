"""Requests for tokens, and the pieces of their streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

FinishReason = Literal["stop", "length", "tool_calls"]
"""The reason why a stream ended, in OpenAI's words."""


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Options for the choice of tokens from logits.

    `LanguageModel.generate` checks the values, which are not checked here: one of the wrong kind
    raises TypeError there, one out of range ValueError.

    Attributes:
        temperature: a divisor of the logits, 0 or more; 0 takes the largest one.
        top_k: the number of largest logits that stay, 0 or more; 0 keeps all.
        top_p: the smallest set of tokens whose probabilities add up to this stays; more than 0, at
            most 1.
        min_p: the least probability that stays, as a share of the largest one, from 0 to 1.
        presence_penalty: subtracted from the logits of tokens that were generated; from -1e100 to
            1e100.
        frequency_penalty: subtracted once for each time that a token was generated; from -1e100 to
            1e100.
        repetition_penalty: divides positive logits of tokens that occurred, multiplies others; from
            1e-100 to 1e100.
        logit_bias: numbers to add to logits, by token: from -1e100 to 1e100, or minus infinity,
            which excludes the token. Tokens are those of the model's vocabulary, which may have
            more than its tokenizer.
        seed: the source of the choices, of 64 bits with a sign. A seed gives the same tokens in any
            batch, and after a fault. None draws one.
        stop: texts that end the stream, and are not part of it. None of them is empty, and they
            need a tokenizer.
        max_tokens: the most tokens to generate; None leaves it to the context. More than
            the context has room for is cut: the stream ends there with ``"length"``. Over HTTP that
            is status 400. 0 needs ``prompt_logprobs``.
        logprobs: the number of most likely tokens beside each one, from 0 to 100; None gives no
            logprobs.
        prompt_logprobs: the same for the tokens of the prompt: the stream begins with a piece for
            each of them. None gives no such pieces.
        ignore_eos: generate further after the model's end of text.
        grammar: a grammar of llguidance that the text follows, such as one of a JSON schema. It
            needs a tokenizer and end tokens.
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
    prompt_logprobs: int | None = None
    ignore_eos: bool = False
    grammar: str | None = None


@dataclass(frozen=True, kw_only=True)
class TokenRequest:
    """A request for tokens that continue a prompt.

    `LanguageModel.generate` checks the values, which are not checked here: one of the wrong kind
    raises TypeError there, one out of range ValueError.

    Attributes:
        prompt: tokens of the model's vocabulary; at least one, and fewer than the context has.
        sampling: options for the choice of tokens.
        priority: a whole number; requests with a higher one go first.
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
class TokenPiece:
    """A step of a stream.

    Attributes:
        token: the token.
        text: characters that the token adds, empty while a character is incomplete or a stop text
            may have begun.
        logprob: the logarithm of its probability before sampling, if asked for. The first token
            of a prompt has none.
        top: the most likely tokens, if asked for.
        finish: the reason why the stream ends with this piece, or None.
        prompt: True if the token is one of the prompt. Its text is empty.
    """

    token: int
    text: str
    logprob: float | None = None
    top: tuple[TokenScore, ...] = ()
    finish: FinishReason | None = None
    prompt: bool = False
