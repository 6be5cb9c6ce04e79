"""The package ``optree``, imported when it is first used: it is of the extra ``train``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._errors import LibraryMissing
from .._install import install_command

__all__ = ["optree"]

if TYPE_CHECKING:
    import optree
else:

    class _Late:
        """Stand-in for the module."""

        def __getattr__(self, name: str) -> Any:
            try:
                import optree as module
            except ImportError as error:
                raise LibraryMissing(
                    f"training needs optree: {install_command('train')}"
                ) from error
            return getattr(module, name)

    optree = _Late()
