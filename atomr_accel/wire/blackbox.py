"""Memory that a host shares with its program, which can be read after the host has died.

Each thread that launches ops notes the op that it launches, the part of a recording, and the op
whose function of the program it runs; and then that it has launched all that came. A thread
that ends the process is noted too: by ``os._exit``, or by ``faulthandler``, which writes the stack
of the thread that has crashed.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from mmap import mmap

THREAD: Final = 0
SEQ: Final = 1
NODE: Final = 2
FUNCTION: Final = 3
LAUNCHED: Final = 4
"""Words of a record: the thread's identity, the op that it launches, the part of a recording that
it executes, the op whose function of the program it runs (0 without one), and the last op when it
had launched all that came."""

_WORDS: Final = 8  # a cache line, so that threads do not slow each other down
_RECORDS: Final = 256
"""Threads of a host that have a record of their own. Others share, and overwrite each other's."""

TEXT: Final = 8 * _WORDS * _RECORDS
"""Offset of the text."""

BOX_BYTES: Final = 64 << 10

_CRASHED: Final = re.compile(r'Current thread 0x([0-9a-f]+).*\n((?:  File ".*\n)*)')


@final
class _CurrentRecord(threading.local):
    """The record of a thread.

    Attributes:
        words: its words. Threads that launch no ops have words that are never read.
    """

    def __init__(self) -> None:
        self.words: memoryview = memoryview(bytearray(8 * _WORDS)).cast("q")


CURRENT: Final = _CurrentRecord()


def note_thread(record: memoryview) -> None:
    """Have this thread use a record from now on."""
    record[THREAD] = threading.get_ident()
    CURRENT.words = record


@final
class BlackBox:
    """The memory, as the program and the host see it.

    Args:
        memory: ``BOX_BYTES`` bytes, at first zeros.
    """

    def __init__(self, memory: mmap | bytearray) -> None:
        self._memory: mmap | bytearray = memory
        self._view = memoryview(memory)
        self._words = self._view[:TEXT].cast("q")

    def record(self, number: int) -> memoryview:
        """Return the words of the thread of this number, from 1 on."""
        start = _WORDS * ((number - 1) % (_RECORDS - 1) + 1)
        return self._words[start : start + _WORDS]

    def note_end(self, seq: int) -> None:
        """Note the op whose thread is about to end the process."""
        self._words[SEQ] = seq

    # --- for the program --------------------------------------------------------------

    def ended_by(self) -> int:
        """Return the op whose thread has ended the process; 0 if that is unknown."""
        if self._words[SEQ]:
            return self._words[SEQ]
        found = _CRASHED.search(self._text())
        return 0 if found is None else self._launched_by(int(found[1], 16))

    def stack(self) -> tuple[str, ...]:
        """Return the Python frames of the thread that has crashed, the innermost first."""
        found = _CRASHED.search(self._text())
        return () if found is None else tuple(map(str.strip, found[2].splitlines()))

    def functions(self) -> set[int]:
        """Return the ops whose functions of the program threads were running."""
        return {*self._words[_WORDS + FUNCTION :: _WORDS]} - {0}

    def launching(self) -> set[int]:
        """Return the ops that threads were launching."""
        seqs = self._words[_WORDS + SEQ :: _WORDS]
        launched = self._words[_WORDS + LAUNCHED :: _WORDS]
        return {seq for seq, last in zip(seqs, launched, strict=True) if seq != last}

    def node_of(self, seq: int) -> int:
        """Return the part of a recording that the replay ``seq`` executed last; 0 if unknown."""
        for at in range(_WORDS, len(self._words), _WORDS):
            if self._words[at + SEQ] == seq:
                return self._words[at + NODE]
        return 0

    @property
    def shared(self) -> bool:
        """True if the memory is mapped from a file."""
        return not isinstance(self._memory, bytearray)

    def close(self) -> None:
        """Release the shared memory, and keep a copy of its content."""
        if isinstance(self._memory, bytearray):
            return
        shared, self._memory = self._memory, bytearray(self._view)
        self._words.release()
        self._view.release()
        shared.close()
        self._view = memoryview(self._memory)
        self._words = self._view[:TEXT].cast("q")

    def _launched_by(self, thread: int) -> int:
        of_thread = [
            at
            for at in range(_WORDS, len(self._words), _WORDS)
            if self._words[at + THREAD] == thread
        ]
        # A thread may have the identity of one that is over.
        return max((self._words[at + SEQ] for at in of_thread), default=0)

    def _text(self) -> str:
        text = bytes(self._view[TEXT:]).partition(b"\0")[0]
        return text.decode("utf-8", "replace")
