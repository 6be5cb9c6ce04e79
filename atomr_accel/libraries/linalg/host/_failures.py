"""What is raised for matrices that have no such factorization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...._errors import LinAlgError

if TYPE_CHECKING:
    from ..wire._messages import Compute, Require

NOT_FINITE: Final = -1000
"""What stands for LAPACK's info where a matrix holds NaN or infinity; it has no such number."""


def require_success(message: Compute | Require, info: np.ndarray[Any, Any]) -> None:
    """Raise for the first matrix of a stack that failed.

    Args:
        message: what was executed.
        info: what LAPACK says of each matrix.

    Raises:
        LinAlgError: of at least one it says something.
    """
    failed = np.flatnonzero(info)
    if not failed.size:
        return
    first = int(failed[0])
    where = f"matrix {first} of {info.size}" if info.size > 1 else "the matrix"
    more = f", and {failed.size - 1} more" if failed.size > 1 else ""
    failure = message.failure
    if message.problem.routine == "sygvd" and info[first] > message.problem.sizes[0]:
        failure = "b is not positive definite"
    why = f" (info {info[first]} of {message.problem.routine})"
    if info[first] == NOT_FINITE:
        why = " holds NaN or infinity"
    raise LinAlgError(
        f"{failure}: {where}{why}{more}",
        index=first,
        info=int(info[first]),
    )
