"""Random graphs for ``device.dnn.graph``, and a reference for each in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy import special

from atomr_accel import Device

from ..libraries.conformance import Array, dtype_of, eps_of

SHAPES: Final = ((2, 3, 4), (4, 8, 16), (2, 3, 4, 4), (1, 5, 7), (33, 20), (3, 64, 5, 2), (8,))
DTYPES: Final = (*("float16", "bfloat16", "float32") * 3, "float64")
MODES: Final[dict[str, Callable[..., Array]]] = {
    "ADD": np.sum,
    "AMAX": lambda x, axis, keepdims: np.abs(x).max(axis, keepdims=keepdims),
    "AVG": np.mean,
    "MAX": np.max,
    "MIN": np.min,
    "MUL": np.prod,
    "NORM1": lambda x, axis, keepdims: np.abs(x).sum(axis, keepdims=keepdims),
    "NORM2": lambda x, axis, keepdims: np.sqrt((x * x).sum(axis, keepdims=keepdims)),
}
UNARY: Final[dict[str, Callable[[Array], Array]]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "cos": np.cos,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "erf": special.erf,
    "exp": np.exp,
    "floor": np.floor,
    "gelu": lambda x: x * special.ndtr(x),
    "gelu_approx_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    "identity": np.copy,
    "log": np.log,
    "neg": np.negative,
    "reciprocal": lambda x: 1 / x,
    "relu": lambda x: np.maximum(x, 0),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": special.expit,
    "sin": np.sin,
    "softplus": lambda x: np.logaddexp(x, 0),
    "sqrt": np.sqrt,
    "swish": lambda x: x * special.expit(x),
    "tan": np.tan,
    "tanh": np.tanh,
}
BINARY: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "add": np.add,
    "add_square": lambda a, b: a + b * b,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.fmod,
    "mul": np.multiply,
    "pow": np.power,
    "sub": np.subtract,
}
JUMPS: Final = ("ceil", "floor", "mod", "tan", "select")
"""Operations that turn a small difference into a large one; such places are not compared."""

MOST: Final = 1e4
"""Numbers beyond it are not compared: they may be too large for float16."""

ROUGH: Final = 1e-4
"""Largest error of a kernel's own functions, relative to 1 and to the result."""


@dataclass(frozen=True)
class Drawn:
    """A random graph.

    Attributes:
        dtype: of its inputs.
        shapes: of its inputs.
        last: whether channels are last in memory.
        steps: name, the tensors it reads by number, and a number or axes; a reduction's
            name is its mode.
        outputs: numbers of the tensors that come out; inputs have the first numbers.
    """

    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    last: bool
    steps: tuple[tuple[str, tuple[int, ...], Any], ...]
    outputs: tuple[int, ...]

    @property
    def inputs(self) -> list[int]:
        """Numbers of the inputs that a step reads, of no use though it may be."""
        read = {at for _, ats, _ in self.steps for at in ats}
        return [at for at in range(len(self.shapes)) if at in read]


def draw(random: np.random.Generator) -> Drawn:
    """Steps, some of which contribute nothing; inputs and results that are broadcast."""

    def one(items: Any) -> Any:
        return items[int(random.integers(len(items)))]

    whole = one(SHAPES)
    shapes = tuple(
        tuple(size if random.random() < 0.7 else 1 for size in whole)
        for _ in range(random.integers(1, 4))
    )
    ranks = len(whole)
    steps: list[tuple[str, tuple[int, ...], Any]] = []
    for _ in range(random.integers(1, 7)):
        made = len(shapes) + len(steps)
        # The newest tensors are the ones that steps read most.
        first, second, third = (
            made - 1 if random.random() < 0.4 else int(random.integers(made)) for _ in range(3)
        )
        kind = random.random()
        if kind < 0.35:
            steps.append((one([*UNARY]), (first,), None))
        elif kind < 0.7:
            steps.append((one([*BINARY]), (first, second), None))
        elif kind < 0.78:
            steps.append((one(["add", "mul"]), (first,), float(one([0.5, -1.25, 3.0]))))
        elif kind < 0.84:
            steps.append(("select", (first, second, third), None))
        else:
            count = int(random.integers(1, ranks + 1))
            axes = tuple(sorted(map(int, random.permutation(ranks)[:count])))
            steps.append((one([*MODES]), (first,), axes))
    made = len(shapes) + len(steps)
    outputs = {made - 1} | {
        at for at in range(len(shapes), made) if random.random() < (0.1 if len(steps) > 1 else 0)
    }
    last = ranks > 2 and random.random() < 0.3
    order = sorted(outputs, key=lambda _: random.random())
    return Drawn(one(DTYPES), shapes, last, tuple(steps), tuple(order))


def values(random: np.random.Generator, drawn: Drawn) -> list[Array]:
    """Positive numbers, because logarithms and powers of others are NaN."""
    dtype = dtype_of(drawn.dtype)
    return [random.uniform(0.3, 2, shape).astype(dtype) for shape in drawn.shapes]


async def plan_of(device: Device, drawn: Drawn) -> Any:
    """The graph's plan."""
    graph: Any = device.dnn.graph()
    tensors = [
        graph.tensor(shape, drawn.dtype, name=f"x{at}", channels_last=drawn.last)
        for at, shape in enumerate(drawn.shapes)
    ]
    for name, ats, more in drawn.steps:
        given = [tensors[at] for at in ats]
        if name in MODES:
            made = graph.reduction(given[0], mode=name, axes=more)
        elif name == "select":
            mask = graph.cmp_gt(given[1], given[2])
            made = graph.binary_select(given[0], given[1], mask)
        elif more is not None:
            made = getattr(graph, name)(given[0], more)
        else:
            made = getattr(graph, name)(*given)
        tensors.append(made)
    return await graph.build(*[tensors[at] for at in drawn.outputs])


async def run(device: Device, drawn: Drawn, arrays: list[Array], plan: Any) -> list[Array]:
    """Return the results of a plan, channels first."""

    def laid(array: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if drawn.last else array

    given = {f"x{at}": await device.put(laid(arrays[at])) for at in drawn.inputs}
    made = await plan(**given)
    results = made if isinstance(made, tuple) else (made,)
    found = [await device.get(each) for each in results]
    return [np.moveaxis(each, -1, 1) if drawn.last else each for each in found]


def expected(drawn: Drawn, arrays: list[Array]) -> list[tuple[Array, Array]]:
    """The results, and how far off each element may be; infinity where it tells nothing."""
    exact = _computed(drawn, arrays, None)
    noisy = [_computed(drawn, arrays, np.random.default_rng(seed)) for seed in range(3)]
    found = []
    for at in drawn.outputs:
        value, jumps = exact[at]
        with np.errstate(all="ignore"):
            spread = np.max([abs(each[at][0] - value) for each in noisy], axis=0)
            bad = jumps | ~np.isfinite(value + spread) | (abs(value) > MOST)
            size = abs(value)
        found.append((value, np.where(bad, np.inf, 4 * spread + ROUGH * (1 + size))))
    return found


def _computed(
    drawn: Drawn, arrays: list[Array], noise: np.random.Generator | None
) -> list[tuple[Array, Array]]:
    """All tensors, with where a jump is near."""
    wide = [array.astype(np.float64) for array in arrays]
    # An output is stored in its dtype, and later steps may read the stored numbers.
    stored = max(ROUGH, eps_of(dtype_of(drawn.dtype)))
    found = [(array, np.zeros(array.shape, bool)) for array in wide]
    with np.errstate(all="ignore"):
        for at, (name, ats, more) in enumerate(drawn.steps, len(arrays)):
            given = [found[at][0] for at in ats]
            unsure = [found[at][1] for at in ats]
            if name in MODES:
                axes = tuple(axis for axis in more)
                value = MODES[name](given[0], axis=axes, keepdims=True)
                jumps = unsure[0].any(axis=axes, keepdims=True)
            else:
                jumps = np.logical_or.reduce(np.broadcast_arrays(*unsure))
                value = _step(name, given, more)
                if name in JUMPS:
                    jumps = jumps | _jumps(name, given)
                jumps = np.broadcast_to(jumps, value.shape)
            if noise is not None:
                rough = stored if at in drawn.outputs else ROUGH
                value = value * (1 + rough * noise.uniform(-1, 1, value.shape))
            found.append((value, jumps | ~np.isfinite(value) | (abs(value) > MOST)))
    return found


def _step(name: str, given: list[Array], more: float | None) -> Array:
    if name == "select":
        return np.where(given[1] > given[2], given[0], given[1])
    if more is not None:
        return BINARY[name](given[0], np.asarray(more))
    return (UNARY[name] if name in UNARY else BINARY[name])(*given)


def _jumps(name: str, given: list[Array]) -> Array:
    """Return where a step's result depends on the last digits of its inputs."""
    if name == "select":
        near: Array = abs(given[1] - given[2]) < 1e-2 * (abs(given[1]) + abs(given[2]))
        return near
    if name == "tan":
        return np.asarray(abs(np.cos(given[0])) < 0.05)
    ratio = given[0] / given[1] if name == "mod" else given[0]
    return np.asarray(abs(ratio - np.round(ratio)) < 1e-2 * (1 + abs(ratio)))


def compare(drawn: Drawn, arrays: list[Array], got: list[Array]) -> None:
    """Hold results against the reference."""
    pairs = zip(drawn.outputs, got, expected(drawn, arrays), strict=True)
    for at, result, (value, allowed) in pairs:
        assert result.shape == value.shape, f"{drawn}: tensor {at} has shape {result.shape}"
        within = allowed + 2 * eps_of(result.dtype) * abs(value)
        with np.errstate(invalid="ignore"):
            bad = ~((abs(result.astype(np.float64) - value) <= within) | np.isinf(allowed))
        if bad.any():
            where = tuple(map(int, np.argwhere(bad)[0]))
            raise AssertionError(
                f"{drawn}: {int(bad.sum())} of {bad.size} elements of tensor {at} are wrong, the "
                f"first at {where}: {result[where]} instead of {value[where]}"
            )
