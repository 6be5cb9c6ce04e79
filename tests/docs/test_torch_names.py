"""The code to write for PyTorch's functions gives their results."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import numpy as np
import pytest
from scipy import special

from atomr_accel import Device, train
from atomr_accel._torch_names import EXAMPLES

from ..harness import on_shared
from ..libraries.conformance import MARKS

pytestmark = MARKS


def softplus(x: Any) -> Any:
    return np.log1p(np.exp(x))


def shuffled(x: Any) -> Any:
    b, c, h, w = x.shape
    made = np.empty((b, c // 4, 2 * h, 2 * w))
    for row in range(2):
        for column in range(2):
            made[:, :, row::2, column::2] = x[:, 2 * row + column :: 4]
    return made


def hubers(of: Any) -> Any:
    far = abs(of.x - of.y)
    return np.where(far < of.beta, far**2 / 2, of.beta * (far - of.beta / 2)).mean()


def entropy(p: Any, q: Any) -> Any:
    return -(q * np.log(p) + (1 - q) * np.log(1 - p)).mean()


EXPECTED: dict[str, Any] = {
    "linear": lambda of: np.einsum("bi,oi->bo", of.x, of.weight) + of.bias,
    "bilinear": lambda of: np.einsum("bi,oij,bj->bo", of.x, of.cube, of.y),
    "embedding": lambda of: of.weight[of.labels],
    "one_hot": lambda of: np.eye(of.n, dtype=np.int64)[of.labels],
    "pad": lambda of: np.hstack([np.zeros((of.n, 1)), of.x, np.zeros((of.n, 2))]),
    "normalize": lambda of: of.x / np.sqrt((of.x**2).sum(1))[:, None],
    "cosine_similarity": lambda of: [
        a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in zip(of.x, of.y, strict=True)
    ],
    "pairwise_distance": lambda of: np.sqrt(((of.x - of.y + 1e-6) ** 2).sum(1)),
    "pixel_shuffle": lambda of: shuffled(of.image),
    "pixel_unshuffle": lambda of: of.image,  # of which the large one was made
    "channel_shuffle": lambda of: of.image[:, [0, 4, 1, 5, 2, 6, 3, 7]],
    "celu": lambda of: np.where(of.x > 0, of.x, np.exp(of.x) - 1),
    "glu": lambda of: of.x[:, :3] / (1 + np.exp(-of.x[:, 3:])),
    "hardshrink": lambda of: of.x * (abs(of.x) > 0.5),
    "hardsigmoid": lambda of: np.minimum(np.maximum(of.x / 6 + 0.5, 0), 1),
    "hardswish": lambda of: of.x * np.minimum(np.maximum(of.x / 6 + 0.5, 0), 1),
    "hardtanh": lambda of: np.minimum(np.maximum(of.x, -1), 1),
    "logsigmoid": lambda of: np.log(1 / (1 + np.exp(-of.x))),
    "mish": lambda of: of.x * np.tanh(softplus(of.x)),
    "prelu": lambda of: np.maximum(of.x, 0) + of.slope * np.minimum(of.x, 0),
    "relu6": lambda of: np.minimum(np.maximum(of.x, 0), 6),
    "selu": lambda of: (
        1.0507009873554805
        * (np.maximum(of.x, 0) + 1.6732632423543772 * (np.exp(np.minimum(of.x, 0)) - 1))
    ),
    "softmin": lambda of: special.softmax(-of.x, 1),
    "softshrink": lambda of: np.sign(of.x) * np.maximum(abs(of.x) - 0.5, 0),
    "softsign": lambda of: of.x / (1 + abs(of.x)),
    "tanhshrink": lambda of: of.x - np.tanh(of.x),
    "threshold": lambda of: np.where(of.x > 0.1, of.x, 20.0),
    "mse_loss": lambda of: ((of.x - of.y) ** 2).mean(),
    "l1_loss": lambda of: abs(of.x - of.y).mean(),
    "huber_loss": hubers,
    "smooth_l1_loss": lambda of: hubers(of) / of.beta,
    "binary_cross_entropy": lambda of: entropy(of.p, of.q),
    "binary_cross_entropy_with_logits": lambda of: entropy(1 / (1 + np.exp(-of.x)), of.q),
    "kl_div": lambda of: (of.q * np.log(of.q / of.p)).mean(),
    "nll_loss": lambda of: -np.mean([of.x[at, label] for at, label in enumerate(of.labels)]),
    "poisson_nll_loss": lambda of: (np.exp(of.x) - of.q * of.x).mean(),
    "gaussian_nll_loss": lambda of: 0.5 * np.mean(np.log(of.p) + (of.x - of.y) ** 2 / of.p),
    "soft_margin_loss": lambda of: softplus(-of.sign * of.x).mean(),
    "hinge_embedding_loss": lambda of: np.mean(
        [
            each if s == 1 else max(0, 1 - each)
            for each, s in zip(of.x.flat, of.sign.flat, strict=True)
        ]
    ),
    "margin_ranking_loss": lambda of: np.maximum(0, -of.sign * (of.x - of.y)).mean(),
}


class Drawn:
    """Arguments of the examples."""

    def __init__(self, random: np.random.Generator) -> None:
        n, m, self.half = 4, 6, 3
        self.n, self.beta = n, 0.7
        self.b, self.c, self.h, self.w = 2, 2, 3, 5
        self.x, self.y = random.normal(scale=3, size=(2, n, m))
        self.p, self.q = random.uniform(0.1, 0.9, (2, n, m))
        self.sign = random.choice([-1.0, 1.0], (n, m))
        self.weight, self.bias = random.normal(size=(5, m)), random.normal(size=5)
        self.cube, self.slope = random.normal(size=(3, m, m)), random.uniform(size=m)
        self.labels = random.integers(0, n, n)
        self.image = random.normal(size=(self.b, 4 * self.c, self.h, self.w))
        self.large = shuffled(self.image)


@pytest.mark.parametrize("name", EXAMPLES)
@on_shared
async def test_code_for_a_function_of_pytorchs(device: Device, name: str) -> None:
    drawn = Drawn(np.random.default_rng(len(name)))
    values: dict[str, Any] = {"device": device, "np": np, "special": special, "train": train}
    for each, value in vars(drawn).items():
        values[each] = await device.put(value) if isinstance(value, np.ndarray) else value
    code = compile(EXAMPLES[name], name, "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(code, values)
    made = await made if inspect.iscoroutine(made) else made
    got = await device.get(made)
    np.testing.assert_allclose(got, EXPECTED[name](drawn), 1e-9, 1e-12)
