"""Libraries that a host loads before it has a device."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.headers
def test_libraries_for_the_first_plan_are_loaded_in_advance() -> None:
    pytest.importorskip("cudnn")
    code = (
        "from atomr_accel.libraries.dnn.host._cuda import CudaDnn; CudaDnn.preload(); "
        "print(open('/proc/self/maps').read())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for part in ("graph", "ops", "cnn", "heuristic", "engines_precompiled"):
        assert f"libcudnn_{part}.so" in ran.stdout
