"""Cost of a dashboard for the program: 1,000 actors and 4 devices, watched and unwatched.

Prints the share of a core that the program takes beyond its share without a dashboard. The viewer
runs in the same process, and is counted. Also prints how long it takes to look at everything,
which is done in slices between turns of trio's loop.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import trio

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from atomr_accel import open_system  # noqa: E402
from atomr_accel.actors import Actor  # noqa: E402
from atomr_accel.dashboard import open_dashboard  # noqa: E402
from atomr_accel.dashboard._feed import Feed  # noqa: E402
from tests.dashboard.client import looking  # noqa: E402

ACTORS = 1000
DEVICES = 4
SECONDS = 5.0


class Group(Actor):
    """A hundred actors."""

    async def started(self) -> None:
        for at in range(ACTORS // 10):
            await self.spawn(Actor, name=f"worker-{at}")


async def share() -> float:
    """Return the share of a core that the program takes for some seconds."""
    used, begun = time.process_time(), time.perf_counter()
    await trio.sleep(SECONDS)
    return (time.process_time() - used) / (time.perf_counter() - begun)


async def main() -> None:
    async with open_system("bench") as system:
        devices = [
            await system.spawn_device(0, backend="cpu", name=f"device-{at}", standby=None)
            for at in range(DEVICES)
        ]
        for at in range(10):
            await system.spawn(Group, name=f"group-{at}")
        kept = [[await device.put(np.ones(1 << 18)) for _ in range(50)] for device in devices]
        print(f"{system.statistics().actors} actors, {DEVICES} devices; shares of a core")
        before = await share()
        print(f"  without a dashboard          {before:6.2%}")
        async with open_dashboard(system, announce=False) as page:
            print(f"  that nobody looks at         {await share() - before:+6.2%}")
            async with looking(page) as looker, trio.open_nursery() as nursery:

                async def look() -> None:
                    while await looker.next() is not None:
                        pass

                nursery.start_soon(look)
                await trio.sleep(1)
                print(f"  that somebody looks at       {await share() - before:+6.2%}")
                nursery.cancel_scope.cancel()
        feed = Feed(system)
        took = []
        for _ in range(20):
            begun = time.perf_counter()
            await feed.look()
            took.append(time.perf_counter() - begun)
        print(f"  a look at all of it takes {1e3 * sorted(took)[len(took) // 2]:.2f} ms")
        del kept


if __name__ == "__main__":
    trio.run(main)
