"""A language model with random weights, served in this process: its speed.

The model has the shape of Llama 3.2 1B: 1.24 G parameters in bfloat16. Without a GPU it is a tiny
one on the CPU backend, which only shows that the program runs. Weights are pieces of one random
block, written once to a temporary folder.

    python tests/benchmarks/bench_serving_llm.py
    python tests/benchmarks/bench_serving_llm.py --parts decode,latency
    python tests/benchmarks/bench_serving_llm.py --without-torch

- ``decode``: milliseconds of a step of one token for each sequence, beside the time in which the
  memory of an H200 gives weights, keys and values. Contexts are empty memory, not computed ones.
- ``prefill``: tokens of prompts per second, beside those of transformers on the same weights.
- ``throughput``: generated tokens per second of 256 prompts of 256 tokens, beside those of
  transformers' continuous batching.
- ``latency``: time to the first token, and between tokens, of streams that begin together.

`bench_serving_faults.py` measures what faults cost. Where torch and transformers are installed,
they run in a process of their own. A part that fails prints its error, and the others go on; none
takes more than ``--seconds``.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import trio
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models

from atomr_accel import Device, Standby, open_device
from atomr_accel.backends import cuda
from atomr_accel.llm import (
    LanguageModel,
    LlamaModel,
    SamplingOptions,
    StepSlice,
    StepWork,
    TokenRequest,
    load_folder,
    open_language_model,
)

ON_CUDA: Final = cuda.why_absent() is None
PAGE: Final = 16
POOL: Final = 16_777_213
"""Random numbers of the weights, a prime."""
H200: Final = {(1, 512): 0.52, (32, 1024): 0.77, (256, 1024): 2.53}
"""Milliseconds in which an H200 reads weights, keys and values of a step."""
TORCH_SECONDS: Final = 60


@dataclass(frozen=True)
class ServingSizes:
    """Sizes of the model and of its requests."""

    hidden: int = 2048
    inner: int = 8192
    layers: int = 16
    heads: int = 32
    kv_heads: int = 8
    vocabulary: int = 128_256
    pages: int = 24_576
    decode: tuple[tuple[int, int], ...] = ((1, 512), (32, 1024), (256, 1024))
    prefill: tuple[tuple[int, int], ...] = ((1, 2048), (8, 1024))
    prompts: int = 256
    prompt: int = 256
    answer: int = 128
    streams: tuple[int, ...] = (1, 32, 256)
    repeats: int = 30


SMALL: Final = ServingSizes(
    hidden=64,
    inner=128,
    layers=2,
    heads=4,
    kv_heads=2,
    vocabulary=512,
    pages=1024,
    decode=((1, 32), (8, 64)),
    prefill=((1, 128), (4, 64)),
    prompts=16,
    prompt=16,
    answer=16,
    streams=(1, 8),
    repeats=5,
)

TORCH: Final = """if True:
    import json, sys, time, torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    folder, parts = sys.argv[1], json.loads(sys.argv[2])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).cuda().eval()
    words = model.config.vocab_size
    torch.manual_seed(0)

    @torch.no_grad()
    def prefill(rows, length):
        tokens = torch.randint(words, (rows, length), device="cuda")
        rate = 0.0
        for _ in range(4):
            torch.cuda.synchronize()
            began = time.perf_counter()
            model(tokens, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1).cpu()
            rate = max(rate, rows * length / (time.perf_counter() - began))
        return rate

    def batching(rows, length, answer):
        model.generation_config = GenerationConfig(
            max_new_tokens=answer, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        prompts = torch.randint(words, (rows, length)).tolist()
        began = time.perf_counter()
        done = model.generate_batch(inputs=prompts, generation_config=model.generation_config)
        made = sum(len(each.generated_tokens) for each in done.values())
        return made / (time.perf_counter() - began)

    for name, *sizes in parts:
        try:
            found = {"prefill": prefill, "throughput": batching}[name](*sizes)
            print(json.dumps([name, sizes, found]), flush=True)
        except Exception as error:
            print(json.dumps([name, sizes, repr(error)[:300]]), flush=True)
"""


def make_folder(path: Path, size: ServingSizes) -> Path:
    """Make a folder of a model with random weights."""
    began = time.perf_counter()
    path.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.hidden // size.heads,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
    }
    (path / "config.json").write_text(json.dumps(config))
    words = {f"t{token}": token for token in range(size.vocabulary)}
    Tokenizer(models.WordLevel(words, "t0")).save(str(path / "tokenizer.json"))
    pool = np.random.default_rng(0).standard_normal(POOL, np.float32) * np.float32(0.02)
    numbers = pool.astype(ml_dtypes.bfloat16)
    tensors: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int) -> None:
        start = len(tensors) * 100_003 % POOL
        count = int(np.prod(shape))
        tensors[name] = np.resize(np.roll(numbers, -start), count).reshape(shape)

    kv = size.hidden * size.kv_heads // size.heads
    add("model.embed_tokens.weight", size.vocabulary, size.hidden)
    ones = np.ones(size.hidden, ml_dtypes.bfloat16)
    for layer in range(size.layers):
        at = f"model.layers.{layer}"
        for each, rows in (("q", size.hidden), ("k", kv), ("v", kv), ("o", size.hidden)):
            add(f"{at}.self_attn.{each}_proj.weight", rows, size.hidden)
        add(f"{at}.mlp.gate_proj.weight", size.inner, size.hidden)
        add(f"{at}.mlp.up_proj.weight", size.inner, size.hidden)
        add(f"{at}.mlp.down_proj.weight", size.hidden, size.inner)
        tensors[f"{at}.input_layernorm.weight"] = ones.copy()
        tensors[f"{at}.post_attention_layernorm.weight"] = ones.copy()
    tensors["model.norm.weight"] = ones.copy()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    total = sum(each.nbytes for each in tensors.values())
    print(
        f"{total / 1e9:.2f} GB of weights made in {time.perf_counter() - began:.1f} s", flush=True
    )
    return path


@dataclass
class Streamed:
    """Streams of one run.

    Attributes:
        tokens: tokens of each.
        times: when they came.
        began: when the streams began.
        lost: errors of streams.
        halfway: set when half of all tokens have come.
    """

    tokens: list[list[int]]
    times: list[list[float]]
    began: float = 0.0
    lost: list[str] = field(default_factory=list)
    halfway: trio.Event = field(default_factory=trio.Event)

    def pauses(self, when: float) -> list[tuple[float, float]]:
        """Return milliseconds before tokens that came after a time, and when these came."""
        return [
            ((later - earlier) * 1e3, later)
            for each in self.times
            for earlier, later in itertools.pairwise(each)
            if later > when
        ]

    def gaps(self) -> np.ndarray:
        """Milliseconds between tokens of all streams."""
        return np.concatenate([np.diff(each) for each in self.times]) * 1e3

    def firsts(self) -> np.ndarray:
        """Milliseconds to the first token of each stream."""
        return (np.array([each[0] for each in self.times]) - self.began) * 1e3


async def stream_all(
    model: LanguageModel,
    number: int,
    prompt: int,
    answer: int,
    *,
    temperature: float = 0.0,
    meanwhile: Callable[[Streamed], Awaitable[None]] | None = None,
) -> Streamed:
    """Run streams that begin together, and note when their tokens come."""
    rng = np.random.default_rng(number)
    prompts = rng.integers(model.vocabulary, size=(number, prompt)).tolist()
    found = Streamed([[] for _ in prompts], [[] for _ in prompts])
    left = number * answer // 2

    async def one(at: int) -> None:
        nonlocal left
        sampling = SamplingOptions(
            temperature=temperature, seed=at, max_tokens=answer, ignore_eos=True
        )
        try:
            async with model.generate(
                TokenRequest(prompt=tuple(prompts[at]), sampling=sampling)
            ) as pieces:
                async for piece in pieces:
                    found.times[at].append(time.perf_counter())
                    found.tokens[at].append(piece.token)
                    left -= 1
                    if left == 0:
                        found.halfway.set()
        except Exception as error:  # noqa: BLE001 (it is counted)
            found.lost.append(repr(error)[:200])

    async with trio.open_nursery() as nursery:
        found.began = time.perf_counter()
        for at in range(number):
            nursery.start_soon(one, at)
        if meanwhile is not None:
            nursery.start_soon(meanwhile, found)
    return found


class ServingBenchmark:
    """Parts of the benchmark on one device and model."""

    def __init__(self, device: Device, size: ServingSizes, folder: Path) -> None:
        self.device = device
        self.size = size
        self.folder = folder
        self.models: dict[str, LlamaModel] = {}
        self.torch: dict[str, float | str] = {}

    async def load(self, *, others: bool) -> None:
        """Load the model, and others without the promise of the same bits and durable.

        Args:
            others: whether to load these others.
        """
        wanted: dict[str, dict[str, bool]] = {"same bits in any batch": {}}
        if others:
            wanted["invariant=False"] = {"invariant": False}
            wanted["durable=True"] = {"durable": True}
        for name, options in wanted.items():
            self.models[name] = await load_model(self.device, self.folder, self.size, **options)

    @property
    def model(self) -> LlamaModel:
        """The model with the defaults."""
        return self.models["same bits in any batch"]

    @functools.cache  # noqa: B019 (one benchmark; a scheduler gives the same tuple each time, too)
    def _pages(self, at: int, each: int) -> tuple[int, ...]:
        return tuple(range(at * each, (at + 1) * each))

    def _slices(self, number: int, length: int, start: int, each: int) -> StepWork:
        """Return a step of sequences that have pages of their own."""
        return StepWork(
            slices=tuple(
                StepSlice(
                    sequence=at,
                    tokens=tuple((at * 7 + i) % self.size.vocabulary for i in range(length)),
                    start=start,
                    pages=self._pages(at, each),
                    sample=True,
                )
                for at in range(number)
            )
        )

    async def decode(self) -> None:
        """Steps of one token for each sequence."""
        for name, model in self.models.items():
            print(f"  {name}", flush=True)
            await self._decode(model)

    async def _decode(self, model: LlamaModel) -> None:
        plan = model._plan  # contexts need not be computed
        for number, length in self.size.decode:
            plan._filled[:] = PAGE
            repeats, warm = self.size.repeats, 6
            each = -(-(length + repeats + warm) // PAGE)
            choices = np.zeros((number, 2))
            whole, inside = [], []
            for at in range(repeats + warm):
                plan._filled[:] = PAGE
                work = self._slices(number, 1, length + at, each)
                began = time.perf_counter()
                use = plan.use(work)
                plan.check_filled(use, work)
                plan.inputs(use, work, choices)
                ended = time.perf_counter()
                await model.choose(work, choices, logits=False)
                if at >= warm:
                    inside.append((ended - began) * 1e3)
                    whole.append((time.perf_counter() - ended) * 1e3)
            step, numbers = np.median(whole), np.median(inside)
            line = (
                f"  {number:4} x {length:5,}: {step:8.2f} ms, of it {numbers:.2f} for its numbers"
            )
            limit = H200.get((number, length)) if ON_CUDA else None
            if limit is not None:
                line += (
                    f"; the memory of an H200 takes {limit:.2f} ms, {step / limit:.1f} times less"
                )
            print(line, flush=True)
            # With logits, which is what requests with top_p, penalties or grammars need.
            began = time.perf_counter()
            for at in range(3):
                plan._filled[:] = PAGE
                await model.step(self._slices(number, 1, length + warm + at, each))
            print(f"{'':17}{(time.perf_counter() - began) / 3e-3:8.2f} ms with logits", flush=True)

    async def prefill(self) -> None:
        """Prompts without streams."""
        for name, model in self.models.items():
            print(f"  {name}", flush=True)
            await self._prefill(model)

    async def _prefill(self, model: LlamaModel) -> None:
        for number, length in self.size.prefill:
            rates = []
            for _ in range(4):
                work = self._slices(number, length, 0, -(-length // PAGE))
                began = time.perf_counter()
                await model.choose(work, np.zeros((number, 2)), logits=False)
                rates.append(number * length / (time.perf_counter() - began))
            beside = self._beside("prefill", [number, length])
            print(f"  {number:4} x {length:5,}: {max(rates):10,.0f} tokens/s{beside}", flush=True)

    async def throughput(self) -> None:
        """Many prompts at once."""
        size = self.size
        for temperature in (0.0, 1.0):
            async with open_language_model(self.device, self.model) as model:
                began = time.perf_counter()
                found = await stream_all(
                    model, size.prompts, size.prompt, size.answer, temperature=temperature
                )
                seconds = time.perf_counter() - began
                steps = model.statistics().steps
            tokens = sum(map(len, found.tokens))
            beside = self._beside("throughput", [size.prompts, size.prompt, size.answer])
            print(
                f"  {size.prompts} prompts of {size.prompt}, temperature {temperature:g}: "
                f"{tokens / seconds:10,.0f} tokens/s in {steps} steps, lost "
                f"{len(found.lost)}{beside}",
                flush=True,
            )

    async def latency(self) -> None:
        """Streams that begin together."""
        size = self.size
        for number in size.streams:
            async with open_language_model(self.device, self.model) as model:
                found = await stream_all(model, number, size.prompt, size.answer // 2)
            first = np.percentile(found.firsts(), (50, 99))
            gap = np.percentile(found.gaps(), (50, 99))
            print(
                f"  {number:4} streams: first token p50 {first[0]:.1f}, p99 {first[1]:.1f} ms; "
                f"between tokens p50 {gap[0]:.2f}, p99 {gap[1]:.2f} ms",
                flush=True,
            )

    # --- transformers

    def measure_torch(self, parts: list[str]) -> None:
        """Measure transformers in a process of its own."""
        wanted: list[list[object]] = []
        if "prefill" in parts:
            wanted += [["prefill", *each] for each in self.size.prefill]
        if "throughput" in parts:
            wanted.append(["throughput", self.size.prompts, self.size.prompt, self.size.answer])
        if not wanted:
            return
        words = [sys.executable, "-c", TORCH, str(self.folder), json.dumps(wanted)]
        try:
            done = subprocess.run(
                words, check=False, capture_output=True, text=True, timeout=TORCH_SECONDS
            )
            told, errors = done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            told, errors = str(error.stdout or b"", "utf-8"), str(error.stderr or b"", "utf-8")
            print(f"  transformers took more than {TORCH_SECONDS} s", flush=True)
        for line in told.splitlines():
            if line.startswith("["):
                name, sizes, found = json.loads(line)
                self.torch[f"{name} {sizes}"] = found
        if not self.torch:
            print(f"  transformers: {errors[-500:]}", flush=True)

    def _beside(self, name: str, sizes: list[int]) -> str:
        found = self.torch.get(f"{name} {sizes}")
        if found is None:
            return ""
        said = f"{found:,.0f} tokens/s" if isinstance(found, float) else found
        return f"; transformers {said}"


PARTS: Final = ("decode", "prefill", "throughput", "latency")


async def load_model(
    device: Device, folder: Path, size: ServingSizes, **options: Any
) -> LlamaModel:
    """Load the model, and print how long it took."""
    began = time.perf_counter()
    model = await LlamaModel.load(device, load_folder(folder), pages=size.pages, **options)
    print(f"loaded in {time.perf_counter() - began:.1f} s: {model.statistics()}", flush=True)
    return model


@asynccontextmanager
async def open_serving(
    options: argparse.Namespace,
) -> AsyncIterator[tuple[Device, ServingSizes, Path]]:
    """Open the device, and make the folder of the model."""
    size = ServingSizes() if ON_CUDA else SMALL
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        folder = make_folder(Path(place, "llama"), size)
        async with open_device(
            0, backend="cuda" if ON_CUDA else "cpu", standby=Standby(hot=1), max_restarts=100
        ) as device:
            yield device, size, folder


async def run_parts(benchmark: object, options: argparse.Namespace) -> None:
    """Run the parts of a benchmark that are wanted, each of them a method."""
    for part in options.parts.split(","):
        began = time.perf_counter()
        print(part, flush=True)
        try:
            with trio.fail_after(options.seconds):
                await getattr(benchmark, part)()
        except Exception:  # noqa: BLE001 (the others go on)
            traceback.print_exc(file=sys.stdout)
        print(f"  ({time.perf_counter() - began:.1f} s)", flush=True)


def parsed_options(parser: argparse.ArgumentParser, parts: tuple[str, ...]) -> argparse.Namespace:
    """Return the options of the command line, with those that both benchmarks have."""
    parser.add_argument("--parts", default=",".join(parts), help="parts, with commas between them")
    parser.add_argument("--seconds", type=float, default=45, help="the most of a part")
    parser.add_argument("--folder", help="where the temporary folder is made")
    options = parser.parse_args()
    unknown = [part for part in options.parts.split(",") if part not in parts]
    if unknown:
        parser.error(f"--parts must be of {', '.join(parts)}, not {', '.join(unknown)}")
    return options


async def run(options: argparse.Namespace) -> None:
    """Run the parts."""
    parts = options.parts.split(",")
    async with open_serving(options) as (device, size, folder):
        benchmark = ServingBenchmark(device, size, folder)
        await benchmark.load(others=bool({"decode", "prefill"} & set(parts)))
        torch = ON_CUDA and not options.without_torch
        if torch and find_spec("torch") and find_spec("transformers"):
            benchmark.measure_torch(parts)
        await run_parts(benchmark, options)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--without-torch", action="store_true", help="leave transformers out")
    trio.run(run, parsed_options(parser, PARTS))


if __name__ == "__main__":
    main()
