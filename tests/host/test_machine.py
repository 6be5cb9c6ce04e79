"""Linux's data on cards and cores, and binding a host to those near its card."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from atomr_accel import open_device
from atomr_accel.host import machine as _machine
from atomr_accel.wire import PcieLink

from ..harness import cpu_only

CARD = "0000:17:00.0"


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A kernel's tree with one card and two nodes."""
    card = tmp_path / "bus/pci/devices" / CARD
    node = tmp_path / "devices/system/node"
    for path, text in {
        card / "numa_node": "1\n",
        card / "max_link_speed": "32.0 GT/s PCIe\n",
        card / "max_link_width": "16\n",
        node / "node0/cpulist": "0-3,8-11\n",
        node / "node1/cpulist": "4-7,12\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return tmp_path


def test_machine_reads_the_kernels_data_about_a_card(system: Path) -> None:
    assert _machine.numa_node(CARD, system) == 1
    assert _machine.pcie_link(CARD, system) == PcieLink(32.0, 16)
    assert _machine.cores_near(1, system) == {4, 5, 6, 7, 12}
    assert _machine.cores_near(0, system) == {0, 1, 2, 3, 8, 9, 10, 11}


def test_machine_handles_missing_data_about_a_card(system: Path) -> None:
    assert _machine.numa_node("0000:99:00.0", system) is None
    assert _machine.pcie_link("0000:99:00.0", system) is None
    (system / "bus/pci/devices" / CARD / "numa_node").write_text("-1\n", encoding="ascii")
    (system / "bus/pci/devices" / CARD / "max_link_speed").write_text("Unknown", encoding="ascii")
    assert _machine.numa_node(CARD, system) is None
    assert _machine.pcie_link(CARD, system) is None
    assert _machine.cores_near(None, system) == set()
    assert _machine.cores_near(7, system) == set()


@pytest.mark.parametrize(
    ("cores", "node", "bound"),
    [
        ("near", 1, {4, 5}),  # and not 6, which the program may not use
        ("near", 0, {3}),
        ("near", None, None),
        ("near", 9, None),
        ((3, 4, 99), 1, {3, 4}),
        ((99,), 1, None),  # nothing is left: wherever the program may
        (None, 1, None),
    ],
)
def test_a_host_runs_where_it_may_and_should(
    system: Path, monkeypatch: pytest.MonkeyPatch, cores: Any, node: Any, bound: Any
) -> None:
    told: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {3, 4, 5})
    monkeypatch.setattr(os, "sched_setaffinity", lambda task, to: told.append((task, to)))
    _machine.bind(cores, node, system)
    assert {task for task, _ in told} == (set() if bound is None else set(_machine._threads()))
    assert all(to == bound for _, to in told)


def where() -> list[set[int]]:
    return [os.sched_getaffinity(thread) for thread in _machine._threads()]


@pytest.mark.slow
@cpu_only
async def test_all_threads_of_a_host_are_bound_and_none_of_the_program() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    async with open_device(0, backend="cpu", affinity=[core]) as device:
        bound = await device.run(where)
    assert len(bound) > 1
    assert all(cores == {core} for cores in bound)
    assert os.sched_getaffinity(0) == before
