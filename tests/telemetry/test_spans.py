"""OpenTelemetry's spans: their kinds, and their parents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import open_system
from atomr_accel.actors import Actor, ActorRef, Backoff, Message, Supervision, handler
from atomr_accel.telemetry import export_spans
from atomr_accel.testing import poison

sdk: Any = pytest.importorskip("opentelemetry.sdk.trace")
exporting: Any = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402

PLACE = "__import__('atomr_accel').traceparent.get()"


class Ask(Message[int]):
    pass


class Fail(Message[None]):
    pass


class Worker(Actor):
    @handler
    async def ask(self, message: Ask) -> int:
        return 1

    @handler
    async def fail(self, message: Fail) -> None:
        raise ValueError("it broke")


class Relay(Actor):
    def __init__(self, worker: ActorRef) -> None:
        self.worker = worker

    @handler
    async def ask(self, message: Ask) -> int:
        return await self.worker.ask(message)


def provider() -> tuple[Any, Any]:
    exporter = exporting.InMemorySpanExporter()
    made = sdk.TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made, exporter


async def test_spans_follow_messages_through_actors_and_into_hosts() -> None:
    made, exporter = provider()
    tracer = made.get_tracer("tests")
    supervision = Supervision(backoff=Backoff(base=0))
    async with open_system("demo", supervision=supervision) as system:
        device = await system.spawn_device(backend="cpu")
        worker = await system.spawn(Worker, name="worker")
        relay = await system.spawn(Relay, worker, name="relay")
        a = await device.put(np.eye(2), sealed=True)
        with export_spans(device, made):
            with tracer.start_as_current_span("request") as request:
                await relay.ask(Ask())
                await device.blas.ref.ask(device.requests.blas.gemm(a, a))
                place = await device.run(eval, PLACE)
            assert await device.run(eval, PLACE) is None
            with pytest.raises(ValueError, match="it broke"):
                await worker.ask(Fail())
            await worker.ask(Ask())
            await poison(device)
            await device.put(np.eye(2))
        await worker.ask(Ask())
    context = request.get_span_context()
    assert place == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    spans = exporter.get_finished_spans()
    by_actor = {span.attributes.get("atomr_accel.actor"): span for span in reversed(spans)}
    relayed = by_actor["/relay"]
    first = next(span for span in spans if span.attributes.get("atomr_accel.actor") == "/worker")
    assert relayed.parent.span_id == context.span_id
    assert first.parent.span_id == relayed.context.span_id
    (gemm,) = [span for span in spans if span.name == "blas.gemm"]
    assert gemm.parent.span_id == context.span_id
    (failed,) = [span for span in spans if span.name == "Fail"]
    assert failed.parent is None
    assert not failed.status.is_ok
    (restart,) = [
        span
        for span in spans
        if span.attributes.get("atomr_accel.actor") == "/worker" and span.name == "restart"
    ]
    assert restart.parent is None
    (rebuild,) = [span for span in spans if span.name == "rebuild"]
    assert rebuild.attributes["atomr_accel.generation"] == 1
    assert rebuild.attributes["atomr_accel.open_seconds"] > 0
    asks = [span for span in spans if span.name == "Ask"]
    assert len(asks) == 3  # not the one after the end
    assert asks[-1].parent is None
    assert all(span.end_time >= span.start_time for span in spans)
