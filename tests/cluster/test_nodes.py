"""Nodes over TLS, and actors that they publish."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from trio.testing import wait_all_tasks_blocked

from atomr_accel.actors import Actor, ActorStopped, Message, NameTaken, NoSuchActor, handler
from atomr_accel.cluster import (
    Cluster,
    ClusterSettings,
    ConnectionLost,
    Credentials,
    MemoryStore,
    NodeUnreachable,
    PeerRefused,
    RemoteTerminated,
    TlsTransport,
    open_cluster,
)
from tests.harness import program

from .simulated import Add, Fail, Read


class Hold(Message[int]):
    """Wait until the test lets go."""


class Counter(Actor):
    """An actor that keeps its messages."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.begun = trio.Event()
        self.cancelled = trio.Event()

    @handler
    async def add(self, message: Add) -> int:
        self.numbers.append(message.number)
        return len(self.numbers)

    @handler
    async def read(self, message: Read) -> list[int]:
        return self.numbers

    @handler
    async def fail(self, message: Fail) -> None:
        raise KeyError("no such thing")

    @handler
    async def hold(self, message: Hold) -> int:
        HELD.append(self)
        self.begun.set()
        while True:
            await trio.sleep_forever()


HELD: list[Counter] = []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of nodes a, b and c, and of a stranger."""
    place = tmp_path_factory.mktemp("certificates")
    for authority, names in (("authority", "abc"), ("strange", "s")):
        made = trustme.CA()
        made.cert_pem.write_to_path(place / f"{authority}.pem")
        for name in names:
            issued = made.issue_cert(name)
            issued.private_key_pem.write_to_path(place / f"{name}.key")
            issued.cert_chain_pems[0].write_to_path(place / f"{name}.pem")
    return place


SETTINGS = ClusterSettings(shards=4, lease=60.0)


class Nodes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryStore()

    def open(self, name: str, **options: Any) -> Any:
        given = {
            "credentials": Credentials.in_folder(self.folder, name),
            "settings": SETTINGS,
            "messages": [Add, Read, Fail, Hold],
        }
        return open_cluster("test", node=name, **{"store": self.store, **given, **options})


@asynccontextmanager
async def two(folder: Path) -> AsyncIterator[tuple[Cluster, Cluster]]:
    nodes = Nodes(folder)
    async with nodes.open("a") as a, nodes.open("b") as b:
        await a.wait_for(2)
        yield a, b


@program
async def _actors(folder: Path) -> None:
    async with two(folder) as (a, b):
        b.publish("counter", await b.system.spawn(Counter))
        counter = a.actor("b", "counter")
        assert await counter.ask(Add(1)) == 1
        for number in range(2, 50):
            counter.tell(Add(number))
        assert await counter.ask(Read()) == [*range(1, 50)]
        assert await b.actor("b", "counter").ask(Read()) == [*range(1, 50)]
        with pytest.raises(KeyError) as failed:
            await counter.ask(Fail())
        assert failed.value.args == ("no such thing",)
        with pytest.raises(NoSuchActor):
            await a.actor("b", "other").ask(Read())
        with pytest.raises(NodeUnreachable, match="no node 'z' lives") as caught:
            await a.actor("z", "counter").ask(Read())
        assert caught.value.node == "z"
        with pytest.raises(NameTaken):
            b.publish("counter", await b.system.spawn(Counter))
        with pytest.raises(TypeError, match="must be an instance of a Message"):
            await counter.ask(3)  # type: ignore[arg-type]
        assert a.statistics().lost == 0


def test_remote_actors_are_asked_and_told(folder: Path) -> None:
    _actors(folder)


class Watcher(Actor):
    """An actor that notes the ends of others."""

    seen: trio.MemorySendChannel[RemoteTerminated]

    def __init__(self, seen: trio.MemorySendChannel[RemoteTerminated]) -> None:
        self.seen = seen

    @handler
    async def ended(self, message: RemoteTerminated) -> None:
        self.seen.send_nowait(message)


@program
async def _watching(folder: Path) -> None:
    send, receive = trio.open_memory_channel[RemoteTerminated](9)
    async with two(folder) as (a, b):
        watcher = await a.system.spawn(Watcher, send)
        watched, other = await b.system.spawn(Counter), await b.system.spawn(Counter)
        b.publish("watched", watched)
        b.publish("other", other)
        a.actor("b", "watched").watch(watcher)
        a.actor("b", "other").watch(watcher)
        a.actor("b", "missing").watch(watcher)
        assert (await receive.receive()).name == "missing"
        await watched.stop()
        assert await receive.receive() == RemoteTerminated("b", "watched", None, False)
        with pytest.raises(ActorStopped):
            await a.actor("b", "watched").ask(Read())
        a._peers["b"].hang_up()
        lost = await receive.receive()
        assert (lost.name, lost.lost) == ("other", True)
    send.close()


def test_remote_actors_are_watched(folder: Path) -> None:
    _watching(folder)


@program
async def _losing(folder: Path) -> None:
    HELD.clear()
    async with two(folder) as (a, b), trio.open_nursery() as nursery:
        b.publish("counter", await b.system.spawn(Counter))
        counter = a.actor("b", "counter")
        assert await counter.ask(Add(1)) == 1

        async def ask() -> None:
            with pytest.raises(ConnectionLost, match="may have been handled") as caught:
                await counter.ask(Hold())
            assert caught.value.maybe_handled

        nursery.start_soon(ask)
        await _held()
        a._peers["b"].hang_up()
        await wait_all_tasks_blocked()
        HELD.clear()
        with trio.move_on_after(0.0):
            await counter.ask(Add(2))


async def _held() -> None:
    while not HELD:
        await trio.lowlevel.checkpoint()


def test_a_lost_connection_says_that_messages_may_have_been_handled(folder: Path) -> None:
    _losing(folder)


@program
async def _refused(folder: Path) -> None:
    nodes = Nodes(folder)
    async with nodes.open("a") as a, nodes.open("b") as b:
        await a.wait_for(2)
        strange = Credentials(folder / "strange.pem", folder / "s.pem", folder / "s.key")
        address = b.nodes["b"].address
        with pytest.raises(PeerRefused, match="is not node 'b'"):
            await TlsTransport(strange).connect("b", address)
        with pytest.raises(PeerRefused, match="is not node 'c'"):  # another node of the cluster
            ours = Credentials.in_folder(folder, "a")
            await TlsTransport(ours).connect("c", address)
        host, _, port = address.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as plain:  # no TLS at all
            await plain.send_all(bytes(100))
            with suppress(trio.BrokenResourceError):
                while await plain.receive_some(100):
                    pass
        b.publish("counter", await b.system.spawn(Counter))
        assert await a.actor("b", "counter").ask(Add(1)) == 1


def test_nodes_without_a_certificate_are_refused(folder: Path) -> None:
    _refused(folder)


@program
async def _taken(folder: Path) -> None:
    nodes = Nodes(folder)
    async with nodes.open("a"):
        with pytest.raises(NameTaken, match="has the name 'a'"):
            async with nodes.open("a", settings=ClusterSettings(shards=4, lease=0.2)):
                pass
        with pytest.raises(ValueError, match="shards and load must be 4"):
            async with nodes.open("b", settings=ClusterSettings(shards=5)):
                pass


def test_a_name_and_other_shards_are_refused(folder: Path) -> None:
    _taken(folder)


@program
async def _arguments(folder: Path) -> None:
    nodes = Nodes(folder)
    for options, kind, said in (
        ({"credentials": None}, ValueError, "make-certificates"),
        ({"messages": [int]}, TypeError, "subclasses of Message"),
        ({"messages": Add}, TypeError, "messages must be a list"),
        ({"devices": 3}, TypeError, "devices must be a list"),
        ({"devices": [3]}, TypeError, "a device must be an instance of Device"),
        ({"messages": "ab"}, TypeError, "messages must be a list"),
        ({"store": 3}, TypeError, "store must be a FencingStore, not int"),
        ({"credentials": Credentials.in_folder(folder, "b")}, ValueError, "those of node 'a', not"),
        ({"entities": [Counter]}, TypeError, "subclasses of Entity"),
        ({"settings": 3}, TypeError, "ClusterSettings"),
    ):
        with pytest.raises(kind, match=said):
            async with nodes.open("a", **options):
                pass
    with pytest.raises(ValueError, match="lower-case letters"):
        async with open_cluster("test", node="A/b", store=nodes.store):
            pass
    with pytest.raises(ValueError, match="silence must be longer"):
        ClusterSettings(heartbeat=2.0, silence=1.0)
    async with nodes.open("a") as a:
        with pytest.raises(TypeError, match="must be a subclass of Entity"):
            a.singleton(Counter)
        with pytest.raises(ValueError, match="lower-case letters"):
            a.actor("A", "x")
        with pytest.raises(TypeError, match="nodes must be a whole number"):
            await a.wait_for("a")
        wrong: Any
        for wrong, match in (
            (("gpus", 3, 1.0), "tenant must be text"),
            ((3, "ann", 1.0), "name must be text"),
            (("gpus", "ann", "a"), "cost must be a real number"),
        ):
            with pytest.raises(TypeError, match=match):
                a.slot(wrong[0], wrong[1], cost=wrong[2])


def test_bad_arguments_are_refused(folder: Path) -> None:
    _arguments(folder)
