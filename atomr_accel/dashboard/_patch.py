"""JSON merge patches (RFC 7386) between two states."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

Json: TypeAlias = "str | int | float | bool | list[Json] | list[float | None] | Mapping[str, Json]"
"""A state: null only in lists, because in a patch it removes a key."""


def merge_patch(old: Mapping[str, Json], new: Mapping[str, Json]) -> dict[str, object]:
    """Return the patch that turns ``old`` into ``new``; empty if they are equal.

    Identical objects are skipped. States share the objects that have not changed, so a patch costs
    only as much as the changes.
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
