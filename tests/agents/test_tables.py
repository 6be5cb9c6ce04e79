"""SQLite files of agents: any changed bit is found, or changes nothing that is read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.agents import AgentError, FilesDamaged, FilesForeign, FilesInUse
from atomr_accel.agents._checkpoints import CheckpointTable, SavedStep
from atomr_accel.agents._passages import PassageTable
from atomr_accel.agents._payloads import PayloadTable, as_filter
from atomr_accel.agents._tables import CheckedTables
from atomr_accel.patterns import Closed

STEPS = [SavedStep(number, b"state %d" % number, ["next"]) for number in range(6)]
TEXTS = [(10 * number, f"sentence {number} of several") for number in range(6)]


def filled_payloads(path: Path) -> PayloadTable:
    table = PayloadTable(path)
    table.write([(number, f'{{"name":"value {number}","n":{number}}}') for number in range(6)])
    return table


def read_payloads(path: Path) -> Any:
    table = PayloadTable(path, old=True)
    try:
        table.verify()
        return table.read(range(6)), table.matching(as_filter({"n": [1, 2]})).tolist()
    finally:
        table.close()


def filled_passages(path: Path) -> PassageTable:
    table = PassageTable(path)
    table.add("a", TEXTS)
    table.mark("a", whole=True)
    return table


def read_passages(path: Path) -> Any:
    table = PassageTable(path)
    try:
        return [(each.start, each.text) for each in table.read(range(1, 7)).values()]
    finally:
        table.close()


def filled_checkpoints(path: Path) -> CheckpointTable:
    table = CheckpointTable(path)
    run = table.begin("t", STEPS[0])
    for each in STEPS[1:]:
        table.save("t", each, run)
    return table


def read_checkpoints(path: Path) -> Any:
    table = CheckpointTable(path)
    try:
        return table.history("t")
    finally:
        table.close()


KINDS: dict[str, tuple[Callable[[Path], CheckedTables], Callable[[Path], Any]]] = {
    "payloads": (filled_payloads, read_payloads),
    "passages": (filled_passages, read_passages),
    "checkpoints": (filled_checkpoints, read_checkpoints),
}


def content_of(kind: str, path: Path) -> tuple[bytes, Any]:
    fill, read = KINDS[kind]
    fill(path).close()
    return path.read_bytes(), read(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_bit_is_an_error_of_files_or_changes_nothing(kind: str, tmp_path: Path) -> None:
    data, expected = content_of(kind, tmp_path / "whole")
    places = [at for at, byte in enumerate(data) if byte]

    @settings(max_examples=10)
    @given(place=st.sampled_from(places), bit=st.integers(0, 7))
    def check(place: int, bit: int) -> None:
        changed = bytearray(data)
        changed[place] ^= 1 << bit
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            path = Path(folder, "changed")
            path.write_bytes(changed)
            try:
                found = KINDS[kind][1](path)
            except AgentError:
                return
        # A row with another key is one that is not there, such as of another thread.
        assert found == expected or (kind != "payloads" and found == expected[: len(found)])

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_row_does_not_fit_its_checksum(kind: str, tmp_path: Path) -> None:
    data, _ = content_of(kind, tmp_path / "whole")
    for old in (b"value 3", b"sentence 3", b"state 3"):
        changed = data.replace(old, old.replace(b"3", b"4"))
        if changed != data:
            (tmp_path / "changed").write_bytes(changed)
            with pytest.raises(FilesDamaged, match="checksum"):
                KINDS[kind][1](tmp_path / "changed")
            return
    raise AssertionError("no row was changed")


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_table_is_not_damaged(kind: str, tmp_path: Path) -> None:
    table: Any = KINDS[kind][0](tmp_path / "file")
    table.close()
    uses = {
        "payloads": lambda: table.read([1]),
        "passages": lambda: table.names(whole=True),
        "checkpoints": lambda: table.load("t"),
    }
    with pytest.raises(Closed, match="was left"):
        uses[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_other_versions_and_kinds_are_foreign(kind: str, tmp_path: Path) -> None:
    fill, read = KINDS[kind]
    table = fill(tmp_path / "file")
    table._connection.execute("PRAGMA user_version = 1")
    table.close()
    with pytest.raises(FilesForeign, match="version 1"):
        read(tmp_path / "file")
    for other in KINDS.keys() - {kind}:
        content_of(other, tmp_path / other)
        with pytest.raises(FilesForeign, match="another program"):
            read(tmp_path / other)


def test_a_missing_file_of_payloads_is_damage(tmp_path: Path) -> None:
    with pytest.raises(FilesDamaged, match="missing"):
        read_payloads(tmp_path / "none")


def test_payloads_and_passages_are_open_once_and_checkpoints_several_times(
    tmp_path: Path,
) -> None:
    for kind in ("payloads", "passages"):
        fill, read = KINDS[kind]
        table = fill(tmp_path / kind)
        with pytest.raises(FilesInUse):
            read(tmp_path / kind)
        table.close()
        read(tmp_path / kind)
    both = filled_checkpoints(tmp_path / "shared")
    assert read_checkpoints(tmp_path / "shared") == STEPS
    both.close()
