"""Included files: sources that are compiled again for them, and the vendor's headers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from atomr_accel.libraries.nvrtc._options import CompileOptions
from atomr_accel.libraries.nvrtc.host import _program
from atomr_accel.libraries.nvrtc.host import includes as _includes
from atomr_accel.libraries.nvrtc.host._precompiled import with_own_folder
from atomr_accel.libraries.nvrtc.wire.messages import Compile

PLAIN: Final = 'extern "C" __global__ void plain(float* x) { *x = 1; }'


def find(source: str, *names: str, **more: Any) -> Any:
    return _program.find_module(Compile(source, names, **more), (9, 0))


# --- files found again ---------------------------------------------------------------------


@pytest.mark.headers
@pytest.mark.parametrize("kind", ["memory", "file", "created"])
@pytest.mark.usefixtures("nvrtc")
def test_precompiled_headers_are_those_of_the_source(kind: str, tmp_path: Path) -> None:
    """The compiler itself uses a precompiled header even if the headers have changed since."""
    file = str(tmp_path / "a.pch")
    source = '#include "own.h"\nextern "C" __global__ void k(int* x) { *x = value(); }'

    def made(value: int, **options: Any) -> Any:
        text = f"__device__ inline int value() {{ return {value}; }}"
        headers = (("own.h", text),) if kind != "file" else ()
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / "own" / "own.h").write_text(text)
        folders = [tmp_path / "own"] if kind == "file" else []
        flags = CompileOptions(pch_verbose=True, include_path=folders, **options).flags()
        message = Compile(source, ("k",), flags, headers=headers)
        return _program.find_module(message, (9, 0))

    if kind == "created":
        for value in (1, 2):
            first = made(value, create_pch=file)
            assert "creating precompiled header" in first.log
            assert made(value, use_pch=file).image == first.image == made(value).image
        return
    kept = {"pch": True, "pch_dir": str(tmp_path / "pch")}
    assert "creating precompiled header" in made(1, **kept).log
    other = made(1, define={"OTHER": None}, **kept)
    assert not other.kept
    changed = made(2, **kept)
    assert not changed.kept
    assert changed.image == made(2).image != made(1).image
    assert made(1, **kept).kept


@pytest.mark.headers
@pytest.mark.usefixtures("nvrtc")
def test_what_a_source_includes_is_part_of_its_key(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "inner").mkdir(parents=True)
    header = own / "inner" / "value.h"
    source = """
        #include "inner/value.h"
        #include "more.h"
        extern "C" __global__ void k(int* x) { *x = VALUE + MORE; }
    """
    options = (f"--include-path={own}",)

    def found(more: str = "#define MORE 1\n") -> Any:
        return find(source, "k", options=options, headers=(("more.h", more),))

    header.write_text("#define VALUE 1\n")
    first = found()
    assert not first.kept
    assert found().image == first.image
    assert found().kept
    assert not found("#define MORE 2\n").kept
    header.write_text("#define VALUE 2\n")
    assert not found().kept
    (own / "unused.h").write_text("")  # it counts, as it might be read
    assert not found().kept
    header.write_text("#define VALUE __TIME__[0]\n")
    for _ in range(2):
        assert not found().kept
    for _ in range(2):
        assert not find(PLAIN, "plain", options=("-DNOW=__TIME__",)).kept


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("int x;", True),
        ('#include "a.h"', True),
        ("# include <a/b.h>", True),
        ("#inc\\\nlude <a.h>", True),
        ("#include /* why */ <a.h>", False),
        ("# /* how */ include </a.h>", False),
        ("// see /* there\n#include </etc/a.h>\n/* */", False),
        ("%: include NAME", False),
        ("int x;  // include it or not: int included;", True),
        ("#include NAME", False),
        ('#include "/etc/a.h"', False),
        ('#include "../a.h"', False),
        ("#if __has_include(<a.h>)\n#endif", True),
        ('#if __has_include("/etc/a.h")\n#endif', False),
        ("const char* t = __DATE__;", False),
        ("int t = __TI\\\nME__;", False),
        ("int t = __TIMESTAMP__;", False),
    ],
)
def test_what_is_known_of_a_text(text: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_includes, "vendor_headers", lambda: ())
    assert (_includes.fingerprint([text], ()) is not None) is known
    assert (_includes.fingerprint(["int x;", text], ()) is not None) is known


def test_what_folders_hold_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_includes, "vendor_headers", lambda: ())
    source = ['#include "a.h"']
    (tmp_path / "a.h").write_text("int x;")
    spellings = [[f"-I{tmp_path}"], ["-I", str(tmp_path)], [f"--include-path={tmp_path}"]]
    found = {_includes.fingerprint(source, spelled) for spelled in spellings}
    assert len(found) == 1
    assert found != {_includes.fingerprint(source, ())}
    (tmp_path / "link").symlink_to(tmp_path)
    assert _includes.fingerprint(source, spellings[0]) is None
    (tmp_path / "link").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(_includes, "_MOST_FILES", 0)
        assert _includes.fingerprint(source, spellings[0]) is None
    assert _includes.fingerprint(source, ["--pre-include=b.h"]) is None


# --- the vendor's headers -------------------------------------------------------------------

HEADERS: Final = {
    "cuda_fp16.h": ("cuda_fp16.h", "__half a = x[0]; x[0] = __half2float(a);"),
    "cooperative_groups.h": (
        "cooperative_groups.h",
        "cooperative_groups::this_grid().sync(); x[0] = 1;",
    ),
    "mma.h": (
        "mma.h",
        """
            using namespace nvcuda::wmma;
            fragment<accumulator, 16, 16, 16, float> f;
            fill_fragment(f, 1.0f);
            store_matrix_sync(x, f, 16, mem_row_major);
        """,
    ),
    "curand_kernel.h": (
        "curand_kernel.h",
        "curandStatePhilox4_32_10_t s; curand_init(1, 0, 0, &s); x[0] = curand_normal(&s);",
    ),
    "cuda/std": ("cuda/std/array", "cuda::std::array<float, 2> a{1, 2}; x[0] = a[1];"),
    "cub": (
        "cub/block/block_reduce.cuh",
        """
            using R = cub::BlockReduce<float, 128>;
            __shared__ R::TempStorage t;
            float s = R(t).Sum(x[threadIdx.x]);
            if (!threadIdx.x) x[0] = s;
        """,
    ),
    "cute": (
        "cute/tensor.hpp",
        "auto t = cute::make_tensor(cute::make_gmem_ptr(x), cute::make_shape(4)); t(0) = 1;",
    ),
}
"""Headers by name, each with the file to include and code that uses it."""


@pytest.mark.headers
@pytest.mark.usefixtures("nvrtc")
@pytest.mark.slow
@pytest.mark.parametrize("name", HEADERS)
def test_the_vendors_headers_compile(name: str) -> None:
    header, body = HEADERS[name]
    file = {"mma.h": "crt/mma.h"}.get(name, header)
    if not any(Path(folder, file).is_file() for folder in _includes.vendor_headers()):
        pytest.skip(f"{header} is not installed")
    source = f'#include <{header}>\nextern "C" __global__ void k(float* x) {{ {body} }}'
    # Functions of CUTLASS that are constexpr do not say that they are for the device, too.
    options = CompileOptions(default_device=name == "cute").flags()
    assert find(source, "k", options=options).image.startswith(b"\x7fELF")
    assert find(source, "k", options=options).kept


def test_precompiled_headers_are_kept_where_nobody_else_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = Compile(source="", names=(), options=("--pch",))
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path))
    assert any("--pch-dir" in each for each in with_own_folder(message, b"hash").options)
    (tmp_path / "pch").chmod(0o777)
    assert with_own_folder(message, b"hash").options == ()
    monkeypatch.setenv("ATOMR_CACHE_DIR", "/dev/null/nothing")
    assert with_own_folder(message, b"hash").options == ()
