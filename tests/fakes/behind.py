"""A CPU device that runs behind, as a GPU does: launching only queues.

Each stream is a queue. Each question whether work has finished runs one step of a pseudo-random
stream. So streams that wait for nothing overtake each other. ``follow`` is the only thing that
orders them. The rest is the CPU backend: its executors run, but their work is queued.
"""

from __future__ import annotations

import os
import random
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest

from atomr_accel.backends import cpu
from atomr_accel.backends import registry as _registry
from atomr_accel.backends.cpu.host import context as _context
from atomr_accel.host import host as _host
from atomr_accel.wire.control import find_class
from atomr_accel.wire.interface import Fusion

BACKEND: Final = "behind"

AT_ONCE: Final = ("Compile", "Describe", "Load", "Probe")
"""Messages that return something, or prepare for others: executed when they are launched."""

TOGETHER: Final = 4


class Point:
    """A place in a stream, reached or not."""

    def __init__(self) -> None:
        self.reached = False


class World:
    """All streams of a device, and what moves them on.

    Attributes:
        opened: how often a lane has opened a stream.
        closed: how often one was closed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.random = random.Random(0)
        self.streams: list[Stream] = []
        self.fused: list[int] = []
        self.opened = self.closed = 0
        self._over = threading.Event()
        self._clock: threading.Thread | None = None

    def tick(self) -> None:
        """Start a thread that runs steps, for waits that depend on a signal."""
        if self._clock is None:
            self._clock = threading.Thread(target=self._tick, name="device behind")
            self._clock.start()

    def _tick(self) -> None:
        while not self._over.wait(100e-6):
            self.step()

    def close(self) -> None:
        """The device is gone."""
        self._over.set()
        if self._clock is not None:
            self._clock.join()

    def step(self) -> None:
        """Run the next work of one of the streams that can go on."""
        with self.lock:
            able = [stream for stream in self.streams if stream.able()]
            if able:
                self.random.choice(able).step()


class Stream:
    """The worker's view of a stream."""

    def __init__(self, world: World, context: Any) -> None:
        self.world = world
        self.pending: deque[Point | Callable[[], object]] = deque()
        self.queue = id(self)
        self.awaited: dict[int, Point] = {}
        self._context = context
        world.streams.append(self)

    def put(self, work: Callable[[], object]) -> None:
        """Queue some work."""
        with self.world.lock:
            self.pending.append(work)

    def able(self) -> bool:
        """Return whether the stream has work that it can run now."""
        if not self.pending:
            return False
        awaited = self.awaited.get(id(self.pending[0]))
        return awaited is None or awaited.reached

    def step(self) -> None:
        head = self.pending.popleft()
        self.awaited.pop(id(head), None)
        if isinstance(head, Point):
            head.reached = True
        else:
            head()

    # --- host.Stream ----------------------------------------------------------------------

    def mark(self) -> Point:
        with self.world.lock:
            point = Point()
            self.pending.append(point)
            return point

    def finished(self, token: Point) -> bool:
        if not token.reached and self.world.random.random() < 0.3:
            self.world.step()
        return token.reached

    def wait(self, token: Point) -> None:
        while not token.reached:
            self.world.step()

    def release(self, token: Point) -> None:
        assert token.reached

    def signal(self) -> int:
        reader, writer = os.pipe()
        self.world.tick()
        self.put(partial(os.close, writer))
        return reader

    def timestamp(self, event: int) -> None:
        self.put(partial(_context.CpuStream(self._context).timestamp, event))

    def follow(self, other: Stream) -> None:
        with self.world.lock:
            wait = Point()  # its place in this queue; what it waits for is in the other
            self.awaited[id(wait)] = other.mark()
            self.pending.append(wait)

    def close(self) -> None:
        with self.world.lock:
            self.world.closed += 1


class Context:
    """The CPU backend's context, with streams that run behind."""

    def __init__(self, index: int, plan: Any) -> None:
        self._cpu = _context.CpuContext(index, plan)
        self._shared: dict[Hashable, Stream] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cpu, name)

    def open_lane(self, name: str, stream: Hashable) -> Stream:
        self._cpu.open_lane(name, stream)
        with WORLD[0].lock:
            WORLD[0].opened += 1
        if stream is None:
            return Stream(WORLD[0], self._cpu)
        if stream not in self._shared:
            self._shared[stream] = Stream(WORLD[0], self._cpu)
        return self._shared[stream]


class Executor:
    """An executor of the CPU backend whose work is queued."""

    def __init__(self, inner: Any, stream: Stream) -> None:
        self._inner = inner
        self._stream = stream
        self.handlers = {
            kind: handler if kind.__name__ in AT_ONCE else partial(self._queue, handler)
            for kind, handler in inner.handlers.items()
        }
        self.fusions = {
            kind: Fusion(key=_key, run=partial(self._run, handler), most=TOGETHER)
            for kind, handler in inner.handlers.items()
            if kind.__name__ == "Gemm"
        }
        self.close = inner.close
        if hasattr(inner, "on"):
            self.on = lambda stream: Executor(inner.on(stream), stream)

    def _queue(self, handler: Callable[[Any], None], message: Any) -> None:
        if _fails(message):
            handler(message)
        self._stream.put(partial(handler, message))

    def _run(self, handler: Callable[[Any], None], messages: list[Any]) -> None:
        self._stream.world.fused.append(len(messages))
        for message in messages:
            self._queue(handler, message)


def _key(message: Any) -> Any:
    return (message.sizes, message.options, message.beta) if message.beta == 0 else None


def _fails(message: Any) -> bool:
    """Return whether a test made this launch fail, which shows once it is launched."""
    arguments: Any = getattr(message, "arguments", ())
    return bool(arguments) and any(getattr(arguments[-1], "data", b""))


WORLD: list[World] = []
"""The device's, while there is one."""

DESCRIPTION: Final = replace(
    cpu.BACKEND,
    context=f"{__name__}:Context",
    capabilities=replace(cpu.BACKEND.capabilities, asynchronous=True),
)
"""Uses the CPU backend's name, so that the same executors run."""


@contextmanager
def backend() -> Iterator[World]:
    """Have the backend of this module, named ``BACKEND``; it needs thread isolation."""

    def load_queued(what: str, reference: str) -> Any:
        loaded: Any = find_class(what, reference)
        if loaded is Context:
            return loaded
        return lambda context, stream: Executor(loaded(context, stream), stream)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_registry.BUILT_IN, BACKEND, f"{__name__}:DESCRIPTION")
        patch.setattr(_host, "find_class", load_queued)
        WORLD.append(World())
        try:
            yield WORLD[0]
        finally:
            WORLD.pop().close()
