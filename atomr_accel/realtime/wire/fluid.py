"""Kernels of fluids on a staggered grid that wraps around.

Component ``c`` of the velocity is on the lower face of each cell along axis ``c``. The last axis of
arrays is x. ``solid`` is 1 in cells without fluid. Faces beside solid cells are closed.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from .kernels import KernelSource

Array: TypeAlias = np.ndarray[Any, Any]

SOURCE: Final = r"""
struct Grid { int nx, ny, nz; };

__device__ __forceinline__ int wrapped(int i, int n) { i %= n; return i < 0 ? i + n : i; }

__device__ __forceinline__ int at(const Grid g, int x, int y, int z) {
    return (wrapped(z, g.nz) * g.ny + wrapped(y, g.ny)) * g.nx + wrapped(x, g.nx);
}

__device__ __forceinline__ int next_to(const Grid g, int x, int y, int z, int axis, int by) {
    return at(g, x + (axis == 0 ? by : 0), y + (axis == 1 ? by : 0), z + (axis == 2 ? by : 0));
}

// The value of q, whose samples are at offset (ox, oy, oz) in their cells, at a point; with the
// smallest and largest of its neighbours.
__device__ __forceinline__ float sample(
    const float* q, const Grid g, float x, float y, float z, float* low, float* high
) {
    float fx = floorf(x), fy = floorf(y), fz = floorf(z);
    int i = wrapped((int)fx, g.nx), j = wrapped((int)fy, g.ny), k = wrapped((int)fz, g.nz);
    x -= fx; y -= fy; z -= fz;
    int i1 = i + 1 == g.nx ? 0 : i + 1, j1 = j + 1 == g.ny ? 0 : j + 1;
    float result = 0.0f;
    float least = 3.4e38f, most = -3.4e38f;
    for (int dz = 0; dz < (g.nz > 1 ? 2 : 1); dz++) {
        int plane = (dz ? (k + 1 == g.nz ? 0 : k + 1) : k) * g.ny;
        float a = q[(plane + j) * g.nx + i], b = q[(plane + j) * g.nx + i1];
        float c = q[(plane + j1) * g.nx + i], d = q[(plane + j1) * g.nx + i1];
        float flat = (a * (1.0f - x) + b * x) * (1.0f - y) + (c * (1.0f - x) + d * x) * y;
        result += g.nz > 1 ? flat * (dz ? z : 1.0f - z) : flat;
        least = fminf(least, fminf(fminf(a, b), fminf(c, d)));
        most = fmaxf(most, fmaxf(fmaxf(a, b), fmaxf(c, d)));
    }
    *low = least;
    *high = most;
    return result;
}

struct Point { float x, y, z; };

__device__ __forceinline__ Point flow(
    const float* u, const float* v, const float* w, const Grid g, Point p
) {
    float low, high;
    Point f;
    f.x = sample(u, g, p.x, p.y - 0.5f, p.z - 0.5f, &low, &high);
    f.y = sample(v, g, p.x - 0.5f, p.y, p.z - 0.5f, &low, &high);
    f.z = g.nz > 1 ? sample(w, g, p.x - 0.5f, p.y - 0.5f, p.z, &low, &high) : 0.0f;
    return f;
}

// Where what is at a sample of component c was, by the midpoint rule, in cells.
__device__ __forceinline__ Point traced(
    const float* u, const float* v, const float* w, const Grid g, int index, int c, float step
) {
    Point p;
    p.x = (float)(index % g.nx) + (c == 0 ? 0.0f : 0.5f);
    p.y = (float)(index / g.nx % g.ny) + (c == 1 ? 0.0f : 0.5f);
    p.z = (float)(index / g.nx / g.ny) + (c == 2 ? 0.0f : 0.5f);
    Point f = flow(u, v, w, g, p);
    Point half = {p.x - 0.5f * step * f.x, p.y - 0.5f * step * f.y, p.z - 0.5f * step * f.z};
    f = flow(u, v, w, g, half);
    Point end = {
        p.x - step * f.x - (c == 0 ? 0.0f : 0.5f),
        p.y - step * f.y - (c == 1 ? 0.0f : 0.5f),
        p.z - step * f.z - (c == 2 ? 0.0f : 0.5f)
    };
    return end;
}

// Semi-Lagrangian advection.
extern "C" __global__ void advect(
    float* out, const float* q, const float* u, const float* v, const float* w,
    const float* values, int nx, int ny, int nz, int c, float spacing
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= nx * ny * nz) return;
    Grid g = {nx, ny, nz};
    float low, high;
    Point p = traced(u, v, w, g, index, c, values[0] / spacing);
    out[index] = sample(q, g, p.x, p.y, p.z, &low, &high);
}

// MacCormack's correction of it, limited by the values that the first one was made of.
extern "C" __global__ void correct(
    float* out, const float* moved, const float* q, const float* u, const float* v,
    const float* w, const float* values, int nx, int ny, int nz, int c, float spacing
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= nx * ny * nz) return;
    Grid g = {nx, ny, nz};
    float low, high, unused;
    float step = values[0] / spacing;
    Point p = traced(u, v, w, g, index, c, -step);
    float back = sample(moved, g, p.x, p.y, p.z, &unused, &low);
    p = traced(u, v, w, g, index, c, step);
    sample(q, g, p.x, p.y, p.z, &low, &high);
    float found = moved[index] + 0.5f * (q[index] - back);
    out[index] = fminf(fmaxf(found, low), high);
}

__device__ __forceinline__ bool is_closed(
    const unsigned char* solid, const Grid g, int x, int y, int z, int axis
) {
    return solid[at(g, x, y, z)] || solid[next_to(g, x, y, z, axis, -1)];
}

// Viscosity, gravity of smoke and a constant force, for one component. Walls have no slip: half a
// cell from the wall the flow beyond it is the opposite.
extern "C" __global__ void push(
    float* out, const float* q, const float* smoke, const unsigned char* solid,
    const float* values, int nx, int ny, int nz, int c, int up, float spacing
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= nx * ny * nz) return;
    Grid g = {nx, ny, nz};
    int x = index % nx, y = index / nx % ny, z = index / nx / ny;
    if (is_closed(solid, g, x, y, z, c)) { out[index] = 0.0f; return; }
    float here = q[index], sum = 0.0f;
    int before = next_to(g, x, y, z, c, -1);
    for (int axis = 0; axis < (nz > 1 ? 3 : 2); axis++)
        for (int by = -1; by <= 1; by += 2) {
            int other = next_to(g, x, y, z, axis, by);
            int ox = other % nx, oy = other / nx % ny, oz = other / nx / ny;
            bool wall = solid[other] && solid[next_to(g, ox, oy, oz, c, -1)];
            sum += (wall ? -here : q[other]) - here;
        }
    float force = c == up ? values[2] * 0.5f * (smoke[index] + smoke[before]) : 0.0f;
    if (c == 0) force += values[3];
    out[index] = here + values[0] * (values[1] / (spacing * spacing) * sum + force);
}

// Smoke after a step: it comes from sources, and fades.
extern "C" __global__ void emit(
    float* smoke, const float* moved, const float* source, const unsigned char* solid,
    const float* values, int n
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= n) return;
    float kept = moved[index] + values[0] * source[index];
    smoke[index] = solid[index] ? 0.0f : kept / (1.0f + values[0] * values[4]);
}

extern "C" __global__ void diverge(
    float* out, const float* u, const float* v, const float* w, const unsigned char* solid,
    int nx, int ny, int nz, float spacing
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= nx * ny * nz) return;
    Grid g = {nx, ny, nz};
    int x = index % nx, y = index / nx % ny, z = index / nx / ny;
    float sum = u[at(g, x + 1, y, z)] - u[index] + v[at(g, x, y + 1, z)] - v[index];
    if (nz > 1) sum += w[at(g, x, y, z + 1)] - w[index];
    out[index] = solid[index] ? 0.0f : -sum * spacing;
}

// The negative Laplacian between cells of fluid, in units of one over the spacing squared.
extern "C" __global__ void laplace(
    float* out, const float* p, const unsigned char* solid, int nx, int ny, int nz
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= nx * ny * nz) return;
    Grid g = {nx, ny, nz};
    int x = index % nx, y = index / nx % ny, z = index / nx / ny;
    float sum = 0.0f;
    if (!solid[index])
        for (int axis = 0; axis < (nz > 1 ? 3 : 2); axis++)
            for (int by = -1; by <= 1; by += 2) {
                int other = next_to(g, x, y, z, axis, by);
                if (!solid[other]) sum += p[index] - p[other];
            }
    out[index] = sum;
}

extern "C" __global__ void project(
    float* q, const float* p, const unsigned char* solid, int nx, int ny, int nz, int c,
    float spacing
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= nx * ny * nz) return;
    Grid g = {nx, ny, nz};
    int x = index % nx, y = index / nx % ny, z = index / nx / ny;
    int before = next_to(g, x, y, z, c, -1);
    bool closed = solid[index] || solid[before];
    q[index] = closed ? 0.0f : q[index] - (p[index] - p[before]) / spacing;
}

// A slice through the middle, the first row at the bottom: smoke white, solid grey.
extern "C" __global__ void paint(
    unsigned char* out, const float* smoke, const float* u, const float* v,
    const unsigned char* solid, int nx, int ny, int nz
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= nx * ny) return;
    int x = index % nx, y = ny - 1 - index / nx;
    int cell = (nz / 2 * ny + y) * nx + x;
    float bright = fminf(fmaxf(smoke[cell], 0.0f), 1.0f);
    float speed = fminf(sqrtf(u[cell] * u[cell] + v[cell] * v[cell]), 1.0f);
    float blue = fminf(bright + 0.5f * speed, 1.0f);
    bool wall = solid[cell];
    out[3 * index] = wall ? 96 : (unsigned char)(255.0f * bright + 0.5f);
    out[3 * index + 1] = wall ? 96 : (unsigned char)(255.0f * bright + 0.5f);
    out[3 * index + 2] = wall ? 96 : (unsigned char)(255.0f * blue + 0.5f);
}
"""


def _axes(q: Array) -> int:
    return q.ndim


def _next(q: Array, axis: int, by: int) -> Array:
    """The value of the neighbour along x, y or z, for each cell."""
    return np.roll(q, -by, q.ndim - 1 - axis)


def _sample(q: Array, points: list[Array]) -> tuple[Array, Array, Array]:
    """Values at points, given by axes x, y, z, with the extremes of their neighbours."""
    floors = [np.floor(p) for p in points]
    rests = [p - f for p, f in zip(points, floors, strict=True)]
    whole = [f.astype(np.int64) for f in floors]
    result = np.zeros(points[0].shape, np.float32)
    low = np.full(points[0].shape, np.inf, np.float32)
    high = -low
    for corner in np.ndindex(*(2,) * q.ndim):  # x, y, z
        weight: Any = np.float32(1)
        index = []
        for axis, by in enumerate(corner):
            weight = weight * (rests[axis] if by else 1 - rests[axis])
            index.append((whole[axis] + by) % q.shape[q.ndim - 1 - axis])
        value = q[tuple(reversed(index))]
        result += weight * value
        np.minimum(low, value, out=low)
        np.maximum(high, value, out=high)
    return result, low, high


def _flow(velocity: list[Array], points: list[Array]) -> list[Array]:
    half = np.float32(0.5)
    return [
        _sample(q, [p if axis == c else p - half for axis, p in enumerate(points)])[0]
        for c, q in enumerate(velocity)
    ]


def _traced(velocity: list[Array], c: int, step: Any) -> list[Array]:
    q = velocity[0]
    half = np.float32(0.5)
    grids = [
        np.broadcast_to(
            np.arange(q.shape[q.ndim - 1 - axis], dtype=np.float32).reshape(
                [-1 if at == q.ndim - 1 - axis else 1 for at in range(q.ndim)]
            ),
            q.shape,
        )
        for axis in range(q.ndim)
    ]
    offsets = [np.float32(0) if axis == c else half for axis in range(q.ndim)]
    points = [grid + offset for grid, offset in zip(grids, offsets, strict=True)]
    flow = _flow(velocity, points)
    middle = [p - half * step * f for p, f in zip(points, flow, strict=True)]
    flow = _flow(velocity, middle)
    return [p - step * f - o for p, f, o in zip(points, flow, offsets, strict=True)]


def advect(
    out: Array,
    q: Array,
    u: Array,
    v: Array,
    w: Array,
    values: Array,
    nx: int,
    ny: int,
    nz: int,
    c: int,
    spacing: float,
) -> None:
    """Move a quantity along the flow."""
    velocity = [u, v, w][: _axes(q)]
    out[...] = _sample(q, _traced(velocity, c, values[0] / np.float32(spacing)))[0]


def correct(
    out: Array,
    moved: Array,
    q: Array,
    u: Array,
    v: Array,
    w: Array,
    values: Array,
    nx: int,
    ny: int,
    nz: int,
    c: int,
    spacing: float,
) -> None:
    """Correct the moved values by the error of moving them back."""
    velocity = [u, v, w][: _axes(q)]
    step = values[0] / np.float32(spacing)
    back = _sample(moved, _traced(velocity, c, -step))[0]
    _, low, high = _sample(q, _traced(velocity, c, step))
    out[...] = np.clip(moved + np.float32(0.5) * (q - back), low, high)


def push(
    out: Array,
    q: Array,
    smoke: Array,
    solid: Array,
    values: Array,
    nx: int,
    ny: int,
    nz: int,
    c: int,
    up: int,
    spacing: float,
) -> None:
    """Apply forces to one component."""
    dt, viscosity, lift, force = values[:4]
    within = (solid != 0) & (_next(solid, c, -1) != 0)
    total = np.zeros_like(q)
    for axis in range(q.ndim):
        for by in (-1, 1):
            total += np.where(_next(within, axis, by), -q, _next(q, axis, by)) - q
    push_: Any = np.float32(0)
    if c == up:
        push_ = lift * np.float32(0.5) * (smoke + _next(smoke, c, -1))
    if c == 0:
        push_ = push_ + force
    new = q + dt * (viscosity / np.float32(spacing * spacing) * total + push_)
    out[...] = np.where((solid != 0) | (_next(solid, c, -1) != 0), 0, new)


def emit(smoke: Array, moved: Array, source: Array, solid: Array, values: Array, n: int) -> None:
    """Let smoke come and fade."""
    kept = (moved + values[0] * source) / (1 + values[0] * values[4])
    smoke[...] = np.where(solid != 0, 0, kept)


def diverge(
    out: Array,
    u: Array,
    v: Array,
    w: Array,
    solid: Array,
    nx: int,
    ny: int,
    nz: int,
    spacing: float,
) -> None:
    """Write what flows into each cell."""
    total = sum(_next(q, c, 1) - q for c, q in enumerate([u, v, w][: _axes(u)]))
    out[...] = np.where(solid != 0, 0, -total * np.float32(spacing))


def laplace(out: Array, p: Array, solid: Array, nx: int, ny: int, nz: int) -> None:
    """Write the negative Laplacian."""
    total = np.zeros_like(p)
    for axis in range(p.ndim):
        for by in (-1, 1):
            total += np.where(_next(solid, axis, by) != 0, 0, p - _next(p, axis, by))
    out[...] = np.where(solid != 0, 0, total)


def project(
    q: Array, p: Array, solid: Array, nx: int, ny: int, nz: int, c: int, spacing: float
) -> None:
    """Subtract the gradient of the pressure."""
    closed = (solid != 0) | (_next(solid, c, -1) != 0)
    q[...] = np.where(closed, 0, q - (p - _next(p, c, -1)) / np.float32(spacing))


def paint(
    out: Array, smoke: Array, u: Array, v: Array, solid: Array, nx: int, ny: int, nz: int
) -> None:
    """Draw a slice."""
    if smoke.ndim == 3:
        smoke, u, v, solid = (a[nz // 2] for a in (smoke, u, v, solid))
    bright = np.clip(smoke, 0, 1)
    speed = np.minimum(np.sqrt(u * u + v * v), 1)
    blue = np.minimum(bright + np.float32(0.5) * speed, 1)
    colours = np.stack([bright, bright, blue], -1) * np.float32(255) + np.float32(0.5)
    out[...] = np.where(solid[..., None] != 0, 96, colours.astype(np.uint8))[::-1]


FLUID: Final = KernelSource(
    SOURCE,
    {
        each.__name__: each
        for each in (advect, correct, push, emit, diverge, laplace, project, paint)
    },
)
