"""A model behind HTTP: it refuses overload, survives faults, and loses no request at its end.

``python examples/http_server.py 127.0.0.1:8000`` serves until SIGTERM or Ctrl-C. Without an address
it serves itself: clients send more than fits, a kernel faults in the middle of a batch, and SIGTERM
arrives during the rebuild after a second fault.
"""

import json
import os
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable

import numpy as np
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from atomr_accel import CpuFallbackWarning, Device, DeviceLost, open_device
from atomr_accel.patterns import Batcher, BatcherStatistics, Overflow, Refused, open_batcher
from atomr_accel.telemetry import Metrics, PrometheusCollector
from atomr_accel.testing import poison

Row = NDArray[np.float32]

DEADLINE = 20.0
"""Seconds after which a request is answered with 503."""


class Model:
    """One layer, whose weights survive faults."""

    def __init__(self, device: Device) -> None:
        self.device = device

    async def load(self, weights: Row) -> None:
        """Upload the weights once."""
        self.weights = await self.device.put(weights, sealed=True)

    async def infer(self, rows: list[Row]) -> Row:
        """Answer many requests with one call. The batcher calls it again after a fault."""
        x = await self.device.put(np.stack(rows))
        await self.uploaded()
        y = await self.device.blas.gemm(x, self.weights)
        return await self.device.get(await self.device.dnn.relu(y))

    async def uploaded(self) -> None:
        """Do nothing: subclasses cause faults here, in the middle of a batch."""


def application(device: Device, model: Batcher[Row, Row], metrics: Metrics) -> Starlette:
    """Return the routes: the model, two probes, and metrics."""
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(metrics))

    async def predict(request: Request) -> JSONResponse:
        try:
            row = np.asarray(await request.json(), np.float32)
        except (TypeError, ValueError):  # no JSON, or no numbers
            return JSONResponse({"error": "the body must be a list of numbers in JSON"}, 400)
        if row.shape != (64,):
            return JSONResponse({"error": f"64 numbers, not {row.shape}"}, 422)
        try:
            with trio.fail_after(DEADLINE):
                return JSONResponse((await model(row)).tolist())
        except (Refused, DeviceLost, trio.TooSlowError) as error:
            return JSONResponse({"error": str(error)}, 503, {"retry-after": "1"})

    async def live(_: Request) -> JSONResponse:
        return JSONResponse({"generation": device.generation}, 503 if device.closed else 200)

    async def ready(_: Request) -> JSONResponse:
        health = await device.health(within=2)
        if health.ready:
            return JSONResponse({"degraded": health.degraded, "reasons": health.reasons})
        return JSONResponse({"reasons": health.reasons}, 503, {"retry-after": "1"})

    async def scrape(_: Request) -> PlainTextResponse:
        text = await trio.to_thread.run_sync(generate_latest, registry)
        return PlainTextResponse(text.decode())

    return Starlette(
        routes=[
            Route("/predict", predict, methods=["POST"]),
            Route("/live", live),
            Route("/ready", ready),
            Route("/metrics", scrape),
        ]
    )


async def stop_at_signals(stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
    """Set the event when an orchestrator, or Ctrl-C, wants the program to end."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            stop.set()
            return


async def serving(
    bind: str,
    weights: Row,
    model_class: Callable[[Device], Model] = Model,
    *,
    capacity: int = 1000,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> BatcherStatistics:
    """Serve until a signal, and return what the batcher has counted."""
    config = Config()
    config.bind = [bind]
    config.graceful_timeout = DEADLINE + 5  # Hypercorn's 3 s may be shorter than a rebuild
    metrics = Metrics()
    stop = trio.Event()
    async with open_device(0) as device, trio.open_nursery() as nursery:
        await nursery.start(stop_at_signals, stop)
        model = model_class(device)
        await model.load(weights)
        async with open_batcher(
            model.infer, max_size=32, capacity=capacity, overflow=Overflow.REJECT
        ) as batcher:
            with metrics.observe(device), metrics.observe(batcher, name="predict"):
                app = application(device, batcher, metrics)
                # The app is ASGI; its annotations are Starlette's, not Hypercorn's.
                await serve(app, config, shutdown_trigger=stop.wait, task_status=task_status)  # type: ignore[arg-type]
        return batcher.statistics()


# --- a client, and a bad day ---------------------------------------------------------------------


async def ask(url: str, path: str, body: object = None) -> tuple[int, bytes]:
    """Return status and body of an answer."""
    host, port = url.removeprefix("http://").split(":")
    sent = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: {host}\r\n"
    head += f"connection: close\r\ncontent-length: {len(sent)}\r\n\r\n"
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(head.encode() + sent)
        answer = b"".join([part async for part in stream])
    status, _, text = answer.partition(b"\r\n\r\n")
    return int(status.split()[1]), text


class UnluckyModel(Model):
    """Model with events to be caused in the middle of its next batches."""

    events: list[Callable[[Device], Awaitable[object]]]

    async def uploaded(self) -> None:
        """Cause the next event."""
        if self.events:
            await self.events.pop(0)(self.device)


async def main() -> None:
    """Serve itself: load, a fault, too many requests, and SIGTERM during a rebuild."""
    rng = np.random.default_rng(7)
    weights = rng.standard_normal((64, 8), dtype=np.float32)
    rows = rng.standard_normal((60, 64), dtype=np.float32)
    statuses: Counter[int] = Counter()
    seen: BatcherStatistics

    async def client(url: str, row: Row) -> None:
        status, text = await ask(url, "/predict", row.tolist())
        statuses[status] += 1
        if status == 200:
            expected = np.maximum(row @ weights, 0)
            np.testing.assert_allclose(json.loads(text), expected, rtol=1e-2, atol=1e-2)

    async def terminate(device: Device) -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # as an orchestrator does
        await poison(device)

    async def server(*, task_status: trio.TaskStatus[list[str]]) -> None:
        nonlocal seen
        seen = await serving(
            "127.0.0.1:0", weights, UnluckyModel, capacity=20, task_status=task_status
        )

    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(server)
        UnluckyModel.events = [poison]
        async with trio.open_nursery() as clients:
            for row in rows:
                clients.start_soon(client, url, row)
        assert (await ask(url, "/live"))[0] == (await ask(url, "/ready"))[0] == 200
        _, text = await ask(url, "/metrics")
        UnluckyModel.events = [terminate]
        await client(url, rows[0])

    assert seen.answered == statuses[200] > 20
    assert seen.refused == statuses[503] > 0
    assert (seen.faults, seen.withdrawn, seen.abandoned) == (2, 0, 0)
    assert b"atomr_accel_faults_total{" in text
    print(f"{seen.answered} requests were answered, {seen.refused} refused, {seen.withdrawn} lost")
    print(f"{seen.faults} of {seen.calls} calls ended in faults")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    if len(sys.argv) > 1:
        trio.run(serving, sys.argv[1], np.ones((64, 8), np.float32))
    else:
        trio.run(main)
