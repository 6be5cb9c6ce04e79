"""The messages and errors that both sides declare, as bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from .. import _errors as accel_errors
from .. import actors
from .._errors import AccelError, RemoteError
from ..actors import Message, UnhandledMessage
from ..actors.messages import reply_type
from . import _errors as cluster_errors
from ._frames import FailedFrame


def _known_errors() -> dict[str, type[Exception]]:
    kinds: dict[str, type[Exception]] = {
        kind.__name__: kind
        for kind in (ValueError, TypeError, LookupError, KeyError, IndexError, RuntimeError)
    }
    kinds |= {kind.__name__: kind for kind in (ArithmeticError, ZeroDivisionError, OSError)}
    for module in (accel_errors, actors, cluster_errors):
        kinds |= {
            name: kind
            for name, kind in vars(module).items()
            if isinstance(kind, type) and issubclass(kind, AccelError)
        }
    return kinds


class MessageTable:
    """Messages by name, with what makes bytes of them.

    Args:
        messages: classes of messages. Both sides declare the same.
    """

    def __init__(self, messages: Iterable[type[Message[Any]]]) -> None:
        self._types: dict[str, type[Message[Any]]] = {}
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}
        self._replies: dict[type, msgspec.msgpack.Decoder[Any]] = {}
        self.digests: dict[str, str] = {}
        self._errors: Final = _known_errors()
        for kind in messages:
            self._add(kind)

    def _add(self, kind: Any) -> None:
        if not isinstance(kind, type) or not issubclass(kind, Message):
            raise TypeError(f"messages must be subclasses of Message, not {kind!r}")
        name = kind.__name__
        if self._types.get(name, kind) is not kind:
            raise ValueError(
                f"messages must have names of their own, not {name!r} twice; rename one"
            )
        reply = reply_type(kind)
        try:
            self._decoders[name] = msgspec.msgpack.Decoder(kind)
            self._replies[kind] = msgspec.msgpack.Decoder(None if reply is type(None) else reply)
            shape = {field.name: str(field.type) for field in msgspec.structs.fields(kind)}
        except (TypeError, NameError) as error:
            raise TypeError(
                f"{name} must have fields and a reply of types that msgspec encodes, not "
                f"others: {error}"
            ) from error
        self._types[name] = kind
        said = msgspec.json.encode([shape, str(reply)])
        self.digests[name] = hashlib.blake2b(said, digest_size=8).hexdigest()

    def encode(self, message: Message[Any]) -> tuple[str, bytes]:
        """Return the name and bytes of a message."""
        kind = type(message)
        if self._types.get(kind.__name__) is not kind:
            known = ", ".join(self._types) or "none"
            raise TypeError(
                f"a message to another node must be one of {known}, not a {kind.__name__}; "
                "declare it in open_cluster(messages=[...])"
            )
        return kind.__name__, msgspec.msgpack.encode(message)

    def decode(self, name: str, body: bytes) -> Message[Any]:
        """Return a message that came."""
        if name not in self._decoders:
            raise UnhandledMessage(f"no message {name!r} is declared here", path="")
        try:
            return self._decoders[name].decode(body)  # type: ignore[no-any-return]
        except msgspec.MsgspecError as error:
            raise ValueError(f"{name} cannot be read: {error}") from error

    def encode_reply(self, kind: type, reply: object) -> bytes:
        """Return the bytes of an answer."""
        try:
            body = msgspec.msgpack.encode(reply)
            self._replies[kind].decode(body)
        except (msgspec.MsgspecError, TypeError) as error:
            raise TypeError(
                f"the answer to a {kind.__name__} must be of its reply type, not {reply!r}: {error}"
            ) from error
        return body

    def decode_reply(self, kind: type, body: bytes) -> Any:
        """Return an answer that came."""
        return self._replies[kind].decode(body)

    def failure(self, number: int, error: BaseException) -> FailedFrame:
        """Return the frame of an error."""
        fields = error.fields() if isinstance(error, AccelError) else {}
        try:
            msgspec.msgpack.encode(fields)
        except (TypeError, msgspec.MsgspecError):
            fields = {}
        try:
            # KeyError shows the repr of its text.
            text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
        except Exception:  # noqa: BLE001 (the program's own class, which may do anything)
            text = type(error).__name__
        return FailedFrame(number, type(error).__name__, text[:4096], fields)

    def error(self, frame: FailedFrame) -> Exception:
        """Return the error of a frame; `RemoteError` for types that are not known here."""
        kind = self._errors.get(frame.kind)
        if kind is not None:
            try:
                return kind(frame.text, **frame.fields)
            except TypeError:
                pass
        return RemoteError(f"{frame.kind}: {frame.text}", type_name=frame.kind)
