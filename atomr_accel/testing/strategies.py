"""Hypothesis strategies: arrays, faults and programs of ops; and a machine for stateful tests.

They need Hypothesis, which the extra ``testing`` brings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np

from .._dtypes import DTYPES, as_dtype, is_inexact
from .._errors import GpuRefSealed, GpuRefStale, LibraryMissing
from .._install import install_command
from ..device import Device
from ._faults import FAULTS, kill_host, poison

try:
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp
    from hypothesis.stateful import (
        Bundle,
        RuleBasedStateMachine,
        consumes,
        initialize,
        invariant,
        rule,
    )
except ImportError as _error:
    raise LibraryMissing(
        f"atomr_accel.testing.strategies needs package hypothesis: {install_command('testing')}",
        library="hypothesis",
    ) from _error

if TYPE_CHECKING:
    import unittest
    from collections.abc import Iterable

    from numpy.typing import DTypeLike

    from .. import Blocking, GpuRef

    class _StateMachine:
        """Stand-in for Hypothesis's class, where type checkers do not find Hypothesis."""

        TestCase: ClassVar[type[unittest.TestCase]]

        def teardown(self) -> None: ...

else:
    _StateMachine = RuleBasedStateMachine

Array = np.ndarray[Any, Any]

__all__ = ["DeviceMachine", "OpProgram", "PlannedFault", "Tracked", "arrays", "faults", "programs"]

_BASE: Final = 7
"""Elements of programs are whole numbers below this, so that sums of products are exact."""


@st.composite
def arrays(
    draw: st.DrawFn,
    dtype: DTypeLike | st.SearchStrategy[np.dtype[Any]] | None = None,
    shape: tuple[int, ...] | st.SearchStrategy[tuple[int, ...]] | None = None,
) -> Array:
    """Arrays that devices take: of every dtype, with odd values.

    Odd values are any bits that the dtype can have: NaNs, infinities, subnormal numbers, negative
    zeros, the largest integers. Compare such arrays by their bytes, or with NaNs equal.

    Args:
        draw: given by Hypothesis.
        dtype: a dtype, or a strategy for dtypes. By default, every dtype of devices.
        shape: a shape, or a strategy for shapes. By default, up to four axes of up to six elements,
            with empty arrays and scalars among them.
    """
    kinds = st.sampled_from(list(DTYPES.values())) if dtype is None else dtype
    kind = draw(kinds) if isinstance(kinds, st.SearchStrategy) else as_dtype(kinds)
    if shape is None:
        shape = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)
    sides = draw(shape) if isinstance(shape, st.SearchStrategy) else shape
    count = int(np.prod(sides, dtype=np.int64))
    seed = draw(st.integers(0, 2**32 - 1))
    raw = np.frombuffer(np.random.default_rng(seed).bytes(count * kind.itemsize), np.uint8).copy()
    if kind.kind == "b":
        raw &= np.uint8(1)
    elif kind.name == "float4_e2m1fn":  # four bits, one element a byte
        raw &= np.uint8(15)
    made = raw.view(kind).reshape(sides)
    if count and is_inexact(kind) and kind.itemsize > 1:
        odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0])
        picked = draw(st.lists(st.integers(0, len(odd) - 1), max_size=min(count, 4)))
        made.reshape(-1)[: len(picked)] = odd[picked].astype(kind)
    return made


@dataclass(frozen=True)
class PlannedFault:
    """A fault to cause.

    Attributes:
        name: a name of ``FAULTS``, or ``"kill_host"``.
    """

    name: str

    async def cause(self, device: Device) -> None:
        """Cause the fault, and return when the generation has moved.

        Raises:
            Unsupported: ``"kill_host"`` under ``isolation="thread"``.
        """
        if self.name == "kill_host":
            await kill_host(device)
        else:
            await poison(device, self.name)  # type: ignore[arg-type] # a name of FAULTS


def faults(*, hosts: bool = True) -> st.SearchStrategy[PlannedFault]:
    """Faults of every kind.

    Args:
        hosts: whether hosts may be killed, which takes ``isolation="process"``.
    """
    return st.sampled_from([PlannedFault(name) for name in (*FAULTS, *["kill_host"] * hosts)])


Step = tuple[Literal["copy", "fill", "add", "multiply", "product"], int, int, int] | PlannedFault
"""An op with the numbers of a source, a second source and a destination; or a fault."""


@dataclass(frozen=True)
class OpProgram:
    """Ops on a few square matrices, whose results are known exactly.

    Attributes:
        arrays: the matrices at the beginning: float64, whole numbers from 0 to 6.
        steps: ops and faults in order. Sums and products are taken modulo 7.
    """

    arrays: tuple[Array, ...]
    steps: tuple[Step, ...]

    def expected(self, upto: int | None = None) -> list[Array]:
        """Return the matrices after some steps, by default after all, as NumPy computes them."""
        held = [array.copy() for array in self.arrays]
        for step in self.steps[:upto]:
            if isinstance(step, PlannedFault):
                continue
            name, a, b, to = step
            x, y = held[a], held[b]
            match name:
                case "copy":
                    held[to] = x.copy()
                case "fill":
                    held[to] = np.full_like(x, a)
                case "add":
                    held[to] = (x + y) % _BASE
                case "multiply":
                    held[to] = (x * y) % _BASE
                case "product":
                    held[to] = (x @ y) % _BASE
        return held

    async def run(self, device: Device) -> list[Array]:
        """Run the program on a device, and return the matrices after it.

        At a fault all matrices become stale. Those of NumPy are then put, and the program goes on.

        Raises:
            AssertionError: a matrix of before a fault can still be read.
        """
        refs = [await device.put(array) for array in self.arrays]
        for at, step in enumerate(self.steps):
            if isinstance(step, PlannedFault):
                await step.cause(device)
                for ref in refs:
                    await _must_be_stale(device, ref)
                refs = [await device.put(array) for array in self.expected(at)]
                continue
            name, a, b, to = step
            x, y = refs[a], refs[b]
            match name:
                case "copy":
                    refs[to] = await device.copy(x)
                case "fill":
                    refs[to] = await device.full(x.shape, float(a))
                case "add":
                    refs[to] = await device.evaluate((x + y) % _BASE)
                case "multiply":
                    refs[to] = await device.evaluate((x * y) % _BASE)
                case "product":
                    product = await device.blas.gemm(x, y)
                    refs[to] = await device.evaluate(product % _BASE)
        return [await device.get(ref) for ref in refs]

    async def check(self, device: Device) -> None:
        """Run the program on a device, and compare with NumPy.

        Raises:
            AssertionError: a matrix differs.
        """
        for got, wanted in zip(await self.run(device), self.expected(), strict=True):
            np.testing.assert_array_equal(got, wanted)


@st.composite
def programs(
    draw: st.DrawFn,
    *,
    most: int = 20,
    causes: st.SearchStrategy[PlannedFault] | None = None,
    most_faults: int = 1,
) -> OpProgram:
    """Programs of ops, and of faults between them.

    Args:
        draw: given by Hypothesis.
        most: the largest number of ops.
        causes: the faults, such as ``faults()``; by default there are none.
        most_faults: the largest number of faults in a program.
    """
    count, side = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    whole = hnp.arrays(np.float64, (side, side), elements=st.integers(0, _BASE - 1).map(float))
    names = st.sampled_from(["copy", "fill", "add", "multiply", "product"])
    number = st.integers(0, count - 1)
    steps: list[Any] = draw(st.lists(st.tuples(names, number, number, number), max_size=most))
    if causes is not None:
        for fault in draw(st.lists(causes, max_size=most_faults)):
            steps.insert(draw(st.integers(0, len(steps))), fault)
    return OpProgram(tuple(draw(whole) for _ in range(count)), tuple(steps))


async def _must_be_stale(device: Device, ref: GpuRef) -> None:
    try:
        await device.get(ref)
    except GpuRefStale:
        return
    raise AssertionError(f"{ref!r} must be stale after a fault, but it was read")


@dataclass(eq=False)
class Tracked:
    """A buffer of a `DeviceMachine`, with its expected content.

    Attributes:
        ref: the buffer.
        array: its content.
        generation: that in which it was made.
        sealed: whether it survives faults.
    """

    ref: GpuRef = field(repr=False)
    array: Array
    generation: int
    sealed: bool = False


class DeviceMachine(_StateMachine):
    """A state machine that puts, reads, fills, copies, seals and frees buffers, between faults.

    It checks every content, and that plain buffers become stale with their generation while sealed
    ones survive. Derive from it to add rules of your own, with the bundle ``buffers`` and
    ``self.device.run``. ``causes`` is the strategy of its faults; replace it in a class for devices
    with ``isolation="thread"`` by ``faults(hosts=False)``.

    Args:
        device: what ``open_blocking`` returns, or the fixture ``module_device``. Many examples
            may use one device: each frees its buffers at the end.
    """

    buffers: Bundle[Tracked] = Bundle("buffers")

    causes: st.SearchStrategy[PlannedFault] = faults()

    def __init__(self, device: Blocking[Device]) -> None:
        super().__init__()
        self.device = device
        self.made: list[Tracked] = []

    @property
    def generation(self) -> int:
        """The device's generation."""
        return self.device.run(_generation)

    def track(self, ref: GpuRef, array: Array, *, sealed: bool = False) -> Tracked:
        """Return a buffer with its content, for the bundle; it is freed at the end."""
        made = Tracked(ref, array, self.generation, sealed)
        self.made.append(made)
        return made

    def alive(self, one: Tracked) -> bool:
        """Return whether a buffer can be read."""
        return one.sealed or one.generation == self.generation

    @initialize(target=buffers, array=arrays(shape=(3,)))
    def begin(self, array: Array) -> Tracked:
        """Put a first array."""
        return self.put(array, sealed=False)

    @rule(target=buffers, array=arrays(), sealed=st.booleans())
    def put_array(self, array: Array, sealed: bool) -> Tracked:
        """Put an array."""
        return self.put(array, sealed=sealed)

    def put(self, array: Array, *, sealed: bool) -> Tracked:
        """Put an array, and track it."""
        ref = self.device.run(_put, array, sealed)
        return self.track(ref, array, sealed=sealed)

    @rule(one=buffers)
    def read(self, one: Tracked) -> None:
        """Compare a buffer's content."""
        if not self.alive(one):
            self.device.run(_must_be_stale, one.ref)
            return
        got = self.device.run(Device.get, one.ref)
        assert got.tobytes() == one.array.tobytes()

    @rule(target=buffers, one=buffers)
    def copy(self, one: Tracked) -> Tracked:
        """Copy a buffer, or see that it is stale."""
        if not self.alive(one):
            self.device.run(_must_be_stale, one.ref)
            return one
        return self.track(self.device.run(Device.copy, one.ref), one.array)

    @rule(one=buffers)
    def fill(self, one: Tracked) -> None:
        """Fill a buffer with ones, or see why that is refused."""
        try:
            self.device.run(Device.fill, one.ref, 1)
        except GpuRefSealed:
            assert one.sealed
        except GpuRefStale:
            assert not self.alive(one)
        else:
            assert self.alive(one)
            assert not one.sealed
            one.array = np.ones_like(one.array)

    @rule(one=buffers)
    def seal(self, one: Tracked) -> None:
        """Seal a buffer, or see that it is stale."""
        if self.alive(one):
            self.device.run(Device.seal, one.ref)
            one.sealed = True
        else:
            self.device.run(_must_be_stale, one.ref)

    @rule(one=consumes(buffers))
    def free(self, one: Tracked) -> None:
        """Free a buffer, whose refs are then stale."""
        self.device.run(_free, [one.ref])
        self.device.run(_must_be_stale, one.ref)

    @rule(data=st.data())
    def fault(self, data: st.DataObject) -> None:
        """Cause a fault, after which the device has another generation."""
        before = self.generation
        self.device.run(data.draw(self.causes).cause)
        assert self.generation > before

    @invariant()
    def every_op_is_answered(self) -> None:
        """See that no op is in flight between rules."""
        assert self.device.run(_in_flight) == 0

    def teardown(self) -> None:
        """Free all buffers."""
        self.device.run(_free, [one.ref for one in self.made])


async def _generation(device: Device) -> int:
    return device.generation


async def _in_flight(device: Device) -> int:
    return device.statistics().in_flight


async def _put(device: Device, array: Array, sealed: bool) -> GpuRef:
    ref = await device.put(array, sealed=sealed)
    await device.get(ref)  # so that the array has arrived
    return ref


async def _free(device: Device, refs: Iterable[GpuRef]) -> None:
    for ref in refs:
        try:
            await device.free(ref)
        except GpuRefStale:
            continue
