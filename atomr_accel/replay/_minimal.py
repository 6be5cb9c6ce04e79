"""Delta debugging: the least of a list that still fails.

This is ``ddmin`` of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input"
(2002).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")


async def minimal(items: Sequence[T], fails: Callable[[list[T]], Awaitable[bool]]) -> list[T]:
    """The least of some items that still fails: none of it can be left out.

    Args:
        items: fail together.
        fails: whether some of them, in their order, still fail. It is asked once for each.

    Returns:
        Those that are left: 1-minimal, which need not be the fewest possible.
    """
    known: dict[tuple[int, ...], bool] = {}

    async def still(chosen: list[int]) -> bool:
        key = tuple(chosen)
        if key not in known:
            known[key] = await fails([items[at] for at in chosen])
        return known[key]

    left = list(range(len(items)))
    parts = 2
    while len(left) > 1:
        size = -(-len(left) // parts)
        subsets = [left[at : at + size] for at in range(0, len(left), size)]
        for subset in subsets if parts == 2 else []:
            if await still(subset):
                left, parts = subset, 2
                break
        else:
            for subset in subsets:
                rest = [at for at in left if at not in subset]
                if rest and await still(rest):
                    left, parts = rest, max(parts - 1, 2)
                    break
            else:
                if size == 1:
                    break
                parts = min(2 * parts, len(left))
    return [items[at] for at in left]
