"""A few of the kills that ``nox -s soak`` does by the thousand."""

from __future__ import annotations

import pytest

from ..harness import BACKEND, program
from ..soak.kills import soak


@pytest.mark.slow
@pytest.mark.parametrize(("isolation", "kills"), [("process", 6), ("thread", 3)])
@program
async def test_whatever_is_killed_every_answer_comes_once_and_is_right(
    isolation: str, kills: int
) -> None:
    report = await soak(kills, 16, backend=BACKEND, isolation=isolation)  # type: ignore[arg-type]
    assert report.good, str(report)
    assert report.asked > 50
