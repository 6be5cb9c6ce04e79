"""Kernels of particles in a box, which are kept in the order of the cells they are in."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from .kernels import KernelSource
from .spatial import GRID_SOURCE, bounds

Array: TypeAlias = np.ndarray[Any, Any]

SOURCE: Final = r"""
#include "grid.h"

struct Vector { float x, y, z; };

__device__ __forceinline__ Vector get(const float* v, int i, int d) {
    Vector r = {v[i * d], v[i * d + 1], d == 3 ? v[i * d + 2] : 0.0f};
    return r;
}

__device__ __forceinline__ int cell_along(float x, float cell, int size) {
    int c = (int)(x / cell);
    return c < 0 ? 0 : c >= size ? size - 1 : c;
}

// Half a step of motion. Walls reflect, and take a share of the speed.
extern "C" __global__ void drift(
    float* x, float* v, const float* box, const float* values, int n, int d
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n * d) return;
    float side = box[i % d], at = x[i] + 0.5f * values[0] * v[i];
    if (at < 0.0f || at > side) {
        at = at < 0.0f ? -at : 2.0f * side - at;
        v[i] = -v[i] * (1.0f - values[2]);
    }
    x[i] = fminf(fmaxf(at, 0.0f), side);
}

extern "C" __global__ void cells_of(
    int* keys, int* order, const float* x, int n, int d, int nx, int ny, int nz, float cell
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Vector p = get(x, i, d);
    int z = d == 3 ? cell_along(p.z, cell, nz) : 0;
    keys[i] = (z * ny + cell_along(p.y, cell, ny)) * nx + cell_along(p.x, cell, nx);
    order[i] = i;
}

extern "C" __global__ void gather(
    float* x, float* v, int* id, const float* old_x, const float* old_v, const int* old_id,
    const int* order, int n, int d
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    for (int k = 0; k < d; k++) {
        x[i * d + k] = old_x[order[i] * d + k];
        v[i * d + k] = old_v[order[i] * d + k];
    }
    id[i] = old_id[order[i]];
}

// The cubic spline, with a support of two lengths h.
__device__ __forceinline__ float spline(float q, float scale) {
    if (q >= 2.0f) return 0.0f;
    float a = 2.0f - q;
    return scale * (q < 1.0f ? 1.0f - 1.5f * q * q + 0.75f * q * q * q : 0.25f * a * a * a);
}

// Its slope over the distance.
__device__ __forceinline__ float slope(float q, float h, float scale) {
    if (q >= 2.0f) return 0.0f;
    float a = 2.0f - q;
    return scale / (h * h) * (q < 1.0f ? -3.0f + 2.25f * q : -0.75f * a * a / q);
}

// Calls visit(j) for all particles in the cells around that of i.
template <typename F>
__device__ __forceinline__ void around(
    Vector p, const int* starts, int d, int nx, int ny, int nz, float cell, F visit
) {
    int cx = cell_along(p.x, cell, nx), cy = cell_along(p.y, cell, ny);
    int cz = d == 3 ? cell_along(p.z, cell, nz) : 0;
    int left = cx > 0 ? cx - 1 : 0, right = cx < nx - 1 ? cx + 1 : cx;
    for (int z = cz > 0 ? cz - 1 : 0; z <= (cz < nz - 1 ? cz + 1 : cz); z++)
        for (int y = cy > 0 ? cy - 1 : 0; y <= (cy < ny - 1 ? cy + 1 : cy); y++) {
            int row = (z * ny + y) * nx, end = starts[row + right + 1];
            for (int j = starts[row + left]; j < end; j++) visit(j);
        }
}

extern "C" __global__ void densities(
    float* density, const float* x, const int* starts, int n, int d, int nx, int ny, int nz,
    float h, float scale, float mass
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Vector p = get(x, i, d);
    float sum = 0.0f;
    around(p, starts, d, nx, ny, nz, 2.0f * h, [&](int j) {
        Vector o = get(x, j, d);
        float a = p.x - o.x, b = p.y - o.y, c = p.z - o.z;
        sum += spline(sqrtf(a * a + b * b + c * c) / h, scale);
    });
    density[i] = sum * mass;
}

// Pressure and Monaghan's viscosity, symmetric in each pair, so momentum is conserved.
extern "C" __global__ void flow(
    float* force, const float* x, const float* v, const float* density, const int* starts,
    const float* values, int n, int d, int nx, int ny, int nz, float h, float scale, float mass,
    float rest
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Vector p = get(x, i, d), u = get(v, i, d), sum = {0.0f, 0.0f, 0.0f};
    float sound = values[3], square = sound * sound;
    float here = density[i], mine = fmaxf(square * (here - rest), 0.0f) / (here * here);
    around(p, starts, d, nx, ny, nz, 2.0f * h, [&](int j) {
        if (j == i) return;
        Vector o = get(x, j, d), w = get(v, j, d);
        float a = p.x - o.x, b = p.y - o.y, c = p.z - o.z, far = a * a + b * b + c * c;
        if (far >= 4.0f * h * h || far < 1e-12f * h * h) return;
        float there = density[j];
        float push = mine + fmaxf(square * (there - rest), 0.0f) / (there * there);
        float closing = (u.x - w.x) * a + (u.y - w.y) * b + (u.z - w.z) * c;
        if (closing < 0.0f) {
            float mu = h * closing / (far + 0.01f * h * h);
            push -= values[4] * sound * mu / (0.5f * (here + there));
        }
        float by = -mass * push * slope(sqrtf(far) / h, h, scale);
        sum.x += by * a;
        sum.y += by * b;
        sum.z += by * c;
    });
    force[i * d] = sum.x;
    force[i * d + 1] = sum.y;
    if (d == 3) force[i * d + 2] = sum.z;
}

// Springs between balls that overlap, with damping along the line between them.
extern "C" __global__ void collide(
    float* force, const float* x, const float* v, const int* starts, const float* values, int n,
    int d, int nx, int ny, int nz, float cell, float radius
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Vector p = get(x, i, d), u = get(v, i, d), sum = {0.0f, 0.0f, 0.0f};
    around(p, starts, d, nx, ny, nz, cell, [&](int j) {
        if (j == i) return;
        Vector o = get(x, j, d), w = get(v, j, d);
        float a = p.x - o.x, b = p.y - o.y, c = p.z - o.z, far = sqrtf(a * a + b * b + c * c);
        if (far >= 2.0f * radius || far < 1e-6f * radius) return;
        float along = ((u.x - w.x) * a + (u.y - w.y) * b + (u.z - w.z) * c) / far;
        float by = (values[3] * (2.0f * radius - far) - values[4] * along) / far;
        sum.x += by * a;
        sum.y += by * b;
        sum.z += by * c;
    });
    force[i * d] = sum.x;
    force[i * d + 1] = sum.y;
    if (d == 3) force[i * d + 2] = sum.z;
}

extern "C" __global__ void kick(
    float* v, const float* force, const float* values, int n, int d
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n * d) v[i] += values[0] * (force[i] - (i % d == 1 ? values[1] : 0.0f));
}

extern "C" __global__ void blank(int* bright, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) bright[i] = 0;
}

extern "C" __global__ void splat(
    int* bright, const float* x, const float* v, const float* box, int n, int d, int rows,
    int columns
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Vector p = get(x, i, d), u = get(v, i, d);
    int column = (int)(p.x / box[0] * columns), row = (int)(p.y / box[1] * rows);
    column = column < columns ? column : columns - 1;
    row = row < rows ? row : rows - 1;
    float speed = sqrtf(u.x * u.x + u.y * u.y + u.z * u.z);
    int shade = 96 + (int)(159.0f * speed / (1.0f + speed));
    atomicMax(bright + (rows - 1 - row) * columns + column, shade);
}

extern "C" __global__ void colour(unsigned char* out, const int* bright, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[3 * i] = (unsigned char)(bright[i] > 96 ? bright[i] - 96 : 0);
    out[3 * i + 1] = (unsigned char)(bright[i] / 2);
    out[3 * i + 2] = (unsigned char)bright[i];
}
"""


def drift(x: Array, v: Array, box: Array, values: Array, n: int, d: int) -> None:
    """Move half a step."""
    half = np.float32(0.5) * values[0]
    at = x + half * v
    below, out = at < 0, (at < 0) | (at > box)
    at = np.where(below, -at, np.where(out, 2 * box - at, at))
    v[...] = np.where(out, -v * (1 - values[2]), v)
    x[...] = np.clip(at, 0, box)


def cells_of(
    keys: Array, order: Array, x: Array, n: int, d: int, nx: int, ny: int, nz: int, cell: float
) -> None:
    """Number the cell of each particle."""
    c = np.clip((x / np.float32(cell)).astype(np.int32), 0, np.array((nx, ny, nz)[:d]) - 1)
    keys[...] = ((c[:, 2] if d == 3 else 0) * ny + c[:, 1]) * nx + c[:, 0]
    order[...] = np.arange(n)


def gather(
    x: Array,
    v: Array,
    id: Array,  # noqa: A002 (the kernel's name)
    old_x: Array,
    old_v: Array,
    old_id: Array,
    order: Array,
    n: int,
    d: int,
) -> None:
    """Bring particles into the order of cells."""
    x[...], v[...], id[...] = old_x[order], old_v[order], old_id[order]


def _pairs(x: Array, reach: float) -> tuple[Array, Array, Array, Array]:
    """Pairs within a reach, both ways: i, j, the way from j to i, and the distance."""
    from scipy.spatial import cKDTree

    found = cKDTree(x).query_pairs(reach, output_type="ndarray")
    i, j = np.concatenate([found, found[:, ::-1]]).T
    way = x[i] - x[j]
    far = np.sqrt((way * way).sum(1))
    return i, j, way, far


def _sums(i: Array, values: Array, n: int) -> Array:
    columns = values if values.ndim == 2 else values[:, None]
    total = [np.bincount(i, column, n) for column in columns.T]
    return np.stack(total, -1).astype(np.float32)


def densities(
    density: Array,
    x: Array,
    starts: Array,
    n: int,
    d: int,
    nx: int,
    ny: int,
    nz: int,
    h: float,
    scale: float,
    mass: float,
) -> None:
    """Sum the splines of all particles around each."""
    i, _, _, far = _pairs(x, 2.0 * float(h))
    q = far / np.float32(h)
    a = np.maximum(2 - q, 0)
    w = np.where(q < 1, 1 - 1.5 * q * q + 0.75 * q**3, 0.25 * a**3) * scale
    density[...] = (_sums(i, w, n)[:, 0] + np.float32(scale)) * np.float32(mass)


def flow(
    force: Array,
    x: Array,
    v: Array,
    density: Array,
    starts: Array,
    values: Array,
    n: int,
    d: int,
    nx: int,
    ny: int,
    nz: int,
    h: float,
    scale: float,
    mass: float,
    rest: float,
) -> None:
    """Compute pressure and viscosity."""
    i, j, way, far = _pairs(x, 2.0 * float(h))
    near = far >= 1e-6 * h
    i, j, way, far = i[near], j[near], way[near], far[near]
    sound = values[3]
    pressure = np.maximum(sound * sound * (density - np.float32(rest)), 0) / (density * density)
    push = pressure[i] + pressure[j]
    closing = np.minimum(((v[i] - v[j]) * way).sum(1), 0)
    mu = h * closing / (far * far + 0.01 * h * h)
    push = push - values[4] * sound * mu / (0.5 * (density[i] + density[j]))
    q = far / np.float32(h)
    a = np.maximum(2 - q, 0)
    slope = scale / (h * h) * np.where(q < 1, -3 + 2.25 * q, -0.75 * a * a / np.maximum(q, 1e-6))
    force[...] = _sums(i, (-mass * push * slope)[:, None] * way, n)


def collide(
    force: Array,
    x: Array,
    v: Array,
    starts: Array,
    values: Array,
    n: int,
    d: int,
    nx: int,
    ny: int,
    nz: int,
    cell: float,
    radius: float,
) -> None:
    """Push balls that overlap apart."""
    i, j, way, far = _pairs(x, 2.0 * float(radius))
    near = far >= 1e-6 * radius
    i, j, way, far = i[near], j[near], way[near], far[near]
    along = ((v[i] - v[j]) * way).sum(1) / far
    by = (values[3] * (2 * np.float32(radius) - far) - values[4] * along) / far
    force[...] = _sums(i, by[:, None] * way, n)


def kick(v: Array, force: Array, values: Array, n: int, d: int) -> None:
    """Change velocities by forces and gravity."""
    down = np.zeros(d, np.float32)
    down[1] = values[1]
    v += values[0] * (force - down)


def blank(bright: Array, n: int) -> None:
    """Begin a picture."""
    bright[...] = 0


def splat(
    bright: Array, x: Array, v: Array, box: Array, n: int, d: int, rows: int, columns: int
) -> None:
    """Mark the pixels with particles."""
    column = np.minimum((x[:, 0] / box[0] * columns).astype(np.int32), columns - 1)
    row = np.minimum((x[:, 1] / box[1] * rows).astype(np.int32), rows - 1)
    speed = np.sqrt((v * v).sum(1))
    shade = 96 + (np.float32(159) * speed / (1 + speed)).astype(np.int32)
    np.maximum.at(bright, (rows - 1 - row, column), shade)


def colour(out: Array, bright: Array, n: int) -> None:
    """Colour a picture."""
    out[...] = np.stack([np.maximum(bright - 96, 0), bright // 2, bright], -1)


PARTICLES: Final = KernelSource(
    SOURCE,
    {
        each.__name__: each
        for each in (
            *(bounds, drift, cells_of, gather, densities, flow, collide, kick, blank, splat),
            colour,
        )
    },
    {"grid.h": GRID_SOURCE},
)
