"""What is different between two states, as a JSON merge patch (RFC 7386)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

Json: TypeAlias = "str | int | float | bool | list[Json] | list[float | None] | Mapping[str, Json]"
"""A state: no null but in lists, since in a patch it stands for what is gone."""


def merge_patch(old: Mapping[str, Json], new: Mapping[str, Json]) -> dict[str, object]:
    """What has to be merged into ``old`` to make it ``new``; empty if they are equal.

    What is the same object in both is not looked into: whoever makes states keeps what has not
    changed, and then a patch costs no more than what has.
    """
    patch: dict[str, object] = {}
    for key, value in new.items():
        before = old.get(key)
        if before is value:
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := merge_patch(before, value):
                patch[key] = inner
        elif before != value or type(before) is not type(value):
            patch[key] = value
    for key in old.keys() - new.keys():
        patch[key] = None
    return patch


def encode(value: object) -> str:
    """JSON in one line of ASCII: names may have anything in them, unpaired surrogates too."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
