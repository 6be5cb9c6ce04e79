"""A page about a system with a device, by way of a socket."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio

from atomr_accel import LibraryMissing, open_device, open_system
from atomr_accel.actors import Actor
from atomr_accel.dashboard import open_dashboard
from atomr_accel.telemetry import open_nvml
from atomr_accel.testing import poison

from ..fakes.nvml import FakeGpu, FakeNvml
from ..harness import AT_ONCE, BACKEND, opened, refused
from .client import ask, looking, place


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime directory of the test's own."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def kinds(state: dict[str, Any], path: str = "/device-0") -> list[str]:
    return [event["kind"] for event in state["events"].values() if event["path"] == path]


async def test_a_fault_is_shown_and_so_is_the_rebuild() -> None:
    async with opened() as device, open_dashboard(device.system) as page, looking(page) as looker:
        await looker.until(lambda state: state["devices"]["/device-0"]["state"] == "ready")
        await poison(device)
        await looker.until(lambda state: "fault" in kinds(state))
        await device.put(np.zeros(4))
        await looker.until(lambda state: kinds(state) == ["fault", "ready"])
        await looker.until(lambda state: state["devices"]["/device-0"]["state"] == "ready")
        shown = looker.state["devices"]["/device-0"]
        assert (shown["generation"], shown["faults"]) == (2, 1)
        assert "generation 1" in shown["last_fault"]
        assert "failed: kernel fault" in shown["report"]
        assert looker.state["actors"]["/device-0"]["generation"] == 2


async def test_page_shows_events_from_before_it_was_opened() -> None:
    async with opened() as device, open_dashboard(device.system) as page:
        await poison(device)
        await device.put(np.zeros(4))
        state = json.loads((await ask(page, "/state", token=page.token)).body)
        assert kinds(state) == ["fault", "ready"]


async def test_dashboard_reports_the_statistics() -> None:
    async with opened() as device, open_dashboard(device.system) as page:
        x = await device.put(np.ones((64, 64)))
        kept = [await device.blas.gemm(x, x), await device.put(np.ones(100), sealed=True)]
        state = json.loads((await ask(page, "/state", token=page.token)).body)
        shown, statistics = state["devices"]["/device-0"], device.statistics()
        assert shown["name"] == device.name
        assert shown["host_pid"] == statistics.host_pid
        for name in ("capacity", "used", "free", "sealed", "stale"):
            assert shown["memory"][name] == getattr(statistics.memory, name)
        slabs = shown["memory"]["slabs"].values()
        assert sum(slab["used"] for slab in slabs) == statistics.memory.used
        assert {slab["kind"] for slab in slabs} == {"plain", "sealed"}
        assert {slab["cells"][0] for slab in slabs} == {"1"}
        assert {slab["cells"][-1] for slab in slabs} == {"0"}
        lanes = {lane.name: lane.completed for lane in statistics.lanes}
        assert {name: lane["completed"] for name, lane in shown["lanes"].items()} == lanes
        assert state["system"]["actors"] == device.system.statistics().actors
        assert state["actors"].keys() >= {"/device-0", "/device-0/context/blas", "/device-0/fft"}
        del kept


@pytest.mark.slow
async def test_curves_count_every_op_once() -> None:
    async with opened() as device, open_dashboard(device.system) as page:
        async with looking(page) as looker:
            x = await device.put(np.ones(8))
            with pytest.raises(TypeError):
                await device.run(abs, "no number")
            await looker.until(lambda state: state["curves"].get("/device-0"))
            await looker.until(
                lambda state: sum(point[1] for point in state["curves"]["/device-0"].values()) > 0
            )
        points = [*looker.state["curves"]["/device-0"].values()]
        assert sum(point[2] for point in points) > 0
        assert any(point[3] is not None and 0 < point[3] <= point[4] for point in points)
        del x


@pytest.mark.parametrize(
    "name",
    ["<img src=x onerror=alert(1)>", "data: {}\n\nevent: end", "__proto__", "\ud800", "\x00"],
)
async def test_names_are_told_as_they_are(name: str) -> None:
    async with open_system(name) as system, open_dashboard(system) as page, looking(page) as looker:
        await system.spawn(Actor, name=name)
        await looker.until(lambda state: f"/{name}" in state["actors"])
        assert looker.state["system"]["name"] == name


async def test_page_shows_driver_readings_next_to_their_device() -> None:
    gpu, other = FakeGpu(), FakeGpu(uuid="GPU-other")
    fake = FakeNvml(gpu, other)
    async with opened() as device, open_nvml(device.system, interval=3600, library=fake) as nvml:
        assert device.core.info is not None
        own = msgspec.structs.replace(device.core.info, uuid=gpu.uuid.removeprefix("GPU-"))
        device.core.info = own
        await nvml.read()
        async with open_dashboard(device.system, nvml=nvml) as page, looking(page) as looker:
            await looker.until(lambda state: "gpu" in state["devices"]["/device-0"])
            shown = looker.state["devices"]["/device-0"]["gpu"]
            assert shown["temperature"] == gpu.celsius
            assert shown["busy"] == 0.75
            assert shown["power"] == 350.5
            assert "SwPowerCap" in shown["throttled"]
            fake.happen(gpu, 31)
            fake.happen(other, 79)
            await looker.until(lambda state: len(state["events"]) >= 2)
            told = [(event["kind"], event["path"]) for event in looker.state["events"].values()]
            assert told == [("xid", "/device-0"), ("xid", "GPU-other")]
            assert "page fault" in looker.state["events"]["1"]["text"]


async def test_devices_come_and_go() -> None:
    async with open_system("s") as system, open_dashboard(system) as page, looking(page) as looker:
        await looker.until(lambda state: state["devices"] == {})
        device = await system.spawn_device(0, backend=BACKEND, backoff=AT_ONCE)
        await looker.until(lambda state: [*state["devices"]] == ["/device-0"])
        await device.ref.stop()
        await looker.until(lambda state: state["devices"] == {})


async def test_pages_are_told_of_the_end() -> None:
    async with open_system("s") as system:
        async with open_dashboard(system) as page:
            stream = looking(page)
            looker = await stream.__aenter__()
            await looker.next()
        while (kind := await looker.next()) == "change":
            pass
        assert kind == "end"
        assert await looker.next() is None
        await stream.__aexit__(None, None, None)


async def test_errors_leave_the_block_as_they_are() -> None:
    async with open_system("s") as system:
        with pytest.raises(ValueError, match=r"^mine$"):
            async with open_dashboard(system) as page, looking(page) as looker:
                await looker.next()
                raise ValueError("mine")
        with trio.move_on_after(0.05) as scope:
            async with open_dashboard(system):
                await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_a_device_alone_is_shown_as_well() -> None:
    async with open_device(0, backend=BACKEND) as device, open_dashboard(device.system) as page:
        state = json.loads((await ask(page, "/state", token=page.token)).body)
        assert [*state["devices"]] == ["/device-0"]


@pytest.mark.slow
async def test_stalled_client_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atomr_accel.dashboard.site._STUCK_MS", 300)
    async with open_system("s") as system:
        for at in range(100):
            await system.spawn(Actor, name=f"{at}-{'x' * 100_000}")
        async with open_dashboard(system) as page:
            stuck = socket.socket()
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect(place(page))
            stuck.sendall(
                f"GET /events?token={page.token} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
            async with looking(page) as looker:
                assert await looker.next() == "state"
        with stuck:
            assert await trio.to_thread.run_sync(stuck.recv, 100)


async def test_without_a_server_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypercorn.config", None)
    async with open_system("s") as system:
        await refused(LibraryMissing, r"pip install .*\[dashboard\]", open_dashboard, system)


async def test_only_a_system_has_a_page() -> None:
    async with opened() as device:
        await refused(TypeError, "ActorSystem", open_dashboard, device)
