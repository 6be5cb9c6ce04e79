"""Kernels compile, and tell of themselves what the host has to know: NVRTC needs no GPU."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

import pytest

from atomr_accel import CompileError, LibraryMissing
from atomr_accel._dtypes import DTYPES
from atomr_accel.executors.disk_cache import DiskCache
from atomr_accel.libraries.cutlass.host import _builds
from atomr_accel.libraries.cutlass.host._builds import find_build
from atomr_accel.libraries.cutlass.wire._spec import FUNCTIONS, EpilogueNode, encode, shared_bytes

from .specs import PRODUCT, spec

pytestmark = [pytest.mark.headers, pytest.mark.slow]

VECTOR: Final = EpilogueNode("row", dtype="bfloat16", slot=0)


def everything() -> EpilogueNode:
    """Return an epilogue with every step, except for those that would be computed twice."""
    node = PRODUCT
    for name, function in FUNCTIONS.items():
        node = EpilogueNode(name, (node, EpilogueNode("number"))[: function.arity])
    loads = (
        VECTOR,
        EpilogueNode("column", dtype="float32", slot=1),
        EpilogueNode("full", dtype="float16", slot=2),
        EpilogueNode("scalar", dtype="float32", slot=3),
        EpilogueNode("source", dtype="bfloat16"),
    )
    for load in loads:
        node = EpilogueNode("add", (node, load))
    for slot, store in enumerate(("store", "amax", "sum_rows", "sum_columns"), 4):
        node = EpilogueNode(store, (node,), "float32", slot)
    return node


KERNELS: Final[dict[str, dict[str, Any]]] = {
    "everything, by columns": {
        "epilogue": everything(),
        "source": "bfloat16",
        "trans_a": True,
        "trans_b": False,
        "cluster": (1, 2, 1),
    },
    "fp8": {
        **dict.fromkeys(("a", "out"), "float8_e4m3fn"),
        "b": "float8_e5m2",
        "fast": True,
        "tile": (64, 128, 128),
        "schedule": "pingpong",
    },
    "int8": {**dict.fromkeys("ab", "int8"), "out": "int32", "tile": (128, 128, 128)},
    "conv 2-D": {
        **dict.fromkeys(("a", "b", "out"), "float32"),
        "space": 2,
        "tile": (128, 128, 32),
        "stages": 3,
        "epilogue": EpilogueNode("add", (EpilogueNode("relu", (PRODUCT,)), VECTOR)),
    },
    "conv 3-D": {
        **dict.fromkeys(("a", "b"), "float8_e4m3fn"),
        "space": 3,
        "tile": (128, 128, 256),
        "cluster": (1, 2, 1),
    },
    "gradient by images": {
        "space": 1,
        "trans_b": False,
        "cluster": (2, 2, 1),
        "schedule": "pingpong",
    },
    "gradient by filters": {"space": 3, "trans_a": True, "trans_b": False, "cluster": (2, 2, 1)},
    "grouped": {
        "grouped": True,
        "epilogue": EpilogueNode("silu", (PRODUCT,)),
        "schedule": "pingpong",
    },
}


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path / "cache"))
    try:
        _builds.headers()
    except LibraryMissing as missing:
        pytest.skip(str(missing))
    return DiskCache("cutlass")


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_compiles_and_tells_of_itself(name: str, kept: DiskCache) -> None:
    one = spec(**KERNELS[name])
    build = find_build(encode(one), kept)
    assert build.origin == "built"
    assert find_build(encode(one), kept).origin == "disk"
    facts = build.facts
    threads = 384  # two groups of warps that compute, and one that loads
    assert (facts.threads, facts.stages >= 2) == (threads, True)
    assert facts.stages == one.stages or not one.stages
    # As much as was thought, but for what barriers and alignment take.
    assert abs(facts.shared - shared_bytes(one, facts.stages)) <= 2048 + 1024 * one.grouped
    rows, columns, depth = one.tile
    wide = 128 // DTYPES[one.a].itemsize
    a, b, c, out = facts.maps
    # Blocks along n share rows, and those along m columns; images are gathered as matrices are.
    x, y, _ = one.cluster
    assert a.box == (wide, (depth if one.trans_a else rows) // y, 1)
    assert b.box == (wide, (columns if one.trans_b else depth) // x, 1)
    assert a.modes == b.modes == out.modes == (2 if one.grouped else 3)
    offsets = [each.offset for each in (a, b, c, out)]
    assert all(offset % 64 == 0 and offset + 128 <= facts.params for offset in offsets)
    assert len(set(offsets)) == 4
    assert struct.unpack_from("<H", build.image, 16) == (2,)  # an executable


def test_compiler_errors_reach_the_caller(kept: DiskCache) -> None:
    with pytest.raises(CompileError, match="the kernel of CUTLASS does not compile"):
        find_build(encode(spec(tile=(100, 128, 64))), kept)


def test_headers_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_builds, "vendor_headers", lambda: ("/proc/0",))
    with pytest.raises(LibraryMissing, match=r"pip install .*\[cutlass1[23]\]"):
        find_build(encode(spec()))
