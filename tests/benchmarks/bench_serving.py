"""Batchers side by side: this package, Ray Serve's ``@serve.batch`` and LitServe.

All call the same function: a small network on NumPy, which takes a list of numbers. Each client
asks again as soon as it has its answer. Batches have 64 requests at most and wait a millisecond for
more, or not at all in rows with "at once".

In one process, where a batcher is a function that tasks await: ours under trio, ``@serve.batch``
under asyncio in a replica. These rows show the cost of a batcher. Then from another process, in the
way that each serves requests. LitServe uses HTTP. Ours uses HTTP, behind the few lines of a server
below. Ray Serve uses a handle, without its proxy. Those rows include the cost of the connection
between client and batcher. Clients and servers share the machine's cores.

Each row is the round with the highest throughput of three, which take turns. Ray and LitServe are
left out if they are not installed. ``--seconds 2`` sets how long each round takes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib
import importlib.util
import itertools
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of everybody's NumPy, as it is imported
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import trio
from measuring import free_port

from atomr_accel.patterns import open_batcher

CLIENTS = (1, 64, 512)
ROUNDS = 3
SIZE = 64
WAIT = 0.001
GOALS = {"throughput": 3.0, "p99": 0.5}

_rng = np.random.default_rng(7)
FIRST = _rng.standard_normal((1, 128)).astype(np.float32)
SECOND = _rng.standard_normal((128, 128)).astype(np.float32)


def predict(items: list[float]) -> list[float]:
    """The model."""
    hidden = np.tanh(np.asarray(items, np.float32)[:, None] @ FIRST)
    answers: list[float] = np.tanh(hidden @ SECOND).sum(axis=1).tolist()
    return answers


@dataclass
class Measured:
    """Seconds and latencies of one contender with a given number of clients."""

    seconds: float
    latencies: list[float]

    @property
    def throughput(self) -> float:
        return len(self.latencies) / self.seconds

    def quantile(self, q: float) -> float:
        return float(np.quantile(self.latencies, q)) if self.latencies else float("nan")


# --- in one process --------------------------------------------------------------------


async def ask_until(
    end: float, ask: Callable[[float], Awaitable[float]], item: float, latencies: list[float]
) -> None:
    """Ask again and again, and note how long each answer takes."""
    while (began := time.perf_counter()) < end:
        await ask(item)
        latencies.append(time.perf_counter() - began)


async def in_trio(
    ask: Callable[[float], Awaitable[float]], clients: int, seconds: float
) -> Measured:
    """Ask from trio tasks."""
    latencies: list[float] = []
    start = time.perf_counter()
    end = start + seconds
    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(ask_until, end, ask, number / clients, latencies)
    return Measured(time.perf_counter() - start, latencies)


async def in_asyncio(
    ask: Callable[[float], Awaitable[float]], clients: int, seconds: float
) -> Measured:
    """Ask from asyncio tasks."""
    latencies: list[float] = []
    start = time.perf_counter()
    end = start + seconds
    items = (number / clients for number in range(clients))
    await asyncio.gather(*(ask_until(end, ask, item, latencies) for item in items))
    return Measured(time.perf_counter() - start, latencies)


def ours(wait: float) -> Callable[[int, float], Measured]:
    """This package's batcher."""

    async def model(items: list[float]) -> list[float]:
        return predict(items)

    async def main(clients: int, seconds: float) -> Measured:
        async with open_batcher(model, max_size=SIZE, max_wait=wait) as batcher:
            await in_trio(batcher, clients, seconds / 10)
            return await in_trio(batcher, clients, seconds)

    return lambda clients, seconds: trio.run(main, clients, seconds)


def ray_batch(wait: float) -> Callable[[int, float], Measured]:
    """Ray Serve's decorator, which works in a replica only: so the clients are in there, too."""

    def measure(clients: int, seconds: float) -> Measured:
        serve: Any = importlib.import_module("ray.serve")

        @serve.deployment(max_ongoing_requests=10_000)
        class Inside:
            @serve.batch(max_batch_size=SIZE, batch_wait_timeout_s=wait)  # type: ignore[untyped-decorator]
            async def model(self, items: list[float]) -> list[float]:
                return predict(items)

            async def measure(self, clients: int, seconds: float) -> Measured:
                await in_asyncio(self.model, clients, seconds / 10)
                return await in_asyncio(self.model, clients, seconds)

        handle = serve.run(cast("Any", Inside).bind(), name="inside", route_prefix=None)
        measured: Measured = handle.measure.remote(clients, seconds).result()
        serve.delete("inside")
        return measured

    return measure


# --- from another process --------------------------------------------------------------


async def _serve_http() -> None:
    """Serve the part of HTTP that the client below speaks, in front of a batcher."""

    async def model(items: list[float]) -> list[float]:
        return predict(items)

    async with open_batcher(model, max_size=SIZE, max_wait=WAIT) as batcher:

        async def connection(stream: trio.SocketStream) -> None:
            buffer = b""
            while True:
                while b"\r\n\r\n" not in buffer:
                    got = await stream.receive_some()
                    if not got:
                        return
                    buffer += got
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                length = _content_length(head)
                while len(buffer) < length:
                    buffer += await stream.receive_some()
                body, buffer = buffer[:length], buffer[length:]
                answer = json.dumps({"output": await batcher(json.loads(body)["input"])}).encode()
                await stream.send_all(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
                    + str(len(answer)).encode() + b"\r\n\r\n" + answer
                )  # fmt: skip

        await trio.serve_tcp(connection, int(sys.argv[2]), host="127.0.0.1", backlog=1024)


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise ValueError(head)


def over_http(which: str) -> Callable[[int, float], Measured]:
    """A server in a process of its own, and clients that keep their connections."""

    def measure(clients: int, seconds: float) -> Measured:
        with _server(which) as port:
            return asyncio.run(_http_clients(port, clients, seconds))

    return measure


@contextlib.contextmanager
def _server(which: str) -> Iterator[int]:
    port = free_port()
    here = Path(__file__)
    script = [str(here), "--serve"] if which == "ours" else [str(here.parent / which)]
    command = [sys.executable, *script, str(port)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as server:
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    asyncio.run(_http_clients(port, 1, 0.01))
                    break
                time.sleep(0.1)
            else:
                raise RuntimeError(f"no answer from {which}")
            yield port
        finally:
            os.killpg(server.pid, 9)  # the group that was made for it


async def _http_clients(port: int, clients: int, seconds: float) -> Measured:
    latencies: list[float] = []
    start = end = 0.0

    async def client(item: float, ready: asyncio.Barrier) -> None:
        nonlocal start, end
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"input": item}).encode()
        request = (
            b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        for phase in (seconds / 10, seconds):
            await ready.wait()
            latencies.clear()
            start = time.perf_counter()
            end = start + phase
            await ready.wait()
            while (began := time.perf_counter()) < end:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                answer = await reader.readexactly(_content_length(head))
                if not head.startswith(b"HTTP/1.1 200"):
                    raise OSError(head, answer)
                latencies.append(time.perf_counter() - began)
        writer.close()

    ready = asyncio.Barrier(clients)
    await asyncio.gather(*(client(number / clients, ready) for number in range(clients)))
    return Measured(time.perf_counter() - start, latencies)


def ray_handle(clients: int, seconds: float) -> Measured:
    """A deployment of one replica, asked through its handle."""
    serve: Any = importlib.import_module("ray.serve")

    @serve.deployment(max_ongoing_requests=10_000)  # its own default lets 5 through
    class Model:
        @serve.batch(max_batch_size=SIZE, batch_wait_timeout_s=WAIT)  # type: ignore[untyped-decorator]
        async def __call__(self, items: list[float]) -> list[float]:
            return predict(items)

    handle = serve.run(cast("Any", Model).bind(), name="bench", route_prefix=None)

    async def main() -> Measured:
        async def ask(item: float) -> float:
            return float(await handle.remote(item))

        await in_asyncio(ask, clients, seconds / 10)
        return await in_asyncio(ask, clients, seconds)

    measured = asyncio.run(main())
    serve.delete("bench")
    return measured


@contextlib.contextmanager
def _ray() -> Iterator[None]:
    ray: Any = importlib.import_module("ray")
    serve: Any = importlib.import_module("ray.serve")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        serve.start(proxy_location="Disabled")
        yield
    finally:
        serve.shutdown()
        ray.shutdown()


# --- the table -------------------------------------------------------------------------


def compare(
    title: str, contenders: dict[str, Callable[[int, float], Measured]], seconds: float
) -> None:
    """Measure all in turns, the first being ours, and print what each did and how we compare."""
    print(f"\n{title}")
    print(f"  {'':<28}{'clients':>8}{'per second':>12}{'p50 ms':>9}{'p99 ms':>9}   ours is")
    for clients in CLIENTS:
        best: dict[str, Measured] = {}
        failed: dict[str, Exception] = {}
        for _, (name, measure) in itertools.product(range(ROUNDS), contenders.items()):
            gc.collect()
            try:
                got = measure(clients, seconds)
            except Exception as error:  # noqa: BLE001 (a rival that fails is not our failure)
                failed[name] = error
                continue
            if name not in best or got.throughput > best[name].throughput:
                best[name] = got
        base = best[next(iter(contenders))]
        for name in contenders:
            if name not in best:
                print(f"  {name:<28}{clients:>8}  failed: {failed[name]!r:.60}")
                continue
            got = best[name]
            p50, p99 = got.quantile(0.5), got.quantile(0.99)
            line = f"  {name:<28}{clients:>8}{got.throughput:>12,.0f}"
            line += f"{p50 * 1e3:>9.2f}{p99 * 1e3:>9.2f}"
            if got is not base:
                more, less = base.throughput / got.throughput, base.quantile(0.99) / p99
                met = more >= GOALS["throughput"] and less <= GOALS["p99"]
                line += f"   {more:.2f} × the throughput, {less:.2f} of the p99: "
                line += "met" if met else "MISSED"
            print(line)


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    seconds = parser.parse_args().seconds
    logging.disable(logging.WARNING)
    ray, litserve = (importlib.util.find_spec(name) is not None for name in ("ray", "litserve"))
    print(f"goal: {GOALS['throughput']} × the throughput, and {GOALS['p99']} of the p99")

    with _ray() if ray else contextlib.nullcontext():
        contenders = {"atomr_accel": ours(WAIT)}
        if ray:
            contenders["@serve.batch"] = ray_batch(WAIT)
        compare("in one process", contenders, seconds)
        contenders = {"atomr_accel, at once": ours(0.0)}
        if ray:
            contenders["@serve.batch, at once"] = ray_batch(0.0)
        compare("in one process, waiting for nothing", contenders, seconds)
        contenders = {"atomr_accel, HTTP": over_http("ours")}
        if litserve:
            contenders["LitServe, HTTP"] = over_http("served_by_litserve.py")
        if ray:
            contenders["Ray Serve, handle"] = ray_handle
        compare("from another process", contenders, seconds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        trio.run(_serve_http)
    else:
        main()
