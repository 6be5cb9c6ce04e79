"""Batches in a seeded order, iterables that run ahead, and runs that go on from files."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import open_device, train
from atomr_accel.actors import open_actor_system

from .checks import loss, model, same

ROWS = np.arange(40, dtype=np.float32).reshape(20, 2)


def dataset(**options: Any) -> train.TrainingData:
    """Five batches of four points, twice."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((20, 3)).astype(np.float32)
    arrays = {"x": x, "y": np.sin(x.sum(1, keepdims=True))}
    return train.TrainingData(arrays, **{"rows": 4, "seed": 5, "epochs": 2, **options})


@given(
    length=st.integers(1, 30),
    rows=st.integers(1, 30),
    seed=st.integers(0, 2**64 - 1),
    count=st.integers(1, 4),
)
def test_epochs(length: int, rows: int, seed: int, count: int) -> None:
    """Each epoch has each row once, but for the rest; parts make up the whole; order is seeded."""
    rows = min(rows, length) // count * count
    if not rows:
        return
    array = np.arange(length)
    data = train.TrainingData(array, rows=rows, seed=seed, epochs=2)
    batches = list(data)
    each = length // rows
    assert len(batches) == len(data) == 2 * each
    for epoch in range(2):
        seen = np.concatenate(batches[epoch * each : (epoch + 1) * each])
        assert len(seen) == len(set(seen.tolist())) == each * rows
    for start in range(len(data)):
        np.testing.assert_array_equal(next(data.since(start)), batches[start])
    parts = [
        train.TrainingData(array, rows=rows, seed=seed, epochs=2, part=(index, count))
        for index in range(count)
    ]
    for at, batch in enumerate(batches):
        np.testing.assert_array_equal(np.concatenate([part[at] for part in parts]), batch)


def test_order() -> None:
    """Seeds and epochs have other orders, and this order is that of every version."""
    one, other = dataset(seed=5), dataset(seed=6)
    assert not np.array_equal(one[0]["x"], other[0]["x"])
    assert not np.array_equal(one[0]["x"], one[5]["x"])
    data = train.TrainingData(np.arange(8), rows=8, seed=1)
    assert data[0].tolist() == [3, 5, 2, 7, 0, 6, 1, 4]
    assert train.TrainingData(np.arange(8), rows=8, shuffle=False)[0].tolist() == list(range(8))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rows": 0}, "rows must be from 1"),
        ({"rows": 21}, "rows must be from 1"),
        ({"seed": -1}, "seed must be"),
        ({"epochs": 0}, "epochs must be"),
        ({"part": (2, 2)}, "part must be"),
        ({"part": (0, 3)}, "part must be"),
    ],
)
def test_refused(options: Any, match: str) -> None:
    """Numbers out of range."""
    with pytest.raises(ValueError, match=match):
        dataset(**options)


def test_refused_arrays() -> None:
    """Arrays of other forms, and batches that there are not."""
    with pytest.raises(ValueError, match="one first dimension"):
        train.TrainingData([ROWS, ROWS[:3]], rows=2)
    with pytest.raises(ValueError, match="at least one array"):
        train.TrainingData({}, rows=2)
    with pytest.raises(TypeError, match="NumPy arrays"):
        train.TrainingData([3], rows=2)
    with pytest.raises(IndexError, match="below 10"):
        dataset()[10]


@given(count=st.integers(0, 9), ahead=st.integers(1, 4), asynchronous=st.booleans())
async def test_prefetched(count: int, ahead: int, asynchronous: bool) -> None:
    """All items in order, at most ``ahead`` of them read before they are wanted."""
    read: list[int] = []

    def items() -> Any:
        for at in range(count):
            read.append(at)
            yield at

    async def async_items() -> Any:
        for at in items():
            yield at

    source = async_items() if asynchronous else items()
    async with train.prefetched(source, ahead=ahead) as ready:
        seen = []
        async for item in ready:
            seen.append(item)
            assert len(read) <= len(seen) + ahead
    assert seen == list(range(count))


async def test_prefetched_fails() -> None:
    """An error of the iterable leaves the block; a block may end early."""

    def items() -> Any:
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with train.prefetched(items()) as ready:
            async for _ in ready:
                pass
    async with train.prefetched(iter(range(1000))) as ready:
        async for _ in ready:
            break
    with pytest.raises(ValueError, match="ahead must be"):
        async with train.prefetched([], ahead=0):
            pass


@pytest.mark.parametrize(
    "kind", [train.open_data_parallel, partial(train.open_parameter_server, staleness=1)]
)
@pytest.mark.parametrize("failing", [False, True])
async def test_closed(tmp_path: Path, kind: Any, failing: bool) -> None:
    """After its block a trainer makes no step, and neither reads nor writes a model."""
    data, params = dataset(), model(np.random.default_rng(1))
    path = tmp_path / "run.safetensors"
    async with open_device(0, backend="cpu", isolation="thread") as device:
        with suppress(ZeroDivisionError):
            async with kind(
                [device], train.gradient_step(loss), params, train.SGD(lr=0.1)
            ) as trainer:
                await trainer.make_step(data[0])
                await trainer.save(path)
                if failing:
                    raise ZeroDivisionError
        for call in (
            lambda: anext(trainer.run(data)),
            lambda: anext(trainer.run([])),
            lambda: trainer.make_step(data[1]),
            trainer.params,
            lambda: trainer.save(tmp_path / "other"),
            lambda: trainer.restore(path),
        ):
            with pytest.raises(trio.ClosedResourceError, match="the trainer is closed") as caught:
                await call()
            assert isinstance(caught.value.__cause__, ZeroDivisionError) is failing
    assert trainer.steps == 1


async def test_resumes_in_an_epoch(tmp_path: Path) -> None:
    """A run that goes on from a file has the bits of one that never stopped."""
    path = tmp_path / "run.safetensors"
    data = dataset()
    rng = np.random.default_rng(1)
    params, adamw = model(rng), train.AdamW(lr=train.cosine(0.01, steps=10))
    step = train.gradient_step(loss)
    async with open_device(0, backend="cpu", isolation="thread") as device:

        def opened(params: Any = params, optimizer: train.Optimizer = adamw) -> Any:
            return train.open_data_parallel([device], step, params, optimizer, shards=2)

        async with opened() as trainer, train.prefetched(data) as ready:
            losses = []
            async for made in trainer.run(ready):
                losses.append(made.loss)
                if made.number == 6:
                    state = np.random.default_rng(4).bit_generator.state
                    assert await trainer.save(path, data=data, note=state) == 7
            whole = losses, await trainer.params()
        async with opened(model(np.random.default_rng(9))) as trainer:
            await trainer.make_step(data[0])
            assert await trainer.restore(path, data=data) == state
            assert trainer.steps == trainer.statistics().snapshot == 7
            rest = [made.loss async for made in trainer.run(data)]
            same(whole, (losses[:7] + rest, await trainer.params()))

            before = await trainer.params()
            whole_file = path.read_bytes()
            changed = bytearray(whole_file)
            changed[-3] ^= 1
            for content in (whole_file[:-1], whole_file[:40], b"", bytes(changed)):
                path.write_bytes(content)
                with pytest.raises(train.SnapshotDamaged):
                    await trainer.restore(path)
            path.write_bytes(whole_file)
            with pytest.raises(train.SnapshotForeign, match="must be of data"):
                await trainer.restore(path, data=dataset(seed=6))
            with pytest.raises(TypeError):
                await trainer.save(path, note=object())
            assert path.read_bytes() == whole_file
            assert os.listdir(tmp_path) == [path.name]  # noqa: PTH208 - not asynchronous
            with pytest.raises(FileNotFoundError):
                await trainer.restore(tmp_path / "none")
            same((0, before), (0, await trainer.params()))
            assert trainer.steps == 10
        async with opened(optimizer=train.Adam(lr=0.1)) as trainer:
            with pytest.raises(train.SnapshotForeign, match="must be of optimizer"):
                await trainer.restore(path)
        async with opened({**params, "more": params["b"]}) as trainer:
            with pytest.raises(train.SnapshotForeign, match=r"params\.more"):
                await trainer.restore(path)


async def test_place_in_the_tree() -> None:
    """A trainer has a path and a queue in a system, and stops with its block."""
    async with (
        open_actor_system("test") as system,
        open_device(0, backend="cpu", isolation="thread") as device,
    ):
        params = model(np.random.default_rng(1))
        step, sgd = train.gradient_step(loss), train.SGD(lr=0.1)
        async with train.open_data_parallel(
            [device], step, params, sgd, system=system, name="trainer"
        ) as trainer:
            assert system.tree().children[0].path == "/trainer"
            await trainer.make_step(dataset()[0])
            assert trainer.statistics().steps == 1
        assert not system.tree().children
