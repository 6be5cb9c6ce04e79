"""Values that NVML reports about GPUs. Values that a card does not support are None."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .. import FaultReport

XID_NAMES: Final = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer stream",
    38: "driver firmware error",
    43: "GPU stopped processing",
    45: "preemptive cleanup, due to previous errors",
    46: "GPU stopped processing",
    48: "double bit ECC error",
    61: "internal micro-controller breakpoint or warning",
    62: "internal micro-controller halt",
    63: "ECC page retirement or row remapping",
    64: "ECC page retirement or row remapper failure",
    68: "video processor exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high rate of single bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    119: "GSP RPC timeout",
    120: "GSP error",
}
"""Meanings of the driver's Xid numbers, from the vendor's page "Xid Errors"."""


@dataclass(frozen=True, slots=True)
class GpuUtilization:
    """Shares of the last sample period, from 0 to 1.

    Attributes:
        gpu: of the time in which a kernel was executed.
        memory: of the time in which device memory was read or written.
    """

    gpu: float
    memory: float


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory of a whole GPU, in bytes, over all processes.

    Attributes:
        total: the size of the memory.
        used: allocated memory.
        free: memory that is not allocated.
        reserved: memory kept by the driver; None if the driver includes it in ``used``.
    """

    total: int
    used: int
    free: int
    reserved: int | None


@dataclass(frozen=True, slots=True)
class GpuClocks:
    """Present clocks, in hertz; None if the card does not report them.

    Attributes:
        graphics: the clock of the graphics domain.
        sm: the clock of the multiprocessors.
        memory: the clock of device memory.
        video: the clock of encoders and decoders.
    """

    graphics: int | None
    sm: int | None
    memory: int | None
    video: int | None


@dataclass(frozen=True, slots=True)
class GpuEcc:
    """Memory errors found by ECC, since the driver was loaded and in the card's life.

    Attributes:
        corrected: corrected errors since the driver was loaded.
        uncorrected: uncorrected errors since the driver was loaded.
        corrected_ever: corrected errors in the card's life.
        uncorrected_ever: uncorrected errors in the card's life.
        remapping_pending: whether rows wait for a reset of the GPU to be remapped; None if the card
            does not remap rows.
        remapping_failed: whether a row could not be remapped; None if the card does not remap rows.
    """

    corrected: int | None
    uncorrected: int | None
    corrected_ever: int | None
    uncorrected_ever: int | None
    remapping_pending: bool | None
    remapping_failed: bool | None


@dataclass(frozen=True, slots=True)
class GpuPcie:
    """The card's link to its host.

    Attributes:
        generation: the present generation of the link.
        width: the present number of lanes.
        sent: bytes per second from the GPU, over the last 20 ms.
        received: bytes per second to the GPU, over the last 20 ms.
        replays: packets that had to be sent again, in all.
    """

    generation: int | None
    width: int | None
    sent: int | None
    received: int | None
    replays: int | None


@dataclass(frozen=True, slots=True)
class GpuNvLink:
    """An NVLink that is up.

    Attributes:
        link: its number.
        sent: bytes of data from this GPU since the driver was loaded.
        received: bytes of data to this GPU since the driver was loaded.
    """

    link: int
    sent: int | None
    received: int | None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has a context on the GPU.

    Attributes:
        pid: its id in the driver's view, which differs from its own in a container.
        used: bytes of device memory; None if the driver does not report them.
        gpu_instance: its MIG instance; None without MIG.
    """

    pid: int
    used: int | None
    gpu_instance: int | None


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A part of a GPU that MIG has made a device.

    Attributes:
        uuid: such as ``"MIG-..."``.
        gpu_instance: its number; None if the driver does not report it.
        compute_instance: its compute instance; None if the driver does not report it.
        memory: the memory of the part.
    """

    uuid: str
    gpu_instance: int | None
    compute_instance: int | None
    memory: GpuMemory | None


@dataclass(frozen=True, slots=True)
class GpuMig:
    """Division of a GPU into MIG instances.

    Attributes:
        enabled: whether it is divided now.
        pending: whether it is divided after its next reset.
        instances: the present instances.
    """

    enabled: bool
    pending: bool
    instances: tuple[MigInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """A GPU at one moment, as NVML sees it. Values that the card does not support are None.

    Attributes:
        at: the time of the reading, on the clock of ``time.monotonic``.
        index: NVML's index, in the order of the PCI bus, which is not always CUDA's.
        uuid: such as ``"GPU-..."``.
        name: the vendor's name.
        utilization: the share of time in which it was busy.
        memory: its memory.
        power: the present power in watts.
        power_limit: the power limit in watts.
        energy: joules since the driver was loaded.
        temperature: the temperature of the GPU, in degrees Celsius.
        memory_temperature: the temperature of its memory, in degrees Celsius.
        clocks: its clocks.
        throttled: the reasons why clocks are lowered, by NVML's names, such as ``"SwPowerCap"`` or
            ``"GpuIdle"``; empty if they are not.
        ecc: errors of memory.
        pcie: its link to the host.
        nvlinks: the links that are up.
        processes: the processes with a context on it.
        mig: its division into instances.
    """

    at: float
    index: int
    uuid: str
    name: str
    utilization: GpuUtilization | None
    memory: GpuMemory | None
    power: float | None
    power_limit: float | None
    energy: float | None
    temperature: float | None
    memory_temperature: float | None
    clocks: GpuClocks | None
    throttled: tuple[str, ...] | None
    ecc: GpuEcc | None
    pcie: GpuPcie | None
    nvlinks: tuple[GpuNvLink, ...] | None
    processes: tuple[GpuProcess, ...] | None
    mig: GpuMig | None


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """A fault of a device of this program, which an Xid may explain.

    Attributes:
        device: its name, such as ``"cuda:0"``.
        uuid: the UUID of its GPU, in NVML's form.
        generation: the generation that ended.
        status_name: such as ``"CUDA_ERROR_ILLEGAL_ADDRESS"``.
        op: the suspected op.
        pid: the host's process id; None with ``isolation="thread"``, or if it is unknown.
        at: the time at which it was seen, on the clock of ``time.monotonic``.
        report: its report, which gets the Xid as well.
    """

    device: str
    uuid: str
    generation: int
    status_name: str
    op: str
    pid: int | None
    at: float
    report: FaultReport | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Xid:
    """An error of a GPU that the driver has reported.

    Attributes:
        number: the vendor's number.
        uuid: the UUID of the GPU.
        at: the time of its arrival, on the clock of ``time.monotonic``.
        pid: the process that caused it; None if the driver does not report it.
        gpu_instance: the MIG instance concerned; None without MIG.
        fault: the fault of a device of this program that it explains, if any.
    """

    number: int
    uuid: str
    at: float
    pid: int | None = None
    gpu_instance: int | None = None
    fault: DeviceFault | None = None

    @property
    def meaning(self) -> str:
        """Meaning of the number, in some words."""
        return XID_NAMES.get(self.number, "unknown")
