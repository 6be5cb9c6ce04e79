"""Topologies: links, islands, measurements, text and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from atomr_accel import Link, Topology, open_devices
from atomr_accel.backends.cuda.host.context import CudaContext
from atomr_accel.wire import Peer, StreamPlan

from ...fakes.driver import installed
from ...fakes.gpu import FakeGpu
from ...harness import cpu_only


def topology(count: int, kinds: Mapping[tuple[int, int], str]) -> Topology:
    """One of devices that there are not; links that are not given go by way of the host."""
    devices: Any = [SimpleNamespace(name=f"cuda:{number}") for number in range(count)]
    links = {}
    for one, other in permutations(range(count), 2):
        kind: Any = kinds.get((min(one, other), max(one, other)), "host")
        links[f"cuda:{one}", f"cuda:{other}"] = Link(f"cuda:{one}", f"cuda:{other}", kind)
    return Topology(devices, links)


def test_islands_are_linked_by_the_best_there_is() -> None:
    four = topology(4, {(0, 2): "nvlink", (1, 3): "nvlink", (0, 1): "pcie"})
    assert four.islands == (("cuda:0", "cuda:2"), ("cuda:1", "cuda:3"))
    chain = topology(4, {(0, 2): "pcie", (1, 2): "pcie"})
    assert chain.islands == (("cuda:0", "cuda:1", "cuda:2"), ("cuda:3",))
    assert topology(2, {}).islands == (("cuda:0",), ("cuda:1",))
    assert topology(1, {}).islands == (("cuda:0",),)


def test_a_link_that_is_not_measured_is_about_as_fast_as_its_kind() -> None:
    three = topology(3, {(0, 1): "nvlink", (0, 2): "pcie"})
    assert not three.link("cuda:1", "cuda:2").direct
    assert (
        three.expected_bandwidth("cuda:0", "cuda:1")
        > three.expected_bandwidth("cuda:0", "cuda:2")
        > three.expected_bandwidth("cuda:1", "cuda:2")
        == three.expected_bandwidth("elsewhere", "cuda:2")
    )
    with pytest.raises(ValueError, match="no link from 'cuda:0' to 'cuda:0'; the devices are"):
        three.link("cuda:0", "cuda:0")


def test_topology_is_printed_as_a_table_and_drawn() -> None:
    three = topology(3, {(0, 1): "nvlink"})
    lines = str(three).splitlines()
    assert lines[0].split() == ["cuda:0", "cuda:1", "cuda:2"]
    assert lines[1].split() == ["cuda:0", "-", "nvlink", "host"]
    assert lines[-1] == "islands: cuda:0 cuda:1; cuda:2"
    root = ET.fromstring(three._repr_svg_())
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert (tags.count("circle"), tags.count("line")) == (3, 3)


@cpu_only
async def test_devices_of_the_cpu_reach_each_other_and_can_be_measured() -> None:
    settings: Any = {"backend": "cpu", "isolation": "thread"}
    async with open_devices(range(2), **settings) as devices:
        found = devices.topology()
        assert {link.kind for link in found.links} == {"memory"}
        one, two = (device.name for device in devices)
        assert found.islands == ((one, two),)
        with pytest.raises(ValueError, match="nbytes must be a whole number of at least 1, not 0"):
            await found.measure(0)
        assert await found.measure(1 << 16) is found
        measured = found.link(one, two).bandwidth
        assert measured is not None
        assert devices.topology().expected_bandwidth(one, two) == measured
        assert "GB/s" in str(devices[:2].topology())
        assert devices[:1].topology().links == ()


@pytest.mark.parametrize(
    ("attributes", "peer"),
    [
        ({}, Peer(access=False)),
        ({1: 2, 3: 0}, Peer(access=True, atomics=False, rank=2)),
        ({1: 0, 3: 1}, Peer(access=True, atomics=True, rank=0)),
    ],
)
def test_topology_reads_links_of_two_cards(attributes: dict[int, int], peer: Peer) -> None:
    with installed(FakeGpu()) as gpu:
        gpu.peer_attributes = attributes
        context = CudaContext(0, StreamPlan())
        assert context.peer(1) == peer
        assert context.peer(0).access
        assert context.info.pci_address == "ffff:00:00.0"
        assert (context.info.numa_node, context.info.pcie, context.info.mig) == (None, None, False)
