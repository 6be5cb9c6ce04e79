"""Every graph of the conformance tests, offered to cuDNN for an H200 that is not there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atomr_accel import open_device
from atomr_accel.libraries.dnn import _run

from .conformance import Sample
from .dnn_rows import OPERATIONS

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.headers, pytest.mark.slow]


def offer(graphs: list[bytes], folder: Path) -> list[str]:
    """What cuDNN says to each graph."""
    for package in ("cudnn", "cuda.pathfinder"):
        pytest.importorskip(package)
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/libraries/dnn_offer.py"), str(folder)],
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
    prepare = _run._prepare
    case_of = [""]

    def spy(device: Any, plans: Any, bound: Any, *args: Any, **more: Any) -> Any:
        graphs.setdefault(bound.program.encoded, case_of[0])
        return prepare(device, plans, bound, *args, **more)

    monkeypatch.setattr(_run, "_prepare", spy)
    async with open_device(0, backend="cpu", isolation="thread") as device:
        for row in rows:
            for number, dtype in enumerate(row.dtypes):
                # A quarter of the cases, another one for each dtype: planning takes a while.
                for case in row.cases[number % len(row.cases) :: 4]:
                    case_of[0] = f"{row.name} {dtype} {case}"
                    arrays = row.inputs(Sample(1, dtype), **case)
                    await row.call(device, *[await device.put(each) for each in arrays], **case)
    return graphs


async def test_cudnn_takes_every_graph_of_the_conformance_tests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken = [
        replace(row, dtypes=tuple(each for each in row.dtypes if each not in row.may_refuse))
        for row in OPERATIONS
    ]
    graphs = await graphs_of(monkeypatch, taken)
    verdicts = offer(list(graphs), tmp_path)
    assert len(verdicts) == len(graphs)
    refused = [
        f"{case}: {verdict[:300]}"
        for case, verdict in zip(graphs.values(), verdicts, strict=True)
        if not verdict.startswith("takes ")
    ]
    assert not refused, "\n".join(refused[:20])
    # Where cuDNN has a kernel it is used: our own are for what it refuses.
    for case, verdict in zip(graphs.values(), verdicts, strict=True):
        name, dtype, *_ = case.split()
        if dtype != "float64" and name in ("dnn.conv", "dnn.layer_norm", "dnn.relu", "dnn.gelu"):
            assert "own" not in verdict, f"{case}: {verdict}"
            assert "|" not in verdict, f"{case}: {verdict}"
