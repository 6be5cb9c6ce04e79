"""Metrics through OpenTelemetry: what a reader sees, and what a collector gets."""

from __future__ import annotations

import functools
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import LibraryMissing
from atomr_accel.patterns import CircuitBreaker
from atomr_accel.telemetry import METRICS, Metrics, export_to_opentelemetry

from ..harness import cpu_only, opened

otel = pytest.importorskip("opentelemetry.sdk.metrics")
export = pytest.importorskip("opentelemetry.sdk.metrics.export")


def points(data: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Values by name and attributes."""
    return {
        (metric.name, frozenset(point.attributes.items())): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


@contextmanager
def provided(reader: Any) -> Iterator[Any]:
    """A provider of meters that ends with the block."""
    provider = otel.MeterProvider([reader])
    try:
        yield provider
    finally:
        provider.shutdown()


@cpu_only
async def test_a_reader_sees_what_was_counted() -> None:
    metrics = Metrics()
    reader = export.InMemoryMetricReader()
    with provided(reader) as provider:
        export_to_opentelemetry(metrics, provider)
        async with opened(isolation="thread") as device:
            x = await device.put(np.eye(2))
            with metrics.observe(device):
                for _ in range(5):
                    await device.blas.gemm(x, x)
                data = await trio.to_thread.run_sync(reader.get_metrics_data)
    found = points(data)
    labels = {("system", "device"), ("device", "/device-0"), ("library", "blas")}
    assert found["atomr_accel.ops", frozenset({*labels, ("outcome", "done")})] == 5
    assert found["atomr_accel.op_seconds.count", frozenset(labels)] == 5
    buckets = [
        found["atomr_accel.op_seconds.bucket", frozenset({*labels, ("le", bound)})]
        for bound in (*map(repr, METRICS["op_seconds"].bounds), "+Inf")
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 5
    units = {
        metric.name: metric.unit
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert units["atomr_accel.op_seconds.sum"] == "s"
    assert units["atomr_accel.memory_bytes"] == "By"
    assert units["atomr_accel.ops"] == "1"


async def test_a_reader_in_trios_own_thread_waits_for_nothing() -> None:
    metrics = Metrics()
    reader = export.InMemoryMetricReader()
    with provided(reader) as provider, metrics.observe(CircuitBreaker()):
        export_to_opentelemetry(metrics, provider)
        assert points(reader.get_metrics_data())
    # Shut down after its block, and in trio's thread: nothing is left to be waited for.


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(LibraryMissing, match="opentelemetry-api is not installed"):
        export_to_opentelemetry(Metrics())


def push_to(endpoint: str) -> Any:
    """A reader that pushes on request."""
    otlp = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    exporter = otlp.OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics")
    return export.PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))


async def test_exporter_sends_spans_and_metrics() -> None:
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    requests: list[Any] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append(service.ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    metrics = Metrics()
    try:
        reader = push_to(f"http://127.0.0.1:{server.server_port}")
        with provided(reader) as provider, metrics.observe(CircuitBreaker(), name='a "b"\n'):
            export_to_opentelemetry(metrics, provider)
            await trio.to_thread.run_sync(provider.force_flush)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    sent = {
        metric.name: metric
        for resource in requests[0].resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert {"atomr_accel.pattern_events", "atomr_accel.pattern_state"} <= sent.keys()
    point = sent["atomr_accel.pattern_state"].gauge.data_points[0]
    assert {one.key: one.value.string_value for one in point.attributes}["name"] == 'a "b"\n'
    assert sent["atomr_accel.pattern_events"].sum.is_monotonic


COLLECTOR = next(filter(shutil.which, ("otelcol", "otelcol-contrib")), None)


@cpu_only
@pytest.mark.slow
@pytest.mark.skipif(COLLECTOR is None, reason="the OpenTelemetry collector is not installed")
async def test_a_collector_takes_it(tmp_path: Path) -> None:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{sock.getsockname()[1]}"
    written = tmp_path / "metrics.json"
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": endpoint}}}},
        "exporters": {"file": {"path": str(written), "flush_interval": "100ms"}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"metrics": {"receivers": ["otlp"], "exporters": ["file"]}},
        },
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    metrics = Metrics()
    command = [str(COLLECTOR), "--config", str(tmp_path / "config.yaml")]
    run = functools.partial(trio.run_process, command, stderr=subprocess.DEVNULL, check=False)
    async with opened(isolation="thread") as device, trio.open_nursery() as nursery:
        process = await nursery.start(run)
        x = await device.put(np.eye(2))
        with provided(push_to(f"http://{endpoint}")) as provider, metrics.observe(device):
            export_to_opentelemetry(metrics, provider)
            await device.blas.gemm(x, x)
            await trio.to_thread.run_sync(provider.force_flush)  # again until it is up
        while not written.exists() or "atomr_accel.ops" not in written.read_text():  # noqa: ASYNC110
            await trio.sleep(0.05)
        process.terminate()
    first = json.loads(written.read_text().splitlines()[0])
    names = {
        metric["name"]
        for resource in first["resourceMetrics"]
        for scope in resource["scopeMetrics"]
        for metric in scope["metrics"]
    }
    assert {"atomr_accel.ops", "atomr_accel.op_seconds.bucket"} <= names
