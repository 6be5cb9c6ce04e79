"""The few calls of Ray's that nodes of a cluster need.

A process is an object whose methods run in threads. A test may also play a process itself: it
settles `FakeProcess.serving`, and hears of calls by `FakeProcess.on_call`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from types import SimpleNamespace
from typing import Any


class ActorDied(Exception):
    """The error of calls of a process once it has ended."""


class FakeRef:
    """A call, whose answer is a future."""

    def __init__(self, answer: Future[Any]) -> None:
        self.answer = answer

    def future(self) -> Future[Any]:
        return self.answer


class FakeProcess:
    """Handle of a process.

    Attributes:
        options: how it was asked for.
        killed: whether it was killed.
        serving: the answer of the call that a test plays.
        on_call: gets the names of calls that a test plays.
        on_kill: called when the process is killed.
    """

    def __init__(self, made: type, options: dict[str, Any]) -> None:
        self.options = options
        self.killed = False
        self.serving: Future[Any] = Future()
        self.on_call: Callable[[str], None] | None = None
        self.on_kill: Callable[[], None] = lambda: None
        self._object = made()
        self._threads: list[threading.Thread] = []

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args: self._call(name, args))

    def _call(self, name: str, args: tuple[Any, ...]) -> FakeRef:
        answer: Future[Any] = Future()
        if self.on_call is not None:
            self.on_call(name)
            return FakeRef(answer)

        def run() -> None:
            try:
                answer.set_result(getattr(self._object, name)(*args))
            except Exception as error:  # noqa: BLE001 (it is the answer)
                answer.set_exception(error)

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()
        return FakeRef(answer)

    def die(self) -> None:
        """End the process."""
        self.on_kill()
        with suppress(InvalidStateError):
            self.serving.set_exception(ActorDied("the process has ended"))

    def join(self) -> None:
        """Wait until all calls have ended."""
        for thread in self._threads:
            thread.join()


class FakeRay:
    """Module ``ray``.

    Attributes:
        processes: all that were started.
        there: resources of its nodes, by their ids.
    """

    def __init__(self) -> None:
        self.processes: list[FakeProcess] = []
        self.there: dict[str, dict[str, float]] = {}
        self.initialized = True
        self.util = SimpleNamespace(
            get_node_ip_address=lambda: "127.0.0.1",
            scheduling_strategies=SimpleNamespace(
                NodeAffinitySchedulingStrategy=lambda place, soft: (place, soft)
            ),
        )

    def is_initialized(self) -> bool:
        return self.initialized

    def nodes(self) -> list[dict[str, Any]]:
        alive = [{"NodeID": n, "Alive": True, "Resources": r} for n, r in self.there.items()]
        return [*alive, {"NodeID": "gone", "Alive": False, "Resources": {"CPU": 8.0}}]

    def remote(self, **options: Any) -> Callable[[type], Any]:
        def maker(made: type) -> Any:
            return SimpleNamespace(remote=lambda: self._start(made, options))

        return maker

    def _start(self, made: type, options: dict[str, Any]) -> FakeProcess:
        self.processes.append(FakeProcess(made, options))
        return self.processes[-1]

    def kill(self, process: FakeProcess) -> None:
        process.killed = True
        process.die()
