"""Children that the program forks: they end, and take nothing from their parent."""

from __future__ import annotations

import os
import socket
import warnings

import pytest
import trio
import trio.testing

from atomr_accel import open_system


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (SystemExit(), 0),
        (SystemExit(3), 3),
        (SystemExit("it is over"), 1),
        (ValueError("a mistake"), 1),
    ],
)
async def test_a_forked_child_ends_where_it_leaves_the_block_of_a_system(
    error: BaseException | None, code: int
) -> None:
    parent = os.getpid()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        try:
            async with trio.open_nursery() as outside:
                outside.start_soon(trio.lowlevel.wait_readable, ours)
                async with open_system("parent"):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(trio.sleep_forever)
                        await trio.testing.wait_all_tasks_blocked()
                        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                            pid = os.fork()  # of which Python 3.12 warns where there are threads
                        nursery.cancel_scope.cancel()
                    if not pid and error is not None:
                        raise error
                status = await trio.to_thread.run_sync(os.waitpid, pid, 0, abandon_on_cancel=True)
                assert os.waitstatus_to_exitcode(status[1]) == code
                theirs.send(b"x")  # which the task outside is told of
        finally:
            if os.getpid() != parent:
                os._exit(77)
