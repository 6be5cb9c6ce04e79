"""Records of the standard logging as lines of JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, final

from ..actors._logs import FIELDS
from ..wire._trace import current_traceparent

_STANDARD: Final = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}
)
"""What every record has, or other formatters leave there."""


@final
class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON, with all that is in ``extra``.

    ::

        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
        logging.basicConfig(handlers=[handler], level=logging.INFO)

    A line has ``time`` (ISO 8601, UTC), ``level``, ``logger`` and ``event``, which is the text;
    then the fields of this package, as far as they are known: ``actor``, ``device``,
    ``generation``, ``lane``, ``op``, ``status``, ``status_name``, ``library`` and ``call``; then
    what else the program gives in ``extra``; ``traceparent`` where one is set; ``exception`` and
    ``stack`` as text.
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
        return json.dumps(line, default=repr)
