"""Packages of the extra ``train``, imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._errors import LibraryMissing
from .._install import install_command

__all__ = [
    "optree",
    "rich_console",
    "rich_progress",
    "safetensors",
    "safetensors_numpy",
    "tensorboardX",
]

if TYPE_CHECKING:
    import optree
    import rich.console as rich_console
    import rich.progress as rich_progress
    import safetensors
    import safetensors.numpy as safetensors_numpy
    import tensorboardX
else:

    class _LatePackage:
        """Stand-in for a module."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            try:
                module = import_module(self._name)
            except ImportError as error:
                wanted = self._name.partition(".")[0]
                raise LibraryMissing(
                    f"training needs {wanted}: {install_command('train')}"
                ) from error
            return getattr(module, name)

    optree = _LatePackage("optree")
    rich_console = _LatePackage("rich.console")
    rich_progress = _LatePackage("rich.progress")
    safetensors = _LatePackage("safetensors")
    safetensors_numpy = _LatePackage("safetensors.numpy")
    tensorboardX = _LatePackage("tensorboardX")  # noqa: N816 - its name
