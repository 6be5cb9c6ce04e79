"""Settings of the site, which ``python3 noxfile.py docs`` builds."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import zlib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sphinxcontrib_trio
from sphinx.domains.python import PythonDomain

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import atomr_accel  # noqa: E402 - from this checkout, wherever another one is installed
from atomr_accel.actors.blocks import opens  # noqa: E402
from atomr_accel.libraries.registry import catalogue  # noqa: E402
from atomr_accel.ops import CallTemplate, Request, op  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from sphinx.application import Sphinx

project = "atomr_accel"
version = release = atomr_accel.__version__
project_copyright = f"the authors of {project}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinxcontrib_trio",  # tells async functions and context managers apart
]
html_theme = "furo"
html_title = project
html_copy_source = False

# Pages are read on the host of the repository, too: plain Markdown, headings linked by name.
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_inline"]

autodoc_use_legacy_class_based = True  # sphinxcontrib-trio extends the documenters of that kind
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [
    ("All methods raise", "raises"),
    ("Whatever is awaited may also raise", "raises"),
]
suppress_warnings = ["ref.python"]  # a word before a colon in "Returns:" need not be a class
python_use_unqualified_type_names = True
add_module_names = False  # most lie in modules that are not public
maximum_signature_line_length = 88


# sphinxcontrib-trio looks at what stands in a class, and for the functions behind that.
op.__func__ = property(lambda self: self.__get__(None))
sphinxcontrib_trio.ACM_CODES.add(opens(lambda: None).__code__)

PUBLIC = (
    "atomr_accel",
    *(f"atomr_accel.{name}" for name in ("actors", "patterns", "solvers", "replay", "telemetry")),
    *(f"atomr_accel.{name}" for name in ("dashboard", "testing", "worlds", "backends")),
)


def _inventory(name: str) -> str:
    """Pack a list of names as Sphinx reads it, so that a build needs no network.

    A line has a role, a page and names on it; ``numpy.dtype=np.dtype`` is one that signatures
    shorten.
    """
    packed = HERE.parent / ".site" / "inventories" / f"{name}.inv"
    entries = []
    for line in (HERE / "inventories" / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        role, page, *names = line.split()
        for target, *others in (each.split("=") for each in names):
            entries += [f"{each} {role} 1 {page}#{target} -\n" for each in (target, *others)]
    head = (
        f"# Sphinx inventory version 2\n# Project: {name}\n# Version:\n"
        "# The remainder of this file is compressed using zlib.\n"
    )
    packed.parent.mkdir(parents=True, exist_ok=True)
    packed.write_bytes(head.encode() + zlib.compress("".join(entries).encode()))
    return str(packed)


intersphinx_mapping = {
    "python": ("https://docs.python.org/3", _inventory("python")),
    "trio": ("https://trio.readthedocs.io/en/stable", _inventory("trio")),
    "numpy": ("https://numpy.org/doc/stable", _inventory("numpy")),
}


def _tables(lines: list[str]) -> list[str]:
    """Make reStructuredText of the Markdown tables in a docstring.

    A row whose first cell is empty goes on with the row above it.
    """
    made: list[str] = []
    rows: list[list[str]] = []
    for line in [*lines, ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if rows:
            made += _list_table(rows)
            rows = []
        made.append(line)
    return made[:-1]


def _list_table(rows: list[list[str]]) -> list[str]:
    head, rule, *body = rows
    assert all(re.fullmatch(r":?-+:?", cell) for cell in rule), f"no table: {rows}"
    merged: list[list[str]] = []
    for row in body:
        if row[0] or not merged:
            merged.append(row)
        else:
            merged[-1] = [f"{a} {b}".strip() for a, b in zip(merged[-1], row, strict=True)]
    lines = ["", ".. list-table::"]
    if any(head):
        lines += ["   :header-rows: 1"]
        merged.insert(0, head)
    lines.append("")
    for row in merged:
        lines += [f"   {'*' if at == 0 else ' '} - {cell}" for at, cell in enumerate(row)]
    return [*lines, ""]


def _process_docstring(
    _app: Sphinx, _what: str, _name: str, _thing: Any, _options: Any, lines: list[str]
) -> None:
    lines[:] = _tables(lines)


def _process_property(
    _app: Sphinx, what: str, _name: str, _thing: Any, _options: Any, lines: list[str]
) -> None:
    """Undo that napoleon takes a property's first words for its type if a colon follows them."""
    while lines and not lines[-1]:
        lines.pop()
    if what == "property" and lines and lines[-1].startswith(":type: "):
        words = lines.pop().removeprefix(":type: ")
        lines[0] = f"{words}: {lines[0]}"


def _process_signature(
    _app: Sphinx, what: str, _name: str, thing: Any, _options: Any, signature: Any, result: Any
) -> tuple[Any, Any]:
    """Say how a class is made only where programs make it: what others make, they are given."""
    # Sphinx prints a signature as it is, with all modules, if a default is not Python.
    signature = signature and re.sub(
        r"<(?:function|class) '?(?:\w+\.)*(\w+)[^>]*>", r"\1", signature
    )
    if what not in {"class", "exception"}:
        return signature, result
    made_by_programs = "Args:" in (thing.__doc__ or "") or (
        thing.__module__.startswith("atomr_accel.actors")
        and not thing.__name__.endswith("Statistics")
        and what == "class"
    )
    return (signature, result) if made_by_programs else ("", None)


def _process_bases(_app: Sphinx, _name: str, _thing: Any, _options: Any, bases: list[Any]) -> None:
    """Name public classes in the place of those that only share code."""
    for at, base in enumerate(bases):
        if isinstance(base, type):
            bases[at] = next(each for each in base.__mro__ if not each.__name__.startswith("_"))


def _skip(
    _app: Sphinx, what: str, _name: str, thing: Any, skip: bool | None, _options: Any
) -> bool | None:
    """Fields of named tuples are described by their class."""
    return True if what == "class" and type(thing).__name__ == "_tuplegetter" else skip


def _public_names() -> dict[str, str]:
    """The names that programs write, by those of the modules that define them."""
    names = {
        f"{facade.__module__}.{facade.__qualname__}": f"device.{library}"
        for library, facade in catalogue().facades.items()
    }
    for module in PUBLIC:
        exported = import_module(module)
        for name in exported.__all__:
            thing = getattr(exported, name)
            if hasattr(thing, "__qualname__"):
                names.setdefault(f"{thing.__module__}.{thing.__qualname__}", f"{module}.{name}")
    return names


class _PublicNames(PythonDomain):
    """Has the search know things by the names that programs write."""

    def get_objects(self) -> Iterator[tuple[str, str, str, str, str, int]]:
        for name, shown, *rest in super().get_objects():
            yield (_public(name), _public(shown), *rest)


def _public(name: str) -> str:
    """A thing's public name, or its own without the modules that are not public."""
    head, tail = name, ""
    while head:
        if head in NAMES:
            return NAMES[head] + tail
        head, _, last = head.rpartition(".")
        tail = f".{last}{tail}"
    parts = name.split(".")
    private = [at for at, part in enumerate(parts) if re.match(r"_[a-z]", part)]
    return ".".join(parts[private[-1] + 1 :]) if private else name


NAMES = _public_names()


def _import_for_types(module: ModuleType) -> None:
    """Import the names that a module imports for type checkers only.

    msgspec evaluates the annotations of a class for its signature.
    """
    for part in ast.parse(inspect.getsource(module)).body:
        if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING":
            body = ast.Module(part.body, [])
            exec(compile(body, str(module.__file__), "exec"), vars(module))  # noqa: S102


for each in (CallTemplate, Request):
    _import_for_types(import_module(each.__module__))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_domain(_PublicNames, override=True)
    app.connect("autodoc-process-docstring", _process_docstring, priority=400)
    app.connect("autodoc-process-docstring", _process_property, priority=600)
    app.connect("autodoc-process-signature", _process_signature)
    app.connect("autodoc-process-bases", _process_bases)
    app.connect("autodoc-skip-member", _skip)
