"""Faults on purpose, kernels against their functions, and a pytest plugin.

from atomr_accel.testing import compare, poison, kill_host

fault = await poison(device)                     # a sticky fault, a real one on CUDA
await poison(device, "misaligned_address")       # others by name, see ``FAULTS``
await kill_host(device)                          # as the OOM killer would
await hang(device)                               # an op that never ends
await standby_ready(device)                      # so that the next fault costs little
await compare(device, kernel, 4, 256, (1000,))   # a kernel and what stands for it on the CPU
await check_refusals(device, "sparse.gather", y=y, indices=at)  # every wrong argument raises
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._compare import Comparison, compare
    from ._delays import lane_delays
    from ._faults import FAULTS, FaultName, hang, kill_host, poison, standby_ready
    from ._refusals import check_refusals

__all__ = [
    "FAULTS",
    "Comparison",
    "FaultName",
    "check_refusals",
    "compare",
    "hang",
    "kill_host",
    "lane_delays",
    "poison",
    "standby_ready",
]

# Sessions of pytest load the plugin, and need neither trio nor NumPy for isolated tests.
_HOME = {
    "Comparison": "_compare",
    "check_refusals": "_refusals",
    "compare": "_compare",
    "lane_delays": "_delays",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME.get(name, '_faults')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
