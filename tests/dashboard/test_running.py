"""Other programs of the same user find a dashboard, and other users do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from atomr_accel.actors import open_actor_system
from atomr_accel.dashboard import RunningDashboard, open_dashboard, running
from atomr_accel.dashboard._running import announced, folder, started_at

from .client import ask


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory of the test's own."""
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    return path


def mine(**changes: object) -> RunningDashboard:
    pid = os.getpid()
    started = started_at(pid)
    assert started is not None
    dashboard = RunningDashboard(pid, started, "s", "python", "http://127.0.0.1:1/", "secret")
    return msgspec.structs.replace(dashboard, **changes)


async def test_running_dashboard_is_found_while_it_is_open() -> None:
    async with open_actor_system("s") as system:
        assert running() == []
        async with open_dashboard(system) as one, open_dashboard(system) as two:
            found = {dashboard.url: dashboard for dashboard in running()}
            assert found.keys() == {one.address, two.address}
            there = found[one.address]
            assert (there.pid, there.system) == (os.getpid(), "s")
            assert (await ask(one, "/state", token=there.token)).status == 200
        assert running() == []


async def test_running_dashboard_works_without_registration() -> None:
    async with open_actor_system("s") as system, open_dashboard(system, announce=False):
        assert running() == []


def test_its_file_is_for_its_user_alone(runtime: Path) -> None:
    os.umask(before := os.umask(0))
    try:
        os.umask(0)
        with announced(mine()) as path:
            assert path.is_relative_to(runtime)
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.parent.stat().st_mode & 0o777 == 0o700
            assert [*path.parent.iterdir()] == [path]
            assert running() == [mine()]
        assert not path.exists()
    finally:
        os.umask(before)


def test_files_of_killed_programs_are_skipped_and_removed() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    for stale in (mine(pid=child.pid), mine(started=mine().started - 1)):
        path = folder() / f"{stale.pid}-9.json"
        path.write_bytes(msgspec.json.encode(stale))
        assert running() == []
        assert not path.exists()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"null", b"\xff", json.dumps({"pid": "x"}).encode()]
)
def test_foreign_files_are_skipped(content: bytes) -> None:
    (folder() / "1-1.json").write_bytes(content)
    with announced(mine()):
        assert running() == [mine()]


def test_links_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(msgspec.json.encode(mine()))
    (folder() / "1-1.json").symlink_to(target)
    assert running() == []
    planted = folder() / f"{os.getpid()}-1.new"
    planted.symlink_to(target)
    before = target.read_bytes()
    with announced(mine(token="other")):
        assert target.read_bytes() == before


def test_a_folder_that_others_can_write_to_is_refused() -> None:
    folder().chmod(0o777)
    with pytest.raises(PermissionError, match="chmod 700"):
        running()


async def test_a_page_is_served_where_there_is_no_place_for_its_file(
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder().chmod(0o777)
    async with open_actor_system("s") as system, open_dashboard(system) as page:
        assert (await ask(page, "/")).status == 200
        assert "not announced" in caplog.text
        assert page.token not in caplog.text


def test_when_a_process_was_started() -> None:
    assert started_at(os.getpid()) == started_at(os.getpid())
    assert started_at(1 << 30) is None
