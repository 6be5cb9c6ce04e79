"""Modules in the host: loaded when first needed, again after a rebuild, and released in the end."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final
from weakref import WeakKeyDictionary, WeakSet, ref

from ...memory import GpuRef, Slab, block_at
from ...wire import SLAB_SHIFT
from .._request import Request, Submission
from ._lanes import KERNELS
from .wire._messages import Content, Load, MapVariable, Unload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from ...memory import Block, Epoch, MemoryMap
    from .._request import Driver

_numbers: Final = itertools.count(1)
"""Of modules, in all hosts: one may have some from when it was a standby."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Copy:
    """A module among some executors, in one generation.

    Attributes:
        keeper: has those executors.
        kept: has it released in the end; launches name it as read.
        loaded: whether it is there for sure.
        asked_by: the batches and recordings that have it loaded themselves: it is there for
            what they launch afterwards, but not for others, as long as it is not sure.
    """

    keeper: ref[object]
    kept: Block
    loaded: bool = False
    asked_by: WeakSet[object] = field(default_factory=WeakSet)


def _no_copy() -> None:
    """What a reference to one that is gone says."""


@final
class Variable:
    """A variable of a module, as programs see it.

    Attributes:
        content: its name, shape and type, and what it begins with.
        constant: whether kernels only read it.
    """

    __slots__ = ("_block", "_dtype", "constant", "content")

    def __init__(self, content: Content, dtype: np.dtype[np.generic], *, constant: bool) -> None:
        self.content: Final = content
        self.constant: Final = constant
        self._dtype: Final = dtype
        self._block: Callable[[], Block | None] = _nothing

    def block(self, memory: MemoryMap) -> Block | None:
        """Its memory, if the program has a ref of it in this generation."""
        block = self._block()
        return block if block is not None and block.epoch is memory.epoch else None

    def ref(self, block: Block) -> GpuRef:
        """The buffer in its memory."""
        content = self.content
        return GpuRef(block, content.shape, self._dtype, len(content.data))

    def take(self, memory: MemoryMap, epoch: Epoch, slab: int, kept: Block) -> Block:
        """Its memory, now that the host has given it an address.

        Args:
            memory: where the address is.
            epoch: that in which it was asked for; a later one makes a buffer that is stale.
            slab: what addresses of it begin with.
            kept: the module, which is there for as long as its memory is used.
        """
        nbytes = len(self.content.data)
        if memory.epoch is not epoch:
            stale = block_at(memory, slab << SLAB_SHIFT, 0)
            stale.epoch = epoch
            return stale
        block = self.block(memory)
        if block is not None:  # another task was faster, and ops are ordered by one block
            memory.unmapped.append(slab)
            return block
        block = memory.add_dedicated(Slab(slab, nbytes, -1, sealed=False), owner=kept)
        self._block = ref(block)
        return block


def _nothing() -> None:
    """Nobody has asked for it yet."""


@final
class Resident:
    """A module in the host, as all copies of its handles know it.

    Args:
        name: what to call it.
        image: what is loaded.
        symbols: the names of its kernels in that.
        variables: those that programs may ask for.
        prints: whether its kernels may call ``printf``.

    Attributes:
        number: the host's number of it.
        prints: as given.
        variables: by name.
    """

    __slots__ = (
        "_copies",
        "_image",
        "_latest",
        "_name",
        "_symbols",
        "number",
        "prints",
        "variables",
    )

    def __init__(
        self,
        name: str,
        image: bytes,
        symbols: tuple[str, ...],
        variables: tuple[Variable, ...],
        *,
        prints: bool = False,
    ) -> None:
        self.prints: Final = prints
        self.number: Final = next(_numbers)
        self.variables: Final = {each.content.name: each for each in variables}
        self._name = name
        self._image = image
        self._symbols = symbols
        self._copies: WeakKeyDictionary[object, _Copy] = WeakKeyDictionary()
        self._latest: Callable[[], _Copy | None] = _no_copy  # mostly the only one

    @property
    def image(self) -> bytes:
        """What is loaded; on the CPU backend no machine code, but functions."""
        return self._image

    def loaded(self, driver: Driver) -> Block:
        """What stands for it where the driver's ops are executed; it is loaded first, if need be.

        Args:
            driver: that of the launch.
        """
        keeper = driver.keeper
        copy = self._latest()
        if copy is None or copy.keeper() is not keeper:
            copy = self._copies.get(keeper)
            self._latest = _no_copy if copy is None else ref(copy)
        if copy is None or copy.kept.epoch is not driver.memory.epoch:
            kept = keeper.keep(KERNELS.name, f"unload {self._name}", Unload(self.number))
            copy = self._copies[keeper] = _Copy(ref(keeper), kept)
        if not copy.loaded and driver.home not in copy.asked_by:
            driver.perform(self._load(copy))
            copy.asked_by.add(driver.home)
        return copy.kept

    def used(self, driver: Driver) -> Iterator[tuple[Variable, Block]]:
        """The variables that programs have refs of, which launches come in order with."""
        memory = driver.memory
        known = [variable.block(memory) for variable in self.variables.values()]
        driver.depends(
            lambda: [variable.block(memory) for variable in self.variables.values()] == known
        )
        for variable, block in zip(self.variables.values(), known, strict=True):
            if block is not None:
                yield variable, driver.obtain(_giving(block))

    def map(self, variable: Variable) -> Request[GpuRef]:
        """The request of a variable's memory."""
        at = [*self.variables.values()].index(variable)

        def prepare(driver: Driver) -> Submission[GpuRef]:
            memory = driver.memory
            kept = driver.obtain(self.loaded)
            block = variable.block(memory)
            if block is not None:
                return Submission(None, (), (), variable.ref(block))
            epoch, slab = memory.epoch, memory.new_slab_id()

            def finish(_answer: object) -> GpuRef:
                return variable.ref(variable.take(memory, epoch, slab, kept))

            # As written: launches that do not name the variable yet come before.
            return Submission(MapVariable(self.number, at, slab), (), (kept,), finish=finish)

        return Request(KERNELS, f"variable {variable.content.name}", prepare)

    def _load(self, copy: _Copy) -> Request[None]:
        def done() -> None:
            copy.loaded = True

        contents = tuple(variable.content for variable in self.variables.values())

        def prepare(driver: Driver) -> Submission[None]:
            # Others are loaded for as long as refs of their variables are not known to be gone.
            driver.memory.reclaim_held()
            message = Load(self.number, self._image, self._symbols, contents)
            return Submission(message, (copy.kept,), (), done=done)

        return Request(KERNELS, f"load {self._name}", prepare, ("nvrtc.load", self.number))


def _giving(block: Block) -> Callable[[Driver], Block]:
    return lambda _driver: block
