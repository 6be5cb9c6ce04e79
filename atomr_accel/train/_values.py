"""Values on a tape: what a function that is differentiated computes with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import numpy as np

from ..arrays.expressions import Expression, Operand, parts_of
from ._expressions import with_args

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..arrays import GpuRef
    from ._tape import Tape


@final
class TapeValue(Operand):
    """A buffer whose gradient is wanted, or that was computed from one.

    It has the operators, NumPy functions and views of a ``GpuRef``. Methods of the tape take it
    where those of a batch take a ref, and return further values.

    Attributes:
        shape: as in NumPy.
        dtype: a ``numpy.dtype``.
        ref: the buffer. Results computed from it have no gradient.
    """

    __slots__ = ("__weakref__", "dtype", "ref", "shape", "tape")

    def __init__(self, tape: Tape, ref: GpuRef) -> None:
        self.tape: Final = tape
        self.ref: Final = ref
        self.shape: tuple[int, ...] = ref.shape
        self.dtype: np.dtype[Any] = ref.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return len(self.ref)

    def __iter__(self) -> NoReturn:
        raise TypeError("a value on a tape is not iterable; index it: value[0]")

    def __getitem__(self, key: Any) -> TapeValue:
        """A view of a part, as of a ``GpuRef``."""
        return self.tape.view(self, lambda ref: ref[key])

    @property
    def T(self) -> TapeValue:  # noqa: N802 - NumPy's name
        """A view with the axes in reverse order."""
        return self.transpose()

    @property
    def mT(self) -> TapeValue:  # noqa: N802 - NumPy's name
        """A view with the last two axes exchanged."""
        return self.tape.view(self, lambda ref: ref.mT)

    def transpose(self, *axes: Any) -> TapeValue:
        """``GpuRef.transpose``."""
        return self.tape.view(self, lambda ref: ref.transpose(*axes))

    def swapaxes(self, axis1: int, axis2: int) -> TapeValue:
        """``GpuRef.swapaxes``."""
        return self.tape.view(self, lambda ref: ref.swapaxes(axis1, axis2))

    def moveaxis(self, source: Any, destination: Any) -> TapeValue:
        """``GpuRef.moveaxis``."""
        return self.tape.view(self, lambda ref: ref.moveaxis(source, destination))

    def squeeze(self, axis: Any = None) -> TapeValue:
        """``GpuRef.squeeze``."""
        return self.tape.view(self, lambda ref: ref.squeeze(axis))

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> TapeValue:
        """``GpuRef.diagonal``."""
        return self.tape.view(self, lambda ref: ref.diagonal(offset, axis1, axis2))

    def reshape(self, *shape: Any) -> TapeValue:
        """``GpuRef.reshape``, which copies a value first that has no view of that shape."""
        try:
            return self.tape.view(self, lambda ref: ref.reshape(*shape))
        except ValueError:
            if self.ref.contiguous:
                raise
        copied: Any = self.tape.copy(self)
        made: TapeValue = copied.reshape(*shape)
        return made

    def ravel(self) -> TapeValue:
        """``reshape(-1)``."""
        return self.reshape(-1)

    def broadcast_to(self, shape: int | tuple[int, ...]) -> TapeValue:
        """``numpy.broadcast_to``."""
        return self.tape.evaluate(np.broadcast_to(self, shape))  # type: ignore[no-any-return]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a value on a tape cannot be pickled or copied; return it")

    def __repr__(self) -> str:
        return f"<TapeValue {self.dtype.name}{list(self.shape)} of {self.ref!r}>"


def values_in(x: object) -> Iterator[TapeValue]:
    """Yield the values on tapes that an argument contains, also inside of expressions and lists."""
    if isinstance(x, TapeValue):
        yield x
    elif isinstance(x, Expression):
        for part in parts_of(x):
            if isinstance(part, TapeValue):
                yield part
    elif isinstance(x, (list, tuple)):
        for each in x:
            yield from values_in(each)
    elif isinstance(x, dict):
        for each in x.values():
            yield from values_in(each)


def without_values(
    x: Any, replaced: Callable[[TapeValue], Operand] = lambda value: value.ref
) -> Any:
    """Return an argument with values replaced, by default with their buffers."""
    if isinstance(x, TapeValue):
        return replaced(x)
    if isinstance(x, Expression):
        made: dict[int, Operand] = {}
        for part in parts_of(x):
            if isinstance(part, TapeValue):
                made[id(part)] = replaced(part)
            elif isinstance(part, Expression):
                args = tuple(made[id(arg)] for arg in part.args)
                same = all(one is other for one, other in zip(args, part.args, strict=True))
                made[id(part)] = part if same else with_args(part, args)
            else:
                made[id(part)] = part
        return made[id(x)]
    if isinstance(x, (list, tuple)):
        made_of = [without_values(each, replaced) for each in x]
        return type(x)(*made_of) if hasattr(x, "_fields") else type(x)(made_of)
    if isinstance(x, dict):
        return {name: without_values(each, replaced) for name, each in x.items()}
    return x


def stop_gradient(x: Any) -> Any:
    """Return the same value as a constant, which passes no gradient on.

    Args:
        x: a value of a tape, an expression of some, a ref, or a list, tuple or dict of these.

    Returns:
        A ref, an expression of refs, or the container of them.
    """
    return without_values(x)
