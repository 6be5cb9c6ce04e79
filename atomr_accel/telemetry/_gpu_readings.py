"""Values that NVML reports about GPUs. Values that a card does not support are None."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
    """Memory of a whole GPU, in bytes, whoever uses it.

    Attributes:
        total: all there is.
        used: allocated.
        free: not allocated.
        reserved: kept by the driver; None where it tells no more than ``used``, which it is
            part of then.
    """

    total: int
    used: int
    free: int
    reserved: int | None


@dataclass(frozen=True, slots=True)
class GpuClocks:
    """Present clocks, in hertz; None where the card does not tell.

    Attributes:
        graphics: of the graphics domain.
        sm: of the multiprocessors.
        memory: of device memory.
        video: of encoders and decoders.
    """

    graphics: int | None
    sm: int | None
    memory: int | None
    video: int | None


@dataclass(frozen=True, slots=True)
class GpuEcc:
    """Errors of memory that ECC has seen, since the driver was loaded and in the card's life.

    Attributes:
        corrected: since the driver was loaded.
        uncorrected: likewise.
        corrected_ever: in the card's life.
        uncorrected_ever: likewise.
        remapping_pending: whether rows wait for a reset of the GPU to be remapped; None where the
            card remaps none.
        remapping_failed: whether a row could not be remapped; None likewise.
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
        generation: of the link, at present.
        width: lanes in use at present.
        sent: bytes a second from the GPU, over the last 20 ms.
        received: bytes a second to the GPU, likewise.
        replays: packets that had to be sent again, ever.
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
        received: bytes of data to it, likewise.
    """

    link: int
    sent: int | None
    received: int | None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has a context on the GPU.

    Attributes:
        pid: its id, as the driver knows it: in a container another than the process's own.
        used: bytes of device memory; None where the driver does not tell.
        gpu_instance: the MIG instance it is in; None without MIG.
    """

    pid: int
    used: int | None
    gpu_instance: int | None


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A part of a GPU that MIG has made a device.

    Attributes:
        uuid: such as ``"MIG-..."``.
        gpu_instance: its number; None where the driver does not tell.
        compute_instance: likewise.
        memory: of the part.
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
    """A GPU at one moment, as NVML sees it. What the card does not support is None.

    Attributes:
        at: when it was read, on the clock of ``time.monotonic``.
        index: NVML's index, in the order of the PCI bus, which is not always CUDA's.
        uuid: such as ``"GPU-..."``.
        name: the vendor's name of it.
        utilization: how busy it is.
        memory: how much of it is in use.
        power: watts.
        power_limit: watts it may take.
        energy: joules since the driver was loaded.
        temperature: of the GPU, in degrees Celsius.
        memory_temperature: likewise, of its memory.
        clocks: its clocks.
        throttled: why clocks are not as high as they could be, by NVML's names, such as
            ``"SwPowerCap"`` or ``"GpuIdle"``; empty where nothing holds them down.
        ecc: errors of memory.
        pcie: its link to the host.
        nvlinks: those that are up.
        processes: those with a context on it.
        mig: how it is divided.
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
    """

    device: str
    uuid: str
    generation: int
    status_name: str
    op: str
    pid: int | None
    at: float


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver has reported of a GPU.

    Attributes:
        number: the vendor's.
        uuid: of the GPU.
        at: when it came, on the clock of ``time.monotonic``.
        pid: the process that caused it; None where the driver does not tell.
        gpu_instance: the MIG instance concerned; None without MIG.
        fault: the fault of a device of this program that it explains, if it does.
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
