"""``einsum`` against PyTorch and CuPy.

Measured side by side, see ``side_by_side.py``: throughput of many in a queue, and latency of one
alone. Ours write to a buffer that is there; PyTorch's and CuPy's make one. CuPy is asked without
cuQuantum. Without a GPU sizes are small, and only our own numbers are printed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import opt_einsum
import trio
from side_by_side import Rival, Row, compare, cupy_of, open_first, show, torch_of

if TYPE_CHECKING:
    from atomr_accel import Device

GOAL = 1.0


@dataclass(frozen=True)
class Case:
    """One expression.

    Attributes:
        name: the line's name.
        subscripts: the subscripts, in one string.
        sizes: the size of each index.
        dtype: the dtype of all operands.
    """

    name: str
    subscripts: str
    sizes: dict[str, int]
    dtype: str = "float32"


CASES = (
    Case("matrices", "ij,jk->ik", dict.fromkeys("ijk", 4096)),
    Case("matrices, small", "ij,jk->ik", dict.fromkeys("ijk", 128)),
    Case("matrices, half", "ij,kj->ik", dict.fromkeys("ijk", 4096), "float16"),
    Case("batch", "bij,bjk->bik", {"b": 64, "i": 512, "j": 512, "k": 512}),
    Case("attention scores", "bqhd,bkhd->bhqk", {"b": 8, "q": 1024, "k": 1024, "h": 16, "d": 64}),
    Case("attention mix", "bhqk,bkhd->bqhd", {"b": 8, "q": 1024, "k": 1024, "h": 16, "d": 64}),
    Case("inner axes apart", "abcd,dbef->acef", dict.fromkeys("abcdef", 48)),
    Case("both transposed", "abcd,cbef->dafe", dict.fromkeys("abcdef", 40)),
    Case("chain", "ab,bc,cd,de->ae", {"a": 2048, "b": 64, "c": 2048, "d": 64, "e": 2048}),
    Case("other basis", "abcd,ae,bf,cg,dh->efgh", dict.fromkeys("abcdefgh", 40), "float64"),
    Case("outer", "i,j->ij", {"i": 16384, "j": 16384}),
    Case("inner of rows", "ij,ij->i", {"i": 65536, "j": 1024}),
    Case("trace", "bii->b", {"b": 4096, "i": 128}),
    Case("transpose", "abcd->dbca", dict.fromkeys("abcd", 128)),
    Case("sum", "abc->b", dict.fromkeys("abc", 512)),
)


def operands(case: Case) -> list[Any]:
    """Random arrays."""
    rng = np.random.default_rng(5)
    sizes = case.sizes
    terms = case.subscripts.partition("->")[0].split(",")
    return [
        rng.standard_normal([sizes[each] for each in term], dtype=np.float32).astype(case.dtype)
        for term in terms
    ]


def amount_of(case: Case, arrays: list[Any]) -> tuple[float, str]:
    """Return the operations along the path, or the bytes if one pass over memory is enough."""
    _, about = opt_einsum.contract_path(case.subscripts, *arrays)
    inner = {*case.subscripts.partition("->")[0]} - {*case.subscripts.partition("->")[2], ","}
    if len(arrays) > 1 and inner and case.name != "inner of rows":
        return float(about.opt_cost), "TFLOP/s"
    return float(sum(array.nbytes for array in arrays) + arrays[0].itemsize * _size(case)), "GB/s"


def _size(case: Case) -> int:
    result = case.subscripts.partition("->")[2]
    return int(np.prod([case.sizes[label] for label in result], dtype=np.int64))


def rivals_of(device: Device, case: Case, arrays: list[Any]) -> dict[str, Rival]:
    """Return the rivals' equivalents on the same numbers."""
    rivals: dict[str, Rival] = {}
    if cupy := cupy_of(device):
        held = [cupy.asarray(array) for array in arrays]
        call = partial(cupy.einsum, case.subscripts, *held, optimize=True)
        rivals["cupy"] = Rival(call, cupy.cuda.get_current_stream().synchronize)
    if torch := torch_of(device):
        tensors = [torch.from_numpy(array).cuda() for array in arrays]
        rivals["torch"] = Rival(
            partial(torch.einsum, case.subscripts, *tensors), torch.cuda.synchronize
        )
    return rivals


async def measure(device: Device, case: Case) -> Row:
    """One expression."""
    on_gpu = device.backend == "cuda"
    if not on_gpu:
        case = replace(case, sizes={label: min(size, 16) for label, size in case.sizes.items()})
    arrays = operands(case)
    refs = [await device.put(array) for array in arrays]
    out = await device.tensor.einsum(case.subscripts, *refs)
    rivals = rivals_of(device, case, arrays)
    paces = await compare(
        device, lambda on: on.tensor.einsum(case.subscripts, *refs, out=out), rivals
    )
    return Row(case.name, *amount_of(case, arrays), *paces, dict.fromkeys(rivals, GOAL))


async def run() -> None:
    """Measure and print."""
    async with open_first() as device:
        for case in CASES:
            if not sys.argv[1:] or case.name in sys.argv[1:]:
                show(await measure(device, case))


if __name__ == "__main__":
    trio.run(run)
