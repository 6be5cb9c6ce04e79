"""Which experts get which tokens: the router, its losses, and where each token goes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from ...actors.util import check_instance
from ...arrays.expressions import index
from ...wire.options import count, real, set_fields

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...device.batches.batch import Batch
    from ...device.batches.record import Recording
    from ...libraries.rng.generator import Generator

Collecting: TypeAlias = "Batch | Recording"
"""Collector of the calls of these functions, to await them together or to replay them."""

_FLOAT32: Final = np.dtype(np.float32)
_INT32: Final = np.dtype(np.int32)
_TAKEN: Final = -1.0
"""Stands for the probability of an expert that was chosen before: less than any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gating:
    """Options of a router.

    Attributes:
        top_k: how many experts a token goes to.
        capacity_factor: how many times its even share of the tokens an expert takes at most
            (GShard, Lepikhin et al., 2020). Choices beyond that are dropped: later choices first,
            and among equal ones those of later tokens. None drops nothing; then the program has to
            wait until it knows how many tokens each expert has.
        jitter: the router sees each number times one drawn from [1 - jitter, 1 + jitter) (Switch
            Transformer, Fedus et al., 2021), which training wants and serving does not.
        normalize: whether the weights of a token's experts are divided by their sum, as in GShard
            and Mixtral, and not what the softmax gives, as in Switch Transformer. Drops come after
            that: the others do not weigh more for it.
    """

    top_k: int = 2
    capacity_factor: float | None = 1.25
    jitter: float = 0.0
    normalize: bool = True

    def __post_init__(self) -> None:
        factor = self.capacity_factor
        set_fields(
            self,
            top_k=count(self.top_k, "top_k"),
            capacity_factor=None if factor is None else real(factor, "capacity_factor", above=0),
            jitter=real(self.jitter, "jitter", least=0, below=1),
        )
        check_instance("normalize", self.normalize, bool)

    def capacity(self, tokens: int, experts: int) -> int | None:
        """Return the number of tokens that an expert takes; None if no token is dropped.

        Args:
            tokens: the number of tokens.
            experts: the number of experts, one or more.
        """
        tokens, experts = count(tokens, "tokens", 0), count(experts, "experts")
        if self.capacity_factor is None:
            return None
        share = self.capacity_factor * self.top_k * tokens / experts
        return math.ceil(min(tokens, share))  # no expert is chosen twice for a token


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Routing:
    """Choices of a router: T tokens, k choices of each, E experts. All is on the device.

    Choices are numbered with the first ones of all tokens in front: choice ``j`` of token ``t`` has
    number ``j * T + t``. The number E, one beyond the last expert, stands for "no expert". Tokens
    that are unrouted have it, and choices of experts whose probability is 0, such as those whose
    logits are negative infinity.

    Attributes:
        logits: float32 (T, E): what the router says.
        experts: int32 (k, T): the experts chosen, the likeliest first; of equals, the first.
        weights: float32 (k, T): the weight of each in the result; 0 if it was dropped.
        order: int64 (k * T,): choices, by experts; those of one expert in their order.
        rows: int64 (k, T): where the token is among those that the experts get, row by row; 0 where
            it goes to none, or was dropped.
        starts: int64 (E + 1,): where in ``order`` the choices of each expert begin.
        load: int64 (E,): how often each expert was chosen.
        dropped: int64 (): choices beyond the capacity.
        unrouted: int64 (): tokens whose logits are NaN or positive infinity, or all negative
            infinity. They go to no expert, and neither count in the losses nor take room.
        balance_loss: float32 (): E times the sum over the experts of the share of choices times the
            mean probability. It is 1 if all are equal (Fedus et al., 2021, equation 4).
        z_loss: float32 (): the mean square of the logarithm of the softmax's denominator (ST-MoE,
            Zoph et al., 2022, equation 5).
        capacity: the number of tokens that an expert takes; None if it has no limit.
    """

    logits: GpuRef
    experts: GpuRef
    weights: GpuRef
    order: GpuRef
    rows: GpuRef
    starts: GpuRef
    load: GpuRef
    dropped: GpuRef
    unrouted: GpuRef
    balance_loss: GpuRef
    z_loss: GpuRef
    capacity: int | None


def route(
    to: Collecting,
    x: GpuRef,
    router: GpuRef,
    gating: Gating,
    *,
    noise: Generator[Any] | None = None,
) -> Routing:
    """Choose experts for tokens, in float32 whatever the tokens are.

    Args:
        to: the batch or the recording that it is part of.
        x: (T, d), float16, bfloat16 or float32.
        router: float32 (d, E).
        gating: how to choose.
        noise: draws the jitter; without it, there is none.
    """
    experts = router.shape[-1]
    if gating.top_k > experts:
        raise ValueError(
            f"top_k must be at most {experts}, the number of experts, not {gating.top_k}"
        )
    seen: Any = x.astype(_FLOAT32)
    if noise is not None and gating.jitter:
        low, high = 1 - gating.jitter, 1 + gating.jitter
        seen = seen * to.using(noise).uniform(low, high, x.shape, dtype=_FLOAT32)
    elif x.dtype == _FLOAT32:
        seen = None
    logits = to.blas.gemm(x if seen is None else to.evaluate(seen), router)
    return choose(to, logits, gating)


def choose(to: Collecting, logits: GpuRef, gating: Gating) -> Routing:
    """Choose experts by what a router says.

    Logits are float32 (T, E).
    """
    tokens, experts = logits.shape
    capacity = gating.capacity(tokens, experts)
    largest: Any = logits.max(axis=-1)
    raised: Any = np.exp(logits - largest[:, None])
    total = raised.sum(axis=-1)
    # NaN comes of NaN, of inf - inf, and of -inf - -inf. All of it shows in the sum.
    probabilities, scale = to.evaluate(raised / total[:, None], largest + np.log(total))
    chosen, gates = _largest(to, probabilities, gating.top_k)

    keys = chosen.reshape(-1)
    order = to.array.argsort(keys)
    starts = to.array.searchsorted(
        to.array.take(keys, order), index((experts + 1,), 0).astype(_INT32)
    )
    places = to.empty(order.shape, order.dtype)
    to.array.setitem(places, order, index(order.shape, 0), deterministic=False)  # each place once

    each = starts[1:] - starts[:-1]
    rows: Any = places
    kept: Any = keys < experts
    dropped: Any = np.zeros_like(each)
    if capacity is not None:
        rank = places - to.array.take(starts, keys)
        kept = kept & (rank < capacity)
        rows = keys.astype(np.int64) * capacity + rank
        dropped = np.maximum(each - capacity, 0)
    rows, kept = to.evaluate(np.where(kept, rows, 0), kept)
    gate: Any = gates
    if gating.normalize:
        gate = gates / gates.sum(axis=0)
    weights, load, total_dropped = to.evaluate(
        np.where(kept.reshape(chosen.shape), gate, 0.0).astype(_FLOAT32), each, dropped.sum()
    )
    balance, z, unrouted = _losses(to, probabilities, scale, load)
    return Routing(
        logits=logits,
        experts=chosen,
        weights=weights,
        order=order,
        rows=rows.reshape(chosen.shape),
        starts=starts,
        load=load,
        dropped=total_dropped,
        unrouted=unrouted,
        balance_loss=balance,
        z_loss=z,
        capacity=capacity,
    )


def _largest(to: Collecting, probabilities: GpuRef, k: int) -> tuple[GpuRef, GpuRef]:
    """The ``k`` likeliest experts of each token, and how likely they are: both (k, T).

    One after the other, as ``k`` is small: sorting rows takes longer, and no recording has it.
    """
    tokens, experts = probabilities.shape
    chosen = to.empty((k, tokens), _INT32)
    gates = to.empty((k, tokens), _FLOAT32)
    number = index((tokens, experts), 1)
    left: Any = probabilities
    for choice in range(k):
        best, gate = left.argmax(axis=-1), left.max(axis=-1)
        found = gate > 0  # not NaN, nor an expert that no token goes to
        to.evaluate(
            np.where(found, best, experts).astype(_INT32),
            np.where(found, gate, 0.0).astype(_FLOAT32),
            out=(chosen[choice], gates[choice]),
        )
        left = np.where(number == chosen[choice][:, None], _TAKEN, left)
    return chosen, gates


def _losses(
    to: Collecting, probabilities: GpuRef, scale: GpuRef, load: GpuRef
) -> tuple[GpuRef, GpuRef, GpuRef]:
    """The load-balance loss, the z-loss, and how many tokens have none."""
    known = np.isfinite(scale)
    mean, z, unrouted = to.evaluate(
        np.where(known[:, None], probabilities, 0.0).sum(axis=0) / np.maximum(known.sum(), 1),
        np.where(known, scale * scale, 0.0).sum() / np.maximum(known.sum(), 1),
        (~known).sum(),
    )
    share = load / np.maximum(load.sum(), 1)
    balance = (share * mean).sum() * float(load.size)
    loss, z_loss = to.evaluate(balance.astype(_FLOAT32), z.astype(_FLOAT32))
    return loss, z_loss, unrouted
