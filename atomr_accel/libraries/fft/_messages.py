"""What the FFT lane executes."""

from __future__ import annotations

from typing import ClassVar, Literal

from ...host import Message


class Spec(Message, frozen=True):
    """A transform with everything but its addresses; equal ones share a plan.

    An element type is the name of a dtype, or ``float16x2`` and ``bfloat16x2`` for the
    complex numbers of half precision, which are pairs in a last axis that ``shape``
    leaves out.

    Attributes:
        kind: complex to complex, real to complex, or complex to real.
        inverse: the sign of the exponent is positive.
        source: element type of the input.
        precision: real dtype of the computation, which gives the output's type.
        shape: the input's.
        axes: what is transformed, each once; the last one is the real one.
        sizes: points along each of them; the input is cropped or padded to that.
        scale: what the sums are multiplied with.
        conjugate: conjugate what is complex: the input of ``c2r``, the output of ``r2c``.
        source_aligned, target_aligned: whether the buffers begin where a complex number of
            the precision could, which cuFFT asks of real ones too.
    """

    kind: Literal["c2c", "r2c", "c2r"]
    inverse: bool
    source: str
    precision: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    scale: float
    conjugate: bool
    source_aligned: bool = True
    target_aligned: bool = True


class Prepare(Message, frozen=True):
    """Make a plan under a number; the result is the bytes of work area it needs."""

    prepares: ClassVar[bool] = True

    number: int
    spec: Spec


class Transform(Message, frozen=True):
    """Run a plan, which is made first if it is not there.

    Attributes:
        number: the plan's.
        spec: what the plan is for.
        source, target: addresses.
        workspace: address of the plan's scratch memory and, behind it, its work area.
        work: bytes of the work area; a plan that needs more has one of its own.
    """

    number: int
    spec: Spec
    source: int
    target: int
    workspace: int
    work: int


class Forget(Message, frozen=True):
    """Drop a plan."""

    everywhere: ClassVar[bool] = True

    number: int


class Roll(Message, frozen=True):
    """Copy with every axis rotated: ``target[i] = source[(i + shift) % size]``."""

    source: int
    target: int
    itemsize: int
    shape: tuple[int, ...]
    shifts: tuple[int, ...]


class Frequencies(Message, frozen=True):
    """Sample frequencies of ``n`` points, in units of ``step``; float64.

    Attributes:
        half: only those that are not negative, as ``rfftfreq``.
    """

    target: int
    n: int
    step: float
    half: bool
