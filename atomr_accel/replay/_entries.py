"""Entries of a journal: plain values that msgspec writes, without pickles.

Buffers are identified by the number of their memory block, so views of the same buffer share it. A
value that cannot be written is ``Opaque``, with a text that describes it.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, final

import msgspec

SCHEMA: Final = 1
"""Version of the entries in this module. A journal of another version is refused."""


class _JournalValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """An argument or a result that is not None, a bool, a number or text."""


@final
class Ref(_JournalValue, frozen=True, tag="ref"):
    """A buffer, or a view of one.

    Attributes:
        id: the number of its memory.
        dtype: the name of its dtype.
        shape: the shape of the view.
        offset: the offset in bytes from the start of the memory.
        strides: the strides in bytes; None for C-contiguous order.
        nbytes: the size of the whole memory in bytes.
    """

    id: int
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    strides: tuple[int, ...] | None = None
    nbytes: int = 0


@final
class ArrayValue(msgspec.Struct, tag="array"):
    """An array of the program.

    Attributes:
        dtype: the name of its dtype.
        hash: the hash of its bytes in C order; empty until it is computed.
    """

    dtype: str
    shape: tuple[int, ...]
    hash: bytes = b""


@final
class HandleValue(_JournalValue, frozen=True, tag="handle"):
    """Something with methods: a kernel, a generator, a fused function, a batch, a recording."""

    id: int


@final
class FunctionValue(_JournalValue, frozen=True, tag="function"):
    """A function or class, by name.

    Attributes:
        module: the name of its module.
        name: its qualified name in the module.
        hash: the hash of its source; empty without a source.
        file: the file of a module that was run as a program.
    """

    module: str
    name: str
    hash: bytes = b""
    file: str = ""


@final
class Partial(_JournalValue, frozen=True, tag="partial"):
    """A ``functools.partial``."""

    function: Value
    args: tuple[Value, ...] = ()
    kwargs: dict[str, Value] = {}


@final
class Items(_JournalValue, frozen=True, tag="items"):
    """A list or a tuple, by ``kind``."""

    kind: str
    items: tuple[Value, ...]


@final
class Pairs(_JournalValue, frozen=True, tag="pairs"):
    """A dict."""

    items: tuple[tuple[Value, Value], ...]


@final
class NumberValue(_JournalValue, frozen=True, tag="number"):
    """A value without a form in msgpack: bytes, complex, large int, lone surrogates, NumPy scalar.

    Attributes:
        dtype: NumPy's name, or the fields of a struct. ``"complex"``, ``"int"``, ``"bytes"`` and
            ``"str"`` are Python's types.
        data: the bytes; for a complex or an int its text, for a str UTF-8 with surrogates.
    """

    dtype: str
    data: bytes


@final
class DType(_JournalValue, frozen=True, tag="dtype"):
    """A dtype, or a type that stands for one; of a struct its fields, as ``numpy.lib.format``."""

    name: str


@final
class Slice(_JournalValue, frozen=True, tag="slice"):
    """A slice; ``...`` if all three are the text ``"..."``."""

    start: Value = None
    stop: Value = None
    step: Value = None


class FormulaStep(msgspec.Struct, frozen=True, array_like=True):
    """One value of an expression; as ``libraries.array.graph.GraphValue``."""

    kind: str
    name: str
    args: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[int, ...] = ()
    keepdims: bool = False


@final
class Formula(_JournalValue, frozen=True, tag="formula"):
    """An expression: its values, each after those that it is made of."""

    steps: tuple[FormulaStep, ...]
    operands: tuple[Ref, ...]
    constants: tuple[NumberValue, ...]
    result: int


@final
class Fields(_JournalValue, frozen=True, tag="fields"):
    """An instance of one of this package's dataclasses, named tuples, structs or enums."""

    of: FunctionValue
    fields: dict[str, Value]


@final
class Opaque(_JournalValue, frozen=True, tag="opaque"):
    """A value that cannot be made again from the journal."""

    text: str


Structured: TypeAlias = (
    Ref
    | ArrayValue
    | HandleValue
    | FunctionValue
    | Partial
    | Items
    | Pairs
    | NumberValue
    | DType
    | Slice
    | Formula
    | Fields
    | Opaque
)
Value: TypeAlias = bool | int | float | str | Structured | None
"""An argument or a result."""


class _JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened."""


@final
class Header(_JournalEntry, frozen=True, tag="header"):
    """The first entry.

    Attributes:
        schema: see ``SCHEMA``.
        package: this package's version.
        backend: what recorded it.
        device: the device's name.
        contents: whether arrays are kept, or only their hashes.
        results: whether every op's outputs are noted, or only what ``get`` gave.
        when_full: ``"drop"`` or ``"refuse"``.
        paths: where the program found its modules.
    """

    schema: int
    package: str
    backend: str
    device: str
    contents: bool
    results: bool
    when_full: str
    paths: tuple[str, ...] = ()


@final
class Outside(_JournalEntry, frozen=True, tag="outside"):
    """A buffer that was there before the journal, or came from elsewhere, when first used."""

    ref: Ref
    sealed: bool = False
    durable: bool = False


@final
class ContentEntry(_JournalEntry, frozen=True, tag="content"):
    """Content of a buffer of ``Outside`` when it was brought."""

    id: int
    array: ArrayValue


@final
class Brought(_JournalEntry, frozen=True, tag="brought"):
    """A facade that no call of the journal has made.

    Attributes:
        id: its number.
        kind: ``"generator"``, ``"fused"``, or the name of another type.
        made_of: the value to make another one from: the state of a generator, the fused function.
    """

    id: int
    kind: str
    made_of: Value = None


@final
class CallEntry(_JournalEntry, frozen=True, tag="call"):
    """A public call at its place in the program's order.

    Attributes:
        number: its number, from 1 without gaps.
        target: ``"device"``, the name of a library, or the facade with the method.
        method: the name of the method.
        args: positional arguments.
        kwargs: arguments by name.
        collector: the number of the batch or recording around it, or 0.
        generation: the device's generation at the time of the call.
        state: the state of the generator that it draws from.
    """

    number: int
    target: str | HandleValue
    method: str
    args: tuple[Value, ...] = ()
    kwargs: dict[str, Value] = {}
    collector: int = 0
    generation: int = 1
    state: Value = None


@final
class DoneEntry(_JournalEntry, frozen=True, tag="done"):
    """End of a call.

    Attributes:
        call: the number of the call.
        outcome: ``"ok"``, ``"error"``, ``"cancelled"``, or ``"sent"`` if only the end of its batch
            shows the outcome.
        error: the error's type name and message.
        fault: whether the call ended in a fault of the device.
        body: whether a block of a batch or recording was left by an error of the program's own
            code, not of a call in it.
    """

    call: int
    outcome: str = "ok"
    result: Value = None
    error: tuple[str, str] = ("", "")
    fault: bool = False
    body: bool = False


@final
class OutputEntry(_JournalEntry, frozen=True, tag="output"):
    """Content of one of a call's outputs right after the call.

    Attributes:
        call: the number of the call.
        where: ``"result"``, ``"result[1]"``, ``"args[0]"`` or ``"out"``.
        array: the content.
    """

    call: int
    where: str
    array: ArrayValue


@final
class DroppedEntry(_JournalEntry, frozen=True, tag="dropped"):
    """Buffers that the program holds no more; before the call of the next number."""

    ids: tuple[int, ...]


@final
class End(_JournalEntry, frozen=True, tag="end"):
    """The journal was closed; without, its program was killed."""

    calls: int


Entry: TypeAlias = (
    Header
    | Outside
    | ContentEntry
    | Brought
    | CallEntry
    | DoneEntry
    | OutputEntry
    | DroppedEntry
    | End
)

encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Entry)


def encode(entry: Entry) -> bytes:
    """Encode an entry. Text that UTF-8 cannot encode is escaped."""
    try:
        return encoder.encode(entry)
    except UnicodeEncodeError:  # such as the name of a file that is no UTF-8
        return encoder.encode(_escaped(msgspec.to_builtins(entry, builtin_types=(bytes,))))


def _escaped(plain: Any) -> Any:
    if isinstance(plain, str):
        return plain.encode("utf-8", "backslashreplace").decode()
    if isinstance(plain, dict):
        return {_escaped(key): _escaped(each) for key, each in plain.items()}
    return [_escaped(each) for each in plain] if isinstance(plain, list | tuple) else plain


def decode(data: bytes) -> Entry:
    """Decode an entry."""
    found: Any = _decoder.decode(data)
    return found  # type: ignore[no-any-return]
