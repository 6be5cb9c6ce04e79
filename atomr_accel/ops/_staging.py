"""Staging of views and expressions: ops that need contiguous buffers work on contiguous copies.

Most ops take contiguous buffers only, as their vendors do. If such an op gets another view, its
request is made again with scratch memory instead of the view. The elements of the view are copied
there right before the op, and back right after it if the op has written them. An expression is
computed there, unless the op computes it itself. All of that is submitted together, so no op of
another task comes in between.
"""

from __future__ import annotations

import inspect
import math
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import msgspec

from ..arrays import GpuRef, NotEvaluated
from ..arrays.expressions import Expression
from ..memory import NotContiguous, block_at
from ._arguments import overlap, require_readable, require_writable
from ._copies import copying
from ._request import Preparing, Request, Submission

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from ..memory import Block, MemoryMap
    from ._library import DeviceView
    from ._request import HostObjects, Preparer

T = TypeVar("T")
Buffer = GpuRef | Expression
"""An argument of which an op may need a copy."""

STAGED: Final = NotContiguous, NotEvaluated
"""Errors of ops on arguments that staging replaces."""


def needs_staging(*values: Any) -> bool:
    """Return whether an argument is an expression, or a view that is not contiguous."""
    found: list[Buffer] = []

    def note(buffer: Buffer, _name: str) -> Buffer:
        found.append(buffer)
        return buffer

    replaced(values, "", note)
    return bool(found)


def on_copies(
    make: Callable[..., Request[T]], facade: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Request[T]:
    """Return the request of a call, made on copies instead of such views and of expressions."""
    places = _names(make, len(args))

    def staged(preparer: Preparer, *, by_columns: bool) -> Submission[T]:
        staging = _Staging(preparer, by_columns=by_columns)
        given = [staging.put(value, name) for name, value in zip(places, args, strict=True)]
        request = make(facade, *given, **staging.put(kwargs, ""))
        return staging.around(request, request.prepare(staging))

    def prepare(preparer: Preparer) -> Submission[T]:
        # Copies lie by rows. Some ops take matrices by columns, or no others: they may only have
        # refused another of the views.
        if _ways_of(args, kwargs) == {True, False}:
            try:
                return staged(preparer, by_columns=True)
            except NotContiguous:
                pass
        return staged(preparer, by_columns=False)

    # Some calls look at their buffers at once: for that, any of these shapes will do.
    seen = partial(_seen_contiguous, facade.home.memory)
    given, named = replaced(args, "", seen), replaced(kwargs, "", seen)
    request = make(facade, *given, **named)
    return Request(request.lane, request.name, prepare)


def on_any_views(
    make: Callable[..., Request[T]], facade: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Request[T]:
    """Return the request of a call, carried out later, on any views and expressions."""
    may_be_staged = needs_staging(args, kwargs)
    try:
        request = make(facade, *args, **kwargs)
    except STAGED:
        if not may_be_staged:
            raise
        return on_copies(make, facade, args, kwargs)
    if not may_be_staged:
        return request
    plain = request.prepare

    def prepare(preparer: Preparer) -> Submission[T]:
        try:
            return plain(preparer)
        except STAGED:
            pass
        return on_copies(make, facade, args, kwargs).prepare(preparer)

    return Request(request.lane, request.name, prepare)


def replaced(value: Any, name: str, by: Callable[[Any, str], Buffer]) -> Any:
    """Arguments with something else in the place of expressions and views with gaps."""

    def each(buffer: Buffer, what: str) -> Buffer:
        plain = type(buffer) is GpuRef and buffer.own_strides is None
        return buffer if plain else by(buffer, what)

    return _mapped(value, name, each)


def _mapped(value: Any, name: str, by: Callable[[Any, str], Buffer]) -> Any:
    """Arguments with something else in the place of buffers and expressions."""
    if type(value) is GpuRef or type(value) is Expression:
        return by(value, name)
    if type(value) in (list, tuple):
        items: Any = (_mapped(item, f"{name}[{at}]", by) for at, item in enumerate(value))
        return type(value)(items)
    if type(value) is dict:
        return {key: _mapped(item, str(key), by) for key, item in value.items()}
    return value


def _ways_of(*values: Any) -> set[bool]:
    """Return the orders of the refs among arguments: True is by columns, False any other."""
    found = set()

    def note(buffer: Buffer, _name: str) -> Buffer:
        if type(buffer) is GpuRef:
            found.add(_by_columns(buffer))
        return buffer

    replaced(values, "", note)
    return found


def _by_columns(ref: GpuRef) -> bool:
    """True if the elements of each column of a matrix are contiguous."""
    return ref.ndim > 1 and ref.strides[-2] == ref.dtype.itemsize


def _seen_contiguous(memory: MemoryMap, buffer: Buffer, _name: str) -> GpuRef:
    """Return a ref that describes itself as a contiguous copy would; its address is not used."""
    shape, dtype = buffer.shape, buffer.dtype
    block = buffer.addressable_block if type(buffer) is GpuRef else block_at(memory, 0, 0)
    return GpuRef(block, shape, dtype, math.prod(shape) * dtype.itemsize)


@lru_cache(1024)
def _names(make: Callable[..., Request[Any]], count: int) -> tuple[str, ...]:
    """Return the names of the first ``count`` positional arguments of a method."""
    names: list[str] = []
    for each in [*inspect.signature(make).parameters.values()][1:]:
        if each.kind is each.VAR_POSITIONAL:
            names += [f"{each.name}[{at}]" for at in range(count - len(names))]
        elif each.kind is not each.KEYWORD_ONLY:
            names.append(each.name)
    return tuple(names[:count])


@final
class _Staging(Preparing):
    """The preparer of a request on scratch memory.

    Attributes:
        scratch: by the identity of a view: its name, the view, and its copy.
    """

    def __init__(self, preparer: Preparer, *, by_columns: bool) -> None:
        self._preparer = preparer
        self._by_columns = by_columns  # whether what lies by columns is given as it is
        self.home: Final[DeviceView] = preparer.home
        self.memory: Final[MemoryMap] = preparer.memory
        self.scratch: Final[dict[int, tuple[str, Buffer, GpuRef]]] = {}
        self._plain: list[tuple[str, GpuRef]] = []  # arguments that need no copy

    def put(self, value: Any, name: str) -> Any:
        """An argument with scratch memory in the place of views and expressions."""
        return _mapped(value, name, self._copy_of)

    def _copy_of(self, buffer: Buffer, name: str) -> GpuRef:
        if type(buffer) is GpuRef:
            if buffer.own_strides is None or (self._by_columns and _by_columns(buffer)):
                self._plain.append((name, buffer))
                return buffer
            require_readable(buffer, self.memory, name, strided=True)
        if id(buffer) not in self.scratch:
            self.scratch[id(buffer)] = name, buffer, self.output(buffer.shape, buffer.dtype)
        return self.scratch[id(buffer)][2]

    def around(self, request: Request[Any], submission: Submission[Any]) -> Submission[Any]:
        """Return a submission with the copies before and after all of its steps."""
        submission = msgspec.structs.replace(
            submission, reads=tuple(submission.reads), writes=tuple(submission.writes)
        )
        steps = [made for _, made in submission.steps(request, self) if made.message is not None]
        written = {block.base for made in steps for block in made.writes}
        touched = written | {block.base for made in steps for block in made.reads}
        before, back = [], []
        for name, buffer, made in self.scratch.values():
            if type(buffer) is Expression:
                if made.block in written:
                    raise TypeError(
                        f"{name} must be a GpuRef, not an Expression, because {request.name} "
                        "writes to it; evaluate it first: await device.evaluate(expression)"
                    )
                before.append(self.home.evaluation(buffer, made))
            elif made.block in touched:
                before.append(copying(buffer, made))
                if made.block in written:
                    back.append((name, buffer, made))
        others = [(name, ref) for name, ref in self._plain if ref.block.base in written]
        for name, ref, _ in back:
            require_writable(ref, self.memory, name, strided=True)
            for other_name, other in others:
                if overlap(ref, other):
                    raise ValueError(
                        f"{name} shares memory with {other_name}, and both are written; "
                        "give it a buffer of its own"
                    )
            others.append((name, ref))
        finish = submission.finish
        given_back = msgspec.structs.replace(
            submission,
            result=self._given_back(submission.result),
            finish=None if finish is None else lambda answer: self._given_back(finish(answer)),
        )
        return given_back.around(before, [copying(made, ref) for _, ref, made in back])

    def _given_back(self, result: Any) -> Any:
        """Return a result with the caller's own views instead of their copies."""
        if type(result) is GpuRef:
            views = [each for each in self.scratch.values() if type(each[1]) is GpuRef]
            return next((ref for _, ref, made in views if made is result), result)
        if isinstance(result, tuple) and hasattr(result, "_make"):
            return type(result)(*map(self._given_back, result))
        if type(result) in (list, tuple):
            return type(result)(map(self._given_back, result))
        return result

    # --- what the request asks for --------------------------------------------------------

    @property
    def host_objects(self) -> HostObjects:
        """Keeper of the wrapped preparer."""
        return self._preparer.host_objects

    def output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """Return an uninitialised buffer of the wrapped preparer."""
        return self._preparer.output(shape, dtype)

    def obtain(self, make: Callable[[Preparer], Block]) -> Block:
        """Return the block that ``make`` gives."""
        return self._preparer.obtain(make)

    def depends(self, still: Callable[[], bool]) -> None:
        """Pass the condition to the wrapped preparer."""
        self._preparer.depends(still)

    def stand_in(self, ref: GpuRef) -> GpuRef:
        """Return the stand-in of the wrapped preparer."""
        return self._preparer.stand_in(ref)

    def perform(self, request: Request[T]) -> T | None:
        """Have another request carried out first; with copies around it, if it is on some."""

        def prepare_around(preparer: Preparer) -> Submission[T]:
            return self.around(request, request.prepare(preparer))

        around = Request(request.lane, request.name, prepare_around, request.key)
        return self._preparer.perform(around)
