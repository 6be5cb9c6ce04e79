"""Vectors from a socket pass decoding, a device and encoding, which overlap, and go back."""

import warnings
from collections.abc import AsyncIterator

import msgspec
import numpy as np
import trio
import trio.testing

from atomr_accel import CpuFallbackWarning, open_device
from atomr_accel.patterns import Stage, open_pipeline, receive_frames, send_frames

ITEMS = 50


async def decode(frame: bytes) -> np.ndarray:
    """Bytes to numbers: the first stage."""
    await trio.lowlevel.checkpoint()
    return np.array(msgspec.json.decode(frame), dtype=np.float32)


async def encode(array: np.ndarray) -> bytes:
    """And back: the last."""
    await trio.lowlevel.checkpoint()
    return msgspec.json.encode(array.tolist())


async def serve(stream: trio.SocketStream) -> None:
    """One connection: as many items are inside as the stages hold, and no more are read."""
    async with open_device(0) as device:
        matrix = await device.put(2 * np.eye(16, dtype=np.float32), sealed=True)

        async def multiply(x: np.ndarray) -> np.ndarray:
            return await device.get(await device.blas.gemm(await device.put(x[None]), matrix))

        async with stream, open_pipeline(decode, Stage(multiply, concurrency=4), encode) as stages:
            await send_frames(stream, stages.run(receive_frames(stream)))
            statistics = stages.statistics()
    print("; ".join(f"{each.name}: {each.finished}" for each in statistics.stages))


async def vectors() -> AsyncIterator[bytes]:
    """Yield the client's requests."""
    for number in range(ITEMS):
        yield msgspec.json.encode([float(number)] * 16)


async def main() -> None:
    """A server and its client, in one program."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        stream = await trio.testing.open_stream_to_socket_listener(listener)
        async with listener:
            nursery.start_soon(serve, await listener.accept())

        async def send() -> None:
            await send_frames(stream, vectors())
            await stream.send_eof()

        nursery.start_soon(send)
        answers = [msgspec.json.decode(frame) async for frame in receive_frames(stream)]
        await stream.aclose()

    assert answers == [[[2.0 * number] * 16] for number in range(ITEMS)]
    print(f"{len(answers)} answers, in the order of the questions")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
