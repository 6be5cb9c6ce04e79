"""Commands that install an extra fit the installation."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from atomr_accel._install import cuda_command, install_command, other_owners
from atomr_accel.cli import _doctor
from atomr_accel.cli._machine import Machine

from .commands import NO_DRIVER

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


class Installed:
    """An installed package, and its source."""

    def __init__(self, origin: object = None) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


def words(monkeypatch: pytest.MonkeyPatch, extra: str, origin: object = None) -> list[str]:
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(origin))
    return shlex.split(install_command(extra))


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_comes_by_the_name_of_the_distribution(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of a wheel, which pip does not ask an index for again."""
    name = PROJECT["name"]
    assert words(monkeypatch, extra) == ["pip", "install", f"{name}[{extra}]"]
    wheel = {"url": "file:///tmp/x.whl", "archive_info": {}}
    assert words(monkeypatch, extra, wheel) == ["pip", "install", f"{name}[{extra}]"]


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
    assert words(monkeypatch, "dashboard", origin)[2:] == ["atomr-accel-trio[dashboard]"]


def test_an_extra_comes_from_the_commit_that_was_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    vcs = {"vcs": "git", "commit_id": "0a1b"}
    origin = {"url": "https://git.invalid/accel.git", "vcs_info": vcs}
    *_, said = words(monkeypatch, "cli", origin)
    assert said == "atomr-accel-trio[cli] @ git+https://git.invalid/accel.git@0a1b"


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


WRONG_NAME = re.compile(r"install[^\n`]*\batomr[-_]accel\b(?!-trio)|\batomr[-_]accel\[")


def test_no_message_or_page_advises_to_install_the_import_name() -> None:
    """On the index that name is another project's."""
    places = {"atomr_accel": "*.py", "docs": "*.md", "examples": "*.py", "ai-skills": "*.md"}
    files = [path for folder, kind in places.items() for path in (ROOT / folder).rglob(kind)]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    assert WRONG_NAME.search("pip install 'atomr-accel[cli]'")
    assert not WRONG_NAME.search("pip install 'atomr-accel-trio[cli]'")
    allowed = {ROOT / "docs/reference/installing.md"}  # it says how to uninstall that project
    found = {path for path in files if WRONG_NAME.search(path.read_text(encoding="utf-8"))}
    assert found <= allowed


# --- who else has our folder ---------------------------------------------------------------


def with_distribution(folder: Path, name: str, *files: str) -> metadata.Distribution:
    """An installed distribution with some files, as its RECORD has them."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    return metadata.Distribution.at(info)


def test_others_with_files_in_our_folder_are_found(tmp_path: Path) -> None:
    ours = with_distribution(tmp_path, PROJECT["name"], "atomr_accel/__init__.py")
    editable = with_distribution(tmp_path / "old", "atomr-accel", "_atomr_accel.pth")
    rival = with_distribution(tmp_path, "atomr-accel", "atomr_accel/device.py")
    fork = with_distribution(tmp_path, "my-fork", "atomr_accel/__init__.py")
    beside = with_distribution(tmp_path, "beside", "atomr_accel_tools/__init__.py")
    assert other_owners([ours, editable, beside]) == []
    assert other_owners([ours, rival, fork, beside]) == ["atomr-accel", "my-fork"]


IMPORT = "import sys; sys.path.insert(0, {folder!r}); import atomr_accel{part}; print('there')"


def imported(folder: Path, part: str) -> subprocess.CompletedProcess[str]:
    """Import a part of the package in a process, where something else is installed, too."""
    words = [sys.executable, "-c", IMPORT.format(folder=str(folder), part=part)]
    return subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)


@pytest.mark.slow
def test_the_program_warns_once_of_another_owner_and_a_host_never_looks(tmp_path: Path) -> None:
    with_distribution(tmp_path, "atomr-accel", "atomr_accel/device.py")
    program = imported(tmp_path, ".device, atomr_accel.worlds")
    assert program.stderr.count("UserWarning") == 1
    assert "pip uninstall -y atomr-accel atomr-accel-trio &&" in program.stderr
    assert imported(tmp_path, ".host").stderr == ""
    assert imported(tmp_path / "nothing", ".device").stderr == ""


def test_doctor_says_what_to_uninstall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rival = with_distribution(tmp_path, "atomr-accel", "atomr_accel/device.py")
    monkeypatch.setattr(metadata, "distributions", lambda: [rival])
    found = _doctor._owners(Machine(NO_DRIVER))
    assert (found.level, found.found) == ("problem", "shared with atomr-accel")
    assert found.advice.startswith("pip uninstall -y atomr-accel atomr-accel-trio")
    monkeypatch.setattr(metadata, "distributions", list)
    assert _doctor._owners(Machine(NO_DRIVER)).level == "ok"


@pytest.mark.slow
def test_importing_elsewhere_says_what_is_supported() -> None:
    program = "import sys; sys.platform = 'win32'; import atomr_accel"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (
        "ImportError: the system must be Linux with Python 3.11 or newer, not win32" in done.stderr
    )
