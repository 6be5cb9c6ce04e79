"""Facts that ``doctor`` examines: limits of this process, and files of the system."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._vendor import VendorAnswer

UNLIMITED: Final = resource.RLIM_INFINITY


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, or a folder that stands for one.

    Attributes:
        told: the reports of drivers and libraries.
        root: the parent of ``proc``, ``sys``, ``dev`` and ``tmp``.
        environ: the environment.
        limits: soft and hard limits, by the names of ``resource``, instead of this process's.
    """

    told: VendorAnswer
    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def limit(self, name: str) -> tuple[int, int]:
        """Return the soft and the hard limit of a resource, such as ``"RLIMIT_NOFILE"``."""
        if name in self.limits:
            return self.limits[name]
        return resource.getrlimit(getattr(resource, name))

    def text(self, path: str) -> str | None:
        """Return the stripped content of a file; None if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Return the number in a file; None for other content, such as ``max``."""
        text = self.text(path)
        return int(text) if text is not None and text.lstrip("-").isdigit() else None

    def exists(self, path: str) -> bool:
        """Return True if this file exists."""
        return (self.root / path).exists()

    def device_files(self) -> list[Path]:
        """Return the files of the GPU's driver that a program opens."""
        return sorted((self.root / "dev").glob("nvidia*[0-9l]"))

    def space(self, path: str) -> tuple[int, int] | None:
        """Return the size and the free bytes of a file system; None if it is missing."""
        try:
            about = os.statvfs(self.root / path)
        except OSError:
            return None
        return about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize

    def cgroup(self, name: str) -> list[tuple[str, int]]:
        """Limits of a kind on this process's control group and those above it (version 2).

        Args:
            name: the file, such as ``"memory.max"``.

        Returns:
            The groups that have one, each with its limit.
        """
        lines = (self.text("proc/self/cgroup") or "").splitlines()
        own = next((line[3:] for line in lines if line.startswith("0::")), "/")
        group = Path(own.lstrip("/"))
        # In a container the path may be one of outside; the mount itself is then its group.
        groups = ((str(each), self.number(f"sys/fs/cgroup/{each}/{name}")) for each in _up(group))
        return [(each, value) for each, value in groups if value is not None]

    def status(self, name: str) -> str | None:
        """Return a field of this process's status, such as ``"Seccomp"``."""
        for line in (self.text("proc/self/status") or "").splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return value.strip()
        return None


def _up(group: Path) -> tuple[Path, ...]:
    """Return a group and all groups above it."""
    return group, *group.parents
