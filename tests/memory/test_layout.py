"""Drawing the parts of memory that are in use."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.memory import MemoryMap, Slab
from atomr_accel.memory.layout import layout

SLAB = 1 << 20


def a_map(*sealed: bool) -> MemoryMap:
    memory = MemoryMap("d")
    memory.bump()
    for is_sealed in sealed:
        memory.add_slab(Slab(memory.new_slab_id(), SLAB, 10**6 if is_sealed else -1, is_sealed))
    return memory


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, SLAB // 4), st.booleans()), max_size=40), st.integers(1, 50)
)
def test_layout_covers_every_byte(steps: list[tuple[int, bool]], cells: int) -> None:
    memory = a_map(False, False)
    kept = []
    for nbytes, keep in steps:
        block = memory.allocate(nbytes)
        if block is None:
            break
        if keep:
            kept.append(block)
        else:
            memory.free(block)
    slabs = layout(memory, most=10, cells=cells)
    assert sum(slab.used for slab in slabs) == memory.statistics().used
    for slab in slabs:
        assert len(slab.cells) == cells
        assert all(0 <= part <= 1 for part in slab.cells)
        assert sum(slab.cells) / cells * slab.nbytes == pytest.approx(slab.used, abs=1)


def test_layout_reports_the_state_of_slabs() -> None:
    memory = a_map(False)
    held = memory.allocate(SLAB // 2)
    assert held is not None
    (slab,) = layout(memory, most=10, cells=4)
    assert (slab.kind, slab.cells) == ("plain", (1.0, 1.0, 0.0, 0.0))
    memory.bump()
    (slab,) = layout(memory, most=10, cells=4)
    assert (slab.kind, slab.used) == ("stale", SLAB // 2)
    memory.free(held)
    assert layout(memory, most=10, cells=4) == []


def test_layout_reports_the_largest_of_many_slabs() -> None:
    memory = a_map(*[False] * 5)
    memory.add_slab(Slab(memory.new_slab_id(), 2 * SLAB, -1, sealed=False))
    assert [slab.nbytes for slab in layout(memory, most=2, cells=1)] == [SLAB, 2 * SLAB]
