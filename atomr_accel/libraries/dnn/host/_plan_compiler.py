"""Plans made in a process of their own, for hosts that are threads of the program.

The vendor's frontend holds the GIL while it makes a plan, for up to seconds. In a host process this
stalls nothing else, but in a thread of the program it would stall the program. There this process
makes the plans. It uses no GPU, but a description of the device. It returns plans in the form in
which they are on disk.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
from typing import IO, Any, Final, Literal, final

import msgspec

from ...._errors import AccelError, Unsupported
from ..wire._graph import DnnGraph, decode
from ._plans import DnnPlanStore, StoredStep

_LENGTH: Final = struct.Struct("<Q")


class _PlanRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request for a plan.

    Attributes:
        graph: the encoded graph.
        device: the device, as the vendor describes it in JSON.
        capability: its compute capability.
        deterministic: as for ``DnnPlanStore``.
    """

    graph: bytes
    device: str
    capability: tuple[int, int]
    deterministic: bool


class _Reply(msgspec.Struct, frozen=True, array_like=True):
    """The reply to a request.

    Attributes:
        kind: whether there is a plan, cuDNN refuses the graph, or it failed.
        steps: the plan.
        text: cuDNN's message.
    """

    kind: Literal["plan", "refused", "failed"]
    steps: tuple[StoredStep, ...] = ()
    text: str = ""


@final
class PlanCompiler:
    """The process, started when it is first needed.

    ``device`` is the vendor's description of it, in JSON.
    """

    def __init__(
        self,
        device: str,
        capability: tuple[int, int],
        command: tuple[str, ...] = (),
        *,
        deterministic: bool = False,
    ) -> None:
        self._device = device
        self._capability = capability
        self._deterministic = deterministic
        self._command = command or (sys.executable, "-m", __name__)
        self._process: subprocess.Popen[bytes] | None = None
        self._broken = False

    def make(self, encoded: bytes) -> tuple[StoredStep, ...] | None:
        """A plan; None where it cannot be made here, and maybe elsewhere."""
        if self._broken:
            return None
        try:
            reply = self._ask(
                _PlanRequest(encoded, self._device, self._capability, self._deterministic)
            )
        except (OSError, EOFError, msgspec.DecodeError):
            self._broken = True
            self.close()
            return None
        if reply.kind == "refused":
            raise Unsupported(reply.text)
        return reply.steps if reply.kind == "plan" else None

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            process.kill()
            process.wait()

    def _ask(self, request: _PlanRequest) -> _Reply:
        process = self._process
        if process is None:
            process = self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert process.stdin is not None
        assert process.stdout is not None
        _write(process.stdin, msgspec.msgpack.encode(request))
        return msgspec.msgpack.decode(_read(process.stdout), type=_Reply)


def _write(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("the process that makes plans has ended")
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError("the process that makes plans has ended")
    return data


def serve(source: IO[bytes], target: IO[bytes], own: Any) -> None:
    """Make plans until there are no more requests.

    Args:
        source: stream of requests.
        target: stream of replies.
        own: returns whether kernels of this package compute a graph of one node.
    """
    from ._lowering import load_frontend

    stores: dict[tuple[str, tuple[int, int], bool], DnnPlanStore] = {}
    while True:
        try:
            request = msgspec.msgpack.decode(_read(source), type=_PlanRequest)
        except EOFError:
            return
        try:
            key = (request.device, request.capability, request.deterministic)
            store = stores.get(key)
            if store is None:
                described = load_frontend().create_device_properties(request.device)
                options = {"device_property": described}
                store = stores[key] = DnnPlanStore(
                    *("", request.capability, None, own, options),
                    deterministic=request.deterministic,
                )
            graph: DnnGraph = decode(request.graph)
            reply = _Reply("plan", store.stored(graph))
        except Unsupported as error:
            reply = _Reply("refused", text=str(error))
        except (AccelError, RuntimeError) as error:
            reply = _Reply("failed", text=str(error))
        _write(target, msgspec.msgpack.encode(reply))


def main() -> None:
    """Run the process."""
    from .fallback._fallback import computes

    # Whatever a library prints must not get between replies.
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, target, computes)


if __name__ == "__main__":
    main()
