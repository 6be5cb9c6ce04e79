"""Conway's Life on a board without ends, in a hash map on the device, with a fault midway.

Keys are cells that live, and values their ages. The map makes its changes again after the fault.
"""

import tempfile
from pathlib import Path

import numpy as np
import trio

from atomr_accel import open_device
from atomr_accel.realtime import HashMap, open_hash_map, save_picture
from atomr_accel.testing import poison

WIDE, HALF = 1 << 32, 1 << 31  # a key is WIDE * row + column + HALF
AROUND = np.array([WIDE * dy + dx for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx])
GENERATIONS, SIZE = 40, 40


def keys_of(cells: np.ndarray) -> np.ndarray:
    """Return the keys of (row, column) pairs, which may be negative."""
    rows, columns = np.asarray(cells, np.int64).T
    return np.asarray(WIDE * rows + columns + HALF)


async def step(cells: HashMap) -> np.ndarray:
    """Make a generation, and return the keys of the one before.

    Cells with three neighbours are born, and those with two or three live on.
    """
    alive, ages = await cells.items()
    near, counts = np.unique(alive[:, None] + AROUND, return_counts=True)
    _, lives = await cells.find(near)
    kept = near[lives & ((counts == 2) | (counts == 3))]
    await cells.delete(np.setdiff1d(alive, kept))
    older = np.isin(alive, kept)
    await cells.insert(alive[older], ages[older] + 1)
    born = near[~lives & (counts == 3)]
    await cells.insert(born, np.zeros(len(born), np.int64))
    return alive


def places(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where keys are in the picture."""
    return keys // WIDE + SIZE // 2, keys % WIDE - HALF + SIZE // 2


def expected(board: np.ndarray) -> np.ndarray:
    """Return the next generation of a board whose edges are dead."""
    padded = np.pad(board, 1).astype(int)
    near = sum(
        np.roll(padded, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx
    )
    return np.asarray((near == 3) | ((padded == 1) & (near == 2)))[1:-1, 1:-1]


async def main() -> None:
    """Let five cells multiply, break the device on the way, and draw."""
    first = np.array([(0, 1), (0, 2), (1, 0), (1, 1), (2, 1)])
    board = np.zeros((SIZE, SIZE), bool)
    board[tuple((first + SIZE // 2).T)] = True
    trace = np.full((SIZE, SIZE), 14)  # where cells have lived
    async with open_device(0) as device, open_hash_map(device, every=16) as cells:
        await cells.insert(keys_of(first), np.zeros(5, np.int64))
        for generation in range(GENERATIONS):
            if generation == GENERATIONS // 2:
                await poison(device)
            before = await step(cells)
            trace[places(before)] = 30 + 2 * generation
            board = expected(board)
        assert cells.statistics().faults == 1
        keys, ages = await cells.items()
    found = np.full((SIZE, SIZE), -1)
    found[places(keys)] = ages
    assert ((found >= 0) == board).all()
    colour = np.stack([255 - 8 * found, 120 + 6 * found, 60 + 12 * found], -1).clip(40, 255)
    picture = np.where(found[..., None] >= 0, colour, trace[..., None]).astype(np.uint8)
    path = Path(tempfile.gettempdir()) / "hash_map.png"
    await save_picture(path, picture, scale=5)
    print(f"{len(keys)} cells after {GENERATIONS} generations; the picture is {path}")


if __name__ == "__main__":
    trio.run(main)
