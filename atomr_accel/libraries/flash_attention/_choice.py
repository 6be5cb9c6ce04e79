"""Choice of an implementation: cuDNN, or kernels of this package where cuDNN fails.

Each row names a kind of call that cuDNN refuses or computes wrongly.

Seen with cuDNN 9.19 on an H200. ``docs/reference/attention.md`` lists the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ..._errors import Unsupported
from ..dnn.attention.call import FP8

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..dnn.attention.call import AttentionCall
    from ..dnn.attention.graph import AttentionSpec

BACKENDS: Final = ("auto", "cudnn", "kernel")


class Case(NamedTuple):
    """A call, as far as the choice depends on it.

    Attributes:
        spec: sizes and options.
        lengths: whether the caller has given lengths.
        ragged: whether sequences lie one after the other.
        narrow: whether queries or the cache have eight bits.
        backward: whether gradients are wanted.
    """

    spec: AttentionSpec
    lengths: bool = False
    ragged: bool = False
    narrow: bool = False
    backward: bool = False

    @classmethod
    def of(cls, call: AttentionCall, reads: Mapping[str, object]) -> Case:
        """Return the case of a call whose inputs are ``reads``."""
        lengths = ("seq_len_q", "cu_seqlens_q", "cache_seqlens")
        return cls(
            call.spec,
            lengths=any(reads.get(name) is not None for name in lengths),
            ragged=call.spec.ragged_q,
            narrow=any(call.inputs[name].dtype in FP8 for name in "qk"),
            backward=call.spec.backward,
        )

    @property
    def uneven(self) -> bool:
        """``True`` if a mask is at the bottom right, and keys and queries differ in number."""
        return not self.spec.top_left

    @property
    def drawn(self) -> bool:
        """``True`` if result and gradients need the same implementation, because masks differ."""
        return self.backward or bool(self.spec.dropout)


class Reason(NamedTuple):
    """A reason for a kernel of this package.

    Attributes:
        what: the feature that cuDNN lacks.
        holds: whether a case is of that kind.
    """

    what: str
    holds: Callable[[Case], bool]


REASONS: Final = (
    Reason("a cache without keys", lambda case: case.spec.keys == 0),
    Reason("numbers in fp8", lambda case: case.narrow),
    Reason(
        "a softcap where sequences have lengths",
        lambda case: case.spec.softcap and case.lengths,
    ),
    Reason(
        "slopes of one's own where sequences have lengths",
        lambda case: bool(case.spec.slopes) and case.lengths,
    ),
    Reason(
        "a bias with a mask at the bottom right, and more or fewer queries than keys",
        lambda case: bool(case.spec.bias) and case.uneven,
    ),
    Reason(
        "dropout with a mask at the bottom right, and more or fewer queries than keys",
        lambda case: bool(case.spec.dropout) and case.uneven,
    ),
    Reason(
        "the paper's slopes with a mask at the bottom right, and more or fewer queries than keys",
        lambda case: case.spec.paper and case.uneven,
    ),
    Reason(
        "more queries than keys with a mask at the bottom right",
        lambda case: case.uneven and not case.lengths and case.spec.queries > case.spec.keys,
    ),
    Reason(
        "the gradient of a sink for ragged sequences",
        lambda case: case.spec.sink and case.ragged and case.drawn,
    ),
    Reason(
        "a single query with a sink and several keys",
        lambda case: case.spec.sink and case.spec.queries == 1 < case.spec.keys,
    ),
    Reason(
        "a single query, and pages whose size is no power of two",
        lambda case: case.spec.queries == 1 and case.spec.page & (case.spec.page - 1) != 0,
    ),
)
"""Kinds of calls that cuDNN refuses or computes wrongly."""

_MOST_SIZE: Final = 256
_STEPS: Final = {False: 8, True: 16}
"""Required divisor of head sizes, by ``Case.narrow``. Kernels read 16 bytes at a time."""


def by_kernel(op: str, backend: str, case: Case) -> bool:
    """Return whether kernels of this package compute a case."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    reason = next((reason.what for reason in REASONS if reason.holds(case)), "")
    if backend == "cudnn" and reason:
        raise Unsupported(f"{op}: cuDNN does not do {reason}; backend='kernel' does")
    if backend == "cudnn" or (backend == "auto" and not reason):
        return False
    step = _STEPS[case.narrow]
    for name, size in (("q and k", case.spec.size), ("v", case.spec.value_size)):
        if size % step or size > _MOST_SIZE:
            raise Unsupported(
                f"{op}: kernels of this package take sizes that are multiples of {step} up to "
                f"{_MOST_SIZE}"
                + (" in fp8" if case.narrow else "")
                + f", and {name} have {size}"
                + (f"; cuDNN does not do {reason}" if reason else "")
            )
    return True
