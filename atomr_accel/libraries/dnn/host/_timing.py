"""Times of plans on the device, without the time of their launches.

A launch takes longer than many kernels. So several runs are captured into a CUDA graph, whose
single launch keeps the device busy. Plans that cannot be captured are launched run by run.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from ...._errors import AccelError
from ....backends.cuda.host.driver import check, driver
from ....executors.timing import timing_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_RUNS: Final = 8
"""Runs that are timed together."""

_ROUNDS: Final = 3
"""Number of rounds. The fastest one counts."""


def milliseconds(stream: Any, execute: Callable[[], None]) -> float:
    """Time a plan.

    Args:
        stream: the stream of the runs, which must be empty.
        execute: queues one run.

    Returns:
        Milliseconds of one run, in the fastest of a few rounds.

    Raises:
        AccelError: the plan cannot be run.
    """
    execute()
    with _round(stream, execute) as run, timing_events() as (start, end):
        times: list[float] = []
        for _ in range(_ROUNDS):
            check("cuEventRecord", driver.cuEventRecord(start, stream))
            run()
            check("cuEventRecord", driver.cuEventRecord(end, stream))
            check("cuEventSynchronize", driver.cuEventSynchronize(end))
            times.append(check("cuEventElapsedTime", driver.cuEventElapsedTime(start, end)))
    return min(times) / _RUNS


@contextlib.contextmanager
def _round(stream: Any, execute: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Yield a function that queues several runs."""

    def one_by_one() -> None:
        for _ in range(_RUNS):
            execute()

    graph = _captured(stream, one_by_one)
    if graph is None:
        yield one_by_one
        return
    try:
        executable = check("cuGraphInstantiate", driver.cuGraphInstantiate(graph, 0))
    finally:
        check("cuGraphDestroy", driver.cuGraphDestroy(graph))
    try:
        launch = driver.cuGraphLaunch
        yield lambda: check("cuGraphLaunch", launch(executable, stream))
    finally:
        check("cuGraphExecDestroy", driver.cuGraphExecDestroy(executable))


def _captured(stream: Any, runs: Callable[[], None]) -> Any:
    """A graph of runs; None if these cannot be captured."""
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    check("cuStreamBeginCapture", driver.cuStreamBeginCapture(stream, mode))
    captured = False
    try:
        with contextlib.suppress(AccelError):
            runs()
            captured = True
    finally:  # a stream that stayed in capture could run nothing any more
        status, graph = driver.cuStreamEndCapture(stream)
    if int(status) or not captured:
        if not int(status):
            check("cuGraphDestroy", driver.cuGraphDestroy(graph))
        return None
    return graph
