"""Plans: what the vendor makes of a graph for a device; kept in memory and on disk.

Making one takes from milliseconds to seconds, because some are compiled. On disk a plan is
found by its graph, the device's name and the versions of cuDNN and of its frontend. A file
has a hash of its content and the question that it answers, is written in one step, and is
used only if both are as expected.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import msgspec
import numpy as np

from ..._dtypes import DTYPES
from ..._errors import AccelError, Unsupported
from ._graph import Graph, decode
from ._lowering import load_frontend, lower, refusals
from ._prototypes import version

if TYPE_CHECKING:
    from collections.abc import Callable

_MAGIC: Final = b"atomr_accel dnn plan 1\n"
_HASH_BYTES: Final = 32
_MOST_PLANS: Final = 512
_MOST_CANDIDATES: Final = 16
_MOST_WORKSPACE: Final = 1 << 30
"""The most scratch memory that a plan may want."""

FOLDER: Final = "ATOMR_ACCEL_CACHE"
"""The environment variable that moves the files of all caches; empty to have none."""


def plan_folder() -> Path | None:
    """Where plans are kept on disk; None to keep none."""
    chosen = os.environ.get(FOLDER)
    if chosen == "":
        return None
    if chosen is not None:
        return Path(chosen) / "dnn"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "atomr_accel" / "dnn"


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """What a file says beside its hash.

    Attributes:
        question: graph, device and versions.
        plan: as the frontend serialises it.
    """

    question: bytes
    plan: bytes


@final
class PlanFiles:
    """Plans on disk.

    Args:
        folder: where; None for nowhere.
        names: what a plan depends on beside its graph, such as the device's name.
    """

    def __init__(self, folder: Path | None, *names: str) -> None:
        self._folder = folder
        self._names = names

    def read(self, graph: bytes, *, tuned: bool) -> bytes | None:
        """A plan; None where there is none that can be trusted."""
        if self._folder is None:
            return None
        question = self._question(graph, tuned=tuned)
        try:
            data = self._path(question).read_bytes()
        except OSError:
            return None
        body = data[len(_MAGIC) + _HASH_BYTES :]
        if data[: len(_MAGIC) + _HASH_BYTES] != _MAGIC + hashlib.sha256(body).digest():
            return None
        with contextlib.suppress(msgspec.DecodeError):
            stored = msgspec.msgpack.decode(body, type=_Stored)
            if stored.question == question:
                return stored.plan
        return None

    def write(self, graph: bytes, plan: bytes, *, tuned: bool) -> None:
        """Keep a plan; a disk that takes nothing is none of the caller's business."""
        if self._folder is None:
            return
        question = self._question(graph, tuned=tuned)
        body = msgspec.msgpack.encode(_Stored(question, plan))
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=self._folder, suffix=".part")
            part = Path(name)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(body).digest() + body)
                part.replace(self._path(question))
            except BaseException:
                part.unlink(missing_ok=True)
                raise

    def _question(self, graph: bytes, *, tuned: bool) -> bytes:
        return msgspec.msgpack.encode((graph, tuned, self._names))

    def _path(self, question: bytes) -> Path:
        assert self._folder is not None
        return self._folder / f"{hashlib.sha256(question).hexdigest()}.plan"


class Plan(NamedTuple):
    """A graph that can be run.

    Attributes:
        made: the frontend's graph.
        workspace: bytes of scratch memory.
        buffers: uids of what has addresses, in the order of ids.
        scalars: uids of numbers, with the host memory where they are put.
    """

    made: Any
    workspace: int
    buffers: tuple[int, ...]
    scalars: tuple[tuple[int, np.ndarray[Any, Any]], ...]

    def pointers(self, addresses: list[int], scalars: tuple[float, ...]) -> dict[int, int]:
        """What the frontend wants to be told for a run."""
        found = dict(zip(self.buffers, addresses, strict=True))
        for (uid, memory), value in zip(self.scalars, scalars, strict=True):
            memory[...] = value
            found[uid] = memory.ctypes.data
        return found


@final
class PlanStore:
    """The plans of one context: shared by its lanes, whose streams and handles differ.

    Args:
        name: the device's name.
        capability: the device's compute capability.
        folder: where to keep plans on disk.
        options: for the frontend's graph, in the place of a handle.
    """

    def __init__(
        self,
        name: str,
        capability: tuple[int, int],
        folder: Path | None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self._frontend = load_frontend()
        self._capability = capability
        self._options = options
        versions = str(version()), str(self._frontend.__version__)
        self._files = PlanFiles(folder, name, *versions)
        self._plans: OrderedDict[tuple[bytes, bool], Plan] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, encoded: bytes, handle: int, *, tuned: bool) -> tuple[Plan, str]:
        """A plan, and where it came from: ``"memory"``, ``"disk"`` or ``"built"``.

        Raises:
            Unsupported: cuDNN has none.
            LibraryError: it failed.
        """
        key = (encoded, tuned)
        plan = self._plans.get(key)
        if plan is not None:
            return plan, "memory"
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                return plan, "memory"
            graph = decode(encoded)
            plan, origin = self._read(key, graph, handle), "disk"
            if plan is None:
                plan, origin = self._finish(graph, self._build(graph, handle)), "built"
                self._files.write(encoded, bytes(plan.made.serialize()), tuned=tuned)
            self._keep(key, plan)
        return plan, origin

    def tune(
        self, encoded: bytes, handle: int, time: Callable[[Plan, int], float]
    ) -> tuple[Plan, str]:
        """Keep the fastest plan for a graph.

        Args:
            encoded: the graph.
            handle: a handle of the library.
            time: runs a candidate, by its position, and tells how long that took.

        Raises:
            Unsupported: cuDNN has none.
        """
        key = (encoded, True)
        with self._lock:
            graph = decode(encoded)
            plan = self._read(key, graph, handle)
            if plan is not None:
                self._keep(key, plan)
                return plan, "disk"
            made = self._prepared(graph, handle)
            times: dict[int, float] = {}
            for position in range(made.get_execution_plan_count()):
                if len(times) >= _MOST_CANDIDATES:
                    break
                with contextlib.suppress(AccelError):  # a candidate that fails is none
                    with refusals("cudnnBackendFinalize"):
                        made.build_plan_at_index(position)
                    times[position] = time(self._finish(graph, made), position)
            if not times:
                raise Unsupported("cuDNN has no plan for this graph that runs on this device")
            with refusals("cudnnBackendFinalize"):
                made.build_plan_at_index(min(times, key=times.__getitem__))
            plan = self._finish(graph, made)
            self._files.write(encoded, bytes(made.serialize()), tuned=True)
            self._keep(key, plan)
        return plan, "built"

    def forget(self, encoded: bytes, *, tuned: bool) -> None:
        """Drop a plan from memory."""
        self._plans.pop((encoded, tuned), None)

    def _keep(self, key: tuple[bytes, bool], plan: Plan) -> None:
        self._plans[key] = plan
        while len(self._plans) > _MOST_PLANS:
            self._plans.popitem(last=False)

    def _read(self, key: tuple[bytes, bool], graph: Graph, handle: int) -> Plan | None:
        stored = self._files.read(key[0], tuned=key[1])
        if stored is None:
            return None
        made = self._frontend.pygraph(**self._where(handle))
        try:
            # A list, because the binding takes no bytes.
            made.deserialize(handle, list(stored))
            return self._finish(graph, made)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it can be built
            return None

    def _prepared(self, graph: Graph, handle: int) -> Any:
        """A frontend graph with its candidates, best guess first; none is built yet."""
        made = lower(self._frontend, graph, **self._where(handle))
        modes = self._frontend.heur_mode
        with refusals("cudnnBackendFinalize"):
            made.build_operation_graph()
            made.create_execution_plans([modes.A, modes.FALLBACK])
            made.deselect_workspace_greater_than(_MOST_WORKSPACE)
        return made

    def _build(self, graph: Graph, handle: int) -> Any:
        made = self._prepared(graph, handle)
        with refusals("cudnnBackendFinalize"):
            made.check_support()
            made.build_plans()
        return made

    def _where(self, handle: int) -> dict[str, Any]:
        major, minor = self._capability
        where = {"handle": handle} if self._options is None else self._options
        return {"sm_version": 10 * major + minor, **where}

    def _finish(self, graph: Graph, made: Any) -> Plan:
        scalars = tuple(
            (id_ + 1, np.zeros(1, DTYPES[graph.tensors[id_].dtype])) for id_ in graph.scalars()
        )
        buffers = tuple(id_ + 1 for id_ in graph.buffers())
        return Plan(made, made.get_workspace_size(), buffers, scalars)
