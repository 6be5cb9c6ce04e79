"""ResNet-50's convolutions in bfloat16, channels last, against PyTorch with its autotuner.

Forward, and the gradients by images and by filters. Measured side by side, see
``side_by_side.py``, with shorter rounds because there are many; the last lines are geometric
means. Stops when its time is over. Without a GPU sizes are small, and only our own numbers
are printed.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np
import side_by_side
import trio
from side_by_side import Rival, Row, compare, geometric_mean, open_first, show, torch_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from atomr_accel import Device

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

side_by_side.ROUNDS = 3
side_by_side.ROUND_SECONDS = 0.03


class Shape(NamedTuple):
    """A convolution: channels in and out, image size, taps, stride."""

    c: int
    k: int
    size: int
    taps: int
    stride: int = 1


# The most frequent ones first.
SHAPES = (
    Shape(256, 256, 14, 3),
    Shape(256, 1024, 14, 1),
    Shape(1024, 256, 14, 1),
    Shape(128, 128, 28, 3),
    Shape(128, 512, 28, 1),
    Shape(512, 128, 28, 1),
    Shape(64, 64, 56, 3),
    Shape(64, 256, 56, 1),
    Shape(256, 64, 56, 1),
    Shape(512, 512, 7, 3),
    Shape(512, 2048, 7, 1),
    Shape(2048, 512, 7, 1),
    Shape(128, 128, 56, 3, 2),
    Shape(256, 256, 28, 3, 2),
    Shape(512, 512, 14, 3, 2),
    Shape(3, 64, 224, 7, 2),
    Shape(64, 64, 56, 1),
    Shape(256, 128, 56, 1),
    Shape(512, 256, 28, 1),
    Shape(1024, 512, 14, 1),
    Shape(256, 512, 56, 1, 2),
    Shape(512, 1024, 28, 1, 2),
    Shape(1024, 2048, 14, 1, 2),
)

PASSES = ("forward", "images", "filters")


async def measure(device: Device, shape: Shape, batch: int) -> list[Row]:
    """A convolution and its gradients."""
    c, k, size, taps, stride = shape
    pad = taps // 2
    images, filters = (batch, size, size, c), (k, taps, taps, c)
    across = (size + 2 * pad - taps) // stride + 1
    results = (batch, across, across, k)

    async def random(sizes: tuple[int, ...]) -> Any:
        return await device.rng.normal(size=sizes, dtype=BFLOAT16)

    x, w, dy = await random(images), await random(filters), await random(results)
    dx, dw, y = [await device.empty(sizes, BFLOAT16) for sizes in (images, filters, results)]
    gpu = device.backend == "cuda"
    window: Any = {"stride": stride, "padding": pad, "layout": "NHWC", "autotune": gpu}
    ours: dict[str, Callable[[Any], Any]] = {
        "forward": lambda on: on.dnn.conv(x, w, out=y, **window),
        "images": lambda on: on.dnn.conv_input_grad(dy, w, images, out=dx, **window),
        "filters": lambda on: on.dnn.conv_weight_grad(dy, x, filters, out=dw, **window),
    }
    theirs = rivals(device, shape, batch, across)
    rows = []
    for name in PASSES:
        paces = await compare(device, ours[name], theirs.get(name, {}))
        label = f"{name} {c}-{k} {size} {taps}x{taps}/{stride}"
        operations = 2.0 * math.prod(results) * c * taps * taps
        rows.append(show(Row(label, operations, "TFLOP/s", *paces, {})))
    for ref in (x, w, dy, dx, dw, y):
        await device.free(ref)
    return rows


def rivals(device: Device, shape: Shape, batch: int, across: int) -> dict[str, dict[str, Rival]]:
    """Return PyTorch's convolutions, which try their algorithms the first time."""
    torch = torch_of(device)
    if torch is None:
        return {}

    torch.backends.cudnn.benchmark = True
    c, k, size, taps, stride = shape

    def random(*sizes: int) -> Any:
        made = torch.randn(*sizes, device="cuda", dtype=torch.bfloat16)
        return made.to(memory_format=torch.channels_last)

    x, w = random(batch, c, size, size), random(k, c, taps, taps)
    dy = random(batch, k, across, across)
    steps, pads = [stride, stride], [taps // 2, taps // 2]
    backward = torch.ops.aten.convolution_backward

    def gradient(mask: list[bool]) -> Callable[[], object]:
        rest = (None, steps, pads, [1, 1], False, [0, 0], 1, mask)
        return lambda: backward(dy, x, w, *rest)

    forward = torch.nn.functional.conv2d
    calls = {
        "forward": lambda: forward(x, w, stride=stride, padding=taps // 2),
        "images": gradient([True, False, False]),
        "filters": gradient([False, True, False]),
    }
    wait = torch.cuda.synchronize
    return {name: {"torch": Rival(call, wait)} for name, call in calls.items()}


def mean(rows: list[Row]) -> float:
    """The geometric mean of our speed over theirs."""
    return geometric_mean(
        [row.theirs["torch"].queued / row.ours.queued for row in rows if row.theirs]
    )


async def run(seconds: float, batch: int) -> None:
    """Measure and print."""
    begin = time.monotonic()
    async with open_first() as device:
        gpu = device.backend == "cuda"
        rows: list[Row] = []
        done = 0
        for shape in SHAPES if gpu else SHAPES[9:10]:
            if time.monotonic() - begin > seconds:
                break
            rows += await measure(device, shape, batch if gpu else 1)
            done += 1
        print(f"{done} of {len(SHAPES)} shapes; {device.dnn.statistics()}")
    if not any(row.theirs for row in rows):
        return
    for name in PASSES:
        print(f"{name}: {mean([row for row in rows if row.name.startswith(name)]):.2f} of torch")
    print(f"all: {mean(rows):.2f} of torch (geometric mean; goal >= 1.0)")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--batch", type=int, default=256, help="images at a time")
    options = parser.parse_args()
    trio.run(run, options.seconds, options.batch)


if __name__ == "__main__":
    main()
