"""cuRAND's generators for kernels of programs: NVRTC finds their headers and compiles them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atomr_accel.libraries.nvrtc.host._program import compile_module
from atomr_accel.libraries.nvrtc.host.includes import vendor_headers
from atomr_accel.libraries.nvrtc.wire.messages import Compile

from ...harness import needs_nvrtc

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "libraries.md"

DRAWS = """
#include <curand_kernel.h>
template <class State> __device__ void start(State* state, unsigned long long seed, int i) {
  curand_init(seed, i, 0, state);
}
extern "C" __global__ void draw(float* x, unsigned* counts, double* y, unsigned long long seed) {
  int i = threadIdx.x;
  STATE state;
  start(&state, seed, i);
  x[i] = curand_uniform(&state) + curand_normal(&state) + curand_log_normal(&state, 0.f, 1.f);
  y[i] = curand_uniform_double(&state) + curand_normal_double(&state);
  counts[i] = curand(&state) + curand_poisson(&state, 3.5);
}
"""
STATES = ("curandStatePhilox4_32_10_t", "curandStateXORWOW_t", "curandStateMRG32k3a_t")


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("state", [*STATES, "the one of the page"])
def test_a_kernel_that_draws_compiles(state: str) -> None:
    for header in ("curand_kernel.h", "cuda/std/version"):
        if not any(Path(folder, header).is_file() for folder in vendor_headers()):
            pytest.skip(f"{header} is not installed")
    source, name = DRAWS.replace("STATE", state), "draw"
    if state not in STATES:
        (source,) = re.findall(r"```cuda\n(.*?)```", PAGE.read_text(), re.DOTALL)
        name = "walk"
    made = compile_module(Compile(source, (name,)), (9, 0))
    assert made.image
    assert [entry.symbol for entry in made.entries] == [name]
