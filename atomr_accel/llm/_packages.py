"""Packages of the extra ``llm``, imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .._errors import LibraryMissing
from .._install import install_command


def package(module: str, distribution: str) -> Any:
    """Return a module of a package of the extra."""
    try:
        return import_module(module)
    except ImportError as error:
        raise LibraryMissing(
            f"language models need {distribution}: {install_command('llm')}", library=distribution
        ) from error
