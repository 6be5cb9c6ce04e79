"""Errors for matrices that have no such factorization."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...._errors import LinAlgError
from ....wire.interface import Later
from ..wire._messages import NOT_FINITE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..wire._messages import Compute, ComputeAll, Require


def execute_all(handlers: Mapping[type, Callable[[Any], Any]], message: ComputeAll) -> Later | None:
    """Run steps; the first failure is raised after the device has finished all of them."""
    answers = [handlers[type(step)](step) for step in message.steps]
    later = [answer for answer in answers if isinstance(answer, Later)]
    if len(later) < 2:
        return later[0] if later else None
    return Later(partial(_read_all, later))


def _read_all(later: Iterable[Later]) -> None:
    """Read every answer, because each releases its memory; then raise the first error."""
    first: Exception | None = None
    for each in later:
        try:
            each.read()
        except LinAlgError as error:
            first = first or error
    if first is not None:
        raise first


_REASONS: Final = {
    "gesv": "pivot {info} of {where} is zero",
    "potrf": "the leading block of {info} by {info} of {where} is not",
}
"""The meaning of LAPACK's info, by routine."""


def require_success(message: Compute | Require, info: np.ndarray[Any, Any]) -> None:
    """Raise for the first matrix of a stack that failed."""
    failed = np.flatnonzero(info)
    if not failed.size:
        return
    first = int(failed[0])
    more = f", and {failed.size - 1} more" if failed.size > 1 else ""
    failure = message.failure
    if message.problem.routine == "sygvd" and info[first] > message.problem.sizes[0]:
        failure = "b is not positive definite"
    routine = message.problem.routine
    where = f"matrix {first} of {info.size}" if info.size > 1 else "the matrix"
    why = _REASONS.get(routine, "{where} (info {info} of {routine})")
    if info[first] == NOT_FINITE:
        why = "{where} holds NaN or infinity"
    said = why.format(where=where, info=info[first], routine=routine)
    raise LinAlgError(
        f"{failure}: {said}{more}",
        index=first,
        info=int(info[first]),
    )
