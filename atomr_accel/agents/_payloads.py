"""Payloads of vectors, in SQLite: JSON objects by id, and ids by what their objects hold."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
import numpy as np

from ._errors import FilesDamaged
from ._tables import AT_ONCE, CheckedTables, checksum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

Scalar = str | int | float | bool | None
Filter = tuple[tuple[str, tuple[tuple[bool, Scalar], ...]], ...]
"""Fields and their allowed values, sorted; hashable, since searches by one filter run together.

Each value comes with whether it is a bool: True equals 1, and must not share its searches.
"""

_NAMES: Final = re.compile(r'[^"\\\x00-\x1f]*')
"""Fields that SQLite's JSON paths can name."""


def as_filter(where: Mapping[str, Any] | None) -> Filter:
    """Check a filter of the caller's.

    Args:
        where: allowed values by field: one value, or a list, tuple or set of several.
    """
    if where is None:
        return ()
    if not hasattr(where, "items"):
        raise TypeError(f"where must be a mapping of fields to values, not {where!r}")
    checked = []
    for field, allowed in where.items():
        if not isinstance(field, str):
            raise TypeError(f"a field of where must be a string, not {field!r}")
        if not _NAMES.fullmatch(field):
            raise ValueError(
                f"a field of where must be without quotes and control characters, not {field!r}"
            )
        several = allowed if isinstance(allowed, list | tuple | set | frozenset) else (allowed,)
        for value in several:
            if value is not None and not isinstance(value, str | int | float):
                raise TypeError(
                    f"a value of where must be a string, a number, a bool or None, not {value!r}; "
                    "give a list for any of several"
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"a value of where must be finite, not {value!r}")
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise ValueError(f"a value of where must fit in 64 bits, not {value!r}")
        kinds = [(isinstance(value, bool), value) for value in several]
        checked.append((field, tuple(sorted(kinds, key=repr))))
    return tuple(sorted(checked))


def encode_payload(payload: Mapping[str, Any] | None) -> str | None:
    """Return a payload as JSON text."""
    if payload is None:
        return None
    if not hasattr(payload, "items") or not all(isinstance(key, str) for key in payload):
        raise TypeError(f"a payload must be a mapping with strings as keys, not {payload!r}")
    try:
        text = msgspec.json.encode(dict(payload)).decode()
    except (TypeError, OverflowError) as error:
        raise TypeError(f"a payload must be plain values, as JSON has them: {error}") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"a payload must be of text without lone surrogates: {error}") from error
    except RecursionError as error:
        raise ValueError("a payload must not be within itself, or nested so deeply") from error
    if msgspec.json.decode(text) != dict(payload) and not _same(payload, msgspec.json.decode(text)):
        raise ValueError(f"a payload must be what JSON keeps, not {payload!r}")
    return text


def _same(given: Any, kept: Any) -> bool:
    """Return whether a value equals what JSON made of it; tuples become lists."""
    if isinstance(given, list | tuple):
        return isinstance(kept, list) and len(given) == len(kept) and all(map(_same, given, kept))
    if hasattr(given, "items"):
        return (
            isinstance(kept, dict)
            and {*given} == {*kept}
            and all(_same(value, kept[key]) for key, value in given.items())
        )
    return bool(given == kept)


@final
class PayloadTable(CheckedTables):
    """The file of payloads; see `CheckedTables`."""

    _mark = 0x61746170  # "atap"
    _what = "payloads"
    _alone = True
    _synchronous = "NORMAL"  # the log has what is not synchronized yet
    _schema = (
        "CREATE TABLE IF NOT EXISTS payloads (id INTEGER PRIMARY KEY, object TEXT NOT NULL,"
        " checked INTEGER NOT NULL);"
    )

    def verify(self) -> None:
        """Compare all payloads with their checksums."""
        with self._told():
            (found,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
            (wrong,) = self._connection.execute(
                "SELECT count(*) FROM payloads WHERE checksum(id, object) IS NOT checked"
            ).fetchone()
        if found != "ok" or wrong:
            raise FilesDamaged(f"{self._path} does not fit its checksums")

    def write(self, changes: Sequence[tuple[int, str | None]]) -> None:
        """Set payloads in one transaction; None removes one."""
        kept = [(key, text, checksum(key, text)) for key, text in changes if text is not None]
        gone = [(key,) for key, text in changes if text is None]
        with self._change() as connection:
            connection.executemany("DELETE FROM payloads WHERE id = ?", gone)
            connection.executemany("INSERT OR REPLACE INTO payloads VALUES (?, ?, ?)", kept)

    def read(self, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return the payloads of ids; ids without one are left out."""
        found: dict[int, dict[str, Any]] = {}
        with self._told():
            for start in range(0, len(ids), AT_ONCE):
                some = ids[start : start + AT_ONCE]
                marks = ",".join("?" * len(some))
                rows = self._connection.execute(
                    f"SELECT id, object FROM payloads WHERE id IN ({marks})",  # noqa: S608
                    some,
                )
                found.update((key, msgspec.json.decode(text)) for key, text in rows)
        return found

    def matching(self, where: Filter) -> NDArray[np.int64]:
        """Return the ids whose payloads have an allowed value in each field."""
        conditions: list[str] = []
        values: list[Scalar] = []
        for field, allowed in where:
            path = "$." + msgspec.json.encode(field).decode()
            kinds = []
            for _, value in allowed:
                # SQLite takes true for 1, so the types are compared as well.
                kind, test = _condition(value)
                kinds.append(f"(json_type(object, ?) IN ({kind}) AND {test})")
                values.append(path)
                if "?" in test:
                    values += [path, value]
            conditions.append("(" + " OR ".join(kinds or ["0"]) + ")")
        text = "SELECT id FROM payloads WHERE " + " AND ".join(conditions)  # noqa: S608
        with self._told():
            return np.array(
                [key for (key,) in self._connection.execute(text, values)], dtype=np.int64
            )

    def synchronize(self) -> None:
        """Make all transactions durable, also against the end of the system."""
        with self._told():
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _condition(value: Scalar) -> tuple[str, str]:
    """Return SQL for the JSON types that a value has, and for being equal to it."""
    if value is None:
        return "'null'", "1"
    if isinstance(value, bool):
        return ("'true'" if value else "'false'"), "1"
    kind = "'text'" if isinstance(value, str) else "'integer', 'real'"
    return kind, "json_extract(object, ?) = ?"
