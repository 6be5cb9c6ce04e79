"""``atomr-accel probe``: installed and missing parts, and checks of computations."""

from __future__ import annotations

import platform
import time
from contextlib import suppress
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

import trio
from trio import move_on_after

from .. import AccelError, DeviceLost, __version__, open_device
from .._install import install_command
from ..backends.registry import BUILT_IN, GROUP
from ..ops import LibraryCheck
from ._checks import checked, checks
from ._documents import CheckPart, GpuPart, LibraryPart, OpenedPart, ProbeDocument
from ._errors import ExitCode, Refusal
from ._output import Tone, Toned, printable, size_of, time_of
from ._packages import (
    CUDA_PACKAGES,
    OPTIONAL,
    REQUIRED,
    libraries,
    packages,
    requirements,
    version_of,
)
from ._vendor import ask_vendor

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

    from ..lanes import Isolation
    from ._output import CommandOutput
    from ._vendor import VendorAnswer

_TONES: Final[dict[str, Tone]] = {
    "ok": "good",
    "wrong": "bad",
    "failed": "bad",
    "missing": "warning",
    "unsupported": "note",
}
_BAD: Final = {"wrong", "failed", "missing"}


def run(args: argparse.Namespace, out: CommandOutput) -> int:
    """Open the devices, run the checks, and print the results.

    Returns:
        ``OK``; ``WRONG`` if a check was not right; ``UNAVAILABLE`` if no device could be opened.
    """
    making = () if args.no_checks else chosen(args.library)
    told = ask_vendor()
    wanted = places(args.backend, args.device, told)
    opened: list[OpenedPart] = []
    results: list[CheckPart] = []
    with out.progress("checking", len(wanted) * max(1, len(making))) as advance:

        def done() -> None:
            advance(len(results))

        for backend, index in wanted:
            trio.run(_look, backend, index, args, making, opened, results, done)
    document = _document(told, wanted, opened, results)
    _show(document, out)
    out.document(document)
    if not any(part.opened for part in opened):
        return ExitCode.UNAVAILABLE
    return ExitCode.OK if document.ok else ExitCode.WRONG


def chosen(names: Sequence[str] | None) -> tuple[tuple[str, LibraryCheck], ...]:
    """Return the checks of some libraries; all of them by default."""
    every = checks()
    known = dict(every)
    for name in names or ():
        if name not in known:
            raise Refusal(
                f"there is no check of {name!r}, but of {', '.join(known)}", ExitCode.USAGE
            )
    return tuple((name, check) for name, check in every if names is None or name in names)


def places(
    backend: str, indices: Sequence[int] | None, told: VendorAnswer
) -> list[tuple[str, int]]:
    """Return the devices to probe: ``all`` are those of the driver, and the CPU."""
    if backend in {"all", "auto"}:
        gpus = [("cuda", gpu.index) for gpu in told.gpus]
        found = [*gpus, ("cpu", 0)]
        if indices is None:
            return found
        return [place for place in found if place[1] in indices] or [("cuda", i) for i in indices]
    if indices is None:
        count = len(told.gpus) if backend == "cuda" else 1
        return [(backend, index) for index in range(count or 1)]
    return [(backend, index) for index in indices]


async def _look(
    backend: str,
    index: int,
    args: argparse.Namespace,
    making: Iterable[tuple[str, LibraryCheck]],
    opened: list[OpenedPart],
    results: list[CheckPart],
    done: Callable[[], None],
) -> None:
    """Open a device and check it, for as long as that may take."""
    name, isolation = f"{backend}:{index}", _isolation(args.isolation)
    began = time.perf_counter()
    is_open = False

    def tell(problem: str | None) -> None:
        seconds = time.perf_counter() - began
        part = OpenedPart(device=name, opened=problem is None, seconds=seconds, problem=problem)
        opened.append(part)

    waiting: tuple[str, LibraryCheck] | None = None
    with move_on_after(args.seconds) as scope, suppress(DeviceLost):
        try:
            # A kernel that hangs is ended by its deadline, so that closing waits for nothing.
            deadline = args.seconds if isolation == "process" else None
            async with open_device(
                index, backend=backend, isolation=isolation, standby=None, op_deadline=deadline
            ) as device:
                is_open = True
                tell(None)
                for waiting in making:
                    results.append(await checked(device, *waiting))
                    done()
        except (AccelError, OSError, ValueError) as error:
            if is_open:
                raise
            tell(str(error))
    if not scope.cancelled_caught:
        return
    late = f"it took more than {args.seconds:g} s"
    if waiting is None:
        tell(late)
    else:
        results.append(
            CheckPart(
                device=name,
                library=waiting[0],
                what=waiting[1].what,
                outcome="failed",
                error=None,
                tolerance=waiting[1].tolerance,
                seconds=args.seconds,
                detail=late,
            )
        )


def _isolation(word: str) -> Isolation:
    return "thread" if word == "thread" else "process"


def _document(
    told: VendorAnswer,
    wanted: list[tuple[str, int]],
    opened: list[OpenedPart],
    results: list[CheckPart],
) -> ProbeDocument:
    on_cuda = any(backend == "cuda" for backend, _ in wanted)
    ours = [each for each in requirements() if not each.vendor]
    parts = [
        *packages(REQUIRED, needed=True),
        *packages(CUDA_PACKAGES, needed=on_cuda),
        *packages([each for each in ours if each.extra == "cuda12"], needed=on_cuda),
        *libraries(told.libraries, needed=on_cuda),
        *packages([each for each in ours if each.extra != "cuda12"], needed=False),
        *packages(OPTIONAL, needed=False),
    ]
    return ProbeDocument(
        version=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        driver=told.driver,
        gpus=told.gpus,
        backends=sorted({*BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))}),
        libraries=parts,
        devices=opened,
        checks=results,
        advice=advice(told, parts, opened),
        ok=any(part.opened for part in opened) and not any(c.outcome in _BAD for c in results),
    )


def extra_for(cuda: str | None) -> str:
    """Return the extra that a driver can run; without a known CUDA version, ``cuda12``."""
    major = int(cuda.partition(".")[0]) if cuda else 12
    return "cuda13" if major >= 13 and _has_major(13) else "cuda12"


def _has_major(major: int) -> bool:
    """Return True if installed packages are of this CUDA version; two versions do not mix."""
    found = version_of("cuda-bindings")
    return found is not None and found.startswith(f"{major}.")


def advice(told: VendorAnswer, parts: list[LibraryPart], opened: list[OpenedPart]) -> list[str]:
    """Return steps to install or change something, the most urgent first."""
    said = []
    driver = told.driver
    missing = [part for part in parts if part.problem is not None]
    if any(part.device.startswith("cuda") and not part.opened for part in opened):
        if driver.cuda is None:
            said.append("install NVIDIA's driver; in a container, run it with --gpus all")
        elif driver.problem is not None:
            said.append(f"the driver does not answer: {driver.problem}; see atomr-accel doctor")
    if any(part.extra == "cuda12" for part in missing):
        names = ", ".join(part.name for part in missing if part.extra == "cuda12")
        extra = extra_for(driver.cuda)
        said.append(f"missing: {names}; install with: {install_command(extra)}")
    said += [f"pip install {part.name}" for part in missing if part.extra is None]
    if driver.cuda is None and not said:
        said.append("there is no NVIDIA driver, so open_device takes the CPU")
    return said


# --- for people ----------------------------------------------------------------------------


def _show(document: ProbeDocument, out: CommandOutput) -> None:
    out.line(f"atomr_accel {document.version}, Python {document.python}, {document.platform}")
    driver = document.driver
    version = f"version {driver.version or 'unknown'}, up to CUDA {driver.cuda}"
    out.line(f"driver: {driver.problem or version}", None if driver.problem is None else "note")
    out.line(f"backends: {', '.join(document.backends)}")
    out.line()
    out.table(
        "GPUs", ("#", "name", "memory", "capability", "mode"), [_gpu(g) for g in document.gpus]
    )
    out.table(
        "Libraries",
        ("name", "version", "for", "note"),
        [_library(part) for part in document.libraries],
    )
    out.table(
        "Devices",
        ("device", "opened", "in", "note"),
        [
            (
                part.device,
                Toned("yes", "good") if part.opened else Toned("no", "bad"),
                time_of(part.seconds),
                part.problem,
            )
            for part in document.devices
        ],
    )
    out.table(
        "Checks",
        ("device", "library", "outcome", "deviation", "allowed", "in", "what"),
        [_check(part) for part in document.checks],
    )
    for line in document.advice:
        out.line(f"advice: {line}", "note")
    bad = sum(part.outcome in _BAD for part in document.checks)
    if document.ok:
        out.line("all is well", "good")
    elif bad:
        out.line(f"{bad} of {len(document.checks)} checks are not right", "bad")
    else:
        out.line("no device could be opened", "bad")


def _gpu(gpu: GpuPart) -> tuple[int, str, str, str, str]:
    mode = gpu.compute_mode + (", MIG" if gpu.mig else "")
    return gpu.index, gpu.name, size_of(gpu.memory), gpu.compute_capability, mode


def _library(part: LibraryPart) -> tuple[str, str, str, str | None]:
    if part.version is not None:
        version = part.version
    else:
        version = Toned("missing", "bad") if part.problem else Toned("-", "dim")
    return part.name, version, part.use, part.problem


def _check(part: CheckPart) -> tuple[str | float | None, ...]:
    what = part.what if part.detail is None else f"{part.what}: {printable(part.detail)}"
    return (
        part.device,
        part.library,
        Toned(part.outcome, _TONES[part.outcome]),
        part.error,
        part.tolerance,
        time_of(part.seconds),
        what,
    )
