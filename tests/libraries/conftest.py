from __future__ import annotations

from importlib.util import find_spec

import pytest

from atomr_accel.lanes import Isolation

from .conformance import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]

# It imports an executor for CUDA, and those import the vendor's bindings.
collect_ignore = [] if find_spec("cuda") else ["test_dnn_sequences.py"]


@pytest.fixture(scope="session")
def accel_isolation() -> Isolation:
    """Ops are the same in either isolation, and a device of threads opens faster."""
    return "thread"
