"""``atomr-accel bench``: a few measurements, compared with other installed packages.

They show how fast a machine is, and whether it has become slower. The benchmarks in the repository
measure more thoroughly.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from .. import DeviceUnavailable, __version__, open_device
from .._install import install_command
from ..lanes.threads import openblas_threads, usable_cores
from ..testing import kill_host
from ._children import ChildFailed, ask_child
from ._documents import BenchDocument, MeasurementPart, RivalPart
from ._errors import ExitCode, Refusal
from ._output import Toned, path_text, time_of
from ._unlogged import unlogged
from .host._rivals import MANY, RIVALS, THREADS, Answer, RivalQuestion, Task, data_of

if TYPE_CHECKING:
    import argparse

    from .. import Device
    from ..lanes import Isolation
    from ._output import CommandOutput

_WARM: Final = 2
_RIVAL_SECONDS: Final = 300.0
_PLOTS: Final = (".svg", ".png", ".pdf")

Once = Callable[[], Awaitable[object]]
"""One run of a measurement, to its end."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement.

    Attributes:
        name: its word on the command line.
        what: a description; ``{size}`` stands for the size.
        sizes: the size for a CPU, or ``--quick``, and for a GPU.
        work: the amount of work at a size, in ``unit``.
        unit: the unit of the rate, per second.
        prepared: prepares a device, and returns the function that runs once.
    """

    name: str
    what: str
    sizes: tuple[int, int]
    work: Callable[[int], float]
    unit: str
    prepared: Callable[[Device, int], Awaitable[Once]]

    def of_size(self, size: int | str) -> str:
        """Return the description with the size filled in."""
        return self.what.format(size=size)


async def _product(device: Device, size: int) -> Once:
    a, b = [await device.put(array) for array in data_of("gemm", size)]
    return partial(device.blas.gemm, a, b)


async def _products(device: Device, size: int) -> Once:
    a, b = [await device.put(array) for array in data_of("many", size)]

    async def once() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(MANY):
                nursery.start_soon(device.blas.gemm, a, b)

    return once


async def _batch(device: Device, size: int) -> Once:
    a, b = [await device.put(array) for array in data_of("many", size)]

    async def once() -> None:
        async with device.batch() as batch:
            for _ in range(MANY):
                batch.blas.gemm(a, b)

    return once


async def _transform(device: Device, size: int) -> Once:
    (x,) = data_of("fft", size)
    return partial(device.fft.rfft, await device.put(x))


async def _sort(device: Device, size: int) -> Once:
    (x,) = data_of("sort", size)
    return partial(device.array.sort, await device.put(x))


async def _norm(device: Device, size: int) -> Once:
    refs = [await device.put(array) for array in data_of("norm", size)]
    return partial(device.dnn.layer_norm, *refs)


async def _put(device: Device, size: int) -> Once:
    (x,) = data_of("put", size)
    ref = await device.put(x)

    async def once() -> None:
        nonlocal ref
        ref = await device.put(x)
        await device.fill(ref[:1], 0)  # `put` may return before the end of it; this comes after

    return once


async def _get(device: Device, size: int) -> Once:
    (x,) = data_of("get", size)
    return partial(device.get, await device.put(x))


async def _return(device: Device, size: int) -> Once:
    a, b = [await device.put(array, sealed=True) for array in data_of("gemm", size)]

    async def once() -> None:
        await kill_host(device)
        await device.get(await device.retry(device.blas.gemm, a, b))

    return once


def _flops(size: int) -> float:
    return 2e-9 * size**3


def _gigabytes(size: int) -> float:
    return 4e-9 * size


MEASUREMENTS: Final = (
    Measurement(
        "ask", "a product of {size} x {size}, awaited", (256, 256), lambda _: 1, "op/s", _product
    ),
    Measurement(
        "many", f"{MANY} of these from as many tasks", (256, 256), lambda _: MANY, "op/s", _products
    ),
    Measurement("batch", f"{MANY} of these in a batch", (256, 256), lambda _: MANY, "op/s", _batch),
    Measurement("gemm", "a product of {size} x {size}", (1024, 8192), _flops, "GFLOP/s", _product),
    Measurement(
        "fft",
        "rfft of {size} x 1024",
        (512, 65536),
        lambda n: _gigabytes(n * 1024),
        "GB/s",
        _transform,
    ),
    Measurement(
        "sort", "sort of {size} float32", (1 << 18, 1 << 26), lambda n: 1e-6 * n, "M/s", _sort
    ),
    Measurement(
        "norm",
        "layer_norm of {size} x 1024",
        (1024, 65536),
        lambda n: _gigabytes(n * 1024),
        "GB/s",
        _norm,
    ),
    Measurement(
        "put", "{size} float32 to the device", (1 << 22, 1 << 26), _gigabytes, "GB/s", _put
    ),
    Measurement("get", "{size} float32 from it", (1 << 22, 1 << 26), _gigabytes, "GB/s", _get),
    Measurement(
        "return", "from a killed host to the next product", (256, 256), lambda _: 1, "1/s", _return
    ),
)
"""All measurements; all of them in float32."""

_RIVALS_CALL_IT: Final = {"batch": "many"}
"""Measurements of rivals that stand in for ours."""


def run(args: argparse.Namespace, out: CommandOutput) -> int:
    """Measure, ask rivals, compare."""
    if args.list:
        return _listed(out)
    measurements, rivals = _chosen(args)
    if args.plot is not None:
        _check_plot(args.plot)
    taken: dict[str, list[float]] = {}
    total = len(measurements) + len(rivals)
    with out.progress("measuring", total) as advance:
        try:
            with unlogged():
                device = trio.run(_session, args, measurements, taken, lambda: advance(len(taken)))
        except DeviceUnavailable as error:
            raise Refusal(str(error)) from error
        answers: dict[str, Answer] = {}
        for rival in rivals:
            answers[rival] = _asked(rival, device, args, measurements)
            advance(len(taken) + len(answers))
    small = _is_small(device, args)
    document = BenchDocument(
        version=__version__,
        device=device,
        repeats=args.repeats,
        threads=None if device.startswith("cuda") else _threads(args),
        rivals={n: a.version for n, a in answers.items() if a.version and a.problem is None},
        left_out={name: a.problem for name, a in answers.items() if a.problem is not None},
        measurements=[
            _part(m, m.sizes[0] if small else m.sizes[1], taken[m.name], answers)
            for m in measurements
            if m.name in taken
        ],
    )
    _show(document, out)
    if args.plot is not None:
        _plot(document, args.plot)
        out.line(f"drawn in {path_text(args.plot)}")
    out.document(document)
    return ExitCode.OK


def _listed(out: CommandOutput) -> int:
    out.table("Measurements", ("name", "what"), [(m.name, m.of_size("n")) for m in MEASUREMENTS])
    parts = [
        MeasurementPart(
            name=m.name,
            what=m.of_size("n"),
            seconds=None,
            least=None,
            most=None,
            rate=None,
            unit=m.unit,
            rivals=[],
        )
        for m in MEASUREMENTS
    ]
    out.document(
        BenchDocument(
            version=__version__,
            device=None,
            repeats=None,
            threads=None,
            rivals={},
            left_out={},
            measurements=parts,
        )
    )
    return ExitCode.OK


def _chosen(args: argparse.Namespace) -> tuple[list[Measurement], list[str]]:
    known = {m.name: m for m in MEASUREMENTS}
    rivals = [name for name in args.rivals.split(",") if name]
    for kind, names, there in (("measurement", args.names, known), ("rival", rivals, RIVALS)):
        for name in names:
            if name not in there:
                raise Refusal(f"no {kind} {name!r}, but {', '.join(there)}", ExitCode.USAGE)
    chosen = [m for m in MEASUREMENTS if not args.names or m.name in args.names]
    if args.isolation == "thread":
        if "return" in args.names:
            raise Refusal("`return` needs --isolation process: a host to be killed", ExitCode.USAGE)
        chosen = [m for m in chosen if m.name != "return"]
    return chosen, rivals


def _is_small(device: str, args: argparse.Namespace) -> bool:
    return args.quick or not device.startswith("cuda")


async def _session(
    args: argparse.Namespace,
    measurements: list[Measurement],
    taken: dict[str, list[float]],
    done: Callable[[], None],
) -> str:
    """Take all of them on one device. Returns its name."""
    async with _opened(args) as device:
        small = _is_small(device.name, args)
        for measurement in measurements:
            size = measurement.sizes[0] if small else measurement.sizes[1]
            once = await measurement.prepared(device, size)
            for _ in range(_WARM):
                await once()
            times = []
            for _ in range(args.repeats):
                began = time.perf_counter()
                await once()
                times.append(time.perf_counter() - began)
            taken[measurement.name] = times
            done()
        return device.name


@asynccontextmanager
async def _opened(args: argparse.Namespace) -> AsyncIterator[Device]:
    isolation: Isolation = "thread" if args.isolation == "thread" else "process"
    restarts = _WARM + args.repeats
    async with open_device(
        args.device, backend=args.backend, isolation=isolation, max_restarts=restarts
    ) as device:
        yield device


def _threads(args: argparse.Namespace) -> int:
    """Return the number of threads that compute on a CPU, for us and for rivals."""
    threads, variable = openblas_threads()
    # Hosts get no more than that; with them in this process, the library has decided already.
    return threads if variable or args.isolation == "process" else usable_cores()


def _asked(
    rival: str, device: str, args: argparse.Namespace, measurements: list[Measurement]
) -> Answer:
    """Measure a rival in its own process, after our measurements have ended."""
    small = _is_small(device, args)
    tasks = {
        name: Task(name, m.sizes[0] if small else m.sizes[1], args.repeats)
        for m in measurements
        if (name := _RIVALS_CALL_IT.get(m.name, m.name)) != "return"
    }
    on_gpu = args.device if device.startswith("cuda") else None
    question = RivalQuestion(rival, on_gpu, list(tasks.values()))
    try:
        threads = dict.fromkeys(THREADS, str(_threads(args)))
        answer = ask_child("_rivals", msgspec.json.encode(question), _RIVAL_SECONDS, threads)
        return msgspec.json.decode(answer, type=Answer)
    except ChildFailed as failure:
        return Answer(None, str(failure), {})


def _part(
    measurement: Measurement, size: int, times: list[float], answers: dict[str, Answer]
) -> MeasurementPart:
    ordered = sorted(times)
    median = ordered[len(ordered) // 2]
    theirs = _RIVALS_CALL_IT.get(measurement.name, measurement.name)
    return MeasurementPart(
        name=measurement.name,
        what=measurement.of_size(size),
        seconds=median,
        least=ordered[0],
        most=ordered[-1],
        rate=measurement.work(size) / median,
        unit=measurement.unit,
        rivals=[
            RivalPart(
                name=name, seconds=answer.seconds[theirs], ratio=median / answer.seconds[theirs]
            )
            for name, answer in answers.items()
            if theirs in answer.seconds
        ],
    )


# --- for people ----------------------------------------------------------------------------


def _show(document: BenchDocument, out: CommandOutput) -> None:
    names = list(document.rivals)
    rows = []
    for part in document.measurements:
        assert part.seconds is not None
        assert part.least is not None
        assert part.most is not None
        assert part.rate is not None
        ratios = {rival.name: rival.ratio for rival in part.rivals}
        spread = f"{time_of(part.least)} to {time_of(part.most)}"
        cells = [_ratio(ratios.get(name)) for name in names]
        rate = (
            f"{part.rate:,.3g} {part.unit}" if part.rate < 1e3 else f"{part.rate:,.0f} {part.unit}"
        )
        rows.append((part.name, time_of(part.seconds), spread, rate, *cells, part.what))
    columns = ("", "median", "least to most", "rate", *(f"by {name}" for name in names), "what")
    out.table(f"On {document.device}, {document.repeats} times each", columns, rows)
    if names:
        versions = ", ".join(f"{name} {version}" for name, version in document.rivals.items())
        threads = "" if document.threads is None else f", with {document.threads} threads each"
        out.line(f"ratios: our time by that of {versions}; below 1 is faster{threads}")
    for name, problem in document.left_out.items():
        out.line(f"left out: {name}: {problem}", "dim")


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return Toned(f"{ratio:.2f}", "good" if ratio <= 1 else "warning")


def _check_plot(file: str) -> None:
    """Raise ``Refusal`` for a plot that cannot be drawn, before any measurement."""
    if Path(file).suffix not in _PLOTS:
        raise Refusal(f"--plot takes a name that ends with {', '.join(_PLOTS)}", ExitCode.USAGE)
    if find_spec("matplotlib") is None:
        raise Refusal(f"--plot needs matplotlib: {install_command('cli')}")


def _plot(document: BenchDocument, file: str) -> None:
    """Draw bars of the ratios to each rival, or of our times without rivals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.5 * len(document.measurements) + 1.5), layout="constrained")
    axes: Any = figure.subplots()
    places = range(len(document.measurements))
    if document.rivals:
        height = 0.8 / len(document.rivals)
        for at, rival in enumerate(document.rivals):
            found = [
                (place + at * height, by.ratio)
                for place, part in zip(places, document.measurements, strict=True)
                for by in part.rivals
                if by.name == rival
            ]
            axes.barh([y for y, _ in found], [x for _, x in found], height, label=f"by {rival}")
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_xlabel("our time by theirs (below 1: faster)")
        axes.legend()
    else:
        axes.barh(places, [part.seconds or 0.0 for part in document.measurements])
        axes.set_xlabel("seconds")
    axes.set_xscale("log")
    axes.set_yticks(places, [part.name for part in document.measurements])
    axes.invert_yaxis()
    axes.set_title(f"atomr_accel {document.version} on {document.device}")
    try:
        figure.savefig(file)
    except OSError as error:
        raise Refusal(f"{path_text(file)} cannot be written: {error.strerror}") from error
