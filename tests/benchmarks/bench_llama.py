"""A language model that is served, with and without faults, against the same model called by hand.

The model is a Llama of transformers with about 1.1 billion parameters and random weights, on a lane
of ``device.run``. Clients ask for the token that follows a prompt of 64. Each asks again as soon as
it has its answer, and a batcher makes batches of their questions. The same model is also called by
hand, in a process with torch and without this package. It is called in a loop with batches of the
same size, and with one prompt at a time. Then the clients ask while the device faults every five
seconds.

Every answer is compared with the logits for its prompt from a batch of other prompts.

    python tests/benchmarks/bench_llama.py                 # 256 clients, batches of 32
    python tests/benchmarks/bench_llama.py --standbys 6 --every 5 --seconds 20

Without torch, transformers or a device it serves a stand-in on NumPy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio
from bench_return import SIZES, WITH_LLAMA, Rehearsal, Subject, load_llama, shapes

from atomr_accel import AccelError, CpuFallbackWarning, Standby, open_device
from atomr_accel.patterns import open_batcher
from atomr_accel.testing import poison, standby_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atomr_accel import Device

Tokens = np.ndarray[Any, np.dtype[np.int64]]

LENGTH: Final = 64
PROMPTS: Final = 256
TOLERANCE: Final = 0.02
"""Tolerance relative to the largest logit.

Products of half precision add up in another order in other batches.
"""


def make_weights(size: dict[str, int]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Random weights, the same in every process, one by one."""
    rng = np.random.default_rng(0)
    for name, shape in shapes(size).items():
        if len(shape) == 1:
            yield name, np.ones(shape, np.float16)
        else:
            yield name, (rng.standard_normal(shape, np.float32) * 0.02).astype(np.float16)


def make_prompts(size: dict[str, int]) -> Tokens:
    """Return the clients' prompts: ``(PROMPTS, LENGTH)``."""
    return np.random.default_rng(1).integers(size["words"], size=(PROMPTS, LENGTH))


# --- in the host, and by hand ---------------------------------------------------------------


def logits_of(model: Any, tokens: Tokens) -> Any:
    """In the host: logits of the tokens that follow, ``(prompts, words)``."""
    import torch

    with torch.no_grad():
        found = model(torch.as_tensor(tokens, device="cuda"), use_cache=False, logits_to_keep=1)
        return found.logits[:, -1].float().cpu().numpy()


def tokens_after(model: Any, tokens: Tokens) -> Any:
    """In the host: the most probable tokens that follow, and their logits."""
    import torch

    with torch.no_grad():
        found = model(torch.as_tensor(tokens, device="cuda"), use_cache=False, logits_to_keep=1)
        best = found.logits[:, -1].float().max(dim=-1)
        return best.indices.cpu().numpy(), best.values.cpu().numpy()


def load_stand_in(size: dict[str, int], weights: dict[str, Any]) -> Any:
    """In the host: a matrix."""
    assert len(weights) == 9 * size["layers"] + 3
    return weights["model.embed_tokens.weight"].astype(np.float32)


def logits_of_stand_in(model: Any, tokens: Tokens) -> Any:
    """In the host: numbers that depend on the prompt."""
    return model[tokens].mean(axis=1) @ model.T


def tokens_after_stand_in(model: Any, tokens: Tokens) -> Any:
    """In the host: the largest of them."""
    logits = model[tokens].mean(axis=1) @ model.T
    return logits.argmax(axis=-1), logits.max(axis=-1)


def call_by_hand(options: argparse.Namespace) -> None:
    """In a process of its own: batches in a loop, and one at a time. Prints two throughputs."""
    size = SIZES[options.model]
    prompts = make_prompts(size)
    if WITH_LLAMA:
        import torch

        given = {name: torch.as_tensor(w, device="cuda") for name, w in make_weights(size)}
        model, call = load_llama(size, given), tokens_after
    else:
        model, call = load_stand_in(size, dict(make_weights(size))), tokens_after_stand_in
    rates = []
    for batch in (options.batch, 1):
        call(model, prompts[:batch])
        done, begun = 0, time.perf_counter()
        while (seconds := time.perf_counter() - begun) < options.seconds / 4:
            at = done % (PROMPTS - batch + 1)
            call(model, prompts[at : at + batch])
            done += batch
        rates.append(done / seconds)
    print(json.dumps(rates))


# --- served -----------------------------------------------------------------------------------


class Clients:
    """Tasks that ask without pause, and what became of that."""

    def __init__(self, ask: Any, expected: np.ndarray[Any, Any]) -> None:
        self._ask = ask
        self._expected = expected
        self._tolerance = TOLERANCE * float(np.abs(expected).max())
        self.over = False
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self.wrong = self.lost = 0
        self.waits: list[float] = []
        self.begun = time.perf_counter()

    async def run(self, number: int) -> None:
        """Ask for what follows one prompt after the other."""
        while not self.over:
            number = (number + 1) % PROMPTS
            begun = time.perf_counter()
            try:
                token, logit = await self._ask(number)
            except AccelError as error:
                self.lost += 1
                print(f"    lost: {error!r}")
                continue
            logits = self._expected[number]
            near = logits[token] >= logits.max() - self._tolerance
            self.wrong += not (near and abs(logit - logits[token]) <= self._tolerance)
            self.waits.append(time.perf_counter() - begun)

    def told(self, name: str) -> tuple[float, str]:
        """Answers a second, and a line of the table."""
        rate = len(self.waits) / (time.perf_counter() - self.begun)
        middle, late = statistics.median(self.waits), max(self.waits)
        line = f"{name:34} {rate:9.0f} {middle * 1e3:9.1f} {late * 1e3:9.1f}"
        return rate, f"{line} {self.wrong:6} {self.lost:5}"


async def serve(options: argparse.Namespace, by_hand: list[float]) -> None:
    """Serve clients, without faults and with them."""
    size = SIZES[options.model]
    prompts = make_prompts(size)
    if WITH_LLAMA:
        load, logits, after = load_llama, logits_of, tokens_after
    else:
        load, logits, after = load_stand_in, logits_of_stand_in, tokens_after_stand_in
    rehearsal = Rehearsal()
    async with open_device(
        0,
        standby=Standby(hot=options.standbys, warm_up=rehearsal),
        max_restarts=10**6,
    ) as device:
        weights = {name: await device.put(w, sealed=True) for name, w in make_weights(size)}
        init = partial(load, size, weights)

        async def run(function: Any, tokens: Tokens, on: Device = device) -> Any:
            return await on.run(function, tokens, lane="model", init=init)

        parts = [await run(logits, prompts[at : at + 64]) for at in range(0, PROMPTS, 64)]

        async def infer(numbers: list[int]) -> list[tuple[int, float]]:
            tokens, values = await run(after, prompts[numbers])
            return list(zip(tokens.tolist(), values.tolist(), strict=True))

        async def rehearse(on: Device) -> None:
            for length in {1, options.batch}:
                await run(after, prompts[:length], on)

        await rehearsal.begin(device, Subject("Llama", rehearse))
        begun = time.perf_counter()
        await standby_ready(device, options.standbys)
        ready = time.perf_counter() - begun
        async with open_batcher(
            infer, max_size=options.batch, max_in_flight=options.in_flight
        ) as batcher:
            ours = Clients(batcher, np.concatenate(parts))
            print(f"{'':34} answers/s  median ms  worst ms  wrong  lost")
            for rate, name in zip(
                by_hand, (f"by hand, {options.batch} together", "by hand, one"), strict=True
            ):
                print(f"{name:34} {rate:9.0f}")
            async with trio.open_nursery() as nursery:
                for number in range(options.clients):
                    nursery.start_soon(ours.run, number)
                await trio.sleep(0.5)
                ours.begin()
                await trio.sleep(options.seconds / 2)
                quiet, line = ours.told(f"served to {options.clients} clients")
                print(line, flush=True)
                ours.begin()
                faults = 0
                with trio.move_on_after(options.seconds):
                    while True:
                        await trio.sleep(options.every / 2 if not faults else options.every)
                        faults += 1
                        await poison(device, options.fault)
                rate, line = ours.told(f"{faults} faults, one in {options.every:g} s")
                print(line)
                ours.over = True
            print(f"of the loop by hand                {quiet / by_hand[0]:9.2f}  (goal 1.0)")
            print(f"of one at a time by hand           {quiet / by_hand[1]:9.2f}  (goal 10)")
            print(f"with faults, of without            {rate / quiet:9.2f}  (goal 0.9)")
            seen = batcher.statistics()
            print(f"{seen.batches} batches, {seen.calls} calls, {seen.faults} ended in a fault")
        standby = device.statistics().standby
        assert standby is not None
        print(
            f"{options.standbys} standbys ready after {ready:.1f} s; {standby.used} used, the last "
            f"ready after {standby.seconds or 0:.1f} s, {standby.died} died"
        )


def measure_by_hand(options: argparse.Namespace) -> list[float]:
    """Throughputs without this package."""
    words = [sys.executable, __file__, "--by-hand", *sys.argv[1:]]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"by hand it fails:\n{done.stderr[-2000:]}")
    rates: list[float] = json.loads(done.stdout.splitlines()[-1])
    return rates


def parsed() -> argparse.Namespace:
    """Return the parsed options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--in-flight", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two faults")
    parser.add_argument("--standbys", type=int, default=6 if WITH_LLAMA else 1)
    parser.add_argument("--fault", default="assert")
    parser.add_argument("--model", choices=SIZES, default="large" if WITH_LLAMA else "tiny")
    parser.add_argument("--by-hand", action="store_true", help="nothing but that, for this program")
    return parser.parse_args()


if __name__ == "__main__":
    asked = parsed()
    warnings.simplefilter("ignore", CpuFallbackWarning)
    if asked.by_hand:
        call_by_hand(asked)
    else:
        trio.run(serve, asked, measure_by_hand(asked))
