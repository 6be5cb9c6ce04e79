"""Call templates: ops prepared for all calls with one signature."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, final

import msgspec
import numpy as np

from ..arrays import GpuRef  # at run time, since help() evaluates the fields of a Struct
from ..lanes import MessageTemplate
from ..memory import Block, BlockView, Epoch
from ..wire import CallByTemplate
from ._library import OpSubmitter
from ._request import Pending, Preparer, TemplatePreparer


@final
class OpTemplate(msgspec.Struct, frozen=True):
    """A message of a call template.

    Attributes:
        lane: the lane that executes it.
        name: the op's name.
        template: the message, with places for addresses.
        holes: picks the addresses for the places from all addresses.
        offsets: bytes to add to these addresses; None if all are zero.
        reads: picks the blocks that it reads from all blocks.
        writes: picks the blocks that it writes.
    """

    lane: str
    name: str
    template: MessageTemplate
    holes: Callable[[Sequence[int]], Sequence[int]]
    offsets: tuple[int, ...] | None
    reads: Callable[[Sequence[Block]], Sequence[Block]]
    writes: Callable[[Sequence[Block]], Sequence[Block]]

    def submit(
        self, device: OpSubmitter, port: Any, addresses: Sequence[int], blocks: Sequence[Block]
    ) -> Any:
        """Submit the op of a call on these blocks by ``port``."""
        given = tuple(self.holes(addresses))
        if self.offsets is not None:
            given = tuple(map(operator.add, given, self.offsets))
        template = self.template
        return device.submit(
            port,
            self.name,
            template,
            self.reads(blocks),
            self.writes(blocks),
            CallByTemplate(template.number, given),
        )


@final
class CallTemplate(msgspec.Struct, frozen=True):
    """Prepared ops for calls of one signature.

    Attributes:
        epoch: the generation in which it was made; plans and kernels may be gone after it.
        lanes: the lanes that execute the ops.
        ops: their messages, one right after the other.
        own: the index of the call's own op; the ops before and after it are the steps that it
            needs.
        outputs: shapes, dtypes and bytes of the buffers that each call makes.
        obtain: functions that make the other blocks that each call asks for.
        checks: return whether conditions outside the signature still hold.
        result: makes the result from all refs.
        finish: makes the result from the answer and from the value of ``result``, if the result
            depends on the answer.
    """

    epoch: Epoch
    lanes: frozenset[str]
    ops: tuple[OpTemplate, ...]
    own: int
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any], int], ...]
    obtain: tuple[Callable[[Preparer], Block], ...]
    checks: tuple[Callable[[], bool], ...]
    result: Callable[[Sequence[GpuRef]], Any]
    finish: Callable[[Any, Any], Any] | None

    def holds(self) -> bool:
        """Return whether the template still holds for calls in its generation."""
        for check in self.checks:  # noqa: SIM110 - this is a hot path
            if not check():
                return False
        return True

    def call(
        self, preparer: TemplatePreparer, refs: list[GpuRef], words: list[int]
    ) -> tuple[Sequence[int], Sequence[Block], Any]:
        """Return one call's addresses and blocks, which fill its ops, and its result.

        Raises:
            Pending: the call has to wait for something.
        """
        for shape, dtype, nbytes in self.outputs:
            made = preparer.try_empty(shape, dtype, nbytes)
            if made is None:
                raise Pending((shape, dtype))
            refs.append(made)
        # Loops, because a comprehension costs a call.
        blocks: list[Block] = []
        addresses: list[int] = []
        for ref in refs:
            block = ref.block
            if isinstance(block, BlockView):
                addresses.append(block.whole.address + block.start)
                # Later code asks whole blocks, which answer sooner; digests are of the view alone.
                blocks.append(block.whole if block.whole.durable is None else block)
            else:
                addresses.append(block.address)
                blocks.append(block)
        for obtain in self.obtain:
            block = obtain(preparer)
            addresses.append(block.address)
            blocks.append(block)
        return addresses + words if words else addresses, blocks, self.result(refs)


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that picks the items at these positions."""
    if len(positions) > 1:
        return itemgetter(*positions)
    first = positions[0] if positions else 0
    return itemgetter(slice(first, first + len(positions)))
