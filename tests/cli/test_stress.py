"""``stress``: a device that is sound, and the many ways in which one is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel.cli import _stress
from atomr_accel.cli._stress import EventTally, judged

from .commands import Commands

ALONE = ("--backend", "cpu", "--isolation", "thread", "--no-faults", "--seconds", "0.2")


def test_load_alone(command: Commands) -> None:
    document = command.document("stress", *ALONE, "--seed", "3")
    assert (document.verdict, document.wrong, document.faults) == ("sound", 0, {})
    assert document.rounds > 0
    assert (document.seed, document.device[:5]) == (3, "cpu:0")


@pytest.mark.slow
def test_a_sound_device_survives_faults(
    command: Commands, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    async def breaker(device: Any, _seed: int, _every: float, tally: EventTally) -> None:
        for way in ("assert", "kill_host"):
            await _stress._break(device, way, tally)
            await device.retry(_round, device, tally, attempts=100)
        tally.scope.cancel()

    async def _round(device: Any, tally: EventTally) -> None:
        weights = await device.put(np.zeros((_stress._DEPTH, _stress._COLUMNS), "f4"))
        zeros = np.zeros((_stress._DEPTH, _stress._COLUMNS), "f4")
        await _stress._round(device, weights, zeros, np.random.default_rng(0), tally)

    monkeypatch.setattr(_stress, "_HANG_SECONDS", 30.0)  # however busy the machine is
    monkeypatch.setattr(_stress, "_breaker", breaker)
    document = command.document("stress", "--backend", "cpu", "--seconds", "60", "--clients", "2")
    assert document.reasons == []
    assert document.faults == {"assert": 1, "kill_host": 1}
    assert document.recoveries
    assert caplog.records == [], "faults that were asked for are no news"


def test_a_device_that_computes_wrong_is_found(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scale(x: Any, n: int, factor: float) -> None:
        x.reshape(-1)[:n] *= factor
        x.reshape(-1)[n - 1] += 1  # one bit or so of the last element

    monkeypatch.setattr(_stress, "scale", scale)
    document = command.document("stress", *ALONE, code=1)
    assert document.verdict == "unsound"
    assert document.wrong > 0
    assert f"unsound: {document.wrong} results were wrong".partition(" ")[2]
    assert "results were wrong" in command("stress", *ALONE).out


def test_stress_harms_follow_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits and ways; and every way comes."""

    async def broken(seed: int) -> list[tuple[float, str]]:
        steps: list[tuple[float, str]] = []

        async def note(_device: Any, way: str, tally: EventTally) -> None:
            steps.append((trio.current_time(), way))
            if len(steps) == 100:
                tally.scope.cancel()
            await trio.lowlevel.checkpoint()

        monkeypatch.setattr(_stress, "_break", note)
        tally = EventTally()
        with tally.scope:
            await _stress._breaker(cast("Any", None), seed, 2.0, tally)
        return steps

    one, again, other = [
        trio.run(broken, seed, clock=trio.testing.MockClock(autojump_threshold=0))
        for seed in (1, 1, 2)
    ]
    assert one == again
    assert [way for _, way in one] != [way for _, way in other]
    assert {way for _, way in one} == {*_stress.WAYS}


SOUND = EventTally(rounds=10, sealed_intact=True)


def test_stress_accepts_a_sound_run() -> None:
    assert judged(SOUND, 0, faults=False) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"wrong": 1}, "wrong"),
        ({"unexpected": ["LibraryError: ..."]}, "that no fault explains"),
        ({"unexplained": 2}, "2 faults that nobody has caused"),
        ({"rounds": 0}, "no result came"),
        ({"sealed_intact": False}, "sealed"),
        ({"leaked_bytes": 256}, "256 bytes"),
        ({"broken_at": 1.0}, "after the last fault"),
    ],
)
def test_stress_rejects_an_unsound_run(change: dict[str, Any], says: str) -> None:
    (reason,) = judged(replace(SOUND, **change), 0, faults=False)
    assert says in reason


def test_descriptors_and_a_time_that_is_too_short_are_reasons_too() -> None:
    assert "3 file descriptors" in judged(SOUND, 3, faults=False)[0]
    assert "--seconds" in judged(SOUND, 0, faults=True)[0]


def test_a_device_that_is_not_there(command: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atomr_accel.backends.cuda._DRIVER_FILES", ())
    refusal = command.document("stress", "--backend", "cuda", code=3)
    assert "no NVIDIA driver" in refusal.message
