"""Nodes of a cluster on one machine, beside local actors, Ray and a plain TLS socket.

Messages go to an actor of another process: asked one after the other, asked by 64 tasks, and told.
Local actors do the same, and Ray's actors if Ray is installed. Then sealed weights go from node to
node by digest, and the same bytes through a socket with TLS of ``ssl``. Last, a second node joins
one that holds many entities, until it has its half of them and all answer again.

    python tests/benchmarks/bench_cluster.py
    python tests/benchmarks/bench_cluster.py --weights 268435456 --entities 10000 --only weights

All of it is on this machine's loopback.
"""

from __future__ import annotations

import argparse
import gc
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec
import numpy as np
import trio
from bench_actors import Add, Counter
from measuring import seconds_in_flight

from atomr_accel import open_device
from atomr_accel.actors import MailboxFull, handler, open_actor_system
from atomr_accel.cluster import (
    ClusterProgram,
    ClusterSettings,
    Credentials,
    Entity,
    MemoryStore,
    make_certificates,
    open_cluster,
    open_sqlite_store,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

CLIENTS = 64


class Total(msgspec.Struct, frozen=True):
    value: int = 0


class Kept(Entity[Total]):
    passivate_after = None

    @handler
    async def add(self, message: Add) -> int:
        await trio.lowlevel.checkpoint()
        return self.state.value + message.k


@asynccontextmanager
async def open_counter() -> AsyncIterator[Any]:
    async with open_actor_system("bench") as system:
        yield await system.spawn(Counter)


PROGRAM = ClusterProgram(name="bench", messages=[Add], services={"counter": open_counter})


# --- the other process


async def hold_weights(folder: Path, nbytes: int) -> None:
    """A node that offers weights, until its input ends."""
    rng = np.random.default_rng(0)
    async with open_device(0, backend="cpu", isolation="thread") as device:
        ref = await device.put(rng.integers(0, 256, nbytes, np.uint8), sealed=True)
        async with (
            open_sqlite_store(folder / "weights.db") as store,
            PROGRAM.open("node-1", store, Credentials.in_folder(folder, "node-1")) as cluster,
        ):
            digest = await cluster.offer(device, ref)
            print(digest, flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)


def send_plain(folder: Path, nbytes: int) -> None:
    """Send bytes over a socket with TLS, by ``ssl`` alone."""
    server, _ = Credentials.in_folder(folder, "node-1").contexts()
    content = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8).tobytes()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        plain, _ = listener.accept()
        with server.wrap_socket(plain, server_side=True) as secure:
            secure.sendall(content)


@contextmanager
def other(*words: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """This file in another process."""
    command = [sys.executable, __file__, "--folder", str(folder), *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def node_process(folder: Path) -> Iterator[None]:
    words = ["node", "bench_cluster:PROGRAM", "--name", "node-1", "--json"]
    where = ["--store", str(folder / "store.db"), "--certificates", str(folder)]
    here = Path(__file__).resolve()
    path = os.pathsep.join([str(here.parents[2]), str(here.parent)])
    with subprocess.Popen(
        [sys.executable, "-m", "atomr_accel", *words, *where],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        if "has joined" not in line:
            raise RuntimeError(line + process.stderr.read())
        try:
            yield
        finally:
            process.kill()


# --- messages


async def measure(ref: Any, add: Callable[..., Any], count: int) -> tuple[float, float, float]:
    """Return the seconds of an ask, and asks and tells per second."""
    for _ in range(50):
        await ref.ask(add(k=1))
    times = []
    for _ in range(count // 10):
        began = time.perf_counter()
        await ref.ask(add(k=1))
        times.append(time.perf_counter() - began)
    asks = 1 / await seconds_in_flight(lambda: ref.ask(add(k=1)), CLIENTS, count // CLIENTS)
    began = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                ref.tell(add(k=1))
                break
            except MailboxFull:
                await trio.lowlevel.checkpoint()
    while True:
        try:
            await ref.ask(add(k=1))
            break
        except MailboxFull:
            await trio.lowlevel.checkpoint()
    tells = count / (time.perf_counter() - began)
    return float(np.median(times)), asks, tells


async def ours(folder: Path, count: int) -> dict[str, tuple[float, float, float]]:
    found = {}
    async with open_actor_system("local") as system:
        found["local"] = await measure(await system.spawn(Counter), Add, count)
    async with (
        open_sqlite_store(folder / "store.db") as store,
        PROGRAM.open("node-2", store, Credentials.in_folder(folder, "node-2")) as cluster,
        cluster.open_pool("counter") as pool,
    ):
        await pool.ask(Add(k=1))
        found["remote"] = await measure(cluster.actor("node-1", "counter"), Add, count)
    return found


def rays(count: int) -> tuple[float, float, float] | None:
    """Measure an actor of Ray's in the same way; None without Ray."""
    try:
        import ray
    except ImportError:
        return None
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    @ray.remote(max_concurrency=1)
    class RayCounter:
        def __init__(self) -> None:
            self.total = 0

        def add(self, k: int) -> int:
            self.total += k
            return self.total

    counter: Any = RayCounter.remote()  # type: ignore[attr-defined]
    for _ in range(50):
        ray.get(counter.add.remote(1))
    times = []
    for _ in range(count // 10):
        began = time.perf_counter()
        ray.get(counter.add.remote(1))
        times.append(time.perf_counter() - began)
    began = time.perf_counter()
    waiting = [counter.add.remote(1) for _ in range(CLIENTS)]
    for _ in range(count - CLIENTS):
        (done,), waiting = ray.wait(waiting, num_returns=1)
        ray.get(done)
        waiting.append(counter.add.remote(1))
    ray.get(waiting)
    asks = count / (time.perf_counter() - began)
    began = time.perf_counter()
    for _ in range(count):
        counter.add.remote(1)
    ray.get(counter.add.remote(1))
    tells = count / (time.perf_counter() - began)
    ray.shutdown()
    return float(np.median(times)), asks, tells


def show_messages(folder: Path, count: int) -> None:
    with node_process(folder):
        found: dict[str, Any] = trio.run(ours, folder, count)
    found["Ray"] = rays(count)
    for name, numbers in found.items():
        if numbers is not None:
            latency, asks, tells = numbers
            print(
                f"{name:7} ask {latency * 1e6:7.0f} us, {CLIENTS} tasks {asks:8,.0f} asks/s, "
                f"{tells:9,.0f} tells/s"
            )
    if found["Ray"] is not None:
        (one, asks, tells), (ray_one, ray_asks, ray_tells) = found["remote"], found["Ray"]
        print(
            f"remote to Ray: latency {one / ray_one:.2f}, asks {asks / ray_asks:.1f}, "
            f"tells {tells / ray_tells:.1f}"
        )


# --- weights


async def fetch(folder: Path, digest: str, nbytes: int) -> float:
    async with (
        open_device(0, backend="cpu", isolation="thread") as device,
        open_sqlite_store(folder / "weights.db") as store,
        PROGRAM.open("node-2", store, Credentials.in_folder(folder, "node-2")) as cluster,
    ):
        await cluster.wait_for(2)
        await device.put(np.ones(8), sealed=True)  # what is imported at first use
        began = time.perf_counter()
        ref = await cluster.fetch(digest, device)
        taken = time.perf_counter() - began
        assert ref.nbytes == nbytes
        return taken


def receive_plain(folder: Path, port: int, nbytes: int) -> float:
    _, client = Credentials.in_folder(folder, "node-2").contexts()
    buffer = bytearray(nbytes)
    view = memoryview(buffer)
    with socket.create_connection(("127.0.0.1", port)) as plain:
        secure = client.wrap_socket(plain, server_hostname="node-1")
        began = time.perf_counter()
        at = 0
        while at < nbytes:
            at += secure.recv_into(view[at:], nbytes - at)
        return time.perf_counter() - began


def show_weights(folder: Path, nbytes: int) -> None:
    with other("--hold", str(nbytes), folder=folder) as process:
        assert process.stdout is not None
        digest = process.stdout.readline().strip()
        taken = trio.run(fetch, folder, digest, nbytes)
    with other("--plain", str(nbytes), folder=folder) as process:
        assert process.stdout is not None
        plain = receive_plain(folder, int(process.stdout.readline()), nbytes)
    size = nbytes / 1e9
    print(
        f"{nbytes >> 20} MiB of sealed weights: {size / taken:.2f} GB/s; a plain TLS socket "
        f"{size / plain:.2f} GB/s; ratio {plain / taken:.2f}"
    )


# --- rebalancing


async def rebalance(folder: Path, count: int) -> None:
    store = MemoryStore()

    def node(name: str) -> Any:
        return open_cluster(
            "many",
            node=name,
            store=store,
            messages=[Add],
            entities=[Kept],
            credentials=Credentials.in_folder(folder, name),
            settings=ClusterSettings(shards=256, lease=30.0),
        )

    async with node("node-1") as one:
        keys = iter(range(count))
        began = time.perf_counter()

        async def ask_all() -> None:
            for key in keys:
                await one.entity(Kept, str(key)).ask(Add(k=1))

        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(ask_all)
        started = time.perf_counter() - began
        assert one.statistics().entities == count
        gc.collect()
        gc.freeze()  # else each full collection looks at all of them, and stops both nodes
        began = time.perf_counter()
        longest = 0.0
        done = False

        async def ask_some() -> None:
            nonlocal longest
            key = 0
            while not done:
                key = (key + 7919) % count
                begun = time.perf_counter()
                await one.entity(Kept, str(key)).ask(Add(k=1))
                longest = max(longest, time.perf_counter() - begun)
                await trio.sleep(0.005)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_some)
            async with node("node-2") as two:
                while two.statistics().shards < 96:  # noqa: ASYNC110 (it has no event for that)
                    await trio.sleep(0.05)
                moved = time.perf_counter() - began
                shards = two.statistics().shards
                done = True
                nursery.cancel_scope.cancel()
                print(
                    f"{count:,} entities: started in {started:.1f} s; {shards} of 256 shards moved "
                    f"to a second node in {moved:.2f} s; longest ask meanwhile {longest:.3f} s"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--weights", type=int, default=1 << 30)
    parser.add_argument("--entities", type=int, default=100_000)
    parser.add_argument("--only", choices=["messages", "weights", "entities"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--hold", type=int)
    parser.add_argument("--plain", type=int)
    args = parser.parse_args()
    if args.hold:
        trio.run(hold_weights, args.folder, args.hold)
        return
    if args.plain:
        send_plain(args.folder, args.plain)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_certificates(folder, ["node-1", "node-2"])
        if args.only in {None, "messages"}:
            show_messages(folder, args.messages)
        if args.only in {None, "weights"}:
            show_weights(folder, args.weights)
        if args.only in {None, "entities"}:
            trio.run(rebalance, folder, args.entities)


if __name__ == "__main__":
    main()
