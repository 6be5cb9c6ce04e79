"""A sharded chat service on three nodes of this machine, one of which is killed.

Each room is an entity: one node holds it at a time, and its lines are in the store. Clients say
something in all rooms while a node dies. No line that was acknowledged is lost or doubled.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec
import trio

from atomr_accel.actors import ActorStopped, Message, handler
from atomr_accel.cluster import (
    Cluster,
    ClusterProgram,
    ClusterSettings,
    ConnectionLost,
    Credentials,
    Entity,
    make_certificates,
    open_sqlite_store,
)


class Say(Message[int]):
    """Add a line to a room once. The answer is the number of lines."""

    who: str
    text: str


class History(Message[list[str]]):
    """Return the lines of a room."""


class RoomState(msgspec.Struct, frozen=True):
    """The lines of a room."""

    lines: list[str] = []


class Room(Entity[RoomState]):
    """A chat room."""

    @handler
    async def say(self, message: Say) -> int:
        """Add a line, unless it is there already, because a client was not sure and repeats it."""
        line = f"{message.who}: {message.text}"
        if line not in self.state.lines:
            await self.save(RoomState([*self.state.lines, line]))
        return len(self.state.lines)

    @handler
    async def history(self, message: History) -> list[str]:
        """Return all lines."""
        del message
        await trio.lowlevel.checkpoint()
        return self.state.lines


PROGRAM = ClusterProgram(
    name="chat",
    messages=[Say, History],
    entities=[Room],
    settings=ClusterSettings(lease=1.5, shards=12, heartbeat=0.25, silence=1.0),
)

ROOMS = [f"room {number}" for number in range(6)]
LINES = 40


def start(stack: ExitStack, folder: Path, name: str) -> subprocess.Popen[str]:
    """Start a node, and wait until it has joined."""
    words = ["-m", "atomr_accel", "node", "cluster_chat:PROGRAM", "--name", name]
    where = ["--store", str(folder / "store"), "--certificates", str(folder)]
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, *words, *where],
            cwd=Path(__file__).parent,
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    stack.callback(process.terminate)
    assert process.stderr is not None
    assert "has joined" in process.stderr.readline()
    return process


async def talk(
    cluster: Cluster, who: str, acknowledged: set[tuple[str, str]], enough: trio.Event
) -> None:
    """Say lines in all rooms; repeat one if it is unknown whether it was heard."""
    for number in range(LINES):
        room = ROOMS[number % len(ROOMS)]
        while True:
            try:
                await cluster.entity(Room, room).ask(Say(who, f"line {number}"))
                break
            except (ConnectionLost, ActorStopped):
                continue
        acknowledged.add((room, f"{who}: line {number}"))
        if len(acknowledged) == LINES:
            enough.set()


async def chat(folder: Path, victim: subprocess.Popen[str]) -> None:
    """Run clients, and kill a node meanwhile."""
    acknowledged: set[tuple[str, str]] = set()
    enough = trio.Event()
    async with (
        open_sqlite_store(folder / "store") as store,
        PROGRAM.open("door", store, Credentials.in_folder(folder, "door"), holds=False) as cluster,
    ):
        await cluster.wait_for(4)
        print("rooms:", {room: cluster.place_of(Room, room) for room in ROOMS})
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for who in ("ann", "bob", "cho", "dee"):
                nursery.start_soon(talk, cluster, who, acknowledged, enough)
            await enough.wait()
            victim.kill()
            print(f"node-2 is killed after {len(acknowledged)} lines")
        print(f"{len(acknowledged)} lines in {trio.current_time() - began:.1f} s")
        heard = [
            (room, line)
            for room in ROOMS
            for line in await cluster.entity(Room, room).ask(History())
        ]
        assert len(heard) == len(set(heard)), "doubled"
        assert acknowledged == set(heard), "lost"
        print("nodes now:", *sorted(cluster.nodes))
        print("every line is there once")


def main() -> None:
    """Start three nodes, and a door to them."""
    with tempfile.TemporaryDirectory() as text, ExitStack() as stack:
        folder = Path(text)
        names = ["node-1", "node-2", "node-3"]
        make_certificates(folder, [*names, "door"])
        processes = [start(stack, folder, name) for name in names]
        trio.run(chat, folder, processes[1])


if __name__ == "__main__":
    main()
