"""Two programs, one copy of the weights: what one has sealed the other opens, and keeps."""

import socket
import subprocess
import sys

import numpy as np
import trio

from atomr_accel import Device, DeviceUnavailable, SharedBuffer, open_device

SIDE = 1024


def weights() -> np.ndarray:
    """Return the weights that both programs know, for the check."""
    return np.random.default_rng(0).standard_normal((SIDE, SIDE), dtype=np.float32)


async def give(device: Device, sock: socket.socket) -> None:
    """The program that has the weights: seal them, and send a descriptor of their memory."""
    ref = await device.put(weights(), sealed=True)
    with await device.share(ref) as shared:
        socket.send_fds(sock, [shared.description], [shared.fd])
    # It has them for good: it need not wait for us, nor we for it.
    print("given:", ref)


async def take(device: Device, sock: socket.socket) -> None:
    """The other program: open the same memory, and use it where the first one is gone."""
    description, (fd,), _, _ = await trio.to_thread.run_sync(socket.recv_fds, sock, 4096, 1)
    ref = await device.adopt(SharedBuffer(fd, description))
    await trio.to_thread.run_sync(sock.recv, 1)  # the end: the first program has ended
    x = np.ones(SIDE, np.float32)
    y = await device.get(await device.blas.gemv(ref, await device.put(x)))
    np.testing.assert_allclose(y, weights() @ x, rtol=1e-2, atol=1e-2)
    print("taken:", ref, "from a program that has ended")


async def run(role: str, fd: int) -> None:
    """One of the two programs, on a GPU if there is one."""
    with socket.socket(fileno=fd) as sock:
        work = give if role == "give" else take
        try:
            async with open_device(0, backend="cuda") as device:
                await work(device, sock)
        except DeviceUnavailable:
            async with open_device(0, backend="cpu") as device:
                await work(device, sock)


def main() -> None:
    """Start both, with the two ends of a Unix socket."""
    if len(sys.argv) == 3:
        trio.run(run, sys.argv[1], int(sys.argv[2]))
        return
    programs = []
    for role, end in zip(("give", "take"), socket.socketpair(), strict=True):
        with end:
            fd = end.fileno()
            command = [sys.executable, __file__, role, str(fd)]
            programs.append(subprocess.Popen(command, pass_fds=[fd]))
    assert [program.wait() for program in programs] == [0, 0]


if __name__ == "__main__":
    main()
