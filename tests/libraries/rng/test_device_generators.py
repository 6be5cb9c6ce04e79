"""cuRAND's generators for kernels of programs: NVRTC finds their headers and compiles them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atomr_accel.libraries.nvrtc.host import _compiler

pytest.importorskip("cuda.bindings.nvrtc")

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


@pytest.mark.headers
@pytest.mark.slow
@pytest.mark.parametrize("state", [*STATES, "the one of the page"])
def test_a_kernel_that_draws_compiles(state: str) -> None:
    folders = [Path(path) for path in _compiler.library_headers()]
    for header in ("curand_kernel.h", "nv/target"):
        if not any((folder / header).exists() for folder in folders):
            pytest.skip(f"{header} is not installed")
    source, name = DRAWS.replace("STATE", state), "draw"
    if state not in STATES:
        (source,) = re.findall(r"```cuda\n(.*?)```", PAGE.read_text(), re.DOTALL)
        name = "walk"
    image, lowered, _ = _compiler.compile_cubin(source, name, (), (9, 0))
    assert image
    assert lowered == name


def test_only_sources_that_include_something_are_given_more_folders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def library_headers() -> list[str]:
        asked.append("asked")
        return []

    monkeypatch.setattr(_compiler, "library_headers", library_headers)
    plain = 'extern "C" __global__ void f() {}'
    for source, expected in ((plain, []), (f"// includes nothing\n{plain}", ["asked"])):
        _compiler.compile_cubin(source, "f", (), (9, 0))
        assert asked == expected
