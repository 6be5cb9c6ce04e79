"""A card's place in the machine and the cores near it, from Linux's ``/sys``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..wire import PcieLink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..wire import Affinity

_SYSTEM: Final = Path("/sys")


def numa_node(pci_address: str, system: Path = _SYSTEM) -> int | None:
    """Return the NUMA node that a card is near to, or None if the system reports none.

    Args:
        pci_address: such as ``"0000:17:00.0"``.
        system: the path where the kernel's tree is mounted.
    """
    text = _read(system / "bus/pci/devices" / pci_address / "numa_node")
    # -1 is the kernel's word for "I was not told".
    return int(text) if text.isdecimal() else None


def pcie_link(pci_address: str, system: Path = _SYSTEM) -> PcieLink | None:
    """Return the fastest link that the card and its slot support; None if unknown."""
    card = system / "bus/pci/devices" / pci_address
    # Idle cards let their links go slow, so the present speed says little: "32.0 GT/s PCIe".
    speed = _read(card / "max_link_speed").partition(" ")[0]
    lanes = _read(card / "max_link_width")
    try:
        return PcieLink(float(speed), int(lanes))
    except ValueError:
        return None


def cores_near(node: int | None, system: Path = _SYSTEM) -> set[int]:
    """Return the cores of a node; the set is empty if the node is unknown."""
    if node is None:
        return set()
    return _cores(_read(system / f"devices/system/node/node{node}/cpulist"))


def bind(cores: Affinity, node: int | None, system: Path = _SYSTEM) -> None:
    """Restrict all threads of this process, and threads they start, to some cores.

    Cores that the process was not allowed to use before are left out, because the program may have
    been given a part of the machine. If no core remains, nothing changes. ``"near"`` means the
    cores of ``node``, if that is known.
    """
    if cores is None or not hasattr(os, "sched_setaffinity"):
        return
    wanted = cores_near(node, system) if cores == "near" else set(cores)
    wanted &= os.sched_getaffinity(0)
    if not wanted:
        return
    for thread in _threads():
        try:
            os.sched_setaffinity(thread, wanted)
        except OSError:  # it has ended, or a container forbids it: nothing depends on this
            continue


def _threads() -> Iterable[int]:
    """This process's threads: vendors' libraries have started some before us."""
    try:
        return [int(task.name) for task in Path("/proc/self/task").iterdir()]
    except OSError:
        return [0]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _cores(text: str) -> set[int]:
    """The kernel's list of cores, such as ``0-27,56-83``."""
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores
