"""Objects in JSON files of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ._folder_errors import ModelFolderBroken


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any] | None:
    """Return the object in a file; None for a file that is optional and missing."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if optional:
            return None
        raise ModelFolderBroken(f"{path.parent} must have {path.name}, and has none") from None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelFolderBroken(f"{path} must be JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelFolderBroken(f"{path} must have an object, not {type(found).__name__}")
    return found
