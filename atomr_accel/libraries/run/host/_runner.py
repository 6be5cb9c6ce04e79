"""Calling the program's functions in the host, for all backends."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from ...._dtypes import DTYPES
from ....host.host import IMPORTS
from ....wire.trace import traceparent
from ..wire.messages import CallFunction, Fetch, ForgetCall, Initialize, Keep, Left, Supply
from ..wire.pickling import Bytes, dumps, loads

if TYPE_CHECKING:
    from ..wire.messages import Buffer


_Left = dict[int, tuple[list[Any], list[Bytes]]]

# All of a context's: what one lane has left another fetches, which is not busy meanwhile.
_left_in: Final[WeakKeyDictionary[Any, _Left]] = WeakKeyDictionary()


class FunctionRunner:
    """Executes calls. A backend says what an array is and how work is waited for."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._process = os.getpid()
        self._state: tuple[int, Any, BaseException | None] = (0, None, None)
        self._supplied: dict[int, list[Bytes] | None] = {}
        self._left = _left_in.setdefault(context, {})
        self.handlers: Final = {
            Supply: self._supply,
            Initialize: self._initialize,
            CallFunction: self._call,
            Keep: self._keep,
            Fetch: self._fetch,
            ForgetCall: self._forget,
        }

    def close(self) -> None:
        """Free the state."""
        self._state = (0, None, None)
        self._supplied.clear()

    # --- what backends say ------------------------------------------------------------------

    def array_of(self, buffer: Buffer) -> Any:
        """Return a buffer in the form that functions get."""
        raise NotImplementedError

    def on_device(self, thing: Any) -> bool:
        """Return whether ``thing`` is an array that becomes a buffer."""
        raise NotImplementedError

    def hold(self, thing: Any) -> Any:
        """Return such an array, contiguous and with its dtype and shape, for ``keep``."""
        raise NotImplementedError

    def keep(self, held: Any, address: int) -> None:
        """Copy it into a buffer, and wait until that is done."""
        raise NotImplementedError

    def begin(self) -> None:
        """Wait, before a function, for the work that it depends on."""

    def end(self) -> None:
        """Wait, after a function, for the work that it has queued on any stream."""

    # --- calls ------------------------------------------------------------------------------

    def _supply(self, message: Supply) -> None:
        parts = self._supplied.setdefault(message.ticket, [])
        if parts is None:
            return
        try:
            if message.part == len(parts):
                parts.append(np.empty(message.total, np.uint8))
            piece = np.frombuffer(message.piece, np.uint8)
            parts[message.part][message.start : message.start + len(piece)] = piece
        except BaseException:
            self._supplied[message.ticket] = None  # it must not be taken for whole
            raise

    def _take_supplied(self, ticket: int) -> list[Bytes]:
        parts = self._supplied.pop(ticket, [])
        if parts is None:
            raise MemoryError("the host has no memory for the arguments")
        return parts

    def _initialize(self, message: Initialize) -> None:
        self._state = (0, None, None)
        try:
            parts = self._take_supplied(message.state)
            self._state = (message.state, self._run(message, parts, ()), None)
        except BaseException as error:
            # Every call that needs the state shall know.
            self._state = (message.state, None, error)
            raise

    def _call(self, message: CallFunction) -> tuple[bytes, list[Left], list[int]]:
        parts = self._take_supplied(message.ticket)
        first: tuple[Any, ...] = ()
        if message.state:
            number, state, error = self._state
            if number != message.state:
                raise RuntimeError("the lane's state was replaced")
            if error is not None:
                raise error
            first = (state,)
        token = traceparent.set(message.traceparent)
        try:
            result = self._run(message, parts, first)
        finally:
            traceparent.reset(token)
        arrays: list[Any] = []

        def take(thing: Any) -> int | None:
            # NumPy's arrays are pickled, and arrive as NumPy's arrays.
            if isinstance(thing, np.ndarray) or not self.on_device(thing):
                return None
            array = self.hold(thing)
            if array.dtype.name not in DTYPES:
                raise TypeError(
                    f"arrays of {array.dtype} cannot become buffers; convert them to one of "
                    f"{', '.join(DTYPES)}, or to NumPy"
                )
            arrays.append(array)
            return len(arrays) - 1

        try:
            packed = dumps(result, take)
        finally:
            if arrays:
                self.end()
        # Parts may be views of a buffer that others write, or of memory that the function keeps.
        results = [np.array(part) for part in packed.parts]
        if arrays or results:
            self._left[message.ticket] = arrays, results
        kept = [Left(tuple(array.shape), array.dtype.name) for array in arrays]
        return packed.data, kept, [part.nbytes for part in results]

    def _run(
        self, message: Initialize | CallFunction, parts: list[Bytes], first: tuple[Any, ...]
    ) -> Any:
        with IMPORTS.running():
            self.begin()
            try:
                buffers = [self.array_of(buffer) for buffer in message.buffers]
                function, args = loads(message.data, parts, buffers.__getitem__)
                return self._apply(function, (*first, *args))
            finally:
                self.end()

    def _apply(self, function: Any, args: tuple[Any, ...]) -> Any:
        """Call a function, and flush its output; a process that it forks ends with the call."""
        code = 0
        try:
            return function(*args)
        except BaseException as error:
            if os.getpid() != self._process:
                code = _code_of(error)
            raise
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # the program may have put anything there
                    stream.flush()
            if os.getpid() != self._process:
                # This is a child that the function forked: the parent answers the call.
                os._exit(code)

    # --- results ----------------------------------------------------------------------------

    def _keep(self, message: Keep) -> None:
        arrays, _ = self._left[message.ticket]
        self.keep(arrays[message.index], message.address)

    def _fetch(self, message: Fetch) -> None:
        _, parts = self._left[message.ticket]
        piece = parts[message.part][message.start : message.start + message.nbytes]
        self._context.host_bytes(message.address, message.nbytes)[:] = piece

    def _forget(self, message: ForgetCall) -> None:
        self._supplied.pop(message.ticket, None)
        self._left.pop(message.ticket, None)


def _code_of(error: BaseException) -> int:
    """Return the exit code of a child that ends with ``error``, and print it as Python does."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return error.code or 0
    traceback.print_exception(error)
    return 1
