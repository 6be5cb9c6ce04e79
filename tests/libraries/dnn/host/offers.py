"""Offering graphs to cuDNN, in a process of its own; see ``offer``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atomr_accel import open_device
from atomr_accel.libraries.dnn.graph._run import DnnPart

from ....harness import ROOT
from ...conformance import Sample

OFFER = Path(__file__).with_name("offer.py")


def offer(graphs: list[bytes], folder: Path, *options: str) -> list[str]:
    """Return cuDNN's verdict on each graph."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(OFFER), str(folder), *options],
        input=msgspec.msgpack.encode(graphs),
        capture_output=True,
        env=environment,
        check=False,
    )
    assert not done.returncode, done.stderr.decode()
    verdicts: list[str] = json.loads(done.stdout)
    return verdicts


async def graphs_of(monkeypatch: pytest.MonkeyPatch, rows: Any) -> dict[bytes, str]:
    """The graphs that rows make, each with the first case that made it."""
    graphs: dict[bytes, str] = {}
    run = DnnPart._run
    case_of = [""]

    def spy(part: Any, driver: Any, call: Any, *args: Any, **more: Any) -> Any:
        graphs.setdefault(call.graph.encoded, case_of[0])
        return run(part, driver, call, *args, **more)

    monkeypatch.setattr(DnnPart, "_run", spy)
    async with open_device(0, backend="cpu", isolation="thread") as device:
        for row in rows:
            for number, dtype in enumerate(row.dtypes):
                # A quarter of the cases, another one for each dtype: planning takes a while.
                for case in row.cases[number % len(row.cases) :: 4]:
                    case_of[0] = f"{row.name} {dtype} {case}"
                    arrays = row.inputs(Sample(1, dtype), **case)
                    await row.call(device, *[await device.put(each) for each in arrays], **case)
    return graphs
