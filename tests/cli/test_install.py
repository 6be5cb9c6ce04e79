"""Commands that install an extra fit the installation."""

from __future__ import annotations

import json
import shlex
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from atomr_accel._install import cuda_command, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


class Installed:
    """Installed packages, and their sources."""

    def __init__(self, origin: object = None) -> None:
        self.origin = origin
        self.requires = [
            *PROJECT["dependencies"],
            *(f"{need}; extra == '{extra}'" for extra, needs in EXTRAS.items() for need in needs),
        ]

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


def words(monkeypatch: pytest.MonkeyPatch, extra: str, origin: object = None) -> list[str]:
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(origin))
    return shlex.split(install_command(extra))


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_installed_by_its_requirements(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip, install, *needs = words(monkeypatch, extra)
    assert (pip, install) == ("pip", "install")
    assert {*map(Requirement, needs)} == {*map(Requirement, EXTRAS[extra])}


@pytest.mark.parametrize("editable", [True, False])
def test_an_extra_comes_from_the_folder_that_was_installed(
    editable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "with a space"
    folder.mkdir()
    origin = {"url": folder.as_uri(), "dir_info": {"editable": editable}}
    option = ["-e"] if editable else []
    assert words(monkeypatch, "cli", origin) == ["pip", "install", *option, f"{folder}[cli]"]
    folder.rmdir()  # such as one of a build in a container
    assert words(monkeypatch, "dashboard", origin)[2:] == EXTRAS["dashboard"]


def test_an_extra_comes_from_the_commit_that_was_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    vcs = {"vcs": "git", "commit_id": "0a1b"}
    origin = {"url": "https://git.invalid/accel.git", "vcs_info": vcs}
    *_, said = words(monkeypatch, "cli", origin)
    assert said == "atomr-accel[cli] @ git+https://git.invalid/accel.git@0a1b"


def test_an_extra_comes_from_the_checkout_when_nothing_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> object:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert shlex.split(install_command("cli"))[2:] == ["-e", f"{ROOT}[cli]"]


@pytest.mark.parametrize(("version", "extra"), [("12.9.1", "cutlass12"), ("13.0", "cutlass13")])
def test_an_extra_is_for_the_cuda_that_is_installed(
    version: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: version)
    assert cuda_command("cutlass") == install_command(extra)


def test_no_message_advises_the_name_alone() -> None:
    sources = (ROOT / "atomr_accel").rglob("*.py")
    assert not [file for file in sources if "install 'atomr-accel" in file.read_text()]
