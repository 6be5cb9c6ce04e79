"""The page in a real browser, with checks of its contents and its errors.

Pictures are kept in ``.pictures`` at the root, for a look at them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio

from atomr_accel import Device, open_system
from atomr_accel.actors import Actor, Message, handler
from atomr_accel.dashboard import Dashboard, open_dashboard
from atomr_accel.patterns import open_batcher
from atomr_accel.testing import poison

from ..harness import AT_ONCE, BACKEND, ROOT
from .browser import PROGRAM, Browser, open_browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here"),
]

PICTURES = ROOT / ".pictures"
RESTARTS = """[...document.querySelectorAll('#figures > div')]
    .find(one => one.querySelector('dt').textContent === 'Restarts')
    .querySelector('dd').textContent"""
OUTSIDE = """[...document.querySelectorAll('.card')].flatMap(card => [...card.querySelectorAll('*')]
    .filter(one => one.getBoundingClientRect().right > card.getBoundingClientRect().right + 1
        && !one.closest('.track, .parts, .actors td'))
    .map(one => one.textContent || one.className))"""
DRAWN = "['.area', '.one', '.two'].map(line => document.querySelectorAll(`.plot ${line}`))"
DRAWN += ".map(([path]) => !!path.getAttribute('d'))"
HOSTILE = "<img src=x onerror=document.title='broken'>"


class Fail(Message[None]):
    pass


class Weak(Actor):
    """Fails when it is asked to, with markup for a message."""

    @handler
    async def fail(self, message: Fail) -> None:
        raise ValueError("<script>document.title='broken'</script>")


async def doubled(items: Sequence[int]) -> list[int]:
    return [2 * item for item in items]


@asynccontextmanager
async def shown(path: Path) -> AsyncIterator[tuple[Device, Dashboard, Browser]]:
    """A device, its page, and a browser that shows it."""
    async with (
        open_system("s") as system,
        open_batcher(doubled, max_size=8) as batcher,
        open_dashboard(system, announce=False, patterns={"double": batcher}) as page,
    ):
        device = await system.spawn_device(0, backend=BACKEND, backoff=AT_ONCE)
        async with open_browser(path) as browser:
            with trio.fail_after(60):  # a browser takes its time to start
                await browser.look(1280, 900)
                await browser.open(page.url)
                await browser.until("document.querySelector('.device')")
                yield device, page, browser


async def test_page_shows_devices_actors_and_faults_without_errors(
    tmp_path: Path,
) -> None:
    async with shown(tmp_path) as (device, _page, browser):
        weak = await device.system.spawn(Weak, name=HOSTILE)
        kept = [await device.put(np.ones((256, 256)), sealed=at % 2 == 0) for at in range(8)]
        await device.blas.gemm(kept[0], kept[0])
        await browser.until("document.querySelector('.device .pill').textContent === 'ready'")
        await browser.until("document.querySelectorAll('.slab rect').length >= 2")

        weak.tell(Fail())
        await poison(device)
        await browser.until("document.querySelector('.events .kind-fault')")
        await device.put(np.ones(4))
        await browser.until("document.querySelectorAll('.events li').length >= 3")
        text = await browser.value("document.getElementById('events').textContent")
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in text
        assert "<script>document.title" in text
        assert HOSTILE in await browser.value("document.getElementById('rows').textContent")
        assert await browser.value("document.querySelectorAll('img').length") == 0
        assert "broken" not in await browser.value("document.title")
        assert "/device-0: " in await browser.value("document.getElementById('said').textContent")

        assert "answered" in await browser.value("document.getElementById('patterns').textContent")
        titles = "Object.fromEntries([...document.querySelectorAll('#patterns .facts > div')]"
        titles += ".map(one => [one.querySelector('dt').textContent, one.title]))"
        explained = await browser.value(titles)
        assert explained["answered"] == "requests that got a result"
        assert all(explained.values()), explained
        tones = "['fault', 'lost', 'failure'].map(kind => getComputedStyle("
        tones += "document.querySelector(`#kinds .kind-${kind} .key`)).backgroundColor)"
        assert len(set(await browser.value(tones))) == 3
        for folded in (False, True):  # the figure and the rows say the same
            if folded:
                await browser.value("document.querySelector('#rows .twist').click()")
            counts = "[...document.querySelectorAll('#rows .number:nth-child(4)')]"
            counts += ".map(cell => Number(cell.textContent) || 0).reduce((a, b) => a + b)"
            assert await browser.value(counts) == int(await browser.value(RESTARTS)) > 0
        await browser.value("document.querySelector('#rows .twist').click()")
        # An area needs two points side by side. The first one may be all there is so far.
        await browser.until(f"{DRAWN}.every(Boolean)")
        for at, back in ((2, "60 min"), (3, "24 h"), (1, "5 min")):
            await browser.value(f"document.querySelectorAll('#spans button')[{at}].click()")
            scale = "document.querySelector('#timeline .scale').textContent"
            assert (await browser.value(scale)).startswith(f"{back} ago")
            assert await browser.value(DRAWN) == [True, True, True]

        for name, width, dark in (
            ("light", 1280, False),
            ("dark", 1280, True),
            ("wide", 1900, False),
            ("phone", 390, True),
        ):
            await browser.look(width, 900, dark=dark)
            await browser.until("document.querySelector('.plot path').getAttribute('d')")
            wide = "document.documentElement.scrollWidth"
            assert await browser.value(f"{wide} <= {width}"), name
            await browser.hover("document.querySelectorAll('.plot svg')[1]")
            await browser.until("document.querySelectorAll('.when-mark')[1].textContent")
            assert await browser.value(OUTSIDE) == [], name
            card = await browser.value("document.querySelector('#devices .device').clientWidth")
            inner = await browser.value("document.querySelector('#devices').clientWidth")
            assert card >= inner - 4, name  # alone, it has the whole width
            await browser.take_picture(PICTURES / f"dashboard-{name}.png", whole=True)
        assert browser.complaints == []
        del kept


async def test_the_tree_is_walked_by_keys(tmp_path: Path) -> None:
    async with shown(tmp_path) as (_device, _page, browser):
        focused = "document.activeElement.dataset.path"
        expanded = "document.activeElement.getAttribute('aria-expanded')"
        await browser.value("document.querySelector('#rows tr').focus()")
        assert await browser.value(focused) == "/device-0"
        if await browser.value(expanded) == "false":
            await browser.press("ArrowRight")
        assert await browser.value(expanded) == "true"
        await browser.press("ArrowDown")
        assert await browser.value(focused) == "/device-0/array"
        await browser.press("ArrowLeft")
        assert await browser.value(focused) == "/device-0"
        await browser.press("ArrowLeft")
        assert await browser.value(expanded) == "false"
        assert await browser.value("document.querySelectorAll('#rows tr').length") == 1
        await browser.value(
            "(f => { f.value = 'LANE'; f.dispatchEvent(new Event('input')); })"
            "(document.getElementById('filter'))"
        )
        rows = await browser.value(
            "[...document.querySelectorAll('#rows tr')].map(r => r.dataset.path)"
        )
        assert rows == ["/device-0", "/device-0/context", "/device-0/context/memory"]
        assert browser.complaints == []


async def test_whoever_lacks_the_token_is_told_so(tmp_path: Path) -> None:
    async with shown(tmp_path) as (_device, page, browser):
        await browser.value("sessionStorage.clear()")
        await browser.open(f"{page.address}?")
        await browser.until("document.getElementById('link')?.textContent === 'no token'")
        assert await browser.value("document.getElementById('main').hidden")
        await browser.open(f"{page.address}?token=wrong")
        await browser.until("document.getElementById('link')?.textContent === 'refused'")


async def test_many_actors_make_no_long_page(tmp_path: Path) -> None:
    async with shown(tmp_path) as (device, _page, browser):
        for at in range(1000):
            await device.system.spawn(Actor, name=f"actor-{at}")
        await browser.until("document.querySelectorAll('#rows tr').length === 200")
        await browser.until("document.getElementById('more').textContent.endsWith('of 801')")
        await browser.value("document.getElementById('more').click()")
        await browser.until("document.querySelectorAll('#rows tr').length === 400")
        assert browser.complaints == []
