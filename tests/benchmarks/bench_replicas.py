"""A pool of two devices, one of which is killed, again and again.

Clients ask the pool for the products of matrices with sealed weights, each again as soon as it has
its answer, and every answer is checked. Then the host of the first device is killed, as the system
would for lack of memory, and again whenever it has been back for a while. It prints the throughput
of one device alone, of both, and of both while one is being killed.

    python tests/benchmarks/bench_replicas.py              # needs two GPUs, or none
    python tests/benchmarks/bench_replicas.py --seconds 10 --clients 64

With one GPU both replicas are on it. This shows losses, but not the gain of a second device.
``--standby none``, ``warm`` or ``hot``.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two hosts' threads would fight for the cores

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, DeviceUnavailable, Standby, open_device
from atomr_accel.backends import cuda
from atomr_accel.patterns import open_replica_pool
from atomr_accel.testing import kill_host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from atomr_accel import Device

    Array = np.ndarray[Any, np.dtype[np.float32]]

STANDBYS: Final = {"none": None, "warm": Standby(warm=1), "hot": Standby(hot=1)}

ROWS, SIDE, INPUTS = (512, 4096, 8) if cuda.why_absent() is None else (32, 256, 8)


class Load:
    """The clients' requests, and the counts of their outcomes."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.weights: Array = rng.standard_normal((SIDE, SIDE), np.float32)
        self.inputs: Array = rng.standard_normal((INPUTS, ROWS, SIDE), np.float32)
        # A column of each product, to look at: (INPUTS, ROWS).
        self.expected = self.inputs.astype(np.float64) @ self.weights[:, 7]
        self.devices: list[Device] = []
        self.over = False
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self.right = self.wrong = self.lost = 0
        self.longest = 0.0
        self.begun = time.perf_counter()

    @asynccontextmanager
    async def replica(
        self, index: int, standby: Standby | None
    ) -> AsyncIterator[Callable[[int], Awaitable[Array]]]:
        """A device with the weights on it."""
        async with open_device(index, standby=standby, max_restarts=10**6) as device:
            self.devices.append(device)
            weights = await device.put(self.weights, sealed=True)
            inputs = [await device.put(each, sealed=True) for each in self.inputs]

            async def multiply(number: int) -> Array:
                product = await device.blas.gemm(inputs[number], weights)
                return await device.get(product[:, 7])

            yield multiply

    async def client(self, pool: Callable[[int], Awaitable[Array]], number: int) -> None:
        """Ask without pause."""
        while not self.over:
            number = (number + 1) % INPUTS
            begun = time.perf_counter()
            try:
                column = await pool(number)
            except Exception as error:  # noqa: BLE001 (counted and told)
                self.lost += 1
                print(f"    lost: {error!r}")
                continue
            right = np.allclose(column, self.expected[number], rtol=1e-2, atol=1.0)
            self.right, self.wrong = self.right + right, self.wrong + (not right)
            self.longest = max(self.longest, time.perf_counter() - begun)

    def told(self, name: str) -> float:
        """Print a line of the table; gives products a second."""
        rate = self.right / (time.perf_counter() - self.begun)
        print(
            f"{name:28} {rate:9.0f} {self.longest * 1e3:9.1f} {self.wrong:6} {self.lost:5}",
            flush=True,
        )
        return rate


async def main(options: argparse.Namespace) -> None:
    """Measure one device, two, and two under fire."""
    load = Load()
    print(f"{'':28} answers/s  worst ms  wrong  lost")
    on = await places()
    rates = []
    for many in (1, 2):
        load.devices.clear()
        makers = [partial(load.replica, index, STANDBYS[options.standby]) for index in on[:many]]
        async with (
            open_replica_pool(makers, max_in_flight=options.clients) as pool,
            trio.open_nursery() as nursery,
        ):
            load.over = False
            for number in range(options.clients):
                nursery.start_soon(load.client, pool, number)
            await trio.sleep(0.5)
            load.begin()
            await trio.sleep(options.seconds)
            rates.append(load.told(f"{many} device{'s' * (many > 1)}"))
            if many == 2:
                load.begin()
                kills = await kill_again_and_again(load.devices[0], options.seconds)
                rates.append(load.told(f"2 devices, {kills} kills of one"))
                seen = pool.statistics()
                print(f"asked again elsewhere: {seen.asked_elsewhere}, failed: {seen.failed}")
            load.over = True
    print(f"two of one                   {rates[1] / rates[0]:9.2f}")
    print(f"killed of undisturbed        {rates[2] / rates[1]:9.2f}")


async def kill_again_and_again(device: Device, seconds: float) -> int:
    """Kill its host half a second after each return; how often."""
    kills = 0
    with trio.move_on_after(seconds):
        while True:
            await kill_host(device)
            kills += 1
            await device.put(np.zeros(1))  # waits until it is back
            await trio.sleep(0.5)
    return kills


async def places() -> list[int]:
    """The devices of two replicas: the same twice, if there is but one."""
    try:
        async with open_device(1, standby=None):
            return [0, 1]
    except DeviceUnavailable:
        return [0, 0]


def parsed() -> argparse.Namespace:
    """Return the parsed options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each line")
    parser.add_argument("--standby", choices=tuple(STANDBYS), default="hot")
    return parser.parse_args()


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main, parsed())
