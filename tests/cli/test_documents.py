"""The output of ``--json`` is documented: in docstrings, in the page, and as JSON Schema."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from atomr_accel.cli import _documents
from atomr_accel.cli._documents import (
    DOCUMENTS,
    Document,
    DocumentPart,
    ErrorDocument,
    decoded,
    encoded,
)

from ..harness import ROOT

PAGE = (ROOT / "docs" / "how-to" / "command-line.md").read_text(encoding="utf-8")
SHAPES = [
    kind
    for kind in vars(_documents).values()
    if inspect.isclass(kind)
    and issubclass(kind, DocumentPart)
    and kind not in {DocumentPart, Document}
]


def parts_of(kind: type[Any]) -> Iterator[str]:
    """The attributes that are listed in a table of their own."""
    for field in msgspec.structs.fields(kind):
        told = (field.type, *getattr(field.type, "__args__", ()))
        if any(inspect.isclass(part) and issubclass(part, DocumentPart) for part in told):
            yield field.name


@pytest.mark.parametrize("kind", SHAPES, ids=lambda kind: kind.__name__)
def test_every_attribute_says_what_it_is(kind: type[DocumentPart]) -> None:
    doc = inspect.getdoc(kind) or ""
    described = [name for name in kind.__struct_fields__ if f"\n    {name}: " in doc]
    assert described == [*kind.__struct_fields__]


@pytest.mark.parametrize("document", [*DOCUMENTS, "error"])
def test_the_page_has_every_attribute(document: str) -> None:
    """In a table, in the order of the object."""
    kind = DOCUMENTS.get(document, ErrorDocument)
    title = f"**`{document}`**\n\n| attribute | |\n|---|---|"
    assert title in PAGE
    table = PAGE.partition(title)[2].partition("\n\n")[0]
    assert [row.split("`")[1] for row in table.split("\n| ")[1:]] == [*kind.__struct_fields__]
    assert all(f"**`{part}` of `{document}`**" in PAGE for part in parts_of(kind))


def test_every_part_is_in_the_page() -> None:
    """Whatever document it is of."""
    tables = {
        tuple(row.split("`")[1] for row in table.partition("\n\n")[0].split("\n| ")[1:])
        for table in PAGE.split("| attribute | |\n|---|---|")[1:]
    }
    assert {kind.__struct_fields__ for kind in SHAPES} <= tables


def test_names_that_are_no_unicode_are_written_out() -> None:
    error = ErrorDocument(command="top", message="b\udcff.py", exit_code=3)
    assert decoded("top", encoded(error)) == ErrorDocument(
        command="top", message="b\\udcff.py", exit_code=3
    )


def test_document_refuses_another_shape() -> None:
    error = ErrorDocument(command="top", message="\u3042", exit_code=3)
    assert decoded("top", encoded(error)) == error
    more = encoded(error).replace(b"{", b'{"more": 1,', 1)
    with pytest.raises(msgspec.ValidationError):
        decoded("top", more)
