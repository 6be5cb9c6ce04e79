"""The fixture ``device`` where pytest-trio runs async tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trio import trio_fixture

from ._fixture_device import opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .. import Device
    from ..lanes import Isolation


@trio_fixture  # type: ignore[untyped-decorator]
async def device(
    _one_call: None, accel_backend: str, accel_isolation: Isolation
) -> AsyncIterator[Device]:
    """An open device, closed after the test."""
    async with opened(accel_backend, accel_isolation) as device:
        yield device
