"""The package's CUDA C++: headers that declare their includes, joined into one text."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atomr_accel.executors import compiler as _compiler
from atomr_accel.executors import device_code as _device_code
from atomr_accel.executors.device_code import CudaSource, read_kernels
from atomr_accel.testing import FAULTS
from atomr_accel.testing._faults import source_of

from ..harness import ROOT

FILES = sorted(
    file for kind in ("cu", "cuh", "ptx") for file in ROOT.glob(f"atomr_accel/**/*.{kind}")
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder ``kernels`` of a package ``pieces``."""
    kernels = tmp_path / "pieces" / "kernels"
    kernels.mkdir(parents=True)
    (tmp_path / "pieces" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield kernels
    sys.modules.pop("pieces", None)
    read_kernels.cache_clear()


def test_a_file_is_put_together_once_with_what_it_names(folder: Path) -> None:
    (folder / "main.cu").write_text('// Main.\n#include "a.cuh"\n#include "b.cuh"\nint main_;\n')
    (folder / "a.cuh").write_text('#pragma once\n#include "b.cuh"\nint a;\n')
    (folder / "b.cuh").write_text("#pragma once\nint b;\n")
    text = CudaSource("pieces", "main.cu", SIZE=3, OTHER=4).text
    assert text.splitlines() == [
        *("#define SIZE 3", "#define OTHER 4"),
        *('#line 1 "main.cu"', "// Main."),
        *('#line 1 "a.cuh"', ""),
        *('#line 1 "b.cuh"', "", "int b;"),
        *('#line 3 "a.cuh"', "int a;"),
        *('#line 3 "main.cu"', "", "int main_;"),
    ]


def test_a_header_beside_the_file_comes_before_a_shared_one_and_one_given_before_both(
    folder: Path,
) -> None:
    source = '#include "types.cuh"\n'
    (folder / "main.cu").write_text(source)
    assert "typedef long long i64;" in CudaSource("pieces", "main.cu").text
    (folder / "types.cuh").write_text("int beside;\n")
    read_kernels.cache_clear()
    assert "int beside;" in CudaSource("pieces", "main.cu").text
    text = CudaSource("pieces", "main.cu").preprocess({"types.cuh": "int given;"})
    assert "int given;" in text
    assert "beside" not in text


def test_a_file_that_is_missing_is_named(folder: Path) -> None:
    (folder / "main.cu").write_text('#include "nowhere.cuh"\n')
    with pytest.raises(FileNotFoundError, match=r"nowhere\.cuh"):
        _ = CudaSource("pieces", "main.cu").text


@pytest.mark.headers
def test_a_kernel_is_compiled_again_if_a_file_that_it_names_has_changed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path / "cache"))
    (folder / "main.cu").write_text(
        '#include "value.cuh"\n__global__ void k(int* x) { x[0] = VALUE + MORE; }\n'
    )

    def compiled(value: int, more: int) -> _compiler.CompiledKernel:
        (folder / "value.cuh").write_text(f"#define VALUE {value}\n")
        read_kernels.cache_clear()  # as in another process
        text = CudaSource("pieces", "main.cu", MORE=more).text
        return _compiler.find_cubin(text, "k", (), (9, 0))

    first = compiled(1, 10)
    assert not first.kept
    assert compiled(1, 10) == first._replace(kept=True)
    for other in (compiled(2, 10), compiled(1, 20)):
        assert not other.kept
        assert other.image != first.image


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_says_what_it_is(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith("// ")
    assert max(map(len, text.splitlines())) <= 100
    # A header is put in place once by the loader, and seen once by an editor's compiler, too.
    assert ("#pragma once\n" in text) == (file.suffix == ".cuh")


@pytest.mark.parametrize(
    "file", [file for file in FILES if file.suffix == ".cu"], ids=lambda file: file.name
)
def test_compiled_kernel_is_kept_on_disk(file: Path) -> None:
    """Sources that depend on files the compiler looks for are compiled each time."""
    package = ".".join(file.relative_to(ROOT).parts[:-2])
    text = CudaSource(package, file.name).text
    assert _compiler._SEES_MORE.search(text) is None


@pytest.mark.headers
@pytest.mark.parametrize("name", [*FAULTS, "hang"])
def test_nvrtc_compiles_what_goes_wrong(name: str) -> None:
    kernel = "hang" if name == "hang" else "fault"
    image, lowered, log = _compiler.compile_cubin(source_of(name), kernel, (), (9, 0))
    assert (image[:4], lowered, log) == (b"\x7fELF", kernel, "")


def test_every_source_is_a_file_and_every_header_is_used() -> None:
    named = {
        name
        for file in FILES
        for name in _device_code._INCLUDE.findall(file.read_text(encoding="utf-8"))
    }
    signs = ("__global__ void", ".visible .entry")
    modules = sorted((ROOT / "atomr_accel").rglob("*.py"))
    texts = {module.name: module.read_text(encoding="utf-8") for module in modules}
    headers = {file.name for file in FILES if file.suffix == ".cuh"}
    generated = {name for name in headers for text in texts.values() if f'"{name}"' in text}
    assert named | generated == headers
    guests = {module.name for module in modules if {"realtime", "llm"} & {*module.parts}}
    written = {name for name, text in texts.items() if any(sign in text for sign in signs)}
    # Guests write kernels as programs do, and kernels of code generation are programs' expressions.
    assert written - guests == {"_codegen.py"}
