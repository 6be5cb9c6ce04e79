"""Whether a request over HTTP was meant for this program: a guard against DNS rebinding.

A page in the user's browser may have its own name resolved to this machine. It can then ask here
as if it asked its own server, but has to say that name in the header ``Host``.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

MISDIRECTED: Final = 421
"""The status of the answer to a request that was meant for another host (RFC 9110)."""

REFUSAL: Final = "this is not the host that was asked for"


def is_here(hosts: Sequence[str], names: frozenset[str]) -> bool:
    """Whether a request's ``Host`` is one that nobody else can have made lead here.

    A name may lead anywhere, an address leads where it says. The port may be another one: that of
    a tunnel.

    Args:
        hosts: the values of all its headers ``Host``.
        names: what it may say beside addresses and ``localhost``, in lower case.
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
