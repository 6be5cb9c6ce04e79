"""A PyTorch model served by ``device.run``: it faults, is rebuilt, and answers again.

The weights are uploaded once, into sealed buffers that outlive the process the model runs in.
Runs on a GPU, or without one on the CPU; needs PyTorch.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import warnings
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device
from atomr_accel.testing import poison

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atomr_accel import Device, GpuRef

WIDTHS = (512, 2048, 2048, 10)
REQUESTS = 8

# --- in the host -------------------------------------------------------------------------


def tensor(array: Any) -> Any:
    """A buffer as a tensor that shares its memory."""
    import torch

    if isinstance(array, np.ndarray):  # of the CPU backend
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that sealed memory is read-only is the point
            return torch.from_numpy(array)
    return torch.as_tensor(array, device="cuda")


def load(weights: Mapping[str, Any]) -> Any:
    """The model, whose parameters are the buffers themselves."""
    import torch

    layers: list[Any] = []
    with torch.device("meta"):  # no memory of its own
        for here, there in pairwise(WIDTHS):
            layers += [torch.nn.Linear(here, there), torch.nn.GELU()]
        model = torch.nn.Sequential(*layers[:-1])
    model.load_state_dict({name: tensor(w) for name, w in weights.items()}, assign=True)
    return model.eval()


def answer(model: Any, x: Any) -> Any:
    """One forward pass; the result stays on the device."""
    import torch

    with torch.no_grad():
        return model(tensor(x))


def shares(model: Any, weights: Mapping[str, Any]) -> bool:
    """Return whether the model computes with those buffers, not with copies."""
    mine = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    return mine == {name: tensor(w).data_ptr() for name, w in weights.items()}


# --- in the program ----------------------------------------------------------------------


async def serve(device: Device, init: partial[Any], host_x: Any, answers: list[Any]) -> None:
    """Answer one request, again if the device fails meanwhile."""

    async def ask() -> Any:
        x = await device.put(host_x)
        y: GpuRef = await device.run(answer, x, lane="model", init=init)
        return await device.get(y)

    answers.append(await device.retry(ask))


async def main() -> None:
    """Each step says its result and checks it."""
    rng = np.random.default_rng()
    host = {}
    for layer, (here, there) in enumerate(pairwise(WIDTHS)):
        scale = 1 / np.sqrt(here)
        host[f"{2 * layer}.weight"] = rng.normal(0, scale, (there, here)).astype(np.float32)
        host[f"{2 * layer}.bias"] = np.zeros(there, np.float32)
    nbytes = sum(array.nbytes for array in host.values())
    host_x = rng.standard_normal((16, WIDTHS[0]), dtype=np.float32)

    async with open_device(0) as device:
        print(f"{device.info.name}: backend {device.backend}, generation {device.generation}")
        begun = time.perf_counter()
        weights = {name: await device.put(array, sealed=True) for name, array in host.items()}
        uploaded = time.perf_counter() - begun
        print(f"weights: {nbytes >> 20} MiB uploaded and sealed in {uploaded * 1e3:.1f} ms")

        init = partial(load, weights)
        answers: list[Any] = []
        await serve(device, init, host_x, answers)
        assert await device.run(shares, weights, lane="model", init=init)
        print(f"model: answers {answers[0].shape}, and its parameters are those buffers")

        pid = device.statistics().host_pid
        async with trio.open_nursery() as nursery:
            for _ in range(REQUESTS):
                nursery.start_soon(serve, device, init, host_x, answers)
            await trio.lowlevel.checkpoint()
            fault = await poison(device)  # on a GPU: a kernel that writes where it must not
            print(f"fault: {fault.status_name}; what was in flight fails")
        assert device.generation == 2
        assert len(answers) == 1 + REQUESTS
        for each in answers[1:]:
            np.testing.assert_allclose(each, answers[0], rtol=1e-4, atol=1e-4)

        assert await device.run(shares, weights, lane="model", init=init)  # once it is back
        after = device.statistics()
        assert after.host_pid != pid or device.isolation == "thread"
        assert after.startup is not None
        assert after.startup.remapped_bytes >= nbytes
        for name, ref in weights.items():
            assert not ref.is_stale
            np.testing.assert_array_equal(await device.get(ref), host[name])
        print(
            f"rebuilt: a new process, generation {device.generation}, and the same answers; the "
            f"weights were mapped again in {after.startup.remap * 1e3:.1f} ms, not uploaded"
        )


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("This example serves a PyTorch model, and PyTorch is not here: pip install torch")
        sys.exit()
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
