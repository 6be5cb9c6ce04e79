"""Kernels that find components of a picture, distances in them, and the cells around them.

``values`` has the length of a step and the threshold. Squares of distances are whole numbers.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from .filters import UNION_SOURCE
from .kernels import KernelSource

Array: TypeAlias = np.ndarray[Any, Any]

FAR: Final = 1 << 16
"""A distance in a row without background."""

SOURCE: Final = r"""
#include "union.h"
#define FAR 65536

// Pixels above the threshold are their own parents; the others have none.
extern "C" __global__ void begin(int* parent, const float* frame, const float* values, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) parent[i] = frame[i] > values[1] ? i : -1;
}

extern "C" __global__ void join(int* parent, int h, int w, int diagonal) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= h * w || ((const volatile int*)parent)[i] < 0) return;
    int column = i % w, row = i / w;
    if (column > 0 && ((const volatile int*)parent)[i - 1] >= 0) unite(parent, i, i - 1);
    if (row == 0) return;
    for (int s = -diagonal; s <= diagonal; s++) {
        if (column + s < 0 || column + s >= w) continue;
        int other = i - w + s;
        if (((const volatile int*)parent)[other] >= 0) unite(parent, i, other);
    }
}

extern "C" __global__ void find_roots(int* roots, int* first, const int* parent, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int root = parent[i] < 0 ? -1 : root_of(parent, i);
    roots[i] = root;
    first[i] = root == i ? 1 : 0;
}

extern "C" __global__ void number_parts(
    int* labels, int* count, const int* roots, const int* numbers, int n
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    labels[i] = roots[i] < 0 ? 0 : numbers[roots[i]];
    if (i == n - 1) count[0] = numbers[i];
}

// The distance to the nearest pixel of the background in the same row.
extern "C" __global__ void along_rows(int* gap, const int* parent, int h, int w) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= h) return;
    int at = row * w, far = FAR;
    for (int i = 0; i < w; i++) {
        far = parent[at + i] < 0 ? 0 : (far < FAR ? far + 1 : FAR);
        gap[at + i] = far;
    }
    far = FAR;
    for (int i = w - 1; i >= 0; i--) {
        far = parent[at + i] < 0 ? 0 : (far < FAR ? far + 1 : FAR);
        if (far < gap[at + i]) gap[at + i] = far;
    }
}

// The nearest one in all rows. A row that is further away than the best one cannot be better.
extern "C" __global__ void across_rows(float* distance, const int* gap, int h, int w) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= h * w) return;
    int row = i / w, column = i % w, best = 2147483647;
    for (int away = 0; away < h && (best == 2147483647 || away * away < best); away++)
        for (int side = -1; side <= 1; side += 2) {
            int other = row + side * away;
            if (other < 0 || other >= h) continue;
            int g = gap[other * w + column];
            if (g < FAR && g * g + away * away < best) best = g * g + away * away;
        }
    distance[i] = best == 2147483647 ? __int_as_float(0x7f800000) : sqrtf((float)best);
}

extern "C" __global__ void sow(int* nearest, const int* parent, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) nearest[i] = parent[i] < 0 ? -1 : i;
}

// Each pixel takes the nearest of what its eight neighbours at a distance know. Of equally near
// ones it is the first.
extern "C" __global__ void flood(int* out, const int* nearest, int h, int w, int step) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= h * w) return;
    int row = i / w, column = i % w, best = -1, least = 2147483647;
    for (int k = 0; k < 9; k++) {
        int r = row + (k / 3 - 1) * step, c = column + (k % 3 - 1) * step;
        if (r < 0 || r >= h || c < 0 || c >= w) continue;
        int seed = nearest[r * w + c];
        if (seed < 0) continue;
        int dy = seed / w - row, dx = seed % w - column, far = dy * dy + dx * dx;
        if (far < least || (far == least && seed < best)) { least = far; best = seed; }
    }
    out[i] = best;
}

extern "C" __global__ void divide(int* cells, const int* nearest, const int* labels, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) cells[i] = nearest[i] < 0 ? 0 : labels[nearest[i]];
}

// Components are bright, most so in their middle; cells have their component's colour.
extern "C" __global__ void tint(
    unsigned char* out, const int* cells, const int* labels, const float* distance, int h, int w
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= h * w) return;
    int cell = cells[i];
    bool edge = (i % w + 1 < w && cells[i + 1] != cell) || (i / w + 1 < h && cells[i + w] != cell);
    int light = labels[i] ? 160 + (int)fminf(8.0f * distance[i], 95.0f) : edge ? 0 : 80;
    unsigned mixed = (unsigned)cell * 2654435761u;
    for (int c = 0; c < 3; c++) {
        int share = 96 + (int)((mixed >> (8 + 8 * c)) & 255u) * 160 / 256;
        out[3 * i + c] = (unsigned char)(cell ? light * share / 256 : 0);
    }
}
"""


def begin(parent: Array, frame: Array, values: Array, n: int) -> None:
    """Make pixels above the threshold their own parents."""
    own = np.arange(n, dtype=np.int32).reshape(frame.shape)
    parent[...] = np.where(frame > values[1], own, -1)


def join(parent: Array, h: int, w: int, diagonal: int) -> None:
    """Let each component have its smallest index as the root of all."""
    none = h * w
    low = np.where(parent < 0, none, parent)
    here = parent >= 0
    shifts = [(0, 1), (1, 0), *([(1, 1), (1, -1)] if diagonal else [])]
    pairs = []
    index = np.arange(h * w, dtype=np.int32).reshape(h, w)
    for down, along in shifts:
        a = np.s_[: h - down, max(0, -along) : w - max(0, along)]
        b = np.s_[down:, max(0, along) : w + min(0, along)]
        both = here[a] & here[b]
        pairs.append((index[a][both], index[b][both]))
    one, other = (np.concatenate(each) for each in zip(*pairs, strict=True))
    flat = low.ravel()
    while True:  # roots of neighbours take the smaller one's, then all take their root's root
        a, b = flat[one], flat[other]
        apart = a != b
        if not apart.any():
            break
        np.minimum.at(flat, np.maximum(a, b)[apart], np.minimum(a, b)[apart])
        while True:
            above = np.where(flat < none, flat[np.minimum(flat, none - 1)], none)
            if (above == flat).all():
                break
            flat = above
    parent[...] = np.where(here, flat.reshape(h, w), -1)


def find_roots(roots: Array, first: Array, parent: Array, n: int) -> None:
    """Mark the roots of components."""
    roots[...] = parent
    first[...] = parent == np.arange(n).reshape(parent.shape)


def number_parts(labels: Array, count: Array, roots: Array, numbers: Array, n: int) -> None:
    """Number components by their first pixels."""
    labels[...] = np.where(roots < 0, 0, numbers.ravel()[roots])
    count[0] = numbers.ravel()[-1]


def along_rows(gap: Array, parent: Array, h: int, w: int) -> None:
    """Find distances in rows."""
    place = np.arange(w)
    ground = parent < 0
    before = np.maximum.accumulate(np.where(ground, place, -FAR), axis=1)
    after = np.minimum.accumulate(np.where(ground, place, 2 * FAR)[:, ::-1], axis=1)[:, ::-1]
    gap[...] = np.minimum(np.minimum(place - before, after - place), FAR)


def across_rows(distance: Array, gap: Array, h: int, w: int) -> None:
    """Find distances in all rows."""
    none = np.int64(1) << 40
    squares = np.where(gap < FAR, gap.astype(np.int64) ** 2, none)
    best = squares.copy()
    for away in range(1, h):
        if best.max() <= away * away:
            break
        np.minimum(best[away:], squares[:-away] + away * away, out=best[away:])
        np.minimum(best[:-away], squares[away:] + away * away, out=best[:-away])
    distance[...] = np.where(best >= none, np.inf, np.sqrt(best.astype(np.float32)))


def sow(nearest: Array, parent: Array, n: int) -> None:
    """Begin with pixels of components."""
    nearest[...] = np.where(parent < 0, -1, np.arange(n).reshape(parent.shape))


def flood(out: Array, nearest: Array, h: int, w: int, step: int) -> None:
    """Take the nearest that neighbours know."""
    row, column = np.mgrid[:h, :w]
    least = np.full((h, w), 2**31 - 1, np.int64)
    best = np.full((h, w), -1, np.int64)
    for down in (-step, 0, step):
        for along in (-step, 0, step):
            if abs(down) >= h or abs(along) >= w:
                continue
            here = np.s_[max(0, -down) : h - max(0, down), max(0, -along) : w - max(0, along)]
            there = np.s_[max(0, down) : h + min(0, down), max(0, along) : w + min(0, along)]
            seed = nearest[there].astype(np.int64)
            far = (seed // w - row[here]) ** 2 + (seed % w - column[here]) ** 2
            nearer = (far < least[here]) | ((far == least[here]) & (seed < best[here]))
            nearer &= seed >= 0
            least[here] = np.where(nearer, far, least[here])
            best[here] = np.where(nearer, seed, best[here])
    out[...] = best


def divide(cells: Array, nearest: Array, labels: Array, n: int) -> None:
    """Give pixels the component that is nearest."""
    cells[...] = np.where(nearest < 0, 0, labels.ravel()[nearest])


def tint(out: Array, cells: Array, labels: Array, distance: Array, h: int, w: int) -> None:
    """Colour components and cells."""
    edge = np.zeros((h, w), bool)
    edge[:, :-1] |= cells[:, 1:] != cells[:, :-1]
    edge[:-1] |= cells[1:] != cells[:-1]
    inside = 160 + np.minimum(8 * distance, np.float32(95)).astype(np.int32)
    light = np.where(labels != 0, inside, np.where(edge, 0, 80))
    mixed = cells.astype(np.uint32) * np.uint32(2654435761)
    for c in range(3):
        share = (
            96 + ((mixed >> np.uint32(8 + 8 * c)) & np.uint32(255)).astype(np.int32) * 160 // 256
        )
        out[..., c] = np.where(cells != 0, light * share // 256, 0)


ANALYSIS: Final = KernelSource(
    SOURCE,
    {
        each.__name__: each
        for each in (
            *(begin, join, find_roots, number_parts, along_rows, across_rows),
            *(sow, flood, divide, tint),
        )
    },
    {"union.h": UNION_SOURCE},
)
