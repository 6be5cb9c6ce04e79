"""Messages of the FFT lane.

A transform's ``FftSpec`` is sent as bytes. The lane keeps a plan under the plan's number, and
decodes the spec only when it makes the plan.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Literal

import msgspec

from ....wire import Address, Message
from ....wire import encode as encode_part


class Hook(msgspec.Struct, frozen=True, array_like=True):
    """A function that a transform calls for each element that it loads, or stores.

    Attributes:
        name: of the function.
        source: CUDA C++; empty on the CPU.
        function: pickled, for the CPU; empty elsewhere.
    """

    name: str
    source: str
    function: bytes


class FftSpec(Message, frozen=True):
    """A transform without its addresses; equal ones share a plan.

    An element type is the name of a dtype, or ``float16x2`` and ``bfloat16x2`` for the complex
    numbers of half precision, which are pairs in a last axis that ``shape`` leaves out.

    Attributes:
        kind: complex to complex, real to complex, or complex to real.
        inverse: the sign of the exponent is positive.
        source: element type of the input.
        precision: real dtype of the computation, which gives the output's type.
        shape: the input's.
        axes: the transformed axes, each once; the last one is the real one.
        sizes: points along each of them; the input is cropped or padded to that.
        scale: a factor for the sums.
        conjugate: conjugate the complex side: the input of ``c2r``, the output of ``r2c``.
        source_aligned, target_aligned: True for buffers that are aligned for complex numbers of the
            precision, which cuFFT requires of real ones too.
        load, store: callbacks for each element.
        spent: True if cuFFT may overwrite the input, which is then Hermitian.
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
    load: Hook | None = None
    store: Hook | None = None
    spent: bool = False


class CosineSpec(msgspec.Struct, frozen=True, array_like=True):
    """A cosine or sine transform along one axis.

    Attributes:
        axis: its number.
        points: the number of points; the input is cropped or padded to it.
        type: the computed type, from 1 to 4: an inverse has 3 for 2, and 2 for 3.
        sine: a sine transform.
        scale: a factor for the sums.
        orthogonal: True to scale the first number of types 1 to 3 so that the matrix of the
            transform is orthogonal up to a factor.
    """

    axis: int
    points: int
    type: int
    sine: bool
    scale: float
    orthogonal: bool


class Cosines(Message, frozen=True):
    """Cosine or sine transforms with everything but their addresses; equal ones share a plan.

    Complex numbers are two real ones each, in a last axis.

    Attributes:
        source: dtype of the input.
        precision: real dtype of the computation, which is the output's, too.
        shape: the input's.
        along: the transforms, in their order, each along another axis.
    """

    source: str
    precision: str
    shape: tuple[int, ...]
    along: tuple[CosineSpec, ...]


def encode(spec: FftSpec | Cosines) -> bytes:
    """A spec as messages carry it; equal ones give the same bytes."""
    return encode_part(spec, "fft")


@lru_cache
def decode(encoded: bytes) -> FftSpec | Cosines:
    """The spec that ``encode`` was given."""
    made: FftSpec | Cosines = msgspec.msgpack.decode(encoded, type=FftSpec | Cosines)
    return made


class Prepare(Message, frozen=True):
    """Make a plan under a number; the result is the bytes of work area it needs.

    Attributes:
        number: the plan's number in later messages.
        spec: the transform's ``FftSpec``, encoded.
    """

    returns: ClassVar[Any] = int

    prepares: ClassVar[bool] = True
    lasting: ClassVar[bool] = True

    number: int
    spec: bytes


class RunTransform(Message, frozen=True):
    """Run a plan, which is made first if it is not there.

    Attributes:
        number: the plan's.
        spec: what the plan is for, encoded.
        source, target: addresses.
        workspace: address of the plan's scratch memory and, behind it, its work area.
        work: bytes of the work area; a plan that needs more has one of its own.
    """

    number: int
    spec: bytes
    source: Address
    target: Address
    workspace: Address
    work: int


class ForgetPlan(Message, frozen=True):
    """Drop a plan."""

    everywhere: ClassVar[bool] = True

    number: int


class Roll(Message, frozen=True):
    """Copy with every axis rotated: ``target[i] = source[(i + shift) % size]``."""

    source: Address
    target: Address
    itemsize: int
    shape: tuple[int, ...]
    shifts: tuple[int, ...]


class Frequencies(Message, frozen=True):
    """Sample frequencies of ``n`` points, in units of ``step``; float64.

    Attributes:
        half: only those that are not negative, as ``rfftfreq``.
    """

    target: Address
    n: int
    step: float
    half: bool
