"""Output of commands: tables and lines for people, or one JSON object.

On a terminal rich draws, if it is installed. Otherwise, and if ``NO_COLOR`` is set, the output is
plain text. Standard output has the result and nothing else. Progress goes to standard error, and
only if that is a terminal.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal, TextIO, final

from ._errors import standard_output, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

    from ._documents import Document

Tone = Literal["good", "note", "warning", "bad", "dim"]
"""Meaning of a word, shown as a colour if colours are on."""

_STYLES: Final[dict[Tone, str]] = {
    "good": "green",
    "note": "cyan",
    "warning": "yellow",
    "bad": "bold red",
    "dim": "dim",
}
_GAP: Final = "  "
_LEAST_LAST: Final = 20
"""Least width of the last column of a plain table."""


@final
class CommandOutput:
    """Destination for the results of a command.

    Args:
        as_json: print documents as JSON, and no text.

    Attributes:
        as_json: whether documents are printed as JSON.
        on_terminal: whether standard output is a terminal for text.
        printed: whether a document was printed.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json: Final = as_json
        self.printed: bool = False
        self.on_terminal: Final = _is_terminal(sys.stdout)

    # --- for scripts ---------------------------------------------------------------------

    def document(self, document: Document, *, in_a_line: bool = False) -> None:
        """Print a document as JSON, in UTF-8 whatever the locale; nothing without ``--json``."""
        if not self.as_json:
            return
        from ._documents import encoded

        output = standard_output()
        self.printed = True
        with writing():
            output.flush()
            output.buffer.write(encoded(document, in_a_line=in_a_line))
            output.buffer.flush()

    def refuse(self, command: str, message: str, code: int) -> None:
        """Say why a command could not be done."""
        if self.as_json:
            from ._documents import ErrorDocument

            self.document(ErrorDocument(command=command, message=message, exit_code=int(code)))
        elif sys.stderr is not None:
            name = f"atomr-accel {command}".rstrip()
            sys.stderr.write(f"{name}: {printable(message)}\n")

    # --- for people ----------------------------------------------------------------------

    def line(self, text: str = "", tone: Tone | None = None) -> None:
        """Print a line."""
        if self.as_json:
            return
        text, output = printable(text), standard_output()
        with writing():
            if (console := _console(output)) is None:
                output.write(f"{text}\n")
            else:
                style = _STYLES[tone] if tone else None
                console.print(text, style=style, markup=False, highlight=False)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Print a table, followed by an empty line; nothing if it has no rows."""
        if self.as_json or not rows:
            return
        output = standard_output()
        with writing():
            if (console := _console(output)) is not None:
                console.print(rich_table(title, columns, rows))
                return
            text = plain_table(columns, rows, _width(self.on_terminal))
            output.write(f"{printable(title)}\n{text}\n")

    def console(self) -> Console | None:
        """Console for rich; None without rich or a terminal, and with JSON."""
        return None if self.as_json else _console(sys.stdout)

    @contextmanager
    def progress(self, what: str, total: float) -> Iterator[Callable[[float], None]]:
        """Show a bar on standard error while the block runs, if that is a terminal.

        Yields:
            A function to call with the amount of work done so far.
        """
        if (console := _console(sys.stderr)) is None:
            yield _nothing
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)


class Toned(str):
    """Text of a cell, with a tone."""

    __slots__ = ("tone",)
    tone: Tone

    def __new__(cls, text: str, tone: Tone) -> Toned:
        """Make one."""
        self = super().__new__(cls, text)
        self.tone = tone
        return self


Cell = str | int | float | None
"""A cell of a table; None is empty, a float is rounded, ``Toned`` has a colour."""


def printable(text: str) -> str:
    """Escape characters that may act on a terminal, because names may have any content."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path as text that can be printed and encoded, even with unusual bytes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def said(cell: Cell) -> str:
    """Return the text of a cell."""
    if cell is None:
        return ""
    return f"{cell:.3g}" if isinstance(cell, float) else printable(str(cell))


def size_of(nbytes: float) -> str:
    """Bytes in words: ``1.5 MiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    at = 0
    while nbytes >= 1024 and at < len(units) - 1:
        nbytes, at = nbytes / 1024, at + 1
    return f"{nbytes:.0f} B" if at == 0 else f"{nbytes:.1f} {units[at]}"


def time_of(seconds: float) -> str:
    """Seconds in words: ``12.3 us``."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], width: int | None) -> str:
    """A table as text: columns are as wide as need be, and the last is wrapped.

    None as ``width`` does not wrap it.
    """
    lines = [[said(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns) - 1)]
    indent = " " * sum(w + len(_GAP) for w in widths)
    room = None if width is None else max(_LEAST_LAST, width - len(indent))
    text = []
    for line in lines:
        first = (
            _GAP.join([*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), ""])
            if widths
            else ""
        )
        last = [line[-1]] if room is None else textwrap.wrap(line[-1], room) or [""]
        text += [(first + last[0]).rstrip(), *(indent + more for more in last[1:])]
    return "\n".join(text) + "\n"


def rich_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """Return the table for rich."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(printable(title)),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in columns[:-1]:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    table.add_column(columns[-1], overflow="fold", min_width=min(_LEAST_LAST, len(columns[-1])))
    for row in rows:
        table.add_row(
            *(
                Text(said(cell), _STYLES[cell.tone] if isinstance(cell, Toned) else "")
                for cell in row
            )
        )
    return table


def _console(stream: TextIO | None) -> Console | None:
    """Return a console of rich, if the output is a terminal."""
    if stream is None or not _is_terminal(stream) or os.environ.get("NO_COLOR"):
        return None
    if os.environ.get("TERM") == "dumb" or find_spec("rich") is None:
        return None
    from rich.console import Console

    return Console(file=stream)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it was closed
        return False


def _width(on_terminal: bool) -> int | None:
    """Return the width of the terminal; None to leave text for programs unwrapped."""
    return shutil.get_terminal_size().columns if on_terminal else None


def _nothing(done: float) -> None:
    """Ignore progress, for output without a terminal."""
