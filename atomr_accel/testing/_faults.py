"""Sticky faults: real kernels on CUDA, the same consequences on the CPU."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Literal

from .._errors import ContextPoisoned, Unsupported
from ..wire import StickyFault

if TYPE_CHECKING:
    from ..device import Device

FaultName = Literal["illegal_address", "trap", "misaligned_address", "assert"]
"""A kind of sticky fault."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of sticky fault.

    Attributes:
        status: the driver's status code.
        status_name: its name.
    """

    status: int
    status_name: str


FAULTS: Final[dict[FaultName, FaultKind]] = {
    "illegal_address": FaultKind(700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    "trap": FaultKind(719, "CUDA_ERROR_LAUNCH_FAILED"),
    "misaligned_address": FaultKind(716, "CUDA_ERROR_MISALIGNED_ADDRESS"),
    "assert": FaultKind(710, "CUDA_ERROR_ASSERT"),
}
"""The kinds of sticky faults, and what the driver says of each; a kernel's file has its name."""


def source_of(name: str) -> str:
    """The CUDA C++ of a fault, or of ``hang``."""
    return (files(__package__) / "kernels" / f"{name}.cu").read_text(encoding="utf-8")


def simulate(kind: FaultName, where: object) -> None:
    """Stand in for the faulting kernel on the CPU backend."""
    del where
    fault = FAULTS[kind]
    raise StickyFault(
        f"a simulated fault: {fault.status_name} ({fault.status})",
        status=fault.status,
        status_name=fault.status_name,
    )


async def poison(device: Device, fault: FaultName = "illegal_address") -> ContextPoisoned:
    """Take the device's context down with a sticky fault.

    Everything in flight fails with it. When this returns the generation has moved, and
    the device is on its way back (or lost, under ``isolation="thread"``).

    Args:
        device: an open device.
        fault: one of ``FAULTS``.

    Returns:
        The fault, as the op that caused it saw it.

    Raises:
        ValueError: the name is not a known fault.
    """
    if fault not in FAULTS:
        raise ValueError(f"fault must be one of {', '.join(FAULTS)}, not {fault!r}")
    kind = FAULTS[fault]
    kernel = await device.nvrtc.compile(source_of(fault), "fault", cpu=partial(simulate, fault))
    try:
        await kernel.launch(1, 1, 0)
    except ContextPoisoned as error:
        return error
    raise AssertionError(f"the kernel that should cause {kind.status_name} did no harm")


def sleep_for_ever(go: object) -> None:
    """Stand in for the spinning kernel on the CPU backend."""
    while go:
        time.sleep(3600)  # in a host process, which nothing but a kill ends


async def hang(device: Device) -> None:
    """Start an op that never ends, and wait for it.

    It ends with its host: by the device's ``op_deadline`` (``KernelHung``), by
    ``kill_host``, or when the device is closed. A caller that is cancelled leaves at once.

    Raises:
        Unsupported: under ``isolation="thread"``, where nothing could ever end it.
    """
    if device.isolation != "process":
        raise Unsupported("an op that never ends needs a host that can be killed")
    kernel = await device.nvrtc.compile(source_of("hang"), "hang", cpu=sleep_for_ever)
    await kernel.launch(1, 1, 1)


async def standby_ready(device: Device, least: int | None = None) -> None:
    """Wait until the device's standby hosts are ready.

    Args:
        device: an open device, with a standby.
        least: how many of them; by default, as many as it keeps.

    Raises:
        Unsupported: it keeps none.
    """
    standby = device.core.standby
    if standby is None:
        raise Unsupported("the device keeps no standby: open it with standby=Standby(hot=1)")
    await standby.wait_ready(least)


async def kill_host(device: Device) -> None:
    """Kill the device's host process (SIGKILL) and wait until that has been noticed.

    Raises:
        Unsupported: the device has ``isolation="thread"``, and so no process to kill.
    """
    async with device.watch_generation() as changes:
        # Between asking for the process and killing it nothing is awaited, so it cannot
        # have been reaped, and its number cannot be another process's by now.
        pid = (await device.core.ready()).host.pid
        if pid is None:
            raise Unsupported('under isolation="thread" a device has no host process')
        os.kill(pid, signal.SIGKILL)
        async for _ in changes:
            return
