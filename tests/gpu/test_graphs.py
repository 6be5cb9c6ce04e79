"""Random graphs of ``device.dnn`` on a GPU and on the CPU: cuDNN takes graphs it gets wrong."""

from __future__ import annotations

import numpy as np
import pytest

from atomr_accel import AccelError, open_device
from tests.differential import graphs
from tests.harness import opened

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

GRAPHS = 2000
SHARDS = 50


@pytest.mark.parametrize("shard", range(SHARDS))
async def test_random_graphs_compute_as_on_the_cpu(shard: int) -> None:
    """Compare random graphs with the CPU backend; results are right, and no fault occurs."""
    wrong = []
    async with opened() as device, open_device(0, backend="cpu") as cpu:
        for seed in range(shard, GRAPHS, SHARDS):
            rng = np.random.default_rng(seed)
            drawn = graphs.draw(rng)
            arrays = graphs.values(rng, drawn)
            for each in (cpu, device):
                try:
                    plan = await graphs.plan_of(each, drawn)
                    graphs.compare(drawn, arrays, await graphs.run(each, drawn, arrays, plan))
                except (AccelError, AssertionError) as error:
                    wrong.append(f"{seed} on {each.info.backend}: {error!r} {drawn}")
        assert not wrong, "\n".join(wrong)
        assert device.generation == 1, "a context had a fault"
