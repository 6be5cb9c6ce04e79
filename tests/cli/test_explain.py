"""``atomr-accel explain``: reports in files, and journals."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from atomr_accel import FaultReport, ReportedOp
from atomr_accel.telemetry import JsonFormatter

from .commands import Commands


def report(name: str) -> FaultReport:
    return FaultReport(
        device="cuda:0",
        generation=3,
        at=1.0,
        status=700,
        status_name="CUDA_ERROR_ILLEGAL_ADDRESS",
        message="it is gone",
        op=ReportedOp(7, name, "kernels", call="LaunchKernel"),
    )


def test_a_report_is_printed(command: Commands, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(report("kernel add").to_json())
    done = command("explain", file)
    assert (done.code, done.err) == (1, "")
    assert "suspected: kernel add (op 7 of lane kernels, LaunchKernel)" in done.out
    document = command.document("explain", file, code=1)
    assert (document.reports, document.journal) == ([report("kernel add")], None)


def test_all_reports_of_a_log_are_printed(command: Commands, tmp_path: Path) -> None:
    """Between other records, also some that only look like one."""
    file = tmp_path / "server.log"
    formatter = JsonFormatter()
    lines = ['{"event": "begins"}', "no JSON, status_name", '{"status_name": 1}', "[]"]
    for name in ("kernel one", "run two"):
        record = logging.makeLogRecord({"msg": "failed", "report": report(name).to_json()})
        lines.append(formatter.format(record))
    file.write_text("\n".join(lines))
    document = command.document("explain", file, code=1)
    assert [each.op.name for each in document.reports] == ["kernel one", "run two"]


@pytest.mark.parametrize("content", [b"", b"{}", b"nothing", json.dumps({"a": 1}).encode()])
def test_other_files_are_refused(command: Commands, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "other"
    file.write_bytes(content)
    assert command.document("explain", file, code=3).message.startswith(str(file))
    assert command.document("explain", tmp_path / "none", code=3).message.endswith("directory")
