"""Passages of documents in SQLite, with full-text search, and the cutting of texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from ._tables import AT_ONCE, CheckedTables, checksum

if TYPE_CHECKING:
    from collections.abc import Sequence

_ENDS: Final = (re.compile(r"\n\s*\n"), re.compile(r"[.!?]['\")\]]*\s"), re.compile(r"\s"))
"""Ends of paragraphs, sentences and words."""
_WORDS: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document.

    Attributes:
        id: its number, which is its vector's id.
        document: the document's name.
        start: where it begins in the document, in characters.
        text: the piece.
        score: sum of reciprocal ranks in the search that found it.
    """

    id: int
    document: str
    start: int
    text: str
    score: float = 0.0


def cut(text: str, size: int, overlap: int) -> list[tuple[int, int]]:
    """Return the beginnings and ends of pieces of a text, without blanks around them.

    A piece ends with a paragraph, a sentence or a word if it can, in this order, and is at least
    half as long as it may be. Each begins up to ``overlap`` characters before the last one's end.

    Args:
        text: the text.
        size: the most characters of a piece.
        overlap: characters, fewer than half of ``size``.
    """
    pieces: list[tuple[int, int]] = []
    start, done = 0, 0
    while start < len(text):
        end = _end(text, start, max(done, start + size // 2), start + size)
        stripped = text[start:end].strip()
        if stripped:
            begin = start + text[start:end].index(stripped)
            pieces.append((begin, begin + len(stripped)))
        if end >= len(text):
            break
        start, done = _start(text, end - overlap, end), end
    return pieces


def _end(text: str, start: int, least: int, most: int) -> int:
    if most >= len(text):
        return len(text)
    for ends in _ENDS:
        # A match begins before what may be cut off, so the search begins at the piece itself.
        found = [match.end() for match in ends.finditer(text, start, most)]
        if found and found[-1] > least:
            return found[-1]
    return most


def _start(text: str, earliest: int, end: int) -> int:
    """Return where a word begins, from ``earliest`` on."""
    if earliest < end and earliest > 0 and not text[earliest - 1].isspace():
        blank = _ENDS[-1].search(text, earliest, end)
        return blank.end() if blank else end
    return earliest


@final
class PassageTable(CheckedTables):
    """The file of passages; see `CheckedTables`.

    A document is whole when all its vectors are in the index. Others are invisible, and are removed
    when the file is opened next.
    """

    _mark = 0x61746172  # "atar"
    _what = "passages"
    _alone = True
    _schema = (
        "CREATE TABLE IF NOT EXISTS documents (key INTEGER PRIMARY KEY AUTOINCREMENT,"
        " name TEXT NOT NULL UNIQUE, whole INTEGER NOT NULL);"
        "CREATE TABLE IF NOT EXISTS passages (id INTEGER PRIMARY KEY AUTOINCREMENT,"
        " document INTEGER NOT NULL, start INTEGER NOT NULL, text TEXT NOT NULL,"
        " checked INTEGER NOT NULL);"
        "CREATE INDEX IF NOT EXISTS by_document ON passages (document);"
        "CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5("
        "text, content='passages', content_rowid='id', tokenize='porter unicode61');"
    )

    def add(self, name: str, pieces: Sequence[tuple[int, str]]) -> list[int]:
        """Write a document that is not whole yet, and return its passages' ids.

        Raises:
            ValueError: there is a document of this name.
            FilesFailed: the file system refuses, and nothing has changed.
        """
        with self._change() as connection:
            if connection.execute("SELECT 1 FROM documents WHERE name = ?", (name,)).fetchone():
                raise ValueError(f"name must be a new document's, not {name!r}; remove that first")
            key = connection.execute("INSERT INTO documents VALUES (NULL, ?, 0)", (name,)).lastrowid
            ids: list[int] = []
            for start, text in pieces:
                number = connection.execute(
                    "INSERT INTO passages VALUES (NULL, ?, ?, ?, ?)",
                    (key, start, text, checksum(start, text)),
                ).lastrowid
                assert number is not None
                connection.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (number, text))
                ids.append(number)
            return ids

    def mark(self, name: str, *, whole: bool) -> bool:
        """Say whether a document is whole. Return whether it is there and changed."""
        with self._change() as connection:
            done = connection.execute(
                "UPDATE documents SET whole = ? WHERE name = ? AND whole != ?", (whole, name, whole)
            )
            return done.rowcount == 1

    def of(self, name: str) -> list[int]:
        """Return the ids of a document's passages."""
        return self._column(
            "SELECT id FROM passages WHERE document ="
            " (SELECT key FROM documents WHERE name = ?) ORDER BY id",
            name,
        )

    def names(self, *, whole: bool) -> list[str]:
        """Return the names of documents that are whole, or of those that are not."""
        return self._column("SELECT name FROM documents WHERE whole = ? ORDER BY key", whole)

    def ids(self, *, whole: bool) -> list[int]:
        """Return the ids of all passages of documents that are whole, or of those that are not."""
        return self._column(
            "SELECT id FROM passages JOIN documents ON documents.key = passages.document"
            " WHERE whole = ?",
            whole,
        )

    def _column(self, query: str, *values: object) -> list[Any]:
        """Return the first column of what a query finds."""
        with self._told():
            return [row[0] for row in self._connection.execute(query, values)]

    def remove(self, name: str) -> None:
        """Remove a document and its passages."""
        with self._change() as connection:
            (key,) = connection.execute(
                "SELECT key FROM documents WHERE name = ?", (name,)
            ).fetchone()
            connection.execute(
                "INSERT INTO words (words, rowid, text)"
                " SELECT 'delete', id, text FROM passages WHERE document = ?",
                (key,),
            )
            connection.execute("DELETE FROM passages WHERE document = ?", (key,))
            connection.execute("DELETE FROM documents WHERE key = ?", (key,))

    def matching(self, question: str, most: int) -> list[int]:
        """Return the ids of passages with any word of a question, the best by BM25 first."""
        words = " OR ".join(f'"{word}"' for word in dict.fromkeys(_WORDS.findall(question)))
        if not words:
            return []
        return self._column(
            "SELECT words.rowid FROM words JOIN passages ON passages.id = words.rowid"
            " JOIN documents ON documents.key = passages.document"
            " WHERE words MATCH ? AND whole ORDER BY bm25(words), words.rowid LIMIT ?",
            words,
            most,
        )

    def read(self, ids: Sequence[int]) -> dict[int, Passage]:
        """Return passages of whole documents by id; others are left out."""
        found: dict[int, Passage] = {}
        with self._told():
            for at in range(0, len(ids), AT_ONCE):
                some = ids[at : at + AT_ONCE]
                marks = ",".join("?" * len(some))
                rows = self._connection.execute(
                    "SELECT id, name, start, text, checked FROM passages JOIN documents"  # noqa: S608
                    f" ON documents.key = passages.document WHERE whole AND id IN ({marks})",
                    some,
                )
                for *values, check in rows:
                    passage = Passage(*values)
                    self._checked(check, passage.start, passage.text)
                    found[passage.id] = passage
        return found
