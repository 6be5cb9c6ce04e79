"""Recurrent networks with NumPy: one step after the other.

Nothing is kept for the backward pass but the inputs: it runs the network again. The packed
weights are the parameters in PyTorch's order, one after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np

from ...._dtypes import DTYPES
from ..wire._routine_messages import RnnBackward, RnnForward, RnnPack, RnnSizes
from ._cpu_pointwise import expit
from .philox import kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cpu.host.context import CpuContext
    from ..wire._routine_messages import RnnData, RnnSpec

Array = np.ndarray[Any, Any]
Parameters = dict[str, Array]


class _RnnStep(NamedTuple):
    """Values of a step that its gradient needs.

    Attributes:
        x, h, c: input and states before.
        gates: the gates after their activations.
        extra: GRU: the recurrent part of the new gate; LSTM: tanh of the new cell.
        raw: the hidden state before its projection.
        active: whether each sequence still runs.
    """

    x: Array
    h: Array
    c: Array
    gates: Array
    extra: Array
    raw: Array
    active: Array


@dataclass
class _RnnRun:
    """One direction of one layer, as it ran."""

    parameters: Parameters
    steps: dict[int, _RnnStep] = field(default_factory=dict)


def _affine(x: Array, parameters: Parameters, kind: str) -> Array:
    value: Array = x @ parameters[f"weight_{kind}"].T
    bias = parameters.get(f"bias_{kind}")
    return value if bias is None else value + bias


def _step(
    cell: str, parameters: Parameters, x: Array, h: Array, c: Array, active: Array
) -> tuple[Array, Array, _RnnStep]:
    """Return the next states, and the values that their gradient needs."""
    given, kept_ = _affine(x, parameters, "ih"), _affine(h, parameters, "hh")
    extra = np.zeros(0, x.dtype)
    new_c = c
    if cell == "lstm":
        i, f, g, o = np.split(given + kept_, 4, axis=-1)
        i, f, g, o = expit(i), expit(f), np.tanh(g), expit(o)
        new_c = f * c + i * g
        extra = np.tanh(new_c)
        raw, gates = o * extra, np.concatenate([i, f, g, o], axis=-1)
    elif cell == "gru":
        (ri, zi, ni), (rh, zh, extra) = np.split(given, 3, -1), np.split(kept_, 3, -1)
        r, z = expit(ri + rh), expit(zi + zh)
        n = np.tanh(ni + r * extra)
        raw, gates = (1 - z) * n + z * h, np.concatenate([r, z, n], axis=-1)
    else:
        gates = given + kept_
        gates = np.tanh(gates) if cell == "tanh" else np.maximum(gates, 0)
        raw = gates
    new_h = raw @ parameters["weight_hr"].T if "weight_hr" in parameters else raw
    step = _RnnStep(x, h, c, gates, extra, raw, active)
    return np.where(active, new_h, h), np.where(active, new_c, c), step


def _step_back(
    cell: str, parameters: Parameters, step: _RnnStep, dh: Array, dc: Array, into: Parameters
) -> tuple[Array, Array, Array]:
    """Gradients by the input and by the states before; adds those by parameters."""
    stays_h, stays_c = np.where(step.active, 0, dh), np.where(step.active, 0, dc)
    dh, dc = np.where(step.active, dh, 0), np.where(step.active, dc, 0)
    if "weight_hr" in parameters:
        into["weight_hr"] += dh.T @ step.raw
        dh = dh @ parameters["weight_hr"]
    direct = np.zeros_like(step.h)
    if cell == "lstm":
        i, f, g, o = np.split(step.gates, 4, axis=-1)
        cell_gradient = dc + dh * o * (1 - step.extra**2)
        given = np.concatenate(
            [
                cell_gradient * g * i * (1 - i),
                cell_gradient * step.c * f * (1 - f),
                cell_gradient * i * (1 - g * g),
                dh * step.extra * o * (1 - o),
            ],
            axis=-1,
        )
        recurrent = given
        dc = cell_gradient * f
    elif cell == "gru":
        r, z, n = np.split(step.gates, 3, axis=-1)
        new = dh * (1 - z) * (1 - n * n)
        reset = new * step.extra * r * (1 - r)
        update = dh * (step.h - n) * z * (1 - z)
        given = np.concatenate([reset, update, new], axis=-1)
        recurrent = np.concatenate([reset, update, new * r], axis=-1)
        direct = dh * z
    else:
        slope = 1 - step.gates**2 if cell == "tanh" else step.gates > 0
        given = recurrent = dh * slope
    for kind, gradient, source in (("ih", given, step.x), ("hh", recurrent, step.h)):
        into[f"weight_{kind}"] += gradient.T @ source
        if f"bias_{kind}" in into:
            into[f"bias_{kind}"] += gradient.sum(0)
    before = recurrent @ parameters["weight_hh"] + direct
    return given @ parameters["weight_ih"], before + stays_h, dc + stays_c


@final
class _Network:
    """A network with its parameters and its inputs, all in a wide type.

    ``x`` is (time, batch, size).
    """

    def __init__(self, message: RnnForward, weights: Array, x: Array, h0: Array, c0: Array) -> None:
        self.spec: Final = message.spec
        self._message: Final = message
        self.parameters: Final = unpack(self.spec, weights)
        steps = np.arange(message.data.steps)[:, None, None]
        self._active: Final = steps < np.array(message.data.lengths)[None, :, None]
        self.runs: list[_RnnRun] = []
        self._masks: list[Any] = []
        hn, cn = np.zeros_like(h0), np.zeros_like(c0)
        below = x
        for layer in range(self.spec.layers):
            mask = self._mask(layer, below.shape)
            self._masks.append(mask)
            below = below * mask
            outputs = []
            for direction in range(self.spec.directions):
                at = layer * self.spec.directions + direction
                run = _RnnRun(self.parameters[at])
                self.runs.append(run)
                output, hn[at], cn[at] = self._forward(run, direction, below, h0[at], c0[at])
                outputs.append(output)
            below = np.concatenate(outputs, axis=-1)
        self.y: Final = below
        self.hn: Final = hn
        self.cn: Final = cn

    def _mask(self, layer: int, shape: tuple[int, ...]) -> Any:
        """Return the factors of the input of a layer."""
        p = self.spec.dropout
        if layer == 0 or not p or not self._message.training:
            return 1
        count = math.prod(shape)
        keep = kept(self._message.seed, layer * count, count, p)
        return (keep.reshape(shape) / (1 - p)).astype(np.float32)

    def _order(self, direction: int) -> list[int]:
        order = list(range(len(self._active)))
        return order[::-1] if direction else order

    def _forward(
        self, run: _RnnRun, direction: int, x: Array, h: Array, c: Array
    ) -> tuple[Array, Array, Array]:
        output = np.zeros((*x.shape[:2], self.spec.output_size), x.dtype)
        for t in self._order(direction):
            active = self._active[t]
            h, c, run.steps[t] = _step(self.spec.cell, run.parameters, x[t], h, c, active)
            output[t] = np.where(active, h, 0)
        return output, h, c

    def backward(
        self, dy: Array, dhn: Array, dcn: Array
    ) -> tuple[Array, Array, Array, list[Parameters]]:
        """Gradients by the input, the first states and the parameters."""
        gradients = [
            {name: np.zeros_like(value) for name, value in each.items()} for each in self.parameters
        ]
        dh0, dc0 = np.zeros_like(dhn), np.zeros_like(dcn)
        dx = dy
        for layer in reversed(range(self.spec.layers)):
            parts = np.split(dx, self.spec.directions, axis=-1)
            total: Any = 0
            for direction, part in enumerate(parts):
                at = layer * self.spec.directions + direction
                run = self.runs[at]
                dh, dc = dhn[at], dcn[at]
                below = np.zeros((*part.shape[:2], run.parameters["weight_ih"].shape[1]), dy.dtype)
                for t in reversed(self._order(direction)):
                    dh = dh + np.where(self._active[t], part[t], 0)
                    below[t], dh, dc = _step_back(
                        self.spec.cell, run.parameters, run.steps[t], dh, dc, gradients[at]
                    )
                dh0[at], dc0[at] = dh, dc
                total = total + below
            dx = total * self._masks[layer]
        return dx, dh0, dc0, gradients


def unpack(spec: RnnSpec, weights: Array) -> list[Parameters]:
    """The parameters of each pseudo-layer, as views of packed weights."""
    found: list[Parameters] = [{} for _ in range(spec.layers * spec.directions)]
    first = 0
    for at, name, shape in spec.parameters():
        size = math.prod(shape)
        found[at][name] = weights[first : first + size].reshape(shape)
        first += size
    return found


@final
class CpuRnn:
    """Executes messages of recurrent networks."""

    def __init__(self, context: CpuContext) -> None:
        self._context: Final = context
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            RnnSizes: self._sizes,
            RnnPack: self._pack,
            RnnForward: self._forward,
            RnnBackward: self._backward,
        }

    def _sizes(self, message: RnnSizes) -> tuple[int, int, int, int]:
        self._context.check()
        return _count(message.spec) * DTYPES[message.spec.dtype].itemsize, 0, 0, 0

    def _pack(self, message: RnnPack) -> None:
        self._context.check()
        spec = message.spec
        dtype = DTYPES[spec.dtype]
        weights = self._context.array(message.weights, (_count(spec),), dtype)
        parts = unpack(spec, weights)
        for address, (at, name, shape) in zip(message.parameters, spec.parameters(), strict=True):
            parameter = self._context.array(address, shape, dtype)
            source, target = parameter, parts[at][name]
            if message.out:
                source, target = target, source
            target[...] = source

    def _forward(self, message: RnnForward) -> None:
        self._context.check()
        network = self._network(message)
        self._write(message.y, message, network.y)
        self._put(message.hn, network.hn, message.spec)
        if message.cn:
            self._put(message.cn, network.cn, message.spec)

    def _backward(self, message: RnnBackward) -> None:
        self._context.check()
        forward, spec = message.forward, message.forward.spec
        network = self._network(forward)
        dy = self._read(message.dy, forward, spec.output_size * spec.directions)
        dhn = self._state(message.dhn, forward, spec.output_size)
        dcn = self._state(message.dcn, forward, spec.hidden_size)
        dx, dh0, dc0, gradients = network.backward(dy, dhn, dcn)
        self._write(message.dx, forward, dx)
        self._put(message.dh0, dh0, spec)
        if message.dc0:
            self._put(message.dc0, dc0, spec)
        flat = [gradients[at][name].ravel() for at, name, _ in spec.parameters()]
        self._put(message.dweights, np.concatenate(flat), spec)

    def _network(self, message: RnnForward) -> _Network:
        spec = message.spec
        weights = self._context.array(message.weights, (_count(spec),), DTYPES[spec.dtype])
        return _Network(
            message,
            _wide(weights),
            self._read(message.x, message, spec.input_size),
            self._state(message.h0, message, spec.output_size),
            self._state(message.c0, message, spec.hidden_size),
        )

    def _state(self, address: int, message: RnnForward, size: int) -> Array:
        spec = message.spec
        shape = (spec.layers * spec.directions, len(message.data.lengths), size)
        dtype = DTYPES[spec.dtype]
        if not address:
            return _wide(np.zeros(shape, dtype))
        return _wide(self._context.array(address, shape, dtype))

    def _put(self, address: int, value: Array, spec: RnnSpec) -> None:
        target = self._context.array(address, value.shape, DTYPES[spec.dtype])
        target[...] = value.astype(target.dtype)

    def _memory(self, address: int, message: RnnForward, size: int) -> Array:
        data = message.data
        shape: tuple[int, ...] = {
            "time": (data.steps, len(data.lengths), size),
            "batch": (len(data.lengths), data.steps, size),
            "packed": (sum(data.lengths), size),
        }[data.layout]
        return self._context.array(address, shape, DTYPES[message.spec.dtype])

    def _read(self, address: int, message: RnnForward, size: int) -> Array:
        """Sequences as (time, batch, size), with zeros behind their ends."""
        memory = self._memory(address, message, size)
        data = message.data
        if data.layout != "packed":
            steps = memory if data.layout == "time" else memory.swapaxes(0, 1)
            return _wide(np.where(_present(data)[..., None], steps, 0))
        found = np.zeros((data.steps, len(data.lengths), size), memory.dtype)
        found[_present(data)] = memory
        return _wide(found)

    def _write(self, address: int, message: RnnForward, value: Array) -> None:
        data = message.data
        target = self._memory(address, message, value.shape[-1])
        if data.layout == "packed":
            target[...] = value[_present(data)].astype(target.dtype)
            return
        value = np.where(_present(data)[..., None], value, 0)
        target[...] = (value if data.layout == "time" else value.swapaxes(0, 1)).astype(
            target.dtype
        )


def _present(data: RnnData) -> Array:
    """Which (step, sequence) are there, as a mask; the others are in no packed sequence."""
    return np.asarray(np.arange(data.steps)[:, None] < np.array(data.lengths))


def _wide(array: Array) -> Array:
    return array.astype(np.float64 if array.dtype.itemsize == 8 else np.float32)


def _count(spec: RnnSpec) -> int:
    return sum(math.prod(shape) for _, _, shape in spec.parameters())
