"""Records of the standard logging as lines of JSON."""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from typing import Final, final

from ..actors.logs import FIELDS
from ..wire.trace import current_traceparent

_STANDARD: Final = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}
)
"""Fields of every record, and those that other formatters add."""

_DEEPEST: Final = 32
"""Depth of nested containers; deeper ones are left out."""

_MOST_BITS: Final = 4096
"""Bits of a whole number; Python refuses to print much larger ones in decimals."""


@final
class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON, with all that is in ``extra``.

    ::

        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
        logging.basicConfig(handlers=[handler], level=logging.INFO)

    A line begins with ``time`` (ISO 8601, UTC), ``level``, ``logger`` and ``event``, which is the
    text. The fields of this package follow if they are known: ``actor``, ``device``,
    ``generation``, ``lane``, ``op``, ``status``, ``status_name``, ``library``, ``call`` and
    ``report``. Then come all other fields of ``extra``, ``traceparent`` if one is set, and
    ``exception`` and ``stack`` as text. A value without a form in JSON is written as its ``repr``,
    such as ``"nan"`` or ``"inf"``. All records are written, even with unusual values in ``extra``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        given = vars(record)
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update((name, given[name]) for name in FIELDS if name in given)
        line.update(
            (name, value)
            for name, value in given.items()
            if name not in _STANDARD and name not in line
        )
        place = current_traceparent()
        if place is not None:
            line.setdefault("traceparent", place)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(_plain(line), allow_nan=False)


def _plain(value: object, inside: tuple[int, ...] = ()) -> object:
    """A value as JSON can have it.

    Args:
        value: anything.
        inside: the identities of the containers that it is in.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _MOST_BITS else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(float(value))
    if not isinstance(value, dict | list | tuple):
        return _text(value)
    if id(value) in inside or len(inside) >= _DEEPEST:
        return "..."
    inside = (*inside, id(value))
    if isinstance(value, dict):
        return {
            _plain(key) if key is None or isinstance(key, str | int) else _text(key): (
                _plain(item, inside)
            )
            for key, item in value.items()
        }
    return [_plain(item, inside) for item in value]


def _text(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - whatever it raises, the record is of more worth
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
