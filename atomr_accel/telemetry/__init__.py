"""Metrics and what GPUs say of themselves, for whoever watches a program from outside."""

from ._catalogue import METRICS, Metric, Point
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
from ._metrics import HasStatistics, Metrics
from ._nvml import NvmlMonitor, ReadGpus, open_nvml
from ._opentelemetry import export_to_opentelemetry
from ._prometheus import PrometheusCollector, serve_prometheus
from ._trace import trace

__all__ = [
    "METRICS",
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
    "HasStatistics",
    "Metric",
    "Metrics",
    "MigInstance",
    "NvmlMonitor",
    "Point",
    "PrometheusCollector",
    "ReadGpus",
    "Xid",
    "export_to_opentelemetry",
    "open_nvml",
    "serve_prometheus",
    "trace",
]
