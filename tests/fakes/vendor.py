"""Base of stand-ins for vendors' libraries."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from atomr_accel._errors import LibraryError


class FakeVendor:
    """Base of stand-ins for a ``VendorLibrary``: functions by name, which return a status."""

    library: ClassVar[str]
    status_names: ClassVar[Mapping[int, str]] = {}
    functions: dict[str, Any]

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function, as ``VendorLibrary.call`` does."""
        status = self.functions[function](*arguments)
        if status:
            raise self.error(function, status)

    def prepare(self, function: str, *arguments: Any) -> Callable[[], int]:
        """A call of which some arguments are ``ctypes`` objects that change in between."""

        def call() -> int:
            plain = [
                each.value or 0 if isinstance(each, ctypes.c_void_p) else each for each in arguments
            ]
            return int(self.functions[function](*plain))

        return call

    def error(self, function: str, status: int) -> LibraryError:
        """Return the error for a status, as ``VendorLibrary.error`` does."""
        name = self.status_names.get(status, str(status))
        return LibraryError(
            f"{function} returned {name}",
            library=self.library,
            call=function,
            status=status,
            status_name=name,
        )
