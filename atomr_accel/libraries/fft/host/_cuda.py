"""FFT on CUDA: cuFFT plans on one lane, and kernels for what cuFFT does not do."""

from __future__ import annotations

import contextlib
import math
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, final

from ...._errors import LibraryError, Unsupported
from ....backends.cuda.host.driver import check, driver
from ....executors.cuda_kernels import KernelArguments, Kernels, preload_compiler
from ....executors.vendor import VendorLibrary
from ....wire import PLACE
from ..wire._cosines import Fold, plan_cosines
from ..wire._messages import Cosines, ForgetPlan, Frequencies, Prepare, Roll, RunTransform, decode
from ..wire._plan import ALIGNMENT, COMPLEX, CufftRun, Move, plan
from ._hooks import compile_hooks, link
from ._prototypes import FORWARD, INVERSE, PROTOTYPES, REFUSALS, STATUS_NAMES, TRANSFORM_TYPES
from ._source import (
    BY_SIZE,
    COSINES,
    SOURCE,
    FftLaunch,
    fold_launch,
    frequencies_arguments,
    move_arguments,
    move_name,
    roll_arguments,
    spread_launch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ....host.templates import HostTemplate
    from ..wire._cosines import Spread
    from ..wire._plan import BufferOffset, CufftLayout, FftProgram
    from ._hooks import Linkable

    _Step = Callable[[tuple[int, int, int]], None]
    """A step of a plan, called with pointers to the input, the output, and scratch memory."""


@cache
def _library() -> VendorLibrary:
    return VendorLibrary("cufft", PROTOTYPES, STATUS_NAMES)


@final
class CudaFft:
    """Executes FFT messages with cuFFT, on plans that take their work area from outside."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._library: Final = _library()
        self._pointer: Final = context.pointer
        self._stream: Final = stream
        self._context: Final = context
        self._kernels: Final = Kernels(context, stream, SOURCE)
        self._cosines: Final = Kernels(context, stream, COSINES)
        self._plans: dict[int, _FftPlan] = {}
        self.handlers: Final = {
            RunTransform: self._transform,
            Prepare: self._prepare,
            ForgetPlan: self._forget,
            Roll: self._roll,
            Frequencies: self._frequencies,
        }
        self.preparers: Final = {RunTransform: self._prepare_transform}

    @staticmethod
    def preload() -> None:
        """Load the libraries."""
        _library()
        preload_compiler()

    def close(self) -> None:
        """Destroy the plans."""
        for made in self._plans.values():
            made.close()
        self._plans.clear()
        self._kernels.close()
        self._cosines.close()

    def _prepare(self, message: Prepare) -> int:
        return self._plan(message.number, message.spec).work

    def _plan(self, number: int, spec: bytes) -> _FftPlan:
        made = self._plans.get(number)
        if made is None:
            decoded = decode(spec)
            hooks: list[Linkable] = []
            if isinstance(decoded, Cosines):
                program = plan_cosines(decoded)
            else:
                program = plan(decoded)
                if decoded.load or decoded.store:
                    hooks = compile_hooks(decoded, self._context.compute_capability)
            kernels, stream = (self._kernels, self._cosines), self._stream.pointer
            made = self._plans[number] = _FftPlan(self._library, *kernels, stream, program, hooks)
        return made

    def _transform(self, message: RunTransform) -> None:
        made = self._plan(message.number, message.spec)
        if self._stream.captures:
            # Its tables, and perhaps its work area, are the graph's from now on.
            made.graphs += 1
            self._stream.keep(made, partial(self._leave, message.number, made))
        if not made.steps:
            return
        pointer = self._pointer
        scratch = pointer(message.workspace) if message.workspace else 0
        made.run((pointer(message.source), pointer(message.target), scratch), message.work)

    def _prepare_transform(self, template: HostTemplate) -> Callable[[Sequence[int]], None] | None:
        """Return a function that runs a transform on buffers at other addresses, or None."""
        message: Any = template.message
        places = [message.source, message.target]
        if message.workspace:
            places.append(message.workspace)
        if self._stream.captures or min(places) < PLACE:
            return None
        number, spec, work = message.number, message.spec, message.work
        plans, all_pointers = self._plans, self._context.pointers
        source, target, *scratch = [place ^ PLACE for place in places]

        def run(addresses: Sequence[int]) -> None:
            made = plans.get(number) or self._plan(number, spec)
            if made.steps:
                pointers = all_pointers(addresses)
                area = pointers[scratch[0]] if scratch else 0
                made.run((pointers[source], pointers[target], area), work)

        return run

    def _leave(self, number: int, made: _FftPlan) -> None:
        """A graph that has a plan is gone: with the last one goes the plan."""
        made.graphs -= 1
        if not made.graphs and self._plans.get(number) is made:
            self._forget(ForgetPlan(number))

    def _forget(self, message: ForgetPlan) -> None:
        made = self._plans.pop(message.number, None)
        if made is not None:
            made.close()

    def _roll(self, message: Roll) -> None:
        count = math.prod(message.shape)
        if not count:
            return
        arguments = KernelArguments(roll_arguments(message.shape, message.shifts, count))
        arguments.pointers[0] = self._pointer(message.target)
        arguments.pointers[1] = self._pointer(message.source)
        function = self._kernels.function(f"roll<{BY_SIZE[message.itemsize]}>")
        self._kernels.launch(function, count, arguments)

    def _frequencies(self, message: Frequencies) -> None:
        count, packed = frequencies_arguments(message.n, message.step, half=message.half)
        arguments = KernelArguments(packed)
        arguments.pointers[0] = self._pointer(message.target)
        self._kernels.launch(self._kernels.function("frequencies"), count, arguments)


def _launching(
    kernels: Kernels, launch: FftLaunch, source: BufferOffset, target: BufferOffset
) -> _Step:
    """Return a step that launches a kernel from one place to another."""
    arguments = KernelArguments(launch.arguments)
    run = kernels.prepare(kernels.function(launch.name), launch.items, arguments)
    pointers = arguments.pointers

    def step(bases: tuple[int, int, int]) -> None:
        pointers[0] = bases[target.buffer] + target.offset
        pointers[1] = bases[source.buffer] + source.offset
        run()

    return step


@final
class _FftPlan:
    """A program of steps with everything made: handles, kernels and their arguments.

    Attributes:
        steps: what to call with the addresses of input, output and scratch.
        work: bytes of work area.
        graphs: how often captured graphs have it.
    """

    def __init__(
        self,
        library: VendorLibrary,
        kernels: Kernels,
        cosines: Kernels,
        stream: int,
        program: FftProgram,
        hooks: list[Linkable],
    ) -> None:
        self._library = library
        self._kernels = kernels
        self._cosines = cosines
        self._hooks = hooks
        self._handles: list[int] = []
        self._work_at: dict[int, int] = {}
        self._scratch = program.scratch
        self._own = 0
        self.work = 0
        self.graphs = 0
        self.steps: list[_Step] = []
        try:
            for step in program.steps:
                self.steps.append(self._made(step, stream))
        except BaseException:
            self.close()
            raise

    def run(self, bases: tuple[int, int, int], brought: int) -> None:
        """Queue all steps.

        Args:
            bases: pointers to the input, the output, and scratch with the work area.
            brought: bytes of the work area.
        """
        if self.work:
            if brought >= self.work:
                work = bases[2] + self._scratch
            else:
                # A batch or a recording did not know; this lives as long as the plan,
                # because a graph may have it.
                self._own = self._own or int(check("cuMemAlloc", driver.cuMemAlloc(self.work)))
                work = self._own
            for handle in self._handles:
                if self._work_at.get(handle) != work:
                    self._library.call("cufftSetWorkArea", handle, work)
                    self._work_at[handle] = work
        for step in self.steps:
            step(bases)

    def close(self) -> None:
        """Destroy the handles."""
        for handle in self._handles:
            with contextlib.suppress(LibraryError):  # nothing to be done about it
                self._library.call("cufftDestroy", handle)
        self._handles.clear()
        if self._own:
            check("cuMemFree", driver.cuMemFree(self._own))
            self._own = 0

    def _made(self, step: Move | CufftRun | Fold | Spread, stream: int) -> _Step:
        if isinstance(step, CufftRun):
            return self._fft(step, stream)
        if isinstance(step, Move):
            count = math.prod(dim.size for dim in step.dims)
            launch = FftLaunch(move_name(step, count), count, move_arguments(step, count))
            return _launching(self._kernels, launch, step.source, step.target)
        launch = fold_launch(step) if isinstance(step, Fold) else spread_launch(step)
        return _launching(self._cosines, launch, step.source, step.target)

    def _fft(self, step: CufftRun, stream: int) -> _Step:
        handle = self._make(step.layout, stream)
        source, target = c_void_p(), c_void_p()
        execute = self._library.prepare(
            "cufftXtExec", handle, source, target, INVERSE if step.inverse else FORWARD
        )
        begins = [
            (step.source.offset + before, step.target.offset + after)
            for before, after in step.offsets
        ]
        read, written = step.source.buffer, step.target.buffer

        def run(bases: tuple[int, int, int]) -> None:
            for before, after in begins:
                source.value = bases[read] + before
                target.value = bases[written] + after
                status = execute()
                if status:
                    raise self._library.error("cufftXtExec", status)

        return run

    def _make(self, layout: CufftLayout, stream: int) -> int:
        call = self._library.call
        cell = c_int()
        call("cufftCreate", byref(cell))
        handle = cell.value
        self._handles.append(handle)
        call("cufftSetAutoAllocation", handle, 0)
        call("cufftSetStream", handle, stream)
        link(self._library, handle, self._hooks)
        work = c_size_t()
        # The type of the computation is the complex one of the precision.
        computed = TRANSFORM_TYPES[COMPLEX.get(layout.source_type, layout.source_type)]
        try:
            call(
                "cufftXtMakePlanMany",
                handle,
                len(layout.sizes),
                _integers(layout.sizes),
                _integers(layout.source_embed),
                layout.source_stride,
                layout.source_distance,
                TRANSFORM_TYPES[layout.source_type],
                _integers(layout.target_embed),
                layout.target_stride,
                layout.target_distance,
                TRANSFORM_TYPES[layout.target_type],
                layout.batch,
                byref(work),
                computed,
            )
        except LibraryError as error:
            if error.status not in REFUSALS:
                raise
            raise Unsupported(
                f"cuFFT does not transform {layout.source_type} to {layout.target_type} in sizes "
                f"{layout.sizes} on this device: {error}"
            ) from error
        # A multiple of the alignment, so that the block it is part of stays aligned.
        self.work = max(self.work, -(-work.value // ALIGNMENT) * ALIGNMENT)
        return handle


def _integers(values: tuple[int, ...]) -> Any:
    return (c_int64 * len(values))(*values)
