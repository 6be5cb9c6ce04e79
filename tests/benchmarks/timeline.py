"""Table of the work of the program and its hosts between two moments.

``timeline = Timeline()`` must be called before a device is opened. Every host then records how long
its requests, handles, messages and calls of vendor functions take, and the program records its
requests to hosts. ``timeline.print(begun, ended)`` prints the records between two moments of
``time.monotonic_ns()``. The package does not contain this code: hosts load it through a
``sitecustomize`` that is made for them.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_FILE: Final = "ATOMR_TIMELINE"
_ROOT: Final = Path(__file__).resolve().parents[2]
_LEAST_NS: Final = 200_000
"""Least duration that is recorded, except for requests to hosts."""


def note(what: str, begun: int, ended: int) -> None:
    """Record an event in the file."""
    line = f"{os.getpid()}\t{threading.current_thread().name}\t{begun}\t{ended}\t{what}\n"
    fd = os.open(os.environ[_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)


def timed(
    do: Callable[..., Any], what: str | Callable[..., str], least: int = _LEAST_NS
) -> Callable[..., Any]:
    """A function that is noted when it takes its time."""

    def told(begun: int, args: tuple[Any, ...]) -> None:
        ended = time.monotonic_ns()
        if ended - begun >= least:
            note(what if isinstance(what, str) else what(*args), begun, ended)

    if inspect.iscoroutinefunction(do):

        @functools.wraps(do)
        async def wait(*args: Any, **kwargs: Any) -> Any:
            begun = time.monotonic_ns()
            try:
                return await do(*args, **kwargs)
            finally:
                told(begun, args)

        return wait

    @functools.wraps(do)
    def call(*args: Any, **kwargs: Any) -> Any:
        begun = time.monotonic_ns()
        try:
            return do(*args, **kwargs)
        finally:
            told(begun, args)

    return call


# --- in the hosts ---------------------------------------------------------------------------


class _Timed:
    """An executor's class, whose making is noted."""

    def __init__(self, kind: Any, name: str) -> None:
        self._kind = kind
        self._make = timed(kind, f"make {name}")

    def __call__(self, *args: Any) -> Any:
        return self._make(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kind, name)


def in_host() -> None:
    """Record the work of this process, if it is a host."""
    from atomr_accel.backends.cuda.host.driver import CudaDriver
    from atomr_accel.executors import vendor as _vendor
    from atomr_accel.host import host as _host
    from atomr_accel.host._slots import StreamSlot

    host: Any = _host.Host
    host._obey = timed(host._obey, lambda _, request, *__: f"host: {_told(request)}", 0)
    module: Any = _host
    named = module.find_class

    def find_class(what: str, reference: str) -> _Timed:
        return _Timed(named(what, reference), reference.split(":")[1])

    module.find_class = find_class

    slot: Any = StreamSlot
    init = slot.__init__

    def make_slot(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.handlers = {
            kind: timed(handler, f"message {kind.__name__}")
            for kind, handler in self.handlers.items()
        }

    slot.__init__ = make_slot

    driver: Any = CudaDriver
    look_up = driver.__getattr__

    def found(self: Any, name: str) -> Any:
        thing = look_up(self, name)
        if name.startswith("cu") and callable(thing):
            thing = timed(thing, name)
            setattr(self, name, thing)
        return thing

    driver.__getattr__ = found
    functions: Any = _vendor._VendorFunctions
    bind = functions.__missing__

    def bound(self: Any, name: str) -> Any:
        self[name] = timed(bind(self, name), name)
        return self[name]

    functions.__missing__ = bound


def _told(request: Any) -> str:
    name = type(request).__name__
    for detail in ("lanes", "references", "modules"):
        several = getattr(request, detail, None)
        if several is not None:
            names = [getattr(one, "name", str(one).rpartition(":")[2]) for one in several]
            return f"{name} {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
    return name


# --- in the program -------------------------------------------------------------------------


def patch_hosts(folder: Path, module: str) -> None:
    """Have hosts that are started from now on call ``in_host`` of a module of this folder.

    Args:
        folder: an empty folder for a ``sitecustomize``.
        module: the name of the module.
    """
    (folder / "sitecustomize.py").write_text(
        f"import sys; sys.path += {[str(_ROOT), str(_ROOT / 'tests/benchmarks')]!r}\n"
        f"from {module} import in_host; in_host()\n"
    )
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), before)))


class Timeline:
    """Notes what goes on, from now on."""

    def __init__(self) -> None:
        from atomr_accel.device._lifecycle import Lifecycle
        from atomr_accel.device.contexts.context import Context
        from atomr_accel.lanes import HostHandle

        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name) / "timeline"
        patch_hosts(Path(self._folder.name), "timeline")
        os.environ[_FILE] = str(self._file)
        for owner, name, what in (
            (HostHandle, "request", lambda _, request, *__: f"ask: {_told(request)}"),
            (Context, "_take_standby", "take a standby"),
            (Context, "_bring_up", "bring up"),
            (Lifecycle, "detach", "the fault is seen"),
            (Lifecycle, "attach", "the gate opens"),
        ):
            setattr(owner, name, timed(getattr(owner, name), what, 0))

    def print(self, begun: int, ended: int, host: int | None = None) -> None:
        """Print the records between two moments.

        Args:
            begun: the first moment, which is zero in the table.
            ended: the last moment.
            host: the only host to include; all hosts by default.
        """
        print("    from ms    takes  where")
        for line in sorted(self._file.read_text().splitlines(), key=lambda it: it.split("\t")[2]):
            pid, thread, start, end, what = line.split("\t")
            where = "program" if int(pid) == os.getpid() else f"{pid} {thread}"
            if int(end) < begun or int(start) > ended:
                continue
            if host is not None and int(pid) not in (host, os.getpid()):
                continue
            print(
                f"    {(int(start) - begun) / 1e6:7.1f} {(int(end) - int(start)) / 1e6:8.2f}  "
                f"{where:28} {what}"
            )
        sys.stdout.flush()

    def close(self) -> None:
        """Remove its files; hosts that are started from now on note nothing."""
        os.environ.pop(_FILE)
        os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].partition(os.pathsep)[2]
        self._folder.cleanup()
