"""Calling the program's functions in the host, for all backends."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np

from ..._dtypes import DTYPES
from ..._errors import RemoteError
from ._messages import Buffer, Call, Fetch, Forget, Initialize, Keep
from ._pickling import dumps, loads

_INLINE: Final = 1 << 16
"""Larger NumPy arrays do not travel with the answer but through shared memory."""


class Runner:
    """Executes calls. A backend says what an array is and how work is waited for."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._state: tuple[int, Any, Exception | None] = (0, None, None)
        self._results: dict[int, list[Any]] = {}
        self._tickets = itertools.count(1)
        self.handlers: Final = {
            Initialize: self._initialize,
            Call: self._call,
            Keep: self._keep,
            Fetch: self._fetch,
            Forget: self._forget,
        }

    def close(self) -> None:
        """Let go of the state, and of results that nobody fetched."""
        self._state = (0, None, None)
        self._results.clear()

    # --- what backends say ------------------------------------------------------------------

    def array_of(self, buffer: Buffer) -> Any:
        """A buffer as functions see it."""
        raise NotImplementedError

    def on_device(self, thing: Any) -> bool:
        """Whether ``thing`` is an array that is to become a buffer."""
        raise NotImplementedError

    def hold(self, thing: Any) -> Any:
        """Such an array, contiguous and with its dtype and shape, for ``keep``."""
        raise NotImplementedError

    def keep(self, held: Any, address: int) -> None:
        """Copy it into a buffer, and wait until that is done."""
        raise NotImplementedError

    def begin(self) -> None:
        """Before a function: wait for what it depends on."""

    def end(self) -> None:
        """After it: wait for what it has queued, on whatever stream.

        Raises:
            StickyFault: that has failed.
        """

    # --- calls ------------------------------------------------------------------------------

    def _initialize(self, message: Initialize) -> None:
        self._state = (0, None, None)
        try:
            self._state = (message.state, self._run(message, ()), None)
        except Exception as error:
            # Every call that needs the state shall know.
            self._state = (message.state, None, error)
            raise

    def _call(self, message: Call) -> tuple[bytes, list[tuple[bool, tuple[int, ...], str]], int]:
        first: tuple[Any, ...] = ()
        if message.state:
            number, state, error = self._state
            if number != message.state:
                raise RuntimeError("the lane's state was replaced")
            if error is not None:
                raise error
            first = (state,)
        arrays: list[Any] = []
        kinds: list[tuple[bool, tuple[int, ...], str]] = []

        def take(thing: Any) -> int | None:
            if isinstance(thing, np.ndarray):
                if thing.nbytes <= _INLINE or thing.dtype not in DTYPES.values():
                    return None
                array, on_device = np.array(thing, order="C", subok=False), False
            elif self.on_device(thing):
                array, on_device = self.hold(thing), True
            else:
                return None
            arrays.append(array)
            kinds.append((on_device, tuple(array.shape), array.dtype.name))
            return len(arrays) - 1

        result = self._run(message, first, take)
        ticket = 0
        if arrays:
            ticket = next(self._tickets)
            self._results[ticket] = arrays
        return result, kinds, ticket

    def _run(self, message: Initialize | Call, first: tuple[Any, ...], take: Any = None) -> Any:
        self.begin()
        try:
            buffers = [self.array_of(buffer) for buffer in message.buffers]
            function, args = loads(message.data, buffers.__getitem__)
            result = function(*first, *args)
            return result if take is None else dumps(result, take)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # These would end the lane's thread without a word.
            name = type(error).__name__
            raise RemoteError(f"the function raised {name}: {error}", type_name=name) from error
        finally:
            self.end()

    # --- results ----------------------------------------------------------------------------

    def _keep(self, message: Keep) -> None:
        self.keep(self._results[message.ticket][message.index], message.address)

    def _fetch(self, message: Fetch) -> None:
        array = self._results[message.ticket][message.index]
        part = array.reshape(-1).view(np.uint8)[message.start : message.start + message.nbytes]
        self._context.host_bytes(message.address, message.nbytes)[:] = part

    def _forget(self, message: Forget) -> None:
        self._results.pop(message.ticket, None)
