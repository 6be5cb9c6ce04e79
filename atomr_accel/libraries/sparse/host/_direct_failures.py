"""Errors for matrices that have no factors."""

from __future__ import annotations

from ...._errors import LinAlgError


def require_regular(info: int) -> None:
    """Raise if a factorization failed.

    Args:
        info: its info: 0, the row at which it failed, or the number of zero pivots.
    """
    if info:
        raise LinAlgError(
            f"Matrix is singular, or not of the kind that was told (info {info})",
            index=0,
            info=info,
        )


def not_factorized() -> LinAlgError:
    """The error of solves by factors that the last factorization has not made."""
    return LinAlgError("there are no factors: the factorization failed", index=0, info=1)
