"""Finding what a host loads by name."""

from __future__ import annotations

import importlib
from typing import Any


def load(reference: str) -> Any:
    """What ``module:name`` refers to."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
