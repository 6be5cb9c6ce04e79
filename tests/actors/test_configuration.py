"""The configuration of actors is checked at once, in the line that contains it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from atomr_accel.actors import (
    Backoff,
    ChildSpec,
    Directive,
    Intensity,
    Mailbox,
    Overflow,
    Supervision,
    decide_by_type,
    open_actor_system,
    open_supervisor,
)

from .counter import Counter


async def run(*, task_status: Any) -> None:
    task_status.started()


def _without_child(_failure: BaseException) -> Directive:
    return Directive.STOP


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mailbox(overflow="reject"), r"overflow must be one of .*Overflow\.REJECT"),  # type: ignore[arg-type]
        (lambda: Mailbox(capacity="a"), "capacity of a mailbox must be a whole number"),  # type: ignore[arg-type]
        (lambda: Mailbox(capacity=True), "capacity of a mailbox must be a whole number"),
        (lambda: Intensity(restarts="3"), "restarts must be a whole number"),  # type: ignore[arg-type]
        (lambda: Intensity(within="1"), "within must be a real number"),  # type: ignore[arg-type]
        (lambda: Backoff(base="1"), "base must be a real number"),  # type: ignore[arg-type]
        (lambda: Backoff(rng=0.5), "rng must be a function"),  # type: ignore[arg-type]
        (lambda: Supervision(strategy="one_for_one"), "strategy must be one of"),  # type: ignore[arg-type]
        (lambda: Supervision(intensity=3), "intensity must be an instance of Intensity"),  # type: ignore[arg-type]
        (lambda: Supervision(backoff=1.0), "backoff must be an instance of Backoff"),  # type: ignore[arg-type]
        (lambda: Supervision(decider=Directive.RESUME), "decider must be a function"),  # type: ignore[arg-type]
        (
            lambda: Supervision(decider=_without_child),  # type: ignore[arg-type]
            "write `def decide.failure, child",
        ),
        (lambda: Supervision(escalation=KeyError("x")), "escalation must be a function"),  # type: ignore[arg-type]
        (lambda: Supervision(auto_shutdown="any"), "auto_shutdown must be one of"),  # type: ignore[arg-type]
        (lambda: decide_by_type({ValueError: "stop"}), "directive for ValueError must be one of"),  # type: ignore[dict-item]
        (lambda: decide_by_type({"ValueError": Directive.STOP}), "table of exception classes"),  # type: ignore[dict-item]
        (lambda: decide_by_type({}, default="stop"), "default must be one of"),  # type: ignore[arg-type]
        (lambda: ChildSpec("a", run, restart="never"), "'a': restart must be one of"),  # type: ignore[arg-type]
        (lambda: ChildSpec("a", run, grace="1"), "'a': grace must be a real number"),  # type: ignore[arg-type]
    ],
)
def test_wrong_types_are_refused_where_they_are_written(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_enums_are_taken_as_members_only() -> None:
    with pytest.raises(
        TypeError, match=r"overflow must be one of Overflow\.WAIT, Overflow\.REJECT,"
    ):
        Mailbox(overflow=str(Overflow.DROP_OLDEST.value))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"restart": "never"}, "restart must be one of RestartType.PERMANENT"),
        ({"mailbox": 5}, "mailbox must be an instance of Mailbox, not 5"),
        ({"mailbox": 0}, "mailbox must be an instance of Mailbox, not 0"),
        ({"supervision": "one_for_one"}, "supervision must be an instance of Supervision"),
        ({"name": 3}, "an actor's name must be an instance of str, not 3"),
        ({"grace": "1"}, "grace must be a real number"),
    ],
)
async def test_spawn_refuses_wrong_types_and_starts_nothing(
    options: dict[str, Any], message: str
) -> None:
    async with open_actor_system("demo") as system:
        with pytest.raises(TypeError, match=message):
            await system.spawn(Counter, **options)
        assert system.tree().children == ()


async def test_systems_and_supervisors_refuse_wrong_types() -> None:
    with pytest.raises(TypeError, match="supervision must be an instance of Supervision"):
        async with open_actor_system("demo", supervision="one_for_one"):  # type: ignore[arg-type]
            pytest.fail("opened")
    with pytest.raises(TypeError, match="a system's name must be an instance of str"):
        async with open_actor_system(3):  # type: ignore[arg-type]
            pytest.fail("opened")
    with pytest.raises(TypeError, match="strategy must be one of"):
        async with open_supervisor("demo", strategy="one_for_one"):  # type: ignore[arg-type]
            pytest.fail("opened")
    async with open_actor_system("demo") as system:
        with pytest.raises(TypeError, match="a path must be an instance of str, not 3"):
            system.find(3)  # type: ignore[arg-type]
