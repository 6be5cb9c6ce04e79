"""Descriptions of arguments and results for a journal."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import inspect
import reprlib
import sys
import weakref
from collections import deque
from enum import Enum
from types import BuiltinFunctionType, EllipsisType, FunctionType
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
import numpy as np

from .._dtypes import DTYPES, NAMES, native
from ..arrays import GpuRef
from ..arrays.expressions import Operand
from ..device.data.arrays import Arrays
from ..libraries.array.graph import ExpressionGraph
from ..libraries.nvrtc.structures import is_struct
from ..memory import Block
from ..ops import Facade, Identity
from ._entries import (
    ArrayValue,
    DType,
    Fields,
    Formula,
    FormulaStep,
    FunctionValue,
    HandleValue,
    Items,
    NumberValue,
    Opaque,
    Pairs,
    Partial,
    Ref,
    Slice,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ._entries import Value

_LONGEST: Final = 200
_INT64: Final = range(-(2**63), 2**63)
_SOURCES: Final[weakref.WeakKeyDictionary[Any, bytes]] = weakref.WeakKeyDictionary()
_TYPES: Final = (bool, int, float, complex)

DEEPEST: Final = 100
"""Depth of nested containers up to which they are described."""

_MOST_CONTAINERS: Final = 1 << 17
"""Containers described per call, because some contain one another many times."""

_SHORT: Final = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = _LONGEST


class _TooDeep(Exception):
    """A value contains itself, is too deep, or has too many parts."""


def digest(data: Any) -> bytes:
    """Return the hash of bytes that journals use (BLAKE2b, 20 bytes)."""
    return hashlib.blake2b(data, digest_size=20).digest()


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return a dtype in a journal's form: its name, or its fields."""
    return dtype.name if dtype.names is None else repr(np.lib.format.dtype_to_descr(dtype))


def _bytes_of(struct: Any) -> bytes:
    return struct.tobytes() if hasattr(struct, "tobytes") else bytes(struct)


@final
class ObjectNumbers:
    """Numbers of the buffers and facades that exist now.

    The last ref of a buffer may be dropped in any thread, and the next buffer may then have its
    identity. So a death is only noted, and an identity counts while its own weak ref lives.
    """

    def __init__(self) -> None:
        self._last = 0
        self._blocks: dict[int, tuple[weakref.ref[Block], int]] = {}
        self._handles: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._gone: Final[deque[tuple[int, int]]] = deque()

    def new(self) -> int:
        """Return a new number."""
        self._last += 1
        return self._last

    def of_block(self, block: Block) -> int:
        """Return the number of some memory, or 0 if it has none."""
        known = self._blocks.get(id(block))
        return known[1] if known is not None and known[0]() is block else 0

    def add_block(self, block: Block) -> int:
        """Give some memory a number."""
        number, key = self.new(), id(block)

        def gone(_ref: object) -> None:
            dead.append((key, number))

        dead = self._gone
        self._blocks[key] = weakref.ref(block, gone), number
        return number

    def lose(self, block: Block) -> None:
        """Take the number from some memory that exists and whose content does not."""
        number = self.of_block(block)
        if number:
            del self._blocks[id(block)]  # its death is not noted any more
            self._gone.append((id(block), number))

    def take_dead(self) -> tuple[int, ...]:
        """Return the numbers of buffers that are gone, each of them once."""
        dead = []
        while self._gone:
            key, number = self._gone.popleft()
            if key in self._blocks and self._blocks[key][1] == number:
                del self._blocks[key]  # else another buffer has this identity by now
            dead.append(number)
        return tuple(dead)

    def of_handle(self, identity: object) -> int:
        """Return the number of a facade, or 0 if it has none."""
        return self._handles.get(identity, 0)

    def add_handle(self, identity: object) -> int:
        """Give a facade a number."""
        number = self._handles[identity] = self.new()
        return number


def identity_of(thing: Any) -> Identity | object:
    """Return the object by which a facade is known; all copies of the facade share it."""
    return thing.shared_identity if isinstance(thing, Facade) and not is_device(thing) else thing


def is_device(thing: Any) -> bool:
    """Return True for a device, a batch or a recording, which are facades too."""
    return isinstance(thing, Arrays)


@final
class Describer:
    """Describes the arguments and the result of one call.

    Args:
        numbers: the known buffers and facades.
        brought: called for a buffer or a facade that was not made by a call.
        keep: takes the content of an array.
    """

    def __init__(
        self,
        numbers: ObjectNumbers,
        brought: Callable[[Any, int], None],
        keep: Callable[[ArrayValue, np.ndarray[Any, Any]], None],
    ) -> None:
        self._numbers: Final = numbers
        self._brought: Final = brought
        self._keep: Final = keep
        self._inside: Final[set[int]] = set()  # containers that are being described
        self._containers = 0

    def argument(self, value: Any) -> Value:
        """Describe an argument. Unknown buffers and facades came from outside."""
        return self._described(value, self._brought)

    def result(self, value: Any) -> Value:
        """Describe a result. Unknown buffers and facades were made by the call."""
        return self._described(value, None)

    def _described(self, value: Any, brought: Callable[[Any, int], None] | None) -> Value:
        try:
            return self._describe(value, brought)
        except Exception:  # noqa: BLE001 - the call must work as without a journal
            self._inside.clear()
            return Opaque(_text(value))

    def _describe(self, value: Any, brought: Callable[[Any, int], None] | None) -> Value:
        kind = type(value)
        if value is None or kind in (bool, float):
            plain: Value = value
            return plain
        if kind is str:
            return _str(value)
        if kind is int:
            return value if value in _INT64 else NumberValue("int", hex(value).encode())
        if kind is GpuRef:
            return self._ref(value, brought)
        inside, identity = self._inside, id(value)
        self._containers += 1
        if identity in inside or len(inside) == DEEPEST or self._containers > _MOST_CONTAINERS:
            raise _TooDeep
        inside.add(identity)
        made = self._describe_other(value, kind, brought)
        inside.remove(identity)
        return made

    def _describe_other(
        self, value: Any, kind: type, brought: Callable[[Any, int], None] | None
    ) -> Value:
        describe = functools.partial(self._describe, brought=brought)
        if kind in (list, tuple):
            return Items(kind.__name__, tuple(map(describe, value)))
        if kind is dict:
            return Pairs(tuple((describe(key), describe(item)) for key, item in value.items()))
        if kind is bytes:
            return NumberValue("bytes", value)
        if kind is complex:
            return NumberValue("complex", str(value).encode())
        if isinstance(value, np.generic) and value.dtype in NAMES:
            return NumberValue(NAMES[value.dtype], value.tobytes())
        if is_struct(value):
            fields = np.dtype(kind) if isinstance(value, ctypes.Structure) else value.dtype
            return NumberValue(dtype_text(fields), _bytes_of(value))
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, np.dtype):
            return DType(dtype_text(value))
        if kind is slice:
            return Slice(describe(value.start), describe(value.stop), describe(value.step))
        if kind is EllipsisType:
            return Slice("...", "...", "...")
        if isinstance(value, Operand):
            return self._formula(value, brought)
        if isinstance(value, functools.partial):
            named = {name: describe(item) for name, item in value.keywords.items()}
            return Partial(describe(value.func), tuple(map(describe, value.args)), named)
        if isinstance(value, type) and (value in _TYPES or issubclass(value, np.generic)):
            return DType(np.dtype(value).name)
        if isinstance(value, FunctionType | BuiltinFunctionType | type | np.ufunc):
            return function_of(value)
        if isinstance(value, Facade) or is_device(value):
            return self.handle(value, brought)
        return self._fields(value, describe)

    def handle(self, thing: Any, brought: Callable[[Any, int], None] | None) -> HandleValue:
        """Something with methods."""
        identity = identity_of(thing)
        number = self._numbers.of_handle(identity)
        if not number:
            number = self._numbers.add_handle(identity)
            if brought is not None:
                brought(thing, number)
        return HandleValue(number)

    def target(self, facade: Any) -> str | HandleValue:
        """Describe the object whose method is called."""
        if is_device(facade):
            return "device"
        return facade.library or self.handle(facade, self._brought)

    def _ref(self, ref: GpuRef, brought: Callable[[Any, int], None] | None) -> Ref:
        block = ref.block
        whole = block.base
        number = self._numbers.of_block(whole)
        if not number:
            number = self._numbers.add_block(whole)
            if brought is not None:
                brought(ref, number)
        return Ref(number, NAMES[ref.dtype], ref.shape, block.offset, ref.own_strides, whole.nbytes)

    def _array(self, value: np.ndarray[Any, Any]) -> Value:
        value = native(value)
        if value.dtype not in DTYPES.values():
            return Opaque(f"an array of {value.dtype}")
        array = ArrayValue(DTYPES[value.dtype.name].name, value.shape)
        self._keep(array, value)
        return array

    def _formula(self, value: Operand, brought: Callable[[Any, int], None] | None) -> Value:
        graph = ExpressionGraph((value,))
        steps = tuple(
            FormulaStep(
                each.kind,
                each.name,
                each.args,
                each.shape,
                NAMES[each.dtype],
                each.axes,
                each.keepdims,
            )
            for each in graph.values
        )
        constants = tuple(
            NumberValue(each.dtype.name, each.tobytes()) for each, _ in graph.constants
        )
        operands = tuple(self._ref(ref, brought) for ref in graph.operands)
        return Formula(steps, operands, constants, graph.results[0])

    def _fields(self, value: Any, describe: Callable[[Any], Value]) -> Value:
        """Describe an instance of a type of this package that has fields."""
        kind = type(value)
        if kind.__module__.partition(".")[0] != __package__.partition(".")[0]:
            return Opaque(_text(value))
        if isinstance(value, Enum):
            return Fields(function_of(kind), {"value": describe(value.value)})
        fields = fields_of(value)
        if fields is None:
            return Opaque(_text(value))
        return Fields(function_of(kind), {name: describe(item) for name, item in fields.items()})


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass, a named tuple or a struct; None for other types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: getattr(value, name) for name in value._fields}
    if isinstance(value, msgspec.Struct) and not isinstance(value, Operand):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    return None


def function_of(value: Any) -> FunctionValue:
    """Describe a function or class by its name, with the hash of its source."""
    module, name = str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", ""))
    if isinstance(value, np.ufunc):
        module, name = "numpy", value.__name__
    file = ""
    if module == "__main__":
        file = str(getattr(sys.modules["__main__"], "__file__", "") or "")
    return FunctionValue(module, name or _text(value), source_hash(value), file)


def source_hash(value: Any) -> bytes:
    """Return the hash of a function's source, else that of its code, else b""."""
    try:
        known = _SOURCES.get(value)
    except TypeError:
        return b""
    if known is None:
        try:
            known = digest(inspect.getsource(value).encode())
        except Exception:  # noqa: BLE001 - inspect cuts it out of a file as that is now
            code = getattr(value, "__code__", None)
            known = b"" if code is None else digest(code.co_code)
        _SOURCES[value] = known
    return known


def _str(value: str) -> Value:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # such as the name of a file that is no UTF-8
            return NumberValue("str", value.encode("utf-8", "surrogatepass"))
    return value


def message_of(error: BaseException) -> str:
    """Return the message of an error."""
    try:
        return str(error)[:1000]
    except Exception:  # noqa: BLE001 - as `_text`
        return ""


def _text(value: Any) -> str:
    try:
        # Containers are shortened before they become text, because they may have too many parts.
        text = (_SHORT.repr if isinstance(value, list | tuple | dict) else repr)(value)
    except Exception:  # noqa: BLE001 - it is the program's, and no reason to fail a call
        text = f"<{type(value).__qualname__}>"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def refs_in(value: Any, where: str) -> Iterator[tuple[str, GpuRef]]:
    """Yield the buffers in an argument or a result, with their places in it."""
    todo = [(where, value)]
    seen: dict[int, Any] = {}  # some containers hold themselves, or one another many times
    while todo:
        where, value = todo.pop()
        if type(value) is GpuRef:
            yield where, value
        elif id(value) not in seen:
            parts = _parts(value, where)
            if parts:
                seen[id(value)] = value
                todo += reversed(parts)


def _parts(value: Any, where: str) -> list[tuple[str, Any]]:
    own = str(type(value).__module__).startswith(__package__.partition(".")[0])
    fields = fields_of(value) if own else None  # as they are described, also of named tuples
    if fields is not None:
        return [(f"{where}.{name}", item) for name, item in fields.items()]
    if isinstance(value, list | tuple):
        return [(f"{where}[{at}]", item) for at, item in enumerate(value)]
    if type(value) is not dict:
        return []
    return [
        (f"{where}[{repr(key) if type(key) is str else _text(key)}]", item)
        for key, item in value.items()
    ]
