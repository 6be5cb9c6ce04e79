"""Modules in the host: loaded when first needed, again after a rebuild, and released in the end."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final
from weakref import WeakKeyDictionary, WeakSet, ref

from ...arrays import GpuRef
from ...memory import SLICE, Slab, block_at
from ...ops import Request, Submission
from ...wire import SLAB_SHIFT
from .lanes import KERNELS
from .wire.messages import Load, MapVariable, Unload, VariableContent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from ...memory import Block, Epoch, MemoryMap
    from ...ops import Preparer

_numbers: Final = itertools.count(1)
"""Numbers of modules, unique in all hosts. A host may have loaded some as a standby."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class _ModuleCopy:
    """A module loaded by a group of executors, in one generation.

    Attributes:
        host_objects: the owner of those executors.
        kept: block that unloads the module when dropped; launches name it as read.
        loaded: whether the module is known to be loaded.
        asked_by: the batches and recordings that load the module themselves. Their own later
            launches may use it, but others may not until ``loaded`` is true.
    """

    host_objects: ref[object]
    kept: Block
    loaded: bool = False
    asked_by: WeakSet[object] = field(default_factory=WeakSet)


def _no_copy() -> None:
    """Return None, like a weak reference whose target is gone."""


@final
class Variable:
    """A variable of a module, as programs see it.

    Attributes:
        content: its name, shape, type and initial values.
        constant: whether kernels only read it.
    """

    __slots__ = ("_block", "_dtype", "constant", "content")

    def __init__(
        self, content: VariableContent, dtype: np.dtype[np.generic], *, constant: bool
    ) -> None:
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
            slab: number of the slab, with which its addresses begin.
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
    """Return None, because no block was made yet."""


@final
class Resident:
    """A module in the host, shared by all copies of its handles.

    ``prints`` says whether its kernels may call ``printf``.

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
        self._copies: WeakKeyDictionary[object, _ModuleCopy] = WeakKeyDictionary()
        self._latest: Callable[[], _ModuleCopy | None] = _no_copy  # mostly the only one

    @property
    def image(self) -> bytes:
        """The image to load. On the CPU backend it contains functions, not machine code."""
        return self._image

    def loaded(self, preparer: Preparer) -> Block:
        """Return the block that stands for the module in the preparer's host. Load it if needed."""
        host_objects = preparer.host_objects
        copy = self._latest()
        if copy is None or copy.host_objects() is not host_objects:
            copy = self._copies.get(host_objects)
            self._latest = _no_copy if copy is None else ref(copy)
        if copy is None or copy.kept.epoch is not preparer.memory.epoch:
            kept = host_objects.keep(KERNELS.name, f"unload {self._name}", Unload(self.number))
            copy = self._copies[host_objects] = _ModuleCopy(ref(host_objects), kept)
        if not copy.loaded and preparer.home not in copy.asked_by:
            preparer.perform(self._load(copy))
            copy.asked_by.add(preparer.home)
        return copy.kept

    def used(self, preparer: Preparer) -> Iterator[tuple[Variable, Block]]:
        """The variables that programs have refs of, which launches come in order with."""
        memory = preparer.memory
        known = [variable.block(memory) for variable in self.variables.values()]
        preparer.depends(
            lambda: [variable.block(memory) for variable in self.variables.values()] == known
        )
        for variable, block in zip(self.variables.values(), known, strict=True):
            if block is not None:
                yield variable, preparer.obtain(_giving(block))

    def map(self, variable: Variable) -> Request[GpuRef]:
        """The request of a variable's memory."""
        at = [*self.variables.values()].index(variable)

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            memory = preparer.memory
            kept = preparer.obtain(self.loaded)
            block = variable.block(memory)
            if block is not None:
                return Submission(None, (), (), variable.ref(block))
            epoch, slab = memory.epoch, memory.new_slab_id()

            def finish(_answer: object) -> GpuRef:
                return variable.ref(variable.take(memory, epoch, slab, kept))

            # As written: launches that do not name the variable yet come before.
            return Submission(MapVariable(self.number, at, slab), (), (kept,), finish=finish)

        return Request(KERNELS, f"variable {variable.content.name}", prepare)

    def _load(self, copy: _ModuleCopy) -> Request[None]:
        def done() -> None:
            copy.loaded = True

        contents = tuple(variable.content for variable in self.variables.values())

        def prepare(preparer: Preparer) -> Submission[None]:
            # Others are loaded for as long as refs of their variables are not known to be gone.
            preparer.memory.collect(SLICE)
            message = Load(self.number, self._image, self._symbols, contents)
            return Submission(message, (copy.kept,), (), done=done)

        return Request(KERNELS, f"load {self._name}", prepare, ("nvrtc.load", self.number))


def _giving(block: Block) -> Callable[[Preparer], Block]:
    return lambda _preparer: block
