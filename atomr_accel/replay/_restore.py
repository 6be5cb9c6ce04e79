"""Arguments and results from their descriptions in a journal."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from .._dtypes import DTYPES, NAMES, as_dtype
from .._errors import said_of
from ..actors.util import check_instance
from ..arrays import GpuRef, span
from ..arrays.expressions import Expression, constant
from ..device import Device
from ..memory import part_of
from ._describe import fields_of, source_hash
from ._entries import (
    ArrayValue,
    DType,
    Fields,
    Formula,
    FunctionValue,
    HandleValue,
    Items,
    NumberValue,
    Pairs,
    Partial,
    Ref,
    Slice,
)
from ._text import dtype_of, number_of, value_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from numpy.typing import DTypeLike

    from ._entries import CallEntry, Value


def view_of(
    ref: GpuRef,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    offset: int = 0,
    strides: tuple[int, ...] | None = None,
) -> GpuRef:
    """Return a view of a buffer's memory by its place, as journals describe views.

    Args:
        ref: the buffer, or any view of it.
        shape: the shape of the view.
        dtype: its dtype.
        offset: the offset in bytes from the start of the buffer's memory.
        strides: the strides in bytes; by default C-contiguous.

    Returns:
        The view.
    """
    kind, block = as_dtype(dtype), ref.block.base
    nbytes = math.prod(shape) * kind.itemsize
    low, high = (0, nbytes) if strides is None else span(shape, strides, kind.itemsize)
    if not 0 <= offset + low <= offset + high <= max(block.nbytes, ref.nbytes):
        raise ValueError(f"no view of shape {shape} at {offset} is in {block.nbytes} bytes")
    place = part_of(block, offset) if offset else block
    return GpuRef(place, shape, kind, nbytes, strides).on_block(place)


def check_replaced(device: object, functions: Any, inputs: Any) -> None:
    """Raise unless a replay can use its arguments."""
    check_instance("device", device, Device)
    for what, given in (("functions", functions), ("inputs", inputs)):
        if given is not None:
            check_instance(what, given, Mapping)
    for name, function in (functions or {}).items():
        if not callable(function):
            raise TypeError(f"functions[{name!r}] must be a function, not {said_of(function)}")
    for key, array in (inputs or {}).items():
        if not isinstance(key, bytes) or not isinstance(array, np.ndarray):
            raise TypeError(
                "inputs must be arrays by the bytes of content_hash(array), not "
                f"{said_of(array)} by {said_of(key)}"
            )


class Missing(Exception):
    """An object that a call needs cannot be made again; the message says which and why."""


@final
class Restorer:
    """Makes arguments from a journal's descriptions, with the buffers and facades that exist now.

    Args:
        array: returns the content of an array, or None.
        functions: replacements for functions, by qualified name.

    Attributes:
        replaced: the names of the replacements that were used.
        kept: the names of functions that were imported instead.
        buffers: a ref to each buffer, by its number.
        handles: the facades, by their numbers.
        lost: the reasons why buffers are missing, by their numbers.
    """

    def __init__(
        self,
        array: Callable[[ArrayValue], Awaitable[np.ndarray[Any, Any] | None]],
        functions: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._array: Final = array
        self._functions: Final = functions
        self.replaced: Final[set[str]] = set()
        self.kept: Final[set[str]] = set()
        self.buffers: Final[dict[int, GpuRef]] = {}
        self.handles: Final[dict[int, Any]] = {}
        self.lost: Final[dict[int, str]] = {}

    async def value(self, value: Value) -> Any:
        """Return the value of an argument."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        made = _PLAIN.get(type(value))
        if made is not None:
            try:
                return made(value)
            except (TypeError, ValueError) as error:
                raise Missing(f"{value_text(value)} cannot be made again: {error}") from error
        if isinstance(value, Ref):
            return self.ref(value)
        if isinstance(value, HandleValue):
            return self.handle(value)
        if isinstance(value, ArrayValue):
            return await self.array(value)
        if isinstance(value, FunctionValue):
            return self.function(value)
        if isinstance(value, Partial):
            args = [await self.value(each) for each in value.args]
            named = {name: await self.value(each) for name, each in value.kwargs.items()}
            return functools.partial(await self.value(value.function), *args, **named)
        if isinstance(value, Items):
            items = [await self.value(each) for each in value.items]
            return tuple(items) if value.kind == "tuple" else items
        if isinstance(value, Pairs):
            return {await self.value(key): await self.value(item) for key, item in value.items}
        if isinstance(value, Slice):
            if value.start == "...":
                return ...
            return slice(
                *[await self.value(each) for each in (value.start, value.stop, value.step)]
            )
        if isinstance(value, Formula):
            return self.formula(value)
        if isinstance(value, Fields):
            kind = self.function(value.of)
            named = {name: await self.value(each) for name, each in value.fields.items()}
            return kind(**named)
        text = getattr(value, "text", value)
        raise Missing(f"the journal holds no more of an argument than {text!r}")

    def ref(self, described: Ref) -> GpuRef:
        """Return a buffer, or a view of one."""
        known = self.buffers.get(described.id)
        if known is None:
            raise Missing(f"buffer #{described.id}: {self.lost.get(described.id, 'it is gone')}")
        return view_of(known, described.shape, described.dtype, described.offset, described.strides)

    def handle(self, described: HandleValue) -> Any:
        """Return the facade of this number."""
        if described.id not in self.handles:
            raise Missing(f"#{described.id}: nothing tells how it was made")
        return self.handles[described.id]

    async def array(self, described: ArrayValue) -> np.ndarray[Any, Any]:
        """Return an array of the program."""
        found = await self._array(described)
        if found is None:
            raise Missing(
                f"the content of a {described.dtype} array of shape {described.shape}: the journal "
                "holds its hash alone; record with contents=True, or give it by inputs="
            )
        return found

    def function(self, described: FunctionValue) -> Any:
        """Return a function or class by name; its source must be unchanged."""
        for name in (described.name, f"{described.module}.{described.name}"):
            if name in self._functions:
                self.replaced.add(name)
                return self._functions[name]
        self.kept.add(described.name)
        try:
            found = _module_of(described)
            for part in described.name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, OSError) as error:
            raise Missing(
                f"function {described.module}.{described.name} cannot be imported ({error}); give "
                f"it by functions={{{described.name!r}: ...}}"
            ) from error
        if described.hash and source_hash(found) != described.hash:
            raise Missing(
                f"function {described.module}.{described.name} is not what it was: its source has "
                f"changed; give one to go on with by functions={{{described.name!r}: ...}}"
            )
        return found

    def require_all_replaced(self) -> None:
        """Raise where a function was given that nothing was taken for."""
        if others := self._functions.keys() - self.replaced:
            raise ValueError(
                f"functions= names {', '.join(map(repr, sorted(others)))}, which the journal does "
                f"not call; it calls {', '.join(map(repr, sorted(self.kept))) or 'no others'}"
            )

    def formula(self, described: Formula) -> Any:
        """Return an expression."""
        made: list[Any] = []
        for step in described.steps:
            if step.kind == "operand":
                made.append(self.ref(described.operands[step.args[0]]))
                continue
            if step.kind == "constant":
                made.append(constant(number_of(described.constants[step.args[0]])))
                continue
            args = tuple(made[at] for at in step.args)
            params: tuple[Any, ...] = step.axes if step.kind == "index" else ()
            if step.kind in ("reduce", "arg"):
                params = step.axes, step.keepdims
            elif step.kind == "view":
                params = (tuple(None if at < 0 else at for at in step.axes),)
            kind: Any = step.kind
            made.append(Expression(kind, step.name, args, params, step.shape, DTYPES[step.dtype]))
        return made[described.result]

    # --- results ----------------------------------------------------------------------------

    def bind(self, described: Value, result: Any) -> None:
        """Register the result of a call under its numbers in the journal."""
        if isinstance(described, Ref):
            if type(result) is not GpuRef:
                raise TypeError(
                    f"a recorded call must return a buffer, not {type(result).__name__}"
                )
            if result.shape != described.shape or NAMES[result.dtype] != described.dtype:
                raise TypeError(
                    f"a recorded call must return a buffer of {described.dtype} "
                    f"{described.shape}, not of {result.dtype} {result.shape}"
                )
            self.buffers.setdefault(described.id, result)
        elif isinstance(described, HandleValue):
            self.handles.setdefault(described.id, result)
        elif isinstance(described, Items):
            if not isinstance(result, list | tuple) or len(result) != len(described.items):
                raise TypeError(f"a recorded call must return {len(described.items)} results")
            for each, item in zip(described.items, result, strict=True):
                self.bind(each, item)
        elif isinstance(described, Fields):
            fields = fields_of(result) or {}
            for name, each in described.fields.items():
                self.bind(each, fields.get(name))
        elif isinstance(described, Pairs):
            items = list(result.values()) if isinstance(result, dict) else []
            for (_, each), item in zip(described.items, items, strict=True):
                self.bind(each, item)


def refs_of(value: Any, where: str = "") -> Iterator[tuple[str, Ref]]:
    """Yield the buffers in a journal's arguments and results, as ``refs_in`` does for real ones."""
    if isinstance(value, Ref):
        yield where, value
    elif isinstance(value, Formula):
        yield from ((f"{where}.{at}", each) for at, each in enumerate(value.operands))
    elif isinstance(value, Items | list | tuple):
        items = value.items if isinstance(value, Items) else value
        for at, item in enumerate(items):
            yield from refs_of(item, f"{where}[{at}]")
    elif isinstance(value, Pairs):
        for key, item in value.items:
            yield from refs_of(item, f"{where}[{key!r}]")
    elif isinstance(value, Fields):
        for name, item in value.fields.items():
            yield from refs_of(item, f"{where}.{name}")
    elif isinstance(value, Partial):
        yield from refs_of((*value.args, *value.kwargs.values()), f"{where}.args")


def handles_of(value: Any) -> list[int]:
    """Return the numbers of the facades in a journal's arguments or results."""
    if isinstance(value, HandleValue):
        return [value.id]
    if isinstance(value, list | tuple):
        return [found for each in value for found in handles_of(each)]
    if isinstance(value, Items | Pairs):
        return handles_of(value.items)
    if isinstance(value, Fields):
        return handles_of([*value.fields.values()])
    return []


def refs_given(call: CallEntry) -> dict[str, Ref]:
    """Return the buffers among a call's arguments, by their places."""
    found = dict(refs_of(call.args, "args"))
    for name, value in call.kwargs.items():
        found.update(refs_of(value, name))
    return found


_PLAIN: Final[dict[type, Callable[[Any], Any]]] = {
    NumberValue: number_of,
    DType: lambda value: dtype_of(value.name),
}


_DEFINITIONS: Final = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.Import, ast.ImportFrom),
)


def _module_of(described: FunctionValue) -> Any:
    """Import the module of a function; the module of another program is imported from its file."""
    if described.module != "__main__":
        return importlib.import_module(described.module)
    here = sys.modules["__main__"]
    if not described.file or getattr(here, "__file__", None) == described.file:
        return here
    require_guard(described.file)
    name = f"_replayed_{Path(described.file).stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, described.file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{described.file} is no module")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def require_guard(file: str) -> None:
    """Refuse to import a program's own file if that would run the program again.

    It was run as a script. If no ``if`` of its top level looks at ``__name__``, importing it makes
    the same calls.

    Raises:
        ImportError: it would, or the file cannot be read.
    """
    try:
        tree = ast.parse(Path(file).read_bytes(), file)
    except (OSError, SyntaxError, ValueError) as error:
        raise ImportError(f"{file} cannot be read: {error}") from error
    runs = [each for each in tree.body if not isinstance(each, _DEFINITIONS)]
    tests = [node for each in runs if isinstance(each, ast.If) for node in ast.walk(each.test)]
    if any(isinstance(node, ast.Name) and node.id == "__name__" for node in tests):
        return
    if any(isinstance(node, ast.Call) for each in runs for node in ast.walk(each)):
        raise ImportError(
            f"importing {file} would run the whole program again; put what runs it under "
            f'`if __name__ == "__main__":`, or its functions into another module'
        )
