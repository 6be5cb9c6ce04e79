"""Messages and handlers: the checks when a class is defined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import pytest

from atomr_accel.actors import Actor, Message, handler
from atomr_accel.actors.messages import _fits, reply_type

T = TypeVar("T")


class Add(Message[int]):
    k: int


class AddTwice(Add):
    again: int = 0


class Get(Message[T], Generic[T]):
    pass


class GetText(Get[str]):
    pass


def test_messages_are_frozen_values() -> None:
    assert Add(k=1) == Add(1)
    assert hash(Add(1)) == hash(Add(1))
    with pytest.raises(AttributeError):
        Add(1).k = 2  # type: ignore[misc]


def test_reply_types() -> None:
    assert reply_type(Add) is int
    assert reply_type(AddTwice) is int
    assert reply_type(GetText) is str
    assert reply_type(Get) is T


def test_a_message_states_its_reply_type() -> None:
    with pytest.raises(TypeError, match=r"write `class Mute\(Message\[None\]\)`"):

        class Mute(Message):  # type: ignore[type-arg]
            pass


def test_handlers_by_type() -> None:
    class Base(Actor):
        @handler
        async def add(self, message: Add) -> int:
            return message.k

        @handler
        async def text_or_list(self, message: GetText | Get[list[int]]) -> Any:
            return None

    class Derived(Base):
        async def add(self, message: Add) -> int:
            return -message.k

    assert Base._handlers == {
        Add: Base.add,
        GetText: Base.text_or_list,
        Get: Base.text_or_list,
    }
    assert Derived._handlers[Add] is Derived.add


def test_one_handler_for_a_message() -> None:
    with pytest.raises(TypeError, match="Double has two handlers of Add: a and b"):

        class Double(Actor):
            @handler
            async def a(self, message: Add) -> int:
                return 1

            @handler
            async def b(self, message: Add) -> int:
                return 2


# Annotations that must fail are strings here, so that mypy has nothing to say.


def test_a_handler_is_async() -> None:
    with pytest.raises(TypeError, match=r"handler .*Bad.add must be an async function"):

        class Bad(Actor):
            @handler
            def add(self, message: Add) -> int:
                return 1


def test_a_handler_takes_one_message() -> None:
    with pytest.raises(TypeError, match=r"as in `async def add\(self, message: SomeMessage\)"):

        class Bad(Actor):
            @handler
            async def add(self, message: Add, more: int) -> int:
                return 1

    with pytest.raises(TypeError, match=r"not \(self, \*, message: 'Add'\)"):

        class Worse(Actor):
            @handler
            async def add(self, *, message: Add) -> int:
                return 1


def test_a_handler_says_which_message() -> None:
    with pytest.raises(TypeError, match="annotate 'message'"):

        class Bad(Actor):
            @handler
            async def add(self, message) -> int:  # type: ignore[no-untyped-def]
                return 1

    for annotation in ("int", "Message", "Message[int]", "Add | int"):

        async def add(self: Actor, message: Any) -> int:
            return 1

        add.__annotations__["message"] = annotation
        with pytest.raises(TypeError, match="must be annotated with a subclass of Message, not"):
            handler(add)


def test_a_handler_says_what_it_returns() -> None:
    with pytest.raises(TypeError, match=r"does not say what it returns; .* write `-> int`"):

        class Bad(Actor):
            @handler
            async def add(self, message: Add):  # type: ignore[no-untyped-def]
                return 1

    with pytest.raises(TypeError, match="add must return int, with which Add is answered, not str"):

        class Worse(Actor):
            @handler
            async def add(self, message: Add) -> str:
                return "1"

    with pytest.raises(TypeError, match=r"must return list\[int\], .*, not None"):

        class Worst(Actor):
            @handler
            async def get(self, message: Get[list[int]]) -> None: ...


def test_annotations_must_be_there_at_run_time() -> None:
    with pytest.raises(TypeError, match=r"cannot resolve the annotation `Missing`.*at run time"):

        class Bad(Actor):
            @handler
            async def add(self, message: Add) -> Missing:  # type: ignore[name-defined]  # noqa: F821
                return 1


def test_replies_may_be_named_before_they_are_there() -> None:
    class Ahead(Message["Later"]):
        pass

    class Later:
        pass

    class Good(Actor):
        @handler
        async def ahead(self, message: Ahead) -> Later:
            return Later()

    with pytest.raises(TypeError, match=r"must return .*Later, .*, not int"):

        class Bad(Actor):
            @handler
            async def ahead(self, message: Ahead) -> int:
                return 1


def test_a_handler_hides_nothing_that_actors_have() -> None:
    with pytest.raises(TypeError, match=r"Bad\.stop must have another name, because"):

        class Bad(Actor):
            @handler
            async def stop(self, message: Add) -> int:  # type: ignore[override]
                return 1


def test_hooks_are_async() -> None:
    with pytest.raises(TypeError, match=r"Bad\.started must be an async function"):

        class Bad(Actor):
            def started(self) -> None:  # type: ignore[override]
                pass


@pytest.mark.parametrize(
    ("actual", "expected", "fits"),
    [
        (int, int, True),
        (bool, int, True),
        (int, bool, False),
        (int, float, True),
        (float, int, False),
        (float, complex, True),
        (int, object, True),
        (Any, int, True),
        (int, Any, True),
        (None, None, True),
        (int, None, False),
        (int, int | None, True),
        (int | None, int, False),
        (int | None, int | str | None, True),
        (list[int], list[int], True),
        (list[int], list[str], False),
        (list[int], list, True),
        (list, list[int], True),
        (list[int], Sequence[int], True),
        (list[int], tuple[int, ...], False),
        (tuple[int, ...], tuple[int, ...], True),
        (dict[str, list[bool]], dict[str, list[int]], True),
        (Annotated[int, "meters"], int, True),
        (int, Annotated[float, "meters"], True),
        (Literal["a"], str, True),
        (Literal["a"], int, False),
        (Literal["a"], Literal["a", "b"], True),
        (Literal["a", "c"], Literal["a", "b"], False),
        (str, Literal["a"], False),
        (int, T, True),
        (T, int, True),
    ],
)
def test_reply_types_match_their_message_types(actual: Any, expected: Any, fits: bool) -> None:
    assert _fits(actual, expected) is fits
