"""A connection's ends: whatever they are, askers hear of them, and the node goes on."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from atomr_accel.cluster import ClusterSettings, ConnectionLost, NodeUnreachable
from atomr_accel.cluster._codec import MessageTable
from atomr_accel.cluster._frames import HelloFrame, NodeConnection
from atomr_accel.cluster._peer import NodePeer

SETTINGS = ClusterSettings(heartbeat=0.5, silence=1.5)


def hello(node: str) -> HelloFrame:
    return HelloFrame("c", node, f"{node}#1", {}, 8)


class _Silent(trio.abc.Stream):
    """A node that says who it is, and nothing else until it closes the connection."""

    def __init__(self, closes: trio.Event) -> None:
        self.closes = closes
        self.greeting = bytes(NodeConnection(hello("there"), asks=False).greeting())

    async def send_all(self, data: Any) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data, self.greeting = self.greeting, b""
        if data:
            await trio.lowlevel.checkpoint()
        else:
            await self.closes.wait()
        return data

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def _peer(closes: trio.Event) -> NodePeer:
    async def connect() -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return _Silent(closes)

    return NodePeer("there", connect, hello("here"), MessageTable([]), SETTINGS)


def test_a_connection_that_ends_in_two_ways_at_once_has_ended() -> None:
    """The stream closes when the peer counts as lost, in either order."""
    clock = trio.testing.MockClock()

    async def ask(peer: NodePeer) -> None:
        with pytest.raises(ConnectionLost, match="may have been handled"):
            await peer.ask("/a", None, "", b"")

    async def main() -> None:
        for _ in range(12):
            closes = trio.Event()
            async with trio.open_nursery() as nursery, trio.open_nursery() as askers:
                peer = _peer(closes)
                nursery.start_soon(peer.run)
                askers.start_soon(ask, peer)
                for _ in range(3):
                    await trio.testing.wait_all_tasks_blocked()
                    clock.jump(0.5)
                await trio.testing.wait_all_tasks_blocked()
                closes.set()
                clock.jump(0.5)
                await trio.testing.wait_all_tasks_blocked()
                assert peer.ended == 1
                nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


@pytest.mark.parametrize("sent", [True, False])
def test_who_asks_hears_that_this_node_has_ended(sent: bool) -> None:
    async def main() -> None:
        peer = _peer(trio.Event())
        if not sent:
            peer._connect = trio.sleep_forever
        caught: list[Exception] = []

        async def ask() -> None:
            try:
                await peer.ask("/a", None, "", b"")
            except (ConnectionLost, NodeUnreachable) as error:
                caught.append(error)

        async with trio.open_nursery() as askers:
            askers.cancel_scope.deadline = trio.current_time() + 10
            askers.start_soon(ask)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.run)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        assert [type(each) for each in caught] == [ConnectionLost if sent else NodeUnreachable]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=1))


def test_a_pause_of_this_program_is_no_silence_of_the_other() -> None:
    """A long garbage collection, say, in which the other node's words stayed in the socket."""
    clock = trio.testing.MockClock()

    async def ask(peer: NodePeer) -> None:
        with pytest.raises(ConnectionLost, match=r"silent for 2\.0 s"):
            await peer.ask("/a", None, "", b"")

    async def main() -> None:
        async with trio.open_nursery() as nursery, trio.open_nursery() as askers:
            peer = _peer(trio.Event())
            nursery.start_soon(peer.run)
            askers.start_soon(ask, peer)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(10.0)
            await trio.testing.wait_all_tasks_blocked()
            assert peer.ended == 0
            for _ in range(3):
                clock.jump(0.5)
                await trio.testing.wait_all_tasks_blocked()
            assert peer.ended == 1
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
