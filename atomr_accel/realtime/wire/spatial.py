"""Kernels of a uniform grid over points: radius, nearest neighbours, rays; in float64."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from .kernels import KernelSource

Array: TypeAlias = np.ndarray[Any, Any]

MOST: Final = 64
"""Neighbours that a query may ask for."""

GRID_SOURCE: Final = r"""
// For each cell the place of its first point in the order of cells; thread n writes the end.
extern "C" __global__ void bounds(int* starts, const int* keys, int n, int cells) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > n) return;
    int from = i == 0 ? 0 : keys[i - 1] + 1, to = i == n ? cells : keys[i];
    for (int cell = from; cell <= to; cell++) starts[cell] = i;
}
"""

SOURCE: Final = r"""
#include "grid.h"

struct Box { double low[3]; double cell; int size[3]; };

__device__ __forceinline__ Box box_of(const double* box, const int* size) {
    Box b;
    for (int k = 0; k < 3; k++) { b.low[k] = box[k]; b.size[k] = size[k]; }
    b.cell = box[3];
    return b;
}

__device__ __forceinline__ int cell_along(const Box& b, double x, int k) {
    double at = floor((x - b.low[k]) / b.cell);
    return (int)fmin(fmax(at, -1e8), 1e8);
}

// NVRTC has no INFINITY, and warns of constants that overflow.
__device__ __forceinline__ double infinite() {
    double far = 1e200;
    return far * far;
}

__device__ __forceinline__ int limited(int i, int n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }

__device__ __forceinline__ void point_of(double* p, const float* points, int i, int d) {
    for (int k = 0; k < 3; k++) p[k] = k < d ? (double)points[(long long)i * d + k] : 0.0;
}

__device__ __forceinline__ double square(const double* a, const double* b) {
    double x = a[0] - b[0], y = a[1] - b[1], z = a[2] - b[2];
    return x * x + y * y + z * z;
}

extern "C" __global__ void cells_of(
    int* keys, int* order, const float* points, const double* box, const int* size, int n, int d
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Box b = box_of(box, size);
    double p[3];
    point_of(p, points, i, d);
    int c[3];
    for (int k = 0; k < 3; k++) c[k] = limited(cell_along(b, p[k], k), size[k]);
    keys[i] = (c[2] * size[1] + c[1]) * size[0] + c[0];
    order[i] = i;
}

// Counts neighbours within a radius; with offsets it writes their numbers instead.
extern "C" __global__ void within(
    int* out, const long long* offsets, const float* queries, const float* points,
    const int* order, const int* starts, const double* box, const int* size, int n, int d,
    double radius
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Box b = box_of(box, size);
    double q[3], p[3];
    point_of(q, queries, i, d);
    int low[3], high[3];
    double margin = radius * 1e-9 + b.cell * 1e-9;
    for (int k = 0; k < 3; k++) {
        low[k] = limited(cell_along(b, q[k] - radius - margin, k), size[k]);
        high[k] = limited(cell_along(b, q[k] + radius + margin, k), size[k]);
    }
    int count = 0;
    for (int z = low[2]; z <= high[2]; z++)
        for (int y = low[1]; y <= high[1]; y++) {
            int row = (z * size[1] + y) * size[0];
            int end = starts[row + high[0] + 1];  // cells of a row are beside each other
            for (int at = starts[row + low[0]]; at < end; at++) {
                point_of(p, points, order[at], d);
                if (square(q, p) > radius * radius) continue;
                if (offsets) out[offsets[i] + count] = order[at];
                count++;
            }
        }
    if (!offsets) out[i] = count;
}

// The nearest points so far, in ascending order.
struct Near { double apart[64]; int which[64], k, have; };

__device__ __forceinline__ void offer(Near& near, double apart, int index) {
    double* best = near.apart;
    int *which = near.which, place = near.have;
    if (place == near.k) {
        place--;
        if (apart > best[place] || (apart == best[place] && index > which[place])) return;
    } else near.have = place + 1;
    while (place > 0 && (best[place - 1] > apart
                         || (best[place - 1] == apart && which[place - 1] > index))) {
        best[place] = best[place - 1];
        which[place] = which[place - 1];
        place--;
    }
    best[place] = apart;
    which[place] = index;
}

// Offers the points of cells that are beside each other in a row.
__device__ __forceinline__ void offer_all(
    Near& near, const double* q, const float* points, const int* order, int begin, int end, int d
) {
    double p[3];
    for (int at = begin; at < end; at++) {
        point_of(p, points, order[at], d);
        offer(near, square(q, p), order[at]);
    }
}

// Shells of cells around the query, until no cell further out can have a nearer point.
extern "C" __global__ void nearest(
    double* distances, int* indices, const float* queries, const float* points, const int* order,
    const int* starts, const double* box, const int* size, int n, int d, int k
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Box b = box_of(box, size);
    Near near;
    near.k = k;
    near.have = 0;
    double q[3];
    int c[3] = {0, 0, 0}, shell = 0, last = 0;
    point_of(q, queries, i, d);
    for (int axis = 0; axis < d; axis++) {
        c[axis] = cell_along(b, q[axis], axis);
        // CUDA 13.0's compiler for sm_90 drops the minus of max(-c, c - size + 1).
        shell = max(shell, abs(c[axis] - limited(c[axis], b.size[axis])));
        last = max(last, max(c[axis], b.size[axis] - 1 - c[axis]));
    }
    for (; shell <= last; shell++) {
        int deep = d == 3 ? shell : 0;
        int left = c[0] - shell, right = c[0] + shell;
        for (int z = max(c[2] - deep, 0); z <= min(c[2] + deep, b.size[2] - 1); z++)
            for (int y = max(c[1] - shell, 0); y <= min(c[1] + shell, b.size[1] - 1); y++) {
                const int* row = starts + (long long)(z * b.size[1] + y) * b.size[0];
                if (abs(y - c[1]) == shell || (d == 3 && abs(z - c[2]) == shell)) {
                    int from = max(left, 0), to = min(right, b.size[0] - 1);
                    if (from <= to) offer_all(near, q, points, order, row[from], row[to + 1], d);
                    continue;
                }
                if (left >= 0 && left < b.size[0])
                    offer_all(near, q, points, order, row[left], row[left + 1], d);
                if (right >= 0 && right < b.size[0])
                    offer_all(near, q, points, order, row[right], row[right + 1], d);
            }
        if (near.have < k) continue;
        double reach = 1e300;
        for (int axis = 0; axis < d; axis++) {
            double low = b.low[axis] + (double)(c[axis] - shell) * b.cell;
            double high = b.low[axis] + (double)(c[axis] + shell + 1) * b.cell;
            reach = fmin(reach, fmin(q[axis] - low, high - q[axis]));
        }
        reach = reach * (1.0 - 1e-9) - b.cell * 1e-9;
        if (reach > 0.0 && near.apart[k - 1] < reach * reach) break;
    }
    for (int j = 0; j < k; j++) {
        distances[(long long)i * k + j] = j < near.have ? sqrt(near.apart[j]) : infinite();
        indices[(long long)i * k + j] = j < near.have ? near.which[j] : -1;
    }
}

// The first ball around a point that a ray meets. A cell is at least as long as the radius, so the
// centre of a ball that is met in a cell is in that cell or beside it.
extern "C" __global__ void cast(
    double* distances, int* indices, const float* origins, const float* directions,
    const float* points, const int* order, const int* starts, const double* box, const int* size,
    int n, int d, double radius
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Box b = box_of(box, size);
    double o[3], v[3], p[3], length = 0.0, begin = 0.0, end = 1e300;
    point_of(o, origins, i, d);
    point_of(v, directions, i, d);
    for (int k = 0; k < 3; k++) length += v[k] * v[k];
    length = sqrt(length);
    for (int k = 0; k < d; k++) {  // where it is in the grid, with a cell around it
        v[k] /= length;
        double low = b.low[k] - b.cell, high = b.low[k] + (size[k] + 1) * b.cell;
        if (v[k] == 0.0) { if (o[k] < low || o[k] > high) end = -1.0; continue; }
        double one = (low - o[k]) / v[k], two = (high - o[k]) / v[k];
        begin = fmax(begin, fmin(one, two));
        end = fmin(end, fmax(one, two));
    }
    double best = infinite();
    int which = -1, c[3], way[3] = {0, 0, 0};
    double next[3], step[3];
    for (int k = 0; k < 3; k++) {
        next[k] = step[k] = 1e300;
        c[k] = k < d ? cell_along(b, o[k] + begin * v[k], k) : 0;
        if (k >= d || v[k] == 0.0) continue;
        way[k] = v[k] > 0.0 ? 1 : -1;
        step[k] = b.cell / fabs(v[k]);
        next[k] = (b.low[k] + (c[k] + (v[k] > 0.0)) * b.cell - o[k]) / v[k];
    }
    while (begin <= end && best > begin) {
        int deep = d == 3 ? 1 : 0;
        for (int z = max(c[2] - deep, 0); z <= min(c[2] + deep, size[2] - 1); z++)
            for (int y = max(c[1] - 1, 0); y <= min(c[1] + 1, size[1] - 1); y++)
                for (int x = max(c[0] - 1, 0); x <= min(c[0] + 1, size[0] - 1); x++) {
                    int cell = (z * size[1] + y) * size[0] + x;
                    for (int at = starts[cell]; at < starts[cell + 1]; at++) {
                        point_of(p, points, order[at], d);
                        double along = 0.0, apart = 0.0;
                        for (int k = 0; k < 3; k++) along += (p[k] - o[k]) * v[k];
                        for (int k = 0; k < 3; k++) {
                            double off = p[k] - o[k] - along * v[k];
                            apart += off * off;
                        }
                        if (apart > radius * radius) continue;
                        double half = sqrt(radius * radius - apart);
                        if (along + half < 0.0) continue;
                        double t = fmax(along - half, 0.0);
                        if (t < best || (t == best && order[at] < which)) {
                            best = t;
                            which = order[at];
                        }
                    }
                }
        int k = next[0] <= next[1] ? (next[0] <= next[2] ? 0 : 2) : (next[1] <= next[2] ? 1 : 2);
        begin = next[k];
        c[k] += way[k];
        next[k] += step[k];
    }
    distances[i] = best;
    indices[i] = which;
}
"""


def bounds(starts: Array, keys: Array, n: int, cells: int) -> None:
    """Find where each cell begins."""
    starts[: cells + 1] = np.searchsorted(keys[:n], np.arange(cells + 1))


def cells_of(
    keys: Array, order: Array, points: Array, box: Array, size: Array, n: int, d: int
) -> None:
    """Number the cell of each point."""
    at = np.floor((points.astype(np.float64) - box[:d]) / box[3])
    c = np.clip(at, 0, size[:d] - 1).astype(np.int64)
    z = c[:, 2] if d == 3 else 0
    keys[...] = (z * size[1] + c[:, 1]) * size[0] + c[:, 0]
    order[...] = np.arange(n)


def within(
    out: Array,
    offsets: Array | None,
    queries: Array,
    points: Array,
    order: Array,
    starts: Array,
    box: Array,
    size: Array,
    n: int,
    d: int,
    radius: float,
) -> None:
    """Count or list neighbours within a radius, by SciPy's tree."""
    from scipy.spatial import cKDTree

    found: Any = cKDTree(points).query_ball_point(queries, float(radius))
    if offsets is None:
        out[...] = [len(each) for each in found]
        return
    rank = np.argsort(order)  # the kernel's order is that of cells
    for at, each in zip(offsets[:n], found, strict=True):
        out[at : at + len(each)] = sorted(each, key=rank.__getitem__)


def nearest(
    distances: Array,
    indices: Array,
    queries: Array,
    points: Array,
    order: Array,
    starts: Array,
    box: Array,
    size: Array,
    n: int,
    d: int,
    k: int,
) -> None:
    """Find the nearest points, by SciPy's tree."""
    from scipy.spatial import cKDTree

    found, which = cKDTree(points).query(queries, [*range(1, k + 1)])
    distances[...] = found
    indices[...] = np.where(np.isfinite(found), which, -1)


def cast(
    distances: Array,
    indices: Array,
    origins: Array,
    directions: Array,
    points: Array,
    order: Array,
    starts: Array,
    box: Array,
    size: Array,
    n: int,
    d: int,
    radius: float,
) -> None:
    """Find the first ball that each ray meets, by trying all."""
    wide = points.astype(np.float64)
    for i in range(n):
        v = directions[i].astype(np.float64)
        v /= np.sqrt((v * v).sum())
        off = wide - origins[i].astype(np.float64)
        along = off @ v
        apart = ((off - along[:, None] * v) ** 2).sum(1)
        half = np.sqrt(np.maximum(radius * radius - apart, 0))
        met = (apart <= radius * radius) & (along + half >= 0)
        t = np.where(met, np.maximum(along - half, 0), np.inf)
        which = int(np.argmin(t))
        distances[i], indices[i] = t[which], which if np.isfinite(t[which]) else -1


SPATIAL: Final = KernelSource(
    SOURCE,
    {each.__name__: each for each in (bounds, cells_of, within, nearest, cast)},
    {"grid.h": GRID_SOURCE},
)
