"""``stress``: a device that is sound, and the many ways in which one is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from atomr_accel.cli import _stress
from atomr_accel.cli._stress import Tally, judged

if TYPE_CHECKING:
    from .commands import Commands

ALONE = ("--backend", "cpu", "--isolation", "thread", "--no-faults", "--seconds", "0.2")


def test_load_alone(command: Commands) -> None:
    document = command.document("stress", *ALONE, "--seed", "3")
    assert (document.verdict, document.wrong, document.faults) == ("sound", 0, {})
    assert document.rounds > 0
    assert (document.seed, document.device) == (3, "cpu:0")


@pytest.mark.slow
def test_a_sound_device_survives_faults(command: Commands, caplog: Any) -> None:
    words = ("--backend", "cpu", "--seconds", "0.9", "--every", "0.2", "--clients", "2")
    document = command.document("stress", *words)
    assert document.reasons == []
    assert sum(document.faults.values()) >= 1
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


SOUND = Tally(rounds=10, sealed_intact=True)


def test_what_is_sound() -> None:
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
def test_what_is_unsound(change: dict[str, Any], says: str) -> None:
    (reason,) = judged(replace(SOUND, **change), 0, faults=False)
    assert says in reason


def test_descriptors_and_a_time_that_is_too_short_are_reasons_too() -> None:
    assert "3 file descriptors" in judged(SOUND, 3, faults=False)[0]
    assert "--seconds" in judged(SOUND, 0, faults=True)[0]


def test_a_device_that_is_not_there(command: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atomr_accel.backends.cuda._DRIVER_FILES", ())
    refusal = command.document("stress", "--backend", "cuda", code=3)
    assert "no NVIDIA driver" in refusal.message
