"""Every row of every table of prototypes, held against the vendor's headers and library.

A C++ program that includes the headers prints what the compiler makes of them: the types of
each function's parameters, the values of enumerators, sizes and offsets. Symbols are looked
up in the library itself. Neither needs a GPU.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from atomr_accel import LibraryError, LibraryMissing
from atomr_accel.executors import vendor as _vendor
from atomr_accel.executors.vendor import TYPES, VendorLibrary

from .host_kernels import COMPILER, needs_compiler
from .vendor_tables import TABLES, Table

ACCEPTED: Final = {
    "char": {"char"},
    "int": {"int"},
    "enum": {"int"},
    "unsigned": {"uint"},
    "unsigned*": {"ptr"},
    "i64": {"i64"},
    "u64": {"u64", "size"},
    "float": {"float"},
    "double": {"double"},
    "char*": {"str", "ptr"},
    "int*": {"int*", "ptr"},
    "enum*": {"int*", "ptr"},
    "i64*": {"i64*", "ptr"},
    "u64*": {"size*", "ptr"},
    "ptr*": {"ptr*", "ptr"},
    "ptr": {"ptr"},
    "id128": {"id128"},
}
"""The words of tables that a type in C may have. The compiler tells no size_t from others."""

DESCRIBE: Final = r"""
#include <cstddef>
#include <cstdio>
#include <type_traits>

template <class T> constexpr const char* plain() {
  if constexpr (std::is_enum_v<T>) return sizeof(T) == 4 ? "enum" : "?";
  else if constexpr (std::is_same_v<T, signed char>) return "char";
  else if constexpr (std::is_same_v<T, int>) return "int";
  else if constexpr (std::is_same_v<T, unsigned>) return "unsigned";
  else if constexpr (std::is_same_v<T, float>) return "float";
  else if constexpr (std::is_same_v<T, double>) return "double";
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 8)
    return std::is_signed_v<T> ? "i64" : "u64";
  else if constexpr (std::is_class_v<T> && sizeof(T) == 128) return "id128";
  else return "?";
}
template <class T> const char* type() {
  using To = std::remove_cv_t<std::remove_pointer_t<T>>;
  static char text[16];
  if constexpr (!std::is_pointer_v<T>) return plain<std::remove_cv_t<T>>();
  else if constexpr (std::is_same_v<To, char>) return "char*";
  else if constexpr (std::is_pointer_v<To>) return "ptr*";
  else if constexpr (std::is_void_v<To> || std::is_class_v<To>) return "ptr";
  else {
    std::snprintf(text, sizeof text, "%s*", plain<To>());
    return text[0] == '?' || text[0] == 'f' || text[0] == 'd' ? "ptr" : text;
  }
}
template <class F> struct Function;
template <class R, class... A> struct Function<R(A...)> {
  static void print(const char* name) {
    std::printf(",\n\"%s\": [\"%s\"", name, plain<R>());
    (std::printf(", \"%s\"", type<A>()), ...);
    std::printf("]");
  }
};
template <class R, class... A> struct Function<R(A...) noexcept> : Function<R(A...)> {};
"""

STAND_INS: Final = {
    # Parts of the toolkit that the wheels lack, or that take long and declare nothing in use.
    "crt/host_defines.h": """
        #define __host__
        #define __device__
        #define __device_builtin__
        #define __cuda_builtin_vector_align8
        #define __align__(n) __attribute__((aligned(n)))
        #define __builtin_align__(n) __align__(n)
        #define __forceinline__ inline
        #define __location__(a)
        #define CUDARTAPI
    """,
    "cuda_fp16.h": "struct __half { unsigned short x; }; struct __half2 { __half x, y; };",
    "cuda_bf16.h": "struct __nv_bfloat16 { unsigned short x; };",
    "cuda_fp8.h": "",
    "cuda_runtime.h": """
        #include <driver_types.h>
        #include <library_types.h>
        #include <vector_types.h>
    """,
    "cuda_runtime_api.h": "#include <cuda_runtime.h>",
}


def header_folders(table: Table) -> list[Path]:
    """Return the folders of the library's headers and of the runtime's, which they include."""
    finder = pytest.importorskip("cuda.pathfinder")
    folders = []
    for name in (table.library, *table.beside, "cudart"):
        if name == "cudss":  # the finder lacks its headers, which are next to the library
            folder = library_folder(name).parent / "include"
        else:
            folder = finder.find_nvidia_header_directory(name.replace("cublasLt", "cublas"))
        if folder is None:
            pytest.skip(f"the headers of {name} are not installed")
        folders.append(Path(folder))
    return folders


def library_folder(name: str) -> Path:
    """Return the folder of a library."""
    finder = pytest.importorskip("cuda.pathfinder")
    try:
        return Path(finder.load_nvidia_dynamic_lib(name).abs_path).parent
    except finder.DynamicLibNotFoundError:
        pytest.skip(f"{name} is not installed")


def ask_compiler(table: Table, folder: Path) -> dict[str, Any]:
    """Return the headers' answers by names and expressions, without undeclared ones."""
    assert COMPILER is not None
    stand_ins = folder / "stand-ins"
    for name, text in STAND_INS.items():
        (stand_ins / name).parent.mkdir(parents=True, exist_ok=True)
        (stand_ins / name).write_text(text)
    included = [f"-I{stand_ins}", *(f"-isystem{each}" for each in header_folders(table))]
    includes = "".join(f"#include <{header}>\n" for header in table.headers)
    source = folder / "ask.cpp"
    source.write_text(includes)
    seen = run([COMPILER, "-E", "-dD", "-P", *included, str(source)])
    declared = set(re.findall(r"\w+", seen))
    enums, prototypes = table.tables.ENUMS, table.tables.PROTOTYPES
    lines = [f"Function<decltype({name})>::print({json.dumps(name)});" for name in prototypes]
    numbers = {name: name for name in enums} | {each: each for each in table.numbers}
    lines += [
        f'std::printf(",\\n%s: %lld", {json.dumps(json.dumps(name))}, (long long)({expression}));'
        for name, expression in numbers.items()
    ]
    known = [
        line
        for line in lines
        if set(re.findall(r"(?:__)?cu\w+|CU\w+|nccl[A-Z]\w+", line)) <= declared
    ]
    body = "\n".join(known)
    source.write_text(
        f"{includes}{DESCRIBE}\n"
        f'int main() {{ std::printf("{{\\"\\": 0");\n{body}\nstd::printf("}}"); }}\n'
    )
    program = folder / "ask"
    run([COMPILER, "-std=c++17", "-w", *included, str(source), "-o", str(program)])
    answers: dict[str, Any] = json.loads(run([str(program)]))
    return answers


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module", params=TABLES)
def asked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Table, dict[str, Any]]:
    """A table, and what the headers say."""
    table = TABLES[request.param]
    return table, ask_compiler(table, tmp_path_factory.mktemp("headers"))


@pytest.mark.headers
@needs_compiler
def test_prototypes_are_those_of_the_headers(asked: tuple[Table, dict[str, Any]]) -> None:
    table, answers = asked
    assert wrong_rows(table.tables.PROTOTYPES, answers) == []


def wrong_rows(prototypes: dict[str, str], answers: dict[str, Any]) -> list[str]:
    """Return the rows of a table that disagree with the headers."""
    wrong = []
    for name, words in prototypes.items():
        returned, *types = answers.get(name, ["nothing"])
        right = len(types) == len(words.split()) and all(
            word in ACCEPTED[kind] for word, kind in zip(words.split(), types, strict=True)
        )
        if not right or returned not in ("enum", "int"):
            wrong.append(f"{name}: the table has {words!r}, the header {' '.join(types)!r}")
    return wrong


@pytest.mark.headers
@needs_compiler
def test_values_are_those_of_the_headers(asked: tuple[Table, dict[str, Any]]) -> None:
    table, answers = asked
    enums = table.tables.ENUMS
    assert enums == {name: answers.get(name) for name in enums}
    for expression, value in table.numbers.items():
        assert eval(value, vars(table.tables)) == answers[expression], expression


@pytest.mark.headers
@needs_compiler
def test_values_that_only_later_releases_have(tmp_path: Path) -> None:
    """Values that the installed headers declare agree with those headers."""
    table = TABLES["cublas"]
    later = {f"CUBLAS_COMPUTE_{name}": value for name, value in table.tables.EMULATED.items()}
    answers = ask_compiler(replace(table, numbers=dict.fromkeys(later, "")), tmp_path)
    assert {name: answers.get(name, value) for name, value in later.items()} == later


@pytest.mark.headers
@pytest.mark.parametrize("name", TABLES)
def test_every_symbol_is_in_the_library(name: str) -> None:
    tables = TABLES[name].tables
    named_here = hasattr(tables, "STATUS_NAMES")
    names = tables.STATUS_NAMES if named_here else tables.STATUS_NAME
    try:
        library = VendorLibrary(name, tables.PROTOTYPES, names)
    except LibraryMissing as missing:
        pytest.skip(str(missing))
    for function, words in tables.PROTOTYPES.items():
        bound: Any = library.functions[function].__wrapped__  # type: ignore[attr-defined]
        assert bound.restype is ctypes.c_int
        kinds = zip(bound.argtypes, words.split(), strict=True)
        assert all(issubclass(kind, TYPES[word]) for kind, word in kinds)
    status = min(status for status in tables.STATUS_NAMES if status) if named_here else 1
    error = library.error("a call", status)
    assert isinstance(error, LibraryError)
    named = error.status_name
    assert named.upper().startswith(name.upper().removesuffix("LT"))


def test_every_table_of_the_package_is_held_against_headers() -> None:
    folder = Path(_vendor.__file__).parents[1]
    modules = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("_prototypes*.py")
    }
    assert modules == {table.module for table in TABLES.values()}


@pytest.mark.headers
@needs_compiler
def test_wrong_rows_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = TABLES["curand"]
    wrong = {
        "curandSetStream": "ptr int",
        "curandSetGeneratorOffset": "ptr uint",
        "curandGenerate": "ptr ptr",
        "curandNothing": "ptr",
    }
    monkeypatch.setattr(table.tables, "PROTOTYPES", {**table.tables.PROTOTYPES, **wrong})
    found = wrong_rows(table.tables.PROTOTYPES, ask_compiler(table, tmp_path))
    assert [row.partition(":")[0] for row in found] == [*wrong]


@pytest.mark.headers
def test_a_prepared_call_takes_what_its_arguments_hold_when_it_is_made() -> None:
    tables = TABLES["curand"].tables
    try:
        library = VendorLibrary("curand", tables.PROTOTYPES, tables.STATUS_NAMES)
    except LibraryMissing as missing:
        pytest.skip(str(missing))
    versions = [ctypes.c_int(), ctypes.c_int()]
    cell = ctypes.c_void_p()
    call = library.prepare("curandGetVersion", cell)
    for version in versions:
        cell.value = ctypes.addressof(version)
        assert call() == 0
    assert versions[0].value == versions[1].value > 0
    destroy = library.prepare("curandDestroyGenerator", None)
    assert tables.STATUS_NAMES[destroy()] == "CURAND_STATUS_NOT_INITIALIZED"
    with pytest.raises(ValueError, match="shorter"):
        library.prepare("curandSetStream", None)
