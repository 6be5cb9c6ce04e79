"""The code to write for functions of ``torch.nn.functional`` that have no method of their name."""

from __future__ import annotations

from typing import Final

_DIMENSIONS: Final = {
    **{f"conv{n}d": "device.dnn.conv" for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": "device.dnn.conv_transpose" for n in (1, 2, 3)},
    **{f"{kind}_pool{n}d": f"device.dnn.{kind}_pool" for kind in ("avg", "max") for n in (1, 2, 3)},
    **{f"max_unpool{n}d": "device.dnn.max_unpool" for n in (1, 2, 3)},
    **{
        f"adaptive_{kind}_pool{n}d": f"device.dnn.adaptive_{kind}_pool"
        for kind in ("avg", "max")
        for n in (1, 2, 3)
    },
}
"""Functions that are here for any number of dimensions."""

EXAMPLES: Final[dict[str, str]] = {
    # layers
    "linear": "x @ weight.T + bias",
    "bilinear": "await device.tensor.einsum('bi,oij,bj->bo', x, cube, y)",
    "embedding": "await device.array.take(weight, labels, axis=0)",
    "one_hot": "(labels[:, None] == await device.array.arange(n)).astype(np.int64)",
    "pad": "await device.array.pad(x, ((0, 0), (1, 2)))",
    "normalize": "x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)",
    "cosine_similarity": (
        "(x * y).sum(1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1))"
    ),
    "pairwise_distance": "np.linalg.norm(x - y + 1e-6, axis=1)",
    "pixel_shuffle": (
        "(await device.copy(image.reshape(b, c, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3)))"
        ".reshape(b, c, 2 * h, 2 * w)"
    ),
    "pixel_unshuffle": (
        "(await device.copy(large.reshape(b, c, h, 2, w, 2).transpose(0, 1, 3, 5, 2, 4)))"
        ".reshape(b, 4 * c, h, w)"
    ),
    "channel_shuffle": (
        "(await device.copy(image.reshape(b, 2, 2 * c, h, w).swapaxes(1, 2)))"
        ".reshape(b, 4 * c, h, w)"
    ),
    # activations
    "celu": "np.maximum(x, 0) + np.minimum(np.expm1(x), 0)",
    "glu": "x[:, :half] * special.expit(x[:, half:])",
    "hardshrink": "np.where(abs(x) > 0.5, x, 0)",
    "hardsigmoid": "np.clip(x + 3, 0, 6) / 6",
    "hardswish": "x * np.clip(x + 3, 0, 6) / 6",
    "hardtanh": "np.clip(x, -1, 1)",
    "logsigmoid": "-np.logaddexp(-x, 0)",
    "mish": "x * np.tanh(np.logaddexp(x, 0))",
    "prelu": "np.where(x > 0, x, slope * x)",
    "relu6": "np.clip(x, 0, 6)",
    "selu": "1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))",
    "softmin": "await device.array.softmax(-x, axis=1)",
    "softshrink": "np.where(abs(x) > 0.5, x - np.copysign(0.5, x), 0)",
    "softsign": "x / (1 + abs(x))",
    "tanhshrink": "x - np.tanh(x)",
    "threshold": "np.where(x > 0.1, x, 20)",
    # losses, of which train has the gradients
    "mse_loss": "train.mse(x, y)",
    "l1_loss": "train.mae(x, y)",
    "huber_loss": "train.huber(x, y, delta=beta)",
    "smooth_l1_loss": "train.huber(x, y, delta=beta) / beta",
    "binary_cross_entropy": "-(special.xlogy(q, p) + special.xlog1py(1 - q, -p)).mean()",
    "binary_cross_entropy_with_logits": "train.bce_with_logits(x, q)",
    "kl_div": "train.kl_div(np.log(p), q)",
    "nll_loss": "-(await device.array.take_along_axis(x, labels[:, None], 1)).mean()",
    "poisson_nll_loss": "(np.exp(x) - q * x).mean()",
    "gaussian_nll_loss": "(np.log(p) + np.square(x - y) / p).mean() / 2",
    "soft_margin_loss": "np.logaddexp(-sign * x, 0).mean()",
    "hinge_embedding_loss": "np.where(sign > 0, x, np.maximum(1 - x, 0)).mean()",
    "margin_ranking_loss": "np.maximum(-sign * (x - y), 0).mean()",
}
"""The code to write, with tests of its results; ``special`` is ``scipy.special``."""

INSTEAD: Final[dict[str, str]] = {
    **{name: f"await {call}(x, ...)" for name, call in _DIMENSIONS.items()},
    **EXAMPLES,
    "scaled_dot_product_attention": "await device.dnn.flash_attention(q, k, v)",
    "upsample": "await device.dnn.interpolate(x, size)",
}
"""The code to write for functions that have no method of their name."""
