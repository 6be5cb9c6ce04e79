"""Calls of an actor's own methods, which Ctrl-C may interrupt, unlike the cell's."""

from __future__ import annotations

from typing import Any, TypeVar

import trio

A = TypeVar("A")

# Cells and actors are untyped here: their modules know of each other, and of this one.


@trio.lowlevel.disable_ki_protection
def make(cell: Any, actor_type: type[A], arguments: tuple[Any, Any]) -> A:
    """Make the instance of a life."""
    actor: Any = actor_type.__new__(actor_type)
    actor._cell = cell  # before __init__, so that it has the ref at hand
    args, kwargs = arguments
    actor.__init__(*args, **kwargs)
    return actor  # type: ignore[no-any-return]


@trio.lowlevel.disable_ki_protection
async def begin(actor: Any, cell: Any) -> None:
    """Call the hooks at the beginning of a life."""
    if cell.restarts:
        await actor.restarting(cell._cause)
    await actor.started()


@trio.lowlevel.disable_ki_protection
async def finish(actor: Any) -> None:
    """Call the hook at the end of a life."""
    await actor.stopping()
