"""CUDA arrays: memory in the order in which texture units read it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakKeyDictionary

import msgspec

from ..._dtypes import NAMES
from ..._errors import GpuRefStale, Unsupported
from ...ops import D, Facade, Request, Submission, op, require_readable, require_writable
from ._texels import Texels, check_extent, texels
from .lanes import KERNELS
from .wire.messages import CopyArray, FreeArray, MakeArray

if TYPE_CHECKING:
    import numpy as np

    from ...arrays import GpuRef
    from ...memory import Block
    from ...ops import DeviceView, Preparer

_numbers: Final = itertools.count(1)
"""Numbers of CUDA arrays, unique in all hosts."""


@dataclass(slots=True, eq=False)
class _CudaArrayCopy:
    """A CUDA array in one host.

    Attributes:
        kept: has it released in the end; ops name it as read or written.
        made: whether it is there for sure.
    """

    kept: Block
    made: bool = False


@final
class ArrayMemory:
    """A CUDA array in the host, shared by all copies of its handle.

    Args:
        ref: its source; kept only if it is sealed, since other buffers do not survive a fault.
        layout: the source as texels.
        surface: whether surfaces may be made of it.

    Attributes:
        number: the host's number of it.
        shape, dtype: shape and dtype of ``ref``.
        layout: as given.
        surface: as given.
    """

    def __init__(self, ref: GpuRef, layout: Texels, *, surface: bool) -> None:
        self.number: Final = next(_numbers)
        self.shape: Final = ref.shape
        self.dtype: Final = ref.dtype
        self.layout: Final = layout
        self.surface: Final = surface
        self._home = ref.block.memory
        self._freed = False
        self._source = ref if ref.sealed else None
        self._copies: WeakKeyDictionary[object, _CudaArrayCopy] = WeakKeyDictionary()

    def make(self, preparer: Preparer, ref: GpuRef) -> Submission[None]:
        """Prepare to make the array in the host of a device, with the content of ``ref``."""
        block = require_readable(ref, preparer.memory, "the array")
        host_objects: Any = preparer.memory.owner
        copy = self._copies.get(host_objects)
        if copy is None or copy.kept.epoch is not preparer.memory.epoch:
            release = FreeArray(self.number)
            copy = _CudaArrayCopy(host_objects.keep(KERNELS.name, "free a CUDA array", release))
            self._copies[host_objects] = copy
        layout = self.layout
        message = MakeArray(
            self.number,
            block.address,
            self.shape,
            NAMES[self.dtype],
            layout.extent,
            layout.format,
            layout.channels,
            self.surface,
        )

        def done() -> None:
            copy.made = True

        return Submission(message, (block,), (copy.kept,), done=done)

    def there(self, preparer: Preparer) -> Block:
        """Return the block that stands for the array. Rebuild the array after a fault if possible.

        Raises:
            GpuRefStale: it was freed; or a fault ended it together with its source; or this is a
                recording, which cannot rebuild it.
        """
        host_objects, source = preparer.memory.owner, self._source
        what = f"a CUDA array of {NAMES[self.dtype]}{[*self.shape]}"
        if self._freed:
            raise GpuRefStale(f"{what} was freed")
        copy = self._copies.get(host_objects)
        if copy is None or copy.kept.epoch is not preparer.memory.epoch or not copy.made:
            if copy is None and source is None and self._home is not preparer.memory:
                raise ValueError(
                    f"{what} must be of {preparer.memory.device}, where the op runs, "
                    f"not of {self._home.said}; make one there"
                )
            if source is None or preparer.host_objects is not host_objects:
                raise GpuRefStale(
                    f"{what} is gone: the generation "
                    "of its device has ended. One that is made of a sealed buffer is made again "
                    "when it is next used outside of a recording"
                )
            key = "nvrtc.cuda_array", self.number
            preparer.perform(Request(KERNELS, key[0], partial(self.make, ref=source), key))
            copy = self._copies[host_objects]
        return copy.kept

    def free(self, preparer: Preparer) -> Submission[None]:
        """Prepare to free the array: in this host after earlier ops, in others when they learn it.

        Raises:
            Unsupported: the call is part of a recording.
            GpuRefStale: the array was already freed, or is of an older generation.
        """
        if preparer.host_objects is not preparer.memory.owner:
            raise Unsupported(
                "a CUDA array is freed by itself, and not when a recording is replayed"
            )
        kept = self.there(preparer)
        self._freed = True
        self._source = None
        self._copies.clear()
        return Submission(FreeArray(self.number), (), (kept,))


@final
class CudaArray(Facade[D]):
    """Memory in the order in which texture units read it (``cuArray3DCreate``).

    Made by ``device.nvrtc.cuda_array``. A ``Texture`` of it may have any filter and address mode,
    and up to three axes; a ``Surface`` lets kernels write to it. After a fault it is rebuilt
    automatically if it was made of a sealed buffer. Otherwise it is stale, like any buffer: methods
    raise ``GpuRefStale``.

    Attributes:
        shape: shape of its source; more than one channel are the last axis.
        dtype: dtype of a channel.
        channels: number of channels of a texel: 1, 2 or 4.
        surface: whether surfaces may be made of it.
    """

    def __init__(self, device: DeviceView, memory: ArrayMemory) -> None:
        self.home = device
        self._memory = memory
        self.shape: Final[tuple[int, ...]] = memory.shape
        self.dtype: Final[np.dtype[np.generic]] = memory.dtype
        self.channels: Final[int] = memory.layout.channels
        self.surface: Final[bool] = memory.surface

    def __repr__(self) -> str:
        return f"<CudaArray {NAMES[self.dtype]}{[*self.shape]}, {self.channels} channels>"

    @op
    def copy_from(self, ref: GpuRef) -> Request[None]:
        """Replace the content (``cuMemcpy3DAsync``).

        Args:
            ref: contiguous, of the array's shape and dtype.
        """
        return self._copy(ref, to_array=True)

    @op
    def copy_to(self, ref: GpuRef) -> Request[None]:
        """Copy the content to a buffer (``cuMemcpy3DAsync``).

        Args:
            ref: contiguous, of the array's shape and dtype.
        """
        return self._copy(ref, to_array=False)

    @op
    def free(self) -> Request[None]:
        """Give its memory back now, after its last op (``cuArrayDestroy``).

        Dropping the array does the same, with a later op. Textures and surfaces of it are refused
        from now on.

        Raises:
            Unsupported: in a recording.
        """
        return Request(KERNELS, "CudaArray.free", self._memory.free)

    def _copy(self, ref: GpuRef, *, to_array: bool) -> Request[None]:
        memory, name = self._memory, f"CudaArray.copy_{'from' if to_array else 'to'}"

        def prepare(preparer: Preparer) -> Submission[None]:
            check = require_readable if to_array else require_writable
            block = check(ref, preparer.memory, "ref")
            if ref.shape != self.shape or ref.dtype != self.dtype:
                raise ValueError(
                    f"{name} takes {NAMES[self.dtype]}{[*self.shape]}, not "
                    f"{NAMES[ref.dtype]}{[*ref.shape]}"
                )
            kept = preparer.obtain(memory.there)
            message = CopyArray(memory.number, block.address, to_array)
            if to_array:
                return Submission(message, (block,), (kept,))
            return Submission(message, (kept,), (block,))

        return Request(KERNELS, name, prepare)


def array_of(
    device: DeviceView, ref: GpuRef, channels: int, *, surface: bool
) -> Request[CudaArray[D]]:
    """The request of a CUDA array."""
    layout = texels(ref, channels, "a CUDA array")
    check_extent(layout.extent)
    if not isinstance(surface, bool):
        raise TypeError(f"surface must be True or False, not {surface!r}")
    memory = ArrayMemory(ref, layout, surface=surface)

    def prepare(preparer: Preparer) -> Submission[CudaArray[D]]:
        made: Any = memory.make(preparer, ref)
        return msgspec.structs.replace(made, finish=lambda _answer: CudaArray(device, memory))

    return Request(KERNELS, "nvrtc.cuda_array", prepare)
