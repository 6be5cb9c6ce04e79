"""The language model server without a model: events per second of HTTP, and the scheduler's steps.

A stand-in for a model has its pieces ready, so that the rows show the cost of HTTP: translation,
JSON, server-sent events, h11 and sockets. Clients are in a process of their own and read bytes,
since a client's package would be slower than the server. Ratios are to sending the same bytes in
the same number of pieces through trio's sockets, without HTTP and without a model. Times of the
CPU are the server's alone.

Each row is the best of three rounds, which take turns. ``--streams 256 --pieces 400`` are sizes.

A step of the scheduler is a plan, its end, and a token for each sequence, without a device.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio
from tokenizers import Tokenizer, models

from atomr_accel.llm import ServerLimits, TokenPiece, TokenRequest, serve_language_model
from atomr_accel.llm._scheduler import Scheduler

ROUNDS = 3
STEPS = 200
GOAL = 60_000
TEXT = " word"
EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef0123456789ab","object":"chat.completion.chunk",'
    b'"created":1700000000,"model":"toy","choices":[{"index":0,"delta":{"content":" word"},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)

CLIENT = """if True:
    import json, sys, time, trio

    async def main():
        host, port, streams, body = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
        head = f"POST /v1/chat/completions HTTP/1.1\\r\\nhost: {host}\\r\\nconnection: close\\r\\n"
        head += f"content-type: application/json\\r\\ncontent-length: {len(body)}\\r\\n\\r\\n"
        counts = [0] * streams

        async def stream(at):
            async with await trio.open_tcp_stream(host, port) as connection:
                await connection.send_all(head.encode() + body.encode())
                end = b""
                while data := await connection.receive_some(65536):
                    counts[at] += (end + data).count(b"data: ") - end.count(b"data: ")
                    end = data[-5:]

        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for at in range(streams):
                nursery.start_soon(stream, at)
        print(json.dumps([sum(counts), time.perf_counter() - began]))

    trio.run(main)
"""


@dataclass(frozen=True)
class NoStatistics:
    """Nothing that a server would ask for."""


class ReadyModel:
    """A model whose pieces are ready."""

    name = "toy"
    context = 1 << 20

    def __init__(self, pieces: int) -> None:
        self.tokenizer = Tokenizer(models.WordLevel({"word": 0}, "word"))
        self._pieces = pieces

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[int, ...]:
        """Return one token."""
        del messages, tools
        return (0,)

    @asynccontextmanager
    async def generate(self, _request: TokenRequest) -> AsyncIterator[AsyncIterator[TokenPiece]]:
        """Open a stream."""
        await trio.lowlevel.checkpoint()
        yield self._stream()

    async def _stream(self) -> AsyncIterator[TokenPiece]:
        piece = TokenPiece(token=0, text=TEXT)
        for _ in range(self._pieces - 1):
            await trio.lowlevel.checkpoint()
            yield piece
        yield TokenPiece(token=0, text=TEXT, finish="length")

    def statistics(self) -> NoStatistics:
        """Nothing."""
        return NoStatistics()


async def ask(port: int, streams: int) -> float:
    """Return events per second that clients in another process have received."""
    body = json.dumps(
        {"model": "toy", "messages": [{"role": "user", "content": "go"}], "stream": True}
    )
    words = [sys.executable, "-c", CLIENT, "127.0.0.1", str(port), str(streams), body]
    done = await trio.run_process(words, capture_stdout=True)
    events, seconds = json.loads(done.stdout)
    return float(events / seconds)


async def ours(streams: int, pieces: int) -> float:
    """Return events per second of the server."""
    limits = ServerLimits(requests=2 * streams)
    async with serve_language_model(ReadyModel(pieces), limits=limits) as server:
        return await ask(server.port, streams)


async def sockets(streams: int, pieces: int) -> float:
    """Return events per second of sockets alone."""

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(65536)
            for _ in range(pieces):
                await stream.send_all(EVENT)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, listeners)
        rate = await ask(listeners[0].socket.getsockname()[1], streams)
        nursery.cancel_scope.cancel()
    return rate


def scheduling(streams: int, prompt: int, waiting: int) -> float:
    """Return milliseconds of the CPU for a step in which all streams get a token."""
    scheduler = Scheduler(
        pages=1 << 18,
        page_size=16,
        context=1 << 14,
        step_sequences=streams,
        step_tokens=2048 + streams,
        most_waiting=streams + waiting,
    )
    chance = random.Random(0)
    for _ in range(streams + waiting):
        scheduler.submit(tuple(chance.choices(range(1000), k=prompt)), most=10_000)

    def step() -> int:
        work = scheduler.plan()
        assert work is not None
        for sequence in scheduler.computed():
            scheduler.append(sequence, 7)
        return len(work.slices)

    while step() < streams or scheduler.statistics().computed < streams * prompt:
        pass
    began = time.process_time()
    for _ in range(STEPS):
        step()
    return (time.process_time() - began) / STEPS * 1e3


def main() -> None:
    """Take turns, and print the best of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--pieces", type=int, default=400)
    args = parser.parse_args()
    rows: dict[str, Callable[[int, int], Awaitable[float]]] = {"sockets": sockets, "ours": ours}
    best = dict.fromkeys(rows, 0.0)
    least = dict.fromkeys(rows, float("inf"))
    for _ in range(ROUNDS):
        for name, function in rows.items():
            began = time.process_time()
            best[name] = max(best[name], trio.run(function, args.streams, args.pieces))
            taken = (time.process_time() - began) / args.streams / args.pieces
            least[name] = min(least[name], taken * 1e6)
    print(f"{args.streams} streams of {args.pieces} events")
    for name, rate in best.items():
        print(
            f"{name:10} {rate:10,.0f} events/s  {rate / best['sockets']:5.2f} of sockets"
            f"  {least[name]:6.1f} us of the CPU for each"
        )
    for prompt, waiting in ((64, 0), (64, 1000), (4096, 0)):
        taken = min(scheduling(args.streams, prompt, waiting) for _ in range(ROUNDS))
        print(f"step of {args.streams} after {prompt} tokens, {waiting} waiting: {taken:.2f} ms")
    print(f"goal of {GOAL:,} events/s: {'met' if best['ours'] >= GOAL else 'missed'}")


if __name__ == "__main__":
    main()
