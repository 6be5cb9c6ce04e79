"""Simulations: scenes on a device that are stepped, watched, changed, and survive faults.

A step is recorded once, on buffers that stay on the device, and replayed: on CUDA as one graph. Its
parameters are numbers on the device, too, so a change needs no other recording. Every few steps the
state is copied to host memory. After a fault the scene continues from the last copy.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, final

import numpy as np
import trio

from .. import ContextPoisoned, GpuRefStale
from .._dtypes import REAL_KINDS
from ..actors import Message, Place, handler, serving
from ..device import Device
from ._checks import SceneParameter, number, parameters_of, whole
from ._kernels import KernelSet
from ._turns import TakesTurns

if TYPE_CHECKING:
    from typing import Unpack

    from .. import Batch, GpuRef, Recording, Snapshot
    from .wire.kernels import KernelSource

S = TypeVar("S", bound="Simulation")
Picture = np.ndarray[Any, np.dtype[np.uint8]]

_MOST_STEPS: Final = 4
"""Steps that ``run`` makes up for at a time. Beyond them the scene falls behind the clock."""

_MOST_SUBSTEPS: Final = 256
"""Parts of a step, beyond which it is refused."""


class StepScene(Message[float]):
    """A step of a simulation, as a message; the answer is its time.

    Attributes:
        dt: seconds of the scene.
        count: number of steps.
    """

    dt: float
    count: int = 1


class DrawScene(Message[Any]):
    """A question for a simulation's picture: uint8 of shape (height, width, 3)."""


class UpdateScene(Message[None]):
    """Other values of a simulation's parameters.

    Attributes:
        changes: values by name.
    """

    changes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SimulationStatistics:
    """A simulation at one moment.

    Attributes:
        steps: steps that the scene has behind it.
        time: the scene's time in seconds.
        checkpoint: the step of the last copy that is complete.
        faults: faults after which the scene has continued.
        lost_steps: steps that were undone by faults.
        frames: pictures that were drawn.
        skipped_frames: pictures that a viewer was too slow for.
        late_steps: steps that ``run`` has left out because it was behind the clock.
        parameters: values of the parameters.
    """

    steps: int
    time: float
    checkpoint: int
    faults: int
    lost_steps: int
    frames: int
    skipped_frames: int
    late_steps: int
    parameters: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _StateCopy:
    snapshot: Snapshot
    steps: int
    time: float


class Simulation(TakesTurns):
    """Base of simulations: a scene on a device.

    A class states ``parameters`` and ``kernels`` and overrides `begin`, `record` and `draw`;
    optionally also `scratch`, `substeps`, `check` and `accept`. `opened` runs an instance in a
    block.

    Methods may be called by any task. They take turns. All raise what `step` raises if the device
    does not come back, or once the block was left.
    """

    parameters: ClassVar[Mapping[str, SceneParameter]] = {}
    """Numbers that `update` changes. Kernels get them as ``values``."""
    kernels: ClassVar[KernelSource]
    """Kernels of a step and of the picture."""

    def __init__(
        self, device: Device, *, seed: int, every: int, given: Mapping[str, object]
    ) -> None:
        super().__init__(device, type(self).__name__)
        self.seed: Final = whole(seed, "seed", 0, 2**63 - 1)
        """Seed of all that is random."""
        self.every: Final = whole(every, "every", 1)
        """Steps from one checkpoint to the next."""
        defaults = {name: each.default for name, each in self.parameters.items()}
        self._settings = parameters_of(self.parameters, defaults, given)
        self.state: dict[str, GpuRef] = {}
        """Buffers that make up the scene, by name."""
        self.room: dict[str, GpuRef] = {}
        """Buffers of `scratch`, by name."""
        self.values: GpuRef
        """float32: the length of a step in seconds, then the parameters in their order."""
        self._written: tuple[float, ...] = ()
        self._copies: list[_StateCopy] = []  # at most two, the newest last
        self._generation = 0
        self._steps = self._faults = self._lost = self._frames = self._skipped = self._late = 0
        self._time = 0.0
        self._viewers: set[trio.MemorySendChannel[Picture]] = set()

    # --- what a class of simulations says --------------------------------------------------

    @abstractmethod
    def begin(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Return the scene's first state: host arrays by name."""

    def scratch(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Return shapes and dtypes of buffers that a step uses and no later one reads."""
        return {}

    @abstractmethod
    def record(self, recording: Recording) -> None:
        """Record a step, which changes the buffers of ``state`` in place."""

    @abstractmethod
    def draw(self, recording: Recording) -> GpuRef:
        """Record the picture, and return it: uint8 of shape (height, width, 3)."""

    def substeps(self, dt: float, settings: Mapping[str, float]) -> int:
        """Return into how many steps one of ``dt`` seconds must be divided to be stable."""
        del dt, settings
        return 1

    def check(self, settings: Mapping[str, float]) -> None:
        """Refuse parameters that do not go together, by a `ValueError`."""

    async def accept(self) -> None:
        """Refuse a substep after it was replayed, by an error.

        A recorded step that is refused must not have changed the state.
        """
        await trio.lowlevel.checkpoint()

    def launch(self, on: Batch | Recording, name: str, elements: int, *args: Any) -> None:
        """Launch one of ``kernels``, with a thread for each element."""
        self._compiled.launch(on, name, elements, *args)

    # --- what programs call ----------------------------------------------------------------

    @final
    @property
    def steps(self) -> int:
        """Steps that the scene has behind it. A fault takes some of them back."""
        return self._steps

    @final
    @property
    def time(self) -> float:
        """The scene's time, in seconds."""
        return self._time

    @final
    async def step(self, dt: float, *, count: int = 1) -> float:
        """Advance the scene.

        A step that would be unstable is divided into substeps. After a fault of the device the
        scene continues from its last checkpoint, and the step is made from there. A cancelled call
        has made some number of whole steps.

        Args:
            dt: seconds of the scene, more than 0.
            count: number of steps.

        Returns:
            The scene's time in seconds.

        Raises:
            ValueError: ``dt`` is not positive and finite, or would need more than 256 substeps. The
                scene does not change.
            ContextPoisoned, DeviceLost: the device does not come back, or every attempt fails. The
                scene stays at its last checkpoint.
            RuntimeError: the simulation's block was left.
        """
        dt = self._check_step(dt)
        for _ in range(whole(count, "count", 1)):
            async with self._turn():
                await self.device.retry(self._advance, dt)
        return self._time

    @final
    async def snapshot(self) -> Picture:
        """Return the picture of the present state: uint8 of shape (height, width, 3)."""
        async with self._turn():
            return await self.device.retry(self._picture)

    @final
    async def read(self, name: str) -> np.ndarray[Any, Any]:
        """Return a buffer of the state as a host array."""
        if name not in self.state:
            raise ValueError(f"name must be one of {', '.join(self.state)}, not {name!r}")

        async def get() -> np.ndarray[Any, Any]:
            await self._revive()
            return await self.device.get(self.state[name])

        async with self._turn():
            return await self.device.retry(get)

    @final
    async def write(self, name: str, array: object) -> None:
        """Replace a buffer of the state, and make a checkpoint.

        Args:
            name: the buffer's name.
            array: finite numbers of the buffer's shape.
        """
        if name not in self.state:
            raise ValueError(f"name must be one of {', '.join(self.state)}, not {name!r}")
        target = self.state[name]
        made = np.asarray(array)
        if made.dtype.kind not in REAL_KINDS:
            raise TypeError(f"array must be of numbers, not of {made.dtype}")
        if made.shape != target.shape:
            raise ValueError(f"array must be of shape {target.shape}, not {made.shape}")
        if not np.isfinite(made).all():
            raise ValueError("array must be finite, not with NaN or infinity")

        async def put() -> None:
            await self._revive()
            with trio.CancelScope(shield=True):
                await self.device.put(made.astype(target.dtype), out=self.state[name])
                await self._keep()

        async with self._turn():
            await self.device.retry(put)

    @final
    def update(self, **changes: float) -> None:
        """Change parameters, from the next step on.

        Raises:
            RuntimeError: the scene's block was left.
            TypeError: a name is not that of a parameter, or a value is not a number.
            ValueError: a value is out of bounds or not finite, or does not go with the others. No
                parameter is then changed.
        """
        self._check_open()
        changed = parameters_of(self.parameters, self._settings, changes)
        self.check(changed)
        self._settings = changed

    @final
    async def run(self, hz: float = 60.0, *, frames: int | None = None) -> None:
        """Advance the scene with trio's clock until cancelled, by steps of ``1 / hz`` seconds.

        Time that has passed is collected and spent in whole steps, so the scene is as fast as the
        clock, however long a frame takes. If it is more than four steps behind, the rest is left
        out and counted as ``late_steps``. Viewers get a picture after each frame.

        Args:
            hz: steps per second, from 0.001 to 100000.
            frames: number of frames after which it returns.
        """
        dt = 1 / number(hz, "hz", 0.001, 1e5)
        left = math.inf if frames is None else whole(frames, "frames", 1)
        self._check_step(dt)
        then, behind, due = trio.current_time(), 0.0, trio.current_time() + dt
        while left > 0:
            await trio.sleep_until(due)
            now = trio.current_time()
            behind, then = behind + now - then, now
            steps = int(behind / dt + 1e-6)
            behind = max(behind - steps * dt, 0.0)
            made = min(steps, _MOST_STEPS)
            self._late += steps - made
            for _ in range(made):
                await self.step(dt)
            if self._viewers:
                self._show(await self.snapshot())
            due = now + dt - behind
            left -= 1

    @final
    @asynccontextmanager
    async def frames(self) -> AsyncIterator[trio.MemoryReceiveChannel[Picture]]:
        """Give the pictures that ``run`` draws, by a context manager of an async iterator.

        ::

            async with scene.frames() as pictures:
                async for picture in pictures:
                    ...

        A viewer that is slower than the scene skips pictures, and delays nothing. The iterator ends
        with the scene's block.

        Raises:
            RuntimeError: the scene's block was left.
        """
        await trio.lowlevel.checkpoint()
        self._check_open()
        send, receive = trio.open_memory_channel[Picture](1)
        self._viewers.add(send)
        try:
            yield receive
        finally:
            self._viewers.discard(send)
            send.close()
            receive.close()

    @final
    async def keep(self) -> None:
        """Make a checkpoint now, and wait until it is complete."""

        async def keeping() -> None:
            await self._revive()
            with trio.CancelScope(shield=True):
                await self._keep()
                await self._copies[-1].snapshot.wait()

        async with self._turn():
            await self.device.retry(keeping)

    def ended(self, cause: BaseException | None) -> None:
        """Refuse calls from now on, and end what viewers iterate over."""
        super().ended(cause)
        for viewer in self._viewers:
            viewer.close()

    def statistics(self) -> SimulationStatistics:
        """Return numbers of the scene so far."""
        done = [each.steps for each in self._copies]
        return SimulationStatistics(
            steps=self._steps,
            time=self._time,
            checkpoint=done[0] if done else 0,
            faults=self._faults,
            lost_steps=self._lost,
            frames=self._frames,
            skipped_frames=self._skipped,
            late_steps=self._late,
            parameters=dict(self._settings),
        )

    # --- the service -----------------------------------------------------------------------

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Make the scene, or take it up again after a restart."""
        self.check(self._settings)
        self._compiled = await KernelSet.load(self.device, self.kernels)
        await super().serve(task_status=task_status)

    @handler
    async def _on_step(self, message: StepScene) -> float:
        return await self.step(message.dt, count=message.count)

    @handler
    async def _on_draw(self, message: DrawScene) -> Any:  # noqa: ARG002 (it is empty)
        return await self.snapshot()

    @handler
    async def _on_update(self, message: UpdateScene) -> None:
        await trio.lowlevel.checkpoint()
        self.update(**message.changes)

    # --- inside ----------------------------------------------------------------------------

    def _check_step(self, dt: object) -> float:
        made = number(dt, "dt", 0.0)
        if not made:
            raise ValueError("dt must be more than 0, not 0")
        if (substeps := self.substeps(made, self._settings)) > _MOST_SUBSTEPS:
            raise ValueError(
                f"dt must need at most {_MOST_SUBSTEPS} substeps to be stable, not {substeps} as "
                f"{made:g} does; take shorter steps"
            )
        return made

    async def _advance(self, dt: float) -> None:
        await self._revive()
        # Settings may have changed.
        substeps = min(self.substeps(dt, self._settings), _MOST_SUBSTEPS)
        values = (dt / substeps, *self._settings.values())
        # A step that was sent is waited for, so that the count of steps is right.
        with trio.CancelScope(shield=True):
            if values != self._written:
                self._written = ()
                await self.device.put(np.array(values, np.float32), out=self.values)
                self._written = values
            begin = self._time
            for done in range(1, substeps + 1):
                await self._recording.replay()
                await self.accept()
                self._time = begin + dt * (done / substeps)
            self._steps += 1
            if self._steps % self.every == 0:
                await self._keep()

    async def _picture(self) -> Picture:
        await self._revive()
        await self._drawing.replay()
        picture: Picture = await self.device.get(self._drawn)
        self._frames += 1
        return picture

    def _show(self, picture: Picture) -> None:
        for viewer in self._viewers:
            try:
                viewer.send_nowait(picture)
            except trio.WouldBlock:
                self._skipped += 1

    async def _keep(self) -> None:
        """Copy the state; the copy before this one is complete by then."""
        spare = None
        if self._copies:
            await self._copies[-1].snapshot.wait()
            if len(self._copies) == 2:
                spare = self._copies.pop(0).snapshot
        snapshot = await self.device.snapshot(self.state.values(), out=spare)
        self._copies.append(_StateCopy(snapshot, self._steps, self._time))

    async def _revive(self) -> None:
        """Make all that is on the device, unless it is there."""
        if self._generation == self.device.generation and self.state:
            await trio.lowlevel.checkpoint()
            return
        self._generation, self._written = 0, ()
        if self._copies:
            refs = await self._restored()
            state = dict(zip(self._names, refs, strict=True))
        else:
            arrays = self.begin()
            self._names: tuple[str, ...] = tuple(arrays)
            state = {name: await self.device.put(array) for name, array in arrays.items()}
        self.room = {
            name: await self.device.zeros(shape, np.dtype(dtype))
            for name, (shape, dtype) in self.scratch().items()
        }
        self.values = await self.device.zeros(1 + len(self._settings), np.float32)
        generation = self.device.generation
        self.state = state
        async with self.device.record(shared=True) as recording:
            self.record(recording)
        async with self.device.record(shared=True) as drawing:
            self._drawn = self.draw(drawing)
        self._recording, self._drawing = recording, drawing
        await self.device.put(
            np.array([0.0, *self._settings.values()], np.float32), out=self.values
        )
        if not self._copies:
            await self._keep()
            await self._copies[-1].snapshot.wait()
        self._generation = generation

    async def _restored(self) -> list[GpuRef]:
        """Return the state of the newest copy that is complete."""
        try:
            await self._copies[-1].snapshot.wait()
        except (ContextPoisoned, GpuRefStale):
            if len(self._copies) == 1:
                raise
            self._copies.pop()
        copy = self._copies[-1]
        refs = await self.device.restore(copy.snapshot)
        self._faults += 1
        self._lost += self._steps - copy.steps
        self._steps, self._time = copy.steps, copy.time
        return refs


@asynccontextmanager
async def opened(simulation: S, **place: Unpack[Place]) -> AsyncIterator[S]:
    """Run a simulation for the length of a block, in a place of the tree if one is given.

    Args:
        simulation: the simulation, which the block gets.
        **place: ``system``, ``name`` and ``parent``, as for `atomr_accel.actors.serving`.

    Raises:
        As for `atomr_accel.actors.serving`, and what the device raises when it makes the scene.
    """
    async with serving(simulation, **place) as running:
        yield running
