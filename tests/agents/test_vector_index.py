"""Vector indexes against a model in NumPy, through changes, reopening and faults."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from trio.testing import wait_all_tasks_blocked

from atomr_accel import Device
from atomr_accel.actors import Call, open_actor_system
from atomr_accel.agents import (
    DeleteVectors,
    FilesDamaged,
    FilesFailed,
    FilesForeign,
    FilesInUse,
    GetVectors,
    IdTaken,
    IdUnknown,
    InsertVectors,
    InvertedLists,
    SearchVectors,
    UpdateVectors,
)
from atomr_accel.patterns import Closed

from ..harness import Shared, on_shared, opened, refused, sized
from .vectors import DIMENSION, check_found, check_reopened, index_at, inserted_under_faults


def drawn(seed: int, n: int, dtype: Any = np.float32) -> NDArray[Any]:
    return np.random.default_rng(seed).standard_normal((n, DIMENSION)).astype(dtype)


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.sets(st.integers(0, 20), min_size=1, max_size=12)),
        st.tuples(st.just("update"), st.sets(st.integers(0, 20), min_size=1, max_size=4)),
        st.tuples(st.just("delete"), st.sets(st.integers(0, 20), min_size=1, max_size=4)),
        st.tuples(st.just("search"), st.sets(st.integers(1, 30), min_size=1, max_size=1)),
        st.tuples(st.just("compact"), st.just(set())),
        st.tuples(st.just("reopen"), st.just(set())),
    ),
    max_size=14,
)


@pytest.mark.slow
@settings(max_examples=sized(40, 400))
@given(
    STEPS,
    st.sampled_from(["cosine", "dot", "l2"]),
    st.sampled_from(["f4", "f2"]),
    st.sampled_from([1, 3, 8, 1000]),
    st.sampled_from([None, InvertedLists(lists=1, probes=1), InvertedLists(lists=2, probes=2)]),
    st.integers(0, 9),
)
def test_an_index_agrees_with_numpy(
    shared: Shared,
    steps: list[tuple[str, set[int]]],
    metric: str,
    dtype: str,
    seal: int,
    approximate: InvertedLists | None,
    seed: int,
) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            await follow(shared.device, Path(folder), steps, metric, dtype, seal, approximate, seed)

    shared.run(run)


async def follow(
    device: Device,
    folder: Path,
    steps: list[tuple[str, set[int]]],
    metric: str,
    dtype: str,
    seal: int,
    approximate: InvertedLists | None,
    seed: int,
) -> None:
    held: dict[int, NDArray[Any]] = {}
    payloads: dict[int, Any] = {}
    left = [*steps]
    rng = np.random.default_rng(seed)
    tolerance = 1e-4 if dtype == "f4" else 5e-3
    while left:
        async with index_at(
            device, folder, metric=metric, dtype=dtype, seal_at=seal, approximate=approximate
        ) as index:
            assert len(index) == len(held)
            while left:
                step, which = left.pop(0)
                ids = sorted(which)
                rows = rng.standard_normal((len(ids), DIMENSION)).astype(dtype)
                objects = [{"of": key % 3, "n": [key]} if key % 4 else None for key in ids]
                if step == "reopen":
                    break
                if step == "compact":
                    await index.compact()
                    assert index.statistics().dead == 0
                elif step == "search":
                    query = rng.standard_normal(DIMENSION).astype(dtype)
                    found = await index.search(query, ids[0])
                    check_found(metric, held, query, ids[0], found.ids, found.scores, tolerance)
                    some = {
                        key: v for key, v in held.items() if (payloads[key] or {}).get("of") == 1
                    }
                    found = await index.search(query, ids[0], where={"of": 1})
                    check_found(metric, some, query, ids[0], found.ids, found.scores, tolerance)
                elif step == "insert" and which & {*held}:
                    with pytest.raises(IdTaken) as taken:
                        await index.insert(ids, rows, objects)
                    assert {*taken.value.ids} == which & {*held}
                elif step != "insert" and which - {*held}:
                    with pytest.raises(IdUnknown) as unknown:
                        await (index.delete(ids) if step == "delete" else index.update(ids, rows))
                    assert {*unknown.value.ids} == which - {*held}
                elif step == "delete":
                    await index.delete(ids)
                    for key in ids:
                        del held[key], payloads[key]
                else:
                    await (index.insert if step == "insert" else index.update)(ids, rows, objects)
                    held.update(zip(ids, rows, strict=True))
                    payloads.update(zip(ids, objects, strict=True))
                assert index.statistics().vectors == len(held)
            for entry in await index.get([*held]):
                np.testing.assert_array_equal(entry.vector, held[entry.id])
                assert entry.payload == payloads[entry.id]


@on_shared
async def test_many_queries_at_once(device: Device, tmp_path: Path) -> None:
    rows, queries = drawn(1, 50), drawn(2, 7)
    async with index_at(device, tmp_path, metric="dot", workspace=400) as index:
        await index.insert(np.arange(50), rows)
        found = await index.search_many(queries, 60)
        assert found.ids.shape == found.scores.shape == (7, 60)
        assert (found.ids[:, 50:] == -1).all()
        assert np.isnan(found.scores[:, 50:]).all()
        for query, ids, scores in zip(queries, found.ids, found.scores, strict=True):
            check_found("dot", dict(enumerate(rows)), query, 50, ids[:50], scores[:50])


@on_shared
async def test_changes_of_many_tasks_share_synchronizations(device: Device, tmp_path: Path) -> None:
    rows = drawn(3, 100)
    async with index_at(device, tmp_path) as index:
        async with trio.open_nursery() as nursery:
            for key in range(100):
                nursery.start_soon(index.insert, key, rows[key])
        statistics = index.statistics()
    assert statistics.changes == statistics.vectors == 100
    assert statistics.syncs < 10


@on_shared
async def test_filters_know_types(device: Device, tmp_path: Path) -> None:
    objects: list[Any] = [
        {"a": 1},
        {"a": True},
        {"a": "1"},
        {"a": None},
        {"b": 1},
        {"a": 1.0},
        None,
    ]
    async with index_at(device, tmp_path) as index:
        await index.insert(range(7), drawn(4, 7), objects)
        where: Any
        for where, expected in [
            ({"a": 1}, {0, 5}), ({"a": True}, {1}), ({"a": "1"}, {2}), ({"a": None}, {3}),
            ({"b": [1, 2]}, {4}), ({"a": [None, "1"]}, {2, 3}), ({"a": []}, set()),
            ({"a": 1, "b": 1}, set()), ({"c": 1}, set()), ({}, {*range(7)}),
        ]:  # fmt: skip
            found = await index.search(np.ones(DIMENSION), where=where)
            assert {*found.ids.tolist()} == expected, where


@on_shared
async def test_bad_input_is_refused(device: Device, tmp_path: Path) -> None:
    nan = np.full(DIMENSION, np.nan)
    async with index_at(device, tmp_path, dtype="f2") as index:
        await index.insert(1, np.ones(DIMENSION), {"x": 1})
        ids: Any
        vectors: Any
        payloads: Any
        for ids, vectors, payloads, error, match in [
            (2, np.ones(3), None, ValueError, r"vectors must be of shape \(8,\), not \(3,\)"),
            ([2, 3], drawn(0, 3), None, ValueError, r"must be of shape \(2, 8\), not \(3, 8\)"),
            (2, nan, None, ValueError, "must be finite"),
            (2, np.full(DIMENSION, 1e6), None, ValueError, "must be finite in float16"),
            (2, np.zeros(DIMENSION), None, ValueError, "must be of a length above 0"),
            (2, ["x"] * DIMENSION, None, TypeError, "must be real numbers"),
            (-1, np.ones(DIMENSION), None, ValueError, "ids must be from 0"),
            ([2**63, 2**63 + 1], drawn(0, 2), None, ValueError, "63 - 1, not 9223372036854775808"),
            (2**70, np.ones(DIMENSION), None, ValueError, "an id must be a whole number from 0 to"),
            (1.5, np.ones(DIMENSION), None, TypeError, "ids must be one whole number"),
            ([2, 2], drawn(0, 2), None, ValueError, "ids must be different"),
            (2, np.ones(DIMENSION), [1], TypeError, "a payload must be a mapping"),
            (2, np.ones(DIMENSION), {"x": object()}, TypeError, "a payload must be plain values"),
            (2, np.ones(DIMENSION), {"x": float("nan")}, ValueError, "must be what JSON keeps"),
            ([2, 3], drawn(0, 2), [{}], ValueError, "payloads must be one for each"),
        ]:
            with pytest.raises(error, match=match):
                await index.insert(ids, vectors, payloads)
        arguments: Any
        for arguments, error, match in [
            ({"query": np.ones(3)}, ValueError, "query must be of shape"),
            ({"query": nan}, ValueError, "query must be finite"),
            ({"query": np.ones(DIMENSION), "k": 0}, ValueError, "k must be"),
            ({"query": np.ones(DIMENSION), "k": 4096}, ValueError, "k must be at most 2048"),
            ({"query": np.ones(DIMENSION), "where": {"x": [[]]}}, TypeError, "value of where"),
            ({"query": np.ones(DIMENSION), "where": {'"': 1}}, ValueError, "without quotes"),
            ({"query": np.ones(DIMENSION), "where": 3}, TypeError, "where must be a mapping"),
        ]:
            with pytest.raises(error, match=match):
                await index.search(**arguments)
        assert index.statistics().changes == 1
        await refused(FilesInUse, None, index_at, device, tmp_path, dtype="f2")
    with pytest.raises(Closed):
        await index.insert(2, np.ones(DIMENSION))
    with pytest.raises(Closed):
        await index.search(np.ones(DIMENSION))
    options: Any
    for options, match in [
        ({"dimension": 9}, "dimension must be 8"),
        ({"metric": "l2", "dtype": "f2"}, "metric must be 'cosine'"),
        ({"dtype": "f4"}, "dtype must be 'float16'"),
    ]:
        await refused(ValueError, match, index_at, device, tmp_path, **options)
    for options, error in [
        ({"metric": "x"}, ValueError), ({"dtype": "i4"}, TypeError), ({"dimension": 0}, ValueError),
        ({"sync": -1}, ValueError), ({"seal_at": 0}, ValueError),
    ]:  # fmt: skip
        with pytest.raises(error):
            index_at(device, tmp_path, **options)


@on_shared
async def test_damage_is_found_and_nothing_is_changed(device: Device, tmp_path: Path) -> None:
    async with index_at(device, tmp_path, seal_at=4) as index:
        await index.insert(range(4), drawn(5, 4))
        for key in range(4, 7):
            await index.insert(key, drawn(key, 1)[0])
    files = files_in(tmp_path)
    (segment,) = [name for name in files if name.startswith("segment")]
    (tail,) = [name for name in files if name.startswith("tail")]
    changed = {
        segment: [10, 40, -1], tail: [3, 20, 30, 100], "index.json": [20, -3],
        "payloads.sqlite": [3],
    }  # fmt: skip
    for name, places in changed.items():
        for place in places:
            data = bytearray(files[name])
            data[place] ^= 0x55
            (tmp_path / name).write_bytes(data)
            await refused((FilesDamaged, FilesForeign), None, index_at, device, tmp_path)
            assert (tmp_path / name).read_bytes() == data
            (tmp_path / name).write_bytes(files[name])
    for longer in (b"", bytes(64), b"x"):
        (tmp_path / segment).write_bytes(files[segment][: None if longer else -1] + longer)
        await refused(FilesDamaged, None, index_at, device, tmp_path)
    (tmp_path / segment).write_bytes(files[segment])
    (tmp_path / "index.json").unlink()
    (tmp_path / "index.json").mkdir()
    await refused(FilesDamaged, None, index_at, device, tmp_path)
    (tmp_path / "index.json").rmdir()
    (tmp_path / "index.json").write_bytes(files["index.json"])
    for name in (segment, tail, "payloads.sqlite"):
        (tmp_path / name).unlink()
        await refused(FilesDamaged, None, index_at, device, tmp_path)
        (tmp_path / name).write_bytes(files[name])
    async with index_at(device, tmp_path) as index:
        assert len(index) == 7
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    await refused(FilesForeign, None, index_at, device, other)
    assert [path.name for path in other.iterdir()] == ["notes.txt"]


@on_shared
async def test_a_cut_off_frame_was_never_acknowledged(device: Device, tmp_path: Path) -> None:
    async with index_at(device, tmp_path) as index:
        for key in range(3):
            await index.insert(key, drawn(key, 1)[0])
    tail = tmp_path / "tail-0"
    data = tail.read_bytes()
    async with index_at(device, tmp_path) as index:
        await index.insert(3, drawn(3, 1)[0])
    longer = tail.read_bytes()
    assert longer.startswith(data)
    for end in range(len(data) + 1, len(longer), 7):
        tail.write_bytes(longer[:end])
        async with index_at(device, tmp_path) as index:
            assert len(index) == 3
        assert tail.read_bytes() == data


@on_shared
async def test_changes_in_progress_are_finished_when_the_block_is_left(
    device: Device, tmp_path: Path
) -> None:
    async with trio.open_nursery() as nursery, index_at(device, tmp_path, sync=0.01) as index:
        nursery.start_soon(index.insert, 1, np.ones(DIMENSION))
        nursery.start_soon(index.insert, 2, np.ones(DIMENSION))
        await wait_all_tasks_blocked()
        assert index.depth() == 2
    async with index_at(device, tmp_path) as index:
        assert len(index) == 2


@on_shared
async def test_an_index_is_an_actor(device: Device, tmp_path: Path) -> None:
    async with (
        open_actor_system("test") as system,
        index_at(device, tmp_path, system=system, name="memory") as index,
    ):
        assert system.tree().children[0].path == "/memory"
        one, other = drawn(6, 2)
        await index.ref.ask(InsertVectors([1, 2], np.stack([one, other]), [None, {"a": 1}]))
        assert (await index.ref.ask(SearchVectors(one, 1))).ids.tolist() == [1]
        assert (await index.ref.ask(Call(one, {"k": 1, "where": {"a": 1}}))).ids.tolist() == [2]
        await index.ref.ask(UpdateVectors(1, other))
        await index.ref.ask(DeleteVectors(2))
        (entry,) = await index.ref.ask(GetVectors(1))
        np.testing.assert_array_equal(entry.vector, other)
        with pytest.raises(IdUnknown):
            await index.ref.ask(GetVectors(2))


@on_shared
async def test_a_full_disk_loses_nothing_that_was_acknowledged(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with index_at(device, tmp_path, seal_at=3) as index:
        await index.insert(0, drawn(0, 1)[0])
        with monkeypatch.context() as patch:

            def full(*args: Any) -> Any:
                raise OSError(28, "No space left on device")

            patch.setattr(os, "pwrite", full)
            with pytest.raises(FilesFailed):
                await index.insert(1, drawn(1, 1)[0])
        await index.insert([1, 2], drawn(2, 2))
        assert index.statistics().segments == 1
    async with index_at(device, tmp_path) as index:
        assert len(index) == 3


@pytest.mark.slow
async def test_faults_lose_no_vector_and_no_answer(tmp_path: Path) -> None:
    faults = sized(6, 50)
    async with opened(max_restarts=10 * faults) as device:
        held, answered = await inserted_under_faults(device, tmp_path, faults)
        assert device.generation > faults
    assert len(held) == 40 * faults
    assert answered
    async with opened() as device:
        await check_reopened(device, tmp_path, held)


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@on_shared
async def test_the_longest_vectors_are_found_and_longer_ones_refused(
    device: Device, tmp_path: Path, metric: str
) -> None:
    longest = np.full(DIMENSION, 2.0**62 / DIMENSION**0.5 * (1 - 1e-6), np.float32)
    small = np.ones(DIMENSION, np.float32)
    async with index_at(device, tmp_path, metric=metric) as index:
        await index.insert([0, 1, 2], [longest, -longest, small])
        for query in (longest, -longest, small):
            found = await index.search(query)
            assert {*found.ids.tolist()} == {0, 1, 2}
            assert np.isfinite(found.scores).all()
        for longer in (longest * 1.1, np.full(DIMENSION, 3e38, np.float32)):
            with pytest.raises(ValueError, match="up to 2"):
                await index.insert(3, longer)
            with pytest.raises(ValueError, match="up to 2"):
                await index.search(longer)
        assert len(index) == 3


@on_shared
async def test_payloads_that_json_cannot_keep_are_refused(device: Device, tmp_path: Path) -> None:
    within: dict[str, Any] = {}
    within["x"] = within
    async with index_at(device, tmp_path) as index:
        for payload in (within, {"x": "\ud800"}, {"\ud800": 1}):
            with pytest.raises(ValueError, match="a payload must"):
                await index.insert(1, np.ones(DIMENSION), payload)
        assert len(index) == 0
