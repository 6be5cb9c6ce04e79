"""Functions of guests, which hosts import; as in the page about them."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np


class Compiled:
    """Does with a kernel what Triton does: reads its source, and launches it over a grid."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.source = inspect.getsource(function)
        self.thread = threading.get_ident()
        self._function = function

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(*args: Any, **constants: Any) -> None:
            for program in range(*grid):
                self._function(program, *args, **constants)

        return launch


def load() -> Compiled:
    def double(program: int, y: Any, x: Any, *, BLOCK: int) -> None:  # noqa: N803
        at = slice(program * BLOCK, (program + 1) * BLOCK)
        y[at] = 2 * x[at]

    return Compiled(double)


def launch(kernel: Compiled, y: Any, x: Any) -> None:
    on_grid = kernel[-(-len(x) // 4),]
    on_grid(y, x, BLOCK=4)


def source(kernel: Compiled) -> str:
    return kernel.source


def load_triton() -> Any:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def double(y, x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

    return double


def launch_triton(kernel: Any, y: Any, x: Any) -> None:
    import torch

    def tensor(array: Any) -> Any:
        if isinstance(array, np.ndarray):
            return torch.from_numpy(array)
        return torch.as_tensor(array, device="cuda")

    y, x = tensor(y), tensor(x)
    on_grid = kernel[-(-x.numel() // 64),]
    on_grid(y, x, x.numel(), BLOCK=64)
