"""GPT-2, small and untrained: from token ids to sampled tokens, as one recording.

Look at ``forward``, where everything between the products is views, expressions and library calls,
and at ``sample``: temperature, top-k and the draw stay on the device. Each token is one ``replay``.
"""

import warnings
from typing import Any

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, GpuRef, open_device

LAYERS, HEADS, SIZE, VOCABULARY, LENGTH = 2, 4, 16, 256, 32
WIDTH = HEADS * SIZE
TEMPERATURE, TOP_K, DRAWS, TOKENS = 1.5, 10, 4096, 8


def make_weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random ones, under the names of GPT-2's checkpoints."""
    shapes: dict[str, tuple[int, ...]] = {"wte": (VOCABULARY, WIDTH), "wpe": (LENGTH, WIDTH)}
    shapes |= {"ln_f.g": (WIDTH,), "ln_f.b": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {f"{layer}.ln_{i}.{part}": (WIDTH,) for i in (1, 2) for part in "gb"}
        for name, rows, columns in (
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, 4 * WIDTH),
            ("mlp.c_proj", 4 * WIDTH, WIDTH),
        ):
            shapes |= {f"{layer}.{name}.w": (rows, columns), f"{layer}.{name}.b": (columns,)}
    made = {}
    for name, shape in shapes.items():
        array = rng.normal(0, 1 / np.sqrt(shape[0]) if name.endswith(".w") else 0.1, shape)
        made[name] = (array + name.endswith(".g")).astype(np.float16)
    return made


def rotate(x: GpuRef, cos: GpuRef, sin: GpuRef) -> Any:
    """Rotary positions for queries and keys at once: each pair of numbers is turned by an angle.

    GPT-2 has learned positions, added to its embeddings (``wpe``). They are here, too; rotations
    are what most models since then have in their place.
    """
    return x * cos + x[..., ::-1, :] * sin  # the halves of a head change places: a view


def tables() -> list[np.ndarray]:
    """Cosines and signed sines, of shapes that broadcast over queries and keys, and over heads."""
    angles = np.outer(np.arange(LENGTH), 100.0 ** -np.linspace(0, 1, SIZE // 2, endpoint=False))
    cos, sin = np.cos(angles), np.sin(angles)
    pair = np.stack([cos, cos], 1), np.stack([-sin, sin], 1)  # (LENGTH, 2, SIZE / 2)
    return [each[:, None, None].astype(np.float16) for each in pair]


def forward(recording: Any, turn: Any, w: dict[str, GpuRef], tokens: GpuRef) -> Any:
    """Return the logits after the last token."""
    heads = (1, LENGTH, HEADS, SIZE)

    def norm(x: GpuRef, name: str) -> Any:
        return recording.dnn.layer_norm(x, w[f"{name}.g"], w[f"{name}.b"])

    def linear(x: GpuRef, name: str, **options: Any) -> Any:
        return recording.blaslt.matmul(x, w[f"{name}.w"], bias=w[f"{name}.b"], **options)

    x = recording.evaluate(recording.array.take(w["wte"], tokens, axis=0, mode="clip") + w["wpe"])
    for layer in range(LAYERS):
        qkv = linear(norm(x, f"{layer}.ln_1"), f"{layer}.attn.c_attn")
        qk = qkv[:, : 2 * WIDTH].reshape(LENGTH, 2, HEADS, 2, SIZE // 2)  # views of one product
        qk = recording.using(turn)(qk, w["cos"], w["sin"])
        q, k, v = (each.reshape(heads) for each in (qk[:, 0], qk[:, 1], qkv[:, 2 * WIDTH :]))
        y = recording.dnn.flash_attention(q, k, v, causal=True).reshape(LENGTH, WIDTH)
        x = linear(y, f"{layer}.attn.c_proj", c=x, beta=1.0)  # adds x
        y = linear(norm(x, f"{layer}.ln_2"), f"{layer}.mlp.c_fc", epilogue="gelu_bias")
        x = linear(y, f"{layer}.mlp.c_proj", c=x, beta=1.0)
    last = norm(x, "ln_f")[-1:]
    return recording.blaslt.matmul(last, w["wte"], trans_b=True, dtype=np.float32)[0]


def sample(recording: Any, logits: GpuRef, noise: GpuRef) -> tuple[GpuRef, GpuRef]:
    """The most probable tokens, and one of them by chance for each row of noise."""
    values, places = recording.array.topk(logits, TOP_K)
    e = np.exp((values - values.max()) / TEMPERATURE)
    p = e / e.sum()
    # The least of exponential times, each divided by its rate, is the first with that probability.
    drawn = recording.evaluate((noise / p).argmin(axis=-1))
    return places, recording.array.take(places, drawn, mode="clip")


async def main() -> None:
    """Record it, compare it with NumPy in float64, and generate."""
    rng = np.random.default_rng()
    weights = make_weights(rng)
    prompt = rng.integers(VOCABULARY, size=LENGTH)
    async with open_device(0) as device:
        named = weights | dict(zip(("cos", "sin"), tables(), strict=True))
        w = {name: await device.put(array, sealed=True) for name, array in named.items()}
        tokens = await device.put(prompt)
        noise = await device.rng.exponential(size=(DRAWS, TOP_K), dtype=np.float32)
        turn = device.fuse(rotate)
        async with device.record(tokens, noise) as recording:
            logits = forward(recording, turn, w, tokens)
            top, drawn = sample(recording, logits, noise)
            # The window moves by a token, so that the next replay goes on from there.
            recording.copy(recording.array.concatenate([tokens[1:], drawn[:1]]), tokens)

        await recording.replay()
        got, best, draws = [await device.get(each) for each in (logits, top, drawn)]
        for _ in range(TOKENS - 1):
            window = await device.get(tokens)
            await device.rng.exponential(out=noise)  # a replay would draw the same again
            await recording.replay()
        text, final = await device.get(tokens), await device.get(logits)

    for result, ids in ((got, prompt), (final, window)):
        expected = reference(weights, ids)
        error = np.abs(result - expected).max() / np.abs(expected).max()
        assert error < 0.02, error
    assert set(best) == set(np.argsort(got)[-TOP_K:]), best
    p = np.exp((got[best] - got.max()) / TEMPERATURE)
    told = p / p.sum()
    found = (draws[:, None] == best).mean(axis=0)
    np.testing.assert_allclose(found, told, atol=6 * np.sqrt(0.25 / DRAWS))
    assert text[-TOKENS] == draws[0]
    np.testing.assert_array_equal(text[:-TOKENS], prompt[TOKENS:])
    print(f"logits: off by {error:.1e} of the largest; sampled among {best.tolist()}")
    print(f"the first has probability {told[0]:.3f}, and was drawn in {found[0]:.3f} of {DRAWS}")
    print(f"GPT-2 on {device.backend}: {TOKENS} tokens, {text[-TOKENS:].tolist()}")


def reference(weights: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Return the logits in float64."""
    w = {name: array.astype(float) for name, array in weights.items()}
    cos, sin = (each.astype(float) for each in tables())

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return np.asarray(x * w[f"{name}.g"] + w[f"{name}.b"])

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(x @ w[f"{name}.w"] + w[f"{name}.b"])

    x = w["wte"][tokens] + w["wpe"]
    for layer in range(LAYERS):
        qkv = linear(norm(x, f"{layer}.ln_1"), f"{layer}.attn.c_attn")
        qkv = qkv.reshape(LENGTH, 3, HEADS, 2, SIZE // 2)
        qk = qkv[:, :2] * cos + qkv[:, :2, :, ::-1] * sin
        q, k = (qk[:, i].reshape(LENGTH, HEADS, SIZE) for i in range(2))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(SIZE)
        p = np.exp(np.where(np.tri(LENGTH, dtype=bool), scores, -np.inf))
        p /= p.sum(-1, keepdims=True)
        y = np.einsum("hqk,khd->qhd", p, qkv[:, 2].reshape(LENGTH, HEADS, SIZE))
        x = x + linear(y.reshape(LENGTH, WIDTH), f"{layer}.attn.c_proj")
        h = linear(norm(x, f"{layer}.ln_2"), f"{layer}.mlp.c_fc")
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        x = x + linear(h, f"{layer}.mlp.c_proj")
    return np.asarray(norm(x, "ln_f")[-1] @ w["wte"].T)


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
