"""The program's part of each step of a language model with many streams; needs no GPU.

A stand-in for a model takes a given time for each step, as a device would, and chooses letters.
Printed are the medians of milliseconds from the tokens of a step until the next one is sent, and
from step to step, for each number of streams.

    python tests/benchmarks/bench_streams.py
    python tests/benchmarks/bench_streams.py --streams 32,256 --milliseconds 2
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import numpy as np
import trio
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from atomr_accel import open_device
from atomr_accel.llm import (
    LanguageModel,
    SamplingOptions,
    StepChoices,
    StepLogits,
    StepTokens,
    StepWork,
    TokenRequest,
    open_language_model,
)

TOKENS = 200
"""Tokens of each stream."""

TURNS = 4
"""Turns of trio's loop until a model has sent a step that it has recorded."""


class TimedRunner:
    """A runner whose device is a clock.

    Args:
        seconds: how long a step takes.

    Attributes:
        times: when each step was sent, and when it had ended.
    """

    pages, page_size, vocabulary, context = 1 << 14, 16, 256, 512

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._random = np.random.default_rng(0)
        self.times: list[tuple[float, float]] = []

    async def step(self, work: StepWork) -> StepLogits:
        """Fail: the device chooses all tokens."""
        raise NotImplementedError

    async def choose(self, work: StepWork, choices: StepChoices, *, logits: bool) -> StepTokens:
        """Wait, and choose a letter for each row."""
        del work, logits
        for _ in range(TURNS):
            await trio.lowlevel.checkpoint()
        sent = time.perf_counter()
        await trio.sleep(self._seconds)
        self.times.append((sent, time.perf_counter()))
        return StepTokens(self._random.integers(97, 123, len(choices)).astype(np.int32), None)


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer whose tokens are the bytes of UTF-8."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


async def stream(model: LanguageModel) -> None:
    """Take all pieces of a stream."""
    sampling = SamplingOptions(max_tokens=TOKENS, temperature=0.0)
    async with model.generate(TokenRequest(prompt=(97,) * 16, sampling=sampling)) as pieces:
        async for _ in pieces:
            pass


async def run(options: argparse.Namespace) -> None:
    """Measure each number of streams."""
    async with open_device(0, backend="cpu", isolation="thread") as device:
        for number in map(int, options.streams.split(",")):
            runner = TimedRunner(options.milliseconds / 1e3)
            async with (
                open_language_model(
                    device, runner, tokenizer=byte_tokenizer(), end_tokens=[0]
                ) as model,
                trio.open_nursery() as nursery,
            ):
                for _ in range(number):
                    nursery.start_soon(stream, model)
            steps = runner.times[20:-20]
            pairs = list(itertools.pairwise(steps))
            until = statistics.median(after[0] - before[1] for before, after in pairs) * 1e3
            period = statistics.median(after[0] - before[0] for before, after in pairs) * 1e3
            print(f"{number:4} streams: {until:.2f} ms until sent, {period:.2f} ms a step")


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--streams", default="1,32,256", help="numbers of streams, with commas")
    parser.add_argument("--milliseconds", type=float, default=5.0, help="how long a step takes")
    trio.run(run, parser.parse_args())


if __name__ == "__main__":
    main()
