"""Ways in which products and convolutions are submitted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ...ops import D, Facade, Request, Submission, require_no_race
from ._builds import LANE, CutlassBuilds, untraceable
from ._product import check, chosen, read, read_choice, space
from .wire._messages import TuneCutlass
from .wire._spec import decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...arrays import GpuRef
    from ...ops import DeviceView, Preparer
    from ...wire.recent import Recent
    from ._movement import Movement
    from .wire._messages import Sizes
    from .wire._spec import Triple


@dataclass(frozen=True, slots=True)
class Tuned:
    """The time that a kernel took.

    Attributes:
        tile, cluster, schedule, swizzle: as ``matmul`` takes them.
        milliseconds: of one product; 0 on the CPU backend.
    """

    tile: Triple
    cluster: Triple
    schedule: str
    swizzle: int
    milliseconds: float


class CutlassPart(Facade[D]):
    """Has what takes calls to kernels that fit."""

    templated = True

    def __init__(self, device: DeviceView) -> None:
        self.home = device
        self._builds = CutlassBuilds(device)
        self.caches: tuple[Recent[Any, Any], ...] = self._builds.caches

    def _multiply(
        self,
        name: str,
        operands: tuple[GpuRef, GpuRef],
        options: Mapping[str, Any],
        movement: Movement | None = None,
    ) -> Request[GpuRef]:
        """Return the request for a product of two operands, with the arguments of its method."""
        given = read(*operands, options, movement)
        wanted = ("tile", "cluster", "schedule", "stages", "swizzle")
        choice = read_choice(*[options[name] for name in wanted])

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            product = check(given, self.home, preparer.memory)
            sizes = product.sizes
            tuned = []
            if choice.tile is None:
                tuned = self._builds.tuned(preparer, encode(product.spec), sizes)
            if tuned:
                spec, turn = tuned[0]
            else:
                made, turn = chosen(product.spec, choice, sizes)
                spec = encode(made)
            building = self._builds.require(preparer, (spec, sizes, turn))
            reads = product.reads if building is None else [*product.reads, building]
            result = product.out
            if result is None:
                result = preparer.output(product.shape, product.dtype)
            message = product.message(spec, turn, result, product.lowered.buffers)
            sent = None if building is None else untraceable
            return Submission(message, reads, [result.block, *product.writes], result, sent=sent)

        return Request(LANE, f"cutlass.{name}", prepare)

    def _try(
        self,
        name: str,
        operands: tuple[GpuRef, GpuRef],
        options: Mapping[str, Any],
        movement: Movement | None = None,
    ) -> Request[list[Tuned]]:
        """Return the request to try kernels for such a product; arguments as for a product."""
        given = read(*operands, options, movement)
        require_no_race(self.home, autotune=True)

        def prepare(preparer: Preparer) -> Submission[list[Tuned]]:
            product = check(given, self.home, preparer.memory)
            tried = {name: options[name] for name in ("tiles", "clusters", "schedules", "swizzles")}
            found = space(product.spec, product.sizes, **tried)
            candidates = tuple((encode(spec), turn) for spec, turn in found)
            for spec, turn in candidates:
                self._builds.require(preparer, (spec, product.sizes, turn))
            out, buffers = product.scratch(preparer)
            wanted = encode(product.spec)
            trial = product.message(*candidates[0], out, buffers)
            written = [buffers[slot].block for slot in product.lowered.written]
            return Submission(
                TuneCutlass(wanted, trial, candidates),
                product.reads,
                [out.block, *written],
                finish=partial(self._timed, wanted, trial.sizes, candidates),
            )

        return Request(LANE, f"cutlass.{name}", prepare)

    def _timed(
        self,
        wanted: bytes,
        sizes: Sizes,
        candidates: tuple[tuple[bytes, int], ...],
        times: list[float],
    ) -> list[Tuned]:
        order = sorted(range(len(candidates)), key=times.__getitem__)
        self._builds.note(wanted, sizes, candidates[order[0]])
        found = []
        for at in order:
            encoded, turn = candidates[at]
            spec = decode(encoded)
            found.append(Tuned(spec.tile, spec.cluster, spec.schedule, turn, times[at]))
        return found
