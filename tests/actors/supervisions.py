"""Random configurations and events of supervisors: settings, children, faults."""

from __future__ import annotations

import trio
import trio.testing
from hypothesis import strategies as st

from atomr_accel.actors import (
    AutoShutdown,
    Backoff,
    ChildSpec,
    Directive,
    Intensity,
    RestartType,
    Strategy,
    Supervision,
    decide_by_type,
)


class Resume(Exception):
    pass


class Restart(Exception):
    pass


class StopIt(Exception):
    pass


class Worse(Exception):
    pass


FAULTS: list[type[Exception]] = [Restart, Resume, StopIt, Worse]
DECIDER = decide_by_type(
    {
        Resume: Directive.RESUME,
        Restart: Directive.RESTART,
        StopIt: Directive.STOP,
        Worse: Directive.ESCALATE,
    }
)


async def nothing(*, task_status: trio.TaskStatus[None]) -> None:
    raise AssertionError("only its name is used")


NAMES = st.sampled_from("abcd")
SUPERVISIONS = st.builds(
    Supervision,
    strategy=st.sampled_from(Strategy),
    decider=st.just(DECIDER),
    intensity=st.builds(
        Intensity, restarts=st.integers(0, 5), within=st.sampled_from([1.0, 10.0, 100.0])
    ),
    backoff=st.sampled_from([Backoff(base=0), Backoff(), Backoff(initial=2, base=3, factor=1)]),
    auto_shutdown=st.sampled_from(AutoShutdown),
)


@st.composite
def specs(draw: st.DrawFn) -> ChildSpec:
    restart = draw(st.sampled_from(RestartType))
    significant = restart is not RestartType.PERMANENT and draw(st.integers(0, 2)) == 0
    return ChildSpec(draw(NAMES), nothing, restart, significant=significant)
