"""Engines of onnxruntime, by number: made, run on buffers, and let go."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import numpy as np

from ...._errors import LibraryError, Unsupported
from ....executors.disk_cache import DiskCache
from ....wire import PLACE
from ..wire.messages import (
    BoundTensor,
    DropEngine,
    DropHeld,
    EngineOptions,
    LoadEngine,
    ModelDescription,
    RunAndHold,
    RunEngine,
    SupplyModel,
    TakeHeld,
)
from ._library import onnxruntime
from ._models import declare, described, in_half, read_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....host.templates import HostTemplate

_CACHE: Final = DiskCache("engines", limit=2 << 30)
SILENT: Final = 4
"""Severity of what onnxruntime prints: fatal errors only. The others are raised."""

_MISSING: Final = (
    "Could not find an implementation",
    "is not a registered function/op",
    "NOT_IMPLEMENTED",
)
"""Words of onnxruntime's errors about ops that it does not have."""


class _LoadedEngine(NamedTuple):
    """An engine, and the numbers by which it knows the types of tensors.

    Attributes:
        session: onnxruntime's.
        binding: the tensors of its runs, which each run binds anew.
        types: by the names of inputs and outputs.
        description: the program's.
    """

    session: Any
    binding: Any
    types: dict[str, int]
    description: ModelDescription


class EngineExecutor:
    """Executes the messages of engines, wherever a backend's tensors are."""

    def __init__(self, context: Any, where: tuple[str, int], providers: list[Any]) -> None:
        self._context: Final = context
        self._where: Final = where
        self._providers: Final = providers
        self._supplied: dict[int, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self._engines: dict[int, _LoadedEngine] = {}
        self._held: dict[int, list[Any]] = {}
        # onnxruntime takes tens of microseconds more for a run with options.
        self._run_options: Any = None
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            SupplyModel: self._supply,
            LoadEngine: self._load,
            RunEngine: self._run,
            RunAndHold: self._run_and_hold,
            TakeHeld: self._take_held,
            DropHeld: self._drop_held,
            DropEngine: self._drop,
        }
        self.preparers: Final = {RunEngine: self._prepare_run}

    def close(self) -> None:
        """Let all engines and results go."""
        self._engines.clear()
        self._supplied.clear()
        self._held.clear()

    # --- making -----------------------------------------------------------------------------

    def _supply(self, message: SupplyModel) -> None:
        if message.start == 0:
            self._supplied[message.engine] = np.empty(message.total, np.uint8)
        piece = np.frombuffer(message.piece, np.uint8)
        self._supplied[message.engine][message.start : message.start + len(piece)] = piece

    def _load(self, message: LoadEngine) -> ModelDescription:
        self._context.check()
        data = self._supplied.pop(message.engine).tobytes()
        found = self._engines.get(message.engine)
        if found is None:
            found = self._engines[message.engine] = self._made(data, message.options)
        return found.description

    def _made(self, data: bytes, options: EngineOptions) -> _LoadedEngine:
        model = read_model(data, options)
        inputs, outputs = described(model)
        declare(model, outputs)
        if options.precision == "fp16":
            model = _checked(lambda: in_half(model))
        serialized: bytes = model.SerializeToString()
        session, cached = self._session(serialized, options)
        types = {each.name: _element_type(model, each.name) for each in (*inputs, *outputs)}
        description = ModelDescription(inputs, outputs, cached)
        return _LoadedEngine(session, session.io_binding(), types, description)

    def _session(self, serialized: bytes, options: EngineOptions) -> tuple[Any, bool]:
        """Return a session, and whether its optimized model was on disk."""
        if options.folder:  # what is optimized would have the weights in files, too
            return self._open(serialized, options), False
        known = repr((onnxruntime.__version__, self._where[0], options)).encode()
        key = known + hashlib.sha256(serialized).digest()
        optimized = _CACHE.get(key)
        if optimized is not None:
            return self._open(optimized, options), True
        with tempfile.TemporaryDirectory(prefix="atomr-engine-") as folder:
            path = Path(folder) / "optimized.onnx"
            self._open(serialized, options, save=path)
            optimized = path.read_bytes()
        _CACHE.put(key, optimized)
        return self._open(optimized, options), False

    def _open(self, serialized: bytes, options: EngineOptions, save: Path | None = None) -> Any:
        wanted = onnxruntime.SessionOptions()
        wanted.log_severity_level = SILENT
        wanted.intra_op_num_threads = options.threads
        wanted.use_deterministic_compute = options.deterministic
        # Threads that spin take cores of the program's.
        wanted.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if options.folder:
            wanted.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", options.folder
            )
        if save is not None:
            # What goes beyond these optimizations depends on the machine, and takes little time.
            wanted.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            wanted.optimized_model_filepath = str(save)
        return _checked(
            # A session that falls back prints its error, and has other providers.
            lambda: onnxruntime.InferenceSession(
                serialized, wanted, providers=self._providers, enable_fallback=0
            )
        )

    def _drop(self, message: DropEngine) -> None:
        self._engines.pop(message.engine, None)
        self._supplied.pop(message.engine, None)

    # --- running ----------------------------------------------------------------------------

    def _run(self, message: RunEngine) -> None:
        self._context.check()
        loaded = self._engines[message.engine]
        self._bind(loaded.binding.bind_input, loaded, message.inputs)
        self._bind(loaded.binding.bind_output, loaded, message.outputs)
        self._execute(loaded.session, loaded.binding)

    def _prepare_run(self, template: HostTemplate) -> Callable[[Sequence[int]], None] | None:
        """Return a function that runs an engine on buffers at other addresses, or None."""
        message: Any = template.message
        if min(each.address for each in (*message.inputs, *message.outputs)) < PLACE:
            return None
        engines, number, pointer = self._engines, message.engine, self._context.pointer
        check, where, execute = self._context.check, self._where, self._execute
        parts = [
            [(each.name, each.shape, each.address ^ PLACE) for each in tensors]
            for tensors in (message.inputs, message.outputs)
        ]

        def run(addresses: Sequence[int]) -> None:
            check()
            session, binding, types, _ = engines[number]
            for bind, tensors in zip((binding.bind_input, binding.bind_output), parts, strict=True):
                for name, shape, place in tensors:
                    bind(name, *where, types[name], shape, pointer(addresses[place]))
            execute(session, binding)

        return run

    def _run_and_hold(self, message: RunAndHold) -> list[list[int]]:
        self._context.check()
        loaded = self._engines[message.engine]
        binding = loaded.session.io_binding()
        self._bind(binding.bind_input, loaded, message.inputs)
        for name in message.outputs:
            binding.bind_output(name, *self._where)
        self._execute(loaded.session, binding)
        self._context.synchronize()
        made = binding.get_outputs()
        self._held[message.ticket] = made
        return [[*each.shape()] for each in made]

    def _bind(
        self, bind: Callable[..., None], loaded: _LoadedEngine, tensors: tuple[BoundTensor, ...]
    ) -> None:
        for each in tensors:
            pointer = self._context.pointer(each.address)
            bind(each.name, *self._where, loaded.types[each.name], each.shape, pointer)

    def _execute(self, session: Any, binding: Any) -> None:
        _checked(lambda: session.run_with_iobinding(binding, self._run_options), "run")

    def _take_held(self, message: TakeHeld) -> None:
        held = self._held[message.ticket]
        for value, address, nbytes in zip(held, message.addresses, message.nbytes, strict=True):
            if nbytes:
                self._copy(address, value.data_ptr(), nbytes)

    def _copy(self, address: int, pointer: int, nbytes: int) -> None:
        """Copy a result of onnxruntime's to a buffer."""
        self._context.take(address, pointer, nbytes)

    def _drop_held(self, message: DropHeld) -> None:
        self._held.pop(message.ticket, None)


def _element_type(model: Any, name: str) -> int:
    for each in (*model.graph.input, *model.graph.output):
        if each.name == name:
            return int(each.type.tensor_type.elem_type)
    raise AssertionError(name)


def _checked(call: Callable[[], Any], what: str = "load") -> Any:
    """Return what onnxruntime gives.

    Raises:
        Unsupported: it has no such op, or not for these types.
    """
    try:
        return call()
    except Exception as error:
        if type(error).__module__.startswith("onnxruntime") or isinstance(
            error, RuntimeError | ValueError
        ):
            _refused(error, what)
        raise


def _refused(error: Exception, what: str) -> NoReturn:
    said = str(error)
    if any(words in said for words in _MISSING):
        raise Unsupported(
            f"onnxruntime {onnxruntime.__version__} has no such op: {said}"
        ) from error
    raise LibraryError(
        f"onnxruntime did not {what} the model: {said}",
        library="onnxruntime",
        call=what,
        status=1,
        status_name=type(error).__name__,
    ) from error
