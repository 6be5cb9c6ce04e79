from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from atomr_accel.device.core import DeviceCore
from atomr_accel.lanes import Isolation
from atomr_accel.wire import Message, filled_fields

from .conformance import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]


@pytest.fixture(scope="session", autouse=True)
def addresses_are_declared() -> Iterator[None]:
    """Require each address in a message of these tests to be in a declared field."""
    submit = DeviceCore.submit

    def checked(core: DeviceCore, port: Any, name: str, message: Any, *more: Any) -> Any:
        if isinstance(message, Message):
            blocks = [*more[0], *more[1]] if len(more) > 1 else []
            begins = {block.base.address for block in blocks if block.base.nbytes}
            found = Counter(each for each in _numbers(message) if each in begins)
            found.subtract(each for each in filled_fields(message) if each in begins)
            assert not +found, f"{name}: an address in {message} is not declared"
        return submit(core, port, name, message, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceCore, "submit", checked)
        yield


def _numbers(value: object) -> Iterator[int]:
    """Return all whole numbers in a message."""
    if type(value) is int:
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _numbers(getattr(value, name))
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _numbers(each)


@pytest.fixture(scope="session")
def accel_isolation() -> Isolation:
    """Ops are the same in either isolation, and a device of threads opens faster."""
    return "thread"
