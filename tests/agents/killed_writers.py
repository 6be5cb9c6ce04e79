"""A program of writers that are killed: each acknowledged change must be there afterwards.

``python killed_writers.py FOLDER ROUNDS SEED``. Each round forks a writer, which changes the store
and tells each acknowledged step through a pipe. It is killed after some of these, wherever it is by
then. The store is opened, and must hold the state after the last acknowledged step, or after the
one that was under way.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from atomr_accel.agents._store import VectorChange, VectorStore

DIMENSION = 64
State = dict[int, tuple[bytes, str | None]]


def opened(folder: Path) -> VectorStore:
    store = VectorStore(folder, DIMENSION, "dot", np.dtype(np.float32))
    store.open()
    return store


def steps(rng: np.random.Generator, state: State) -> Iterator[tuple[VectorChange, State]]:
    """Changes without end, and the state after each."""
    while True:
        held = {*state}
        if held and rng.random() < 0.3:
            ids = rng.choice(sorted(held), min(len(held), int(rng.integers(1, 8))), replace=False)
            change = VectorChange(ids.tolist())
            state = {key: value for key, value in state.items() if key not in {*change.ids}}
        else:
            # Large frames, too, so that a kill meets a write.
            n = int(rng.choice([1, 3, 100, 2000]))
            ids = rng.choice(4000, n, replace=False)
            vectors = rng.standard_normal((n, DIMENSION), dtype=np.float32)
            texts = [f'{{"n":{key}}}' if key % 2 else None for key in ids.tolist()]
            change = VectorChange(ids.tolist(), vectors.tobytes(), texts)
            rows = (vector.tobytes() for vector in vectors)
            state = {**state, **dict(zip(change.ids, zip(rows, texts, strict=True), strict=True))}
        yield change, state


def write(folder: Path, seed: int, state: State, told: int) -> None:
    store = opened(folder)
    rng = np.random.default_rng([seed, 1])
    for change, _ in steps(np.random.default_rng(seed), state):
        store.write_ahead([change])
        store.apply([change])
        os.write(told, b".")
        if store.tail.count > 3000:
            alone = bool(rng.random() < 0.4)
            if alone:
                ids, places = store.compacting()
                vectors = np.concatenate(
                    [rows.vectors[: rows.count][live] for rows, live in places]
                )
                name = store.seal(ids, vectors, (), alone=True)
            else:
                name = store.seal(*store.sealing(), alone=False)
            store.sealed(store.load(name), alone=alone)


def state_in(folder: Path) -> State:
    store = opened(folder)
    try:
        rows = {}
        for part in (*store.segments, store.tail):
            for row in np.flatnonzero(part.live[: part.count]).tolist():
                rows[int(part.ids[row])] = part.vectors[row].tobytes()
        assert len(rows) == len(store)
        payloads = store.payloads.read([*rows])
        return {
            key: (row, f'{{"n":{payloads[key]["n"]}}}' if key in payloads else None)
            for key, row in rows.items()
        }
    finally:
        store.close()


def round_of(folder: Path, seed: int, state: State) -> tuple[State, bool]:
    """Kill a writer. Return the state that is left, and whether it has an unacknowledged step."""
    reading, telling = os.pipe()
    child = os.fork()
    if not child:
        status: Any = 1
        try:
            os.close(reading)
            write(folder, seed, state, telling)
        finally:
            os._exit(status)
    os.close(telling)
    wanted = int(np.random.default_rng([seed, 2]).integers(0, 12))
    acknowledged = 0
    while acknowledged < wanted:
        data = os.read(reading, wanted - acknowledged)
        assert data, "the writer ended by itself"
        acknowledged += len(data)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while data := os.read(reading, 4096):
        acknowledged += len(data)
    os.close(reading)
    left = state_in(folder)
    following = steps(np.random.default_rng(seed), state)
    for _ in range(acknowledged):
        _, state = next(following)
    if left == state:
        return left, False
    _, state = next(following)
    assert left == state, f"after {acknowledged} steps of seed {seed} the store has another state"
    return left, True


def main() -> None:
    folder, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    state: State = {}
    ahead = 0
    for number in range(rounds):
        state, more = round_of(folder, seed + number, state)
        ahead += more
    sys.stdout.write(f"{rounds} killed, {ahead} of them before an acknowledgement\n")


if __name__ == "__main__":
    main()
