"""A check that an HTTP request was meant for this program, as a guard against DNS rebinding.

A page in the user's browser may have its own name resolved to this machine. It can then send
requests here as if to its own server, but they carry that name in the header ``Host``.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from ..wire.options import several, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MISDIRECTED: Final = 421
"""The status of the answer to a request that was meant for another host (RFC 9110)."""

REFUSAL: Final = "this is not the host that was asked for"


def host_names(names: Iterable[str]) -> frozenset[str]:
    """Return the allowed names of ``is_here``, as a program gives them."""
    return frozenset(text(name, "a host name", 1).lower() for name in several(names, "names"))


def is_here(hosts: Sequence[str], names: frozenset[str]) -> bool:
    """Return True if a request's ``Host`` cannot be a name that others resolve to this machine.

    A name may resolve to any address; an address cannot. The port is ignored, because it may be
    that of a tunnel.

    Args:
        hosts: the values of all its headers ``Host``.
        names: allowed names besides addresses and ``localhost``, in lower case.
    """
    if len(hosts) != 1:
        return False
    host = hosts[0].lower()
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdecimal():
        name = host
    if name in names or name == "localhost":
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
