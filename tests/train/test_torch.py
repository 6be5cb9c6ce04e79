"""Runs of small models next to PyTorch, if it is installed: an MLP, a ResNet and a GPT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree
import pytest
import trio

from atomr_accel import train

from ..harness import ON_CUDA
from .parted import devices_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(ON_CUDA, reason="these devices are of the CPU backend"),
]

torch = pytest.importorskip("torch")
functional = torch.nn.functional

ROWS, LENGTH, WIDTH, LETTERS, STEPS = 8, 12, 16, 11, 8
MASK = np.where(np.tril(np.ones((LENGTH, LENGTH))), 0, -1e9).astype(np.float32)


def normal(rng: np.random.Generator, *shape: int) -> Any:
    """Weights by which products keep the size of inputs."""
    scale = np.sqrt(np.prod(shape[1:]) if len(shape) > 2 else shape[0])
    return (rng.standard_normal(shape) / scale).astype(np.float32)


def classes(tape: Any, logits: Any, codes: Any) -> Any:
    """Cross entropy here and in PyTorch, whose module has the same names."""
    if tape is torch:
        return functional.cross_entropy(logits, codes.long())
    return tape.dnn.cross_entropy(logits, codes)


def mlp(tape: Any, p: Any, batch: Any) -> Any:
    """Two layers, of which the first has an activation."""
    if tape is torch:
        h = functional.gelu(batch["x"] @ p["in"] + p["bias"])
        return functional.mse_loss(h @ p["out"], batch["y"])
    h = tape.dnn.gelu(tape.evaluate(batch["x"] @ p["in"] + p["bias"]))
    return train.mse(tape.evaluate(h @ p["out"]), batch["y"])


def mlp_of(rng: np.random.Generator) -> tuple[Any, list[Any]]:
    """Parameters, and batches of a function to learn."""
    params = {
        "in": normal(rng, 5, WIDTH),
        "bias": np.zeros(WIDTH, np.float32),
        "out": normal(rng, WIDTH, 1),
    }
    x = [rng.standard_normal((ROWS, 5)).astype(np.float32) for _ in range(STEPS)]
    return params, [{"x": each, "y": np.sin(each.sum(1, keepdims=True))} for each in x]


def resnet(tape: Any, p: Any, batch: Any) -> Any:
    """Two blocks of convolutions and group norms, and an average over pictures."""
    if tape is torch:
        x = functional.conv2d(batch["x"], p["stem"], padding=1)
        for block in p["blocks"]:
            h = functional.group_norm(x, 2, *block["norm"])
            h = functional.conv2d(functional.relu(h), block["one"], padding=1)
            x = x + functional.conv2d(functional.relu(h), block["two"], padding=1)
        return classes(tape, x.mean((2, 3)) @ p["out"], batch["y"])
    x = tape.dnn.conv(batch["x"], p["stem"], padding=1)
    for block in p["blocks"]:
        h = tape.dnn.relu(tape.dnn.group_norm(x, 2, *block["norm"]))
        h = tape.dnn.relu(tape.dnn.conv(h, block["one"], padding=1))
        x = tape.evaluate(x + tape.dnn.conv(h, block["two"], padding=1))
    means = tape.evaluate(np.mean(x.reshape(*x.shape[:2], -1), axis=2))
    return classes(tape, tape.evaluate(means @ p["out"]), batch["y"])


def resnet_of(rng: np.random.Generator) -> tuple[Any, list[Any]]:
    """Parameters, and batches of pictures whose class is their brightest quarter."""
    params = {
        "stem": normal(rng, 6, 1, 3, 3),
        "blocks": [
            {
                "norm": [np.ones(6, np.float32), np.zeros(6, np.float32)],
                "one": normal(rng, 6, 6, 3, 3),
                "two": normal(rng, 6, 6, 3, 3),
            }
            for _ in range(2)
        ],
        "out": normal(rng, 6, 4),
    }
    batches = []
    for _ in range(STEPS):
        codes = rng.integers(0, 4, ROWS).astype(np.int32)
        x = rng.standard_normal((ROWS, 1, 8, 8)).astype(np.float32)
        for row, code in enumerate(codes):
            top, left = 4 * (code // 2), 4 * (code % 2)
            x[row, 0, top : top + 4, left : left + 4] += 2
        batches.append({"x": x, "y": codes})
    return params, batches


def gpt(tape: Any, p: Any, batch: Any) -> Any:
    """One block of attention and two layers."""
    if tape is torch:
        x = p["letters"][batch["x"].long()] + p["places"]
        h = functional.rms_norm(x, (WIDTH,), p["norms"][0], 1e-6)
        q, k, v = (h @ p[name] for name in "qkv")
        scores = q @ k.mT * WIDTH**-0.5 + torch.tensor(MASK)
        x = x + (functional.softmax(scores, -1) @ v) @ p["o"]
        h = functional.rms_norm(x, (WIDTH,), p["norms"][1], 1e-6)
        x = x + functional.gelu(h @ p["up"]) @ p["down"]
        logits = x @ p["out"]
    else:
        x = tape.evaluate(tape.array.take(p["letters"], batch["x"], axis=0) + p["places"])
        h = tape.dnn.rms_norm(x, p["norms"][0], eps=1e-6)
        q, k, v = (tape.evaluate(h @ p[name]) for name in "qkv")
        scores = tape.evaluate(q @ k.mT * WIDTH**-0.5 + tape.put(MASK))
        x = tape.evaluate(x + (tape.dnn.softmax(scores) @ v) @ p["o"])
        h = tape.dnn.rms_norm(x, p["norms"][1], eps=1e-6)
        x = tape.evaluate(x + tape.dnn.gelu(tape.evaluate(h @ p["up"])) @ p["down"])
        logits = tape.evaluate(x @ p["out"])
    return classes(tape, logits.reshape(-1, LETTERS), batch["y"].reshape(-1))


def gpt_of(rng: np.random.Generator) -> tuple[Any, list[Any]]:
    """Parameters, and batches of a text in which each letter follows from the last two."""
    params = {
        "letters": normal(rng, LETTERS, WIDTH),
        "places": normal(rng, LENGTH, WIDTH),
        "norms": [np.ones(WIDTH, np.float32) for _ in range(2)],
        **{name: normal(rng, WIDTH, WIDTH) for name in "qkvo"},
        "up": normal(rng, WIDTH, 4 * WIDTH),
        "down": normal(rng, 4 * WIDTH, WIDTH),
        "out": normal(rng, WIDTH, LETTERS),
    }
    text = [1, 2]
    while len(text) < ROWS * STEPS + LENGTH:
        text.append((3 * text[-1] + text[-2] + 1) % LETTERS)
    windows = np.lib.stride_tricks.sliding_window_view(np.array(text, np.int32), LENGTH + 1)
    parts = [windows[at : at + ROWS] for at in range(0, ROWS * STEPS, ROWS)]
    parts = [part for part in parts if len(part) == ROWS]
    return params, [{"x": part[:, :-1].copy(), "y": part[:, 1:].copy()} for part in parts]


MODELS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mlp": (mlp, mlp_of),
    "resnet": (resnet, resnet_of),
    "gpt": (gpt, gpt_of),
}

OPTIMIZERS: dict[str, tuple[train.Optimizer, Callable[[Any], Any]]] = {
    "sgd": (
        train.SGD(lr=0.05, momentum=0.9, nesterov=True),
        lambda leaves: torch.optim.SGD(leaves, lr=0.05, momentum=0.9, nesterov=True),
    ),
    "adamw": (
        train.AdamW(lr=0.01, weight_decay=0.1),
        lambda leaves: torch.optim.AdamW(leaves, lr=0.01, weight_decay=0.1),
    ),
}


def of_torch(name: str, optimizer: str, params: Any, batches: list[Any]) -> Any:
    """Losses and parameters of PyTorch, in float64, with gradients clipped to 1."""
    model, _ = MODELS[name]
    leaves, form = optree.tree_flatten(params)
    here = [torch.tensor(leaf.astype(np.float64), requires_grad=True) for leaf in leaves]
    steps = OPTIMIZERS[optimizer][1](here)
    losses = []
    for batch in batches:
        wide = {
            key: torch.tensor(value.astype(np.float64) if value.dtype.kind == "f" else value)
            for key, value in batch.items()
        }
        loss = model(torch, optree.tree_unflatten(form, here), wide)
        steps.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(here, 1.0)
        steps.step()
        losses.append(loss.item())
    return losses, [leaf.detach().numpy() for leaf in here]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("name", sorted(MODELS))
def test_data_parallel_as_torch_on_one_device(name: str, optimizer: str, ranks: int) -> None:
    """Losses agree to 1e-5 and parameters to 1e-4 of their step with float64, over all steps."""
    params, batches = MODELS[name][1](np.random.default_rng(3))

    async def run() -> Any:
        step = train.gradient_step(MODELS[name][0])
        how = OPTIMIZERS[optimizer][0]
        async with (
            devices_of(ranks) as devices,
            train.open_data_parallel(devices, step, params, how, shards=4, clip=1.0) as trainer,
        ):
            losses = [made.loss async for made in trainer.run(batches)]
            return losses, optree.tree_leaves(await trainer.params())

    losses, found = trio.run(run)
    wanted, exact = of_torch(name, optimizer, params, batches)
    assert len(batches) > 5
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    for got, expected, before in zip(found, exact, optree.tree_leaves(params), strict=True):
        moved = np.abs(expected - before).max()
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4 * moved + 1e-7)
