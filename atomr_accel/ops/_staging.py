"""Staging of views: ops that need contiguous buffers work on contiguous copies.

Most ops take contiguous buffers only, as their vendors do. If such an op gets another view, its
request is made again with scratch memory instead of the view. The elements of the view are copied
there right before the op, and back right after it if the op has written them. All of that is
submitted together, so no op of another task comes in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import msgspec

from ..memory import GpuRef, NotContiguous
from ._arguments import overlap, require_readable, require_writable
from ._copies import copying
from ._request import Preparing, Request, Submission

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from ..memory import Block, MemoryMap
    from ._library import Home
    from ._request import Driver, Keeper

T = TypeVar("T")


def has_views(*values: Any) -> bool:
    """Return whether any of the arguments is a view that is not contiguous."""
    found: list[GpuRef] = []

    def note(ref: GpuRef, _name: str) -> GpuRef:
        found.append(ref)
        return ref

    replaced(values, "", note)
    return bool(found)


def on_copies(
    make: Callable[..., Request[T]], facade: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Request[T]:
    """Return the request of a call, made on copies instead of views that are not contiguous."""

    def staged(driver: Driver, *, by_columns: bool) -> Submission[T]:
        staging = _Staging(driver, by_columns=by_columns)
        given, named = staging.put(args), staging.put(kwargs)
        request = make(facade, *given, **named)
        return staging.around(request, request.prepare(staging))

    def prepare(driver: Driver) -> Submission[T]:
        # Copies lie by rows. Some ops take matrices by columns, or no others: they may only have
        # refused another of the views.
        if _ways_of(args, kwargs) == {True, False}:
            try:
                return staged(driver, by_columns=True)
            except NotContiguous:
                pass
        return staged(driver, by_columns=False)

    # Some calls look at their buffers at once: for that, any of these shapes will do.
    given, named = replaced(args, "", _seen_contiguous), replaced(kwargs, "", _seen_contiguous)
    request = make(facade, *given, **named)
    return Request(request.lane, request.name, prepare)


def on_any_views(
    make: Callable[..., Request[T]], facade: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Request[T]:
    """Return the request of a call, carried out later, on any views."""
    views = has_views(args, kwargs)
    try:
        request = make(facade, *args, **kwargs)
    except NotContiguous:
        if not views:
            raise
        return on_copies(make, facade, args, kwargs)
    if not views:
        return request
    plain = request.prepare

    def prepare(driver: Driver) -> Submission[T]:
        try:
            return plain(driver)
        except NotContiguous:
            pass
        return on_copies(make, facade, args, kwargs).prepare(driver)

    return Request(request.lane, request.name, prepare)


def replaced(value: Any, name: str, by: Callable[[GpuRef, str], GpuRef]) -> Any:
    """Arguments with something else in the place of views that are not contiguous."""
    return _mapped(value, name, lambda ref, what: ref if ref._strides is None else by(ref, what))


def _mapped(value: Any, name: str, by: Callable[[GpuRef, str], GpuRef]) -> Any:
    """Arguments with something else in the place of buffers."""
    if type(value) is GpuRef:
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

    def note(ref: GpuRef, _name: str) -> GpuRef:
        found.add(_by_columns(ref))
        return ref

    replaced(values, "", note)
    return found


def _by_columns(ref: GpuRef) -> bool:
    """True if the elements of each column of a matrix are contiguous."""
    return ref.ndim > 1 and ref.strides[-2] == ref.dtype.itemsize


def _seen_contiguous(ref: GpuRef, _name: str) -> GpuRef:
    """Return a ref that describes itself as a contiguous copy would; its address is not used."""
    return GpuRef(ref._place, ref.shape, ref.dtype, ref.nbytes)


@final
class _Staging(Preparing):
    """The driver of a request on scratch memory.

    Attributes:
        scratch: by the identity of a view: its name, the view, and its copy.
    """

    def __init__(self, driver: Driver, *, by_columns: bool) -> None:
        self._driver = driver
        self._by_columns = by_columns  # whether what lies by columns is given as it is
        self.home: Final[Home] = driver.home
        self.memory: Final[MemoryMap] = driver.memory
        self.scratch: Final[dict[int, tuple[str, GpuRef, GpuRef]]] = {}
        self._plain: list[tuple[str, GpuRef]] = []  # arguments that need no copy

    def put(self, value: Any) -> Any:
        """Arguments with scratch memory in the place of views."""
        return _mapped(value, "argument", self._copy_of)

    def _copy_of(self, ref: GpuRef, name: str) -> GpuRef:
        if ref._strides is None or (self._by_columns and _by_columns(ref)):
            self._plain.append((name, ref))
            return ref
        if id(ref) not in self.scratch:
            require_readable(ref, self.memory, name, strided=True)
            self.scratch[id(ref)] = name, ref, self.output(ref.shape, ref.dtype)
        return self.scratch[id(ref)][2]

    def around(self, request: Request[Any], submission: Submission[Any]) -> Submission[Any]:
        """Return a submission with the copies before and after all of its steps."""
        submission = msgspec.structs.replace(
            submission, reads=tuple(submission.reads), writes=tuple(submission.writes)
        )
        steps = [made for _, made in submission.steps(request, self) if made.message is not None]
        written = {block.base for made in steps for block in made.writes}
        touched = written | {block.base for made in steps for block in made.reads}
        used = [each for each in self.scratch.values() if each[2]._block in touched]
        back = [each for each in used if each[2]._block in written]
        others = [(name, ref) for name, ref in self._plain if ref._block.base in written]
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
        return given_back.around(
            [copying(ref, made) for _, ref, made in used],
            [copying(made, ref) for _, ref, made in back],
        )

    def _given_back(self, result: Any) -> Any:
        """Return a result with the caller's own views instead of their copies."""
        if type(result) is GpuRef:
            return next((ref for _, ref, made in self.scratch.values() if made is result), result)
        if isinstance(result, tuple) and hasattr(result, "_make"):
            return type(result)(*map(self._given_back, result))
        if type(result) in (list, tuple):
            return type(result)(map(self._given_back, result))
        return result

    # --- what the request asks for --------------------------------------------------------

    @property
    def keeper(self) -> Keeper:
        """Keeper of the wrapped driver."""
        return self._driver.keeper

    def output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """Return an uninitialised buffer of the wrapped driver."""
        return self._driver.output(shape, dtype)

    def obtain(self, make: Callable[[Driver], Block]) -> Block:
        """Return the block that ``make`` gives."""
        return self._driver.obtain(make)

    def depends(self, still: Callable[[], bool]) -> None:
        """Pass the condition to the wrapped driver."""
        self._driver.depends(still)

    def stand_in(self, ref: GpuRef) -> GpuRef:
        """Return the stand-in of the wrapped driver."""
        return self._driver.stand_in(ref)

    def perform(self, request: Request[T]) -> T | None:
        """Have another request carried out first; with copies around it, if it is on some."""

        def prepare_around(driver: Driver) -> Submission[T]:
            return self.around(request, request.prepare(driver))

        around = Request(request.lane, request.name, prepare_around, request.key)
        return self._driver.perform(around)
