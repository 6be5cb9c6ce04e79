"""Speculative decoding of a GPT-2 of 124M parameters, next to decoding it token by token.

All steps are recorded. The draft is the target's first layers, and the later layers change little.
The rate at which both agree is therefore an option (``--share``). Measured is the cost of a step:
the target's step of some tokens, the draft's step, and the decision. The decision is made by NumPy
on logits that are fetched to the program, or on the device. Ways alternate, and the median of their
rounds is printed.

On the CPU backend a smaller model is the default.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Device, GpuRef, open_device
from atomr_accel.patterns import (
    Draft,
    DraftTree,
    ModelDraft,
    Sampling,
    SpeculativeStatistics,
    Verdict,
    draw_token,
    judge_chain,
    open_speculative,
)

PROMPT, LENGTH = 64, 512
ROUNDS = 3

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Shape:
    """Shape of the models, and the number of drafts in a row."""

    layers: int
    draft_layers: int
    width: int
    heads: int
    vocabulary: int
    drafts: int
    share: float


def weights(shape: Shape) -> dict[str, Array]:
    """Random ones, by name; layers behind the draft's add ``share`` of what those add."""
    rng = np.random.default_rng(0)
    width = shape.width

    def of(rows: int, columns: int, scale: float) -> Array:
        return (scale * rng.standard_normal((rows, columns), np.float32)).astype(np.float16)

    made = {"wte": of(shape.vocabulary, width, 1), "wpe": of(LENGTH, width, 0.3)}
    made["head"] = of(shape.vocabulary, width, 3 / width**0.5)
    for layer in range(shape.layers):
        share = 1.0 if layer < shape.draft_layers else shape.share
        for name, rows, columns, scale in (
            *(("qkv", width, 3 * width, 1.0), ("o", width, width, share)),
            *(("up", width, 4 * width, 1.0), ("down", 4 * width, width, share)),
        ):
            made[f"{layer}.{name}"] = of(rows, columns, scale / rows**0.5)
    return made | {"ones": np.ones(width, np.float16), "zeros": np.zeros(width, np.float16)}


class Net:
    """A model with a dense cache for one text; rows past its length are ignored."""

    def __init__(self, shape: Shape, w: dict[str, GpuRef], layers: int) -> None:
        self.shape = shape
        self.w = w
        self.layers = layers
        self.k: GpuRef
        self.v: GpuRef

    async def open(self, device: Device) -> None:
        """Make the cache."""
        size = self.shape.width // self.shape.heads
        cache = (self.layers, 1, LENGTH, self.shape.heads, size)
        self.k, self.v = [await device.put(np.zeros(cache, np.float16)) for _ in "kv"]

    def hidden(self, on: Any, tokens: GpuRef, length: GpuRef) -> Any:
        """Return the hidden state before the logits.

        Args:
            on: a recording.
            tokens: int32, (new,).
            length: the length of the cache before, int32 (1,).
        """
        w, width = self.w, self.shape.width
        (new,) = tokens.shape
        heads = (1, new, 3, self.shape.heads, width // self.shape.heads)
        places = on.array.take(w["wpe"], on.evaluate(w["numbers"][:new] + length), axis=0)
        x = on.evaluate(on.array.take(w["wte"], tokens, axis=0) + places)
        for layer in range(self.layers):
            y = on.dnn.layer_norm(x, w["ones"], w["zeros"])
            qkv = on.blaslt.matmul(y, w[f"{layer}.qkv"]).reshape(heads)
            q, k, v = (qkv[:, :, part] for part in range(3))
            y = on.dnn.flash_attention_with_kvcache(
                q, self.k[layer], self.v[layer], k, v, cache_seqlens=length, causal=True
            )
            x = on.blaslt.matmul(y.reshape(new, width), w[f"{layer}.o"], c=x, beta=1.0)
            y = on.dnn.layer_norm(x, w["ones"], w["zeros"])
            y = on.blaslt.matmul(y, w[f"{layer}.up"], epilogue="gelu")
            x = on.blaslt.matmul(y, w[f"{layer}.down"], c=x, beta=1.0)
        return x

    def logits(self, on: Any, x: GpuRef) -> Any:
        """Float32, a row for each of ``x``."""
        y = on.dnn.layer_norm(x, self.w["ones"], self.w["zeros"])
        return on.blaslt.matmul(y, self.w["head"], trans_b=True, dtype=np.float32)


class Step(NamedTuple):
    """A recorded step: its input (tokens and the length before), and its results."""

    recording: Any
    feed: GpuRef
    noise: GpuRef | None
    results: tuple[GpuRef, ...]


class Steps:
    """The recorded steps of both models, made when they are first asked for.

    Attributes:
        q: the distribution of the drafts: the draft's steps write it, the target's read it.
        none: the same for a step without drafts.
        drawn: the drafts.
    """

    def __init__(self, device: Device, target: Net, draft: Net, shape: Shape) -> None:
        self.device = device
        self.target = target
        self.draft = draft
        self.shape = shape
        self.made: dict[tuple[str, int], Step] = {}
        self.q: GpuRef
        self.none: GpuRef
        self.drawn: GpuRef

    async def open(self) -> None:
        """Make what steps share."""
        rows = (self.shape.drafts + 1, self.shape.vocabulary)
        self.q = await self.device.put(np.zeros(rows, np.float32))
        self.none = await self.device.put(np.zeros((1, self.shape.vocabulary), np.float32))
        self.drawn = await self.device.put(np.zeros(self.shape.drafts, np.int32))

    async def run(self, kind: str, tokens: Sequence[int], length: int) -> list[Array]:
        """Replay a step for that many tokens; its results."""
        step = self.made.get((kind, len(tokens)))
        if step is None:
            step = self.made[kind, len(tokens)] = await self.record(kind, len(tokens))
        await self.device.put(np.array([*tokens, length], np.int32), out=step.feed)
        if step.noise is not None:
            await self.device.rng.exponential(out=step.noise)
        await step.recording.replay()
        return [await self.device.get(each) for each in step.results]

    async def record(self, kind: str, new: int) -> Step:
        """Make a step."""
        device, rows = self.device, self.shape.drafts if kind == "chain" else new
        feed = await device.put(np.zeros(new + 1, np.int32))
        noise = None
        if kind in {"chain", "judged"}:
            noise = await device.empty((rows, self.shape.vocabulary), np.float32)
        make: Any = {
            "prefill": self._prefill,
            "prefill of the draft": partial(self._prefill, net=self.draft),
            "logits": self._logits,
            "logits of the draft": partial(self._logits, net=self.draft),
            "judged": self._judged,
            "chain": self._chain,
        }[kind]
        async with device.record(shared=True) as on:
            results = make(on, feed[:new], feed[new:], feed=feed, noise=noise)
        return Step(on, feed, noise, results)

    def _prefill(
        self, on: Any, tokens: GpuRef, length: GpuRef, *, net: Net | None = None, **_: Any
    ) -> tuple[GpuRef, ...]:
        (net or self.target).hidden(on, tokens, length)
        return ()

    def _logits(
        self, on: Any, tokens: GpuRef, length: GpuRef, *, net: Net | None = None, **_: Any
    ) -> tuple[GpuRef, ...]:
        net = net or self.target
        return (net.logits(on, net.hidden(on, tokens, length)),)

    def _judged(
        self, on: Any, tokens: GpuRef, length: GpuRef, *, feed: GpuRef, noise: GpuRef
    ) -> tuple[GpuRef, ...]:
        logits = self.target.logits(on, self.target.hidden(on, tokens, length))
        q = self.none if tokens.shape == (1,) else self.q
        judged: tuple[GpuRef, ...] = on.evaluate(
            *judge_chain(logits, q, feed[1:], noise, self.target.w["numbers"])
        )
        return judged

    def _chain(
        self, on: Any, tokens: GpuRef, length: GpuRef, *, noise: GpuRef, **_: Any
    ) -> tuple[GpuRef, ...]:
        """All drafts of a step: each is the next one's token, and none leaves the device."""
        for at in range(self.shape.drafts):
            logits = self.draft.logits(on, self.draft.hidden(on, tokens, length)[-1:])
            q, token = draw_token(logits, noise[at : at + 1])
            length = on.evaluate(length + tokens.shape[0])
            tokens = self.drawn[at : at + 1]
            on.evaluate(q, token.astype(np.int32), out=(self.q[at : at + 1], tokens))
        return (self.drawn,)


class Text:
    """A text in a dense cache: to forget is to say that it is shorter."""

    def __init__(self, steps: Steps, kind: str, length: int) -> None:
        self.steps = steps
        self.kind = kind
        self.length = length

    async def forward(self, tokens: Array, parents: Array) -> Any:
        """Logits, or a verdict."""
        behind = int(parents[0]) + 1  # nodes of earlier calls
        given = tokens.tolist()
        results = await self.steps.run(self.kind, given, self.length + behind)
        if self.kind == "judged":
            likely, instead = results
            return Verdict(likely[:-1], instead)
        return results[0]

    def keep(self, path: Array) -> None:
        """Add the path to the length; later steps write over the rest."""
        self.length += len(path)

    def close(self) -> None:
        """Keep the cache for the next text."""


class Chain:
    """Drafts on the device, all of a step in one replay."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.cached = 0
        self.length = 0

    def begin(self, _prompt: Sequence[int]) -> Chain:
        """One text at a time."""
        self.cached = 0
        return self

    async def propose(
        self, text: Sequence[int], shape: Sequence[int], _sampling: Any, _rng: Any
    ) -> DraftTree:
        """Draft."""
        assert len(shape) == self.steps.shape.drafts
        if not self.cached:
            self.cached = len(text) - 1
            await self.steps.run("prefill of the draft", text[:-1], 0)
        self.length = len(text)
        (tokens,) = await self.steps.run("chain", text[self.cached :], self.cached)
        tree = DraftTree()
        tree.add_chain(tokens.tolist())
        return tree

    def keep(self, path: Sequence[int]) -> None:
        """The last draft is not in the cache: nothing was computed of it."""
        self.cached = self.length + min(len(path), self.steps.shape.drafts - 1)

    def drop(self) -> None:
        """The next text begins with a prefill."""
        self.cached = 0


async def generate(
    steps: Steps, kind: str, drafted: str | None, prompt: list[int], count: int
) -> tuple[float, SpeculativeStatistics]:
    """Seconds for a token, after the first few; and what the decoder says."""

    async def prefill(tokens: Array, name: str = "prefill", step: str = kind) -> Text:
        await steps.run(name, tokens.tolist(), 0)
        return Text(steps, step, len(tokens))

    draft: Draft | None = None
    if drafted == "model":
        small = partial(prefill, name="prefill of the draft", step="logits of the draft")
        draft = ModelDraft(small)
    elif drafted == "chain":
        draft = Chain(steps)
    async with open_speculative(
        prefill, draft, sampling=Sampling(), length=steps.shape.drafts, rng=0
    ) as decoder:
        tokens = decoder.generate(prompt)
        for _ in range(8):
            await anext(tokens)
        begun, before = time.perf_counter(), decoder.statistics().tokens
        while decoder.statistics().tokens < before + count:
            await anext(tokens)
        seconds = time.perf_counter() - begun
        seen = decoder.statistics()
    return seconds / (seen.tokens - before), seen


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("layers", "draft-layers", "width", "heads", "vocabulary", "drafts", "tokens"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--share", type=float, default=0.05)
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    warnings.simplefilter("ignore", CpuFallbackWarning)
    async with open_device(0) as device:
        small = {"layers": 6, "draft_layers": 1, "width": 128, "heads": 4, "vocabulary": 512}
        large = {"layers": 12, "draft_layers": 2, "width": 768, "heads": 12, "vocabulary": 50257}
        wanted = (small if device.backend == "cpu" else large) | {"drafts": 4, "tokens": 100}
        wanted |= given
        count = int(wanted.pop("tokens"))
        if PROMPT + 2 * wanted["drafts"] + 16 + count > LENGTH:
            parser.error(f"a text may have {LENGTH} tokens")
        shape = Shape(**wanted)
        print(f"{device.info.name}, backend {device.backend}, Python {sys.version.split()[0]}")
        print(shape, flush=True)
        w = {n: await device.put(each, sealed=True) for n, each in weights(shape).items()}
        numbers = np.arange(max(LENGTH, shape.vocabulary), dtype=np.int32)
        w["numbers"] = await device.put(numbers[: shape.vocabulary], sealed=True)
        nets = Net(shape, w, shape.layers), Net(shape, w, shape.draft_layers)
        for net in nets:
            await net.open(device)
        steps = Steps(device, *nets, shape)
        await steps.open()
        prompt = np.random.default_rng(1).integers(shape.vocabulary, size=PROMPT).tolist()
        ways: dict[str, tuple[str, str | None]] = {
            "one by one, decided by NumPy": ("logits", None),
            "one by one, on the device": ("judged", None),
            "drafts, decided by NumPy": ("logits", "model"),
            "drafts, on the device": ("judged", "chain"),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        seen: dict[str, SpeculativeStatistics] = {}
        for turn in range(1 + ROUNDS):
            for name, (kind, drafted) in ways.items():
                seconds, seen[name] = await generate(steps, kind, drafted, prompt, count)
                if turn:  # the first one records
                    times[name].append(seconds)
        print(f"{'':32}{'us a token':>12}{'speed-up':>10}{'tokens a step':>15}{'kept':>7}")
        base = min(statistics.median(times[name]) for name in [*ways][:2])
        for name, each in times.items():
            middle, stats = statistics.median(each), seen[name]
            print(
                f"{name:32}{middle * 1e6:12.0f}{base / middle:10.2f}"
                f"{stats.tokens_per_step:15.2f}{stats.acceptance_length:7.2f}"
            )


if __name__ == "__main__":
    trio.run(main)
