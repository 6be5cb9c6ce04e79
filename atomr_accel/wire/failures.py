"""Errors as answers: packed in the host, and raised in the program as their own types."""

from __future__ import annotations

import builtins
import contextlib
import errno
import traceback
from typing import TYPE_CHECKING, Any, Final

import cloudpickle
import msgspec

from .. import _errors
from .._errors import AccelError, OutOfMemory, RemoteError
from .messages import Failure, Plain, ProtocolViolation, encoder

if TYPE_CHECKING:
    pass

_TEXT: Final = 1 << 18
"""Characters of an error's message, and of its traceback."""

_PICKLED: Final = 1 << 20
"""Bytes of a pickled error."""


# Raising these two has another meaning: the end of an iterator.
_NEVER: Final = (StopIteration, StopAsyncIteration)

_KINDS: Final[dict[str, type[Exception]]] = {
    kind.__name__: kind
    for kind in (*vars(builtins).values(), *vars(_errors).values())
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and not issubclass(kind, (*_NEVER, BaseExceptionGroup))
}
"""Errors that are sent by name: errors of this package, and builtin ones."""


def pack_exception(seq: int, error: BaseException, *, pickles: bool = False) -> Failure:
    """An exception of the host as a reply.

    Args:
        seq: the op that it answers.
        error: any exception, whatever is wrong with it.
        pickles: whether it may travel as a pickle if it cannot by name.
    """
    kind = _encodable(type(error).__name__)
    where = _traceback_of(error)
    with contextlib.suppress(Exception):  # a program may have put anything into it
        if _KINDS.get(kind) is type(error):
            fields, args = _plain_parts(error)
            match args:
                case (str(message),):
                    return Failure(seq, kind, _encodable(message), fields, where)
                case _:
                    return Failure(seq, kind, "", fields, where, args)
    if pickles and (pickled := _pickle(error)):
        return Failure(seq, kind, _text_of(error), {}, where, None, pickled)
    return Failure(seq, "RemoteError", f"{kind}: {_text_of(error)}", {"type_name": kind}, where)


def _plain_parts(error: BaseException) -> tuple[dict[str, int | str], tuple[Plain, ...]]:
    """The attributes and arguments that are all there is to it."""
    if isinstance(error, AccelError):
        if [*map(type, error.args)] != [str]:
            raise TypeError("there is more to it than a message")
        plain = {
            name: _encodable(value) if isinstance(value, str) else value
            for name, value in error.fields().items()
        }
        encoded = encoder.encode(plain)
        return msgspec.msgpack.decode(encoded, type=dict[str, int | str]), error.args
    reduced = error.__reduce__()
    no_more = {"__notes__"}
    if type(error) is AttributeError:  # its fields since Python 3.12 are in its message
        no_more |= {"name", "args"}
    if isinstance(reduced, str) or any(more and set(more) - no_more for more in reduced[2:]):
        raise TypeError("it has attributes")
    args: tuple[Any, ...] = reduced[1]
    if [*map(type, args)] != [str]:
        if len(encoder.encode(args)) > _TEXT:
            raise ValueError("it is too large")
        if [*map(type, args)] != [*map(type, msgspec.convert(args, tuple[Plain, ...]))]:
            raise TypeError("it has arguments that are not plain")
    return {}, args


def _pickle(error: BaseException) -> bytes:
    """An exception as a pickle; empty if it cannot travel."""
    if not isinstance(error, Exception):  # raising it would end more than a call
        return b""
    try:
        pickled: bytes = cloudpickle.dumps(error)
    except BaseException:  # noqa: BLE001 (what it does is up to the program)
        return b""
    return pickled if len(pickled) <= _PICKLED else b""


def _text_of(error: BaseException) -> str:
    try:
        return _encodable(str(error))
    except BaseException as broken:  # noqa: BLE001 (what it raises is up to the program)
        return f"(no message: {type(broken).__name__} in __str__)"


def _traceback_of(error: BaseException) -> str:
    try:
        return _encodable("".join(traceback.format_exception(error)))
    except BaseException as broken:  # noqa: BLE001 (as above)
        return f"(no traceback: {type(broken).__name__} while it was formatted)"


def _encodable(text: str) -> str:
    if len(text) > _TEXT:
        text = f"{text[:_TEXT]}... ({len(text) - _TEXT} more characters)"
    return text.encode(errors="backslashreplace").decode()


def unpack_exception(failure: Failure, *, pickles: bool = False) -> Exception:
    """Return the exception that a reply stands for.

    An error of another package has the host's traceback as a note.

    Args:
        failure: the reply.
        pickles: whether it may be a pickle, because it answers a call of the program's own
            functions.

    Raises:
        ProtocolViolation: a correct host does not send this reply.
    """
    if failure.pickled:
        if not pickles:
            raise ProtocolViolation("an error came as a pickle, where none is read")
        return _unpickle(failure)
    kind = _KINDS.get(failure.kind)
    wanted = getattr(kind, "_fields", ())
    if kind is None or failure.fields.keys() != set(wanted):
        raise ProtocolViolation(f"there is no error {failure.kind!r} with {[*failure.fields]}")
    args = (failure.message,) if failure.args is None else failure.args
    try:
        error = kind(*args, **failure.fields)
    except (TypeError, ValueError, OverflowError) as wrong:
        raise ProtocolViolation(f"{failure.kind} is not made with {args}") from wrong
    if not isinstance(error, AccelError) or kind is RemoteError:
        error.add_note(_note_of(failure))
    return error


def _unpickle(failure: Failure) -> Exception:
    try:
        error = cloudpickle.loads(failure.pickled)
        if isinstance(error, Exception) and not isinstance(error, _NEVER):
            error.add_note(_note_of(failure))
            return error
    except Exception:  # noqa: BLE001, S110 - its class may exist only in the host
        pass
    remote = RemoteError(f"{failure.kind}: {failure.message}", type_name=failure.kind)
    remote.add_note(_note_of(failure))
    return remote


def _note_of(failure: Failure) -> str:
    return f"In the host:\n{failure.traceback}"


# --- shortages, which may be over the next time -----------------------------------------

SHORTAGES: Final = frozenset(
    {errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS}
)
"""Errors of the system for a shortage of memory, processes, threads or descriptors."""

_NOT_MAPPED: Final = ("failed to map segment", "Cannot allocate memory")
"""Errors of the dynamic linker for a shortage, which Python raises as an ``ImportError``."""


def is_shortage(error: BaseException) -> bool:
    """Return True if an error means such a shortage, which may be over at the next attempt."""
    if isinstance(error, OSError):
        return error.errno in SHORTAGES
    if isinstance(error, ImportError):
        return any(text in str(error) for text in _NOT_MAPPED)
    return isinstance(error, MemoryError)


def as_out_of_memory(error: BaseException, where: str) -> BaseException:
    """Return ``OutOfMemory``, caused by the error, if it means a shortage; else the error."""
    if not is_shortage(error):
        return error
    short = OutOfMemory(
        f"{where} is short of memory or descriptors: {type(error).__name__}: {error}", requested=0
    )
    short.__cause__ = error
    return short
