"""Output of hosts to their descriptors becomes log records, without losses."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
import trio

from atomr_accel.lanes._host_output import output_pipes
from tests.harness import descriptors, no_descriptors

LOGGER = "atomr_accel.kernels"


class Written:
    """The ends of a host's pipes."""

    def __init__(self) -> None:
        self.output, (self.out, self.err) = output_pipes()

    def end(self) -> None:
        """Close the descriptors, as the end of a host does."""
        for fd in {self.out, self.err} - {-1}:
            os.close(fd)
        self.out = self.err = -1

    def close(self) -> None:
        self.end()
        for pipe in self.output._pipes:
            if pipe.fd >= 0:
                os.close(pipe.fd)


@pytest.fixture
def written(caplog: pytest.LogCaptureFixture) -> Iterator[Written]:
    before = descriptors()
    caplog.set_level(logging.INFO, LOGGER)
    written = Written()
    yield written
    written.close()
    assert descriptors() == before


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(level, text) for name, level, text in caplog.record_tuples if name == LOGGER]


async def test_lines_are_records(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    fields = {"device": "cuda:0", "generation": 3}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(written.output.run, fields)
        os.write(written.out, b"one\n\ntwo\r\nthr")
        os.write(written.err, "Fehler: Gr\xf6\xdfe\n".encode("latin-1"))
        await trio.testing.wait_all_tasks_blocked()
        os.write(written.out, b"ee\nrest")
        written.end()
    lines = [(20, "one"), (20, ""), (20, "two"), (20, "three")]
    assert [each for each in told(caplog) if each[0] == 20] == lines
    assert (30, "Fehler: Gr\ufffd\ufffde") in told(caplog)
    assert [*written.output.last] == ["Fehler: Gr\ufffd\ufffde"]
    for record in caplog.records:
        assert (record.device, record.generation) == ("cuda:0", 3)  # type: ignore[attr-defined]
    written.output.close()
    assert told(caplog)[-1] == (20, "rest")


async def test_another_goes_on(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(written.output.run, {"generation": 1})
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(written.output.run, {"generation": 2})
        os.write(written.out, b"half of ")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    os.write(written.out, b"a line\n")
    written.output.drain()
    assert told(caplog) == [(20, "half of a line")]
    assert caplog.records[0].generation == 2  # type: ignore[attr-defined]


async def test_closing_ends_it(written: Written) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(written.output.run, {})
        await trio.testing.wait_all_tasks_blocked()
        written.output.close()


async def test_a_flood_does_not_hold_up_the_loop(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    os.set_blocking(written.out, False)
    wrote = 0
    turns: list[int] = []

    async def other() -> None:
        while len(told(caplog)) * 1000 < wrote:
            await trio.lowlevel.checkpoint()
            turns.append(len(told(caplog)))

    line = b"x" * 999 + b"\n"
    while True:
        try:
            wrote += os.write(written.out, line)
        except BlockingIOError:
            break
    assert wrote >= 1 << 16
    async with trio.open_nursery() as nursery:
        nursery.start_soon(written.output.run, {})
        await other()
        nursery.cancel_scope.cancel()
    steps = [after - before for before, after in zip([0, *turns], turns, strict=False)]
    assert max(steps) <= 18  # eight or nine are read at a time, and twice between two looks


async def test_long_lines_are_cut(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    for piece in (b"a" * 10_000 + b"\n", b"b" * 5000, b"c" * 5000):
        os.write(written.out, piece)
    written.output.drain()
    written.output.close()
    texts = [text for _, text in told(caplog)]
    assert "".join(texts) == "a" * 10_000 + "b" * 5000 + "c" * 5000
    assert max(map(len, texts)) == 4096


async def test_only_the_last_words_are_kept(written: Written) -> None:
    os.write(written.err, b"".join(b"%d\n" % number for number in range(100)))
    written.output.drain()
    assert [*written.output.last] == [str(number) for number in range(50, 100)]


async def test_without_a_log_lines_go_to_the_standard_output(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    written = Written()
    os.write(written.out, b"from a kernel\n")
    os.write(written.err, b"a warning\n")
    written.output.close()
    written.close()
    assert capsys.readouterr().out == "from a kernel\n"
    assert told(caplog) == [(30, "a warning")]


async def test_a_closed_standard_output_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    for stream in (None, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")):
        if stream is not None:
            stream.close()
        monkeypatch.setattr("sys.stdout", stream)
        written = Written()
        os.write(written.out, b"nobody reads this\n")
        written.output.close()
        written.close()


def test_no_room_for_pipes() -> None:
    before = descriptors()
    for room in range(4):
        with no_descriptors(room), pytest.raises(OSError, match="Too many open files"):
            output_pipes()
    assert descriptors() == before


async def test_closing_twice(written: Written) -> None:
    written.output.close()
    written.output.drain()
    written.output.close()


async def test_output_of_another_task_does_not_end_the_host(
    written: Written, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = trio.lowlevel.wait_readable

    async def wait_too_long(fd: int) -> None:
        await wait(fd)
        written.output.drain()

    with monkeypatch.context() as patched:
        patched.setattr(trio.lowlevel, "wait_readable", wait_too_long)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(written.output.run, {})
            for line in (b"one\n", b"two\n"):
                await trio.testing.wait_all_tasks_blocked()
                os.write(written.out, line)
            await trio.testing.wait_all_tasks_blocked()
            assert told(caplog) == [(20, "one"), (20, "two")]
            written.end()
    written.output.close()
