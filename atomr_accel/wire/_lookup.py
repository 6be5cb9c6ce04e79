"""Classes that travel as ``module:class``: a backend or a library of any package names them."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from .._errors import AccelError, Unsupported


def find_class(what: str, reference: str, where: str = "the host") -> Any:
    """The class that a backend or a library names as ``module:class``.

    Args:
        what: what it is, for errors.
        reference: its name.
        where: which process looks for it, for errors.

    Raises:
        Unsupported: it is not there.
    """
    try:
        found = resolve_name(reference)
        if not callable(found):
            raise TypeError(f"it is a {type(found).__name__}, not a class")
    except (AccelError, OSError, MemoryError):
        raise  # says itself what is missing, or may be had the next time
    except Exception as error:
        raise Unsupported(
            f"{what}, {reference!r}, cannot be loaded in {where}: {type(error).__name__}: "
            f"{error}; reinstall or update the package that names it"
        ) from error
    return found
