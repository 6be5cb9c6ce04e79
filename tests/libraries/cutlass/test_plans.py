"""Plans that are made of a spec and of a kernel's parameters, without a GPU."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from atomr_accel.libraries.cutlass._product import KernelChoice, chosen
from atomr_accel.libraries.cutlass.host import _plans, _tuned
from atomr_accel.libraries.cutlass.host._images import Facts, Map, _map
from atomr_accel.libraries.cutlass.host._plans import (
    CutlassKernel,
    CutlassPlan,
    extents_of,
    filled,
    marks,
    packed,
)
from atomr_accel.libraries.cutlass.host._source import NUMBER_MARK, POINTER_MARK, source_of
from atomr_accel.libraries.cutlass.wire._messages import table_parts
from atomr_accel.libraries.cutlass.wire._spec import (
    FUNCTIONS,
    LOADS,
    SHARED,
    STORES,
    EpilogueNode,
    decode,
    encode,
    refusal,
    shared_bytes,
)

from .specs import PRODUCT, spec


def test_a_spec_comes_back_as_it_was() -> None:
    row = EpilogueNode("row", dtype="float32", slot=2)
    one = spec(epilogue=EpilogueNode("relu", (EpilogueNode("add", (PRODUCT, row)),)))
    assert decode(encode(one)) == one


@pytest.mark.parametrize("op", [*FUNCTIONS, *LOADS, *STORES])
def test_every_step_of_an_epilogue_has_a_type(op: str) -> None:
    arity = FUNCTIONS[op].arity if op in FUNCTIONS else int(op in STORES)
    dtype = "float32" if op in (*LOADS, *STORES) else ""
    node = EpilogueNode(op, (PRODUCT,) * arity, dtype)
    text = source_of(spec(epilogue=EpilogueNode("negative", (node,)), source="float32"))
    assert text.count("{") == text.count("}")
    assert "using Fusion = fusion::Sm90EVT<fusion::Sm90Compute<F_negative, ElementD" in text
    assert (f"struct F_{op} " in text) == (op in FUNCTIONS)


@pytest.mark.parametrize("space", [1, 2, 3])
@pytest.mark.parametrize("along", [1, 2])
def test_convolutions_have_a_mainloop_of_their_own(space: int, along: int) -> None:
    text = source_of(spec(space=space, cluster=(1, along, 1)))
    assert text.count("{") == text.count("}")
    assert f"int positions[{space}], corner[{space}]" in text
    assert f"SM90_TMA_LOAD_IM2COL{'_MULTICAST' * (along > 1)}_{space + 2}D::copy(" in text
    assert "struct Mainloop : Dense {" in text
    back = source_of(spec(space=space, cluster=(1, along, 1), trans_a=True, trans_b=False))
    assert f"SM90_TMA_LOAD_IM2COL_{space + 2}D::copy(" in back
    assert "strides<Gemm::StrideD>(1ll * p.count * p.n, p.n)" in back
    assert "Window" not in source_of(spec(cluster=(1, along, 1)))


def test_sums_of_int8_pass_through_no_float() -> None:
    text = source_of(spec(a="int8", b="int8", out="int32", tile=(128, 128, 128)))
    assert "Sm90Compute<Same, ElementD, Accumulator, ROUND>" in text
    assert "using Accumulator = int32_t" in text


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"schedule": "pingpong"}, None),
        ({"schedule": "pingpong", "tile": (256, 128, 64)}, "takes 64 or 128"),
        ({"tile": (256, 128, 64), "stages": 4}, None),
        ({"tile": (128, 256, 64), "stages": 4, "source": "float32"}, "a block has 232448"),
        ({"cluster": (4, 4, 1)}, "together up to 8"),
        ({"cluster": (1, 1, 2)}, "together up to 8"),
    ],
)
def test_plan_refuses_unsupported_shapes(changed: dict[str, Any], said: str | None) -> None:
    found = refusal(spec(**changed))
    assert found is None if said is None else said in str(found)


def test_shared_memory_grows_with_what_passes_through_it() -> None:
    plain = shared_bytes(spec(), 4)
    row = EpilogueNode("add", (PRODUCT, EpilogueNode("row", dtype="float32")))
    assert shared_bytes(spec(epilogue=row), 4) == plain + 4 * 128
    assert shared_bytes(spec(), 5) == plain + 64 * (128 + 128) * 2
    assert shared_bytes(spec(source="float32"), 4) == plain + 4 * 128 * 32 * 4
    # The addend takes the same memory as results, if its elements are as large.
    assert shared_bytes(spec(source="bfloat16"), 4) == plain + 2 * 128 * 32 * 2
    assert plain < SHARED


def test_marks_are_found_wherever_they_are() -> None:
    params = bytearray(64)
    struct.pack_into("<Q", params, 8, (POINTER_MARK << 32) + 256 * 5)
    struct.pack_into("<Q", params, 40, POINTER_MARK << 32)
    struct.pack_into("<I", params, 28, NUMBER_MARK + 15)
    struct.pack_into("<I", params, 52, NUMBER_MARK + 16)  # no mark
    assert marks(bytes(params)) == (((8, 5), (40, 0)), ((28, 15),))


@pytest.mark.parametrize(
    ("box", "cut", "expected"),
    [
        ((64, 128, 1), 1, (64, 128, 1)),
        ((64, 128, 1), 2, (64, 64, 1)),
        ((64, 2, 1), 4, (32, 1, 1)),
    ],
)
def test_blocks_of_a_cluster_load_a_part_each(
    box: tuple[int, int, int], cut: int, expected: tuple[int, int, int]
) -> None:
    assert _map((64, 3, *box, 3), cut) == Map(64, 3, expected, 3)


def test_parameters_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = tuple(Map(at, 3, (64, 128, 1), 3) for at in (64, 256, 448, 640))
    params = bytearray(1024)
    struct.pack_into("<Q", params, 800, (POINTER_MARK << 32) + 256 * 4)
    struct.pack_into("<I", params, 900, NUMBER_MARK)
    one = spec(source="float16")
    kernel = CutlassKernel(one, Facts(1024, 0, 384, 4, maps), None, None)  # type: ignore[arg-type]
    extents = extents_of(one, (10, 20, 30, 2))
    assert extents == (packed(30, 10, 2), packed(30, 20, 2), *[packed(20, 10, 2)] * 2)
    assert extents[0] == ((30, 10, 2), (30, 300), None)
    plan = CutlassPlan(kernel, bytes(params), (1, 1, 1), *marks(bytes(params)), extents)
    monkeypatch.setattr(
        _plans, "_tensor_map", lambda *given: repr(given[:3]).encode().ljust(128, b".")
    )
    made = filled(plan, (16, 32, 0, 64), (16, 32, 0, 64, 4096), (2.5,))
    assert struct.unpack_from("<Q", made, 800) == (4096,)
    assert struct.unpack_from("<f", made, 900) == (2.5,)
    assert made[64:192].startswith(b"('bfloat16', True, 16)")
    assert made[256:384].startswith(b"('bfloat16', True, 32)")
    assert made[448:576] == bytes(128)  # nothing is added
    assert made[640:768].startswith(b"('bfloat16', False, 64)")


def test_a_table_of_products_has_room_for_all_and_maps_where_they_may_be() -> None:
    for count in (1, 5, 40):
        *begins, end = table_parts(count, 132)
        assert begins[:9] == [8 * count * number for number in range(9)]
        assert begins[9] >= begins[8] + 12 * count
        assert not begins[9] % 128
        assert not begins[10] % 128
        assert end == begins[10] + 2 * 132 * 128


def test_fastest_plan_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(_tuned, "nvrtc_version", lambda: (12, 9))
    wanted, sizes = encode(spec(tile=(0, 0, 0))), (1, 2, 3, 1)
    assert _tuned.recall_tuned(wanted, sizes, 132) == []
    found = encode(spec()), 4
    _tuned.keep_tuned(wanted, sizes, 132, found)
    assert _tuned.recall_tuned(wanted, sizes, 132) == [found]
    assert _tuned.recall_tuned(wanted, (2, 2, 3, 1), 132) == []
    assert _tuned.recall_tuned(wanted, sizes, 114) == []


@pytest.mark.parametrize(
    ("changed", "m", "expected"),
    [
        ({}, 8192, ((128, 256, 64), (2, 1, 1), 1)),
        ({}, 2048, ((128, 256, 64), (2, 1, 1), 1)),
        ({}, 1024, ((128, 128, 64), (2, 1, 1), 4)),
        ({}, 100, ((128, 128, 64), (1, 1, 1), 4)),
        ({}, 64, ((128, 64, 64), (1, 1, 1), 4)),
        ({"out": "float32"}, 8192, ((128, 128, 64), (2, 1, 1), 4)),
        (dict.fromkeys("ab", "float8_e5m2"), 8192, ((128, 128, 128), (2, 1, 1), 4)),
        (dict.fromkeys(("a", "b", "out"), "float32"), 8192, ((128, 128, 32), (2, 1, 1), 4)),
    ],
)
def test_default_plan_is_chosen_without_options(
    changed: dict[str, Any], m: int, expected: tuple[Any, ...]
) -> None:
    nothing = KernelChoice(None, None, None, 0, None)
    tall, _ = chosen(spec(space=2), nothing, (132 * 256, 64, 64, 1))
    assert tall.tile == (256, 64, 64)
    # 196 wide tiles would leave 68 of 132 multiprocessors idle in the second round.
    rounds, _ = chosen(spec(space=2), nothing, (128 * 14 * 14, 256, 64, 1))
    assert rounds.tile == (128, 128, 64)
    found, swizzle = chosen(spec(**changed), nothing, (m, m, 64, 1))
    assert (found.tile, found.cluster, swizzle) == expected
    assert found.schedule == "cooperative"
    tile = KernelChoice((64, 256, found.tile[2]), None, None, 3, 8)
    assert chosen(spec(**changed), tile, (m, m, 64, 1))[0].schedule == "pingpong"
