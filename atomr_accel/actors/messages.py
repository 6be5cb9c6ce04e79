"""Messages that state their reply type, and the handlers that must agree with it."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Coroutine, Mapping
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Generic,
    Literal,
    Never,
    NoReturn,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

import msgspec
import trio

Reply_co = TypeVar("Reply_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])


# To type checkers, classes derived from a frozen struct are frozen only if they say so
# again; at run time they are in any case. This tells them.
@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Message(msgspec.Struct, Generic[Reply_co], frozen=True):
    """Base of all messages: a frozen struct that states the type of its answer.

    ::

        class Add(Message[int]):
            k: int

    ``await ref.ask(Add(k=2))`` is then an ``int`` to type checkers, and a handler for
    ``Add`` that returns something else is an error when its class is defined. A message
    that expects no answer is a ``Message[None]``.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if Message in cls.__bases__ and reply_type(cls) is _UNSTATED:
            raise TypeError(
                f"message {cls.__qualname__} does not state its reply type; write "
                f"`class {cls.__name__}(Message[None])`, or another type in place of None"
            )


_UNSTATED = object()


def reply_type(message_type: type) -> Any:
    """Return the type of a message's answer; a `TypeVar` if it is left open."""
    for base in message_type.__dict__.get("__orig_bases__", ()):
        origin = get_origin(base)
        if origin is Message:
            return get_args(base)[0]
        if isinstance(origin, type) and issubclass(origin, Message):
            stated = reply_type(origin)
            arguments = dict(zip(_parameters(origin), get_args(base), strict=False))
            return arguments.get(stated, stated)
    for plain in message_type.__bases__:
        if plain is not Message and issubclass(plain, Message):
            return reply_type(plain)
    return _UNSTATED


def _parameters(generic: type) -> tuple[Any, ...]:
    return getattr(generic, "__parameters__", ())


class GetStatistics(Message[Any]):
    """A question for the statistics of a service, as ``service.statistics()`` returns them."""


def handler(function: F) -> F:
    """Mark an async method of an actor as the handler of a message type.

    ::

        @handler
        async def add(self, message: Add) -> int: ...

    The annotation of its one argument says which messages it takes (a union: several;
    a base class: also those derived from it). Its return annotation must agree with the
    reply type that they state.

    Raises:
        TypeError: when the class is defined, if the signature does not fit.
    """
    # Classes are often defined inside functions, whose names annotations may use: the
    # body of the class is one frame up, what surrounds it two.
    body = sys._getframe(1)
    around = body.f_back.f_locals if body.f_back is not None else {}
    names = ChainMap(dict(body.f_locals), dict(around))
    function.__handles__ = _handled_types(function, names)  # type: ignore[attr-defined]
    # Handlers are called from a loop that is protected from Ctrl-C; they are not.
    return trio.lowlevel.disable_ki_protection(function)


LATER = object()
"""Result of a handler that has passed its message to a task."""


def side_by_side(
    *message_types: type[Message[Any]],
) -> Callable[[Callable[[Any, Any], Coroutine[Any, Any, Any]]], Callable[..., Any]]:
    """Mark a plain method as the handler of messages that are handled side by side.

    It is called for one message after the other. The coroutine it returns runs in a task of
    the actor's nursery and gives the reply; if the asker is cancelled, so is that task. What
    the task raises is the asker's alone, and no failure of the actor.

    Args:
        *message_types: the types of messages that it takes.
    """

    def mark(method: Callable[[Any, Any], Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        @trio.lowlevel.enable_ki_protection
        async def give_away(actor: Any, message: Message[Any]) -> object:
            actor._cell.answer_later(message, method(actor, message))
            return LATER

        functools.update_wrapper(give_away, method)
        give_away.__handles__ = message_types  # type: ignore[attr-defined]
        return give_away

    return mark


def collect_handlers(actor_type: type) -> dict[type, Callable[..., Any]]:
    """The handlers of an actor class by message type, those it inherits included.

    A handler overridden by name stays a handler, with or without the decorator.
    """
    names: dict[type, str] = {}
    for base in reversed(actor_type.__mro__):
        own: dict[type, str] = {}
        for name, attribute in vars(base).items():
            for message_type in getattr(attribute, "__handles__", ()):
                if message_type in own:
                    raise TypeError(
                        f"{base.__qualname__} has two handlers of {message_type.__qualname__}: "
                        f"{own[message_type]} and {name}; one has to go"
                    )
                own[message_type] = name
        names |= own
    return {message_type: getattr(actor_type, name) for message_type, name in names.items()}


@functools.lru_cache(maxsize=64)
def unmarked_handler(actor_type: type, message_type: type) -> str | None:
    """Return the method whose annotation names a message type, but which is not a handler."""
    kinds = [
        each for each in message_type.__mro__ if issubclass(each, Message) and each is not Message
    ]
    names = {each.__name__ for each in kinds}
    for base in actor_type.__mro__:
        for name, method in vars(base).items():
            if not inspect.iscoroutinefunction(method) or hasattr(method, "__handles__"):
                continue
            try:
                parameters = list(inspect.signature(method).parameters.values())
            except NameError:  # of an annotation
                continue
            if len(parameters) != 2:
                continue
            annotation = parameters[1].annotation
            if isinstance(annotation, str):  # not evaluated: its names may be gone
                found = any(each.split(".")[-1].strip() in names for each in annotation.split("|"))
            else:
                members = get_args(annotation) if _is_union(annotation) else (annotation,)
                found = any((get_origin(each) or each) in kinds for each in members)
            if found:
                return name
    return None


def _handled_types(function: Callable[..., Any], names: Mapping[str, Any]) -> tuple[type, ...]:
    where = f"handler {function.__qualname__}"
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"{where} must be an async function: write `async def`")
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 2 or any(
        parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in parameters
    ):
        raise TypeError(
            f"{where} must take one message, as in `async def "
            f"{function.__name__}(self, message: SomeMessage) -> Reply`, not "
            f"{inspect.signature(function)}"
        )
    message = parameters[1]
    if message.annotation is message.empty:
        raise TypeError(f"{where}: annotate {message.name!r} with the message type it handles")
    annotation = _resolve(message.annotation, function, names)
    handled = get_args(annotation) if _is_union(annotation) else (annotation,)
    returned = _resolve(inspect.signature(function).return_annotation, function, names)
    for message_type in handled:
        plain = get_origin(message_type) or message_type
        if not isinstance(plain, type) or not issubclass(plain, Message) or plain is Message:
            raise TypeError(
                f"{where}: {message.name!r} must be annotated with a subclass of "
                f"Message, not {message_type!r}"
            )
        expected = reply_type(plain)
        if plain is not message_type:  # a generic message with its parameters filled in
            filled = dict(zip(_parameters(plain), get_args(message_type), strict=False))
            expected = filled.get(expected, expected)
        expected = _resolve(expected, function, names)
        if returned is inspect.Signature.empty:
            raise TypeError(
                f"{where} does not say what it returns; {_show(plain)} is answered with "
                f"{_show(expected)}: write `-> {_show(expected)}`"
            )
        if not _fits(returned, expected):
            raise TypeError(
                f"{where} must return {_show(expected)}, with which {_show(plain)} is "
                f"answered, not {_show(returned)}; change one of the two"
            )
    return tuple(get_origin(message_type) or message_type for message_type in handled)


def _resolve(annotation: Any, function: Callable[..., Any], names: Mapping[str, Any]) -> Any:
    """An annotation that may be a string, as the type it stands for."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        try:
            # The same text that Python would have run had it not been told to wait.
            annotation = eval(annotation, function.__globals__, names)  # noqa: S307
        except NameError as missing:
            raise TypeError(
                f"handler {function.__qualname__}: cannot resolve the annotation "
                f"`{annotation}`: {missing}; the types of a handler's message and reply "
                "must be imported at run time, before the class"
            ) from missing
    return type(None) if annotation is None else annotation


def _show(annotation: Any) -> str:
    if annotation is type(None):
        return "None"
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation.__qualname__
    return str(annotation)


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _plain(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


_PROMOTED: dict[Any, tuple[Any, ...]] = {int: (float, complex), float: (complex,)}
"""Types that type checkers accept for each type, by convention."""


def _fits(actual: Any, expected: Any) -> bool:
    """Return True if a value of one type is accepted for another.

    In doubt it returns True: type checkers do this well, and this is for programs that do not use
    one.
    """
    actual = type(None) if actual is None else actual
    expected = type(None) if expected is None else expected
    if actual == expected or actual in (Any, Never, NoReturn) or expected in (Any, object):
        return True
    if get_origin(actual) is Annotated or get_origin(expected) is Annotated:
        return _fits(_plain(actual), _plain(expected))
    if _is_union(actual):
        return all(_fits(member, expected) for member in get_args(actual))
    if _is_union(expected):
        return any(_fits(actual, member) for member in get_args(expected))
    if get_origin(actual) is Literal:
        values = get_args(actual)
        if get_origin(expected) is Literal:
            return set(values) <= set(get_args(expected))
        return all(_fits(type(value), expected) for value in values)
    if get_origin(expected) is Literal or expected in _PROMOTED.get(actual, ()):
        return get_origin(expected) is not Literal
    plain_actual = get_origin(actual) or actual
    plain_expected = get_origin(expected) or expected
    if not isinstance(plain_actual, type) or not isinstance(plain_expected, type):
        return True  # type variables, new types and other things a checker knows more about
    try:
        if not issubclass(plain_actual, plain_expected):
            return False
    except TypeError:  # a protocol that cannot be checked at run time
        return True
    mine, theirs = get_args(actual), get_args(expected)
    if plain_actual is not plain_expected or len(mine) != len(theirs) or Ellipsis in mine + theirs:
        return True
    return all(_fits(a, e) for a, e in zip(mine, theirs, strict=True))
