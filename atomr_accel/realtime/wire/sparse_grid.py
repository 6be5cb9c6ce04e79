"""Kernels of a sparse grid: blocks of cells that exist where cells are not zero.

The directory has for each block of the whole grid its place in the pool, or -1. ``places`` has for
each place its block, or -1. ``status`` has the number of blocks, and the number that did not fit,
or 0. ``values`` has the length of a step, diffusion, fading, and the threshold.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from .kernels import KernelSource

Array: TypeAlias = np.ndarray[Any, Any]

SIDE: Final = 8
"""Cells along a block's side."""

SOURCE: Final = r"""
#define SIDE 8

struct Shape { int nx, ny, nz, bx, by, bz; };

__device__ __forceinline__ Shape shape_of(int nx, int ny, int nz) {
    Shape s = {nx, ny, nz, (nx + SIDE - 1) / SIDE, (ny + SIDE - 1) / SIDE,
               nz > 1 ? (nz + SIDE - 1) / SIDE : 1};
    return s;
}

struct Cell { int x, y, z; };

__device__ __forceinline__ int cells_of(const Shape s) {
    return s.nz > 1 ? SIDE * SIDE * SIDE : SIDE * SIDE;
}

// Where a cell of a block is in the whole grid.
__device__ __forceinline__ Cell locate(const Shape s, int block, int inner) {
    Cell c;
    c.x = block % s.bx * SIDE + inner % SIDE;
    c.y = block / s.bx % s.by * SIDE + inner / SIDE % SIDE;
    c.z = s.nz > 1 ? block / s.bx / s.by * SIDE + inner / SIDE / SIDE : 0;
    return c;
}

__device__ __forceinline__ bool within(const Shape s, Cell c) {
    return c.x >= 0 && c.x < s.nx && c.y >= 0 && c.y < s.ny && c.z >= 0 && c.z < s.nz;
}

__device__ __forceinline__ int block_of(const Shape s, Cell c) {
    return ((s.nz > 1 ? c.z / SIDE : 0) * s.by + c.y / SIDE) * s.bx + c.x / SIDE;
}

__device__ __forceinline__ float value_of(
    const float* cells, const int* directory, const Shape s, Cell c
) {
    if (!within(s, c)) return 0.0f;
    int place = directory[block_of(s, c)];
    if (place < 0) return 0.0f;
    int inner = (s.nz > 1 ? c.z % SIDE * SIDE * SIDE : 0) + c.y % SIDE * SIDE + c.x % SIDE;
    return cells[(long long)place * cells_of(s) + inner];
}

extern "C" __global__ void clear(int* wanted, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) wanted[i] = 0;
}

// Blocks with a cell above the threshold are wanted, and those beside such a cell. With ``stay``
// every block that there is stays.
extern "C" __global__ void want(
    int* wanted, const float* cells, const int* places, const float* values, int nx, int ny,
    int nz, int n, int stay
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Shape s = shape_of(nx, ny, nz);
    int count = cells_of(s), block = places[i / count];
    if (block < 0) return;
    if (stay) { wanted[block] = 1; return; }
    if (!(fabsf(cells[i]) > values[3])) return;
    wanted[block] = 1;
    Cell c = locate(s, block, i % count);
    for (int axis = 0; axis < (nz > 1 ? 3 : 2); axis++)
        for (int by = -1; by <= 1; by += 2) {
            Cell d = c;
            if (axis == 0) d.x += by; else if (axis == 1) d.y += by; else d.z += by;
            if (within(s, d)) wanted[block_of(s, d)] = 1;
        }
}

extern "C" __global__ void want_too(int* wanted, const int* blocks, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) wanted[blocks[i]] = 1;
}

extern "C" __global__ void vacate(int* places, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) places[i] = -1;
}

// Places of the wanted blocks, in their order. If there are too many, no kernel after this one
// changes the state.
extern "C" __global__ void assign(
    int* directory, int* places, int* status, const int* wanted, const int* numbers, int n,
    int capacity
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int count = numbers[n - 1], place = wanted[i] ? numbers[i] - 1 : -1;
    directory[i] = place;
    if (place >= 0 && place < capacity) places[place] = i;
    if (i > 0) return;
    status[1] = count > capacity ? count : 0;
    if (count <= capacity) status[0] = count;
}

// Diffusion by the nearest neighbours, and fading; outside of the grid there is zero.
extern "C" __global__ void diffuse(
    float* out, const float* cells, const int* directory, const int* new_places,
    const int* status, const float* values, int nx, int ny, int nz, int n, int still
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || status[1]) return;
    Shape s = shape_of(nx, ny, nz);
    int count = cells_of(s), block = new_places[i / count];
    out[i] = 0.0f;
    if (block < 0) return;
    Cell c = locate(s, block, i % count);
    if (!within(s, c)) return;
    float here = value_of(cells, directory, s, c);
    if (still) { out[i] = here; return; }
    float sum = 0.0f;
    for (int axis = 0; axis < (nz > 1 ? 3 : 2); axis++) {
        Cell d = c, e = c;
        if (axis == 0) { d.x--; e.x++; }
        else if (axis == 1) { d.y--; e.y++; }
        else { d.z--; e.z++; }
        float before = value_of(cells, directory, s, d), after = value_of(cells, directory, s, e);
        sum += (before - here) + (after - here);
    }
    out[i] = here + values[0] * (values[1] * sum - values[2] * here);
}

extern "C" __global__ void keep_cells(float* cells, const float* made, const int* status, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && !status[1]) cells[i] = made[i];
}

extern "C" __global__ void keep_numbers(int* numbers, const int* made, const int* status, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && !status[1]) numbers[i] = made[i];
}

extern "C" __global__ void scatter(
    float* cells, const int* directory, const int* status, const int* blocks, const int* inner,
    const float* given, int n, int count
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && !status[1]) cells[(long long)directory[blocks[i]] * count + inner[i]] = given[i];
}

extern "C" __global__ void gather(
    float* out, const float* cells, const int* directory, const int* blocks, const int* inner,
    int n, int count
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int place = directory[blocks[i]];
    out[i] = place < 0 ? 0.0f : cells[(long long)place * count + inner[i]];
}

// The largest value along z; blocks that are there are blue.
extern "C" __global__ void project(
    unsigned char* out, const float* cells, const int* directory, int nx, int ny, int nz
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= nx * ny) return;
    Shape s = shape_of(nx, ny, nz);
    Cell c = {i % nx, i / nx, 0};
    float most = 0.0f;
    bool there = false;
    for (; c.z < nz; c.z++) {
        there = there || directory[block_of(s, c)] >= 0;
        most = fmaxf(most, fabsf(value_of(cells, directory, s, c)));
    }
    float light = 255.0f * most / (most + 0.1f);
    bool edge = i % nx % SIDE == 0 || i / nx % SIDE == 0;
    int at = 3 * ((ny - 1 - i / nx) * nx + i % nx);
    out[at] = (unsigned char)light;
    out[at + 1] = (unsigned char)(light * light / 255.0f);
    out[at + 2] = there ? (edge ? 110 : 60) : 0;
}
"""


def _blocks(nx: int, ny: int, nz: int) -> tuple[int, int, int]:
    return -(-nx // SIDE), -(-ny // SIDE), -(-nz // SIDE) if nz > 1 else 1


def _located(block: Array, inner: Array, nx: int, ny: int, nz: int) -> Array:
    """Return the cells' x, y and z."""
    bx, by, _ = _blocks(nx, ny, nz)
    z = block // bx // by * SIDE + inner // SIDE // SIDE if nz > 1 else np.zeros_like(block + inner)
    x, y = block % bx * SIDE + inner % SIDE, block // bx % by * SIDE + inner // SIDE % SIDE
    return np.stack(np.broadcast_arrays(x, y, z))


def _inside(at: Array, nx: int, ny: int, nz: int) -> Any:
    size = np.array([nx, ny, nz]).reshape(3, *[1] * (at.ndim - 1))
    return ((at >= 0) & (at < size)).all(0)


def _block_of(at: Array, nx: int, ny: int, nz: int) -> Any:
    bx, by, _ = _blocks(nx, ny, nz)
    return ((at[2] // SIDE if nz > 1 else 0) * by + at[1] // SIDE) * bx + at[0] // SIDE


def _values_of(cells: Array, directory: Array, at: Array, nx: int, ny: int, nz: int) -> Any:
    inside = _inside(at, nx, ny, nz)
    at = np.where(inside, at, 0)
    place = directory[_block_of(at, nx, ny, nz)]
    inner = (at[2] % SIDE * SIDE * SIDE if nz > 1 else 0) + at[1] % SIDE * SIDE + at[0] % SIDE
    return np.where(inside & (place >= 0), cells[place, inner], np.float32(0))


def clear(wanted: Array, n: int) -> None:
    """Want no block."""
    wanted[...] = 0


def want(
    wanted: Array,
    cells: Array,
    places: Array,
    values: Array,
    nx: int,
    ny: int,
    nz: int,
    n: int,
    stay: int,
) -> None:
    """Want blocks with cells above the threshold, and blocks beside such cells."""
    if stay:
        wanted[places[places >= 0]] = 1
        return
    place, inner = np.nonzero((np.abs(cells) > values[3]) & (places >= 0)[:, None])
    at = _located(places[place], inner, nx, ny, nz)
    wanted[places[place]] = 1
    for axis in range(3 if nz > 1 else 2):
        for by in (-1, 1):
            beside = at.copy()
            beside[axis] += by
            wanted[_block_of(beside[:, _inside(beside, nx, ny, nz)], nx, ny, nz)] = 1


def want_too(wanted: Array, blocks: Array, n: int) -> None:
    """Want some blocks."""
    wanted[blocks] = 1


def vacate(places: Array, n: int) -> None:
    """Free all places."""
    places[...] = -1


def assign(
    directory: Array,
    places: Array,
    status: Array,
    wanted: Array,
    numbers: Array,
    n: int,
    capacity: int,
) -> None:
    """Give wanted blocks their places."""
    count = int(numbers[-1])
    directory[...] = np.where(wanted != 0, numbers - 1, -1)
    found = np.flatnonzero(wanted)[:capacity]
    places[: found.size] = found
    status[1] = count if count > capacity else 0
    if count <= capacity:
        status[0] = count


def diffuse(
    out: Array,
    cells: Array,
    directory: Array,
    new_places: Array,
    status: Array,
    values: Array,
    nx: int,
    ny: int,
    nz: int,
    n: int,
    still: int,
) -> None:
    """Compute the cells of new places."""
    if status[1]:
        return
    out[...] = 0
    there = new_places >= 0
    at = _located(new_places[there][:, None], np.arange(cells.shape[1])[None], nx, ny, nz)
    here = _values_of(cells, directory, at, nx, ny, nz)
    made = here
    if not still:
        total = np.zeros_like(here)
        for axis in range(3 if nz > 1 else 2):
            step = np.zeros((3, 1, 1), int)
            step[axis] = 1
            before = _values_of(cells, directory, at - step, nx, ny, nz)
            after = _values_of(cells, directory, at + step, nx, ny, nz)
            total += (before - here) + (after - here)
        made = here + values[0] * (values[1] * total - values[2] * here)
    out[there] = np.where(_inside(at, nx, ny, nz), made, 0)


def keep_cells(cells: Array, made: Array, status: Array, n: int) -> None:
    """Take new cells, unless a block did not fit."""
    if not status[1]:
        cells[...] = made


def keep_numbers(numbers: Array, made: Array, status: Array, n: int) -> None:
    """Take new places, unless a block did not fit."""
    if not status[1]:
        numbers[...] = made


def scatter(
    cells: Array,
    directory: Array,
    status: Array,
    blocks: Array,
    inner: Array,
    given: Array,
    n: int,
    count: int,
) -> None:
    """Write cells."""
    if not status[1]:
        cells[directory[blocks], inner] = given


def gather(
    out: Array, cells: Array, directory: Array, blocks: Array, inner: Array, n: int, count: int
) -> None:
    """Read cells."""
    place = directory[blocks]
    out[...] = np.where(place < 0, np.float32(0), cells[place, inner])


def project(out: Array, cells: Array, directory: Array, nx: int, ny: int, nz: int) -> None:
    """Draw the largest value along z."""
    most, there = np.zeros((ny, nx), np.float32), np.zeros((ny, nx), bool)
    blocks = np.flatnonzero(directory >= 0)
    at = _located(blocks[:, None], np.arange(cells.shape[1])[None], nx, ny, nz)
    inside = _inside(at, nx, ny, nz)
    x, y, _ = at[:, inside]
    np.maximum.at(most, (y, x), np.abs(cells[directory[blocks]][inside]))
    there[y, x] = True
    light = np.float32(255) * most / (most + np.float32(0.1))
    edge = (np.arange(nx) % SIDE == 0) | (np.arange(ny) % SIDE == 0)[:, None]
    picture = out[::-1]
    picture[..., 0] = light
    picture[..., 1] = light * light / np.float32(255)
    picture[..., 2] = np.where(there, np.where(edge, 110, 60), 0)


SPARSE_GRID: Final = KernelSource(
    SOURCE,
    {
        each.__name__: each
        for each in (
            *(clear, want, want_too, vacate, assign, diffuse, keep_cells, keep_numbers),
            *(scatter, gather, project),
        )
    },
)
