"""Worlds for tests. On CUDA all ranks are on one GPU, unless each has its own."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from atomr_accel.worlds import World, open_world

from ..harness import ON_CUDA, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import numpy as np

    from atomr_accel import Device, GpuRef


OWN_GPUS: Final = int(os.environ.get("ATOMR_TEST_GPUS", "1")) if ON_CUDA else 0
"""The number of GPUs, each of which a rank of smaller worlds has to itself."""


def _be_a_machine(number: int) -> None:
    """Have the host's NCCL think that it is on a machine of its own.

    It refuses two ranks of one machine on one GPU. Those of several meet over sockets.
    """
    os.environ["NCCL_HOSTID"] = f"rank-{number}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"


@asynccontextmanager
async def devices_of(
    size: int, mortal: Sequence[int] = (), **options: Any
) -> AsyncIterator[list[Device]]:
    """Devices for a world. On the CPU backend hosts are threads, unless they may die.

    Args:
        size: how many.
        mortal: the ranks that may die, whose devices have these options.
        **options: of ``open_device``.
    """
    async with AsyncExitStack() as stack:
        devices = []
        for rank in range(size):
            mine: dict[str, Any] = dict(options) if rank in mortal else {"isolation": "thread"}
            if ON_CUDA:
                mine["isolation"] = "process"
            own = size <= OWN_GPUS
            device = await stack.enter_async_context(opened(rank if own else 0, **mine))
            if ON_CUDA and not own:
                await device.run(_be_a_machine, rank)
            devices.append(device)
        yield devices


@asynccontextmanager
async def world_of(
    size: int, mortal: Sequence[int] = (), *, hosts: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[World]:
    """A world of devices that are opened for it; ``options`` are those of ``open_world``."""
    async with (
        devices_of(size, mortal, **(hosts or {})) as devices,
        open_world(devices, **options) as world,
    ):
        yield world


async def put(world: World, arrays: Sequence[Any], *, sealed: bool = False) -> list[GpuRef]:
    """Copy an array to each rank."""
    return [
        await device.put(array, sealed=sealed)
        for device, array in zip(world.devices, arrays, strict=True)
    ]


async def get(world: World, refs: Sequence[GpuRef]) -> list[np.ndarray[Any, Any]]:
    """Fetch a buffer of each rank."""
    return [await device.get(ref) for device, ref in zip(world.devices, refs, strict=True)]
