"""Tables and lines: plain, or by rich, and harmless."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.cli import _output
from atomr_accel.cli._output import (
    CommandOutput,
    Toned,
    path_text,
    plain_table,
    printable,
    said,
    size_of,
    time_of,
)


class Terminal(io.StringIO):
    """A terminal, as if a user were watching."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 60 columns."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


def shown_on(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the screen after the last update."""
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("sys.stderr", terminal)
    show()
    return terminal.getvalue()


def show() -> None:
    out = CommandOutput()
    out.table("Title", ("name", "what"), [("[red]a", Toned("bad " * 20, "bad")), ("b", 1.23456)])
    out.line("a [bold]line[/bold]", "good")
    with out.progress("doing", 2) as advance:
        advance(1)


def test_plain_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    show()
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == (
        f"Title\nname    what\n[red]a  {'bad ' * 20}".rstrip()
        + "\nb       1.23\n\na [bold]line[/bold]\n"
    )


def test_rich_on_a_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    shown = shown_on(terminal, monkeypatch)
    assert "\x1b[" in shown
    assert "[red]a" in shown, "names are no markup"
    assert "[bold]line[/bold]" in shown


@pytest.mark.parametrize("how", ["NO_COLOR", "dumb", "not installed"])
def test_plain_on_a_terminal(how: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    elif how == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    else:
        monkeypatch.setattr(_output, "find_spec", lambda _: None)
    shown = shown_on(terminal, monkeypatch)
    assert "\x1b" not in shown
    assert max(len(line) for line in shown.splitlines()) <= 60, "it is wrapped"


TEXTS = st.text("ab [*\x1b\n\u3042", max_size=30)


@settings(max_examples=30)
@given(st.lists(st.tuples(TEXTS, st.integers(), TEXTS), max_size=4), st.none() | st.integers(1, 90))
def test_a_plain_table_has_every_cell(rows: list[tuple[str, int, str]], width: int | None) -> None:
    text = plain_table(("one", "two", "three"), rows, width)
    assert text.startswith("one")
    assert text.endswith("\n")
    letters = "".join(text.split())
    for row in rows:
        assert all("".join(said(cell).split()) in letters for cell in row[:2])
    assert width is not None or len(text.splitlines()) >= 1 + len(rows)


@pytest.mark.slow
@given(st.text())
def test_output_moves_no_cursor(text: str) -> None:
    clean = printable(text)
    assert all(char.isprintable() or char == "\n" for char in clean)
    clean.encode()  # no halves of surrogates either


def test_words_for_numbers() -> None:
    sizes = (0, 1023, 1024, 1536 << 20, 1 << 60)
    assert [size_of(n) for n in sizes] == ["0 B", "1023 B", "1.0 KiB", "1.5 GiB", "1048576.0 TiB"]
    seconds = (12.0, 0.5, 2e-5, 3e-8, 0.0)
    assert [time_of(s) for s in seconds] == ["12 s", "500 ms", "20 us", "30 ns", "0 ns"]
    assert path_text(b"a\xffb".decode(errors="surrogateescape")) == "a\\xffb"
