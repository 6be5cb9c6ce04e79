"""Callbacks: functions of programs that transforms call when they load and store elements."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import cloudpickle

from ..._errors import Unsupported
from .wire._messages import Hook
from .wire._plan import CufftRun, Move, plan, spectrum_shape

if TYPE_CHECKING:
    import numpy as np

    from ...ops import DeviceView
    from .wire._messages import FftSpec

    Twin = Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], np.ndarray[Any, Any]]
    """A function that replaces a callback on the CPU. It takes elements and their offsets, and
    returns elements."""


@final
@dataclass(frozen=True, slots=True)
class FftCallback:
    """A function for ``load=`` or ``store=``. Made by ``device.fft.callback``.

    Attributes:
        name: the function's.
        source: the CUDA C++ that defines it.
        pickled: what stands for it on the CPU; empty for nothing.
    """

    name: str
    source: str
    pickled: bytes


def make_callback(source: str, name: str, cpu: Twin | None) -> FftCallback:
    """See ``CufftRun.callback``."""
    if not all(isinstance(text, str) for text in (source, name)):
        raise TypeError("callback(source, name) takes the source and the name as str")
    if cpu is not None and not callable(cpu):
        raise TypeError(f"cpu must be callable, not {type(cpu).__name__}")
    if not name.isidentifier() or not re.search(rf"\b{name}\s*\(", source):
        raise ValueError(f"the source has no function named {name!r}")
    return FftCallback(name, source, b"" if cpu is None else cloudpickle.dumps(cpu))


def hook(callback: FftCallback | None, role: str, device: DeviceView) -> Hook | None:
    """A callback as messages carry it."""
    if callback is None:
        return None
    if not isinstance(callback, FftCallback):
        raise TypeError(
            f"{role} must be what device.fft.callback makes, not {type(callback).__name__}"
        )
    if not device.capabilities.python_kernels:
        return Hook(callback.name, callback.source, b"")
    if not callback.pickled:
        raise Unsupported(
            f"{role} {callback.name!r} must have a Python function on the CPU "
            f"backend; give one: device.fft.callback(source, {callback.name!r}, "
            "cpu=function)"
        )
    return Hook(callback.name, "", callback.pickled)


_WANTED: Final = (
    "callbacks go with transforms that cuFFT does in one piece: of arrays of the precision's own "
    "dtypes, not padded (and complex-to-real ones not cropped), along axes that one plan takes, "
    "with a norm that does not scale them"
)


def require_one_piece(spec: FftSpec) -> None:
    """Require that cuFFT alone reads and writes the elements of a transform."""
    steps = plan(spec).steps
    ffts = [step for step in steps if isinstance(step, CufftRun)]
    # Complex-to-real transforms overwrite their input, so they get a copy of it.
    copies = 1 if spec.kind == "c2r" and spectrum_shape(spec) == spec.shape else 0
    in_one = not steps or (
        len(ffts) == 1
        and len(steps) == 1 + copies
        and ffts[0].offsets == ((0, 0),)
        and all(
            step.source_type == step.target_type
            and all(dim.extent == dim.size for dim in step.dims)
            for step in steps
            if isinstance(step, Move)
        )
    )
    if spec.scale != 1.0 or spec.conjugate or not in_one:
        raise Unsupported(f"{_WANTED}; this is {describe(spec)}")


def describe(spec: FftSpec) -> str:
    """A transform in words."""
    scaled = "" if spec.scale == 1.0 else f", scaled with {spec.scale:.6g}"
    return (
        f"{spec.kind} of {spec.source} {spec.shape} along axes {spec.axes} in sizes "
        f"{spec.sizes}{scaled}"
    )
