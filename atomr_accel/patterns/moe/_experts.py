"""The experts: multilayer perceptrons, side by side."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np

from ..._dtypes import as_dtype
from ..._errors import said_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ...arrays import GpuRef
    from ...device import Device
    from ._gating import Collecting

A = TypeVar("A")

_DTYPES: Final = ("float16", "bfloat16", "float32")
_FLOAT32: Final = np.dtype(np.float32)


# With slots ``MoeWeights[...](...)`` would fail, on Python 3.11.
@dataclass(frozen=True, kw_only=True, eq=False)
class MoeWeights(Generic[A]):
    """The weights of a layer: arrays of the program's, or refs of one device.

    E experts map d numbers to d, by way of f. With ``gate`` they compute
    ``(silu(x @ gate) * (x @ up)) @ down`` (SwiGLU, Shazeer, 2020). Without, they compute
    ``gelu(x @ up + up_bias) @ down + down_bias``, with the tanh approximation of GELU.

    Attributes:
        router: float32 (d, E).
        up: (E, d, f), float16, bfloat16 or float32, as are those below.
        down: (E, f, d).
        gate: (E, d, f), for SwiGLU.
        up_bias: (E, f), without ``gate``.
        down_bias: (E, d).
    """

    router: A
    up: A
    down: A
    gate: A | None = None
    up_bias: A | None = None
    down_bias: A | None = None


def check_weights(weights: MoeWeights[Any]) -> None:
    """Check that shapes and dtypes fit each other."""
    for each in fields(weights):
        array = getattr(weights, each.name)
        missing = array is None and each.default is None
        if not (missing or hasattr(array, "shape")):
            raise TypeError(f"{each.name} must be an array, not {said_of(array)}")
    if len(weights.up.shape) != 3:
        raise ValueError(f"up must have shape (experts, d, f), not {tuple(weights.up.shape)}")
    experts, d, f = weights.up.shape
    if weights.gate is not None and weights.up_bias is not None:
        raise ValueError("experts with a gate have no up_bias")
    wanted = {
        "router": (d, experts),
        "down": (experts, f, d),
        "gate": (experts, d, f),
        "up_bias": (experts, f),
        "down_bias": (experts, d),
    }
    for name, shape in wanted.items():
        array = getattr(weights, name)
        if array is not None and tuple(array.shape) != shape:
            raise ValueError(
                f"{name} must have shape {shape} with an up of {weights.up.shape}, "
                f"not {tuple(array.shape)}"
            )
    dtype = as_dtype(weights.up.dtype)
    if dtype.name not in _DTYPES:
        raise TypeError(f"experts are of {', '.join(_DTYPES)}, not {dtype.name}")
    for each in fields(weights):
        array = getattr(weights, each.name)
        expected = _FLOAT32 if each.name == "router" else dtype
        if array is not None and as_dtype(array.dtype) != expected:
            raise TypeError(f"{each.name} must be {expected.name}, not {array.dtype}")


async def put_weights(
    device: Device, weights: MoeWeights[NDArray[Any]], start: int, end: int
) -> MoeWeights[GpuRef]:
    """The router, and experts ``start`` to ``end``, sealed on a device: they survive its faults."""
    made: dict[str, GpuRef | None] = {}
    for each in fields(weights):
        array = getattr(weights, each.name)
        if array is not None and each.name != "router":
            array = array[start:end]
        made[each.name] = None if array is None else await device.put(array, sealed=True)
    return MoeWeights(**made)  # type: ignore[arg-type] # the fields that are there


def padded_experts(to: Collecting, rows: GpuRef, weights: MoeWeights[GpuRef]) -> GpuRef:
    """Each expert on as many rows, by products over batches.

    Rows are (E, C, d).

    Returns:
        (E, C, d). Rows that hold no token hold nothing.
    """
    matmul = to.blaslt.matmul
    if not rows.size:
        return rows
    if weights.gate is not None:
        hidden = _gated(to, matmul(rows, weights.gate), matmul(rows, weights.up))
    elif weights.up_bias is not None:
        hidden = matmul(rows, weights.up, bias=weights.up_bias, epilogue="gelu_bias")
    else:
        hidden = matmul(rows, weights.up, epilogue="gelu")
    if weights.down_bias is None:
        return matmul(hidden, weights.down)
    return matmul(hidden, weights.down, bias=weights.down_bias)


def grouped_experts(
    to: Collecting, rows: GpuRef, weights: MoeWeights[GpuRef], sizes: Sequence[int]
) -> GpuRef:
    """Each expert on the rows it has, by grouped products.

    Rows are (n, d): those of the first expert, then those of the second, and so on.

    Returns:
        (n, d).
    """
    grouped = to.blas.gemm_grouped
    if not rows.size:
        return rows
    up = grouped(rows, weights.up, sizes)
    if weights.gate is not None:
        hidden = _gated(to, grouped(rows, weights.gate, sizes), up)
    else:
        hidden = to.evaluate(_gelu(_biased(to, up, weights.up_bias, sizes)).astype(rows.dtype))
    down = grouped(hidden, weights.down, sizes)
    if weights.down_bias is None:
        return down
    return to.evaluate(_biased(to, down, weights.down_bias, sizes).astype(rows.dtype))


def _gated(to: Collecting, gate: GpuRef, up: GpuRef) -> GpuRef:
    """SwiGLU's ``silu(gate) * up``, computed in float32."""
    wide: Any = gate.astype(_FLOAT32)
    silu = wide / (1 + np.exp(-wide))
    return to.evaluate((silu * up.astype(_FLOAT32)).astype(gate.dtype))


def _gelu(x: Any) -> Any:
    """GELU as BLASLt has it: its tanh approximation."""
    return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x)))


def _biased(to: Collecting, x: GpuRef, bias: GpuRef | None, sizes: Sequence[int]) -> Any:
    """Rows in float32, to each of which the bias of its expert is added."""
    wide: Any = x.astype(_FLOAT32)
    if bias is None:
        return wide
    return wide + to.array.repeat(bias, sizes, axis=0).astype(_FLOAT32)
