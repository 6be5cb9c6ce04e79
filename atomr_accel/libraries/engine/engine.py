"""Engines: models that are ready to run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast, final

from ..._dtypes import DTYPES
from ..._errors import GpuRefStale, Unsupported
from ...ops import Awaited, D, Facade, Request, Submission, op, require_readable, require_ref
from ._resident import LANE
from ._shapes import bound_axes, output_shape
from .wire.messages import BoundTensor, DropHeld, RunAndHold, RunEngine, TakeHeld

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...arrays import GpuRef
    from ...memory import Block
    from ...ops import DeviceView, Preparer
    from ._resident import ResidentEngine
    from ._shapes import Profiles
    from .wire.messages import ModelDescription, TensorOf

_tickets: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counts of an engine.

    Attributes:
        calls: runs that were submitted.
        loads: how often hosts have made it: once, and again after rebuilds and in recordings.
        model_bytes: bytes of the model, which the program keeps.
        from_disk: whether the first build found its optimized model on disk.
    """

    calls: int
    loads: int
    model_bytes: int
    from_disk: bool


@final
class OnnxEngine(Facade[D]):
    """A model that is ready to run, which ``device.engine.build`` makes.

    ``y = await engine(x=x)``; ``batch.using(engine)`` is the same engine in a batch. It is made
    again in the host after a rebuild, from the model that the program keeps.

    Attributes:
        inputs: name, dtype and shape of each input. An extent is a number, or a name, which
            stands for the same number in one call.
        outputs: the same of each output; None stands for an extent that only a run gives.
    """

    templated = True

    def __init__(
        self,
        device: DeviceView,
        resident: ResidentEngine,
        profiles: Profiles,
        description: ModelDescription,
    ) -> None:
        self.home = device
        self._resident: Final = resident
        self._profiles: Final = profiles
        self._from_disk: Final = description.cached
        self.inputs: Final[tuple[TensorOf, ...]] = description.inputs
        self.outputs: Final[tuple[TensorOf, ...]] = description.outputs

    def __repr__(self) -> str:
        taken = ", ".join(each.name for each in self.inputs)
        return f"<OnnxEngine of {taken} to {', '.join(each.name for each in self.outputs)}>"

    @op
    def __call__(self, /, **inputs: GpuRef) -> Request[Any]:
        """Run the model.

        Args:
            inputs: a ref for each of the model's inputs, by its name, of its shape and dtype. Pass
                a name such as "input.1" in a dict: ``engine(**{"input.1": x})``.

        Returns:
            The output, or a tuple of the outputs if there are several: new buffers.

        Raises:
            TypeError: an input is missing, unknown, no ref, or of another dtype.
            ValueError: a shape is not the model's, or fits no profile.
            LibraryError: onnxruntime refuses the run.
            Unsupported: in a batch or a recording, the shape of an output depends on values.
        """
        refs = self._checked(inputs)
        shapes = {name: ref.shape for name, ref in refs.items()}
        axes = bound_axes(self.inputs, shapes, self._profiles)
        made = [output_shape(each, axes) for each in self.outputs]

        def prepare(preparer: Preparer) -> Submission[Any]:
            blocks, bound = self._bound(preparer, refs)
            if any(shape is None for shape in made):
                return self._held(preparer, refs)
            results = [
                preparer.output(cast("tuple[int, ...]", shape), DTYPES[each.dtype])
                for shape, each in zip(made, self.outputs, strict=True)
            ]
            targets = [
                require_readable(result, preparer.memory, each.name)
                for result, each in zip(results, self.outputs, strict=True)
            ]
            written = tuple(
                BoundTensor(each.name, block.address, result.shape, each.dtype)
                for each, result, block in zip(self.outputs, results, targets, strict=True)
            )
            kept = preparer.obtain(self._resident.used)
            message = RunEngine(self._resident.number, bound, written)
            return Submission(message, (*blocks, kept), targets, _one_or_all(results))

        return Request(LANE, "engine.run", prepare)

    def statistics(self) -> EngineStatistics:
        """A snapshot of the counts."""
        resident = self._resident
        return EngineStatistics(resident.calls, resident.loads, resident.nbytes, self._from_disk)

    def _checked(self, given: Mapping[str, GpuRef]) -> dict[str, GpuRef]:
        """Return the refs in the model's order."""
        names = [each.name for each in self.inputs]
        for name in given:
            if name not in names:
                raise TypeError(
                    f"inputs must be {', '.join(map(repr, names)) or 'none'}, not {name!r}; "
                    "engine.inputs lists them"
                )
        refs = {}
        for each in self.inputs:
            if each.name not in given:
                raise TypeError(
                    f"inputs must have {each.name!r}, not only {', '.join(map(repr, given))}; "
                    "pass a ref of it"
                )
            ref = refs[each.name] = given[each.name]
            require_ref(ref, each.name)
            if ref.dtype.name != each.dtype:
                raise TypeError(
                    f"{each.name} must have dtype {each.dtype}, not {ref.dtype.name}; convert it"
                )
        return refs

    def _bound(
        self, preparer: Preparer, refs: Mapping[str, GpuRef]
    ) -> tuple[list[Block], tuple[BoundTensor, ...]]:
        blocks = [require_readable(ref, preparer.memory, name) for name, ref in refs.items()]
        bound = tuple(
            BoundTensor(name, block.address, ref.shape, ref.dtype.name)
            for (name, ref), block in zip(refs.items(), blocks, strict=True)
        )
        return blocks, bound

    def _held(self, preparer: Preparer, refs: Mapping[str, GpuRef]) -> Submission[Any]:
        """Return what copies results, after a run that has told their shapes."""
        held = preparer.perform(self._holding(refs)) if preparer.home.call_mode is Awaited else None
        if held is None:
            raise Unsupported(_LATER)
        if held.block.epoch is not preparer.memory.epoch:
            raise GpuRefStale("the device was rebuilt during the run; call the engine again")
        results = [
            preparer.output(shape, DTYPES[each.dtype])
            for shape, each in zip(held.shapes, self.outputs, strict=True)
        ]
        targets = [
            require_readable(result, preparer.memory, each.name)
            for result, each in zip(results, self.outputs, strict=True)
        ]
        message = TakeHeld(
            held.ticket,
            tuple(block.address for block in targets),
            tuple(result.nbytes for result in results),
        )
        return Submission(message, (held.block,), targets, _one_or_all(results))

    def _holding(self, refs: Mapping[str, GpuRef]) -> Request[_HeldResults]:
        names = tuple(each.name for each in self.outputs)
        ticket = next(_tickets)

        def prepare(preparer: Preparer) -> Submission[_HeldResults]:
            blocks, bound = self._bound(preparer, refs)
            block = preparer.host_objects.keep(LANE.name, "engine.forget", DropHeld(ticket))
            kept = self._resident.used(preparer)
            message = RunAndHold(self._resident.number, bound, names, ticket)

            def finish(shapes: Any) -> _HeldResults:
                return _HeldResults(block, ticket, tuple(tuple(shape) for shape in shapes))

            reads = (*blocks, kept)
            return Submission(message, reads, (block,), finish=finish)

        return Request(LANE, "engine.run", prepare)


@dataclass(frozen=True, slots=True)
class _HeldResults:
    """Results that the host holds for as long as their block is there."""

    block: Block
    ticket: int
    shapes: tuple[tuple[int, ...], ...]


_LATER: Final = (
    "the shape of an output is known only after the run, so a batch or a recording cannot make its "
    "buffer; await the engine, or build it with a profile that fixes the shapes"
)


def _one_or_all(results: list[GpuRef]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)
