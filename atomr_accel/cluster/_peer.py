"""Both ends of a connection at work: one asks another node, the other answers."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from ..actors import MailboxFull
from ..actors.deciders import leaves
from ..actors.nursery import PlainNursery
from ._errors import ConnectionLost, NodeUnreachable, PeerRefused, ProtocolViolated
from ._frames import (
    AskFrame,
    CancelFrame,
    CreditFrame,
    FailedFrame,
    HelloFrame,
    NodeConnection,
    PingFrame,
    PongFrame,
    ReplyFrame,
    TellFrame,
)

if TYPE_CHECKING:
    from ._codec import MessageTable
    from ._settings import ClusterSettings

_log = logging.getLogger("atomr_accel.cluster")

_CHUNK: Final = 1 << 18
"""Bytes that are received at once."""

_TURN: Final = 32
"""Told messages that are taken in one turn of trio, fewer than an actor handles in one."""

_BATCH: Final = 1 << 16
"""Bytes from which on frames are not sent together with further ones."""

_ENDS: Final = (
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    OSError,
    ProtocolViolated,
)
"""Errors that end a connection."""


@dataclass(eq=False)
class _Question:
    frame: AskFrame
    sent: bool = False
    done: trio.Event = field(default_factory=trio.Event)
    body: bytes = b""
    error: Exception | None = None

    def fail(self, error: Exception) -> None:
        self.error = error
        self.done.set()


class _HungUp(Exception):
    """The other side has closed the connection."""


class _Outlet:
    """The writing half of a connection. A single message is sent at once while it is idle."""

    def __init__(self, stream: trio.abc.Stream, take: Callable[[], bytearray]) -> None:
        self._stream = stream
        self._take = take
        self._send_nowait = getattr(stream, "send_nowait", None)
        self._wake = trio.Event()
        self._rest = bytearray()
        self._waits = False

    def push(self, *, now: bool = False) -> None:
        """Have sent what there is, together with what others add in this turn of trio.

        Args:
            now: whether no others are expected to add anything, so that it is sent here.
        """
        if now and self._waits and self._send_nowait is not None:
            data = self._take()
            self._rest = data[self._send_nowait(data) :] if data else data
            if not self._rest:
                return
        self._waits = False
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            data, self._rest = self._rest, bytearray()
            if data or (data := self._take()):
                await self._stream.send_all(data)
                continue
            self._wake = trio.Event()
            self._waits = True
            try:
                await self._wake.wait()
            finally:
                self._waits = False


def _end_of(error: Exception) -> Exception:
    """Return why a connection has ended. Several of its tasks may have found that at once.

    Raises:
        Exception: the error itself, if it is about anything else.
    """
    found = [*leaves(error)]
    if not all(isinstance(each, (*_ENDS, _HungUp, PeerRefused)) for each in found):
        raise error
    refused = [each for each in found if isinstance(each, PeerRefused)]
    end = (refused or found)[0]
    assert isinstance(end, Exception)
    return end


class NodePeer:
    """Another node, to be asked. It is connected to when there is something to send.

    Attributes:
        lost: told messages that went down with a connection.
        ended: connections that have ended.
        connected: whether there is a connection.
    """

    def __init__(
        self,
        node: str,
        connect: Callable[[], Awaitable[trio.abc.Stream]],
        hello: HelloFrame,
        table: MessageTable,
        settings: ClusterSettings,
    ) -> None:
        self.node: Final = node
        self.lost = 0
        self.ended = 0
        self.connected = False
        self._connect = connect
        self._hello = hello
        self._table = table
        self._settings = settings
        self._outbox: deque[_Question | TellFrame] = deque()
        self._control: deque[Any] = deque()
        self._sent: dict[int, _Question] = {}
        self._sent_tells = 0
        self._wake = trio.Event()
        self._serial = 0
        self._crowd = 1  # questions since one had to wait for no other
        self._heard = 0.0
        self._scope: trio.CancelScope | None = None
        self._outlet: _Outlet | None = None

    @property
    def depth(self) -> int:
        """Messages that wait or are not answered."""
        return len(self._outbox) + len(self._sent)

    def _push(self, *, now: bool = False) -> None:
        if self._outlet is None:
            self._wake.set()
        else:
            self._outlet.push(now=now)

    def _check_room(self) -> None:
        if len(self._outbox) >= self._settings.outbox:
            raise MailboxFull(
                f"{len(self._outbox)} messages to node {self.node!r} wait already", path=self.node
            )

    def tell(self, target: str, name: str, body: bytes, *, always: bool = False) -> None:
        """Send a message without an answer, some time.

        With ``always`` it has room however many wait.
        """
        if not always:
            self._check_room()
        self._outbox.append(TellFrame(target, name, body))
        self._push()

    async def ask(self, target: str, key: str | None, name: str, body: bytes) -> bytes:
        """Send a message, and return the bytes of its answer."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_room()
        self._serial += 1
        question = _Question(AskFrame(self._serial, target, key, name, body))
        others = bool(self._sent or self._outbox)
        self._outbox.append(question)
        if others:
            self._crowd += 1
            self._push()
        else:  # whoever asks one by one is served at once; a crowd's messages go together
            crowd, self._crowd = self._crowd, 1
            self._push(now=crowd == 1)
        try:
            await question.done.wait()
        except trio.Cancelled:
            if question.sent:
                if self._sent.pop(question.frame.id, None) is not None:
                    self._control.append(CancelFrame(question.frame.id))
                    self._push()
            else:
                with suppress(ValueError):
                    self._outbox.remove(question)
            raise
        if question.error is not None:
            error, question.error = question.error, None
            try:
                raise error
            finally:
                del error
        return question.body

    def hang_up(self) -> None:
        """End the connection, if there is one: the node is gone, or somewhere else."""
        if self._scope is not None:
            self._scope.cancel()

    async def run(self) -> None:
        """Connect whenever there is something to send, until cancelled."""
        try:
            while True:
                if not self._outbox:
                    self._wake = trio.Event()
                    self._control.clear()
                    await self._wake.wait()
                why: Exception | None = None
                with trio.CancelScope() as self._scope:
                    try:
                        await self._converse()
                    except Exception as error:  # noqa: BLE001 (what is not an end goes on)
                        why = _end_of(error)
                self._scope = None
                self._lose(why)
        finally:
            self._lose(None)  # this node leaves, or starts again, and sends nothing any more
            self._lose(None)

    def _lose(self, why: Exception | None) -> None:
        """Answer those whose messages went down with a connection, or could not be sent."""
        asked, self._sent = [*self._sent.values()], {}
        self.ended += self.connected
        self.lost += self._sent_tells
        self._sent_tells = 0
        said = "the node is gone" if why is None else repr(why)
        for question in asked:
            error = ConnectionLost(
                f"the connection to node {self.node!r} ended before the answer came ({said}): the "
                "message may have been handled",
                node=self.node,
                maybe_handled=True,
            )
            error.__cause__ = why
            question.fail(error)
        if self.connected and not isinstance(why, PeerRefused):
            self.connected = False
            return  # what waits is sent over the next connection
        self.connected = False
        waiting, self._outbox = self._outbox, deque()
        for each in waiting:
            if isinstance(each, TellFrame):
                self.lost += 1
                continue
            if isinstance(why, PeerRefused):
                each.fail(PeerRefused(str(why)))
                continue
            unreachable = NodeUnreachable(
                f"node {self.node!r} cannot be reached ({said}): the message was not handled",
                node=self.node,
            )
            unreachable.__cause__ = why
            each.fail(unreachable)

    async def _converse(self) -> None:
        with trio.fail_after(self._settings.silence):
            stream = await self._connect()
        try:
            connection = NodeConnection(self._hello, asks=True, limit=self._settings.frame)
            self._heard = trio.current_time()
            async with PlainNursery() as nursery:
                nursery.start_soon(self._read, stream, connection)
                with trio.fail_after(self._settings.silence):
                    await stream.send_all(connection.greeting())
                    while connection.peer is None:
                        self._wake = trio.Event()
                        await self._wake.wait()
                if connection.peer.node != self.node:
                    raise PeerRefused(f"node {connection.peer.node!r} is not {self.node!r}")
                self.connected = True
                self._outlet = _Outlet(stream, partial(self._batch, connection))
                nursery.start_soon(self._beat)
                await self._outlet.run()
        finally:
            self._outlet = None
            await trio.aclose_forcefully(stream)

    async def _read(self, stream: trio.abc.Stream, connection: NodeConnection) -> None:
        while data := await stream.receive_some(_CHUNK):
            self._heard = trio.current_time()
            for frame in connection.receive(data):
                if isinstance(frame, CreditFrame):
                    self._sent_tells -= frame.count
                elif isinstance(frame, ReplyFrame | FailedFrame):
                    question = self._sent.pop(frame.id, None)
                    if question is not None and isinstance(frame, ReplyFrame):
                        question.body = frame.body
                        question.done.set()
                    elif question is not None:
                        assert isinstance(frame, FailedFrame)
                        question.fail(self._table.error(frame))
            if self._outlet is None or self._outbox:  # the greeting has come, or there is room
                self._push()
        raise _HungUp

    def _batch(self, connection: NodeConnection) -> bytearray:
        batch = bytearray()
        while self._control and len(batch) < _BATCH:
            batch += connection.send(self._control.popleft())
        while self._outbox and connection.room > 0 and len(batch) < _BATCH:
            data = self._encoded(connection, self._outbox.popleft())
            if batch:
                batch += data
            else:
                batch = data  # large ones are not copied
        return batch

    def _encoded(self, connection: NodeConnection, each: _Question | TellFrame) -> bytearray:
        if isinstance(each, TellFrame):
            data = connection.send(each)
            self._sent_tells += 1
            return data
        try:
            data = connection.send(each.frame)
        except ValueError as error:
            each.fail(error)
            return bytearray()
        each.sent = True
        self._sent[each.frame.id] = each
        return data

    async def _beat(self) -> None:
        while True:
            due = trio.current_time() + self._settings.heartbeat
            await trio.sleep_until(due)
            # While this program itself stood still, as in a long garbage collection, it heard none.
            self._heard += trio.current_time() - due
            silent = trio.current_time() - self._heard
            if silent > self._settings.silence:
                raise trio.TooSlowError(f"node {self.node!r} has been silent for {silent:.1f} s")
            self._control.append(PingFrame())
            self._push()


class MessageTurn:
    """A message's place in line: the next message waits until this one has its own."""

    def __init__(self) -> None:
        self._taken = trio.Event()

    def taken(self) -> None:
        """Let the next message come, after this one's next step up to a checkpoint."""
        self._taken.set()

    async def wait(self) -> None:
        """Wait until the message has its place."""
        await self._taken.wait()


Deliver = Callable[[AskFrame, "Visit", MessageTurn], Awaitable[bytes]]
"""Function that answers a message of another node."""


class Holdings:
    """Buffers and calls of another node, or of this one. They end with the connection.

    Attributes:
        held: buffers, by device and number.
        busy: calls in progress, by device; also of published actors.
        slots: turns of fair shares, by number; None for one that has not come yet.
        ends: functions to call when the connection has ended.
    """

    def __init__(self) -> None:
        self.held: dict[str, dict[int, Any]] = {}
        self.busy: Counter[str] = Counter()
        self.slots: dict[int, Any] = {}
        self.ends: dict[str, Callable[[], Awaitable[None]]] = {}

    @property
    def used(self) -> bool:
        """True if anything is in use."""
        return bool(any(self.held.values()) or any(self.busy.values()) or self.slots)

    async def end(self) -> None:
        """Give all of it back."""
        with trio.CancelScope(shield=True):
            for end in self.ends.values():
                await end()


class Visit:
    """A connection that another node has made: its messages are answered here.

    ``names`` are those in the other side's certificate, or None without certificates. ``told``
    returns when messages without an answer have their place in line.

    Attributes:
        holdings: what the other node keeps in use here.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        names: frozenset[str] | None,
        hello: HelloFrame,
        table: MessageTable,
        settings: ClusterSettings,
        deliver: Deliver,
        told: Callable[[TellFrame, Visit], None],
    ) -> None:
        self.holdings = Holdings()
        self._stream = stream
        self._names = names
        self._table = table
        self._settings = settings
        self._deliver = deliver
        self._told = told
        self._connection = NodeConnection(hello, asks=False, limit=settings.frame)
        self._out: deque[Any] = deque()
        self._outlet = _Outlet(stream, self._batch)
        self._answering: dict[int, trio.CancelScope] = {}
        self._more = False  # whether frames have come that nobody has looked at yet

    async def run(self) -> None:
        """Answer until the connection ends."""
        try:
            async with PlainNursery() as nursery:
                await self._stream.send_all(self._connection.greeting())
                nursery.start_soon(self._outlet.run)
                await self._read(nursery)
                nursery.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 (what is not an end goes on)
            end = _end_of(error)
            if isinstance(end, PeerRefused):
                _log.warning("a connection was refused: %s", end)
            else:
                _log.debug("a connection has ended: %r", end)
        finally:
            await trio.aclose_forcefully(self._stream)
            await self.holdings.end()

    async def _read(self, nursery: trio.Nursery) -> None:
        while True:
            with trio.fail_after(self._settings.silence + self._settings.heartbeat):
                data = await self._stream.receive_some(_CHUNK)
            if not data:
                return
            told = 0
            frames = self._connection.receive(data)
            for number, frame in enumerate(frames, 1):
                self._more = number < len(frames)
                if isinstance(frame, AskFrame):
                    turn = MessageTurn()
                    nursery.start_soon(self._answer, frame, turn)
                    await turn.wait()
                elif isinstance(frame, TellFrame):
                    self._told(frame, self)
                    told += 1
                    if told % _TURN == 0:
                        await trio.lowlevel.checkpoint()
                elif isinstance(frame, CancelFrame):
                    if (scope := self._answering.get(frame.id)) is not None:
                        scope.cancel()
                elif isinstance(frame, HelloFrame):
                    if self._names is not None and frame.node not in self._names:
                        raise PeerRefused(
                            f"node {frame.node!r} has a certificate of {sorted(self._names)}"
                        )
                elif isinstance(frame, PingFrame):
                    self._post(PongFrame())
            if told:
                self._post(CreditFrame(told))

    async def _answer(self, frame: AskFrame, turn: MessageTurn) -> None:
        scope = self._answering[frame.id] = trio.CancelScope()
        answer: Any = FailedFrame(frame.id, "Cancelled", "the asker has gone", {})
        try:
            with scope:
                try:
                    body = await self._deliver(frame, self, turn)
                    answer = ReplyFrame(frame.id, body)
                except Exception as error:  # noqa: BLE001 (the asker's)
                    answer = self._table.failure(frame.id, error)
        finally:
            del self._answering[frame.id]
            turn.taken()
        self._post(answer)

    def _post(self, frame: Any) -> None:
        self._out.append(frame)
        self._outlet.push(now=not self._answering and not self._more)

    def _batch(self) -> bytearray:
        batch = bytearray()
        while self._out and len(batch) < _BATCH:
            frame = self._out.popleft()
            try:
                data = self._connection.send(frame)
            except ValueError as error:
                data = self._connection.send(self._table.failure(frame.id, error))
            if batch:
                batch += data
            else:
                batch = data  # large ones are not copied
        return batch
