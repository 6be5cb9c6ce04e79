"""Log records: their attributes, as JSON, and that none comes twice."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import atomr_accel
from atomr_accel import AccelError, DeviceLost, traceparent
from atomr_accel.actors import (
    Actor,
    Backoff,
    Directive,
    Message,
    Supervision,
    decide_by_type,
    handler,
    open_actor_system,
)
from atomr_accel.actors.logs import FIELDS, fields
from atomr_accel.telemetry import JsonFormatter
from atomr_accel.testing import poison
from tests.harness import opened


class Fail(Message[None]):
    pass


class Fragile(Actor):
    @handler
    async def fail(self, message: Fail) -> None:
        raise ValueError("it broke")


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    formatter = JsonFormatter()
    return [json.loads(formatter.format(record)) for record in caplog.records]


async def test_a_fault_is_logged_once_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with opened(backend="cpu") as device:
        async with trio.open_nursery() as nursery:
            for _ in range(10):  # what goes down with it is told to its callers

                async def put() -> None:
                    await device.retry(device.put, np.ones(4))

                nursery.start_soon(put)
            fault = await poison(device)
        await device.put(np.ones(4))
    (line,) = lines(caplog)
    assert line["level"] == "warning"
    assert line["logger"] == "atomr_accel.actors"
    assert str(fault.__cause__) in line["event"]
    assert line["actor"] == "/device-0/context"
    assert line["generation"] == 1
    assert line["status"] == fault.status
    assert line["status_name"] == fault.status_name
    assert line["op"] == fault.op


async def test_a_loss_is_raised_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DeviceLost):
        async with opened(backend="cpu", max_restarts=0) as device:
            await poison(device)
    assert lines(caplog) == []  # whoever has opened it has the error


async def test_failures_of_actors_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for directive, level in ((Directive.RESTART, "warning"), (Directive.RESUME, "error")):
        supervision = Supervision(
            decider=decide_by_type({ValueError: directive}), backoff=Backoff(base=0)
        )
        async with open_actor_system("demo", supervision=supervision) as system:
            ref = await system.spawn(Fragile, name="fragile")
            ref.tell(Fail())
            await wait_all_tasks_blocked()
        (line,) = lines(caplog)
        assert (line["level"], line["actor"]) == (level, "/fragile")
        assert "it broke" in line["event"] + line.get("exception", "")
        caplog.clear()
    async with open_actor_system("demo") as system:
        ref = await system.spawn(Fragile, name="fragile")
        ref.tell(Fail())
        ref.tell(Fail())
        await ref.stop()
    (line,) = lines(caplog)
    assert line["event"].startswith("2 dead letters")
    assert line["actor"] == "/fragile"


def test_fields_collide_with_nothing() -> None:
    standard = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    assert standard.isdisjoint(FIELDS)
    told = {
        name
        for kind in vars(atomr_accel._errors).values()
        if isinstance(kind, type) and issubclass(kind, AccelError)
        for name in getattr(kind, "_fields", ())
    }
    assert {"generation", "op", "status", "status_name", "library", "call"} <= told
    error = ValueError()
    error.op = object()  # type: ignore[attr-defined]
    assert fields(error, device="cpu:0", lane=None) == {"device": "cpu:0"}


def test_a_line_has_all_that_is_given(caplog: pytest.LogCaptureFixture) -> None:
    formatter = JsonFormatter()
    logger = logging.getLogger("mine")
    token = traceparent.set("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    try:
        raise KeyError("\n\u2028\ud800")
    except KeyError:
        logger.exception("%s\n", "text", extra={"user": "ann", "odd": {1}, "event": "other"})
    (record,) = caplog.records
    text = formatter.format(record)
    traceparent.reset(token)
    assert text.isascii()
    assert "\n" not in text
    line = json.loads(text)
    assert line["event"] == "text\n"
    assert line["user"] == "ann"
    assert line["odd"] == "{1}"
    assert line["traceparent"].startswith("00-4bf")
    assert "KeyError" in line["exception"]
    assert line["time"].endswith("+00:00")


class Unspeakable:
    def __repr__(self) -> str:
        raise LookupError


def test_no_record_is_lost_for_what_json_has_no_form_for(caplog: pytest.LogCaptureFixture) -> None:
    circle: list[Any] = [1]
    circle.append({"again": circle})
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    given = {
        "loss": math.nan,
        "bounds": (-math.inf, 1.5, True, None),
        "keys": {(1, 2): 3, 4: 5, None: 6, "text": math.inf},
        "circle": circle,
        "large": 1 << 100_000,
        "odd": [Unspeakable(), {1}],
        "deep": deep,
    }
    logging.getLogger("mine").error("text", extra=given)

    def refused(name: str) -> None:
        raise AssertionError(name)

    text = JsonFormatter().format(caplog.records[0])
    line = json.loads(text, parse_constant=refused)
    assert line["loss"] == "nan"
    assert line["bounds"] == ["-inf", 1.5, True, None]
    assert line["keys"] == {"(1, 2)": 3, "4": 5, "null": 6, "text": "inf"}
    assert line["circle"] == [1, {"again": "..."}]
    assert line["large"] == hex(1 << 100_000)
    assert line["odd"] == ["<Unspeakable, whose repr raised LookupError>", "{1}"]
    assert line["deep"]
