"""The choice of tokens from logits.

A choice follows from the logits, the seed and the position of the token alone. So a request with a
seed gets the same tokens in any batch, after a preemption and after a fault.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from .._errors import LibraryMissing
from .._install import install_command
from ..actors.util import check_instance
from ..wire.options import LARGEST, flag, real, whole
from ._request_errors import GrammarInvalid, RequestAtFault
from ._requests import SamplingOptions, TokenScore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import llguidance
    from tokenizers import Tokenizer

Floats: TypeAlias = npt.NDArray[np.float64]

_MOST_LOGPROBS: Final = 100

HUGE: Final = 1e100
"""The most that changes a logit, by any option: sums and products stay finite."""

_FEW: Final = 256
"""Most likely tokens among which those of ``top_p`` are looked for first."""


def check_sampling(options: SamplingOptions, vocabulary: int, *, texts: bool) -> None:
    """Raise unless options can be followed.

    ``texts`` says whether the model has a tokenizer.
    """
    check_instance("sampling", options, SamplingOptions)
    real(options.temperature, "temperature", least=0)
    whole(options.top_k, "top_k", least=0)
    real(options.top_p, "top_p", above=0, most=1)
    real(options.min_p, "min_p", least=0, most=1)
    real(options.presence_penalty, "presence_penalty", least=-HUGE, most=HUGE)
    real(options.frequency_penalty, "frequency_penalty", least=-HUGE, most=HUGE)
    real(options.repetition_penalty, "repetition_penalty", least=1 / HUGE, most=HUGE)
    check_instance("logit_bias", options.logit_bias, Mapping)
    for token, bias in options.logit_bias.items():
        whole(token, "a token of logit_bias", least=0, most=vocabulary - 1)
        if bias != -math.inf:
            real(bias, f"the bias of token {token} in logit_bias", least=-HUGE, most=HUGE)
    if options.seed is not None:
        whole(options.seed, "seed", least=-LARGEST - 1, most=LARGEST)
    check_instance("stop", options.stop, tuple)
    for text in options.stop:
        check_instance("a text of stop", text, str)
        if not text:
            raise ValueError("stop must have no empty text; leave it out")
    if options.max_tokens is not None:
        whole(options.max_tokens, "max_tokens", least=int(options.prompt_logprobs is None))
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(options, name) is not None:
            most = min(vocabulary, _MOST_LOGPROBS)
            whole(getattr(options, name), name, least=0, most=most)
    flag(options.ignore_eos, "ignore_eos")
    if options.grammar is not None:
        check_instance("grammar", options.grammar, str)
    if not texts and (options.stop or options.grammar is not None):
        raise ValueError(
            "stop and grammar must be left out for a model without a tokenizer, not given"
        )


def uniform(seed: int, position: int) -> float:
    """Return a number from 0 to 1, without 1, that is a function of a seed and a position."""
    digest = blake2b(f"{seed} {position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


class GrammarCompiler:
    """Grammars of llguidance for the tokens of a model.

    ``tokenizer`` is of the package ``tokenizers``.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, end_tokens: Iterable[int]) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise LibraryMissing(
                f"grammars need llguidance: {install_command('llm')}", library="llguidance"
            ) from error
        self._llguidance = llguidance
        self._tokenizer = llguidance.LLTokenizer(
            tokenizer.to_str(), n_vocab=vocabulary, eos_token=list(end_tokens)
        )
        self._vocabulary = vocabulary

    def compile(self, grammar: str) -> GrammarState:
        """Return the beginning of a text that follows a grammar. This may take a second.

        Args:
            grammar: in Lark's form as llguidance has it, or JSON as made by its
                ``grammar_from_json_schema`` and ``grammar_from_regex``.
        """
        matcher = self._llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise GrammarInvalid(f"grammar must be one of llguidance: {_said(matcher)}")
        # The first tokens may take a second to find, which no step should wait for.
        matcher.compute_bitmask()
        if matcher.is_error():
            raise GrammarInvalid(f"grammar must be one that can be followed: {_said(matcher)}")
        return GrammarState(matcher, self._vocabulary)


def _said(matcher: llguidance.LLMatcher) -> str:
    """Return an error without the state of llguidance's parser, which follows it."""
    said = str(matcher.get_error()).partition("\n<state>")[0]
    if said == "NoExtensionBias":
        return "no text follows it; a rule, or a $ref of a schema, may refer to itself without end"
    return said


class GrammarState:
    """A text that follows a grammar, so far."""

    __slots__ = ("_matcher", "_vocabulary")

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return which tokens may follow, as bools of shape (vocabulary,)."""
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        bits = np.unpackbits(packed, bitorder="little")[: self._vocabulary]
        found = np.zeros(self._vocabulary, np.bool_)
        found[: len(bits)] = bits
        return found

    def add(self, token: int) -> bool:
        """Add a token; True if nothing may follow it but the end."""
        matcher = self._matcher
        if not matcher.consume_token(token) or matcher.is_error():
            raise GrammarInvalid(f"grammar must be one that can be followed: {_said(matcher)}")
        return matcher.is_stopped()


class TokenSampler:
    """Chooses the tokens of one request.

    ``check_sampling`` has checked the options.
    """

    __slots__ = ("_counts", "_grammar", "_options", "_penalties", "_prompt", "_seed")

    def __init__(
        self,
        options: SamplingOptions,
        prompt: Sequence[int],
        seed: int,
        grammar: GrammarState | None = None,
    ) -> None:
        self._options = options
        self._seed = seed
        self._grammar = grammar
        self._penalties = bool(options.presence_penalty or options.frequency_penalty)
        self._prompt = frozenset(prompt) if options.repetition_penalty != 1 else frozenset()
        self._counts: dict[int, int] = {}

    @property
    def logprobs(self) -> bool:
        """True if logprobs were asked for."""
        return self._options.logprobs is not None

    @property
    def plain(self) -> bool:
        """True if tokens follow from the temperature alone."""
        options = self._options
        return not (self._changes or options.top_k or options.top_p < 1 or options.min_p)

    def number(self, position: int) -> float:
        """Return the number from 0 to 1 that decides about a position's token."""
        return uniform(self._seed, position)

    def add(self, token: int) -> bool:
        """Add a token that was chosen; True if nothing may follow it by the grammar."""
        self._counts[token] = self._counts.get(token, 0) + 1
        return self._grammar is not None and self._grammar.add(token)

    def choose(self, logits: npt.NDArray[np.float32], position: int) -> int:
        """Return the token for a position.

        Args:
            logits: float32 of shape (vocabulary,).
            position: its position in the sequence, prompt included.
        """
        options = self._options
        check_logits(logits, position)
        if options.temperature == 0 and not self._changes:
            return int(logits.argmax())
        changed = self._changed(logits)
        if not np.isfinite(changed.max()):
            raise RequestAtFault(
                f"no token is left for position {position} by logit_bias or the grammar"
            )
        if options.temperature == 0:
            return int(changed.argmax())
        tokens, weights = self._weights(changed)
        sums = np.cumsum(weights)
        at = int(np.searchsorted(sums, self.number(position) * sums[-1], side="right"))
        return int(tokens[min(at, len(tokens) - 1)])

    def probabilities(self, logits: npt.NDArray[np.float32]) -> Floats:
        """Return the probabilities with which tokens are chosen, float64 of shape (vocabulary,)."""
        changed = self._changed(logits)
        found = np.zeros(len(logits))
        if self._options.temperature == 0:
            found[changed.argmax()] = 1.0
            return found
        tokens, weights = self._weights(changed)
        found[tokens] = weights / weights.sum()
        return found

    @property
    def _changes(self) -> bool:
        options = self._options
        return bool(
            self._penalties
            or options.repetition_penalty != 1
            or options.logit_bias
            or self._grammar is not None
        )

    def _changed(self, logits: npt.NDArray[np.float32]) -> Floats:
        """Return logits after penalties, biases and the grammar."""
        options = self._options
        found = logits.astype(np.float64)
        if options.repetition_penalty != 1:
            seen = np.fromiter(self._prompt | self._counts.keys(), np.intp)
            penalty = options.repetition_penalty
            found[seen] = np.where(found[seen] > 0, found[seen] / penalty, found[seen] * penalty)
        if self._penalties and self._counts:
            seen = np.fromiter(self._counts.keys(), np.intp)
            times = np.fromiter(self._counts.values(), np.float64)
            found[seen] -= options.presence_penalty + options.frequency_penalty * times
        for token, bias in options.logit_bias.items():
            found[token] += bias
        if self._grammar is not None:
            found[~self._grammar.allowed()] = -np.inf
        return found

    def _weights(self, logits: Floats) -> tuple[npt.NDArray[np.intp], Floats]:
        """Return the tokens that may be chosen, in order, and numbers like their probabilities."""
        options = self._options
        with np.errstate(over="ignore"):  # by a tiny temperature
            logits = (logits - logits.max()) / options.temperature
        # Below -745 exp gives 0.
        least = max(-745.0, math.log(options.min_p) if options.min_p else -math.inf)
        tokens = np.flatnonzero(logits >= least)
        kept = logits[tokens]
        if 0 < options.top_k < len(tokens):
            order = np.sort(_largest(kept, options.top_k))
            tokens, kept = tokens[order], kept[order]
        weights = np.exp(kept)
        if options.top_p < 1:
            least, size = options.top_p * weights.sum(), _FEW
            while True:
                order = _largest(kept, size)
                sums = np.cumsum(weights[order])
                if sums[-1] >= least or len(order) == len(kept):
                    break
                size *= 8
            number = int(np.searchsorted(sums, least, side="left")) + 1
            order = np.sort(order[:number])
            tokens, weights = tokens[order], weights[order]
        return tokens, weights


def _largest(values: Floats, number: int) -> npt.NDArray[np.intp]:
    """Return the places of the largest values, in descending order; the first of equal ones first.

    Selecting them before they are sorted takes a tenth of the time for a large vocabulary.
    """
    found = np.arange(len(values))
    if number < len(values):
        least = np.partition(values, len(values) - number)[len(values) - number]
        found = np.flatnonzero(values >= least)
    return found[np.argsort(-values[found], kind="stable")][:number]


def check_token(token: int, position: int) -> None:
    """Raise `RequestAtFault` if a device found no token for a position."""
    if token < 0:
        check_logits(np.array([np.nan], np.float32), position)


def check_logits(logits: npt.NDArray[np.float32], position: int) -> None:
    """Raise `RequestAtFault` if logits for a position have NaN or infinity."""
    if not np.isfinite(logits.max()):  # NaN is the largest
        raise RequestAtFault(f"logits for position {position} must be finite, not NaN or infinity")


def score(
    logits: npt.NDArray[np.float32], token: int, number: int
) -> tuple[float, tuple[TokenScore, ...]]:
    """Return the logarithm of a token's probability, and the most likely tokens.

    ``logits`` are float32 of shape (vocabulary,).
    """
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= math.log(np.exp(wide).sum())
    if not number:
        return float(wide[token]), ()
    best = _largest(wide, number)
    return float(wide[token]), tuple(TokenScore(int(at), float(wide[at])) for at in best)
