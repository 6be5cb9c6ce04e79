"""A layer of experts on one device: tokens go to their experts, and results are weighted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..._errors import Unsupported
from ...actors.util import check_instance
from ...arrays.expressions import index
from ...device import Device
from ._experts import check_weights, padded_experts
from ._gating import Collecting, Gating, Routing, route

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...libraries.rng.generator import Generator
    from ._experts import MoeWeights

_FLOAT32: Final = np.dtype(np.float32)


def mixture_of_experts(
    to: Collecting,
    x: GpuRef,
    weights: MoeWeights[GpuRef],
    gating: Gating,
    *,
    residual: bool = False,
    noise: Generator[Any] | None = None,
) -> tuple[GpuRef, Routing]:
    """A layer of experts, as part of a batch or of a recording.

    It never waits for the device, because each expert gets as many rows as its capacity, even if
    it has fewer tokens.

    Args:
        to: the batch or the recording.
        x: tokens, (T, d), of the dtype of the experts.
        weights: all of them on this device.
        gating: how the router chooses.
        residual: add ``x`` to the result, so that dropped tokens pass unchanged. Without it they
            are zeros, and the residual connection is yours.
        noise: draws the jitter.

    Returns:
        The result, of the shape and dtype of ``x``; and what the router has chosen. Tokens that
        are unrouted count as dropped; ``Routing.unrouted`` is their number.

    Raises:
        Unsupported: without a capacity, sizes of products depend on what the device finds out.
    """
    check_instance("gating", gating, Gating)
    given: object = to
    if isinstance(given, Device):
        raise TypeError("to must be a batch or a recording, not a Device; open_moe takes devices")
    if gating.capacity_factor is None:
        raise Unsupported(
            "without a capacity_factor, sizes depend on what the router chooses, which nobody "
            "knows while a batch or a recording is collected; open_moe asks the device"
        )
    check_weights(weights)
    check_tokens(x, weights.up.shape[1], weights.up.dtype)
    routing = route(to, x, weights.router, gating, noise=noise)
    y = padded_experts(to, dispatch(to, x, routing), weights)
    return combine(to, y, routing, x, residual=residual), routing


def check_tokens(x: Any, d: int, dtype: np.dtype[Any]) -> None:
    """Tokens are as the experts want them."""
    if len(x.shape) != 2 or x.shape[1] != d:
        raise ValueError(f"x must have shape (tokens, {d}), not {tuple(x.shape)}")
    if x.dtype != dtype:
        raise TypeError(f"x must be {dtype} as the experts are, not {x.dtype}")


def dispatch(to: Collecting, x: GpuRef, routing: Routing) -> GpuRef:
    """The tokens that each expert gets, one behind the other.

    They are gathered, not scattered: each row looks up which token it holds.

    Args:
        to: the batch or the recording that it is part of.
        x: (T, d).
        routing: of these tokens.

    Returns:
        With a capacity of C, (E, C, d): rows beyond an expert's tokens hold any token. Without a
        capacity, (k * T, d): rows of tokens that go to no expert come last.
    """
    tokens, d = x.shape
    order = routing.order
    if routing.capacity is not None:
        shape = (routing.load.size, routing.capacity)
        if not tokens:
            return to.empty((*shape, d), x.dtype)
        places = routing.starts[:-1][:, None] + index(shape, 1)
        order = to.array.take(order, np.minimum(places, order.size - 1))
    return to.array.take(x, to.evaluate(order % max(tokens, 1)), axis=0)


def combine(to: Collecting, rows: GpuRef, routing: Routing, x: GpuRef, *, residual: bool) -> GpuRef:
    """The weighted sum of what a token's experts gave, made in float32.

    Rows are (..., d), in the order of ``dispatch``. With ``residual`` the tokens, (T, d), are
    added.
    """
    total: Any = x.astype(_FLOAT32) if residual else np.zeros_like(x.astype(_FLOAT32))
    if rows.size:
        given = to.array.take(rows.reshape(-1, x.shape[-1]), routing.rows, axis=0)
        weights = routing.weights[:, :, None]
        # A row that is not this token's may hold infinities, which no weight of 0 takes away.
        parts = np.where(weights > 0, weights * given.astype(_FLOAT32), 0.0)
        total = total + parts.sum(axis=0)
    return to.evaluate(total.astype(x.dtype))
