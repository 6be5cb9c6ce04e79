"""Subscripts of ``einsum``: strings or lists become labels, one for each axis.

The syntax is that of ``numpy.einsum``. A label is a character or a number; the axes that ``...``
stands for get labels of their own, counted from the last one, so that they meet as in
broadcasting.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Hashable, Sequence
from types import EllipsisType
from typing import Any, Final, NamedTuple

from ..._errors import said_of

Label = Hashable
Given = tuple["Label | EllipsisType", ...]
Sublist = Sequence[Any]

_MOST_LABELS: Final = 52


class Terms(NamedTuple):
    """The subscripts of a call.

    Attributes:
        inputs: for each operand.
        output: those of the result; None if the inputs imply them.
    """

    inputs: tuple[Given, ...]
    output: Given | None


class Labelled(NamedTuple):
    """The labels of a call whose operands are all known.

    Attributes:
        inputs: a number for each axis of each operand; equal ones are the same index.
        output: the numbers of the result's axes, all different.
        sizes: the size of each index, by its number.
    """

    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    sizes: tuple[int, ...]


def parse(subscripts: str) -> Terms:
    """Parse subscripts in one string.

    Args:
        subscripts: such as ``"ij,jk->ik"``; spaces are ignored.
    """
    before, arrow, after = subscripts.partition("->")
    inputs = tuple(_term(each, subscripts) for each in before.split(","))
    return Terms(inputs, _term(after, subscripts) if arrow else None)


def interleaved(sublists: Sequence[Sublist], output: Sublist | None) -> Terms:
    """Subscripts in lists.

    Args:
        sublists: for each operand whole numbers from 0 to 51, and ``...``.
        output: for the result.

    Raises:
        TypeError: something else in a list.
        ValueError: another number.
    """
    return Terms(tuple(map(_numbers, sublists)), None if output is None else _numbers(output))


def _term(text: str, subscripts: str) -> Given:
    """The labels of one operand."""
    found: list[Label | EllipsisType] = []
    rest = "".join(text.split())
    while rest:
        if rest.startswith("..."):
            found.append(...)
            rest = rest[3:]
        elif rest[0].isalpha():
            found.append(rest[0])
            rest = rest[1:]
        else:
            raise ValueError(
                "subscripts must be letters and '...', ',' between operands and one "
                f"'->' before the result's, not {rest[0]!r} in {subscripts!r}"
            )
    return _once(found, subscripts)


def _numbers(sublist: Sublist) -> Given:
    if isinstance(sublist, str) or not isinstance(sublist, Sequence):
        raise TypeError(
            f"subscripts of an operand are a list of whole numbers and '...', not "
            f"{said_of(sublist)}"
        )
    found: list[Label | EllipsisType] = []
    for each in sublist:
        if each is ...:
            found.append(...)
            continue
        try:
            number = operator.index(each)
        except TypeError:
            raise TypeError(
                f"a subscript is a whole number or '...', not {said_of(each)}"
            ) from None
        if not 0 <= number < _MOST_LABELS:
            raise ValueError(
                f"subscript {number} is not within the valid range [0, {_MOST_LABELS})"
            )
        found.append(number)
    return _once(found, sublist)


def _once(labels: list[Label | EllipsisType], said: object) -> Given:
    if labels.count(...) > 1:
        raise ValueError(f"an operand has one '...' at most, in subscripts {said!r}")
    return tuple(labels)


def resolve(terms: Terms, shapes: tuple[tuple[int, ...], ...]) -> Labelled:
    """Which axes of operands of these shapes share an index, and what the result's are.

    Sizes of one broadcast from operand to operand, whether ``...`` or a letter names them.

    Raises:
        ValueError: too many or too few operands or subscripts; sizes that do not fit; a result
            with subscripts that come twice or that no operand has.
    """
    if len(terms.inputs) != len(shapes):
        raise ValueError(f"subscripts must be for {len(shapes)} operands, not {len(terms.inputs)}")
    spread = [
        _spread(given, len(shape), f"operand {at}")
        for at, (given, shape) in enumerate(zip(terms.inputs, shapes, strict=True))
    ]
    broadcast = max((_dots(each) for each in spread), default=0)
    output = _output(terms, spread, broadcast)
    numbers: dict[Label, int] = {}
    sizes: list[int] = []
    for at, (labels, shape) in enumerate(zip(spread, shapes, strict=True)):
        own: dict[Label, int] = {}
        for label, size in zip(labels, shape, strict=True):
            if own.setdefault(label, size) != size:
                raise ValueError(
                    f"operand {at} has {own[label]} and {size} elements along its axes {label!r}, "
                    "which do not broadcast to each other for their diagonal"
                )
            number = numbers.setdefault(label, len(numbers))
            if number == len(sizes):
                sizes.append(size)
            elif sizes[number] == 1:
                sizes[number] = size
            elif size not in (1, sizes[number]):
                raise ValueError(
                    f"operand {at} must have {sizes[number]} elements along "
                    f"{_said(label)}, as another axis of that name has, not {size}"
                )
    inputs = tuple(tuple(numbers[label] for label in labels) for labels in spread)
    return Labelled(inputs, tuple(numbers[label] for label in output), tuple(sizes))


class _Dots(NamedTuple):
    """The label of an axis that ``...`` stands for: which one, from the last."""

    place: int


def _dots(labels: Sequence[Label]) -> int:
    return sum(isinstance(each, _Dots) for each in labels)


def _spread(given: Given, ndim: int, name: str) -> tuple[Label, ...]:
    """One label for each axis."""
    more = ndim - (len(given) - (... in given))
    if more < 0 or (more and ... not in given):
        raise ValueError(
            f"{name} has {ndim} dimensions, but {len(given) - (... in given)} subscripts"
            + (" beside '...'" if ... in given else "")
        )
    found: list[Label] = []
    for each in given:
        found += map(_Dots, reversed(range(more))) if each is ... else [each]
    return tuple(found)


def _output(terms: Terms, spread: Sequence[tuple[Label, ...]], broadcast: int) -> tuple[Label, ...]:
    known = Counter(label for labels in spread for label in labels)
    dots = tuple(map(_Dots, reversed(range(broadcast))))
    if terms.output is None:
        once = [each for each, times in known.items() if times == 1 and not isinstance(each, _Dots)]
        return (*dots, *sorted(once))  # type: ignore[type-var]
    if broadcast and ... not in terms.output:
        raise ValueError(
            f"'...' stands for {broadcast} axes of the operands, so the result's subscripts need "
            "it, too"
        )
    found: list[Label] = []
    for each in terms.output:
        found += dots if each is ... else [each]
    for label in found:
        if label not in known:
            raise ValueError(f"the result has subscript {_said(label)}, which no operand has")
        if found.count(label) > 1:
            raise ValueError(f"the result has subscript {_said(label)} more than once")
    return tuple(found)


def _said(label: Label) -> str:
    return f"axis {-1 - label.place} of '...'" if isinstance(label, _Dots) else repr(label)
