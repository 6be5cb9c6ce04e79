"""The executors of cuDNN's routines on a library of NumPy: the same rows, the vendor's ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from atomr_accel import Device, LibraryError, Unsupported

from ....fakes import cudnn as fake_cudnn
from ....fakes.cudnn import FakeFrontend
from ....fakes.cudnn_routines import FakeRoutines
from ....fakes.driver import FakeDriver
from ...conformance import conform, on_cuda
from ..rows.rnn import OPERATIONS as NETWORKS
from ..rows.routines import OPERATIONS as ROUTINES

pytestmark = pytest.mark.skipif(on_cuda(), reason="the real one is there")


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, tmp_path: Path) -> FakeRoutines:
    from atomr_accel.libraries.dnn.host import _cuda_routines

    fake = FakeRoutines()
    fake_cudnn.install(monkeypatch, fake, FakeFrontend, tmp_path)
    monkeypatch.setattr(_cuda_routines, "last_error", lambda: "a fake's reason")
    return fake


OF_ROUTINES = [
    replace(row, cases=[case for case in row.cases if not case.get("ceil_mode")])
    for row in ROUTINES
    if row.name != "dnn.dropout"
]
"""Routines without a kernel of this package."""

ROWS = [*OF_ROUTINES, *NETWORKS]

test_conforms = conform(ROWS, take=2, of="the executors of routines")


async def test_descriptors_are_kept_and_destroyed(device: Device, library: FakeRoutines) -> None:
    x = await device.put(np.ones((1, 2, 8, 8), np.float32))
    await device.dnn.max_pool(x, 2)
    made = dict(library.made)
    await device.dnn.max_pool(x, 2)
    assert library.made == made
    for window in range(2, 9):
        for stride in range(1, 60):
            await device.dnn.max_pool(x, window, stride=stride)
    assert len(library.made) <= 256 * 4  # for each way of the lane


async def test_dropout_between_layers_has_its_seed(device: Device, library: FakeRoutines) -> None:
    rng = np.random.default_rng(0)
    net = device.dnn.rnn("gru", 3, 4, num_layers=2, dropout=0.5)
    parameters = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in net.parameter_shapes]
    weights = await net.pack([await device.put(each) for each in parameters])
    x = await device.put(rng.standard_normal((5, 2, 3)).astype(np.float32))
    runs = [await net.forward(x, weights, training=True, seed=seed) for seed in (1, 2, 1)]
    y = [await device.get(run.y) for run in runs]
    np.testing.assert_array_equal(y[0], y[2])
    assert (y[0] != y[1]).any()
    # Its own mask comes back, whatever ran in between.
    grads = [await net.forward_grad(run.y, run.tape) for run in (runs[0], runs[1])]
    again = await net.forward_grad(runs[2].y, runs[2].tape)
    np.testing.assert_array_equal(await device.get(grads[0].dx), await device.get(again.dx))
    assert (await device.get(grads[1].dx) != await device.get(again.dx)).any()


async def test_refusals_and_failures(device: Device, library: FakeRoutines) -> None:
    x = await device.put(np.ones((1, 2, 8, 8), np.float32))
    library.ref_error["cudnnPoolingForward"] = 3000
    with pytest.raises(Unsupported, match="a fake's reason"):
        await device.dnn.max_pool(x, 2)
    library.ref_error["cudnnPoolingForward"] = 5000
    with pytest.raises(LibraryError) as caught:
        await device.dnn.max_pool(x, 2)
    assert (caught.value.call, caught.value.status) == ("cudnnPoolingForward", 5000)
    library.ref_error["cudnnSetPoolingNdDescriptor"] = 2000
    before = len(library.made)
    with pytest.raises(LibraryError):
        await device.dnn.max_pool(x, 3)
    # Tensors' descriptors may be new; the one that could not be set is gone.
    assert not [made for made in library.made.values() if not made]
    assert len(library.made) >= before
