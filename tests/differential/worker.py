"""Runs cases in a process of their own, on a device that is opened once.

It reads lines of JSON, each a chunk of cases, and writes one before and one after each case.
"""

from __future__ import annotations

import faulthandler
import hashlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import trio

from atomr_accel import ContextPoisoned, Device, DeviceUnavailable, GpuRefStale, open_device

from ..harness import AT_ONCE
from .cases import Structured, poisoned
from .refusals import refusal

SIZES: Final = (512, 1024, 2048, 4096, 16384, 65536, 1 << 18, 1 << 20)
EVERY: Final = 8
"""Period of garbage fills for blocks of these sizes, including scratch memory."""


POOLS: Final = {"array": 1500, "expressions": 1500, "functions": 1500, "sorting": 1500}
"""Number of structures that the cases of a library have.

A device compiles a kernel for each, which takes longer than the case. Workers share compiled
kernels on disk.
"""

_BITS: Final = 28
"""Bits of a seed for the values of a case; the higher ones are for its structure."""


def seed_of(library: str, seed: int, index: int) -> int:
    """The seed of one case, which decides its structure and its values."""
    structure = index % POOLS.get(library, index + 1)
    return _hash(f"{library} {seed} {structure}") << _BITS | _hash(f"{library} {seed} {index} x")


def random_of(library: str, seed: int) -> np.random.Generator:
    """Chance for a case."""
    if library in POOLS:
        return Structured(seed >> _BITS, seed)
    return np.random.default_rng(seed)


def _hash(text: str) -> int:
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "little") >> (32 - _BITS)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case.

    Attributes:
        kind: checked, refused, wrong, fault, absent.
        reason: the reason, in words.
    """

    kind: str
    reason: str = ""


async def run_case(device: Device, library: str, seed: int) -> Outcome:
    """Run one case, whatever comes of it."""
    module = importlib.import_module(f"{__package__}.{library}")
    generation = device.generation
    try:
        refused = await module.check(device, random_of(library, seed))
    except (ContextPoisoned, GpuRefStale) as error:
        await _recovered(device)
        return Outcome("fault", _words(error))
    except DeviceUnavailable as error:  # a library that is missing, too
        return Outcome("absent", str(error))
    except Exception as error:  # noqa: BLE001 (that is what is reported)
        if device.generation != generation:
            await _recovered(device)
            return Outcome("fault", _words(error))
        reason = refusal(library, error)
        return Outcome("wrong", _words(error)) if reason is None else Outcome("refused", reason)
    if device.generation != generation:
        await _recovered(device)
        return Outcome("fault", "the context ended, and the case did not notice")
    return Outcome("checked") if refused is None else Outcome("refused", refused)


async def _recovered(device: Device) -> None:
    """Wait until a device is there again."""
    while True:
        try:
            await device.get(await device.zeros(1))
        except (ContextPoisoned, GpuRefStale):
            continue
        return


def _words(error: BaseException) -> str:
    """An error, its notes, and where it comes from."""
    lines = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
    lines += [_words(part) for part in getattr(error, "exceptions", ())]
    if not isinstance(error, AssertionError):
        lines += traceback.format_exception(error)[-4:-1]
    return "\n".join(lines)[:3000]


async def serve(answers: Any, backend: str) -> None:
    """Run the requested cases until the requests end."""

    def say(**words: Any) -> None:
        answers.write(json.dumps(words) + "\n")
        answers.flush()

    async with open_device(
        0,
        backend=backend,
        max_restarts=10**9,
        backoff=AT_ONCE,
        standby=None,
    ) as device:
        say(backend=device.backend)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            asked = json.loads(line)
            library, until = asked["library"], asked["until"]
            for at, seed in enumerate(asked["seeds"]):
                if until is not None and time.monotonic() > until:
                    break
                say(begin=seed)
                if at % EVERY == 0:
                    await poisoned(device, *SIZES)
                found = await run_case(device, library, seed)
                say(end=seed, kind=found.kind, reason=found.reason)
                if found.kind == "absent":
                    break
            say(done=True)


def main() -> None:
    """Run the process: answers go to the former standard output, other output goes to errors."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    trio.run(serve, answers, sys.argv[1])


if __name__ == "__main__":
    main()
