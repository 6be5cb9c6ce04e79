"""Streams of tokens, from the model's task to the callers'.

With many streams, callers take as long with a step's pieces as the device takes for a step. So they
get them while it computes the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import trio

from ._requests import FinishReason, TokenPiece, TokenRequest, TokenScore
from ._sampler import TokenSampler, check_logits, check_token, score
from ._token_stream import Detokenizer, StopTexts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from ._scheduler import ScheduledSequence
    from ._steps import StepSlice


TURNS: Final = 6
"""Turns of the loop until a step is sent, and some more."""


class ChosenToken(NamedTuple):
    """A token that was chosen.

    Attributes:
        last: True if the grammar allows nothing after it.
        logprob: the logarithm of its probability, if asked for.
        top: the most likely tokens, if asked for.
    """

    token: int
    last: bool
    logprob: float | None
    top: tuple[TokenScore, ...]


class _Untold(NamedTuple):
    """A piece of a stream whose text may be missing.

    Attributes:
        choice: its token.
        text: the text, None if it is not decoded yet.
        ended: True if the token is an end token, which has no text.
        finish: of the piece.
    """

    choice: ChosenToken
    text: str | None
    ended: bool
    finish: FinishReason | None


Chosen: TypeAlias = tuple[list[TokenPiece], ChosenToken | None]
"""Pieces of the prompt, and the next token if there is one."""


class TokenStream:
    """Pieces of one request, from the model's task to the caller's."""

    def __init__(
        self,
        request: TokenRequest,
        sequence: ScheduledSequence,
        sampler: TokenSampler,
        tokenizer: Tokenizer | None,
    ) -> None:
        self.request: Final = request
        self.sequence: Final = sequence
        self.sampler: Final = sampler
        self._text = None if tokenizer is None else Detokenizer(tokenizer)
        self._stops = StopTexts(request.sampling.stop)
        self._pieces: deque[TokenPiece | _Untold] = deque()
        self._news = trio.Event()
        self._error: Exception | None = None
        self._chosen: tuple[int, ChosenToken] | None = None
        self.finish: FinishReason | None = None

    @property
    def over(self) -> bool:
        """True if no more pieces come."""
        return self.finish is not None or self._error is not None

    def choice(self, piece: StepSlice) -> tuple[float, float] | None:
        """Return how the device may choose the next token; None if its logits are needed here."""
        sampling = self.request.sampling
        if piece.every or sampling.logprobs is not None or not self.sampler.plain:
            return None
        if sampling.temperature == 0:
            return 0.0, 0.0
        return sampling.temperature, self.sampler.number(len(self.sequence.tokens))

    def take(self, piece: StepSlice, logits: Any, token: int | None) -> Chosen | Exception:
        """Return what a step says of a slice. It may run in a thread, one at a time.

        Another call for the same position gives the same choice, so it can be done again. ``token``
        is what the device has chosen, None if it has not.
        """
        try:
            if token is not None:
                check_token(token, len(self.sequence.tokens))
                return [], ChosenToken(token, False, None, ())
            scores = self._scores(logits, piece.start) if piece.every else []
            wanted = piece.sample and self.request.sampling.max_tokens != 0
            return scores, self._choose(logits[-1]) if wanted else None
        except Exception as error:  # noqa: BLE001 (it is the request's answer)
            return error

    def _choose(self, logits: Any) -> ChosenToken:
        sequence, number = self.sequence, self.request.sampling.logprobs
        position = len(sequence.tokens)
        if self._chosen is not None and self._chosen[0] == position:
            return self._chosen[1]  # the grammar has this token already
        token = self.sampler.choose(logits, position)
        last = self.sampler.add(token)
        logprob, top = (None, ()) if number is None else score(logits, token, number)
        choice = ChosenToken(token, last, logprob, top)
        self._chosen = position, choice
        return choice

    def _scores(self, logits: Any, start: int) -> list[TokenPiece]:
        """Return pieces of the prompt, of logits after its tokens from ``start`` on."""
        number, sequence = self.request.sampling.prompt_logprobs, self.sequence
        assert number is not None
        tokens = sequence.tokens
        found = [] if sequence.scored else [TokenPiece(token=tokens[0], text="", prompt=True)]
        for at, row in enumerate(logits, start + 1):
            if sequence.scored < at < sequence.prompt:
                check_logits(row, at)
                logprob, top = score(row, tokens[at], number)
                found.append(
                    TokenPiece(token=tokens[at], text="", logprob=logprob, top=top, prompt=True)
                )
        if self.request.sampling.max_tokens == 0 and start + len(logits) >= sequence.prompt - 1:
            found[-1] = replace(found[-1], finish="length")
        return found

    def add_scores(self, pieces: list[TokenPiece]) -> None:
        """Add pieces of the prompt. The stream ends with them if no token is to follow."""
        if pieces:
            self.finish = pieces[-1].finish
            self._pieces.extend(pieces)

    def add(self, choice: ChosenToken, end_tokens: frozenset[int]) -> None:
        """Add a token that was chosen."""
        ended = choice.token in end_tokens and not self.request.sampling.ignore_eos
        # Only stop texts need the text now. Otherwise whoever takes the piece decodes it, while the
        # device has the next step.
        text = self._decoded(choice.token, ended) if self.request.sampling.stop else None
        if ended or choice.last or self._stops.stopped:
            self.finish = "stop"
        elif len(self.sequence.tokens) + 1 >= self.sequence.limit:
            self.finish = "length"
        untold = _Untold(choice, text, ended, self.finish)
        self._pieces.append(untold if text is None else self._told(untold))

    def _decoded(self, token: int, ended: bool) -> str:
        if ended or self._text is None:
            return ""
        return self._stops.add(self._text.add(token))

    def _told(self, piece: _Untold) -> TokenPiece:
        (token, _, logprob, top), text, ended, finish = piece
        if text is None:
            text = self._decoded(token, ended)
        if finish is not None and self._text is not None and not self._stops.stopped:
            text += self._stops.add(self._text.flush()) + self._stops.flush()
        return TokenPiece(token=token, text=text, logprob=logprob, top=top, finish=finish)

    def fail(self, error: Exception) -> None:
        """End with an error, after the pieces that are there."""
        if not self.over:
            self._error = error
            self.wake()

    def wake(self) -> None:
        """Wake the caller, for whom there are pieces or the end."""
        self._news.set()

    def __aiter__(self) -> AsyncIterator[TokenPiece]:
        return self

    async def __anext__(self) -> TokenPiece:
        if self._pieces or self.over:
            await trio.lowlevel.checkpoint()
        while not self._pieces:
            if self._error is not None:
                # A scope whose deadline ends the stream is cancelled by the next turn of the loop.
                await trio.lowlevel.checkpoint()
                raise self._error
            if self.finish is not None:
                raise StopAsyncIteration
            self._news = trio.Event()
            await self._news.wait()
        piece = self._pieces.popleft()
        return self._told(piece) if isinstance(piece, _Untold) else piece


class Wakes:
    """Wakes callers for the pieces of a step, once the next step is on its way to the device."""

    def __init__(self) -> None:
        self._streams: list[TokenStream] = []
        self._some = trio.Event()

    def add(self, stream: TokenStream) -> None:
        """Note a stream with news."""
        self._streams.append(stream)
        self._some.set()

    async def serve(self) -> None:
        """Wake callers until cancelled, and then those that are left."""
        try:
            while True:
                await self._some.wait()
                self._some = trio.Event()
                # The model's task needs as many turns of the loop to send a step. Callers who are
                # awake would make each turn last until all of them had run.
                for _ in range(TURNS):
                    await trio.lowlevel.checkpoint()
                self._wake()
        finally:
            self._wake()

    def _wake(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.wake()
