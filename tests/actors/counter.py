"""An actor for tests, its messages, and its failures."""

from __future__ import annotations

from typing import Any

import trio

from atomr_accel.actors import (
    Actor,
    Backoff,
    Directive,
    Message,
    Supervision,
    decide_by_type,
    handler,
)


class Boom(Exception):
    pass


class Minor(Exception):
    pass


class Add(Message[int]):
    k: int


class AddTwice(Add):
    pass


class Get(Message[int]):
    pass


class Fail(Message[None]):
    failure: BaseException


class Hang(Message[None]):
    pass


class Block(Message[None]):
    until: trio.Event


class Unknown(Message[None]):
    pass


class Quit(Message[str]):
    pass


def quick(**options: Any) -> Supervision:
    """Restart at once; `Minor` is resumed from."""
    options.setdefault("backoff", Backoff(base=0))
    options.setdefault("decider", decide_by_type({Minor: Directive.RESUME}))
    return Supervision(**options)


class Counter(Actor):
    supervision = quick()

    def __init__(self, start: int = 0, log: list[str] | None = None) -> None:
        self.total = start
        self.log = log if log is not None else []

    async def started(self) -> None:
        self.log.append(f"+{self._cell.name}")

    async def restarting(self, cause: BaseException | None) -> None:
        self.log.append(f"~{cause!r}")

    async def stopping(self) -> None:
        self.log.append(f"-{self._cell.name}")

    @handler
    async def add(self, message: Add) -> int:
        self.total += message.k
        return self.total

    @handler
    async def get(self, message: Get) -> int:
        await trio.lowlevel.checkpoint()
        return self.total

    @handler
    async def fail(self, message: Fail) -> None:
        raise message.failure

    @handler
    async def hang(self, message: Hang) -> None:
        await trio.sleep_forever()

    @handler
    async def block(self, message: Block) -> None:
        await message.until.wait()

    @handler
    async def quit(self, message: Quit) -> str:
        self.stop()
        await trio.lowlevel.checkpoint()
        return "bye"
