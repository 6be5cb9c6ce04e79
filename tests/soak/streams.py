"""Streams of a language model through random faults. Each must be the same as without faults.

``python -m tests.soak.streams --incidents 200 --seed 7`` makes that number of programs of random
requests, and in each of them ends contexts at random tokens, by a fault of the device or by SIGKILL
of its host. ``--only 12`` repeats the program of that number.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from pathlib import Path

import trio

from atomr_accel import Device
from atomr_accel.llm import (
    LanguageModel,
    SamplingOptions,
    TokenRequest,
    load_folder,
    open_language_model,
)
from atomr_accel.testing import kill_host, poison

from ..llm.tiny import make_folder
from .programs import opened, run

PAGES, PAGE = 24, 4


def _drawn(draw: random.Random, vocabulary: int) -> list[TokenRequest]:
    shared = [draw.randrange(vocabulary) for _ in range(2 * PAGE + 1)]
    return [
        TokenRequest(
            prompt=(
                *shared[: draw.choice((0, len(shared)))],
                *[draw.randrange(vocabulary) for _ in range(draw.randint(1, 8))],
            ),
            sampling=SamplingOptions(
                temperature=draw.choice((0.0, 1.0)),
                top_p=0.9,
                repetition_penalty=1.1,
                seed=at,
                max_tokens=draw.randint(1, 16),
                ignore_eos=True,
            ),
        )
        for at in range(draw.randint(2, 8))
    ]


async def _tokens(model: LanguageModel, request: TokenRequest) -> list[int]:
    async with model.generate(request) as pieces:
        return [piece.token async for piece in pieces]


async def _through_faults(
    device: Device,
    model: LanguageModel,
    requests: list[TokenRequest],
    draw: random.Random,
    counts: Counter[str],
) -> list[list[int]]:
    """Return the tokens of streams that run together, and end contexts meanwhile."""
    harm = draw.choice((poison, kill_host))
    left = draw.randint(1, 20)  # tokens until the next fault
    found: list[list[int]] = [[] for _ in requests]

    async def follow(at: int) -> None:
        nonlocal left
        async with model.generate(requests[at]) as pieces:
            async for piece in pieces:
                found[at].append(piece.token)
                left -= 1
                if left == 0:
                    counts[harm.__name__] += 1
                    await harm(device)
                    left = draw.randint(1, 20)

    async with trio.open_nursery() as nursery:
        for at in range(len(requests)):
            nursery.start_soon(follow, at)
    return found


async def soak(words: argparse.Namespace, counts: Counter[str]) -> list[str]:
    """Run programs; return those that were wrong."""
    wrong: list[str] = []
    numbers = range(words.incidents) if words.only is None else [words.only]
    end = trio.current_time() + words.seconds
    with tempfile.TemporaryDirectory() as scratch:
        folder = load_folder(make_folder(Path(scratch) / "tiny"))
        async with (
            opened(words.backend) as device,
            open_language_model(device, folder, page_size=PAGE, pages=PAGES) as model,
        ):
            for number in numbers:
                if trio.current_time() > end:
                    break
                draw = random.Random(f"{words.seed}:{number}")
                requests = _drawn(draw, folder.config.vocabulary)
                alone = [await _tokens(model, request) for request in requests]
                found = await _through_faults(device, model, requests, draw, counts)
                if found != alone:
                    wrong.append(f"{words.seed}:{number}")
                counts.update(programs=1, streams=len(requests))
            told = model.statistics()
            counts.update(recomputed=told.recomputed, failed=told.failed)
    return wrong


def main() -> None:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").replace("``", ""))
    parser.add_argument("--incidents", type=int, default=200)
    parser.add_argument("--only", type=int)
    run(soak, parser)


if __name__ == "__main__":
    main()
