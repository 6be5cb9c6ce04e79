"""Errors by which libraries refuse a case, and the page that documents them.

A case that a library refuses with one of these errors is counted by its reason. Any other error
is a failure: an undocumented refusal counts as one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from atomr_accel import LibraryMissing, Unsupported


@dataclass(frozen=True)
class Refusal:
    """An error that is an answer.

    Attributes:
        library: whose it is; ``*`` for all.
        error: its type.
        words: what its message has, as a regular expression.
        reason: how it is counted.
    """

    library: str
    error: type[Exception]
    words: str
    reason: str


DOCUMENTED: Final = [
    Refusal(
        "*",
        ValueError,
        "begins at a multiple of .* bytes only",
        "a view that is not aligned (the page of libraries, what they have in common)",
    ),
]


def refusal(library: str, error: Exception) -> str | None:
    """The reason under which an error is counted, or None if it is a failure."""
    if isinstance(error, LibraryMissing):
        return None
    for each in DOCUMENTED:
        if (
            each.library in ("*", library)
            and isinstance(error, each.error)
            and re.search(each.words, str(error))
        ):
            return each.reason
    if isinstance(error, Unsupported):
        return "Unsupported: " + re.sub(r"\d+|\(.*?\)|\[.*?\]", "#", str(error))[:110]
    return None
