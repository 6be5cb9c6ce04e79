"""All pages of the documentation: code runs, links lead somewhere, and every name has an entry."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import pydoc
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import pytest
import trio
import trio.testing

from atomr_accel._errors import is_awaitable
from atomr_accel.actors.util import NoPublicConstructor
from atomr_accel.libraries import registry
from atomr_accel.testing.garbage import collect_garbage

from ..harness import ROOT
from .pages import CONTRIBUTING, PAGES, README, blocks, text_of

DIRECTIVE = re.compile(r"^\.\. auto\w+:: (\S+)$", re.MULTILINE)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.DOTALL | re.MULTILINE)

WITHOUT_DEVICES = (
    "docs/tutorials/actors.md",
    "docs/concepts/supervision.md",
    "docs/how-to/serve.md",
)
"""Their waits are on trio's clock, which need not be the wall's."""


async def run(page: str, names: dict[str, Any]) -> None:
    """Run a page's blocks in order, as if they were the body of one async function."""
    for code in blocks(page):
        result = eval(code, names)
        if is_awaitable(result):
            await result


@contextmanager
def loggers_as_they_were() -> Iterator[None]:
    """Restore the package's loggers, so that other tests do not get a page's handlers."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("atomr_accel")]
    loggers = [*map(logging.getLogger, {"atomr_accel", "atomr_accel.kernels", *names})]
    before = [(each, [*each.handlers], each.level) for each in loggers]
    try:
        yield
    finally:
        for each, handlers, level in before:
            each.handlers[:] = handlers
            each.setLevel(level)


RECORDINGS = [
    pytest.param(page, marks=[] if page in WITHOUT_DEVICES else [pytest.mark.slow])
    for page in PAGES
    if page not in {README, "docs/index.md"}  # their first blocks are programs of their own
    if blocks(page)
]


@pytest.mark.parametrize("page", RECORDINGS)
def test_the_code_of_a_page_runs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("code_of_a_page")
    monkeypatch.setattr(registry, "_known", registry.catalogue())  # a page may add one
    if "{__name__}" in text_of(page):  # it tells a host of this process where its classes are
        monkeypatch.setitem(sys.modules, module.__name__, module)
    mock = trio.testing.MockClock(autojump_threshold=0) if page in WITHOUT_DEVICES else None
    with warnings.catch_warnings(), loggers_as_they_were():
        warnings.filterwarnings("ignore", "no CUDA device")
        trio.run(run, page, vars(module), clock=mock)
    vars(module).clear()
    collect_garbage()  # exported arrays have descriptors, which other tests count


def links(page: str) -> list[tuple[str, str]]:
    """Paths from the root, and headings or nothing, of what a page links to in the repository."""
    found = re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text_of(page))
    here = (ROOT / page).parent
    return [
        (str((here / path).resolve().relative_to(ROOT)) if path else page, heading)
        for path, heading in found
    ]


def contents(page: str) -> list[str]:
    """The pages in a page's tables of contents."""
    here = (ROOT / page).parent
    return [
        str((here / f"{line}.md").relative_to(ROOT))
        for tree in TOCTREE.findall(text_of(page))
        for line in tree.split()
        if not line.startswith(":")
    ]


def headings(page: str) -> set[str]:
    """Return the anchors of a page's headings, as hosts of Markdown name them."""
    found = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


INTERNALS = (
    "architecture",
    "backend-internals",
    "batches-and-recordings",
    "calls",
    "devices-and-worlds",
    "library-internals",
    "memory-map",
    "observation",
    "recovery",
)
"""Pages about the implementation, which name its modules."""


@pytest.mark.style
@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    assert [path for path, _ in links(page) if not (ROOT / path).exists()] == []
    inside = [(path, heading) for path, heading in links(page) if heading]
    assert [(path, heading) for path, heading in inside if heading not in headings(path)] == []


@pytest.mark.style
@pytest.mark.parametrize(
    "page",
    [CONTRIBUTING, *(f"docs/concepts/{name}.md" for name in INTERNALS)],
)
def test_modules_that_a_page_names_are_there(page: str) -> None:
    named = re.findall(r"`((?:\w+/)*_[a-z]\w*\*?)(?:\.py)?`", text_of(page))
    there = {
        name
        for name in named
        if any((ROOT / "atomr_accel").rglob(f"{name.removeprefix('atomr_accel/')}.py"))
    }
    assert set(named) - there == set()


@pytest.mark.style
def test_pages_lead_to_every_example() -> None:
    examples = {str(path.relative_to(ROOT)) for path in ROOT.glob("examples/*.py")}
    assert examples <= {path for page in PAGES for path, _ in links(page)}


@pytest.mark.style
def test_the_index_of_examples_has_each_once() -> None:
    rows = re.findall(
        r"^\| \[(\w+)\]\(\.\./\.\./examples/(\w+)\.py\) \| .+ \| (?:`.+`)? \|$",
        text_of("docs/reference/examples.md"),
        re.MULTILINE,
    )
    assert [name for name, file in rows if name != file] == []
    assert sorted(name for name, _ in rows) == sorted(p.stem for p in ROOT.glob("examples/*.py"))


@pytest.mark.style
def test_readme_leads_to_every_section_in_few_lines() -> None:
    linked = {path for path, _ in links(README)}
    sections = {f"docs/{name}/index.md" for name in ("how-to", "concepts")}
    assert {"docs/index.md", "docs/reference/features.md", *sections} <= linked
    assert len(text_of(README).splitlines()) <= 120


@pytest.mark.style
def test_every_page_of_the_site_is_in_one_table_of_contents() -> None:
    listed = [path for page in PAGES for path in contents(page)]
    pages = {page for page in PAGES if page.startswith("docs/")} - {"docs/index.md"}
    assert sorted(listed) == sorted(pages)


@cache
def documented() -> dict[str, Any]:
    """Return the objects that the API reference documents, by their names there."""
    names = [name for page in PAGES if "/api/" in page for name in DIRECTIVE.findall(text_of(page))]
    assert len(names) == len(set(names))
    return {name: resolve_name(name) for name in names}


@pytest.mark.style
@pytest.mark.parametrize(
    "package",
    [
        "atomr_accel",
        "atomr_accel.actors",
        "atomr_accel.patterns",
        "atomr_accel.telemetry",
        "atomr_accel.dashboard",
        "atomr_accel.replay",
        "atomr_accel.solvers",
        "atomr_accel.realtime",
        "atomr_accel.testing",
        "atomr_accel.cluster",
        "atomr_accel.backends",
        "atomr_accel.ops",
        "atomr_accel.agents",
    ],
)
def test_the_reference_has_every_public_name(package: str) -> None:
    module = import_module(package)
    entries = [*documented().values()]
    missing = [name for name in module.__all__ if not is_in(getattr(module, name), entries)]
    assert module.__all__
    assert missing == []


def is_in(thing: object, entries: list[Any]) -> bool:
    return any(thing is entry for entry in entries)


CALLED = [
    reference
    for library in registry.catalogue().all.values()
    for reference in (library.facade, *library.objects)
    if reference is not None
]


@pytest.mark.style
@pytest.mark.parametrize("reference", CALLED)
def test_the_reference_has_what_programs_call_methods_of(reference: str) -> None:
    assert is_in(resolve_name(reference), [*documented().values()])


def parameters_of(thing: object) -> list[inspect.Parameter]:
    """Return the parameters in the signature of a callable; empty without a signature."""
    with suppress(ValueError, TypeError, NameError):
        return [*inspect.signature(thing).parameters.values()]  # type: ignore[arg-type]
    return []


@pytest.mark.style
def test_default_functions_are_in_the_reference() -> None:
    entries = {id(thing) for thing in documented().values()}
    defaults = [
        (name, parameter)
        for name, thing in documented().items()
        for parameter in parameters_of(thing)
        if inspect.isfunction(parameter.default)
    ]
    assert defaults
    assert [each for each in defaults if id(each[1].default) not in entries] == []


@pytest.mark.style
def test_help_shows_no_constructor_that_programs_cannot_call() -> None:
    kinds = [kind for kind in documented().values() if type(kind) is NoPublicConstructor]
    assert kinds
    for kind in kinds:
        text = pydoc.render_doc(kind, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
        assert "__init__(self, /)\n" in text or "__init__" not in vars(kind), kind
        assert "*_args" not in text, kind


@pytest.mark.style
def test_statistics_describe_each_attribute_in_their_help() -> None:
    kinds = {
        name: kind
        for name, kind in documented().items()
        if name.endswith("Statistics") and dataclasses.is_dataclass(kind)
    }
    assert kinds
    silent = {
        f"{name}.{field.name}"
        for name, kind in kinds.items()
        for field in dataclasses.fields(kind)
        if f"\n    {field.name}: " not in (inspect.getdoc(kind) or "")
    }
    assert silent == set()
