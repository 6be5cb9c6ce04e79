"""Runs random programs on a device whose lanes are slow at random."""

from __future__ import annotations

from hypothesis import strategies as st

from atomr_accel import Device
from atomr_accel.libraries.nvrtc.kernel import Kernel
from atomr_accel.ops import Awaited

from ..harness import Shared, settled, used_by
from .programs import FAULTS, KINDS, SOURCE, Run, mix

LONGEST = 200


@st.composite
def programs(draw: st.DrawFn, most: int = LONGEST, faults: int = 0) -> list[tuple[str, int]]:
    count = draw(st.integers(1, most))
    op = st.tuples(st.sampled_from(KINDS), st.integers(0, 2**16 - 1))
    ops = draw(st.lists(op, min_size=count, max_size=count))
    for _ in range(faults):
        ops.insert(draw(st.integers(0, len(ops))), (draw(st.sampled_from(FAULTS)), 0))
    return ops


class Delayed(Shared):
    """A device whose lanes dawdle, and the kernel of the programs."""

    kernel: Kernel[Awaited] | None = None

    async def check(self, ops: list[tuple[str, int]]) -> None:
        """Run a program, and see that it leaves nothing behind."""
        device = self.device
        used = used_by(device)
        if self.kernel is None or self.kernel.home is not device.core:
            self.kernel = await compiled(device)
        await Run(device, self.kernel).run(ops)
        await settled(device)
        assert device.statistics().in_flight == 0
        assert used_by(device) <= used


async def compiled(device: Device) -> Kernel[Awaited]:
    return await device.nvrtc.compile(SOURCE, "mix", cpu=mix)
