"""Functions of ``torch.nn.functional``, and the code to write for some of them."""

from __future__ import annotations

from typing import Final

TORCH: Final = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
adaptive_max_pool3d affine_grid alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm bilinear
binary_cross_entropy binary_cross_entropy_with_logits celu channel_shuffle conv1d conv2d conv3d
conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d cosine_embedding_loss cosine_similarity
cross_entropy ctc_loss dropout dropout1d dropout2d dropout3d elu embedding embedding_bag
feature_alpha_dropout fold fractional_max_pool2d fractional_max_pool3d gaussian_nll_loss gelu glu
grid_sample group_norm gumbel_softmax hardshrink hardsigmoid hardswish hardtanh hinge_embedding_loss
huber_loss instance_norm interpolate kl_div l1_loss layer_norm leaky_relu linear local_response_norm
log_softmax logsigmoid lp_pool1d lp_pool2d lp_pool3d margin_ranking_loss max_pool1d max_pool2d
max_pool3d max_unpool1d max_unpool2d max_unpool3d mish mse_loss multi_head_attention_forward
multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss native_channel_shuffle nll_loss
normalize one_hot pad pairwise_distance pdist pixel_shuffle pixel_unshuffle poisson_nll_loss prelu
relu relu6 rms_norm rrelu scaled_dot_product_attention selu sigmoid silu smooth_l1_loss
soft_margin_loss softmax softmin softplus softshrink softsign tanh tanhshrink threshold
triplet_margin_loss triplet_margin_with_distance_loss unfold upsample
""".split()  # noqa: SIM905 - a list of a hundred
"""PyTorch 2.9's, without deprecated ones and those that write to their argument."""

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
