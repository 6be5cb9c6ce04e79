"""Simulations, filters and structures of data in real time, beside a copy's bandwidth and rivals.

A rival is there where CuPy, PyTorch or SciPy has the same thing, or a kernel by hand. The amount of
a row are the bytes that must be read and written at least once, so its speed is to be compared with
that of the first row, a copy. Measured side by side, see ``side_by_side.py``. Without a GPU sizes
are small, and rivals are those of the CPU.

    python tests/benchmarks/bench_realtime.py [PART...]    # all parts, or some: see PARTS

A rival that fails is left out, and the row is there without it.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import trio
from scipy import ndimage
from scipy.spatial import cKDTree
from side_by_side import Rival, Row, compare, cupy_of, open_first, show, torch_of

from atomr_accel.realtime import (
    Filters,
    SpatialIndex,
    open_balls,
    open_cloth,
    open_fluid,
    open_frame_analysis,
    open_frame_statistics,
    open_hash_map,
    open_liquid,
    open_sparse_grid,
)

if TYPE_CHECKING:
    from atomr_accel import Device

GOAL = 0.8
SELDOM = 2**31 - 1
"""Steps from one checkpoint to the next, so that none is measured."""

BILATERAL = r"""
extern "C" __global__ void by_hand(float* out, const float* x, int h, int w, int radius,
                                   float colour, float space) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= w || row >= h) return;
    float here = x[row * w + column], sum = 0.0f, total = 0.0f;
    for (int i = -radius; i <= radius; i++)
        for (int j = -radius; j <= radius; j++) {
            if (i * i + j * j > radius * radius) continue;
            int r = row + i, c = column + j;
            r = r < 0 ? -r : (r >= h ? 2 * h - 2 - r : r);
            c = c < 0 ? -c : (c >= w ? 2 * w - 2 - c : c);
            float v = x[r * w + c], d = v - here;
            float weight = __expf(-0.5f * (d * d * colour + (float)(i * i + j * j) * space));
            sum += weight * v;
            total += weight;
        }
    out[row * w + column] = sum / total;
}
"""


def here(call: Any) -> Rival:
    """Return a rival that runs on the CPU."""
    return Rival(call, lambda: None)


async def report(
    device: Device,
    name: str,
    nbytes: int,
    call: Any,
    rivals: dict[str, Rival] | None = None,
    *,
    together: bool = False,
) -> None:
    """Measure a call and print its row."""
    able = {}
    for rival, theirs in (rivals or {}).items():
        try:
            theirs.call()
            theirs.wait()
        except Exception as error:  # noqa: BLE001 # whatever it is, our row is wanted
            print(f"{name}: {rival} is left out: {type(error).__name__}: {error}", flush=True)
        else:
            able[rival] = theirs
    goals = {rival: GOAL for rival in able if rival != "scipy"}
    paces = await compare(device, call, able, together=together)
    show(Row(name, nbytes, "GB/s", *paces, goals))


async def copies(device: Device, nbytes: int) -> None:
    """Measure the bandwidth of a copy."""
    x, out = (
        await device.zeros(nbytes // 4, np.float32),
        await device.zeros(nbytes // 4, np.float32),
    )
    rivals = {}
    if torch := torch_of(device):
        one, other = torch.zeros(nbytes // 4).cuda(), torch.zeros(nbytes // 4).cuda()
        rivals["torch"] = Rival(partial(other.copy_, one), torch.cuda.synchronize)
    await report(device, "copy", 2 * nbytes, lambda on: on.copy(x, out), rivals, together=True)


async def fluids(device: Device, side: int, axes: int) -> None:
    """A fluid without and with solid cells; and the FFTs that are most of its pressure."""
    shape = (side,) * axes
    cells = side**axes
    # Velocities, smoke and pressure, which are read and written.
    nbytes = 2 * 4 * cells * (axes + 2)
    random = np.random.default_rng(0)
    flow: Any = {name: random.standard_normal(shape, np.float32) for name in "uvw"[:axes]}
    for boundary in ("periodic", "walls"):
        async with open_fluid(device, shape, boundary=boundary, every=SELDOM, **flow) as fluid:
            name = f"fluid {boundary} {'x'.join(map(str, shape))}"
            await report(device, name, nbytes, lambda _, f=fluid: f.step(0.1))
    rivals = {}
    x = await device.put(flow["u"])
    for kind, module in (("cupy", cupy_of(device)), ("torch", torch_of(device))):
        if module is None:
            continue
        theirs = module.asarray(flow["u"])
        theirs = theirs.cuda() if kind == "torch" else theirs

        def solve(fft: Any = module.fft, theirs: Any = theirs, s: Any = shape) -> Any:
            return fft.irfftn(fft.rfftn(theirs), s=s)

        wait = module.cuda.synchronize if kind == "torch" else module.cuda.Device().synchronize
        rivals[kind] = Rival(solve, wait)
    async with device.record() as recording:
        recording.fft.irfftn(recording.fft.rfftn(x), s=shape)
    await report(
        device,
        f"both FFTs of {axes}-D pressure",
        16 * cells,
        lambda _, p=recording: p.replay(),
        rivals,
    )


def lattice(side: int) -> Any:
    """Return side³ positions in a cube of length one."""
    axis = (np.arange(side, dtype=np.float32) + 0.5) / side
    return np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)


async def liquids(device: Device, side: int) -> None:
    """A liquid of side³ particles."""
    x = lattice(side)
    nbytes = 2 * 4 * 6 * len(x)  # positions and velocities
    async with open_liquid(device, (2.0, 1.0, 1.0), x, spacing=1 / side, every=SELDOM) as liquid:
        await report(device, f"liquid of {len(x)}", nbytes, lambda _: liquid.step(1e-6))


async def collisions(device: Device, side: int) -> None:
    """Balls, side³ of them."""
    x = lattice(side)
    nbytes = 2 * 4 * 6 * len(x)
    async with open_balls(device, (2.0, 1.0, 1.0), x, radius=0.5 / side, every=SELDOM) as balls:
        await report(device, f"balls, {len(x)} of them", nbytes, lambda _: balls.step(1e-6))


async def cloths(device: Device, side: int) -> None:
    """A cloth of side² vertices."""
    async with open_cloth(device, (side, side), longest=1.0, every=SELDOM) as cloth:
        nbytes = 2 * 4 * 6 * side * side
        await report(device, f"cloth {side}x{side}", nbytes, lambda _: cloth.step(0.001))


async def filters(device: Device, height: int, width: int) -> None:
    """The bilateral filter."""
    made = await Filters.load(device)
    host = np.random.default_rng(0).uniform(0, 255, (height, width)).astype(np.float32)
    image = await device.put(host)
    async with device.record() as recording:
        made.bilateral(recording, image, 9, 30.0, 3.0)
    rivals = {}
    if cupy := cupy_of(device):
        x, out = cupy.asarray(host), cupy.empty((height, width), cupy.float32)
        kernel = cupy.RawKernel(BILATERAL, "by_hand")
        grid = (-(-width // 32), -(-height // 8))
        numbers = np.int32(height), np.int32(width), np.int32(4)
        arguments = (out, x, *numbers, np.float32(1 / 900), np.float32(1 / 9))
        call = partial(kernel, grid, (32, 8), arguments)
        rivals["by hand"] = Rival(call, cupy.cuda.Device().synchronize)
    name = f"bilateral {height}x{width}"
    await report(device, name, 2 * host.nbytes, lambda _: recording.replay(), rivals)


async def frames(device: Device, height: int, width: int) -> None:
    """Analysis and statistics of frames that are on the device."""
    random = np.random.default_rng(0)
    smooth = ndimage.gaussian_filter(random.standard_normal((height, width)), 2.0)
    host = (smooth > 0).astype(np.float32)
    frame = await device.put(host)
    cupy, torch = cupy_of(device), torch_of(device)
    rivals = {}
    if cupy is None:
        rivals["scipy"] = here(partial(analyse, ndimage, host))
    else:
        import cupyx.scipy.ndimage as theirs

        if hasattr(theirs, "distance_transform_edt"):
            call = partial(analyse, theirs, cupy.asarray(host))
            rivals["cupy"] = Rival(call, cupy.cuda.Device().synchronize)
    async with open_frame_analysis(device, (height, width), every=SELDOM) as analysis:
        nbytes = 5 * host.nbytes
        await report(
            device, f"analysis {height}x{width}", nbytes, lambda _: analysis.push(frame), rivals
        )
    rivals = {}
    if torch is not None:
        x = torch.asarray(host).cuda()
        running = [torch.zeros_like(x) for _ in range(4)]
        call = partial(observe, torch, x, running)
        rivals["torch"] = Rival(call, torch.cuda.synchronize)
    async with open_frame_statistics(
        device, (height, width), low=-4, high=4, every=SELDOM
    ) as scene:
        nbytes = host.nbytes * (1 + 2 * 6)  # two statistics of each pixel are float64
        await report(
            device, f"statistics {height}x{width}", nbytes, lambda _: scene.push(frame), rivals
        )


def analyse(library: Any, x: Any) -> None:
    """Find components, distances and cells, as SciPy has them."""
    labels, _ = library.label(x)
    library.distance_transform_edt(x)
    nearest = library.distance_transform_edt(x == 0, return_distances=False, return_indices=True)
    labels[tuple(nearest)]


def observe(torch: Any, x: Any, running: list[Any]) -> None:
    """Add a frame to statistics, in PyTorch."""
    low, high, mean, squares = running
    torch.minimum(low, x, out=low)
    torch.maximum(high, x, out=high)
    apart = x - mean
    mean.add_(apart, alpha=0.5)
    squares.addcmul_(apart, x - mean)
    torch.aminmax(x)
    torch.var_mean(x)
    torch.histc(x, 256, -4, 4)


async def sparse(device: Device, side: int, blocks: int) -> None:
    """Diffusion on a sparse grid of side³ cells of which few blocks are there."""
    random = np.random.default_rng(0)
    at = random.integers(side // 8, size=(2 * blocks, 3))
    at = np.unique(at, axis=0)[:blocks] * 8 + 4
    async with open_sparse_grid(
        device, (side,) * 3, capacity=2 * blocks, diffusion=0.01, threshold=1e-6, every=SELDOM
    ) as grid:
        await grid.put(at, np.ones(len(at)))
        nbytes = 2 * 4 * 512 * len(at)
        name = f"sparse {side}x{side}x{side}, {len(at)} blocks"
        await report(device, name, nbytes, lambda _: grid.step(0.001))


async def maps(device: Device, entries: int, asked: int) -> None:
    """A hash map: its making, and questions to it."""
    random = np.random.default_rng(0)
    step = min(entries, 10_000_000)
    async with open_hash_map(device, entries, every=SELDOM) as found:
        start = time.perf_counter()
        for begin in range(0, entries, step):
            # An odd factor makes all keys different, and far from each other.
            keys = np.arange(begin, begin + step, dtype=np.int64) * 0x9E3779B97F4A7C1
            await found.insert(keys, keys)
        seconds = time.perf_counter() - start
        print(f"insert {entries}: {entries / seconds / 1e6:.1f} million per second", flush=True)
        wanted = random.integers(0, entries, asked, dtype=np.int64) * 0x9E3779B97F4A7C1
        rivals = {}
        every = np.arange(entries, dtype=np.int64) * 0x9E3779B97F4A7C1
        if torch := torch_of(device):
            ordered = torch.asarray(every).cuda().sort().values

            def look() -> Any:
                return torch.searchsorted(ordered, torch.asarray(wanted).cuda()).cpu()

            rivals["torch"] = Rival(look, torch.cuda.synchronize)
        elif device.backend == "cpu":
            every.sort()
            rivals["scipy"] = here(partial(np.searchsorted, every, wanted))
        del every
        await report(
            device, f"find {asked} of {entries}", asked * 33, lambda _: found.find(wanted), rivals
        )


async def neighbours(device: Device, count: int, k: int) -> None:
    """The nearest neighbours of all points, from and to host memory."""
    points = np.random.default_rng(0).random((count, 3), np.float32)
    index = await SpatialIndex.build(device, points)
    rivals = {}
    if cupy := cupy_of(device):
        import cupyx.scipy.spatial

        if hasattr(cupyx.scipy.spatial, "KDTree"):
            tree = cupyx.scipy.spatial.KDTree(cupy.asarray(points))
            queries = cupy.asarray(points)
            call = partial(tree.query, queries, k)
            rivals["cupy"] = Rival(call, cupy.cuda.Device().synchronize)
    else:
        rivals["scipy"] = here(partial(cKDTree(points).query, points, k))
    await report(
        device,
        f"{k} nearest of {count}",
        count * 12 * (k + 1),
        lambda _: index.nearest(points, k),
        rivals,
    )


PARTS: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "copy": (copies, (1 << 30,), (1 << 22,)),
    "fluid2": (fluids, (4096, 2), (32, 2)),
    "fluid3": (fluids, (256, 3), (8, 3)),
    "liquid": (liquids, (215,), (5,)),
    "bilateral": (filters, (2160, 3840), (60, 80)),
    "map": (maps, (100_000_000, 10_000_000), (20_000, 2000)),
    "neighbours": (neighbours, (1_000_000, 8), (1000, 8)),
    "balls": (collisions, (215,), (5,)),
    "frames": (frames, (2160, 3840), (60, 80)),
    "cloth": (cloths, (1024,), (16,)),
    "sparse": (sparse, (1024, 50_000), (128, 40)),
}
"""Functions, and sizes on a GPU and without one."""


async def run(wanted: list[str]) -> None:
    """Measure and print."""
    async with open_first() as device:
        for name in wanted:
            part, large, small = PARTS[name]
            await part(device, *(large if device.backend == "cuda" else small))


def main() -> None:
    """Run the benchmark."""
    wanted = sys.argv[1:] or [*PARTS]
    if unknown := {*wanted} - {*PARTS}:
        sys.exit(f"parts must be some of {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    trio.run(run, wanted)


if __name__ == "__main__":
    main()
