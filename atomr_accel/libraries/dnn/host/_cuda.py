"""DNN on CUDA: a cuDNN handle on one lane, running plans of the vendor's frontend."""

from __future__ import annotations

import sys
import threading
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakKeyDictionary, finalize

from ....backends.cuda.host.driver import check, driver
from ....executors.cuda_kernels import preload_compiler
from ....executors.disk_cache import DiskCache
from ....wire import PLACE
from ..wire._graph import decode
from ..wire._messages import ForgetGraph, PrepareGraph, RunGraph, TuneGraph
from ._cuda_losses import CudaLosses
from ._cuda_rnn import CudaRnn
from ._cuda_routines import CudaDnnRoutines, Descriptors
from ._cuda_sampling import CudaSampling
from ._lowering import load_frontend
from ._plans import DnnPlanStore
from ._prototypes import load_cudnn, preload_parts
from ._runs import PlanRun
from ._timing import milliseconds
from .cuda_sequences import CudaSequences
from .fallback._fallback import Own, computes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ....host.templates import HostTemplate
    from ._plans import DnnPlan

_STORES: Final[WeakKeyDictionary[CudaContext, DnnPlanStore]] = WeakKeyDictionary()
_STORES_LOCK: Final = threading.Lock()


def _store_of(context: CudaContext) -> DnnPlanStore:
    """The plans of a context: every stream of every lane asks for the same."""
    with _STORES_LOCK:
        store = _STORES.get(context)
        if store is None:
            info = context.info
            files = DiskCache("dnn-plans")
            capability = context.compute_capability
            store = DnnPlanStore(
                info.name,
                capability,
                files,
                computes,
                elsewhere=_elsewhere(context),
                deterministic=context.deterministic,
            )
            _STORES[context] = store
        return store


def _elsewhere(context: CudaContext) -> Callable[[bytes], Any] | None:
    """Return a function that makes plans in another process, or None to make them here.

    A process that has imported trio is the program's, and making plans there would stall it.
    """
    if "trio" not in sys.modules:
        return None
    from ._plan_compiler import PlanCompiler

    try:
        described = load_frontend().create_device_properties(context.info.index).serialize()
    except (AttributeError, RuntimeError):  # before cuDNN 9.8
        return None
    compiler = PlanCompiler(
        described, context.compute_capability, deterministic=context.deterministic
    )
    finalize(context, compiler.close)
    return compiler.make


@final
class CudaDnn:
    """Executes DNN messages."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._library: Final = load_cudnn()
        self._pointer: Final = context.pointer
        self._pointers: Final = context.pointers
        self._stream: Final = stream
        self._store: Final = _store_of(context)
        self._own: Final = Own(context, stream)
        self._scratch: dict[int, int] = {}
        handle = c_void_p()
        self._library.call("cudnnCreate", byref(handle))
        self._handle: Final = handle.value or 0
        self._library.call("cudnnSetStream", self._handle, stream.pointer)
        graphs: dict[type, Callable[[Any], Any]] = {
            PrepareGraph: self._prepare,
            RunGraph: self._run,
            TuneGraph: self._tune,
            ForgetGraph: self._forget,
        }
        self._descriptors: Final = Descriptors(self._handle)
        self._sequences: Final = CudaSequences(context, stream, graphs)
        self._losses: Final = CudaLosses(context, stream, self._descriptors, self._scratch_of)
        self._sampling: Final = CudaSampling(context, stream)
        self._rnn: Final = CudaRnn(self._descriptors, context.pointer, stream)
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            **graphs,
            **self._sequences.handlers,
            **CudaDnnRoutines(self._descriptors, context.pointer).handlers,
            **self._rnn.handlers,
            **self._losses.handlers,
            **self._sampling.handlers,
        }
        self.preparers: Final = {RunGraph: self._prepare_run}

    @staticmethod
    def preload() -> None:
        """Load the library with its parts, and its frontend."""
        load_frontend()
        preload_parts()
        preload_compiler()

    def close(self) -> None:
        """Destroy the handle and all objects that were made with it."""
        self._store.release(self)
        self._rnn.close()
        self._descriptors.close()
        self._sequences.close()
        self._losses.close()
        self._sampling.close()
        self._library.call("cudnnDestroy", self._handle)
        self._own.close()
        self._free_scratch()

    def _prepare(self, message: PrepareGraph) -> tuple[int, str, str]:
        plan, origin = self._store.find(message.graph, self._handle, tuned=message.tuned)
        return plan.workspace, origin, plan.implementation(decode(message.graph))

    def _run(self, message: RunGraph) -> None:
        plan, _ = self._store.find(message.graph, self._handle, tuned=message.tuned)
        run = plan.runs.get(self)
        if run is None:
            run = plan.runs[self] = PlanRun(plan, self._handle, self._own)
        workspace = self._workspace(plan, message) if plan.workspace else 0
        run(self._pointers(message.addresses), message.scalars, workspace)

    def _prepare_run(self, template: HostTemplate) -> Callable[[Sequence[int]], None] | None:
        """Return a function that runs the template's graph on given addresses."""
        message: Any = template.message
        if any(value < PLACE for value in message.addresses) or 0 < message.workspace < PLACE:
            return None
        key, scalars = (message.graph, message.tuned), message.scalars
        places = [value ^ PLACE for value in message.addresses]
        count, in_order = len(places), places == [*range(len(places))]
        workspace_at = message.workspace ^ PLACE
        recall, all_pointers = self._store.recall, self._pointers

        def execute(addresses: Sequence[int]) -> None:
            plan = recall(key) or self._store.find(key[0], self._handle, tuned=key[1])[0]
            run = plan.runs.get(self)
            if run is None:
                run = plan.runs[self] = PlanRun(plan, self._handle, self._own)
            pointers = all_pointers(addresses)
            workspace = 0
            if plan.workspace:
                enough = message.workspace_bytes >= plan.workspace
                workspace = pointers[workspace_at] if enough else self._scratch_of(plan.workspace)
            own = pointers[:count] if in_order else [pointers[place] for place in places]
            run(own, scalars, workspace)

        return execute

    def _tune(self, message: TuneGraph) -> tuple[int, str, str]:
        run = message.run

        def time(plan: DnnPlan, position: int) -> float:
            candidate = PlanRun(plan, self._handle, self._own, position=position)
            workspace = self._workspace(plan, run) if plan.workspace else 0
            pointers = self._pointers(run.addresses)

            def execute() -> None:
                candidate([*pointers], run.scalars, workspace)

            return milliseconds(self._stream.handle, execute)

        try:
            plan, origin = self._store.tune(run.graph, self._handle, time)
        finally:
            self._free_scratch()  # candidates may have wanted much more than the fastest does
        return plan.workspace, origin, plan.implementation(decode(run.graph))

    def _forget(self, message: ForgetGraph) -> None:
        self._store.forget(message.graph, tuned=message.tuned)

    def _workspace(self, plan: DnnPlan, message: RunGraph) -> int:
        """The pointer of a run's scratch memory."""
        if message.workspace_bytes >= plan.workspace:
            return self._pointer(message.workspace)
        return self._scratch_of(plan.workspace)

    def _scratch_of(self, nbytes: int) -> int:
        """Return scratch memory for runs that brought too little: in a batch, or after a rebuild.

        It is kept while the executor lives, because a captured graph may use it.
        """
        size = 1 << (nbytes - 1).bit_length()
        scratch = self._scratch.get(size)
        if scratch is None:
            scratch = self._scratch[size] = int(check("cuMemAlloc", driver.cuMemAlloc(size)))
        return scratch

    def _free_scratch(self) -> None:
        for pointer in self._scratch.values():
            check("cuMemFree", driver.cuMemFree(pointer))
        self._scratch.clear()
