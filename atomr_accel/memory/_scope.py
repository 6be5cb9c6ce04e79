"""Memory scopes, which free the buffers made inside them at the end."""

from __future__ import annotations

import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, final, runtime_checkable

from .._errors import said_of
from ..actors.context import stays

if TYPE_CHECKING:
    from contextvars import Token

    from ._block import Block
    from .map import MemoryMap


@runtime_checkable
class _BlockRef(Protocol):
    """A ref of a buffer."""

    block: Block

    def on_block(self, block: Block) -> Any:
        """Return the same array in another block."""


R = TypeVar("R", bound=_BlockRef)


@final
class MemoryScope:
    """Frees the buffers made inside its block. Returned by ``device.scope()``.

    It covers the buffers that its task makes, and those of tasks started inside the block.
    """

    def __init__(self, memory: MemoryMap) -> None:
        self._memory = memory
        self._blocks: weakref.WeakSet[Block] = weakref.WeakSet()
        self._outer: MemoryScope | None = None
        self._token: Token[MemoryScope | None]
        self._open = False

    def open(self) -> None:
        """Begin: what this task makes from here on belongs to the scope."""
        self._outer = _innermost.get()
        self._token = _innermost.set(self)
        self._memory.scopes += 1
        self._open = True

    def close(self) -> None:
        """End: free what belongs to the scope."""
        self._open = False
        self._memory.scopes -= 1
        _innermost.reset(self._token)
        for block in list(self._blocks):
            if block.epoch is not None:
                self._memory.free(block)

    def keep(self, ref: R) -> R:
        """Let a buffer live on: it belongs to the scope around this one, if there is one."""
        given: object = ref
        if not isinstance(given, _BlockRef):
            raise TypeError(f"keep takes a buffer, a GpuRef, not {said_of(given)}")
        self._blocks.discard(ref.block)
        if self._outer is not None:
            self._outer._note(self._memory, ref.block)
        return ref

    def _note(self, memory: MemoryMap, block: Block) -> None:
        scope: MemoryScope | None = self
        while scope is not None and not (scope._open and scope._memory is memory):
            scope = scope._outer
        if scope is not None:
            scope._blocks.add(block.base)  # held here only weakly, as a view's own block would be


_innermost: Final[ContextVar[MemoryScope | None]] = stays(
    ContextVar("innermost scope", default=None)
)


def note(memory: MemoryMap, block: Block) -> None:
    """A block was made: it belongs to the innermost scope of its device, if there is one."""
    scope = _innermost.get()
    if scope is not None:
        scope._note(memory, block)
