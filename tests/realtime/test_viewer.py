"""The viewer's WebSocket: access, pictures, parameters, slow pages and the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import Device
from atomr_accel.realtime import Fluid, Simulation, open_fluid, open_viewer
from atomr_accel.testing import poison

from ..harness import opened as opened_device
from .sockets import connected

SOURCE = np.zeros((8, 12))
SOURCE[2:4, 4:8] = 20


def smoke(device: Device, **options: Any) -> Any:
    return open_fluid(device, (8, 12), source=SOURCE, buoyancy=2.0, **options)


async def test_a_page_gets_the_scene_its_state_and_pictures(device: Device) -> None:
    with trio.fail_after(60):
        async with (
            smoke(device) as fluid,
            open_viewer(fluid, title="Smoke") as viewer,
            trio.open_nursery() as nursery,
            connected(viewer) as page,
        ):
            scene = await page.next()
            assert (scene["kind"], scene["title"]) == ("scene", "Smoke")
            first = scene["parameters"][1]
            assert first == {
                "name": "buoyancy",
                "unit": "length/s²",
                "low": None,
                "high": None,
                "from": -8.0,
                "to": 8.0,
            }
            assert (await page.until("state"))["steps"] == 0
            assert not (await page.until("picture")).any()
            nursery.start_soon(fluid.run, 500)
            while not (picture := await shown(page)).any():
                pass
            assert picture.shape == (8, 12, 3)
            assert viewer.statistics().pages == 1
            nursery.cancel_scope.cancel()
    assert viewer.statistics().frames >= 2


async def shown(page: Any) -> Any:
    """Return the picture that comes when the last one was drawn."""
    await page.send({"kind": "drawn"})
    return await page.until("picture")


async def test_a_page_changes_parameters_and_is_told_of_refusals(device: Device) -> None:
    with trio.fail_after(60):
        async with (
            smoke(device) as fluid,
            open_viewer(fluid) as viewer,
            connected(viewer) as page,
        ):
            await page.until("picture")
            await page.send({"kind": "set", "name": "buoyancy", "value": 7})
            assert (await page.until("state"))["parameters"]["buoyancy"] == 7
            assert fluid.statistics().parameters["buoyancy"] == 7
            for name, value, text in [
                ("viscosity", -1, "viscosity must be from 0"),
                ("viscosity", float("nan"), "viscosity must be finite"),
                ("speed", 1, "'speed' must be a parameter"),
                ("self", 1, "self"),
            ]:
                await page.send({"kind": "set", "name": name, "value": value})
                assert text in (await page.until("refused"))["text"]
            assert fluid.statistics().parameters["viscosity"] == 0
            found = viewer.statistics()
            assert (found.changes, found.refused) == (1, 4)


async def test_a_slow_page_delays_nothing(device: Device) -> None:
    with trio.fail_after(60):
        async with (
            smoke(device) as fluid,
            open_viewer(fluid) as viewer,
            connected(viewer) as page,
        ):
            await page.until("picture")
            await fluid.run(1000, frames=6)  # it has not drawn the first one yet
            assert viewer.statistics().frames == 1
            assert fluid.statistics().skipped_frames >= 4


@pytest.mark.slow
async def test_a_fault_is_shown_and_pictures_go_on() -> None:
    with trio.fail_after(60):
        async with (
            opened_device() as device,
            smoke(device, every=2) as fluid,
            open_viewer(fluid) as viewer,
            trio.open_nursery() as nursery,
            connected(viewer) as page,
        ):
            assert (await page.until("state"))["faults"] == 0
            nursery.start_soon(fluid.run, 200)
            while fluid.steps < 3:
                await shown(page)
            await poison(device)
            while True:
                await page.send({"kind": "drawn"})
                state = await page.until("state")
                if state["faults"]:
                    break
            assert state["faults"] == 1
            assert (await shown(page)).any()
            nursery.cancel_scope.cancel()


async def test_only_who_has_the_token_and_asks_for_this_machine_is_let_in() -> None:
    async with (
        opened_device(isolation="thread") as device,
        smoke(device) as fluid,
        open_viewer(fluid) as viewer,
        open_viewer(fluid) as other,
    ):
        own = viewer.address.rstrip("/")
        assert viewer.token not in repr(viewer)
        assert viewer.url == f"{viewer.address}#{viewer.token}"
        cases: list[dict[str, str]] = [
            {"token": ""},
            {"token": "wrong"},
            {"token": other.token},
            {"token": viewer.token + "a" * 2000},
            {"host": "rebound.example"},
            {"origin": "http://elsewhere.example"},
            {"origin": "null"},
            {"origin": own.replace("http", "https")},
        ]
        for options in cases:
            async with connected(viewer, **options) as page:
                assert page.status == 403, options
        async with connected(viewer, origin=own) as page:
            assert page.status == 101
            await page.until("picture")
    assert viewer.statistics().frames == 1


@pytest.mark.parametrize(
    "message",
    [
        "{",
        "[]",
        {"kind": "step"},
        {"kind": "set", "name": "buoyancy"},
        {"kind": "set", "name": 3, "value": 3},
        {"kind": "set", "name": "buoyancy", "value": 10**400},
        b"\x00\x01",
    ],
)
async def test_malformed_messages_end_a_page_and_no_other(device: Device, message: Any) -> None:
    with trio.fail_after(60):
        async with (
            smoke(device) as fluid,
            open_viewer(fluid) as viewer,
            connected(viewer) as good,
        ):
            await good.until("picture")
            async with connected(viewer) as page:
                await page.send(message)
                while await page.next() is not None:
                    pass
                assert page.code == 1007
            await good.send({"kind": "set", "name": "buoyancy", "value": 1})
            await good.until("state")


async def test_pages_are_limited_and_end_with_the_block(device: Device) -> None:
    with trio.fail_after(60):
        async with smoke(device) as fluid:
            async with open_viewer(fluid) as viewer, trio.open_nursery() as nursery:
                ready, ends = trio.open_memory_channel[int](0)

                async def look() -> None:
                    async with connected(viewer) as page:
                        await page.until("picture")
                        await ready.send(1)
                        while await page.next() is not None:
                            pass
                        await ready.send(page.code or 0)

                for _ in range(16):
                    nursery.start_soon(look)
                for _ in range(16):
                    await ends.receive()
                assert viewer.statistics().pages == 16
                async with connected(viewer) as late:
                    assert late.status == 403
                nursery.start_soon(left, viewer)
                assert [await ends.receive() for _ in range(16)] == [1001] * 16
            assert viewer.statistics().pages == 0


async def left(viewer: Any) -> None:
    await trio.lowlevel.checkpoint()
    viewer._left.set()


async def test_the_end_of_a_scene_is_told(device: Device) -> None:
    with trio.fail_after(60):
        async with smoke(device) as fluid:
            pass
        async with open_viewer(fluid) as viewer, connected(viewer) as page:
            assert "Fluid must be open" in (await page.until("over"))["text"]
            assert await page.next() is None


async def test_wrong_arguments_open_nothing(device: Device) -> None:
    fluid: Fluid
    async with smoke(device) as fluid:
        cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
            (None, {}, TypeError, "scene must be an instance of Simulation"),
            (fluid, {"title": 3}, TypeError, "title must be an instance of str"),
            (fluid, {"host": "0.0.0.0"}, ValueError, "other machines reach"),
            (fluid, {"host": "example.com"}, ValueError, "a viewer's host must be an address"),
            (fluid, {"port": -1}, ValueError, "port must be"),
        ]
        for scene, options, kind, text in cases:
            with pytest.raises(kind, match=text):
                async with open_viewer(scene, **options):
                    pass
    assert isinstance(fluid, Simulation)
