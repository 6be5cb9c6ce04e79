"""Metrics of a program, as Prometheus reads them: ops, latencies, memory, and a fault."""

import urllib.request
import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, DeviceUnavailable, open_device
from atomr_accel.telemetry import Metrics, open_nvml, serve_prometheus
from atomr_accel.testing import poison


def scrape(port: int) -> dict[str, float]:
    """Return the values that Prometheus would read, by series."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    series = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in series}


async def main() -> None:
    """Multiply, fail, multiply again, and check the metrics."""
    metrics = Metrics()
    async with open_device(0) as device:
        with metrics.observe(device, name="example"):
            async with serve_prometheus(metrics) as port:
                weights = await device.put(np.eye(256, dtype=np.float32), sealed=True)

                async def multiply() -> None:
                    for _ in range(25):
                        await device.blas.gemm(weights, weights)

                for _ in range(2):
                    async with trio.open_nursery() as nursery:
                        for _ in range(8):
                            nursery.start_soon(multiply)
                    await poison(device)  # what a kernel with a bad pointer does
                await device.put(np.zeros(1))  # waits for the rebuild
                seen = await trio.to_thread.run_sync(scrape, port)

        where = 'device="/device-0"'
        gemms = seen[
            f'atomr_accel_ops_total{{{where},library="blas",outcome="done",system="example"}}'
        ]
        assert gemms == 400, gemms
        rebuilds = seen[f'atomr_accel_recovery_seconds_count{{{where},system="example"}}']
        seconds = seen[f'atomr_accel_recovery_seconds_sum{{{where},system="example"}}']
        assert rebuilds == 2, rebuilds
        print(f"{gemms:.0f} products on {device.name}, {len(seen)} series")
        print(f"{rebuilds:.0f} rebuilds in {seconds / rebuilds:.3f} s each")

        try:
            async with open_nvml(device.system) as nvml:
                for gpu in await nvml.read():
                    print(f"{gpu.name}: {gpu.power} W, {gpu.temperature} C, {gpu.throttled}")
        except DeviceUnavailable as error:
            print(f"no NVML: {error}")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
