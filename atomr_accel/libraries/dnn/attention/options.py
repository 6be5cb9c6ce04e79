"""Options that calls of attention share, and their checks."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypedDict, final

from ....arrays import GpuRef
from ....wire.options import flag, real, whole
from ..graph.layout import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_WINDOWS: Final = 2
_INT64: Final = 2**63


class ExtraOptions(TypedDict, total=False):
    """Options that the package flash-attn does not have.

    Attributes:
        align: alignment of queries and keys: ``"bottom_right"`` pairs the last query with the
            last key, and ``"top_left"`` the first query with the first key.
        bias: added to the scores; q's dtype, shape (batch or 1, heads or 1, queries, keys).
        sink: float32 of shape (heads,): an additional score for each head, without a value.
        seed, offset: random numbers that decide which probabilities are set to 0; by default 0,
            so all calls drop the same ones. The backward pass needs the same numbers.
        autotune: whether the first run tries all plans of cuDNN and keeps the fastest.
    """

    align: str
    bias: GpuRef | None
    sink: GpuRef | None
    seed: int
    offset: int
    autotune: bool


class AttentionOptions(ExtraOptions, total=False):
    """Options of all functions for attention, with those of ``ExtraOptions``.

    Attributes:
        softmax_scale: factor of ``q @ k.T``; by default ``1 / sqrt(size)``.
        causal: whether a query sees no later keys than its own.
        window: number of keys before and after its own that a query sees; -1 for all.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 for none.
        alibi_slopes: float32 of shape (heads,) or (batch, heads): scores become smaller by
            ``slope * distance``. True for the slopes of the paper, with ``causal`` only.
        dropout_p: the share of probabilities that is set to 0; the others grow.
        deterministic: whether the backward pass always sums in the same order.
    """

    softmax_scale: float | None
    causal: bool
    window: tuple[int, int]
    softcap: float
    alibi_slopes: GpuRef | bool | None
    dropout_p: float
    deterministic: bool


@final
@dataclass(frozen=True, slots=True)
class CheckedAttentionOptions:
    """``AttentionOptions``, checked.

    Attributes:
        left, right: number of keys before and after its own that a query sees; None for all.
    """

    softmax_scale: float | None = None
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    align: str = "bottom_right"
    softcap: float = 0.0
    alibi_slopes: GpuRef | bool | None = None
    bias: GpuRef | None = None
    sink: GpuRef | None = None
    dropout_p: float = 0.0
    seed: int = 0
    offset: int = 0
    deterministic: bool = False
    autotune: bool = False

    @property
    def left(self) -> int | None:
        """Number of keys before a query that it sees; None for all."""
        return None if self.window[0] < 0 else self.window[0]

    @property
    def right(self) -> int | None:
        """Number of keys after a query that it sees; None for all."""
        if self.causal:
            return 0
        return None if self.window[1] < 0 else self.window[1]

    def scale(self, size: int) -> float:
        """Return the factor of ``q @ k.T``."""
        if self.softmax_scale is None:
            return 1 / math.sqrt(size)
        return self.softmax_scale


BUFFERS: Final = ("alibi_slopes", "bias", "sink")
"""The options that may be buffers."""

_AS_THEY_ARE: Final[Mapping[str, str]] = MappingProxyType({})
_SEEDS: Final = frozenset(("seed", "offset"))
_APART: Final = _SEEDS.union(BUFFERS)


def split(options: Any, *values: Any) -> tuple[Any, tuple[GpuRef | None, ...]]:
    """Return a key of options and other arguments, and the buffers among the options, if any.

    With a seed of dropout the key is None, because seeds differ from call to call.
    """
    if not options:
        return exact(values), ()
    if _APART.isdisjoint(options):
        return (*options, exact((*values, *options.values()))), ()
    buffers = [options.get(name) for name in BUFFERS]
    key = None
    if _SEEDS.isdisjoint(options):
        settings = [GpuRef if type(each) is GpuRef else each for each in options.values()]
        key = (*options, exact((*values, *settings)))
    return key, tuple([each if type(each) is GpuRef else None for each in buffers])


def _scale(value: Any, name: str) -> float | None:
    return None if value is None else real(value, name)


def _window(value: Any, name: str) -> tuple[int, int]:
    if not isinstance(value, (tuple, list)) or len(value) != _WINDOWS:
        raise TypeError(f"{name} must be two whole numbers, (before, after), not {value!r}")
    before, after = (whole(each, f"each of {name}", -1) for each in value)
    return before, after


def _align(value: Any, name: str) -> str:
    if value not in ("bottom_right", "top_left"):
        raise ValueError(f"{name} must be 'bottom_right' or 'top_left', not {value!r}")
    return str(value)


def _slopes(value: Any, name: str) -> GpuRef | bool | None:
    return value if value is None or isinstance(value, GpuRef) else flag(value, name)


def _buffer(value: Any, name: str) -> GpuRef | None:
    if value is not None and not isinstance(value, GpuRef):
        raise TypeError(f"{name} must be a GpuRef or None, not {type(value).__name__}")
    return value


def _number(value: Any, name: str) -> int:
    return whole(value, name, 0, _INT64 - 1)


_CHECKS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "softmax_scale": _scale,
    "causal": flag,
    "window": _window,
    "align": _align,
    "softcap": lambda value, name: real(value, name, least=0),
    "alibi_slopes": _slopes,
    "bias": _buffer,
    "sink": _buffer,
    "dropout_p": lambda value, name: real(value, name, least=0, below=1),
    "seed": _number,
    "offset": _number,
    "deterministic": flag,
    "autotune": flag,
}
"""Converters from options to values in ``CheckedAttentionOptions``. They raise for bad values."""

NAMES: Final = frozenset(field.name for field in fields(CheckedAttentionOptions))


def checked(
    op: str, given: Any, *, without: tuple[str, ...] = (), called: Mapping[str, str] = _AS_THEY_ARE
) -> CheckedAttentionOptions:
    """Return the checked options, with defaults for absent ones.

    ``without`` are options that the op lacks, and ``called`` names in errors of those that it
    renames.
    """
    known = NAMES - set(without)
    if unknown := sorted(given.keys() - known):
        raise TypeError(f"{op} has no {', '.join(unknown)}; it takes {', '.join(sorted(known))}")
    options = CheckedAttentionOptions(
        **{name: _CHECKS[name](value, called.get(name, name)) for name, value in given.items()}
    )
    if options.alibi_slopes is True and (not options.causal or options.softcap):
        raise ValueError(
            "alibi_slopes=True takes causal=True and no softcap; give the slopes as a buffer"
        )
    return options
