"""``atomr-accel top``: the work of running programs, as their dashboards report it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ..dashboard import running
from ..telemetry.nvml_library import NvmlLibrary
from ._documents import HardwarePart, ProgramPart, TopDocument
from ._errors import ExitCode, Refusal, standard_output, writing
from ._output import Cell, Tone, Toned, rich_table, size_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from rich.console import RenderableType

    from ..dashboard import RunningDashboard
    from ..telemetry import GpuReading
    from ._output import CommandOutput

_SECONDS: Final = 5.0
"""Limit of the wait for an answer; a program that takes longer is busy."""
_EVENTS: Final = 5
_ACTORS: Final = 20
_TONES: Final[dict[str, Tone]] = {
    "ready": "good",
    "running": "good",
    "rebuilding": "warning",
    "restarting": "warning",
    "starting": "note",
    "lost": "bad",
    "failed": "bad",
}

State = dict[str, object]
Block = tuple[str, Sequence[str], Sequence[Sequence[Cell]]]
"""A table: its title, columns and rows."""


def run(args: argparse.Namespace, out: CommandOutput) -> int:
    """Look once, or until Ctrl-C or the end of the programs."""
    with ExitStack() as stack:
        read = _hardware(stack)
        first = looked(args.program, read)
        if args.once:
            for block in blocks(first):
                out.table(*block)
            out.document(first)
        elif out.as_json:
            # One object per line, because readers of a stream parse lines.
            _keep_looking(args, read, first, partial(out.document, in_a_line=True))
        else:
            _live(args, read, first, out)
    return ExitCode.OK


# --- looking -------------------------------------------------------------------------------


def looked(pid: int | None, read: Callable[[], list[HardwarePart]]) -> TopDocument:
    """Return the present state of all programs and GPUs."""
    try:
        found = running()
    except OSError as error:
        raise Refusal(f"running programs cannot be looked for: {error}") from error
    there = [each for each in found if pid in {None, each.pid}]
    parts = [part for each in there if (part := _asked(each)) is not None]
    if not parts:
        which = "no program of this user" if pid is None else f"no program {pid} of this user"
        raise Refusal(
            f"{which} has a dashboard open; start one with `atomr-accel dashboard script.py`, or "
            "open it in the program: async with open_dashboard(system)"
        )
    return TopDocument(time=time.time(), programs=parts, hardware=read())


def _asked(dashboard: RunningDashboard) -> ProgramPart | None:
    """Return the answer of a dashboard; None if its program is gone."""
    place = urlsplit(dashboard.url)
    # Straight there: no proxy has business with it.
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_SECONDS)
    try:
        headers = {"Authorization": f"Bearer {dashboard.token}"}
        connection.request("GET", "/state", headers=headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            return None
        state = json.loads(response.read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if not isinstance(state, dict):
        return None
    return ProgramPart(pid=dashboard.pid, url=dashboard.url, state=state)


def _hardware(stack: ExitStack) -> Callable[[], list[HardwarePart]]:
    """Return a function that reads the GPUs; it returns an empty list without NVML."""
    try:
        nvml = NvmlLibrary()
    except Exception:  # noqa: BLE001 (no package, no driver, or one that fails)
        return list
    stack.callback(nvml.close)

    def read() -> list[HardwarePart]:
        try:
            return [_hardware_part(gpu) for gpu in nvml.read()]
        except Exception:  # noqa: BLE001 (NVML's own: a card may be lost meanwhile)
            return []

    return read


def _hardware_part(gpu: GpuReading) -> HardwarePart:
    return HardwarePart(
        index=gpu.index,
        name=gpu.name,
        utilisation=None if gpu.utilization is None else round(100 * gpu.utilization.gpu),
        memory_used=None if gpu.memory is None else gpu.memory.used,
        memory_total=None if gpu.memory is None else gpu.memory.total,
        watts=gpu.power,
        celsius=None if gpu.temperature is None else round(gpu.temperature),
        throttled=list(gpu.throttled or ()),
    )


# --- tables --------------------------------------------------------------------------------


def blocks(document: TopDocument) -> list[Block]:
    """Return the tables: GPUs, then devices, lanes, actors, services and events of each program."""
    made: list[Block] = []
    if document.hardware:
        columns = ("#", "GPU", "busy", "memory", "power", "temperature", "held down by")
        made.append(("Hardware", columns, [_gpu(gpu) for gpu in document.hardware]))
    for program in document.programs:
        made += _program(program)
    return made


def _gpu(gpu: HardwarePart) -> list[Cell]:
    memory = None
    if gpu.memory_used is not None and gpu.memory_total is not None:
        memory = f"{size_of(gpu.memory_used)} of {size_of(gpu.memory_total)}"
    return [
        gpu.index,
        gpu.name,
        None if gpu.utilisation is None else f"{gpu.utilisation} %",
        memory,
        None if gpu.watts is None else f"{gpu.watts:.0f} W",
        None if gpu.celsius is None else f"{gpu.celsius} C",
        ", ".join(gpu.throttled),
    ]


def _program(program: ProgramPart) -> list[Block]:
    state = program.state
    about, system = _of(state, "program"), _of(state, "system")
    title = f"{program.pid} {_text(about.get('command'))}: {_text(system.get('name'))}"
    devices = _of(state, "devices")
    lanes = [
        [_text(_of(devices, path).get("name")), lane, *_lane(_of(_of(device, "lanes"), lane))]
        for path, device in ((path, _of(devices, path)) for path in devices)
        for lane in _of(device, "lanes")
    ]
    actors = _of(state, "actors")
    shown = [[path, *_actor(_of(actors, path))] for path in list(actors)[:_ACTORS]]
    if len(actors) > _ACTORS:
        shown.append([f"... {len(actors) - _ACTORS} more", None, None, None, None])
    last = list(_of(state, "events").values())[-_EVENTS:]
    events = [_event(event) for event in last if isinstance(event, dict)]
    curves = _of(state, "curves")
    services = _of(state, "patterns")
    columns = ("device", "state", "gen.", "faults", "in flight", "ops/s", "median", "memory")
    return [
        (title, columns, [_device(_of(devices, path), _of(curves, path)) for path in devices]),
        ("Lanes", ("device", "lane", "in flight", "queued", "completed", "failed"), lanes),
        ("Actors", ("path", "kind", "state", "restarts", "queued"), shown),
        (
            "Services",
            ("name", "kind", "state", "restarts", "queued", "statistics"),
            [
                [name, *_actor({**_of(actors, name), **_of(services, name)}), _said(services, name)]
                for name in list(services)[:_ACTORS]
            ],
        ),
        ("Events", ("at", "kind", "path", "what"), events),
    ]


def _device(device: State, curve: State) -> list[Cell]:
    memory = _of(device, "memory")
    point = list(curve.values())[-1] if curve else None
    ops = median = None
    if isinstance(point, list) and len(point) > 3:
        ops, median = point[1], point[3]
    return [
        _text(device.get("name")),
        _state(device.get("state")),
        _number(device.get("generation")),
        _number(device.get("faults")),
        _number(device.get("in_flight")),
        _number(ops),
        None if median is None else f"{_number(median):.3g} ms",
        size_of(_number(memory.get("used"))),
    ]


def _lane(lane: State) -> list[Cell]:
    return [_number(lane.get(name)) for name in ("in_flight", "queued", "completed", "failed")]


def _actor(actor: State) -> list[Cell]:
    return [
        _text(actor.get("kind")),
        _state(actor.get("state")),
        _number(actor.get("restarts")),
        _number(actor.get("depth")),
    ]


def _said(services: State, name: str) -> str:
    """Return the statistics of a service in one line, without those of its parts."""
    said = _of(services, name).items()
    plain = ((key, value) for key, value in said if key != "kind" and not isinstance(value, dict))
    return "  ".join(f"{key.replace('_', ' ')} {value}" for key, value in plain)


def _event(event: State) -> list[Cell]:
    at = time.strftime("%H:%M:%S", time.localtime(_number(event.get("at"))))
    return [at, _text(event.get("kind")), _text(event.get("path")), _text(event.get("text"))]


def _state(value: object) -> Cell:
    text = _text(value)
    return Toned(text, _TONES[text]) if text in _TONES else text


def _of(state: Mapping[str, object], name: str) -> State:
    """Return a part of a state that has names; empty if this release does not have it."""
    part = state.get(name)
    return part if isinstance(part, dict) else {}


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _number(value: object) -> int | float:
    return value if isinstance(value, (int, float)) else 0


# --- live ----------------------------------------------------------------------------------


def _keep_looking(
    args: argparse.Namespace,
    read: Callable[[], list[HardwarePart]],
    first: TopDocument,
    show: Callable[[TopDocument], None],
) -> None:
    """Look at every interval, until there is nothing left to look at."""
    now = first
    while True:
        show(now)
        time.sleep(args.interval)
        try:
            now = looked(args.program, read)
        except Refusal:  # they have ended, as programs do
            return


def _live(
    args: argparse.Namespace,
    read: Callable[[], list[HardwarePart]],
    first: TopDocument,
    out: CommandOutput,
) -> None:
    """On a terminal with rich, one screen that changes; otherwise one look after the other."""
    console = out.console()
    if console is None:

        def show(document: TopDocument) -> None:
            for block in blocks(document):
                out.table(*block)
            with writing():
                standard_output().flush()

        _keep_looking(args, read, first, show)
        return
    from rich.console import Group
    from rich.live import Live

    def drawn(document: TopDocument) -> RenderableType:
        return Group(*(rich_table(*block) for block in blocks(document) if block[2]))

    with Live(console=console, screen=True, auto_refresh=False) as live:
        _keep_looking(args, read, first, lambda now: live.update(drawn(now), refresh=True))
