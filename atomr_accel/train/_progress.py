"""Progress of a run: a bar in the terminal, events for TensorBoard, and a plot of the loss."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, final

import trio

from ..actors.nursery import PlainNursery
from ._trainer import TrainStep
from ._trees import rich_console, rich_progress, tensorboardX

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _EDGE = 640, 360, 64, 40, 16
_POINTS: Final = 1000
"""Largest number of points of a curve."""


@final
class RunProgress:
    """Progress of a run; see `open_progress`.

    Attributes:
        losses: the number and the loss of each step, in order.
    """

    def __init__(self, bar: Any) -> None:
        self.losses: Final[list[tuple[int, float]]] = []
        self._bar = bar
        self._task = None if bar is None else bar.task_ids[0]
        self._pending: list[tuple[TrainStep, dict[str, float]]] = []
        self._more = trio.Event()

    def note(self, made: TrainStep, **values: float) -> None:
        """Show a step.

        Args:
            made: the step.
            **values: further numbers for TensorBoard, such as ``accuracy``.
        """
        self.losses.append((made.number, made.loss))
        self._pending.append((made, values))
        self._more.set()
        if self._bar is not None:
            said = f"loss {made.loss:.4g}"
            self._bar.update(self._task, completed=made.number + 1, description=said)

    async def write(self, path: str) -> None:
        """Write events as steps come, in a worker thread; and the last ones when cancelled."""
        writer: Any = await trio.to_thread.run_sync(tensorboardX.SummaryWriter, path)
        try:
            while True:
                await self._more.wait()
                self._more = trio.Event()
                await self._flush(writer)
        finally:
            with trio.CancelScope(shield=True):
                await self._flush(writer)
                await trio.to_thread.run_sync(writer.close)

    async def _flush(self, writer: Any) -> None:
        pending, self._pending = self._pending, []

        def add() -> None:
            for made, values in pending:
                scalars = {"loss": made.loss, "gradient norm": made.norm, **values}
                for name, value in scalars.items():
                    writer.add_scalar(name, value, made.number)

        if pending:
            await trio.to_thread.run_sync(add)


@asynccontextmanager
async def open_progress(
    *,
    total: int | None = None,
    bar: bool = True,
    tensorboard: str | os.PathLike[str] | None = None,
    plot: str | os.PathLike[str] | None = None,
) -> AsyncIterator[RunProgress]:
    """Show the progress of a run.

    ::

        async with train.open_progress(total=len(data), plot="loss.svg") as progress:
            async for made in trainer.run(data):
                progress.note(made)

    Metrics of a trainer need none of this: they have the numbers of its ``statistics()`` if it has
    a place in a system.

    Args:
        total: number of steps, if it is known.
        bar: whether a bar is drawn on standard error.
        tensorboard: a folder for TensorBoard's events, by default none.
        plot: an SVG file for a plot of the loss, written when the block is left; by default none.

    Raises:
        ValueError: ``plot`` does not end in ``.svg``.
        LibraryMissing: rich or tensorboardX is not installed.
        OSError: a file cannot be written.
    """
    where = None if plot is None else Path(plot)
    if where is not None and where.suffix != ".svg":
        raise ValueError(f"plot must be a file that ends in .svg, not {where}")
    drawn = _bar(total) if bar else None
    progress = RunProgress(drawn)
    try:
        async with PlainNursery() as nursery:
            if tensorboard is not None:
                nursery.start_soon(progress.write, os.fspath(tensorboard))
            yield progress
            nursery.cancel_scope.cancel()
    finally:
        if drawn is not None:
            drawn.stop()
        if where is not None:
            content = loss_plot(progress.losses)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(where.write_text, content, "utf-8")


def _bar(total: int | None) -> Any:
    stderr = rich_console.Console(stderr=True)
    columns = (
        *(rich_progress.BarColumn(), rich_progress.MofNCompleteColumn()),
        *(rich_progress.TimeRemainingColumn(), rich_progress.TextColumn("{task.description}")),
    )
    made = rich_progress.Progress(*columns, console=stderr)
    made.add_task("", total=total)
    made.start()
    return made


def loss_plot(losses: Sequence[tuple[int, float]]) -> str:
    """Return a plot of losses as SVG. Those that are not finite are left out.

    Args:
        losses: numbers of steps, and their losses.
    """
    shown = [each for each in losses if math.isfinite(each[1])]
    if len(shown) > _POINTS:
        shown = [shown[at * (len(shown) - 1) // (_POINTS - 1)] for at in range(_POINTS)]
    steps = [each[0] for each in shown] or [0]
    values = [each[1] for each in shown] or [0.0]
    first, last = min(steps), max(*steps, min(steps) + 1)
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5

    def x_of(step: float) -> float:
        return _LEFT + (step - first) / (last - first) * (_WIDTH - _LEFT - _EDGE)

    def y_of(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _BOTTOM - _EDGE)

    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    under, middle = _HEIGHT - _BOTTOM + 18, (_LEFT + _WIDTH - _EDGE) / 2
    for part in range(5):
        value, step = low + (high - low) * part / 4, first + (last - first) * part / 4
        y, x = y_of(value), x_of(step)
        lines += [
            f'<line x1="{_LEFT}" x2="{_WIDTH - _EDGE}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>',
            f'<text x="{x:.1f}" y="{under}" text-anchor="middle">{step:.0f}</text>',
        ]
    points = " ".join(f"{x_of(step):.1f},{y_of(value):.1f}" for step, value in shown)
    lines += [
        f'<polyline points="{points}" fill="none" stroke="#1f6fb4" stroke-width="1.5"/>',
        f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">step</text>',
        (
            f'<text x="12" y="{_HEIGHT / 2}" text-anchor="middle" '
            f'transform="rotate(-90 12 {_HEIGHT / 2})">loss</text>'
        ),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
