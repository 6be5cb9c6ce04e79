"""What is raised for matrices that have no such factorization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...._errors import LinAlgError

if TYPE_CHECKING:
    from ..wire._messages import Compute


def require_success(message: Compute, info: np.ndarray[Any, Any]) -> None:
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
    raise LinAlgError(
        f"{message.failure}: {where} (info {info[first]} of {message.problem.routine}){more}",
        index=first,
        info=int(info[first]),
    )
