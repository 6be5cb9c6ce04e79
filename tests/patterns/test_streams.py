"""Lines and frames: what goes in comes out, however the bytes are cut."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel.patterns import (
    MalformedStream,
    open_pipeline,
    receive_frames,
    receive_lines,
    send_frames,
    send_lines,
)


class Cut(trio.abc.ReceiveStream):
    """Bytes that arrive in given pieces."""

    def __init__(self, data: bytes, cuts: Iterable[int]) -> None:
        ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
        starts = [0, *ends[:-1]]
        self.pieces = [data[a:b] for a, b in zip(starts, ends, strict=True) if a < b]

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.pieces.pop(0) if self.pieces else b""

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Sink(trio.abc.SendStream):
    """Keeps the items that are sent."""

    def __init__(self) -> None:
        self.data = b""

    async def send_all(self, data: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.data += data

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def each(items: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    for item in items:
        yield item


CUTS = st.lists(st.integers(0, 10_000), max_size=20)
LINES = st.lists(st.binary(max_size=9).filter(lambda x: b"\n" not in x and x[-1:] != b"\r"))


@given(lines=LINES, cuts=CUTS, ends=st.sampled_from([b"\n", b"\r\n"]), last=st.booleans())
async def test_lines(lines: list[bytes], cuts: list[int], ends: bytes, last: bool) -> None:
    data = ends.join(lines) + (ends if last and lines else b"")
    expected = lines if last or not lines or lines[-1] else lines[:-1]
    stream = Cut(data, cuts)
    assert [line async for line in receive_lines(stream, max_length=9)] == expected


@given(lines=LINES, cuts=CUTS)
async def test_lines_there_and_back(lines: list[bytes], cuts: list[int]) -> None:
    sink = Sink()
    assert await send_lines(sink, each(lines)) == len(lines)
    assert [line async for line in receive_lines(Cut(sink.data, cuts))] == lines


@given(frames=st.lists(st.binary(max_size=20)), cuts=CUTS)
async def test_frames_there_and_back(frames: list[bytes], cuts: list[int]) -> None:
    sink = Sink()
    assert await send_frames(sink, each(frames)) == len(frames)
    stream = Cut(sink.data, cuts)
    assert [frame async for frame in receive_frames(stream, max_length=20)] == frames


@given(frames=st.lists(st.binary(max_size=20), min_size=1), cuts=CUTS, lost=st.integers(1, 3))
async def test_a_frame_that_is_cut_short(frames: list[bytes], cuts: list[int], lost: int) -> None:
    sink = Sink()
    await send_frames(sink, each(frames))
    with pytest.raises(MalformedStream, match="the stream ended after"):
        async for frame in receive_frames(Cut(sink.data[:-lost], cuts)):
            assert frame == frames.pop(0)
    assert len(frames) == 1


@pytest.mark.parametrize("cuts", [[], range(100)])
async def test_stream_refuses_too_long_input(cuts: Iterable[int]) -> None:
    with pytest.raises(MalformedStream, match="a line has more than the 5 bytes"):
        async for _ in receive_lines(Cut(b"123456\n", cuts), max_length=5):
            pass
    with pytest.raises(MalformedStream, match="a line has more than the 5 bytes"):
        async for _ in receive_lines(Cut(b"123456", cuts), max_length=5):
            pass
    with pytest.raises(MalformedStream, match="a frame has more than the 5 bytes"):
        async for _ in receive_frames(Cut(b"\xff\xff\xff\xffxyz", cuts), max_length=5):
            pass


async def test_a_line_break_inside_a_line_is_refused() -> None:
    async with aclosing(each([b"two\nlines"])) as lines:
        with pytest.raises(ValueError, match="no line break inside"):
            await send_lines(Sink(), lines)


@pytest.mark.parametrize("receive", [receive_lines, receive_frames])
async def test_waits_that_are_cancelled_lose_nothing(
    receive: Callable[..., AsyncIterator[bytes]], autojump_clock: trio.testing.MockClock
) -> None:
    here, there = trio.testing.memory_stream_pair()
    data = b"ab\ncd\n" if receive is receive_lines else b"\0\0\0\2ab\0\0\0\2cd"

    async def send() -> None:
        for byte in data:
            await trio.sleep(1)
            await there.send_all(bytes([byte]))
        await there.aclose()

    got: list[bytes] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        items = receive(here)
        while len(got) < 2:
            with trio.move_on_after(0.7):
                got.append(await anext(items))
    assert got == [b"ab", b"cd"]


async def test_from_a_file_through_a_pipeline_to_a_file(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"1\n2\n3\n")

    async def square(line: bytes) -> bytes:
        return b"%d" % (int(line) ** 2)

    async with (
        open_pipeline(square) as pipeline,
        await trio.open_file(source, "rb") as lines,
        await trio.open_file(tmp_path / "out", "wb") as squares,
    ):
        await send_lines(squares, pipeline.run(lines))
    assert (tmp_path / "out").read_bytes() == b"1\n4\n9\n"


async def test_from_a_socket_through_a_pipeline_and_back() -> None:
    async def shout(frame: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        return frame.upper()

    here, there = trio.testing.memory_stream_pair()

    async def serve() -> None:
        async with there, open_pipeline(shout) as pipeline:
            await send_frames(there, pipeline.run(receive_frames(there)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await send_frames(here, each([b"one", b"", b"three"]))
        await here.send_eof()
        assert [frame async for frame in receive_frames(here)] == [b"ONE", b"", b"THREE"]
