"""Progress of a run: bar, events, plot."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import trio

from atomr_accel import train
from atomr_accel.train._progress import loss_plot

STEPS = [train.TrainStep(n, 4.0 / (n + 1), 1.0, 0) for n in range(30)]


def events_of(folder: Path) -> list[tuple[str, int, float]]:
    """Return the scalars in a folder of events."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in folder.iterdir():
        stream = io.BytesIO(path.read_bytes())
        while header := stream.read(12):
            (length,) = struct.unpack("<Q", header[:8])
            event: Any = Event.FromString(stream.read(length))
            stream.read(4)
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return found


def points_of(plot: str) -> list[tuple[float, float]]:
    """Return the points of a plot's curve."""
    tree = ET.fromstring(plot)
    (line,) = tree.iter("{http://www.w3.org/2000/svg}polyline")
    pairs = [pair.split(",") for pair in line.attrib["points"].split()]
    return [(float(x), float(y)) for x, y in pairs]


def test_events_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All steps are in both, also if an error leaves the block."""

    async def program() -> None:
        with trio.fail_after(30):
            async with train.open_progress(
                total=30, tensorboard=tmp_path / "events", plot=tmp_path / "loss.svg"
            ) as progress:
                for made in STEPS:
                    progress.note(made, accuracy=0.5)
                    await trio.lowlevel.checkpoint()
                raise KeyError("stopped on purpose")

    with pytest.raises(KeyError, match="stopped on purpose"):
        trio.run(program)
    found = events_of(tmp_path / "events")
    losses = {step: value for tag, step, value in found if tag == "loss"}
    assert losses == pytest.approx({made.number: made.loss for made in STEPS})
    assert sum(tag == "accuracy" for tag, _, _ in found) == 30
    assert len(points_of((tmp_path / "loss.svg").read_text(encoding="utf-8"))) == 30
    assert "30/30" in capsys.readouterr().err


def test_plot() -> None:
    """Curves are within the picture, long ones are thinned, and NaN is left out."""
    for losses in ([], [(0, 1.0)], [(n, float(n % 7)) for n in range(5000)], [(3, 2.0), (4, 2.0)]):
        points = points_of(loss_plot([*losses, (9, float("nan"))]))
        assert len(points) == min(len(losses), 1000)
        assert all(0 <= x <= 640 and 0 <= y <= 360 for x, y in points)
    falling = points_of(loss_plot([(0, 3.0), (1, 1.0)]))
    assert falling[0][0] < falling[1][0]
    assert falling[0][1] < falling[1][1]  # down is more


def test_refused(tmp_path: Path) -> None:
    """Other files than SVG are refused, and a folder that cannot be made is an error."""

    async def program(**options: Any) -> None:
        with trio.fail_after(30):
            async with train.open_progress(bar=False, **options):
                await trio.sleep_forever()

    with pytest.raises(ValueError, match=r"ends in \.svg"):
        trio.run(lambda: program(plot="loss.gif"))
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(NotADirectoryError):
        trio.run(lambda: program(tensorboard=tmp_path / "file" / "events"))
