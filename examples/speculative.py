"""Speculative decoding with a GPT-2 of our own, whose first layer drafts for all six.

The later layers change little, as those of trained models do for most tokens, so the first one
alone often says the same. Both models keep keys and values in pages, which are trimmed to the
accepted tokens; and when the device faults in the middle of a text, not a token of it changes.
"""

import time
import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Device, GpuRef, open_device
from atomr_accel.patterns import ModelDraft, Sampling, open_speculative
from atomr_accel.testing import poison

LAYERS, HEADS, SIZE, VOCABULARY, LENGTH, TOKENS = 6, 4, 16, 256, 64, 32
WIDTH = HEADS * SIZE


def make_weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random ones. The first layer adds more than twelve times as much as each later one."""
    shapes = {"wte": VOCABULARY, "wpe": LENGTH, "head": VOCABULARY}
    made = {name: rng.normal(0, 1, (rows, WIDTH)) for name, rows in shapes.items()}
    made |= {"ones": np.ones(WIDTH), "zeros": np.zeros(WIDTH)}
    for layer in range(LAYERS):
        share = 1.0 if layer == 0 else 0.08
        for name, rows, columns, scale in (
            ("qkv", WIDTH, 3 * WIDTH, 1.0),
            ("proj", WIDTH, WIDTH, share),
            ("up", WIDTH, 4 * WIDTH, 1.0),
            ("down", 4 * WIDTH, WIDTH, share),
        ):
            made[f"{layer}.{name}"] = rng.normal(0, scale / np.sqrt(rows), (rows, columns))
    return {name: array.astype(np.float16) for name, array in made.items()}


class Gpt:
    """A model of some layers. Called with tokens, it puts them into its cache."""

    def __init__(self, device: Device, weights: dict[str, GpuRef], layers: int) -> None:
        self.device, self.w, self.layers = device, weights, layers
        self.generation = 0

    async def __call__(self, tokens: np.ndarray) -> "Text":
        """Prefill."""
        if self.generation != self.device.generation:  # a fault took the cache; weights are sealed
            self.cache = await self.device.dnn.kv_cache(
                64, 16, HEADS, SIZE, layers=self.layers, dtype="float16"
            )
            self.generation = self.device.generation
        text = Text(self)
        try:
            if len(tokens):
                await text.forward(tokens, np.arange(-1, len(tokens) - 1))
                text.keep(np.arange(len(tokens)))
        except BaseException:
            text.close()
            raise
        return text


class Text:
    """One text in the cache. Drafts are chains here, so a node's parent is the one before."""

    def __init__(self, model: Gpt) -> None:
        self.model, self.cache, self.length = model, model.cache, 0
        self.sequence = self.cache.new()

    async def forward(self, tokens: np.ndarray, _parents: np.ndarray) -> np.ndarray:
        """Return the logits after each token."""
        device, w = self.model.device, self.model.w
        ids = await device.put(tokens)
        at = self.cache.length(self.sequence)
        places = w["wpe"][at : at + len(tokens)]
        x = await device.evaluate(await device.array.take(w["wte"], ids, axis=0) + places)
        for layer in range(self.model.layers):
            y = await device.dnn.layer_norm(x, w["ones"], w["zeros"])
            qkv = await device.blaslt.matmul(y, w[f"{layer}.qkv"])
            q, k, v = (qkv.reshape(1, -1, 3, HEADS, SIZE)[:, :, part] for part in range(3))
            y = await self.cache.attend(q, [self.sequence], k, v, layer=layer, causal=True)
            y = y.reshape(-1, WIDTH)
            x = await device.blaslt.matmul(y, w[f"{layer}.proj"], c=x, beta=1.0)
            y = await device.dnn.layer_norm(x, w["ones"], w["zeros"])
            y = await device.blaslt.matmul(y, w[f"{layer}.up"], epilogue="gelu")
            x = await device.blaslt.matmul(y, w[f"{layer}.down"], c=x, beta=1.0)
        x = await device.dnn.layer_norm(x, w["ones"], w["zeros"])
        logits = device.blaslt.matmul(x, w["head"], trans_b=True, dtype=np.float32)
        return await device.get(await logits)

    def keep(self, path: np.ndarray) -> None:
        """Forget all later tokens."""
        self.length += len(path)
        self.cache.trim(self.sequence, self.length)

    def close(self) -> None:
        """Free the pages."""
        self.cache.free(self.sequence)


async def main() -> None:
    """Decode one by one, then with drafts, then with a fault in the middle, and compare."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(VOCABULARY, size=16).tolist()
    async with open_device(0) as device:
        w = {name: await device.put(a, sealed=True) for name, a in make_weights(rng).items()}
        target, draft = Gpt(device, w, LAYERS), ModelDraft(Gpt(device, w, 1))
        texts, seconds = [], []
        for drafts, faults in ((None, False), (draft, False), (draft, True)):
            async with open_speculative(
                target, drafts, sampling=Sampling(temperature=0)
            ) as decoder:
                begun, text = time.perf_counter(), list[int]()
                async for token in decoder.generate(prompt, max_tokens=TOKENS):
                    text.append(token)
                    if faults and len(text) == TOKENS // 2:
                        await poison(device)
                texts.append(text)
                seconds.append(time.perf_counter() - begun)
            seen = decoder.statistics()
            assert seen.prefills == 1 + faults
            assert seen.steps == TOKENS if drafts is None else seen.steps < TOKENS
            kept = seen.acceptance_length
            print(
                f"{seen.tokens_per_step:.2f} tokens a step of the target, {kept:.2f} of them drafts"
            )

        # Each token is the best that the target would have said, whatever fp16 has rounded.
        whole = await target(np.empty(0, np.int64))
        for text in texts:
            tokens = np.array([*prompt, *text])
            logits = (await whole.forward(tokens, np.arange(-1, len(tokens) - 1)))[15:-1]
            whole.keep(np.empty(0, np.int64))
            short = logits.max(axis=-1) - logits[np.arange(TOKENS), text]
            assert short.max() < 0.25, short.max()
        whole.close()
        ratio = seconds[0] / seconds[1]
        print(f"GPT-2 on {device.backend}: {ratio:.2f} times as fast as one by one; {texts[1][:8]}")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
