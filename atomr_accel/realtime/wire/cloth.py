"""Kernels of cloth: extended position based dynamics on a grid of vertices.

``values`` has the length of a step, gravity, the wind's three components, drag, damping, and the
compliances of stretch, shear and bend.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from .kernels import KernelSource

Array: TypeAlias = np.ndarray[Any, Any]

DEEP: Final = (1 << 22) - 1
"""The largest depth in a picture. Eight bits below a depth are the shade."""

SOURCE: Final = r"""
struct V3 { float x, y, z; };

__device__ __forceinline__ V3 load(const float* x, int i) {
    V3 p = {x[3 * i], x[3 * i + 1], x[3 * i + 2]};
    return p;
}

__device__ __forceinline__ void store(float* x, int i, V3 p) {
    x[3 * i] = p.x; x[3 * i + 1] = p.y; x[3 * i + 2] = p.z;
}

__device__ __forceinline__ V3 minus(V3 a, V3 b) {
    V3 p = {a.x - b.x, a.y - b.y, a.z - b.z};
    return p;
}

__device__ __forceinline__ float dot(V3 a, V3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }

// The unit normal of the plane that two ways are in; 0 if they are in line.
__device__ __forceinline__ V3 normal(V3 a, V3 b) {
    V3 n = {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
    float size = sqrtf(dot(n, n));
    float scale = size > 1e-20f ? 1.0f / size : 0.0f;
    n.x *= scale; n.y *= scale; n.z *= scale;
    return n;
}

// Gravity, wind against the surface, and damping. Both are implicit, so no step is too long.
extern "C" __global__ void accelerate(
    float* v, float* old, const float* x, const float* w, const float* values, int rows,
    int columns
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * columns) return;
    V3 p = load(x, i);
    store(old, i, p);
    V3 u = load(v, i);
    if (w[i] == 0.0f) { V3 none = {0.0f, 0.0f, 0.0f}; store(v, i, none); return; }
    int row = i / columns, column = i % columns;
    V3 along = minus(
        load(x, column + 1 < columns ? i + 1 : i), load(x, column > 0 ? i - 1 : i));
    V3 down = minus(
        load(x, row + 1 < rows ? i + columns : i), load(x, row > 0 ? i - columns : i));
    V3 n = normal(along, down);
    float dt = values[0];
    V3 wind = {values[2], values[3], values[4]};
    float share = dt * values[5] / (1.0f + dt * values[5]) * dot(n, minus(wind, u));
    float kept = 1.0f / (1.0f + dt * values[6]);
    u.x = (u.x + share * n.x) * kept;
    u.y = (u.y + share * n.y) * kept - dt * values[1];
    u.z = (u.z + share * n.z) * kept;
    store(v, i, u);
}

extern "C" __global__ void move(float* x, const float* v, const float* values, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += values[0] * v[i];
}

// Constraints from a vertex to the one (down, along) of it. Those of a colour have no vertex in
// common, so their order does not matter.
extern "C" __global__ void constrain(
    float* x, const float* w, const float* values, int rows, int columns, int down, int along,
    int colour, int which, float rest
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * columns) return;
    int row = i / columns, column = i % columns;
    int place = down ? row / down : column / along;
    if (place % 2 != colour || row + down >= rows) return;
    if (column + along < 0 || column + along >= columns) return;
    int j = i + down * columns + along;
    V3 a = load(x, i), b = load(x, j), way = minus(a, b);
    float size = sqrtf(dot(way, way)), weight = w[i] + w[j];
    if (weight == 0.0f || size < 1e-12f) return;
    float give = values[which] / (values[0] * values[0]);
    float scale = (rest - size) / (size * (weight + give));
    float s = scale * w[i], t = scale * w[j];
    a.x += s * way.x; a.y += s * way.y; a.z += s * way.z;
    b.x -= t * way.x; b.y -= t * way.y; b.z -= t * way.z;
    store(x, i, a);
    store(x, j, b);
}

extern "C" __global__ void finish(
    float* v, const float* x, const float* old, const float* values, int n
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) v[i] = (x[i] - old[i]) / values[0];
}

extern "C" __global__ void blank(int* bright, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) bright[i] = 0;
}

// Points of each patch between four vertices, side * side of them; the foremost one shows.
extern "C" __global__ void weave(
    int* bright, const float* x, const float* box, int rows, int columns, int side, int height,
    int width
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int count = side * side;
    if (i >= (rows - 1) * (columns - 1) * count) return;
    int patch = i / count, row = patch / (columns - 1), column = patch % (columns - 1);
    float s = ((float)(i % count / side) + 0.5f) / (float)side;
    float t = ((float)(i % side) + 0.5f) / (float)side;
    int corner = row * columns + column;
    V3 a = load(x, corner), b = load(x, corner + 1);
    V3 c = load(x, corner + columns), d = load(x, corner + columns + 1);
    float e = (1.0f - s) * (1.0f - t), f = (1.0f - s) * t, g = s * (1.0f - t), h = s * t;
    V3 p = {a.x * e + b.x * f + c.x * g + d.x * h, a.y * e + b.y * f + c.y * g + d.y * h,
            a.z * e + b.z * f + c.z * g + d.z * h};
    V3 n = normal(minus(d, a), minus(c, b));
    float across = (p.x - box[0]) / (box[3] - box[0]) * (float)width;
    float up = (p.y - box[1]) / (box[4] - box[1]) * (float)height;
    float near = (p.z - box[2]) / (box[5] - box[2]);
    if (!(across >= 0.0f && across < (float)width && up >= 0.0f && up < (float)height)) return;
    int depth = (int)(fminf(fmaxf(near, 0.0f), 1.0f) * 4194303.0f);
    int shade = 64 + 2 * (int)(95.0f * fabsf(n.z)) + (n.z < 0.0f ? 1 : 0);
    atomicMax(bright + (height - 1 - (int)up) * width + (int)across, depth * 256 + shade);
}

// One side of the cloth is red, the other blue.
extern "C" __global__ void dye(unsigned char* out, const int* bright, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int shade = bright[i] % 256;
    out[3 * i] = (unsigned char)(shade % 2 ? shade / 4 : shade);
    out[3 * i + 1] = (unsigned char)(shade / 3);
    out[3 * i + 2] = (unsigned char)(shade % 2 ? shade : shade / 4);
}
"""


def _normal(a: Array, b: Array) -> Array:
    n = np.cross(a, b)
    size = np.sqrt((n * n).sum(-1, keepdims=True))
    return n * np.where(size > 1e-20, 1 / np.where(size > 1e-20, size, 1), 0).astype(np.float32)


def accelerate(
    v: Array, old: Array, x: Array, w: Array, values: Array, rows: int, columns: int
) -> None:
    """Add gravity, wind and damping to velocities."""
    dt = values[0]
    old[...] = x
    along, down = np.zeros_like(x), np.zeros_like(x)
    along[:, 1:-1], down[1:-1] = x[:, 2:] - x[:, :-2], x[2:] - x[:-2]
    along[:, 0], down[0] = x[:, 1] - x[:, 0], x[1] - x[0]
    along[:, -1], down[-1] = x[:, -1] - x[:, -2], x[-1] - x[-2]
    n = _normal(along, down)
    share = dt * values[5] / (1 + dt * values[5]) * (n * (values[2:5] - v)).sum(-1)
    v[...] = (v + share[..., None] * n) / (1 + dt * values[6])
    v[..., 1] -= dt * values[1]
    v[w == 0] = 0


def move(x: Array, v: Array, values: Array, n: int) -> None:
    """Move vertices as if nothing held them."""
    x += values[0] * v


def constrain(
    x: Array,
    w: Array,
    values: Array,
    rows: int,
    columns: int,
    down: int,
    along: int,
    colour: int,
    which: int,
    rest: float,
) -> None:
    """Bring pairs of vertices closer to their distance at rest."""
    first = max(0, -along)
    row, column = np.mgrid[0 : rows - down, first : columns - max(0, along)]
    place = row // down if down else column // along
    i, j = row[place % 2 == colour], column[place % 2 == colour]
    k, m = i + down, j + along
    way = x[i, j] - x[k, m]
    size = np.sqrt((way * way).sum(-1))
    weight = w[i, j] + w[k, m]
    held = (weight > 0) & (size >= 1e-12)
    give = values[which] / (values[0] * values[0])
    scale = (np.float32(rest) - size) / np.where(held, size * (weight + give), 1)
    scale = np.where(held, scale, 0).astype(np.float32)
    x[i, j] += (scale * w[i, j])[:, None] * way
    x[k, m] -= (scale * w[k, m])[:, None] * way


def finish(v: Array, x: Array, old: Array, values: Array, n: int) -> None:
    """Take velocities from movements."""
    v[...] = (x - old) / values[0]


def blank(bright: Array, n: int) -> None:
    """Clear the picture."""
    bright[...] = 0


def weave(
    bright: Array, x: Array, box: Array, rows: int, columns: int, side: int, height: int, width: int
) -> None:
    """Draw points of patches."""
    a, b, c, d = (
        each[:, :, None, None] for each in (x[:-1, :-1], x[:-1, 1:], x[1:, :-1], x[1:, 1:])
    )
    line = ((np.arange(side) + 0.5) / side).astype(np.float32)
    s, t = line[:, None, None], line[None, :, None]
    p = (a * (1 - t) + b * t) * (1 - s) + (c * (1 - t) + d * t) * s
    turn = np.broadcast_to(_normal(d - a, c - b)[..., 2], p.shape[:-1])
    size = np.array([width, height, 1], np.float32)
    p = (p - box[:3]) / (box[3:] - box[:3]) * size
    seen = ((p[..., :2] >= 0) & (p[..., :2] < size[:2])).all(-1)
    depth = (np.clip(p[..., 2], 0, 1) * np.float32(DEEP)).astype(np.int32)
    shade = 64 + 2 * (95 * np.abs(turn)).astype(np.int32) + (turn < 0)
    across, up = p[..., 0][seen].astype(np.int32), p[..., 1][seen].astype(np.int32)
    np.maximum.at(bright, (height - 1 - up, across), (depth * 256 + shade)[seen])


def dye(out: Array, bright: Array, n: int) -> None:
    """Colour the picture."""
    shade = bright % 256
    back = shade % 2 == 1
    out[..., 0] = np.where(back, shade // 4, shade)
    out[..., 1] = shade // 3
    out[..., 2] = np.where(back, shade, shade // 4)


CLOTH: Final = KernelSource(
    SOURCE,
    {each.__name__: each for each in (accelerate, move, constrain, finish, blank, weave, dye)},
)
