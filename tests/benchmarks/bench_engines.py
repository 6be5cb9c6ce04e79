"""Engines of ONNX models next to onnxruntime alone, with its own buffers and the same threads.

Each round times both, one after the other, so that both see the same machine. The ratio is that of
medians: 1.00 is as fast as onnxruntime alone, and less is slower. Overhead counts in small models.
Without onnxruntime's CUDA provider, devices of CUDA have nothing to compare.

Small models are called one by one, and in batches of the device. With ``--resnet`` a ResNet-50 with
random weights takes their place, in float32, float16 and int8, on 32 pictures and on one. With
``--faults`` contexts end in the middle of calls.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import onnx
import onnxruntime
import trio
from onnx import TensorProto, helper, numpy_helper

from atomr_accel import CpuFallbackWarning, Unsupported, open_device
from atomr_accel.testing import poison
from atomr_accel.testing._faults import FaultName

sys.path.append(str(Path(__file__).parents[2]))
from examples.onnx_engine import in_int8, resnet50

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atomr_accel import Device
    from atomr_accel.libraries.engine.wire.messages import Precision

ROUNDS = 15
LEAST_ROUNDS = 3
SECONDS = 5.0
"""After these no further round begins, if there were enough."""


def convolutions(rng: np.random.Generator, blocks: int, channels: int) -> bytes:
    """Residual blocks of two 3 x 3 convolutions, and a classifier: a small ResNet."""
    nodes, weights, last = [], {}, "x"
    for at in range(blocks):
        names = [f"{kind}{at}" for kind in "abcdef"]
        for k in (0, 1):
            shape = (channels, channels, 3, 3)
            scale = np.float32(0.5 / (9 * channels) ** 0.5)
            weights[f"w{at}{k}"] = rng.standard_normal(shape, np.float32) * scale
        nodes += [
            helper.make_node("Conv", [last, f"w{at}0"], [names[0]], pads=[1] * 4),
            helper.make_node("Relu", [names[0]], [names[1]]),
            helper.make_node("Conv", [names[1], f"w{at}1"], [names[2]], pads=[1] * 4),
            helper.make_node("Add", [names[2], last], [names[3]]),
            helper.make_node("Relu", [names[3]], [names[4]]),
        ]
        last = names[4]
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["y"]))
    graph = helper.make_graph(
        nodes,
        "resnet",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", channels, 28, 28])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", channels, 1, 1])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return made


def alone(model: bytes, backend: str, name: str, x: Any) -> tuple[Callable[[], None], Any]:
    """Return what runs a model by onnxruntime alone, with its binding, and the result."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    provider: Any = "CPUExecutionProvider"
    if backend == "cuda":
        from atomr_accel.libraries.engine.host._cuda import CudaEngines

        CudaEngines.preload()
        provider = ("CUDAExecutionProvider", {"use_tf32": "0"})  # as in the host
    session = onnxruntime.InferenceSession(model, options, providers=[provider])
    assert len(session.get_providers()) == (2 if backend == "cuda" else 1), "no CUDA provider"
    binding = session.io_binding()
    where = "cuda" if backend == "cuda" else "cpu"
    binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(x, where, 0))
    binding.bind_output(session.get_outputs()[0].name, where)

    def run() -> None:
        session.run_with_iobinding(binding)

    run()
    return run, binding.copy_outputs_to_cpu()[0]


async def compare(
    device: Device,
    name: str,
    model: bytes,
    x: Any,
    calls: int,
    *,
    precision: Precision = "model",
    batched: bool = False,
) -> None:
    """Print medians of both, and their ratio."""
    engine = await device.engine.build(model, precision=precision)
    given = engine.inputs[0].name
    inputs = {given: await device.put(x)}
    theirs = model
    if precision == "fp16":
        from onnxruntime.transformers.float16 import convert_float_to_float16

        halved = convert_float_to_float16(onnx.load_from_string(model), keep_io_types=True)
        theirs = halved.SerializeToString()
    run, expected = alone(theirs, device.backend, given, x)
    np.testing.assert_allclose(await device.get(await engine(**inputs)), expected, 1e-2, 1e-2)

    async def awaited() -> None:
        for _ in range(calls):
            await engine(**inputs)

    async def together() -> None:
        async with device.batch() as batch:
            for _ in range(calls):
                batch.using(engine)(**inputs)

    async def by_itself() -> None:
        for _ in range(calls):
            run()

    forms: dict[str, Callable[[], Awaitable[None]]] = {"awaited": awaited}
    if batched:
        forms["batch"] = together
    forms["onnxruntime"] = by_itself
    times: dict[str, list[float]] = {form: [] for form in forms}
    begin = time.perf_counter()
    for done in range(ROUNDS):
        if done >= LEAST_ROUNDS and time.perf_counter() - begin > SECONDS:
            break
        for form, call in forms.items():
            start = time.perf_counter()
            await call()
            times[form].append((time.perf_counter() - start) / calls)
    medians = {form: statistics.median(each) for form, each in times.items()}
    ours = "  ".join(
        f"{form} {each * 1e3:8.3f} ms (ratio {medians['onnxruntime'] / each:.2f})"
        for form, each in medians.items()
        if form != "onnxruntime"
    )
    print(
        f"{name:34} onnxruntime {medians['onnxruntime'] * 1e3:8.3f} ms  {ours}"
        f"  {len(x) / medians['awaited']:8.1f} rows/s",
        flush=True,
    )


async def small(device: Device, rng: np.random.Generator) -> None:
    """Residual blocks, with small and larger batches."""
    for blocks, channels, rows, calls in ((1, 8, 1, 50), (4, 32, 1, 10), (4, 32, 32, 1)):
        model = convolutions(rng, blocks, channels)
        x = rng.standard_normal((rows, channels, 28, 28), np.float32)
        name = f"{blocks} blocks of {channels} channels, batch {rows}"
        await compare(device, name, model, x, calls, batched=calls > 1)


async def resnets(device: Device, rng: np.random.Generator) -> None:
    """A ResNet-50, in three precisions."""
    made = resnet50(rng)
    pictures = rng.standard_normal((32, 3, 224, 224), np.float32)
    model = made.SerializeToString()
    for rows, calls in ((32, 1), (1, 3)):
        x = pictures[:rows]
        await compare(device, f"ResNet-50 fp32, batch {rows}", model, x, calls)
        await compare(device, f"ResNet-50 fp16, batch {rows}", model, x, calls, precision="fp16")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resnet50.onnx"
        onnx.save(made, path)
        quantized = in_int8(path, [pictures[:2]]).read_bytes()
    for rows, calls in ((32, 1), (1, 3)):
        await compare(device, f"ResNet-50 int8, batch {rows}", quantized, pictures[:rows], calls)


async def faults(device: Device, rng: np.random.Generator) -> None:
    """Faults in the middle of calls: all answers are right, and each host makes the engine."""
    engine = await device.engine.build(convolutions(rng, 4, 32))
    x = await device.put(rng.standard_normal((8, 32, 28, 28), np.float32), sealed=True)
    expected = await device.get(await engine(x=x))
    right, over = 0, trio.Event()
    waits: list[float] = []

    async def answer() -> None:
        found = await device.get(await engine(x=x))
        np.testing.assert_allclose(found, expected, 1e-3, 1e-3)

    async def ask() -> None:
        nonlocal right
        while not over.is_set():
            await device.retry(answer, attempts=100)
            right += 1

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(ask)
        for kind in get_args(FaultName):
            await trio.sleep(0.2)
            await poison(device, kind)
            begun = time.perf_counter()
            await device.retry(answer, attempts=100)
            waits.append(time.perf_counter() - begun)
        over.set()
    print(
        f"{len(waits)} faults: {right} right answers, and after each fault one within "
        f"{max(waits):.2f} s; the engine was made {engine.statistics().loads} times"
    )


async def main(backend: str, part: Callable[[Device, Any], Awaitable[None]]) -> None:
    """Run one part."""
    rng = np.random.default_rng(0)
    async with open_device(0, backend=backend, max_restarts=100) as device:
        try:
            await part(device, rng)
        except Unsupported as error:
            print(error)


if __name__ == "__main__":
    words = [each for each in sys.argv[1:] if not each.startswith("-")]
    chosen = resnets if "--resnet" in sys.argv else faults if "--faults" in sys.argv else small
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main, words[0] if words else "cpu", chosen)
