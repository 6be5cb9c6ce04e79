"""Experts that are spread over devices, and serve as one layer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack, final

import numpy as np
import trio

from ..._errors import said_of
from ...actors import Place
from ...actors.blocks import opens
from ...actors.util import NoPublicConstructor, check_instance
from ...wire.options import several
from .._calls import CallsInProgress, InCallers, RequestCounts, serving_callers, unprotected
from .._retry import Retry
from ._exchange import DeviceCopies, Exchange, at_once, naming
from ._experts import MoeWeights, check_weights, grouped_experts, padded_experts, put_weights
from ._gating import Gating, Routing, route
from ._layer import check_tokens, combine, dispatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from numpy.typing import NDArray

    from ...arrays import GpuRef
    from ...device import Device
    from ...libraries.rng.generator import Generator
    from .._observer import Observer
    from ._gating import Collecting


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeStatistics(RequestCounts):
    """A layer of experts at one moment.

    Every submitted request counts in exactly one of ``running``, ``answered``, ``failed``,
    ``refused`` and ``withdrawn``. The fields after these count answered requests only.

    Attributes:
        submitted: requests so far.
        running: requests in progress.
        answered: requests that got a result.
        failed: requests that raised an error.
        refused: requests that got a refusal: the block was left.
        withdrawn: requests whose callers were cancelled.
        tokens: tokens of these requests.
        load: number of times that each expert was chosen, even if the token was dropped for lack of
            room.
        dropped_choices: number of choices that were dropped.
        balance_loss: the load-balance loss; see `Routing`. Each device has one, of its own part of
            the tokens of a request; this is the mean of all of them, by tokens. So it depends on
            the number of devices: a load that is even over all tokens may be uneven in the parts.
        z_loss: the z-loss of a token, in the mean.
    """

    tokens: int
    load: tuple[int, ...]
    dropped_choices: int
    balance_loss: float
    z_loss: float


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """Tokens that a rank sends to the others.

    Attributes:
        x: its tokens.
        routing: of these.
        sizes: the number of rows for each rank, or for each of its experts without padding.
        parts: these rows.
        report: load, dropped, unrouted, balance and z, in the program.
    """

    x: GpuRef
    routing: Routing
    sizes: list[tuple[int, ...]]
    parts: list[GpuRef]
    report: tuple[NDArray[Any], ...]


@final
class _Rank:
    """A device, and the experts it has: from ``bounds[rank]`` to ``bounds[rank + 1]``."""

    def __init__(
        self,
        device: Device,
        weights: MoeWeights[GpuRef],
        gating: Gating,
        bounds: Sequence[int],
        noise: Generator[Any] | None,
    ) -> None:
        self._device = device
        self._weights = weights
        self._gating = gating
        self._ranges: Final = [*pairwise(bounds)]
        self._noise = noise

    async def send(self, x: GpuRef) -> _Sent:
        """Choose experts for the tokens of this rank, and sort them by expert."""
        async with self._device.batch() as batch:
            routing = route(batch, x, self._weights.router, self._gating, noise=self._noise)
            rows = dispatch(batch, x, routing)
            told = (routing.load, routing.dropped, routing.unrouted)
            losses = (routing.balance_loss, routing.z_loss)
            fetched = [batch.get(ref) for ref in (*told, *losses)]
        report = tuple(later.value for later in fetched)
        capacity = routing.capacity
        if capacity is None:  # sizes of products are the program's: that is what was waited for
            load = report[0].tolist()
            sizes = [tuple(load[start:end]) for start, end in self._ranges]
            ends = [0, *accumulate(map(sum, sizes))]
            parts = [rows[start:end] for start, end in pairwise(ends)]
        else:
            sizes = [(capacity,) for _ in self._ranges]
            parts = [rows[start:end] for start, end in self._ranges]
        return _Sent(x, routing, sizes, parts, report)

    async def compute(self, parts: list[GpuRef], sizes: list[tuple[int, ...]]) -> list[GpuRef]:
        """Have this rank's experts compute what all ranks have sent."""
        async with self._device.batch() as batch:
            if self._gating.capacity_factor is None:
                return [
                    grouped_experts(batch, part, self._weights, size)
                    for part, size in zip(parts, sizes, strict=True)
                ]
            # Together, so that the weights are read once.
            y = padded_experts(batch, _joined(batch, parts, axis=1), self._weights)
            ends = [0, *accumulate(size for (size,) in sizes)]
            return [y[:, start:end] for start, end in pairwise(ends)]

    async def receive(self, sent: _Sent, parts: list[GpuRef], *, residual: bool) -> GpuRef:
        """Weigh what the experts of all ranks gave for the tokens of this one."""
        async with self._device.batch() as batch:
            rows = _joined(batch, parts, axis=0)
            return combine(batch, rows, sent.routing, sent.x, residual=residual)


def _joined(to: Collecting, parts: list[GpuRef], axis: int) -> GpuRef:
    return parts[0] if len(parts) == 1 else to.array.concatenate(parts, axis)


@final
class Moe(InCallers, metaclass=NoPublicConstructor):
    """A layer of experts on several devices, as `open_moe` returns it.

    ``await layer(x)`` makes one request. Once the block was left, methods raise `Closed`.
    """

    _made_by: ClassVar[str] = "open_moe(devices, weights)"

    def __init__(
        self,
        devices: Sequence[Device],
        weights: MoeWeights[Any],
        exchange: Exchange,
        retry: Retry,
        observer: Observer | None,
        *,
        residual: bool,
    ) -> None:
        self._devices = devices
        # Not the weights themselves, which may be large and are on the devices.
        experts, d, _ = weights.up.shape
        self._token: tuple[int, np.dtype[Any]] = d, weights.up.dtype
        self._ranks: list[_Rank] = []
        self._exchange = exchange
        self._retry = retry
        self._residual = residual
        self._calls = CallsInProgress("mixture of experts", observer)
        self._tokens = self._dropped_choices = 0
        self._load = np.zeros(experts, np.int64)
        self._losses = np.zeros(2)

    @trio.lowlevel.enable_ki_protection
    async def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        """Send tokens through the experts, divided among the devices.

        After a fault of a device, the call is repeated as ``retry`` allows.

        Args:
            x: (T, d), of the dtype of the experts.

        Returns:
            An array of the same shape and dtype.

        Raises:
            ValueError: another shape; or tokens whose logits are NaN or positive infinity, or all
                negative infinity, as they have no experts. The message tells how many.
            TypeError: another dtype, or no array.
            RankFailed: a device has faulted, once more than ``retry`` allows.
        """
        given: object = x
        if not isinstance(given, np.ndarray):
            raise TypeError(
                f"x must be an array of the program's, not {said_of(given)}; "
                "refs are for on_devices"
            )
        check_tokens(x, *self._token)
        await trio.lowlevel.checkpoint_if_cancelled()
        with self._calls.one(x):
            self._calls.tally.start(x)
            return await unprotected(self._with_retries, x)

    @trio.lowlevel.enable_ki_protection
    async def on_devices(self, parts: Sequence[GpuRef]) -> list[GpuRef]:
        """Do the same for tokens that are on the devices. The call is not repeated after a fault.

        Args:
            parts: (T, d) for each device, in their order; T may differ, and be 0.

        Returns:
            The results, where the tokens are.
        """
        if len(parts) != len(self._devices):
            raise ValueError(f"{len(self._devices)} devices take as many parts, not {len(parts)}")
        for part in parts:
            check_tokens(part, *self._token)
        await trio.lowlevel.checkpoint_if_cancelled()
        with self._calls.one(parts):
            self._calls.tally.start(parts)
            results, sent = await unprotected(self._forward, parts)
            self._note(sent)
            return results

    def statistics(self) -> MoeStatistics:
        """A snapshot. Experts are in the order of the weights."""
        balance, z = (self._losses / max(self._tokens, 1)).tolist()
        return MoeStatistics(
            **self._calls.tally.counts(),
            tokens=self._tokens,
            load=tuple(self._load.tolist()),
            dropped_choices=self._dropped_choices,
            balance_loss=balance,
            z_loss=z,
        )

    async def _with_retries(self, x: NDArray[Any]) -> NDArray[Any]:
        return await self._retry(self._from_host, x)

    async def _from_host(self, x: NDArray[Any]) -> NDArray[Any]:
        devices = self._devices
        with naming(devices):
            shares = np.array_split(x, len(devices))
            puts = [device.put(share) for device, share in zip(devices, shares, strict=True)]
            results, sent = await self._forward(await at_once(puts))
            gets = [device.get(y) for device, y in zip(devices, results, strict=True)]
            made = np.concatenate(await at_once(gets))
        self._note(sent)
        return made

    async def _forward(self, parts: Sequence[GpuRef]) -> tuple[list[GpuRef], list[_Sent]]:
        ranks = self._ranks
        with naming(self._devices):
            sent = await at_once([rank.send(x) for rank, x in zip(ranks, parts, strict=True)])
            there = await self._exchange.all_to_all_v([each.parts for each in sent])
            given = await at_once(
                [
                    rank.compute(there[number], [each.sizes[number] for each in sent])
                    for number, rank in enumerate(ranks)
                ]
            )
            back = await self._exchange.all_to_all_v(given)
            results = await at_once(
                [
                    rank.receive(each, rows, residual=self._residual)
                    for rank, each, rows in zip(ranks, sent, back, strict=True)
                ]
            )
        return results, sent

    def _note(self, sent: list[_Sent]) -> None:
        """Add a request to the statistics, unless some of its tokens have no experts."""
        unrouted = sum(int(each.report[2]) for each in sent)
        tokens = [each.x.shape[0] for each in sent]
        if unrouted:
            raise ValueError(
                f"{unrouted} of {sum(tokens)} tokens have logits that are NaN or positive "
                "infinity, or all negative infinity, so the router can choose no experts for them"
            )
        for each, count in zip(sent, tokens, strict=True):
            load, dropped, _, *losses = each.report
            self._tokens += count
            self._load += load
            self._dropped_choices += int(dropped)
            self._losses += count * np.array(losses, np.float64)


@opens
async def open_moe(
    devices: Sequence[Device],
    weights: MoeWeights[NDArray[Any]],
    gating: Gating | None = None,
    *,
    residual: bool = False,
    exchange: Exchange | None = None,
    retry: Retry | None = None,
    seed: int | None = None,
    observer: Observer | None = None,
    **place: Unpack[Place],
) -> AsyncIterator[Moe]:
    """Open a layer of experts that are spread over devices.

    Each device gets a part of the experts, in their order, and the router. The weights are sealed,
    so they survive the devices' faults. Of a request, each device gets a part of the tokens,
    chooses experts for them, and sends them there; what the experts give comes back the same way.
    Each device counts capacities for its own tokens.

    Leaving the block takes no more requests and waits for those in progress. Where an exception or
    a cancellation leaves it, those get ``Closed``. The devices are the caller's, and stay open.

    Args:
        devices: one or more, and not more than experts.
        weights: of all experts, in the program.
        gating: how the router chooses; by default as ``Gating()``.
        residual: add the tokens to the results, so that dropped tokens pass unchanged.
        exchange: moves tokens between the devices; by default ``DeviceCopies(devices)``.
        retry: how often a request is tried where a device faults; by default as ``Retry()``.
        seed: of the jitter, where ``gating`` has some.
        observer: receives the outcomes of requests.
        **place: ``system=``, ``name=`` and ``parent=``, which make the layer an actor. It answers
            ``Call(x)``. The weights stay on the devices while it is started again.

    Raises:
        RankFailed: a device has faulted before it had its weights.
    """
    gating = Gating() if gating is None else gating
    check_instance("gating", gating, Gating)
    check_instance("weights", weights, MoeWeights)
    check_weights(weights)
    experts = weights.up.shape[0]
    devices = several(devices, "devices")
    for device in devices:
        if not hasattr(device, "generation"):
            raise TypeError(f"devices must be open devices, not {said_of(device)}")
    if not 1 <= len(devices) <= experts:
        raise ValueError(
            f"devices for {experts} experts must be 1 to {experts}, not {len(devices)}"
        )
    if gating.top_k > experts:
        raise ValueError(
            f"top_k must be at most {experts}, the number of experts, not {gating.top_k}"
        )
    exchange = DeviceCopies(devices) if exchange is None else exchange
    if not callable(getattr(exchange, "all_to_all_v", None)) or not hasattr(exchange, "ranks"):
        raise TypeError(f"exchange must be an Exchange, such as DeviceCopies, not {exchange!r}")
    if exchange.ranks != len(devices):
        raise ValueError(f"the exchange has {exchange.ranks} ranks for {len(devices)} devices")
    retry = Retry() if retry is None else retry
    check_instance("retry", retry, Retry)
    moe = Moe.construct(devices, weights, exchange, retry, observer, residual=residual)
    bounds = [rank * experts // len(devices) for rank in range(len(devices) + 1)]
    seeds = np.random.SeedSequence(seed).spawn(len(devices))
    with naming(devices):
        placed = await at_once(
            [
                put_weights(device, weights, start, end)
                for device, (start, end) in zip(devices, pairwise(bounds), strict=True)
            ]
        )
    for device, mine, its_seed in zip(devices, placed, seeds, strict=True):
        noise = device.rng.default_rng(its_seed) if gating.jitter else None
        moe._ranks.append(_Rank(device, mine, gating, bounds, noise))
    async with serving_callers(moe, place):
        yield moe
