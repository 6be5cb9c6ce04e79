"""Objects that a device has prepared in its host, which the next host needs, too."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

from ...lanes import uninterrupted

if TYPE_CHECKING:
    from ...wire import Message
    from ..batches.record import Recording

_MOST_NOTED: Final = 512
"""Number of plans and kernels, the last ones, that hot standbys prepare, too."""

_MOST_RECORDINGS: Final = 64
"""Number of recordings, the last ones, that hot standbys capture in advance."""


@final
@uninterrupted
class PreparationHistory:
    """The plans, kernels and recordings that were prepared last.

    Attributes:
        messages: the messages that have prepared plans and kernels, with their lanes.
    """

    def __init__(self) -> None:
        self.messages: Final[OrderedDict[tuple[str, Message], None]] = OrderedDict()
        self._recordings: OrderedDict[int, weakref.ref[Recording]] = OrderedDict()

    def note(self, lane: str, message: Message) -> bool:
        """Note a message that prepared an object; return True if it is new."""
        known = (lane, message) in self.messages
        self.messages[lane, message] = None
        self.messages.move_to_end((lane, message))
        if len(self.messages) > _MOST_NOTED:
            self.messages.popitem(last=False)
        return not known

    def note_recording(self, number: int, recording: Recording) -> bool:
        """Note a captured recording without keeping it alive; return True if it is new."""
        known = number in self._recordings
        self._recordings[number] = weakref.ref(recording)
        self._recordings.move_to_end(number)
        if len(self._recordings) > _MOST_RECORDINGS:
            self._recordings.popitem(last=False)
        return not known

    def recording(self, number: int) -> Recording | None:
        """Return the recording with a number, or None if it is gone."""
        known = self._recordings.get(number)
        recording = None if known is None else known()
        if recording is None:
            self._recordings.pop(number, None)
        return recording

    def numbers(self) -> set[int]:
        """Return the numbers of the recordings that still exist."""
        return {n for n in list(self._recordings) if self.recording(n) is not None}
