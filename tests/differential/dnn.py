"""Random cases of ``device.dnn``: graphs, convolutions, attention, and all else by its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from atomr_accel import Device, GpuRef, Unsupported

from ..libraries.conformance import (
    HALF,
    Case,
    Near,
    Operation,
    Sample,
    compare,
    dtype_of,
    poison,
    wide,
)
from ..libraries.dnn.rows import attention, losses, ops, products, resample, rnn, routines, sampling
from . import graphs

Random = np.random.Generator

STRUCTURES: Final = 400
"""Number of graphs, and of convolutions and attentions of each kind.

Each takes a plan, which is slow to make.
"""

ROWS: Final = [
    *(
        row
        for module in (ops, products, resample, rnn, routines, losses, sampling)
        for row in module.OPERATIONS
    ),
    *(row for row in attention.OPERATIONS if "fp8" in row.name or "kvcache" in row.name),
]

_CONVOLUTIONS: Final[tuple[tuple[Any, ...], ...]] = (
    ("conv", ops.conv_inputs, ops.call_conv, ops.conv),
    ("conv_input_grad", ops.grad_input_inputs, ops.call_grad_input, ops.grad_input),
    ("conv_weight_grad", ops.grad_weight_inputs, ops.call_grad_weight, ops.grad_weight),
)
_FUSED: Final = tuple(case["activation"] for case in ops.FUSED)
_ATTENTIONS: Final = (*attention.DENSE[:1], *attention.BACKWARD[:1], *attention.RAGGED[:1])
_RAGGED_BACKWARD: Final = next(
    row for row in attention.RAGGED if row.name.startswith("dnn.flash_attention_varlen_grad")
)


def one(random: Random, items: Sequence[Any]) -> Any:
    """One of several."""
    return items[int(random.integers(len(items)))]


async def check(device: Device, random: Random) -> str | None:
    """Check a random case; why it was refused, if it was."""
    kind = random.random()
    if kind < 0.3:
        return await _graph(device, random)
    structure = np.random.default_rng(int(random.integers(STRUCTURES)))
    if kind < 0.5:
        operation, dtype, case = convolution(structure)
    elif kind < 0.7:
        operation, dtype, case = scores(structure)
    else:
        operation = one(random, ROWS)
        dtype, case = one(random, operation.dtypes), one(random, operation.cases)
    return await checked(device, operation, dtype, case, int(random.integers(2**32)))


async def _graph(device: Device, random: Random) -> str | None:
    drawn = graphs.draw(np.random.default_rng(int(random.integers(STRUCTURES))))
    arrays = graphs.values(random, drawn)
    try:
        plan = await graphs.plan_of(device, drawn)
    except (TypeError, Unsupported, ValueError) as error:
        return reason(error)
    for _ in range(2):
        await poison(device, [array.nbytes for array in arrays])
        graphs.compare(drawn, arrays, await graphs.run(device, drawn, arrays, plan))
    return None


def convolution(random: Random) -> tuple[Operation, str, Case]:
    """A convolution, or a gradient of one."""
    name, inputs, call, expect = one(random, _CONVOLUTIONS)
    space = one(random, (1, 2, 2, 3, 3))
    groups = one(random, (1, 1, 2, 3))
    taps, image, padding, dilation = [], [], [], []
    for _ in range(space):
        tap, apart = int(random.integers(1, 4)), int(random.integers(1, 3))
        before, after = (int(random.integers(0, 4)) for _ in range(2))
        if random.random() < 0.5:
            after = before
        least = max(1, apart * (tap - 1) + 1 - before - after)
        taps.append(tap)
        dilation.append(apart)
        padding.append((before, after))
        image.append(int(random.integers(least, least + 8)))
    case: Case = {
        "image": (one(random, (1, 2, 3)), groups * one(random, (1, 2, 3, 8)), *image),
        "filters": (groups * one(random, (1, 2, 3, 8)), *taps),
        "groups": groups,
        "padding": tuple(padding),
        "stride": tuple(int(random.integers(1, 4)) for _ in range(space)),
        "dilation": tuple(dilation),
        "layout": one(random, (("NCW", "NWC"), ("NCHW", "NHWC"), ("NCDHW", "NDHWC"))[space - 1]),
    }
    if name == "conv":
        case |= {"bias": bool(random.random() < 0.5)}
        case |= {"activation": one(random, (None, *_FUSED))}
    dtype = one(random, (*HALF, "float32"))
    return Operation(f"dnn.{name}", (), (), inputs, call, expect, factor=32), dtype, case


def scores(random: Random) -> tuple[Operation, str, Case]:
    """Attention with any mask, also of queries that see no key."""
    operation = one(random, (*_ATTENTIONS, _RAGGED_BACKWARD))
    kv_heads, group = one(random, (1, 2, 3)), one(random, (1, 2, 3))
    case: Case = {
        "heads": kv_heads * group,
        "kv_heads": kv_heads,
        "size": one(random, (8, 16, 32, 64)),
        "batch": one(random, (1, 2, 3)),
    }
    lengths = (1, 2, 3, 5, 9, 17, 24, 33, 70)
    ragged = "varlen" in operation.name
    if ragged:
        count = int(random.integers(1, 5))
        case["lengths_q"] = tuple(one(random, lengths) for _ in range(count))
        if random.random() < 0.6:
            case["lengths_k"] = tuple(one(random, (0, *lengths)) for _ in range(count))
            case["lengths_k"] = (*case["lengths_k"][:-1], one(random, lengths))
    else:
        case["queries"] = one(random, lengths)
        if random.random() < 0.6:
            case["keys"] = one(random, lengths)
    case["causal"] = bool(random.random() < 0.4)
    if random.random() < 0.5:
        case["window"] = tuple(one(random, (-1, 0, 1, 3, 7, 20)) for _ in range(2))
    if random.random() < 0.4:
        case["align"] = "top_left"
    if random.random() < 0.3:
        case["softmax_scale"] = 0.3
    extra = random.random()
    if extra < 0.2:
        case["softcap"] = 5.0
    elif extra < 0.3:
        case["slopes"] = True
    elif extra < 0.4:
        case["sink"] = True
    elif extra < 0.5 and not ragged:
        case["bias"] = True
    return operation, one(random, HALF), case


async def checked(
    device: Device, operation: Operation, dtype: str, case: Case, seed: int
) -> str | None:
    """Run one case of a row, twice; why it was refused, if it was."""
    sample = Sample(seed, dtype)
    arrays = operation.inputs(sample, **case)
    references = _tuple(operation.expect(*map(wide, arrays), **case))
    expected = [each if isinstance(each, Near) else Near(each) for each in references]
    sizes = [int(np.size(each.value)) * dtype_of(each.dtype or dtype).itemsize for each in expected]
    try:
        refs = [await device.put(array) for array in arrays]
        for _ in range(1 if operation.writes else 2):
            await poison(device, sizes)
            try:
                results = _tuple(await operation.call(device, *refs, **case))
            except Unsupported as error:
                return reason(error)
            for at, (result, near) in enumerate(zip(results, expected, strict=True)):
                got = await device.get(result) if isinstance(result, GpuRef) else np.asarray(result)
                try:
                    compare(got, near, dtype_of(near.dtype or dtype), operation.factor)
                except AssertionError as error:
                    raise AssertionError(f"result {at}: {error}") from error
        for at, (ref, array) in enumerate(zip(refs, arrays, strict=True)):
            changed = (await device.get(ref)).tobytes() != array.tobytes()
            assert at in operation.writes or not changed, f"input {at} was changed"
    except AssertionError as error:
        raise AssertionError(f"{operation.name} {dtype} {case}, seed {seed}: {error}") from error
    return None


def reason(error: Exception) -> str:
    """A refusal in few words."""
    return f"{type(error).__name__}: {str(error)[:100]}"


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
