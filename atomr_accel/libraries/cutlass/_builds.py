"""Kernels that are ready, and the fastest ones, as far as the program knows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, final
from weakref import WeakKeyDictionary

from ..._dtypes import DTYPES
from ...ops import LaneSpec, Request, Submission
from ...wire.recent import Recent
from .wire._messages import BuildCutlass, RecallKernel

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...memory import Block, Epoch
    from ...ops import DeviceView, Preparer
    from .wire._messages import Sizes

_EXECUTORS: Final = {
    "cpu": "atomr_accel.libraries.cutlass.host._cpu:CpuCutlass",
    "cuda": "atomr_accel.libraries.cutlass.host._cuda:CudaCutlass",
}
LANE: Final = LaneSpec("cutlass", _EXECUTORS, max_streams=4)
BUILDER: Final = LaneSpec("cutlass-builds", _EXECUTORS, watched=False, own_thread=True)
"""The lane of builds. A build takes half a minute, while the other lane runs kernels that are
ready."""

_MOST: Final = 4096
Key = tuple[bytes, "Sizes", int]
"""A spec, sizes and a swizzle."""


@dataclass(frozen=True, slots=True)
class CutlassStatistics:
    """The kernels of a device.

    Attributes:
        builds: kernels that were compiled.
        loaded: kernels that were found on disk.
        seconds: time that the host spent on both.
    """

    builds: int
    loaded: int
    seconds: float


@final
class CutlassBuilds:
    """Kernels that are ready; batches and recordings share it."""

    def __init__(self, device: DeviceView) -> None:
        self._device = device
        self._ready: Recent[Key, Epoch] = Recent(_MOST, name="kernels")
        self._tuned: Recent[tuple[bytes, Sizes], list[tuple[bytes, int]]] = Recent(
            _MOST, name="tuned"
        )
        self.caches: Final = (self._ready, self._tuned)
        self._asked: WeakKeyDictionary[DeviceView, dict[Key, GpuRef]] = WeakKeyDictionary()
        self._built = self._loaded = 0
        self._seconds = 0.0

    def require(self, preparer: Preparer, key: Key) -> Block | None:
        """Have the host make a kernel ready, if it is not.

        Batches and recordings get no answers before they end. They have a kernel made ready once,
        and what needs it comes after that.

        Returns:
            What the call has to name as read, if anything.
        """
        epoch = preparer.memory.epoch
        ready = self._ready
        preparer.depends(lambda: ready.get(key) is epoch)
        known = ready.get(key)
        if known is epoch:
            return None
        if known is not None:
            ready.discount()
        if preparer.home is not self._device:
            asked = self._asked.setdefault(preparer.home, {})
            made = asked.get(key)
            if made is None:
                made = asked[key] = preparer.output((), DTYPES["uint8"])
                preparer.perform(_building(key, (made.block,)))
            return made.block
        answer = preparer.perform(_building(key, ()))
        assert answer is not None
        origin, seconds = answer
        self._built += origin == "built"
        self._loaded += origin == "disk"
        self._seconds += seconds
        self._ready.add(key, epoch)
        return None

    def tuned(self, preparer: Preparer, wanted: bytes, sizes: Sizes) -> list[tuple[bytes, int]]:
        """Return the kernels that were found fastest, or an empty list.

        In a batch, only results that the program already has are returned.
        """
        tuned = self._tuned
        known = tuned.get((wanted, sizes))
        preparer.depends(lambda: tuned.get((wanted, sizes)) is known)
        if known is not None:
            return known
        if preparer.home is not self._device:
            return []
        message = RecallKernel(wanted, sizes)
        asking: Request[list[tuple[bytes, int]]] = Request(
            BUILDER,
            "cutlass.recall",
            lambda _preparer: Submission(message, (), ()),
            ("cutlass.recall", wanted, sizes),
        )
        answer = preparer.perform(asking)
        assert answer is not None
        return self._tuned.add((wanted, sizes), answer)

    def note(self, wanted: bytes, sizes: Sizes, best: tuple[bytes, int]) -> None:
        """This one is fastest."""
        self._tuned.keep((wanted, sizes), [best])

    def statistics(self) -> CutlassStatistics:
        """A snapshot."""
        return CutlassStatistics(self._built, self._loaded, self._seconds)


def untraceable() -> None:
    """Mark a call without a template, because its first batch makes parts that it needs."""


def _building(key: Key, writes: tuple[Block, ...]) -> Request[tuple[str, float]]:
    submission: Submission[tuple[str, float]] = Submission(BuildCutlass(*key), (), writes)
    prepare = partial(_given, submission)
    return Request(BUILDER, "cutlass.build", prepare, ("cutlass.build", key))


def _given(
    submission: Submission[tuple[str, float]], _preparer: Preparer
) -> Submission[tuple[str, float]]:
    return submission
