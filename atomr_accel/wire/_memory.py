"""The messages of the memory lane, which every host has.

Sizes and addresses are in bytes. Page-locked memory that the program shares with the host
has addresses too, so a copy is an upload, a download or neither by where its ends are.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ._messages import Message


class Copy(Message, frozen=True):
    """Copy from one address to another."""

    to: int
    source: int
    nbytes: int


class Fill(Message, frozen=True):
    """Repeat an element, given as its bytes, all over a buffer."""

    address: int
    nbytes: int
    element: bytes


class Prefetch(Message, frozen=True):
    """Move managed memory to the device, or to the host."""

    address: int
    nbytes: int
    to_device: bool


class Advise(Message, frozen=True):
    """Tell how managed memory is going to be used: one of ``ADVICE``."""

    address: int
    nbytes: int
    advice: str


class Attach(Message, frozen=True):
    """Say who may access a slab of managed memory: ``"global"``, ``"host"`` or ``"single"``."""

    address: int
    to: str


class Unprotect(Message, frozen=True):
    """Let this lane write to a sealed slab, through a second mapping of its own.

    Everybody else keeps seeing it read-only. Counted: as many ``Protect`` end it.
    """

    required: ClassVar[bool] = True

    slab: int


class Protect(Message, frozen=True):
    """End what ``Unprotect`` began, after all copies before it are done."""

    required: ClassVar[bool] = True

    slab: int


class Probe(Message, frozen=True):
    """Move a pattern to the device and back: is the context good?"""

    returns: ClassVar[Any] = bytes

    pattern: bytes
