"""Tensor parallel training on CPU devices: as one device, and with faults the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import train
from atomr_accel.testing import poison

from ..harness import sized
from .parted import STEPS, close, devices_of, equal, on_one_device, outcome, points
from .split import cut_loss, model, split

ADAMW = train.AdamW(lr=0.02)


def whole_loss(tape: Any, p: Any, batch: Any) -> Any:
    """Loss of the whole model on one device."""
    hidden = tape.dnn.tanh(tape.evaluate(batch["x"] @ p["first"] + p["b1"]))
    x = tape.evaluate((hidden @ p["down"] + p["b2"]) * p["norm"])
    h = tape.dnn.gelu(tape.evaluate(tape.evaluate(x * p["scale"]) @ p["up"]))
    x = tape.evaluate(x + h @ p["low"] + p["b3"])
    return train.mse(tape.blas.gemm(x, p["out"]), batch["y"])


async def trained(
    ranks: int, parts: int = 4, fault: tuple[int, int, int] | None = None, **options: Any
) -> Any:
    """Losses, parameters and statistics; with a fault (part, its step, rank)."""
    rng = np.random.default_rng(1)
    data, params = points(rng), model(rng)
    calls = [0] * parts
    async with trio.open_nursery() as nursery, devices_of(ranks, process=bool(fault)) as devices:

        async def function(part: train.TensorPart, p: Any, batch: Any) -> Any:
            calls[part.index] += 1
            if fault and fault[:2] == (part.index, calls[part.index]):
                nursery.start_soon(poison, devices[fault[2]])
            return await cut_loss(part, p, batch)

        async with train.open_tensor_parallel(
            *(devices, function, params, ADAMW),
            **{"split": split, "parts": parts, "clip": 1.0, "snapshot_every": 2, **options},
        ) as trainer:
            return await outcome(trainer, data)


async def test_equals_one_device() -> None:
    """Losses and parameters are those of the whole model, and do not depend on devices."""
    rng = np.random.default_rng(1)
    data, start = points(rng), model(rng)
    losses, params = await on_one_device(whole_loss, data, start, ADAMW)
    for parts in (1, 2):
        one = await trained(1, parts)
        close(one[0], losses, one[1], params)
    one = await trained(1)
    close(one[0], losses, one[1], params)
    for ranks in (2, 3):
        equal(one, await trained(ranks, digest_every=1))


async def test_attention_by_heads() -> None:
    """Heads on several parts have the gradients of all heads on one."""
    rows, width, heads = 6, 8, 4

    def attend(tape: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
        count = q.shape[1] // (width // heads)

        def by_head(w: Any) -> Any:
            made = tape.evaluate(x @ w).reshape(rows, count, width // heads)
            return made.transpose(1, 0, 2)

        scores = tape.evaluate(by_head(q) @ by_head(k).mT)
        mixed = tape.evaluate(tape.dnn.softmax(scores) @ by_head(v))
        return mixed.transpose(1, 0, 2).reshape(rows, -1)

    async def function(part: train.TensorPart, p: Any, batch: Any) -> Any:
        x = part.shared(part.tape.evaluate(batch["x"] * p["scale"]))
        mixed = attend(part.tape, x, p["q"], p["k"], p["v"])
        return np.mean(np.square(await part.row(mixed, p["o"])))

    rng = np.random.default_rng(5)
    params = {n: rng.standard_normal((width, width)) / 3 for n in ("q", "k", "v", "o")}
    params["scale"] = rng.standard_normal(width)
    batch = {"x": rng.standard_normal((rows, width))}
    found = []
    for ranks in (1, 4):
        async with (
            devices_of(ranks) as devices,
            train.open_tensor_parallel(
                *(devices, function, params, train.SGD(lr=0.1)),
                split=lambda path, _shape: {"o": 0, "scale": None}.get(path[0], 1),
            ) as trainer,
        ):
            losses = [made.loss async for made in trainer.run([batch] * 2)]
            found.append((losses, await trainer.params()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-12)
    for name, before in params.items():
        np.testing.assert_allclose(found[0][1][name], found[1][1][name], rtol=1e-10)
        assert not np.array_equal(found[0][1][name], before)


@pytest.mark.slow
def test_faults_change_no_bit() -> None:
    """A fault of any rank at any time repeats the steps since the snapshot."""
    calm = trio.run(trained, 1)
    rng = np.random.default_rng(3)
    for _ in range(sized(2, 6)):
        fault = int(rng.integers(4)), int(rng.integers(STEPS)) + 1, int(rng.integers(2))
        hurt = trio.run(trained, 2, 4, fault)
        equal(calm, hurt)
        assert hurt[2].steps == STEPS
        assert hurt[2].repeats >= 1


def test_corrupt_part() -> None:
    """A part with another bit in a common parameter is named, and comes back right."""

    async def program() -> Any:
        rng = np.random.default_rng(1)
        data, params = points(rng), model(rng)
        async with devices_of(3) as devices:
            hurt: list[int] = []

            async def function(part: train.TensorPart, p: Any, batch: Any) -> Any:
                if part.index == 3 and not hurt:
                    hurt.append(1)
                    await devices[2].fill(p["b3"].ref[:1], 9.0)
                return await cut_loss(part, p, batch)

            async with train.open_tensor_parallel(
                *(devices, function, params, ADAMW),
                split=split,
                parts=4,
                clip=1.0,
                digest_every=1,
                snapshot_every=2,
            ) as trainer:
                _ = [made async for made in trainer.run(data)]
                return trainer.statistics()

    made = trio.run(program)
    assert made.corrupt == (2,)
    assert made.steps == STEPS


async def test_goes_on_from_a_file(tmp_path: Path) -> None:
    """A file has whole parameters, so other numbers of parts go on from it."""
    rng = np.random.default_rng(1)
    data, params = points(rng), model(rng)
    path = tmp_path / "run.safetensors"
    async with devices_of(2) as devices:
        async with train.open_tensor_parallel(
            devices, cut_loss, params, ADAMW, split=split, parts=4
        ) as trainer:
            _ = [made async for made in trainer.run(data[:2])]
            await trainer.save(path)
            _ = [made async for made in trainer.run(data[2:])]
            calm = await trainer.params()
        async with train.open_tensor_parallel(
            devices, cut_loss, params, ADAMW, split=split
        ) as trainer:
            await trainer.restore(path)
            losses = [made.loss async for made in trainer.run(data[2:])]
            close(losses, losses, calm, await trainer.params())


async def test_refused() -> None:
    """Refusals of parts with other exchanges, and of splits that do not fit."""
    rng = np.random.default_rng(1)
    data, params = points(rng)[0], model(rng)

    async def alone(part: train.TensorPart, p: Any, batch: Any) -> Any:
        if part.index:
            return await cut_loss(part, p, batch)
        return np.sum(p["out"])

    async def other(part: train.TensorPart, p: Any, batch: Any) -> Any:
        x = part.tape.evaluate(batch["x"] * p["norm"])
        made = await (part.whole(x, 0) if part.index else part.total(x))
        return np.sum(made)

    async with devices_of(2) as devices:
        wrong: Any
        for wrong, match in (
            ({"split": lambda *_: 3}, "must be an axis that 2 parts divide"),
            ({"split": split, "parts": 1}, "parts must be at least"),
            ({"split": split, "parts": 3}, "3 parts divide"),
        ):
            with pytest.raises(ValueError, match=match):
                async with train.open_tensor_parallel(devices, cut_loss, params, ADAMW, **wrong):
                    pass
        for function in (alone, other):
            async with train.open_tensor_parallel(
                devices, function, params, ADAMW, split=split
            ) as trainer:
                with pytest.raises(ValueError, match="exchange the same"):
                    await trainer.make_step(data)
                after = await trainer.params()
                np.testing.assert_array_equal(after["up"], params["up"])
        async with train.open_tensor_parallel(
            devices, cut_loss, params, ADAMW, split=split
        ) as trainer:
            with pytest.raises(train.LossNotFinite) as caught:
                await trainer.make_step({"x": data["x"], "y": data["y"] * np.nan})
            assert (caught.value.step, caught.value.rank) == (0, 0)
            with pytest.raises(ValueError, match="multiple of 2"):
                await trainer.make_step({"x": data["x"][:3], "y": data["y"][:3]})
            assert (await trainer.make_step(data)).number == 0
