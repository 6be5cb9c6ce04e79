"""Answers of OpenAI's API, made of pieces of streams. The module does no I/O.

An answer is built for all choices of a request at once. Pieces of different choices may come in any
order.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from ._openai import ApiError, Translated
from ._requests import TokenPiece
from ._token_stream import TokenPlaces
from ._tool_calls import CalledTool, ToolCallFinder

if TYPE_CHECKING:
    from ._token_text import TokenText

DONE: Final = b"data: [DONE]\n\n"
"""Last event of a stream."""

encode: Final = msgspec.json.Encoder().encode


@final
class _Choice:
    """A choice so far."""

    def __init__(self, asked: Translated, index: int, tokens: TokenText) -> None:
        self.index: Final = index
        only = asked.grammar_field == "tool_choice"
        self.finder: Final = ToolCallFinder(asked.tools, only=only) if asked.tools else None
        self.text: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.prompt = len(asked.requests[index].prompt)  # pieces of it that are still to come
        self.scores: list[dict[str, Any]] = []
        self.places: Final = TokenPlaces(tokens, asked.echo[index] if asked.echo else "")
        self.begun = False
        self.finish: str | None = None
        self.pieces = 0


@final
class ModelAnswer:
    """An answer that is being made.

    Args:
        asked: the request.
        model: the model's name.
        token_text: the texts of single tokens, for logprobs.
    """

    def __init__(self, asked: Translated, model: str, token_text: TokenText) -> None:
        self._asked: Final = asked
        self._token_text: Final = token_text
        self.id: Final = ("chatcmpl-" if asked.chat else "cmpl-") + secrets.token_hex(14)
        count = len(asked.requests)
        self._choices: Final = [_Choice(asked, index, token_text) for index in range(count)]
        self._head: Final[dict[str, Any]] = {
            "id": self.id,
            "object": ("chat.completion" if asked.chat else "text_completion"),
            "created": int(time.time()),
            "model": model,
        }
        if asked.stream and asked.chat:
            self._head["object"] = "chat.completion.chunk"
        head = encode(self._head)[:-1]
        usage = b',"usage":null' if asked.include_usage else b""
        self._before: Final = b"data: " + head + usage + b',"choices":[{"index":'
        content = b',"delta":{"content":' if asked.chat else b',"text":'
        self._between: Final = content
        self._after: Final = (b"}" if asked.chat else b"") + (
            b',"logprobs":null,"finish_reason":null}]}\n\n'
        )

    @property
    def completion_tokens(self) -> int:
        """Tokens that were generated for all choices."""
        return sum(choice.pieces for choice in self._choices)

    @property
    def finishes(self) -> list[str | None]:
        """The reason why each choice ended, in order."""
        return [choice.finish for choice in self._choices]

    # --- streams ---------------------------------------------------------------------------

    def events(self, index: int, piece: TokenPiece) -> bytes:
        """Return events for a piece of a choice; none while there is nothing to tell."""
        choice = self._choices[index]
        if piece.prompt:
            return self._prompt_events(choice, piece)
        choice.pieces += 1
        begun, choice.begun = choice.begun, True
        plain = choice.finder is None and self._asked.logprobs is None
        if plain and begun and piece.finish is None:
            if not piece.text:
                return b""
            number = str(index).encode()
            return b"".join((self._before, number, self._between, encode(piece.text), self._after))
        told: list[bytes] = []
        if not begun:
            told += self._opening(index)
        scores = self._scores(choice, piece)
        parts = self._parts(choice, piece)
        if scores is not None and not any(isinstance(part, str) for part in parts):
            parts.insert(0, "")
        for part in parts:
            if isinstance(part, str):
                told.append(self._event(index, {"content": part}, scores, None))
                scores = None
            else:
                told.append(self._event(index, {"tool_calls": [self._call(part)]}))
        if piece.finish is not None:
            choice.finish = self._finish(choice, piece)
            told.append(self._event(index, {}, None, choice.finish))
        return b"".join(told)

    def last_events(self) -> bytes:
        """Return what ends the stream."""
        if not self._asked.include_usage:
            return DONE
        return (
            b"data: "
            + encode({**self._head, "choices": [], "usage": self._usage()})
            + (b"\n\n" + DONE)
        )

    def _opening(self, index: int) -> list[bytes]:
        if self._asked.chat:
            return [self._event(index, {"role": "assistant", "content": ""})]
        if self._asked.echo:
            return [self._event(index, {"content": self._asked.echo[index]})]
        return []

    def _prompt_events(self, choice: _Choice, piece: TokenPiece) -> bytes:
        """Return the echo with its scores after the last piece of the prompt."""
        self._take_prompt(choice, piece)
        told: list[bytes] = []
        if not choice.prompt and self._asked.echo:
            choice.begun = True
            scores = self._merged(choice)
            told.append(
                self._event(choice.index, {"content": self._asked.echo[choice.index]}, scores)
            )
        if piece.finish is not None:
            told.append(self._event(choice.index, {}, None, piece.finish))
        return b"".join(told)

    def _take_prompt(self, choice: _Choice, piece: TokenPiece) -> None:
        choice.prompt -= 1
        choice.finish = piece.finish
        if self._asked.echo and self._asked.logprobs is not None:
            choice.scores.append(self._text_scores(choice, piece))

    def _event(
        self, index: int, delta: dict[str, Any], scores: Any = None, finish: str | None = None
    ) -> bytes:
        choice: dict[str, Any] = {"index": index}
        if self._asked.chat:
            choice["delta"] = delta
        else:
            choice["text"] = delta.get("content", "")
        choice |= {"logprobs": scores, "finish_reason": finish}
        event = {**self._head, "choices": [choice]}
        if self._asked.include_usage:
            event["usage"] = None
        return b"data: " + encode(event) + b"\n\n"

    # --- whole answers ---------------------------------------------------------------------

    def take(self, index: int, piece: TokenPiece) -> None:
        """Keep a piece of a choice, for the whole answer."""
        choice = self._choices[index]
        if piece.prompt:
            self._take_prompt(choice, piece)
            return
        choice.pieces += 1
        scores = self._scores(choice, piece)
        if scores is not None:
            choice.scores.append(scores)
        for part in self._parts(choice, piece):
            if isinstance(part, str):
                choice.text.append(part)
            else:
                choice.calls.append(self._call(part))
        if piece.finish is not None:
            choice.finish = self._finish(choice, piece)

    def whole(self) -> bytes:
        """Return the answer as one JSON object."""
        told = self._told_message if self._asked.chat else self._told_text
        choices = [told(choice) for choice in self._choices]
        return encode({**self._head, "choices": choices, "usage": self._usage()})

    def _told_message(self, choice: _Choice) -> dict[str, Any]:
        text = "".join(choice.text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": [],
        }
        if choice.calls or (choice.finder is not None and choice.finder.dropped):
            message["content"] = text or None
        if choice.calls:
            # In a stream calls are numbered, in a message they are in order.
            message["tool_calls"] = [
                {name: value for name, value in call.items() if name != "index"}
                for call in choice.calls
            ]
        scores = None
        if self._asked.logprobs is not None:
            scores = {"content": [one for each in choice.scores for one in each["content"]]}
        return {
            "index": choice.index,
            "message": message,
            "logprobs": scores,
            "finish_reason": choice.finish,
        }

    def _told_text(self, choice: _Choice) -> dict[str, Any]:
        echo = self._asked.echo[choice.index] if self._asked.echo else ""
        return {
            "index": choice.index,
            "text": echo + "".join(choice.text),
            "logprobs": self._merged(choice),
            "finish_reason": choice.finish,
        }

    def _merged(self, choice: _Choice) -> dict[str, Any] | None:
        """Return the scores of a text so far."""
        if self._asked.logprobs is None:
            return None
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: [one for each in choice.scores for one in each[name]] for name in names}

    # --- of both ---------------------------------------------------------------------------

    def _usage(self) -> dict[str, int]:
        prompt, completion = self._asked.prompt_tokens, self.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def _parts(self, choice: _Choice, piece: TokenPiece) -> list[str | CalledTool]:
        if choice.finder is None:
            return [piece.text] if piece.text else []
        parts = choice.finder.add(piece.text)
        if piece.finish is not None:
            parts += choice.finder.end()
        return parts

    def _call(self, call: CalledTool) -> dict[str, Any]:
        return {
            "index": call.number,
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }

    def _finish(self, choice: _Choice, piece: TokenPiece) -> str | None:
        finder = choice.finder
        # Clients run the calls of this reason, so none may be a beginning alone.
        called = finder is not None and finder.found > 0 and not finder.begun
        return "tool_calls" if called and piece.finish == "stop" else piece.finish

    def _scores(self, choice: _Choice, piece: TokenPiece) -> dict[str, Any] | None:
        if self._asked.logprobs is None or piece.logprob is None:
            return None
        text, content = self._token_text(piece.token)
        if self._asked.chat:
            tops = [
                _score(*self._token_text(top.token), top.logprob)
                for top in piece.top[: self._asked.logprobs]
            ]
            return {"content": [{**_score(text, content, piece.logprob), "top_logprobs": tops}]}
        return self._text_scores(choice, piece)

    def _text_scores(self, choice: _Choice, piece: TokenPiece) -> dict[str, Any]:
        """Return a token's scores in the form of completions: none for a prompt's first token."""
        text, _ = self._token_text(piece.token)
        places = choice.places
        offset = (places.of_prompt if piece.prompt else places.of_generated)(piece.token)
        logprob: float | None = None
        tops: dict[str, float] | None = None
        if piece.logprob is not None:
            logprob, tops = _finite(piece.logprob), {}
            for top in piece.top:  # the likeliest of tokens that have one text
                tops.setdefault(self._token_text(top.token)[0], _finite(top.logprob))
            tops.setdefault(text, logprob)
        return {
            "tokens": [text],
            "token_logprobs": [logprob],
            "top_logprobs": [tops],
            "text_offset": [offset],
        }


def _score(text: str, content: bytes, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": _finite(logprob), "bytes": list(content)}


def _finite(logprob: float) -> float:
    """Return a finite logarithm, since JSON has no infinity: -9999 stands for impossible."""
    return max(logprob, -9999.0)


def failed_event(error: ApiError) -> bytes:
    """Return the event of a stream that fails after it has begun."""
    return b"data: " + error.body() + b"\n\n"


def listed_models(names: Sequence[str], created: int) -> bytes:
    """Return the list of models."""
    return encode({"object": "list", "data": [model_entry(name, created) for name in names]})


def model_entry(name: str, created: int) -> dict[str, Any]:
    """Return a model's entry in the list of models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "atomr_accel"}
