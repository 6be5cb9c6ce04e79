"""Texts of streams: characters of tokens as they come, and stop texts across tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

    from ._token_text import TokenText

_UNKNOWN: Final = "\ufffd"
"""A character in place of bytes that are none, or not yet."""

_LONGEST = 64
"""Tokens after which incomplete characters are no longer waited for."""


class Detokenizer:
    """Text of tokens that come one by one, each character once it is complete.

    The texts together are the text of all tokens, as ``tokenizer.decode`` gives it.

    Args:
        tokenizer: of the package ``tokenizers``.
        special: whether special tokens have their texts.

    Attributes:
        held: characters that may be incomplete, and are not given yet.
    """

    __slots__ = ("_before", "_first", "_read", "_sent", "_special", "_tokenizer", "_tokens", "held")

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._tokens: list[int] = []
        self.held = ""
        # Tokens from ``first`` to ``read`` are decoded again as the context of later ones:
        # a space is dropped at the beginning of a text alone.
        self._first = self._read = 0
        self._before = 0  # the length of their text
        self._sent = 0  # characters after it that were given already

    def add(self, token: int) -> str:
        """Return the characters that a token completes."""
        self._tokens.append(token)
        new = self._new()
        held = min(3, len(new) - len(new.rstrip(_UNKNOWN)))  # parts of one character
        if len(self._tokens) - self._first > _LONGEST:
            held = 0
        found = new[self._sent : len(new) - held]
        self.held = new[len(new) - held :]
        self._sent += len(found)
        if new and not held:
            self._first, self._read = self._read, len(self._tokens)
            self._before = len(self._decode(self._tokens[self._first : self._read]))
            self._sent = 0
            del self._tokens[: self._first]
            self._read -= self._first
            self._first = 0
        return found

    def flush(self) -> str:
        """Return the rest, in which characters may be incomplete."""
        found = self._new()[self._sent :]
        self._sent += len(found)
        return found

    def _new(self) -> str:
        return self._decode(self._tokens[self._first :])[self._before :]

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=not self._special)
        return text


class TokenPlaces:
    """Places of tokens in a text, in characters: where the text of each begins.

    A character's parts all have its place. A token without text has the place of what follows.

    Args:
        tokens: the tokens.
        echo: the prompt, if the text begins with it.
    """

    __slots__ = ("_at", "_echo", "_generated", "_prompt", "_tokens")

    def __init__(self, tokens: TokenText, echo: str = "") -> None:
        self._tokens = tokens
        self._echo = echo
        self._at = 0
        self._prompt = Detokenizer(tokens.tokenizer, special=True)
        self._generated: Detokenizer | None = None

    def of_prompt(self, token: int) -> int:
        """Return the place of the prompt's next token."""
        at = self._at + len(self._prompt.held)
        special = self._tokens.special.get(token)
        # One that the text does not have was added to it, such as one that begins every text.
        # Decoding may put a space before it.
        if special is None or special in self._echo[at : at + len(special) + 1]:
            at = min(self._next(self._prompt, token), len(self._echo))
        return at

    def of_generated(self, token: int) -> int:
        """Return the place of the next generated token."""
        if self._generated is None:
            self._generated = Detokenizer(self._tokens.tokenizer)
            self._at = len(self._echo)
        return self._next(self._generated, token)

    def _next(self, text: Detokenizer, token: int) -> int:
        before = text.held
        found = text.add(token)
        after = found + text.held
        unknown = len(after) - len(after.lstrip(_UNKNOWN))
        at = self._at + min(len(before), unknown)  # the others have become a character
        self._at += len(found)
        if before and after == before and token not in self._tokens.special:
            at -= bool(self._tokens(token)[1])  # a part of the last character
        return at


class StopTexts:
    """Text up to the first of some stop texts, whatever pieces it comes in.

    The first one is the one that is complete first; of several, the longest. Characters with which
    a stop text may begin are held back.
    """

    __slots__ = ("_held", "_most", "_stops", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._most = max(map(len, stops), default=0)
        self._held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """Return the characters that are certain to come before any stop text."""
        if not self._stops:
            return text
        held = self._held + text
        ends = [(at + len(stop), at) for stop in self._stops if (at := held.find(stop)) >= 0]
        if ends:
            self.stopped = True
            self._held = ""
            return held[: min(ends)[1]]
        keep = next(
            size
            for size in range(min(self._most - 1, len(held)), -1, -1)
            if not size or any(stop.startswith(held[-size:]) for stop in self._stops)
        )
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """Return the characters that were held back, after which nothing comes."""
        held, self._held = self._held, ""
        return held
