"""Messages of the lane of engines."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from ....wire import Address, Message

Precision = Literal["model", "fp16"]

Extent = int | str | None
"""An extent: a number, the name of an axis of an input, or None if it depends on values."""


class TensorOf(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that a model takes or gives.

    Attributes:
        name: its name in the model.
        dtype: element type, by name.
        shape: its extents; None if not even the number of axes is known.
    """

    name: str
    dtype: str
    shape: tuple[Extent, ...] | None


class EngineOptions(msgspec.Struct, frozen=True, array_like=True):
    """Options of a build.

    Attributes:
        precision: of the computation.
        fixed: the extents that all profiles fix, by input and axis.
        threads: the number of threads of an op; 0: as many as the machine has cores.
        deterministic: whether results must depend on the inputs only.
        folder: where files of external data are; empty if there is none.
    """

    precision: Precision
    fixed: tuple[tuple[str, int, int], ...]
    threads: int
    deterministic: bool
    folder: str


class SupplyModel(Message, frozen=True):
    """Part of a model, to be loaded once all of it is there.

    Attributes:
        engine: the program's number of it.
        total: bytes of the model.
        start: where this part begins.
        piece: the part.
    """

    bulky: ClassVar[bool] = True

    engine: int
    total: int
    start: int
    piece: bytes


class ModelDescription(msgspec.Struct, frozen=True, array_like=True):
    """Inputs and outputs of a model.

    Attributes:
        inputs, outputs: in the model's order.
        cached: whether its optimized form was found on disk.
    """

    inputs: tuple[TensorOf, ...]
    outputs: tuple[TensorOf, ...]
    cached: bool


class LoadEngine(Message, frozen=True):
    """Make an engine of the model that was supplied; answers with a ``ModelDescription``.

    Attributes:
        engine: the program's number of it.
        options: those of the build.
    """

    returns: ClassVar[Any] = ModelDescription

    engine: int
    options: EngineOptions


class BoundTensor(msgspec.Struct, frozen=True, array_like=True):
    """Memory for an input or an output.

    Attributes:
        name: of the input or output.
        address: of its first element.
        shape: its extents.
        dtype: element type, by name.
    """

    name: str
    address: Address
    shape: tuple[int, ...]
    dtype: str


class RunEngine(Message, frozen=True):
    """Run an engine on buffers.

    Attributes:
        engine: the program's number of it.
        inputs: the tensors that it reads.
        outputs: the tensors that it writes.
    """

    engine: int
    inputs: tuple[BoundTensor, ...]
    outputs: tuple[BoundTensor, ...]


class RunAndHold(Message, frozen=True):
    """Run an engine whose results have shapes that only the run tells; answers with them.

    Attributes:
        engine: the program's number of it.
        inputs: the tensors that it reads.
        outputs: names of the results.
        ticket: the number by which ``TakeHeld`` finds the results.
    """

    returns: ClassVar[Any] = list[list[int]]

    engine: int
    inputs: tuple[BoundTensor, ...]
    outputs: tuple[str, ...]
    ticket: int


class TakeHeld(Message, frozen=True):
    """Copy results that are held to buffers.

    Attributes:
        ticket: of the run.
        addresses: a buffer for each result.
        nbytes: its size.
    """

    ticket: int
    addresses: tuple[Address, ...]
    nbytes: tuple[int, ...]


class DropHeld(Message, frozen=True):
    """Let results go.

    Attributes:
        ticket: of the run.
    """

    ticket: int


class DropEngine(Message, frozen=True):
    """Let an engine go, if it is there.

    Attributes:
        engine: the program's number of it.
    """

    engine: int
