"""Kernels of image filters, on float32 images of shape (height, width, channels)."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from .kernels import KernelSource

Array: TypeAlias = np.ndarray[Any, Any]

BORDERS: Final = ("constant", "replicate", "reflect", "wrap", "reflect_101")
"""OpenCV's names, in the order of the numbers that kernels get."""

_PADS: Final = ("constant", "edge", "symmetric", "wrap", "reflect")

UNION_SOURCE: Final = r"""
__device__ __forceinline__ int root_of(const volatile int* parent, int i) {
    int above = parent[i];
    while (above != i) { i = above; above = parent[i]; }
    return i;
}

// The smallest index of a component becomes its root, whatever the order of threads.
__device__ __forceinline__ void unite(int* parent, int a, int b) {
    bool done = false;
    while (!done) {
        a = root_of(parent, a);
        b = root_of(parent, b);
        if (a == b) return;
        if (a > b) { int c = a; a = b; b = c; }
        int old = atomicMin(parent + b, a);
        done = old == b;
        b = old;
    }
}
"""
"""Union-find by threads side by side, for connected components."""

SOURCE: Final = r"""
#include "union.h"

// The index in a line that stands for i; -1 for a constant.
__device__ __forceinline__ int bordered(int i, int n, int border) {
    if (i >= 0 && i < n) return i;
    if (border == 0) return -1;
    if (border == 1) return i < 0 ? 0 : n - 1;
    if (border == 3) { i %= n; return i < 0 ? i + n : i; }
    if (n == 1) return 0;
    int skip = border == 4;
    while (i < 0 || i >= n) i = i < 0 ? -i - 1 + skip : 2 * n - 1 - i - skip;
    return i;
}

__device__ __forceinline__ float pixel(
    const float* x, int h, int w, int c, int row, int column, int channel, int border, float value
) {
    row = bordered(row, h, border);
    column = bordered(column, w, border);
    return row < 0 || column < 0 ? value : x[(row * w + column) * c + channel];
}

extern "C" __global__ void correlate_line(
    float* out, const float* x, const float* weights, int h, int w, int c, int size, int anchor,
    int down, int border, float value
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= h * w * c) return;
    int channel = index % c, column = index / c % w, row = index / c / w;
    float sum = 0.0f;
    for (int k = 0; k < size; k++) {
        int by = k - anchor;
        sum += weights[k] * pixel(
            x, h, w, c, row + (down ? by : 0), column + (down ? 0 : by), channel, border, value);
    }
    out[index] = sum;
}

extern "C" __global__ void correlate(
    float* out, const float* x, const float* weights, int h, int w, int c, int rows, int columns,
    int border, float value
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= h * w * c) return;
    int channel = index % c, column = index / c % w, row = index / c / w;
    float sum = 0.0f;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            sum += weights[i * columns + j] * pixel(
                x, h, w, c, row + i - rows / 2, column + j - columns / 2, channel, border, value);
    out[index] = sum;
}

// A thread for each pixel: its channels have one weight.
// One pixel of C channels. The number of channels is known to the compiler, and places are limited
// only near borders, since both were most of the work. Factors hold that of exp2f, too.
template <int C> __device__ __forceinline__ void bilateral_at(
    float* out, const float* x, int h, int w, int row, int column, int radius, float colour,
    float space, int border, float value
) {
    bool inside = row >= radius && row + radius < h && column >= radius && column + radius < w;
    float here[C], sum[C], total = 0.0f;
    for (int k = 0; k < C; k++) {
        sum[k] = 0.0f;
        here[k] = x[(row * w + column) * C + k];
    }
    for (int i = -radius; i <= radius; i++)
        for (int j = -radius; j <= radius; j++) {
            int square = i * i + j * j;
            if (square > radius * radius) continue;
            int r = row + i, s = column + j;
            if (!inside) {
                r = bordered(r, h, border);
                s = bordered(s, w, border);
            }
            float there[C], apart = 0.0f;
            for (int k = 0; k < C; k++) {
                there[k] = r < 0 || s < 0 ? value : x[(r * w + s) * C + k];
                apart += fabsf(there[k] - here[k]);
            }
            float weight = exp2f(square * space + apart * apart * colour);
            total += weight;
            for (int k = 0; k < C; k++) sum[k] += weight * there[k];
        }
    for (int k = 0; k < C; k++) out[(row * w + column) * C + k] = sum[k] / total;
}

extern "C" __global__ void bilateral(
    float* out, const float* x, int h, int w, int c, int radius, float colour, float space,
    int border, float value
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= h * w) return;
    int row = index / w, column = index % w;
    float factor = -0.72134752f;  // -0.5 / ln 2
    colour *= factor;
    space *= factor;
    if (c == 1) bilateral_at<1>(out, x, h, w, row, column, radius, colour, space, border, value);
    if (c == 2) bilateral_at<2>(out, x, h, w, row, column, radius, colour, space, border, value);
    if (c == 3) bilateral_at<3>(out, x, h, w, row, column, radius, colour, space, border, value);
    if (c == 4) bilateral_at<4>(out, x, h, w, row, column, radius, colour, space, border, value);
}

extern "C" __global__ void median(
    float* out, const float* x, int h, int w, int c, int size, int border, float value
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= h * w * c) return;
    int channel = index % c, column = index / c % w, row = index / c / w;
    int half = size / 2, count = size * size, middle = count / 2;
    float sorted[49];  // those up to the middle are all that is needed
    int have = 0;
    for (int k = 0; k < count; k++) {
        float v = pixel(x, h, w, c, row + k / size - half, column + k % size - half, channel,
                        border, value);
        int place = have <= middle ? have++ : have;
        if (place > middle) {
            if (v >= sorted[middle]) continue;
            place = middle;
        }
        while (place > 0 && sorted[place - 1] > v) { sorted[place] = sorted[place - 1]; place--; }
        sorted[place] = v;
    }
    out[index] = sorted[middle];
}

// What is outside of the image does not count, as in OpenCV.
extern "C" __global__ void extreme(
    float* out, const float* x, const unsigned char* shape, int h, int w, int c, int rows,
    int columns, int largest
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= h * w * c) return;
    int channel = index % c, column = index / c % w, row = index / c / w;
    float found = largest ? -3.402823466e38f : 3.402823466e38f;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            int r = row + i - rows / 2, s = column + j - columns / 2;
            if (!shape[i * columns + j] || r < 0 || r >= h || s < 0 || s >= w) continue;
            float v = x[(r * w + s) * c + channel];
            found = largest ? fmaxf(found, v) : fminf(found, v);
        }
    out[index] = found;
}

// Pixels of edges: 2 if strong, 1 if they count beside strong ones.
extern "C" __global__ void thin(
    unsigned char* out, const float* dx, const float* dy, int h, int w, float low, float high,
    int squares
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= h * w) return;
    int column = index % w, row = index / w;
    float m[9];
    for (int k = 0; k < 9; k++) {
        int r = row + k / 3 - 1, s = column + k % 3 - 1;
        float a = 0.0f, b = 0.0f;
        if (r >= 0 && r < h && s >= 0 && s < w) { a = dx[r * w + s]; b = dy[r * w + s]; }
        m[k] = squares ? a * a + b * b : fabsf(a) + fabsf(b);
    }
    float x = dx[index], y = dy[index], ax = fabsf(x), ay = fabsf(y);
    bool keep;
    if (ay < ax * 0.414215087890625f) keep = m[4] > m[3] && m[4] >= m[5];
    else if (ay > ax * 2.414215087890625f) keep = m[4] > m[1] && m[4] >= m[7];
    else {
        int s = (x < 0.0f) != (y < 0.0f) ? -1 : 1;
        keep = m[4] > m[1 - s] && m[4] > m[7 + s];
    }
    out[index] = keep && m[4] > low ? (m[4] > high ? 2 : 1) : 0;
}

extern "C" __global__ void begin_parts(int* parent, unsigned char* strong, int n) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= n) return;
    parent[index] = index;
    strong[index] = 0;
}

extern "C" __global__ void join_parts(int* parent, const unsigned char* x, int h, int w) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= h * w || !x[index]) return;
    int column = index % w, row = index / w;
    if (column > 0 && x[index - 1]) unite(parent, index, index - 1);
    if (row == 0) return;
    for (int s = -1; s <= 1; s++)
        if (column + s >= 0 && column + s < w && x[index - w + s])
            unite(parent, index, index - w + s);
}

extern "C" __global__ void mark_parts(
    unsigned char* strong, const int* parent, const unsigned char* x, int n
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < n && x[index] == 2) strong[root_of(parent, index)] = 1;
}

extern "C" __global__ void keep_parts(
    float* out, const unsigned char* strong, const int* parent, const unsigned char* x, int n
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= n) return;
    out[index] = x[index] && strong[root_of(parent, index)] ? 255.0f : 0.0f;
}

// The table that makes brightness even, from counts of 256 values.
extern "C" __global__ void even_table(float* table, const int* counts) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= 256) return;
    int first = 0, total = 0, sum = 0;
    while (first < 255 && !counts[first]) first++;
    for (int i = 0; i < 256; i++) {
        total += counts[i];
        if (i > first && i <= index) sum += counts[i];
    }
    int rest = total - counts[first];
    table[index] = rest ? rintf((float)sum * (255.0f / (float)rest)) : (float)first;
}

extern "C" __global__ void look_up(
    float* out, const float* x, const float* table, int n, int c, int columns
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= n) return;
    int at = (int)rintf(fminf(fmaxf(x[index], 0.0f), 255.0f));
    out[index] = table[columns == 1 ? at : at * c + index % c];
}

extern "C" __global__ void mix(
    float* out, const float* x, const float* matrix, int n, int c, int made
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= n * made) return;
    const float* row = matrix + index % made * (c + 1);
    const float* given = x + index / made * c;
    float sum = row[c];
    for (int k = 0; k < c; k++) sum += row[k] * given[k];
    out[index] = sum;
}

// Red, green and blue from 0 to 1: hue in degrees, saturation and value.
extern "C" __global__ void rgb_to_hsv(float* out, const float* x, int n) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= n) return;
    float r = x[3 * index], g = x[3 * index + 1], b = x[3 * index + 2];
    float v = fmaxf(r, fmaxf(g, b)), range = v - fminf(r, fminf(g, b));
    float s = range / (fabsf(v) + 1.1920929e-7f), scale = 60.0f / (range + 1.1920929e-7f);
    float hue;
    if (v == r) hue = (g - b) * scale;
    else if (v == g) hue = (b - r) * scale + 120.0f;
    else hue = (r - g) * scale + 240.0f;
    out[3 * index] = hue < 0.0f ? hue + 360.0f : hue;
    out[3 * index + 1] = s;
    out[3 * index + 2] = v;
}

extern "C" __global__ void hsv_to_rgb(float* out, const float* x, int n) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= n) return;
    float hue = x[3 * index] / 60.0f, s = x[3 * index + 1], v = x[3 * index + 2];
    for (int k = 0; k < 3; k++) {
        float at = hue + (k == 0 ? 5.0f : k == 1 ? 3.0f : 1.0f);
        at -= 6.0f * floorf(at / 6.0f);
        out[3 * index + k] = v - v * s * fmaxf(0.0f, fminf(1.0f, fminf(at, 4.0f - at)));
    }
}

__device__ __forceinline__ float cubic(float t) {
    t = fabsf(t);
    const float a = -0.75f;
    if (t <= 1.0f) return ((a + 2.0f) * t - (a + 3.0f)) * t * t + 1.0f;
    return t < 2.0f ? ((a * t - 5.0f * a) * t + 8.0f * a) * t - 4.0f * a : 0.0f;
}

// Methods: 0 nearest, 1 linear, 2 cubic, 3 area.
extern "C" __global__ void resample(
    float* out, const float* x, int h, int w, int c, int rows, int columns, int method
) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= rows * columns * c) return;
    int channel = index % c, column = index / c % columns, row = index / c / columns;
    float sy = (float)h / (float)rows, sx = (float)w / (float)columns;
    if (method == 0) {
        int r = min((int)((long long)row * h / rows), h - 1);
        int s = min((int)((long long)column * w / columns), w - 1);
        out[index] = x[(r * w + s) * c + channel];
        return;
    }
    float sum = 0.0f, total = 0.0f;
    if (method == 3) {
        float y0 = row * sy, y1 = y0 + sy, x0 = column * sx, x1 = x0 + sx;
        for (int r = (int)y0; r < h && r < y1; r++) {
            float tall = fminf(y1, r + 1.0f) - fmaxf(y0, (float)r);
            if (tall < 1e-3f) continue;
            for (int s = (int)x0; s < w && s < x1; s++) {
                float weight = fminf(x1, s + 1.0f) - fmaxf(x0, (float)s);
                if (weight < 1e-3f) continue;
                weight *= tall;
                sum += weight * x[(r * w + s) * c + channel];
                total += weight;
            }
        }
        out[index] = sum / total;
        return;
    }
    float y = (row + 0.5f) * sy - 0.5f, z = (column + 0.5f) * sx - 0.5f;
    int fy = (int)floorf(y), fx = (int)floorf(z), reach = method;
    for (int i = 1 - reach; i <= reach; i++)
        for (int j = 1 - reach; j <= reach; j++) {
            float dy = y - (fy + i), dx = z - (fx + j);
            float weight = method == 1 ? (1.0f - fabsf(dy)) * (1.0f - fabsf(dx))
                                       : cubic(dy) * cubic(dx);
            sum += weight * pixel(x, h, w, c, fy + i, fx + j, channel, 1, 0.0f);
        }
    out[index] = sum;
}
"""


def _padded(
    x: Array, above: int, below: int, left: int, right: int, border: int, value: Any
) -> Array:
    more: Any = {"constant_values": value} if border == 0 else {}
    wide: Array = np.pad(x, ((above, below), (left, right), (0, 0)), _PADS[border], **more)
    return wide


def _windows(x: Array, rows: int, columns: int, border: int, value: Any) -> Array:
    """For each pixel and channel the pixels around it: (h, w, c, rows, columns)."""
    wide = _padded(
        x, rows // 2, rows - 1 - rows // 2, columns // 2, columns - 1 - columns // 2, border, value
    )
    return np.lib.stride_tricks.sliding_window_view(wide, (rows, columns), (0, 1))


def _image(x: Array) -> Array:
    return x if x.ndim == 3 else x[..., None]


def correlate_line(
    out: Array,
    x: Array,
    weights: Array,
    h: int,
    w: int,
    c: int,
    size: int,
    anchor: int,
    down: int,
    border: int,
    value: float,
) -> None:
    """Correlate along one axis."""
    out, x = _image(out), x.reshape(h, w, c)
    after = size - 1 - anchor
    above, below, left, right = (anchor, after, 0, 0) if down else (0, 0, anchor, after)
    wide = _padded(x, above, below, left, right, border, value)
    total = np.zeros_like(x)
    for k in range(size):
        total += weights[k] * (wide[k : k + h] if down else wide[:, k : k + w])
    out[...] = total


def correlate(
    out: Array,
    x: Array,
    weights: Array,
    h: int,
    w: int,
    c: int,
    rows: int,
    columns: int,
    border: int,
    value: float,
) -> None:
    """Correlate with a table of weights."""
    out, x = _image(out), x.reshape(h, w, c)
    out[...] = np.einsum("hwcij,ij->hwc", _windows(x, rows, columns, border, value), weights)


def bilateral(
    out: Array,
    x: Array,
    h: int,
    w: int,
    c: int,
    radius: int,
    colour: float,
    space: float,
    border: int,
    value: float,
) -> None:
    """Smooth within edges."""
    out, x = _image(out), x.reshape(h, w, c)
    wide = _padded(x, radius, radius, radius, radius, border, value)
    total, sums = np.zeros((h, w, 1), np.float32), np.zeros_like(x)
    for i in range(-radius, radius + 1):
        for j in range(-radius, radius + 1):
            square = i * i + j * j
            if square > radius * radius:
                continue
            there = wide[radius + i : radius + i + h, radius + j : radius + j + w]
            apart = np.abs(there - x).sum(-1, keepdims=True)
            weight = np.exp(
                np.float32(-0.5) * (np.float32(square * space) + apart**2 * np.float32(colour))
            )
            total += weight
            sums += weight * there
    out[...] = sums / total


def median(
    out: Array, x: Array, h: int, w: int, c: int, size: int, border: int, value: float
) -> None:
    """Take medians of squares."""
    out, x = _image(out), x.reshape(h, w, c)
    out[...] = np.median(_windows(x, size, size, border, value), (-2, -1))


def extreme(
    out: Array,
    x: Array,
    shape: Array,
    h: int,
    w: int,
    c: int,
    rows: int,
    columns: int,
    largest: int,
) -> None:
    """Take extremes within a shape."""
    out, x = _image(out), x.reshape(h, w, c)
    most = np.float32(3.402823466e38)
    windows = _windows(x, rows, columns, 0, -most if largest else most)
    inside = windows[..., shape != 0]
    out[...] = inside.max(-1) if largest else inside.min(-1)


def thin(
    out: Array, dx: Array, dy: Array, h: int, w: int, low: float, high: float, squares: int
) -> None:
    """Find pixels of edges."""
    x, y = dx.reshape(h, w), dy.reshape(h, w)
    m = x * x + y * y if squares else np.abs(x) + np.abs(y)
    around = np.pad(m, 1)

    def beside(row: int, column: int) -> Array:
        return around[1 + row : 1 + row + h, 1 + column : 1 + column + w]

    ax, ay = np.abs(x), np.abs(y)
    flat, steep = ay < ax * np.float32(0.414215087890625), ay > ax * np.float32(2.414215087890625)
    opposite = (x < 0) != (y < 0)
    one = np.where(opposite, beside(-1, 1), beside(-1, -1))
    other = np.where(opposite, beside(1, -1), beside(1, 1))
    keep = np.where(
        flat,
        (m > beside(0, -1)) & (m >= beside(0, 1)),
        np.where(steep, (m > beside(-1, 0)) & (m >= beside(1, 0)), (m > one) & (m > other)),
    )
    out[...] = np.where(keep & (m > low), np.where(m > high, 2, 1), 0).reshape(out.shape)


def begin_parts(parent: Array, strong: Array, n: int) -> None:
    """Make each pixel a part."""
    parent[...] = np.arange(n).reshape(parent.shape)
    strong[...] = 0


def join_parts(parent: Array, x: Array, h: int, w: int) -> None:
    """Join pixels that touch, by the smallest index of each part."""
    from scipy import ndimage

    labels, count = ndimage.label(x.reshape(h, w), np.ones((3, 3)))
    flat = labels.ravel()
    smallest = np.full(count + 1, h * w)
    np.minimum.at(smallest, flat, np.arange(h * w))
    parent[...] = np.where(flat, smallest[flat], np.arange(h * w)).reshape(parent.shape)


def mark_parts(strong: Array, parent: Array, x: Array, n: int) -> None:
    """Mark parts with a strong pixel."""
    strong.flat[parent.flat[x.ravel() == 2]] = 1


def keep_parts(out: Array, strong: Array, parent: Array, x: Array, n: int) -> None:
    """Draw the marked parts."""
    kept = (x.ravel() != 0) & (strong.flat[parent.ravel()] != 0)
    out[...] = np.where(kept, 255, 0).reshape(out.shape)


def even_table(table: Array, counts: Array) -> None:
    """Make a table of even brightness."""
    first = int(np.argmax(counts != 0)) if counts.any() else 255
    rest = int(counts.sum() - counts[first])
    sums = np.cumsum(np.where(np.arange(256) > first, counts, 0)).astype(np.float32)
    table[...] = np.rint(sums * (np.float32(255) / np.float32(rest))) if rest else first


def look_up(out: Array, x: Array, table: Array, n: int, c: int, columns: int) -> None:
    """Look values up."""
    at = np.rint(np.clip(x, 0, 255)).astype(np.int64)
    out[...] = table.ravel()[at] if columns == 1 else table[at, np.arange(c)]


def mix(out: Array, x: Array, matrix: Array, n: int, c: int, made: int) -> None:
    """Mix channels."""
    given = x.reshape(n, c)
    out[...] = (given @ matrix[:, :c].T + matrix[:, c]).reshape(out.shape)


def rgb_to_hsv(out: Array, x: Array, n: int) -> None:
    """Convert to hue, saturation, value."""
    r, g, b = x[..., 0], x[..., 1], x[..., 2]
    v = x.max(-1)
    span = v - x.min(-1)
    tiny = np.float32(1.1920929e-7)
    scale = np.float32(60) / (span + tiny)
    hue = np.where(
        v == r, (g - b) * scale, np.where(v == g, (b - r) * scale + 120, (r - g) * scale + 240)
    )
    out[...] = np.stack([np.where(hue < 0, hue + 360, hue), span / (np.abs(v) + tiny), v], -1)


def hsv_to_rgb(out: Array, x: Array, n: int) -> None:
    """Convert from hue, saturation, value."""
    hue, s, v = x[..., 0] / np.float32(60), x[..., 1], x[..., 2]
    for k, add in enumerate((5, 3, 1)):
        at = (hue + add) % 6
        out[..., k] = v - v * s * np.clip(np.minimum(at, 4 - at), 0, 1)


def _cubic(t: Array) -> Array:
    t, a = np.abs(t), -0.75
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    return np.where(t <= 1, near, np.where(t < 2, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a, 0))


def _line(size: int, made: int, method: int) -> Array:
    """The weights of one axis: (made, size)."""
    scale, at = size / made, np.arange(made)
    if method == 3:
        begin, end = at * scale, (at + 1) * scale
        edges = np.arange(size)
        cover = np.minimum(end[:, None], edges + 1) - np.maximum(begin[:, None], edges)
        cover = np.where(cover < 1e-3, 0, cover)
        return np.asarray(cover / cover.sum(1, keepdims=True), np.float32)
    weights = np.zeros((made, size), np.float32)
    if method == 0:
        weights[at, at * size // made] = 1
        return weights
    y = (at + 0.5) * scale - 0.5
    base = np.floor(y).astype(np.int64)
    for i in range(1 - method, method + 1):
        apart = y - (base + i)
        weight = 1 - np.abs(apart) if method == 1 else _cubic(apart)
        np.add.at(weights, (at, np.clip(base + i, 0, size - 1)), weight.astype(np.float32))
    return weights


def resample(
    out: Array, x: Array, h: int, w: int, c: int, rows: int, columns: int, method: int
) -> None:
    """Change the size."""
    out, x = out.reshape(rows, columns, c), x.reshape(h, w, c)
    down = np.tensordot(_line(h, rows, method), x, 1)
    out[...] = np.einsum("ij,rjc->ric", _line(w, columns, method), down)


FILTERS: Final = KernelSource(
    SOURCE,
    {
        each.__name__: each
        for each in (
            *(correlate_line, correlate, bilateral, median, extreme, thin, begin_parts, join_parts),
            *(mark_parts, keep_parts, even_table, look_up, mix, rgb_to_hsv, hsv_to_rgb, resample),
        )
    },
    {"union.h": UNION_SOURCE},
)
