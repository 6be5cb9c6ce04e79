"""Cases of batches, recordings and single calls: random programs of several ops, against NumPy.

All numbers are whole and small, so float32 computes them exactly in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import trio

from atomr_accel import Device

from .cases import Case, chance, choose, same

Array = np.ndarray[Any, Any]
Random = np.random.Generator

SIDE: Final = 8
SLOTS: Final = 4


def small(array: Array) -> Array:
    """Small whole numbers of any."""
    made: Array = np.fmod(array, np.float32(7))
    return made


Step = tuple[str, int, int, int]
KINDS: Final = (
    "gemm", "gemm out", "evaluate", "evaluate out", "copy", "fill", "roll", "sum", "setitem",
    "take", "view", "axpy", "cumsum",
)  # fmt: skip


def steps(random: Random) -> list[Step]:
    """The ops of a program: a kind and the slots that it reads and writes."""
    found: list[Step] = []
    for _ in range(int(random.integers(1, 9))):
        a, b, c = (int(each) for each in random.integers(0, SLOTS, 3))
        found.append((choose(random, KINDS), a, b, c))
    return found


def model(slots: list[Array], step: Step) -> None:
    """Run a step by NumPy."""
    kind, a, b, c = step
    x, y, out = slots[a], slots[b], slots[c]
    if kind == "gemm":
        slots[c] = small(x @ y)
    elif kind == "gemm out":
        made = x @ y
        if c not in (a, b):
            out[...] = made
            out[...] = small(out)
    elif kind == "evaluate":
        slots[c] = small(x * 2 + y)
    elif kind == "evaluate out":
        out[...] = small(x + y - 1)
    elif kind == "copy":
        if a != c:
            out[...] = x
    elif kind == "fill":
        out[...] = b
    elif kind == "roll":
        slots[c] = np.roll(x, b - 1, 0)
    elif kind == "sum":
        slots[c] = small(x + y.sum(axis=0))
    elif kind == "setitem":
        out[b] = 3
    elif kind == "take":
        slots[c] = x[[b, 0, 1, 2, 3, 7, 6, 5]]
    elif kind == "view":
        out[:4] = small(x[4:] + 1) if a != c else small(x[4:].copy() + 1)
    elif kind == "axpy":
        if a != c:
            out[...] = small(out + 2 * x)
    else:
        slots[c] = small(np.cumsum(x, axis=1))


def submit(program: Any, slots: list[Any], step: Step) -> list[Any]:
    """Return functions that make a step's requests, each from the result of the one before."""
    kind, a, b, c = step
    x, y, out = slots[a], slots[b], slots[c]
    fmod: Any = np.fmod
    seven = np.float32(7)
    made: list[Any] = []

    def then(function: Callable[[Any], Any]) -> None:
        made.append(function)

    if kind == "gemm":
        then(lambda _: program.blas.gemm(x, y))
        then(lambda r: program.evaluate(fmod(r, seven)))
    elif kind == "gemm out":
        if c not in (a, b):
            then(lambda _: program.blas.gemm(x, y, out=out))
            then(lambda _: program.evaluate(fmod(out, seven), out=out))
    elif kind == "evaluate":
        then(lambda _: program.evaluate(fmod(x * 2 + y, seven)))
    elif kind == "evaluate out":
        then(lambda _: program.evaluate(fmod(x + y - 1, seven), out=out))
    elif kind == "copy":
        if a != c:
            then(lambda _: program.copy(x, out))
    elif kind == "fill":
        then(lambda _: program.fill(out, b))
    elif kind == "roll":
        then(lambda _: program.array.roll(x, b - 1, 0))
    elif kind == "sum":
        then(lambda _: program.evaluate(fmod(x + y.sum(axis=0), seven)))
    elif kind == "setitem":
        then(lambda _: program.array.setitem(out, b, 3))
    elif kind == "take":
        then(lambda _: program.array.take(x, [b, 0, 1, 2, 3, 7, 6, 5], axis=0))
    elif kind == "view":
        then(lambda _: program.evaluate(fmod(x[4:] + 1, seven), out=out[:4]))
    elif kind == "axpy":
        if a != c:
            flat, other = x.reshape(-1), out.reshape(-1)
            then(lambda _: program.blas.axpy(flat, other, a=2.0))
            then(lambda _: program.evaluate(fmod(out, seven), out=out))
    else:
        then(lambda _: program.array.cumsum(x, axis=1))
        then(lambda r: program.evaluate(fmod(r, seven)))
    return made


NEW: Final = frozenset({"gemm", "evaluate", "roll", "sum", "take", "cumsum"})


async def run(program: Any, slots: list[Any], program_steps: list[Step], *, wait: bool) -> None:
    """Run a program's steps, one after the other."""
    for step in program_steps:
        result: Any = None
        for function in submit(program, slots, step):
            result = function(result)
            if wait:
                result = await result
        if step[0] in NEW:
            slots[step[3]] = result


async def check(device: Device, random: Random) -> str | None:
    """Draw a program, run it in one of three ways, and compare."""
    case = Case(device, random)
    with case.described():
        arrays = [random.integers(-3, 4, (SIDE, SIDE)).astype(np.float32) for _ in range(SLOTS)]
        todo = steps(random)
        way = choose(random, ("calls", "batch", "record"))
        times = int(random.integers(1, 4)) if way == "record" else 1
        case.tell(way=way, steps=todo, times=times)
        refs = [await device.put(array) for array in arrays]
        slots: list[Any] = list(refs)
        for _ in range(3):
            await case.poison(4 * SIDE * SIDE, 4 * SIDE * SIDE)
        got: list[Any]
        if way == "calls":
            await run(device, slots, todo, wait=True)
            got = [await device.get(ref) for ref in slots]
        elif way == "batch":
            async with device.batch() as batch:
                await run(batch, slots, todo, wait=False)
                fetched = [batch.get(ref) for ref in slots] if chance(random, 0.5) else None
            case.tell(fetched=fetched is not None)
            if fetched is None:
                got = [await device.get(ref) for ref in slots]
            else:
                got = [each.value for each in fetched]
        else:
            shared = chance(random, 0.5)
            case.tell(shared=shared)
            async with device.record(shared=shared) as recording:
                await run(recording, slots, todo, wait=False)
            if shared:  # each task may replay it
                async with trio.open_nursery() as nursery:
                    for _ in range(times):
                        nursery.start_soon(recording.replay)
            else:
                for _ in range(times):
                    await recording.replay()
            got = [await device.get(ref) for ref in slots]
        model_slots = list(arrays)
        originals = list(arrays)
        for _ in range(times):
            model_slots = list(originals)
            for step in todo:
                model(model_slots, step)
        for at, (one, other) in enumerate(zip(got, model_slots, strict=True)):
            case.tell(slot=at)
            same(np.asarray(one) + np.float32(0), other + np.float32(0))
    return None
