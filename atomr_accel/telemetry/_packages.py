"""Packages that exporters need, imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .._errors import LibraryMissing
from .._install import install_command


def package(module: str, distribution: str) -> Any:
    """A module of a package that is an extra."""
    try:
        return import_module(module)
    except ImportError as error:
        raise LibraryMissing(
            f"{distribution} is not installed: {install_command('telemetry')}",
            library=distribution,
        ) from error
