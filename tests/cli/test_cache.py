"""``cache``: lists, verifies and clears the cache on disk, and touches nothing else."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from atomr_accel.cli import _cache
from atomr_accel.executors.disk_cache import DiskCache

from ..harness import ROOT
from .commands import Commands


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three kernels and a plan."""
    folder = tmp_path / "kept"
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(folder))
    for name in ("cuda", "cupy", "triton"):
        monkeypatch.setenv({k: v for k, _, v, _ in _cache._FOREIGN}[name], str(tmp_path / name))
    cubins = DiskCache("cubins")
    for key in (b"a", b"b", b"c"):
        cubins.put(key, key * 100)
    DiskCache("dnn-plans").put(b"plan", b"a plan")
    return folder


def damage(folder: Path) -> Path:
    """Change a byte of a kernel."""
    file = min((folder / "cubins").iterdir())
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    return file


def kinds(document: Any) -> dict[str, Any]:
    return {part.kind: part for part in document.kinds}


def test_the_kinds_are_those_that_hosts_keep() -> None:
    text = "".join(path.read_text() for path in (ROOT / "atomr_accel").rglob("*.py"))
    ours = {part.partition('"')[0] for part in text.split('DiskCache("')[1:]}
    assert set(_cache.KINDS) == ours | {_cache._BY_THE_VENDOR}


def test_cache_lists_and_clears_files_of_libraries(kept: Path, command: Commands) -> None:
    header = kept / "pch" / "0123" / "a.pch"
    header.parent.mkdir(parents=True)
    (kept / "pch").chmod(0o700)
    header.write_bytes(b"headers")
    there = kinds(command.document("cache"))["pch"]
    assert (there.files, there.nbytes, there.use) == (1, 7, _cache.KINDS["pch"])
    assert kinds(command.document("cache", "verify"))["pch"].damaged == 0
    assert kinds(command.document("cache", "clear", "pch"))["pch"].removed == 1
    assert not header.parent.exists()


def test_a_list(kept: Path, command: Commands) -> None:
    document = command.document("cache")
    assert document.folder == str(kept)
    there = kinds(document)
    assert there["cubins"].files == 3
    assert there["cubins"].nbytes == sum(f.stat().st_size for f in (kept / "cubins").iterdir())
    assert there["dnn-plans"].files == 1
    assert there["cub"].files == 0
    assert "CUB's algorithms" in command("cache").out


def test_cache_finds_and_clears_damaged_files(kept: Path, command: Commands) -> None:
    assert command("cache", "verify").code == 0
    bad = damage(kept)
    document = command.document("cache", "verify", code=1)
    assert kinds(document)["cubins"].damaged == 1
    assert "clear --damaged" in command("cache", "verify").out
    again = command.document("cache", "clear", "--damaged")
    assert kinds(again)["cubins"].removed == 1
    assert not bad.exists()
    assert command("cache", "verify").code == 0
    assert DiskCache("dnn-plans").get(b"plan") == b"a plan"


def test_a_file_of_whatever_size_takes_little_memory(kept: Path, command: Commands) -> None:
    large = kept / "cubins" / ("2" * 64)
    for head in (b"", damage(kept).read_bytes()[:32]):
        large.write_bytes(head)
        os.truncate(large, 32 << 20)
        tracemalloc.start()
        document = command.document("cache", "verify", "cubins", code=1)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kinds(document)["cubins"].damaged >= 1
        assert most < 8 << 20


def test_clear_takes_one_kind_or_all(kept: Path, command: Commands) -> None:
    command.document("cache", "clear", "--dry-run")
    assert len([*kept.rglob("*")]) == 6
    document = command.document("cache", "clear", "cubins")
    assert kinds(document)["cubins"].removed == 3
    assert DiskCache("dnn-plans").get(b"plan") == b"a plan"
    command.document("cache", "clear")
    assert DiskCache("dnn-plans").get(b"plan") is None


def test_clear_touches_only_what_a_cache_has_written(kept: Path, command: Commands) -> None:
    elsewhere = kept.parent / "precious"
    elsewhere.mkdir()
    (elsewhere / ("0" * 64)).write_text("precious")
    (kept / "linked").symlink_to(elsewhere)
    (kept / "cubins" / ("1" * 64)).symlink_to(elsewhere / ("0" * 64))
    (kept / "cubins" / "notes.txt").write_text("precious")
    (kept / "cubins" / "folder").mkdir()
    (kept / "cubins" / ".unfinished").write_text("")
    document = command.document("cache", "clear")
    assert kinds(document)["cubins"].removed == 4
    assert "linked" not in kinds(document)
    assert (elsewhere / ("0" * 64)).read_text() == "precious"
    left = {path.name for path in (kept / "cubins").iterdir()}
    assert left == {"1" * 64, "notes.txt", "folder"}


def test_cache_reports_files_that_it_cannot_remove(
    kept: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refused)
    document = command.document("cache", "clear", "cubins", code=1)
    assert kinds(document)["cubins"].removed == 0
    assert "Permission denied" in kinds(document)["cubins"].problem


def test_a_folder_that_others_may_write_to_is_told(kept: Path, command: Commands) -> None:
    (kept / "cubins").chmod(0o777)
    assert "others may write" in kinds(command.document("cache"))["cubins"].problem


def test_kinds_of_other_releases_and_caches_of_others(kept: Path, command: Commands) -> None:
    DiskCache("of-old").put(b"x", b"y")
    (kept.parent / "cupy").mkdir()
    (kept.parent / "cupy" / "a.cubin").write_bytes(b"12345")
    there = kinds(command.document("cache"))
    assert there["of-old"].use == "of another release"
    assert (there["cupy"].ours, there["cupy"].nbytes) == (False, 5)
    command.document("cache", "clear")
    assert (kept.parent / "cupy" / "a.cubin").exists()


def test_cache_prints_its_folder_when_it_is_empty(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOMR_CACHE_DIR", "")
    document = command.document("cache", "verify")
    assert (document.folder, document.kinds) == (None, [])
    assert "nothing is kept" in command("cache", "verify").out


def test_a_folder_that_is_not_there_yet(
    tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path / "not" / "there"))
    document = command.document("cache", "clear")
    assert {part.files for part in document.kinds} == {0}
    assert not (tmp_path / "not").exists()
