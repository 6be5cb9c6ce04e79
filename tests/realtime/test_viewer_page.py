"""The viewer's page in a real browser, with checks of its contents and its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel.realtime import open_fluid, open_viewer
from atomr_accel.testing import poison

from ..dashboard.browser import PROGRAM, Browser, open_browser
from ..harness import ROOT
from ..harness import opened as opened_device

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here"),
]

HOSTILE = "<img src=x onerror=document.title='broken'>"
LINK = "document.getElementById('link')?.textContent"
FRAMES = "Number(document.getElementById('picture')?.dataset.frames ?? 0)"
PIXELS = """(canvas => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height);  // reading the page's own warns
    const brush = copy.getContext('2d', { willReadFrequently: true });
    brush.drawImage(canvas, 0, 0);
    const read = brush.getImageData(0, 0, canvas.width, canvas.height);
    return [canvas.width, canvas.height, [...read.data]];
})(document.getElementById('picture'))"""
FACT = """Number([...document.querySelectorAll('#facts > div')]
    .find(one => one.querySelector('dt').textContent === '%s').querySelector('dd').textContent)"""
SLIDER = """(slider => { slider.value = %s; slider.dispatchEvent(new Event('input')); })
    (document.querySelector('[aria-label="buoyancy"]'))"""
EXACT = """(input => { input.value = '%s'; input.dispatchEvent(new Event('change')); })
    (document.getElementById('exact-viscosity'))"""


@asynccontextmanager
async def shown(path: Path) -> AsyncIterator[tuple[Any, Any, Any, Browser]]:
    """A device, a scene, its viewer, and a browser that shows it."""
    source = np.zeros((24, 32))
    source[3:6, 12:20] = 10
    async with (
        opened_device() as device,
        open_fluid(device, (24, 32), source=source, buoyancy=2.0, every=4) as fluid,
        open_viewer(fluid, title=HOSTILE) as viewer,
        open_browser(path) as browser,
    ):
        with trio.fail_after(60):  # a browser takes its time to start
            await browser.look(1000, 700)
            await browser.open(viewer.url)
            await browser.until(f"{LINK} === 'live' && {FRAMES} >= 1")
            yield device, fluid, viewer, browser


async def test_page_draws_changes_and_shows_faults(tmp_path: Path) -> None:
    async with shown(tmp_path) as (device, fluid, viewer, browser):
        assert await browser.value("document.title") == HOSTILE
        assert await browser.value("document.querySelectorAll('img').length") == 0
        assert viewer.token not in await browser.value("location.href")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fluid.run, 100)
            await browser.until(f"{FRAMES} >= 5 && {FACT % 'Steps'} >= 8")

            await browser.value(SLIDER % 6.5)
            while fluid.statistics().parameters["buoyancy"] != 6.5:
                await trio.lowlevel.checkpoint()
            await browser.until("document.getElementById('exact-buoyancy').value === '6.5'")
            await browser.value(EXACT % "0.25")
            while fluid.statistics().parameters["viscosity"] != 0.25:
                await trio.lowlevel.checkpoint()
            await browser.value(EXACT % "-3")
            refused = "document.getElementById('refused')"
            await browser.until(f"!{refused}.hidden")
            assert "viscosity must be from 0" in await browser.value(f"{refused}.textContent")

            assert await browser.value("document.getElementById('fault').hidden")
            await poison(device)
            await browser.until(f"{FACT % 'Faults'} === 1")
            text = await browser.value("document.getElementById('fault').textContent")
            assert text.startswith("1 fault has undone ")
            before = await browser.value(FRAMES)
            await browser.until(f"{FRAMES} > {before + 2}")
            nursery.cancel_scope.cancel()

        # The last picture that it gets is the one that it shows.
        await fluid.run(1000, frames=3)
        wanted = await fluid.snapshot()
        with trio.fail_after(20):
            while True:
                width, height, data = await browser.value(PIXELS)
                found = np.array(data, np.uint8).reshape(height, width, 4)
                if (found[..., :3] == wanted).all():
                    break
                await fluid.run(1000, frames=1)
                wanted = await fluid.snapshot()
        assert (width, height) == (32, 24)
        assert (found[..., 3] == 255).all()
        assert found[..., :3].std() > 5
        for name, width, dark in (("light", 1000, False), ("phone", 390, True)):
            await browser.look(width, 700, dark=dark)
            wide = "document.documentElement.scrollWidth"
            assert await browser.value(f"{wide} <= {width}"), name
            await browser.take_picture(ROOT / ".pictures" / f"viewer-{name}.png")
        assert browser.complaints == []


async def test_page_tells_of_a_missing_token_and_of_the_end(tmp_path: Path) -> None:
    async with shown(tmp_path) as (_device, _fluid, viewer, browser):
        await browser.value("sessionStorage.clear()")
        await browser.open(f"{viewer.address}?")
        await browser.until(f"{LINK} === 'no token'")
        await browser.open(f"{viewer.address}?again#wrong")
        await browser.until(f"{LINK} === 'refused'")
        assert await browser.value("document.getElementById('main').hidden")
        await browser.open(f"{viewer.address}?more#{viewer.token}")
        await browser.until(f"{LINK} === 'live'")
        viewer._left.set()
        await browser.until(f"{LINK} !== 'live'")
