"""The conformance tests' own arithmetic: what a failure says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Device

from . import conformance
from .conformance import MARKS, Operation, check

pytestmark = MARKS


async def call(device: Device, x: Any, **_: Any) -> Any:
    return x, await device.full(x.shape, 1, x.dtype)


@pytest.mark.parametrize("wrong", [None, 0, 1])
async def test_a_wrong_result_is_named(
    device: Device, wrong: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conformance, "TALLIES", {})  # no library was checked

    def expect(x: Any, **_: Any) -> Any:
        right = (x, np.ones_like(x))
        return tuple(each + (position == wrong) for position, each in enumerate(right))

    operation = Operation(
        "none.pair", ("float32",), [{}], lambda sample, **_: (sample.array(4),), call, expect
    )
    if wrong is None:
        await check(device, operation, "float32", {}, "none")
        return
    with pytest.raises(AssertionError, match=f"^result {wrong}: 4 of 4 elements") as caught:
        await check(device, operation, "float32", {}, "none")
    assert "ATOMR_TEST_SEED=" in caught.value.__notes__[0]
