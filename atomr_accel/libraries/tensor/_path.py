"""In which order operands are multiplied: pairs, along a path that opt_einsum finds.

Before that, axes of one element go, since nothing is summed along them, and indices that come
twice in an operand become its diagonal, which is a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import opt_einsum

from ...wire.options import real, whole

if TYPE_CHECKING:
    from collections.abc import Sequence


_EXPLICIT: Final = "einsum_path"
"""First element of the paths of ``numpy.einsum_path``."""


class Seen(NamedTuple):
    """The layout of an array with labelled axes.

    Attributes:
        labels: the index of each axis, all different.
        strides: bytes from one element to the next along each.
    """

    labels: tuple[int, ...]
    strides: tuple[int, ...]


class PathStep(NamedTuple):
    """One step: arrays that are multiplied, and summed along what the result has not.

    Attributes:
        parts: the numbers of two arrays, or of one; results come after operands, in their order.
        output: the indices of the result.
    """

    parts: tuple[int, ...]
    output: tuple[int, ...]


def seen_as(labels: tuple[int, ...], shape: tuple[int, ...], strides: tuple[int, ...]) -> Seen:
    """An operand without axes of one element, and with the diagonals of indices that repeat."""
    found: dict[int, int] = {}
    for label, size, stride in zip(labels, shape, strides, strict=True):
        if size != 1:
            found[label] = found.get(label, 0) + stride
    return Seen(tuple(found), tuple(found.values()))


def pairs(
    inputs: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    sizes: Sequence[int],
    optimize: Any,
) -> list[PathStep]:
    """The steps that lead from operands to the result; the last one gives it."""
    steps: list[PathStep] = []
    left = list(range(len(inputs)))
    labels = list(map(tuple, inputs))
    for group in _path(inputs, output, sizes, optimize):
        chosen = [left[at] for at in group]
        left = [each for each in left if each not in chosen]
        first, *others = chosen
        while True:
            parts = (first, others.pop(0)) if others else (first,)
            needed = {*output}.union(*(labels[each] for each in (*left, *others)))
            known = dict.fromkeys(label for part in parts for label in labels[part])
            kept = tuple(label for label in known if label in needed)
            first = len(labels)
            labels.append(kept)
            steps.append(PathStep(parts, kept))
            if not others:
                break
        left.append(first)
    steps[-1] = steps[-1]._replace(output=output)
    return steps


def _path(
    inputs: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    sizes: Sequence[int],
    optimize: Any,
) -> list[tuple[int, ...]]:
    """Which are multiplied next, by their places among those that are left."""
    how, limit = _asked(optimize)
    count = len(inputs)
    if isinstance(how, list):
        _require_whole(how, count, optimize)
    if count == 1 or not how:
        return [tuple(range(count))]
    symbol = opt_einsum.get_symbol
    terms = ("".join(map(symbol, each)) for each in inputs)
    equation = f"{','.join(terms)}->{''.join(map(symbol, output))}"
    shapes = [tuple(max(1, sizes[label]) for label in each) for each in inputs]  # costs of none
    path, _ = opt_einsum.contract_path(
        equation,
        *shapes,
        shapes=True,
        optimize=how,
        memory_limit=limit,
    )
    return [tuple(map(int, each)) for each in path]


def _asked(optimize: Any) -> tuple[str | list[tuple[int, ...]], int | None]:
    """Return the requested path or its name, empty for none; and a limit."""
    name, limit = optimize, None
    if isinstance(optimize, list | tuple) and len(optimize) and optimize[0] == _EXPLICIT:
        optimize = optimize[1:]
    elif isinstance(optimize, tuple) and len(optimize) == 2 and isinstance(optimize[0], str):
        name, limit = optimize
    try:
        if optimize is None or isinstance(optimize, (bool, np.bool_)):
            return "auto" if optimize else "", None
        if isinstance(name, str):
            opt_einsum.paths.get_path_fn(name)
            return name, None if limit is None else int(real(limit, "limit", least=0))
        return [tuple(whole(at, "place") for at in group) for group in optimize], None
    except (KeyError, TypeError):
        raise ValueError(
            "optimize must be True, False, the name of a way to find a path, such as "
            "'greedy', a tuple of that and a number of elements, or a path, not "
            f"{optimize!r}"
        ) from None


def _require_whole(path: list[tuple[int, ...]], count: int, given: object) -> None:
    """A path uses each array once, and leaves one."""
    left = count
    for each in path:
        if len({*each}) != len(each) or not each or not all(0 <= at < left for at in each):
            break
        left += 1 - len(each)
    else:
        if left == 1:
            return
    raise ValueError(f"{given!r} is no path for {count} operands; numpy.einsum_path tells of paths")
