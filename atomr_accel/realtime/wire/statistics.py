"""Kernels of statistics over frames. Reductions, and counts of bins, are CUB's.

``values`` has the length of a step and the share of the past that each frame has forgotten.
``totals`` has the frames' weight, the pixels' weight, the smallest and the largest value, the mean,
and the sum of squares of deviations from it.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from .kernels import KernelSource

Array: TypeAlias = np.ndarray[Any, Any]

TOTALS: Final = ("frames", "pixels", "minimum", "maximum", "mean", "squares")

SOURCE: Final = r"""
extern "C" __global__ void deviate(float* out, const float* frame, const double* total, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float d = (float)((double)frame[i] - total[0] / (double)n);
    out[i] = d * d;
}

// Adds a frame to all before it, by Chan's formula; and to the recent ones, in place of the oldest.
extern "C" __global__ void merge(
    double* totals, float* recent, int* place, const float* low, const float* high,
    const double* total, const double* squares, const float* values, int n, int history
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > 0) return;
    double kept = 1.0 - (double)values[1], mean = total[0] / (double)n;
    double before = totals[1] * kept, all = before + (double)n, apart = mean - totals[4];
    totals[0] = totals[0] * kept + 1.0;
    totals[1] = all;
    if ((double)low[0] < totals[2]) totals[2] = (double)low[0];
    if ((double)high[0] > totals[3]) totals[3] = (double)high[0];
    totals[4] += apart * (double)n / all;
    totals[5] = totals[5] * kept + squares[0] + apart * apart * before * (double)n / all;
    int row = place[0] % history;
    recent[4 * row] = low[0];
    recent[4 * row + 1] = high[0];
    recent[4 * row + 2] = (float)mean;
    recent[4 * row + 3] = (float)(squares[0] / (double)n);
    // It tells how many rows there are, too, until all are.
    place[0] = place[0] + 1 < 2 * history ? place[0] + 1 : history;
}

// The same for each pixel, by Welford's formula.
extern "C" __global__ void accumulate(
    float* minimum, float* maximum, double* mean, double* squares, const float* frame,
    const double* totals, const float* values, int n
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double kept = 1.0 - (double)values[1], apart = (double)frame[i] - mean[i];
    minimum[i] = fminf(minimum[i], frame[i]);
    maximum[i] = fmaxf(maximum[i], frame[i]);
    double now = mean[i] + apart / totals[0];
    squares[i] = squares[i] * kept + apart * ((double)frame[i] - now);
    mean[i] = now;
}

extern "C" __global__ void count_bins(
    double* histogram, const long long* counts, const float* values, int n
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) histogram[i] = histogram[i] * (1.0 - (double)values[1]) + (double)counts[i];
}

// Bars of the histogram, a line at the mean, and a lighter ground within one deviation of it.
extern "C" __global__ void plot(
    unsigned char* out, const double* histogram, const double* tallest, const double* totals,
    int bins, int height, int width, double low, double high
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= height * width) return;
    int row = i / width, column = i % width;
    double scale = (high - low) / (double)width;
    int bin = (int)((long long)column * bins / width);
    double level = ((double)(height - row) - 0.5) / (double)height * tallest[0];
    bool bar = histogram[bin] >= level && histogram[bin] > 0.0;
    double from = low + (double)column * scale - totals[4];
    double deviation = totals[1] > 0.0 ? sqrt(totals[5] / totals[1]) : 0.0;
    bool line = totals[1] > 0.0 && from <= 0.0 && from + scale > 0.0;
    bool near = totals[1] > 0.0 && from + scale > -deviation && from < deviation;
    out[3 * i] = line ? 255 : (near ? 60 : 20);
    out[3 * i + 1] = line ? 80 : (bar ? 200 : (near ? 60 : 20));
    out[3 * i + 2] = line ? 80 : (bar ? 120 : (near ? 70 : 30));
}
"""


def deviate(out: Array, frame: Array, total: Array, n: int) -> None:
    """Square deviations from the frame's mean."""
    out[...] = (frame - np.ravel(total)[0] / n).astype(np.float32) ** 2


def merge(
    totals: Array,
    recent: Array,
    place: Array,
    low: Array,
    high: Array,
    total: Array,
    squares: Array,
    values: Array,
    n: int,
    history: int,
) -> None:
    """Add a frame to those before it."""
    least, most, whole, spread = (float(np.ravel(each)[0]) for each in (low, high, total, squares))
    kept, mean = 1 - float(values[1]), whole / n
    before, apart = totals[1] * kept, mean - totals[4]
    share = n / (before + n)
    totals[0] = totals[0] * kept + 1
    totals[1] = before + n
    totals[2], totals[3] = min(totals[2], least), max(totals[3], most)
    totals[4] += apart * share
    totals[5] = totals[5] * kept + spread + apart * apart * before * share
    row = int(place[0]) % history
    recent[row] = least, most, mean, spread / n
    place[0] = place[0] + 1 if place[0] + 1 < 2 * history else history


def accumulate(
    minimum: Array,
    maximum: Array,
    mean: Array,
    squares: Array,
    frame: Array,
    totals: Array,
    values: Array,
    n: int,
) -> None:
    """Add a frame to each pixel's statistics."""
    kept, apart = 1 - np.float64(values[1]), frame - mean
    np.fmin(minimum, frame, out=minimum)
    np.fmax(maximum, frame, out=maximum)
    mean += apart / totals[0]
    squares[...] = squares * kept + apart * (frame - mean)


def count_bins(histogram: Array, counts: Array, values: Array, n: int) -> None:
    """Add a frame's counts."""
    histogram[...] = histogram * (1 - np.float64(values[1])) + counts


def plot(
    out: Array,
    histogram: Array,
    tallest: Array,
    totals: Array,
    bins: int,
    height: int,
    width: int,
    low: float,
    high: float,
) -> None:
    """Draw bars."""
    column, scale = np.arange(width), (high - low) / width
    level = (height - np.arange(height) - 0.5)[:, None] / height * np.ravel(tallest)[0]
    bars = histogram[column * bins // width]
    bar = (bars >= level) & (bars > 0)
    there = totals[1] > 0
    begin = low + column * scale - totals[4]
    deviation = np.sqrt(totals[5] / totals[1]) if there else 0.0
    line = there & (begin <= 0) & (begin + scale > 0)
    near = there & (begin + scale > -deviation) & (begin < deviation)
    out[...] = np.where(near[:, None], (60, 60, 70), (20, 20, 30))
    out[..., 1:][bar] = 200, 120
    out[:, line] = 255, 80, 80


STATISTICS: Final = KernelSource(
    SOURCE, {each.__name__: each for each in (deviate, merge, accumulate, count_bins, plot)}
)
