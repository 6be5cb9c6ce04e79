"""Look at a program while it runs: devices that fault now and then, and actors that ask them.

``python examples/dashboard.py`` prints the address of a page and serves it until Ctrl-C;
``--seconds 3`` ends by itself, and so does a run that has no terminal.
"""

import argparse
import http.client
import json
import random
import sys
import warnings
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import trio

from atomr_accel import ContextPoisoned, Device, GpuRefStale, open_system
from atomr_accel.actors import Actor, Message, handler
from atomr_accel.dashboard import Dashboard, open_dashboard
from atomr_accel.testing import poison


class Multiply(Message[float]):
    """Multiply something on the device."""


class Worker(Actor):
    """Multiplies, and asks again after a fault."""

    def __init__(self, device: Device) -> None:
        self.device = device

    async def started(self) -> None:
        """Put the weights where faults do not reach them."""
        weights = np.random.default_rng(0).standard_normal((128, 128), dtype=np.float32)
        self.weights = await self.device.put(weights, sealed=True)

    @handler
    async def multiply(self, _message: Multiply) -> float:
        """The largest element of a product."""

        async def once() -> float:
            x = await self.device.put(np.ones((64, 128), dtype=np.float32))
            product = await self.device.blas.gemm(x, self.weights)
            return float((await self.device.get(product)).max())

        return await self.device.retry(once, attempts=10)


def fetch(page: Dashboard) -> Any:
    """Return the state that the page shows, for a program."""
    connection = http.client.HTTPConnection(urlsplit(page.address).netloc)
    with closing(connection):
        connection.request("GET", "/state", headers={"Authorization": f"Bearer {page.token}"})
        return json.load(connection.getresponse())


async def main(seconds: float) -> None:
    """Keep two devices busy, and have one of them fault every few seconds."""
    async with open_system("example") as system:
        devices = [
            await system.spawn_device(0, name=f"device-{at}", max_restarts=10**6) for at in (0, 1)
        ]
        workers = [
            await system.spawn(Worker, devices[at % 2], name=f"worker-{at}") for at in range(8)
        ]
        async with open_dashboard(system) as page, trio.open_nursery() as nursery:
            print(f"Look at {page.url}", flush=True)
            faulted = trio.Event()

            async def ask() -> None:
                while True:
                    await random.choice(workers).ask(Multiply())
                    await trio.sleep(random.expovariate(20))

            async def fault() -> None:
                while True:
                    await trio.sleep(min(5, seconds / 3))
                    with suppress(ContextPoisoned, GpuRefStale):  # it may be down already
                        await poison(random.choice(devices))
                    faulted.set()

            for _ in range(6):
                nursery.start_soon(ask)
            nursery.start_soon(fault)
            await trio.sleep(seconds)
            await faulted.wait()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                state = await trio.to_thread.run_sync(fetch, page)
        faults = [event for event in state["events"].values() if event["kind"] == "fault"]
        assert faults, "a device has faulted, and the page has not told"
        print(f"It showed {len(state['actors'])} actors and {len(faults)} faults.")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    by_default = float("inf") if sys.stdout.isatty() else 2.0
    parser.add_argument("--seconds", type=float, default=by_default)
    try:
        trio.run(main, parser.parse_args().seconds)
    except KeyboardInterrupt:
        print("Closed.")
