"""The repository keeps its own rules: public names, lengths of files, imports of hosts.

Which way imports go is checked by ``python3 noxfile.py lint``.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import itertools
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from atomr_accel import open_device

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "atomr_accel"
FILES = sorted(PACKAGE.rglob("*.py"))
TEST_FILES = sorted(ROOT.glob("tests/**/*.py"))
ALL_FILES = [*FILES, *TEST_FILES]

FOR_USERS = (
    "atomr_accel",
    "atomr_accel.actors",
    "atomr_accel.patterns",
    "atomr_accel.telemetry",
    "atomr_accel.dashboard",
    "atomr_accel.replay",
    "atomr_accel.solvers",
    "atomr_accel.realtime",
    "atomr_accel.testing",
    "atomr_accel.worlds",
    "atomr_accel.agents",
    "atomr_accel.cluster",
    "atomr_accel.llm",
)
"""Packages that users import from; other packages export names for later layers."""


def name_of(path: Path) -> str:
    """The dotted name of a module of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def by_file(find: Callable[[Path], list[str]], files: Sequence[Path]) -> dict[str, list[str]]:
    """Return findings by module; modules without any are left out."""
    return {name_of(path): found for path in files if (found := find(path))}


def public_packages() -> list[str]:
    """The package and those below it whose path has no underscore and that export something."""
    return [
        name_of(path)
        for path in FILES
        if path.name == "__init__.py"
        if "._" not in name_of(path)
        if "\n__all__ = " in path.read_text(encoding="utf-8")
    ]


def imports(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    """The modules that a file imports, wherever in it; ``from x import y`` gives ``x.y``."""
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*anchor, base] if base else anchor)
            yield from ((node, f"{base}.{alias.name}") for alias in node.names)


def part_of(module: str) -> str:
    """The part of the package that holds a module: ``memory`` for ``atomr_accel.memory._block``."""
    return module.split(".")[1] if "." in module else ""


@pytest.mark.style
@pytest.mark.parametrize("name", public_packages())
def test_exported_names_exist_once_and_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert [entry for entry, count in Counter(module.__all__).items() if count > 1] == []
    assert inspect.getdoc(module), f"{name} has no docstring"
    exported = {entry: getattr(module, entry) for entry in module.__all__}
    described = {
        entry: thing
        for entry, thing in exported.items()
        if inspect.isclass(thing) or inspect.isroutine(thing) or isinstance(thing, ModuleType)
    }
    aliases = Counter(id(thing) for thing in described.values())
    assert [entry for entry, thing in described.items() if aliases[id(thing)] > 1] == []
    assert [entry for entry, thing in described.items() if not is_described(thing)] == []


def is_described(thing: Any) -> bool:
    """Return whether it has a written docstring; a dataclass makes its own signature."""
    doc = thing.__doc__ or ""
    return bool(doc.strip()) and not doc.startswith(f"{getattr(thing, '__name__', '')}(")


@pytest.mark.style
@pytest.mark.parametrize("name", public_packages())
def test_public_methods_say_what_they_do(name: str) -> None:
    module = importlib.import_module(name)
    exported = [getattr(module, entry) for entry in module.__all__]
    silent = [
        f"{cls.__name__}.{attribute}"
        for cls in filter(inspect.isclass, exported)
        for attribute, member in vars(cls).items()
        if not attribute.startswith("_")
        if inspect.isroutine(member) or isinstance(member, property)
        if not inspect.getdoc(getattr(cls, attribute))
    ]
    assert silent == []


@pytest.mark.style
def test_one_name_means_one_thing() -> None:
    meanings: dict[str, dict[int, str]] = {}
    for package in FOR_USERS:
        module = importlib.import_module(package)
        for entry in module.__all__:
            meanings.setdefault(entry, {})[id(getattr(module, entry))] = package
    assert {entry: [*where.values()] for entry, where in meanings.items() if len(where) > 1} == {}


@pytest.mark.style
def test_the_package_itself_only_re_exports() -> None:
    """Lazily, so that type checkers see imports that do not happen."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    defined = {node.name for node in tree.body if isinstance(node, definitions)}
    assert defined <= {"__getattr__", "__dir__"}
    reexported = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    ]
    assert sorted(reexported) == sorted(importlib.import_module(PACKAGE.name).__all__)


@pytest.mark.style
def test_files_stay_readable() -> None:
    lines = {name_of(path): path.read_text(encoding="utf-8").count("\n") for path in ALL_FILES}
    assert {name: count for name, count in lines.items() if count > 800} == {}


SERVED = {
    "atomr_accel.dashboard._connections",
    "atomr_accel.dashboard._guard",
    "atomr_accel.dashboard._web",
}
"""Modules that import the dashboard's own requirements."""


HEADLESS = re.compile(
    r"(What|Who|Whoever|Whom|Whose|Where|Wherever|Whether|Of|That|Those|These|So|As|Such|If"
    r"|Likewise|The same|It|They|There|None|Nor|Not|But|Else|Otherwise|How)\b"
)
"""Words that begin a relative clause or refer to something that has not been named."""


def statements_of(node: ast.AST) -> list[ast.stmt]:
    """Return the statements of a block; an expression such as a lambda has none."""
    body = getattr(node, "body", None)
    return body if isinstance(body, list) else []


@pytest.mark.style
def test_docstrings_and_notes_begin_with_a_noun_or_a_verb() -> None:
    def headless(path: Path) -> list[str]:
        return [text for text in notes_in(path) if HEADLESS.match(text)]

    assert by_file(headless, ALL_FILES) == {}


CLASS = re.compile(r"^class (\w+)", re.MULTILINE)

TWO_MEANINGS = {
    "Message": "actors and lanes both take messages; programs import only those of actors",
}
"""Class names with several meanings, each with a reason; 12 at most."""


@pytest.mark.style
def test_a_class_name_has_one_meaning_in_the_package() -> None:
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for name in CLASS.findall(path.read_text(encoding="utf-8")):
            homes.setdefault(name.lstrip("_"), []).append(name_of(path))
    several = {name: where for name, where in homes.items() if len(where) > 1}
    assert {name: where for name, where in several.items() if name not in TWO_MEANINGS} == {}
    assert [name for name in TWO_MEANINGS if name not in several] == []
    assert len(TWO_MEANINGS) <= 12


PHRASES = re.compile(
    r"\b(who(ever)? (is|has|asks|waits|wants|looks|goes|holds|calls|writes|reads|does)"
    r"|(is|are|was|were|be) told|put off|is no(ne)? \w+|beside (it|that|them|what)"
    r"|what (is|are|was|has|comes|they|it|must|may|cannot|else)|of (so|as) many|so many"
    r"|as (it|they) (is|are|was|were)|nothing (else )?of|in its (place|turn)"
    r"|comes? to (be|nothing|the same|an end)|are (alike|apart|together)|at its end"
    r"|where (that|it|there|nothing|somebody|one) (is|are|has|have|was)"
    r"|may (not )?be (had|there)|nobody|somebody)\b",
    re.IGNORECASE,
)
"""Phrases that a native reader stumbles over."""

SENTENCES = re.compile(r"(?<=[.!?])\s")


def notes_in(path: Path) -> list[str]:
    """Return the docstrings of a module, of all in it, and the notes below its values."""
    return [
        statement.value.value
        for node in ast.walk(parsed(path))
        for statement in statements_of(node)
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    ]


def paragraphs_of(page: Path) -> list[str]:
    """Return the text of a page without code, headings and tables."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [each for each in text.split("\n\n") if not each.lstrip().startswith(("#", "|"))]


def unplain(texts: list[str]) -> list[str]:
    """Return the sentences with a phrase that can be said more plainly."""
    sentences = [each for text in texts for each in SENTENCES.split(" ".join(text.split()))]
    return [each for each in sentences if PHRASES.search(each)]


@pytest.mark.style
def test_docstrings_use_plain_phrases() -> None:
    assert by_file(lambda path: unplain(notes_in(path)), ALL_FILES) == {}


@pytest.mark.style
def test_pages_use_plain_phrases_almost_always() -> None:
    # benchmarks.md is made of the reports of runs.
    pages = [path for path in sorted(ROOT.glob("docs/**/*.md")) if path.stem != "benchmarks"]
    found = unplain([text for page in pages for text in paragraphs_of(page)])
    assert len(found) <= 20, found


ERRORS = {"IndexError", "NotContiguous", "TypeError", "Unsupported", "ValueError"}
OTHER_FORMS = re.compile(r"\b(expected|got|is none of)\b|, but ")
STATED = re.compile(r"\bhas (shape|dtype)\b")
NEGATIONS = re.compile(r"\b(no|not|none|nothing|never|neither|nor|without|cannot)\b|n't\b")


def messages_in(path: Path) -> list[str]:
    """Return the messages of errors that a module makes, with ``{}`` for each value."""
    return [
        "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}"
            for part in getattr(node.args[0], "values", node.args)
        )
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ERRORS
        and node.args
        and isinstance(getattr(node.args[0], "value", ""), str)
        and isinstance(node.args[0], ast.Constant | ast.JoinedStr)
    ]


def has_other_form(message: str) -> bool:
    """Return whether an error does not say "x must be ..., not ...; do this"."""
    first, *_ = re.split(r"[;:] ", message)
    wanted, *_ = first.rpartition(", not ") if ", not " in first else (first,)
    twice = len(NEGATIONS.findall(wanted)) > 1
    return bool(OTHER_FORMS.search(message) or STATED.search(first) or twice)


@pytest.mark.style
def test_errors_have_one_form() -> None:
    def others(path: Path) -> list[str]:
        return [each for each in messages_in(path) if has_other_form(each)]

    assert by_file(others, FILES) == {}


@pytest.mark.style
@pytest.mark.parametrize(
    "message",
    [
        "x has dtype {}; expected {}",
        "out has shape {}, but the result has {}",
        "x must be positive, got {}",
        "mode {} is none of {}",
        "a ref that is not contiguous is not taken",
    ],
)
def test_other_forms_of_errors_are_found(message: str) -> None:
    assert has_other_form(message)
    assert not has_other_form("x must have no axes, not {}; x has shape {}")


def kinds_of_narrow_floats(path: Path) -> list[str]:
    """Return the letters that a module compares with ``dtype.kind``, "f" or "V" among them."""
    text = path.read_text(encoding="utf-8")
    if path.name == "_dtypes.py" or "kind" not in text:
        return []
    letters = {
        part.value
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Compare) and re.search(r"\bkind$", ast.unparse(node.left))
        for comparator in node.comparators
        for part in ast.walk(comparator)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
    return sorted(each for each in letters if {*each} <= {*"biufcmMOSUV"} and {*each} & {*"fV"})


@pytest.mark.style
def test_float_kinds_are_compared_in_one_module() -> None:
    """``dtype.kind`` is "f" or "V" for narrow floats, so ``_dtypes.number_kind`` decides."""
    assert by_file(kinds_of_narrow_floats, FILES) == {}


def vague_patterns(path: Path) -> list[str]:
    """Return the patterns of five letters or fewer by which tests recognize errors and warnings."""
    return [
        f"line {keyword.value.lineno}: {keyword.value.value!r}"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "match" and isinstance(keyword.value, ast.Constant)
        if isinstance(keyword.value.value, str)
        if len(keyword.value.value.replace("\\", "")) <= 5
        if not re.fullmatch(r"\^.*\$", keyword.value.value)
    ]


@pytest.mark.style
def test_errors_are_recognized_by_more_than_a_word() -> None:
    """Another error may have any short word, too; ``^whole$`` names the whole message."""
    assert by_file(vague_patterns, TEST_FILES) == {}


@pytest.mark.slow
def test_eager_imports_are_declared_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[^\w-]", entry)[0] for entry in project["dependencies"]}
    known = declared | sys.stdlib_module_names | {PACKAGE.name}
    undeclared = {
        f"{name_of(path)} imports {module}"
        for path in FILES
        if part_of(name_of(path)) != "testing"  # for those who have pytest and Hypothesis
        if "cuda" not in name_of(path).split(".")  # loaded only where CUDA was asked for
        if name_of(path) not in SERVED  # loaded where a dashboard is opened
        for node, module in imports(path)
        if node.col_offset == 0
        if module.split(".")[0] not in known
    }
    assert undeclared == set()


@pytest.mark.style
def test_the_extras_bring_the_vendors_python_of_their_major() -> None:
    """``cuda-python`` is a name for ``cuda-bindings`` of the same version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra, major in itertools.product(("cuda", "compile"), (12, 13)):
        (needed,) = (
            need
            for need in project["optional-dependencies"][f"{extra}{major}"]
            if need.startswith(("cuda-python", "cuda-bindings"))
        )
        assert re.fullmatch(rf"cuda-(python|bindings)>={major}\.\d+,<{major + 1}", needed)


@pytest.mark.style
@pytest.mark.parametrize("major", [12, 13])
def test_the_extra_of_all_has_every_extra_of_its_cuda(major: int) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {each for each in project["optional-dependencies"] if not each.startswith("all")}
    extras -= {f"compile{major}"}  # of an older compiler; ``cuda12`` and ``cuda13`` have one
    extras -= {"ray"}  # large, and of use to few
    wanted = {each for each in extras if not each.endswith(str(25 - major))}
    brought = [
        re.findall(r"^([\w-]+)\[(.*)\]$", need)
        for need in project["optional-dependencies"][f"all{major}"]
    ]
    assert {name for ((name, _),) in brought} == {project["name"]}
    assert {extra for ((_, named),) in brought for extra in named.split(",")} == wanted


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == f"{PACKAGE.name}/__init__.py"
    module = importlib.import_module(PACKAGE.name)
    assert re.fullmatch(r"\d+\.\d+\.\d+", module.__version__)
    if installed := list(importlib.metadata.distributions(name="atomr-accel-trio")):
        assert {distribution.version for distribution in installed} == {module.__version__}


@pytest.mark.style
def test_the_root_has_what_people_look_for_there() -> None:
    """A file that a test or program has left behind is not committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("git knows which files are part of this")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert {name for name in listed if "/" not in name} == {
        ".gitignore",
        ".pre-commit-config.yaml",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "README.md",
        "noxfile.py",
        "pyproject.toml",
    }


@pytest.mark.slow
def test_installed_package_has_every_file(tmp_path: Path) -> None:
    """Sources of kernels and the marker of types are files beside the modules."""
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {Path(name).suffix for name in expected} >= {".cu", ".cuh", ".ptx", ".py", ".typed"}
    with zipfile.ZipFile(wheel) as archive:
        assert expected <= set(archive.namelist())
    with tarfile.open(sdist) as archive_:
        names = {name.partition("/")[2] for name in archive_.getnames()}
    assert expected <= names


def test_importing_loads_no_vendor_library() -> None:
    program = """if True:
        import pathlib, sys
        before = set(sys.modules)  # cuda-bindings starts an import hook with the interpreter
        import atomr_accel
        vendors = {"cuda", "cupy", "nvidia", "torch"}
        loaded = {name for name in set(sys.modules) - before if name.split(".")[0] in vendors}
        maps = pathlib.Path("/proc/self/maps").read_text()
        print(loaded | {name for name in ("libcuda", "libcublas", "libnvrtc") if name in maps})
    """
    assert run(program) == "set()\n"


async def test_a_host_loads_its_own_half_only() -> None:
    """Every rebuild waits for what a host imports."""
    async with open_device(0, backend="cpu") as device:
        x = await device.put(np.eye(2))
        await device.blas.gemm(x, x)
        loaded = set(await device.run(eval, "[*__import__('sys').modules]"))
    ours = {name for name in loaded if name.split(".")[0] == PACKAGE.name}
    by_run = ("atomr_accel.libraries.run", "atomr_accel.wire.interop", "atomr_accel.wire.trace")
    ours = {name for name in ours if not name.startswith(by_run)}
    assert "atomr_accel.libraries.blas.host._cpu" in ours
    assert len(ours) <= 33
    assert "trio" not in loaded
    programs = {"actors", "device", "lanes", "memory", "patterns", "solvers", "replay", "testing"}
    assert {name for name in ours if part_of(name) in programs or "_facade" in name} == set()


async def test_a_host_loads_scipy_for_what_needs_it_only() -> None:
    """SciPy's import takes as long as all other imports of the host."""
    async with open_device(0, backend="cpu", isolation="process") as device:
        x = await device.put(np.ones(3, np.float32))
        for op, needs in ((device.dnn.relu, False), (device.dnn.gelu, True)):
            await op(x)
            assert await device.run(eval, "'scipy' in __import__('sys').modules") == needs


def run(program: str) -> str:
    """Return the output of a program in its own process."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.style
def test_notes_are_of_a_kind_that_the_changelog_has() -> None:
    """Others stay where they are at a release."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    kinds = {kind["directory"] for kind in settings["towncrier"]["type"]}
    notes = [path.name for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    assert [name for name in notes if name.split(".")[1:] not in [[k, "md"] for k in kinds]] == []


@pytest.mark.style
def test_every_session_says_what_it_does() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    sessions = {
        node.name: ast.get_docstring(node)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        if any("nox.session" in ast.unparse(decorator) for decorator in node.decorator_list)
    }
    wanted = {
        "demo",
        "tests",
        "gpu",
        "bench",
        "lint",
        "types",
        "headers",
        "docs",
        "build",
        "release",
    }
    assert wanted <= sessions.keys()
    assert [name for name, docstring in sessions.items() if not docstring] == []


# --- where tests are -----------------------------------------------------------------------

TESTS = ROOT / "tests"
PROMISES = {
    "durable",
    "array_api",
    "scipy_fft",
    "contract",
    "ordering",
    "interop",
    "transfers",
    "run",
    "soak",
    "differential",
    "gpu",
    "benchmarks",
    "packages",
}
"""Folders of tests that are named by what the whole program promises."""

ELSEWHERE = {"libraries/run": "run", "libraries/recordings": "ordering"}
"""Libraries whose tests are those of a promise."""


@pytest.mark.style
def test_package_folders_have_test_folders_of_the_same_name() -> None:
    """In that folder or below it."""
    parts = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    libraries = {f"libraries/{path.parent.name}" for path in PACKAGE.glob("libraries/*/wire")}
    wanted = {*parts, *libraries}
    homes = {ELSEWHERE.get(folder, folder) for folder in wanted}
    assert {home for home in homes if not any((TESTS / home).rglob("test_*.py"))} == set()


@pytest.mark.style
def test_a_folder_of_tests_has_the_name_of_what_it_is_about() -> None:
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    unknown = {
        folder.as_posix()
        for folder in folders - {Path()}
        if not (PACKAGE / folder).is_dir()
        if folder.as_posix() not in {*PROMISES, "docs"}
    }
    assert unknown == set()


@pytest.mark.style
def test_contributing_names_every_folder_of_tests() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, _, table = text.partition("### Where a test goes")
    named = set(re.findall(r"`tests/([\w/]+)`", table.partition("\n#")[0]))
    there = {path.parent.relative_to(TESTS).parts[:1] for path in TESTS.rglob("*.py")}
    assert {name for (name,) in there - {()}} <= named
    assert {name for name in named if not (TESTS / name).exists()} == set()


@pytest.mark.style
def test_shared_test_code_is_not_in_files_of_tests() -> None:
    sharing = {
        f"{path.relative_to(TESTS)} imports {node.module}"
        for path in TESTS.rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom)
        if "test_" in f".{node.module}".rpartition(".")[2]
    }
    assert sharing == set()
    fakes = {path for path in TESTS.rglob("*fake*.py") if not path.name.startswith("test_")}
    assert fakes == set(), "fakes are in tests/fakes"
