"""Telemetry of a program: timelines, metrics, spans, logs, and readings of GPUs."""

from ._activity import ActivityStatistics, ActivityTrace, activity
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
from ._grafana import grafana_dashboard
from ._logs import JsonFormatter
from ._metrics import HasStatistics, Metrics
from ._opentelemetry import export_to_opentelemetry
from ._prometheus import PrometheusCollector, serve_prometheus
from ._ranges import mark_ranges
from ._spans import export_spans
from ._trace import trace
from .nvml import NvmlMonitor, ReadGpus, open_nvml

__all__ = [
    "METRICS",
    "ActivityStatistics",
    "ActivityTrace",
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
    "JsonFormatter",
    "Metric",
    "Metrics",
    "MigInstance",
    "NvmlMonitor",
    "Point",
    "PrometheusCollector",
    "ReadGpus",
    "Xid",
    "activity",
    "export_spans",
    "export_to_opentelemetry",
    "grafana_dashboard",
    "mark_ranges",
    "open_nvml",
    "serve_prometheus",
    "trace",
]
