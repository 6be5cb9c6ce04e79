"""Results kept in files: found again whole or not at all, in a folder that the user owns."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomr_accel import Device
from atomr_accel.executors import compiler as _compiler
from atomr_accel.executors.disk_cache import DiskCache

from ..harness import on_shared

ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path))
    return tmp_path / "things"


@ONE_FOLDER
@given(things=st.dictionaries(st.binary(max_size=20), st.binary(max_size=200), max_size=8))
def test_stored_entry_is_found_by_all_processes(folder: Path, things: dict[bytes, bytes]) -> None:
    cache = DiskCache("things")
    for key, data in things.items():
        cache.put(key, data)
    assert {key: DiskCache("things").get(key) for key in things} == things
    assert cache.statistics().written == len(things)
    assert all(not file.name.startswith(".") for file in folder.glob("*"))


@ONE_FOLDER
@given(data=st.data(), content=st.binary(min_size=1, max_size=100))
def test_a_file_that_was_changed_is_not_used(
    folder: Path, data: st.DataObject, content: bytes
) -> None:
    cache = DiskCache("things")
    cache.put(b"key", content)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.booleans())
    file.write_bytes(whole[:at] if cut else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert cache.get(b"key") is None
    assert (cache.statistics().damaged, cache.statistics().misses) == (1, 1)
    cache.put(b"key", content)
    assert cache.get(b"key") == content


def test_a_file_is_good_for_its_own_key_only(folder: Path) -> None:
    cache = DiskCache("things")
    cache.put(b"one", b"data of one")
    (one,) = folder.iterdir()
    cache.put(b"other", b"data of other")
    (other,) = set(folder.iterdir()) - {one}
    one.replace(other)
    assert cache.get(b"other") is None


def test_readers_never_see_half_a_file(folder: Path) -> None:
    cache = DiskCache("things")
    versions = [bytes([i]) * 100_000 for i in range(4)]
    cache.put(b"key", versions[0])
    over = threading.Event()

    def write() -> None:
        for i in range(40):
            cache.put(b"key", versions[i % 4])
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not over.is_set():
        assert cache.get(b"key") in versions
    writer.join()
    assert cache.statistics().damaged == 0


def test_least_recently_used_entry_goes_first(folder: Path) -> None:
    cache = DiskCache("things", limit=10_000)
    for i in range(10):
        cache.put(b"%d" % i, bytes(800))
        for file in folder.iterdir():  # as if it were long ago
            about = file.stat()
            os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns - 10**9))
    assert cache.get(b"0") is not None  # used now
    for i in range(10, 14):
        cache.put(b"%d" % i, bytes(800))
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 10_000
    there = [i for i in range(14) if cache.get(b"%d" % i) is not None]
    assert {0, 13} <= {*there}
    assert 1 not in there


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_may_write_to_is_not_used(folder: Path, mode: int) -> None:
    cache = DiskCache("things")
    cache.put(b"key", b"data")
    folder.chmod(mode)
    assert cache.get(b"key") is None
    cache.put(b"other", b"data")
    assert len([*folder.iterdir()]) == 1


def test_a_folder_of_somebody_else_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache("things")
    cache.put(b"key", b"data")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert cache.get(b"key") is None


@pytest.mark.parametrize("where", ["", "file/below"])
def test_unwritable_folder_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ATOMR_CACHE_DIR", where and str(tmp_path / where))
    cache = DiskCache("things")
    cache.put(b"key", b"data")
    assert cache.get(b"key") is None
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


def test_by_default_it_is_where_caches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATOMR_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    DiskCache("things").put(b"key", b"data")
    assert len([*(tmp_path / "atomr-accel" / "things").iterdir()]) == 1
    assert (tmp_path / "atomr-accel" / "things").stat().st_mode & 0o777 == 0o700


def test_without_a_home_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom the system does not know, as in containers: no folder named ``~`` is made."""
    for variable in ("ATOMR_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    cache = DiskCache("things")
    cache.put(b"key", b"data")
    assert cache.get(b"key") is None
    assert [*tmp_path.iterdir()] == []


# --- kernels -------------------------------------------------------------------------------

SOURCE = "__global__ void {name}(float* x) {{ x[0] = {value}; }}"


@pytest.mark.headers
def test_a_kernel_is_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCE.format(name="one", value=1)
    first = _compiler.find_cubin(source, "one", (), (9, 0))
    assert not first.kept
    with monkeypatch.context() as patch:
        patch.setattr(_compiler, "compile_cubin", None)
        again = _compiler.find_cubin(source, "one", (), (9, 0))
    assert again == first._replace(kept=True)
    for other in (
        (source + " ", "one", (), (9, 0)),
        (source, "one", ("--use_fast_math",), (9, 0)),
        (source, "one", (), (8, 0)),
    ):
        assert not _compiler.find_cubin(*other).kept


@pytest.mark.headers
@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('#include "more.h"\n', ("--include-path={folder}",)),
        ("", ("--pre-include={folder}/more.h",)),
    ],
)
def test_source_that_includes_files_is_compiled_each_time(
    folder: Path, text: str, options: tuple[str, ...]
) -> None:
    """The included files may have changed."""
    folder.mkdir()
    source = text + SOURCE.format(name="one", value="VALUE")
    options = tuple(option.format(folder=folder) for option in options)
    images = []
    for value in (1, 2):
        (folder / "more.h").write_text(f"#define VALUE {value}\n")
        images.append(_compiler.find_cubin(source, "one", options, (9, 0)).image)
    assert images[0] != images[1]


@pytest.mark.headers
@on_shared
async def test_statistics_tell_what_was_found(device: Device) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    before = device.nvrtc.statistics()
    source = SOURCE.format(name="counted", value=device.generation)
    for _ in range(3):
        await device.nvrtc.compile(source, "counted", cpu=print)
    after = device.nvrtc.statistics()
    assert after.kernels - before.kernels == 3
    assert after.found - before.found >= 2
