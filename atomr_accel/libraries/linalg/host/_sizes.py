"""Sizes of routines' workspaces."""

from __future__ import annotations

from typing import NamedTuple


class WorkspaceSizes(NamedTuple):
    """Bytes of workspace.

    Attributes:
        vendor: that the vendor's function asks for, on the device.
        host: likewise in this process.
        more: what we need behind that on the device: pointers, pivots.
    """

    vendor: int = 0
    host: int = 0
    more: int = 0

    @property
    def device(self) -> int:
        """All that is on the device."""
        return aligned(self.vendor) + self.more


class LinalgWorkspace(NamedTuple):
    """A workspace.

    Attributes:
        device: pointer to it.
        nbytes: how much of it is the vendor's.
        host: pointer to that in this process, or 0.
        host_nbytes: bytes of that.
    """

    device: int
    nbytes: int
    host: int
    host_nbytes: int

    @property
    def more(self) -> int:
        """The pointer to our part of the workspace."""
        return self.device + aligned(self.nbytes)


def aligned(nbytes: int) -> int:
    """A multiple of 256 bytes, which all that is on a device begins at."""
    return -(-nbytes // 256) * 256
