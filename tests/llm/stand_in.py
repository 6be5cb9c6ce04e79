"""A language model that generates what a test has written, and its clients."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from atomr_accel.llm import (
    FinishReason,
    LanguageModelServer,
    TokenPiece,
    TokenRequest,
    TokenScore,
    serve_language_model,
)


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer whose tokens are the bytes of UTF-8."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@dataclass(frozen=True)
class ScriptedStatistics:
    """Numbers that the gateway asks for."""

    waiting: int = 3
    running: int = 2
    pages: int = 8
    pages_used: int = 6
    page_size: int = 16
    faults: int = 0
    recovering: bool = False


Script = Callable[[TokenRequest], AsyncIterator[TokenPiece]]


@dataclass
class ScriptedModel:
    """A model that answers as its script says, with pieces or errors.

    Attributes:
        script: yields the pieces for a request.
        asked: requests so far.
        open: streams that are open.
        changed: an event that is set when that number changes.
    """

    script: Script
    name: str = "toy"
    context: int = 256
    tokenizer: Tokenizer = field(default_factory=byte_tokenizer)
    numbers: ScriptedStatistics = field(default_factory=ScriptedStatistics)
    asked: list[TokenRequest] = field(default_factory=list)
    open: int = 0
    changed: trio.Event = field(default_factory=trio.Event)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[int, ...]:
        """Return the messages' texts, and the names of tools."""
        self.rendered = [dict(message) for message in messages]
        self.tools = tools
        text = "".join(f"{message['role'][0]}:{message['content']}\n" for message in messages)
        if "!refuse" in text:
            raise ValueError("the template refuses these messages")
        return tuple(self.tokenizer.encode(text).ids)

    @asynccontextmanager
    async def generate(self, request: TokenRequest) -> AsyncIterator[AsyncIterator[TokenPiece]]:
        """Open a stream."""
        self.asked.append(request)
        self.open += 1
        self.changed.set()
        try:
            await trio.lowlevel.checkpoint()
            yield self.script(request)
        finally:
            self.open -= 1
            self.changed.set()

    async def until_open(self, number: int) -> None:
        """Wait until a number of streams is open."""
        while self.open != number:
            self.changed = trio.Event()
            await self.changed.wait()

    def statistics(self) -> ScriptedStatistics:
        """The model at this moment."""
        return self.numbers


def saying(*texts: str, finish: FinishReason = "stop") -> Script:
    """Return a script of texts, each of which is a piece."""

    async def script(request: TokenRequest) -> AsyncIterator[TokenPiece]:
        limit = request.sampling.max_tokens or len(texts)
        for at, text in enumerate(texts[:limit]):
            await trio.lowlevel.checkpoint()
            last = at + 1 == min(limit, len(texts))
            cut = last and limit < len(texts)
            scored = request.sampling.logprobs is not None
            yield TokenPiece(
                token=at,
                text=text,
                logprob=-0.5 - at if scored else None,
                top=tuple(
                    TokenScore(at + more, -0.5 - at - more)
                    for more in range(request.sampling.logprobs or 0)
                ),
                finish=("length" if cut else finish) if last else None,
            )

    return script


def failing(error: Exception, *before: str) -> Script:
    """Return a script that fails after some texts."""

    async def script(_request: TokenRequest) -> AsyncIterator[TokenPiece]:
        for at, text in enumerate(before):
            yield TokenPiece(token=at, text=text)
        await trio.lowlevel.checkpoint()
        raise error

    return script


@dataclass(frozen=True)
class Reply:
    """An answer as a client gets it."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error in OpenAI's form."""
        error: dict[str, Any] = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    @property
    def events(self) -> list[Any]:
        """Events of a stream that has ended as it should."""
        *events, done, rest = self.body.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]


async def ask(
    server: LanguageModelServer,
    path: str,
    body: object = None,
    *,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send a request without a client's package, to see every byte."""
    sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    verb = method or ("GET" if body is None else "POST")
    lines = {
        "host": f"127.0.0.1:{server.port}",
        "content-type": "application/json",
        "content-length": str(len(sent)),
        "connection": "close",
        **(headers or {}),
    }
    head = f"{verb} {path} HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in lines.items())
    return await raw(server, head.encode() + b"\r\n" + sent)


async def raw(server: LanguageModelServer, sent: bytes) -> Reply:
    """Send bytes, and take the answer until the connection ends."""
    with trio.fail_after(60):  # a device may be rebuilt
        async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
            await stream.send_all(sent)
            answer = b"".join([part async for part in stream])
    return parsed(answer)


def parsed(answer: bytes) -> Reply:
    """Return an answer of HTTP, whose body may come in chunks."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        parts = []
        while body:
            size, _, rest = body.partition(b"\r\n")
            length = int(size, 16)
            parts.append(rest[:length])
            body = rest[length + 2 :]
            if not length:
                break
        body = b"".join(parts)
    return Reply(int(first.split()[1]), headers, body)


def chat(content: str = "hi", **more: object) -> dict[str, object]:
    """Return a request for a chat's next message."""
    return {"model": "toy", "messages": [{"role": "user", "content": content}], **more}


def posted(body: object, version: str = "1.1") -> bytes:
    """Return a request for a chat's next message as bytes."""
    sent = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/{version}\r\nhost: localhost\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(sent)}\r\n\r\n"
    return head.encode() + sent


def completion(prompt: object = "hi", **more: object) -> dict[str, object]:
    """Return a request for text."""
    return {"model": "toy", "prompt": prompt, **more}


def serving(script: Script | ScriptedModel, **options: Any) -> Any:
    """Return a block with a server of a scripted model; it gives both."""

    @asynccontextmanager
    async def block() -> AsyncIterator[tuple[LanguageModelServer, ScriptedModel]]:
        model = script if isinstance(script, ScriptedModel) else ScriptedModel(script)
        async with serve_language_model(model, **options) as server:
            yield server, model

    return block()


Fault = Callable[[], Awaitable[object]]
