"""Certificates for a first cluster, and the command that makes them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from atomr_accel.cli._main import main
from atomr_accel.cluster import Credentials, make_certificates


def test_certificates_fit_their_authority_and_keys_are_private(tmp_path: Path) -> None:
    written = make_certificates(tmp_path, ["node-1"])
    assert len(written) == 4
    make_certificates(tmp_path, ["node-2"])  # by the same authority
    for name in ("node-1", "node-2"):
        Credentials.in_folder(tmp_path, name).contexts()
    for name in ("authority", "node-1", "node-2"):
        assert stat.S_IMODE((tmp_path / f"{name}.key").stat().st_mode) == 0o600


def test_bad_certificates_are_refused(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["node-1"])
    with pytest.raises(FileExistsError, match="is there already"):
        make_certificates(tmp_path, ["node-1"])
    with pytest.raises(ValueError, match="not 'authority'"):
        make_certificates(tmp_path, ["authority"])
    with pytest.raises(TypeError, match="nodes must be a list or another iterable"):
        make_certificates(tmp_path, "node-2")
    with pytest.raises(ValueError, match="days must be at least 1"):
        make_certificates(tmp_path, ["node-2"], days=0)


def test_the_command_makes_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["node", "--json", "--certificates", str(tmp_path), "--make-certificates", "node-1"]
    assert main(words) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == 4
    assert main(words) == 3
    assert "is there already" in json.loads(capsys.readouterr().out)["message"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "a node needs MODULE:NAME"),
        (["x:Y"], 2, "a node needs --name"),
        (["x", "--name", "a", "--store", "DB"], 2, "MODULE:NAME, not x"),
        (["no_such_module:X", "--name", "a", "--store", "DB"], 3, "there is no no_such_module:X"),
        (["json:dumps", "--name", "a", "--store", "DB"], 3, "no ClusterProgram"),
        (
            ["tests.cluster.simulated:PROGRAM", "--name", "a", "--store", "DB"],
            3,
            "the node cannot run",
        ),
    ],
)
def test_the_command_refuses_what_it_cannot_run(
    words: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(tmp_path / "s") if word == "DB" else word for word in words]
    assert main(["node", "--json", "--certificates", str(tmp_path), *words]) == code
    assert said in json.loads(capsys.readouterr().out)["message"]
