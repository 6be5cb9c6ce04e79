"""Manifests agree with the server that they run, and with the schema of Kubernetes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ..harness import ROOT

FOLDER = ROOT / "examples" / "container"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.style
def test_probes_ask_for_routes_of_the_server() -> None:
    server = (ROOT / "examples/http_server.py").read_text(encoding="utf-8")
    routes = set(re.findall(r'Route\("(/\w+)"', server))
    probes = re.findall(
        r"(\w+)Probe:.*\n +httpGet:\n +path: (/\w+)", (FOLDER / "deployment.yaml").read_text()
    )
    assert {kind for kind, _ in probes} == {"startup", "liveness", "readiness"}
    assert {path for _, path in probes} <= routes
    assert dict(probes)["liveness"] != dict(probes)["readiness"]


@pytest.mark.style
def test_the_container_and_its_manifest_agree() -> None:
    image = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    manifest = (FOLDER / "deployment.yaml").read_text(encoding="utf-8")
    port, user = re.search(r"0\.0\.0\.0:(\d+)", image), re.search(r"--uid (\d+)", image)
    cache = re.search(r"ATOMR_CACHE_DIR=(\S+)", image)
    assert port
    assert user
    assert cache
    assert f"containerPort: {port[1]}" in manifest
    assert f"runAsUser: {user[1]}" in manifest
    assert f"mountPath: {cache[1]}\n" in manifest


@pytest.mark.slow
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_has_the_schema(path: Path) -> None:
    """The session ``containers`` does so, too; it installs the program."""
    program = shutil.which("kubernetes-validate")
    if program is None:
        pytest.skip("kubernetes-validate is not installed")
    done = subprocess.run([program, "--strict", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
