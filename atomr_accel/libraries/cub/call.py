"""Requests of CUB calls: check buffers, have the kernels built, run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final
from weakref import WeakKeyDictionary

import numpy as np

from ..._dtypes import DTYPES, NAMES, number_kind
from ...arrays import GpuRef, ref_error
from ...ops import (
    D,
    Facade,
    LaneSpec,
    Request,
    Submission,
    Workspaces,
    require_no_alias,
    require_readable,
    require_writable,
)
from ...wire.recent import Recent
from .wire._spec import C_TYPES, CubSpec, encode
from .wire.messages import BuildCub, RunCub

if TYPE_CHECKING:
    from ...memory import Block, Epoch
    from ...ops import DeviceView, Preparer

_EXECUTORS: Final = {
    "cpu": "atomr_accel.libraries.cub.host.cpu:CpuCub",
    "cuda": "atomr_accel.libraries.cub.host.cuda:CudaCub",
}
LANE: Final = LaneSpec("cub", _EXECUTORS, max_streams=4)
BUILDER: Final = LaneSpec("cub-builds", _EXECUTORS, watched=False, own_thread=True)
"""Lane that builds kernels, which takes seconds, while the others run kernels that exist."""
WAITING: Final = LaneSpec("cub-waits", _EXECUTORS, own_thread=True)
"""Runs what waits for the device in the middle of it, or reads from it."""

_SMALL: Final = 4 << 20
"""Bytes of scratch memory up to which calls run side by side, each with its own."""

_MOST: Final = 4096
_KEPT_BITS: Final = 4
"""Leading bits of sizes that matter for the amount of scratch memory."""

INT64: Final = DTYPES["int64"]
_Key = tuple[bytes, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class CubStatistics:
    """The builds of a device.

    Attributes:
        builds: builds that NVRTC had to make.
        loaded: builds that were found on disk.
        seconds: time that the host has spent building and loading.
        workspace: bytes of the scratch memory that calls share.
    """

    builds: int
    loaded: int
    seconds: float
    workspace: int


class CubOutput(NamedTuple):
    """Output of a call.

    Attributes:
        name: the name of its argument.
        given: the caller's own buffer, if any.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    given: GpuRef | None = None


@final
class CubBuilds:
    """Builds that the program knows of; batches and recordings share them.

    Attributes:
        known: the bytes of scratch memory that calls need, and the generation of the build.
        workspaces: the scratch memory that calls share.
    """

    def __init__(self, device: DeviceView) -> None:
        self._device = device
        self.workspaces: Final = Workspaces(LANE.max_streams, _SMALL)
        self.known: Final[Recent[_Key, tuple[Epoch, int]]] = Recent(_MOST, name="builds")
        self._asked: WeakKeyDictionary[DeviceView, dict[bytes, GpuRef]] = WeakKeyDictionary()
        self._built = self._loaded = 0
        self._seconds = 0.0

    def find(
        self, preparer: Preparer, spec: bytes, sizes: tuple[int, ...]
    ) -> tuple[int, Block | None]:
        """Return the bytes of scratch memory of a call; the host first makes a missing build.

        Batches and recordings get no answers before they end. In these, a build is made once, and
        the calls that need it run after it; the lane then uses scratch memory of its own.

        Returns:
            The bytes, and the block that the call has to name as read, or None.
        """
        key = spec, tuple(map(_rounded, sizes))
        epoch = preparer.memory.epoch
        preparer.depends(partial(self._still, key, epoch))
        known = self.known.get(key)
        if known is not None:
            if known[0] is epoch:
                return known[1], None
            self.known.discount()
        if preparer.home is not self._device:
            asked = self._asked.setdefault(preparer.home, {})
            made = asked.get(spec)
            if made is None:
                made = asked[spec] = preparer.output((), DTYPES["uint8"])
                preparer.perform(_building(key, (made.block,)))
            return 0, made.block
        answer = preparer.perform(_building(key, ()))
        assert answer is not None
        nbytes, origin, seconds = answer
        self._built += origin == "built"
        self._loaded += origin == "disk"
        self._seconds += seconds
        self.known.add(key, (epoch, nbytes))
        return nbytes, None

    def _still(self, key: _Key, epoch: Epoch) -> bool:
        known = self.known.get(key)
        return known is not None and known[0] is epoch

    def statistics(self) -> CubStatistics:
        """Return a snapshot of the numbers."""
        return CubStatistics(
            builds=self._built,
            loaded=self._loaded,
            seconds=self._seconds,
            workspace=self.workspaces.nbytes(self._device),
        )


def _building(key: _Key, writes: tuple[Block, ...]) -> Request[tuple[int, str, float]]:
    """Have something built."""
    submission: Submission[tuple[int, str, float]] = Submission(BuildCub(*key), (), writes)
    return Request(BUILDER, "cub.build", lambda _preparer: submission, ("cub.build", key))


def _nothing() -> None:
    """Do nothing. It marks calls without templates, because they need a build of one batch."""


def _rounded(size: int) -> int:
    """Round a size up to a few leading bits, so that few different sizes are asked for."""
    spare = max(0, size.bit_length() - _KEPT_BITS)
    return -(-size >> spare) << spare


class CubPart(Facade[D]):
    """Base of the parts of ``device.cub``."""

    def __init__(self, device: DeviceView) -> None:
        self.home = device
        self._builds = CubBuilds(device)
        self.caches: tuple[Recent[Any, Any], ...] = (self._builds.known,)

    def _require(self, **refs: object) -> None:
        """Check that all of these are buffers, of any kind."""
        for name, ref in refs.items():
            if not isinstance(ref, GpuRef):
                raise ref_error(ref, self.home.memory, name)

    def _request(
        self,
        name: str,
        spec: CubSpec,
        reads: Sequence[tuple[str, GpuRef | None]],
        outputs: Sequence[CubOutput | None],
        sizes: tuple[int, ...],
        *,
        values: tuple[bytes, ...] = (),
        in_place: Sequence[tuple[str, str]] = (),
        lane: LaneSpec = LANE,
        result: Callable[[list[GpuRef]], Any] | None = None,
    ) -> Request[Any]:
        """Return a request that runs an algorithm.

        ``reads`` and ``outputs`` are in the algorithm's order, with None for a missing output.
        ``in_place`` has pairs of an output and an input that may be the same memory. By default the
        result is the only output.
        """

        def prepare(preparer: Preparer) -> Submission[Any]:
            memory = preparer.memory
            blocks, addresses = [], []
            for what, ref in reads:
                if ref is None:
                    addresses.append(0)
                    continue
                block = require_readable(ref, memory, what)
                blocks.append(block)
                addresses.append(block.address if ref.size else 0)
            written = [
                (output.name, _checked(preparer, name, output, output.given))
                for output in outputs
                if output is not None and output.given is not None
            ]
            if written:
                read = [(what, ref) for what, ref in reads if ref is not None]
                require_no_alias(name, written, read, in_place=in_place)
            encoded = encode(spec)
            nbytes, building = self._builds.find(preparer, encoded, sizes)
            if building is not None:
                blocks.append(building)
            writes, made = [], []
            for output in outputs:
                if output is None:
                    addresses.append(0)
                    continue
                out = output.given
                if out is None:
                    out = preparer.output(output.shape, output.dtype)
                made.append(out)
                writes.append(out.block)
                addresses.append(out.block.address if out.size else 0)
            workspace: Any = 0
            if nbytes:
                scratch = self._builds.workspaces.obtain(preparer, nbytes)
                writes.append(scratch)
                workspace = scratch.address
            message = RunCub(encoded, tuple(addresses), sizes, values, workspace, nbytes)
            answer = made[0] if result is None else result(made)
            sent = _nothing if building is not None else None
            return Submission(message, blocks, writes, answer, sent=sent)

        return Request(lane, name, prepare)


def _checked(preparer: Preparer, name: str, output: CubOutput, out: GpuRef) -> GpuRef:
    """Return the caller's buffer for an output, after checks."""
    require_writable(out, preparer.memory, output.name)
    if out.shape != output.shape or out.dtype is not output.dtype:
        raise (ValueError if out.shape != output.shape else TypeError)(
            f"{output.name} is {out.dtype.name} of shape {out.shape}, but {name} gives "
            f"{output.dtype.name} of shape {output.shape}"
        )
    return out


def element(ref: GpuRef, name: str, *, complex_too: bool = False) -> str:
    """Return the dtype of an algorithm's input, by name."""
    dtype = NAMES[ref.dtype]
    if dtype in C_TYPES or (complex_too and ref.dtype.kind == "c"):
        return dtype
    raise TypeError(
        f"{name} is {dtype}, which has no arithmetic of its own; cast it first"
        if complex_too or ref.dtype.kind != "c"
        else f"{name} is {dtype}, which has no order"
    )


def number(value: Any, dtype: np.dtype[Any], name: str) -> bytes:
    """Return the bytes of a number from the program, in a dtype."""
    if isinstance(value, GpuRef):
        raise TypeError(f"{name} must be a number, not a GpuRef; get it from the device first")
    given = np.asarray(value)
    order = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}
    if given.ndim or number_kind(given.dtype) not in order:
        raise TypeError(f"{name} must be a number, not {value!r} of type {type(value).__name__}")
    if order[number_kind(given.dtype)] > order[number_kind(dtype)]:
        raise TypeError(f"{name} is {value!r}, which {dtype.name} does not hold")
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if not info.min <= int(given) <= info.max:
            raise OverflowError(f"{name} is {value}, which {dtype.name} does not hold")
    with np.errstate(over="ignore"):
        made = given.astype(dtype)
    if not np.isfinite(made) and np.isfinite(given):
        raise OverflowError(f"{name} is {value}, which {dtype.name} does not hold")
    return made.tobytes()


def opaque(dtype: np.dtype[Any]) -> str:
    """Return the dtype as which elements are moved if nothing is computed from them."""
    return "complex128" if dtype.itemsize == 16 else f"uint{8 * dtype.itemsize}"
