"""Metrics and what GPUs say of themselves, for whoever watches a program from outside."""

from ._gpu_readings import (
    DeviceFault,
    GpuClocks,
    GpuEcc,
    GpuMemory,
    GpuMig,
    GpuNvLink,
    GpuPcie,
    GpuProcess,
    GpuReading,
    GpuUtilization,
    MigInstance,
    Xid,
)
from ._nvml import NvmlMonitor, ReadGpus, open_nvml

__all__ = [
    "DeviceFault",
    "GpuClocks",
    "GpuEcc",
    "GpuMemory",
    "GpuMig",
    "GpuNvLink",
    "GpuPcie",
    "GpuProcess",
    "GpuReading",
    "GpuUtilization",
    "MigInstance",
    "NvmlMonitor",
    "ReadGpus",
    "Xid",
    "open_nvml",
]
