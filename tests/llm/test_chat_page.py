"""The chat page in a real browser. Pictures are kept in ``.pictures``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from atomr_accel.llm import TokenPiece, TokenRequest

from ..dashboard.browser import PROGRAM, open_browser
from ..harness import ROOT
from .stand_in import ask, saying, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PICTURES = ROOT / ".pictures"
HOSTILE = "<img src=x onerror=document.title='broken'>"
SEND = "document.getElementById('text').value = '{}'; document.getElementById('send').click()"
SAID = "[...document.querySelectorAll('.said.{}')].map(one => one.textContent)"
FIGURES = "Object.fromEntries([...document.querySelectorAll('#figures > div')]"
FIGURES += (
    ".map(one => [one.querySelector('dt').textContent, one.querySelector('dd').textContent]))"
)


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    async with serving(saying("a")) as (server, _model):
        reply = await ask(server, "/")
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        text = reply.body.decode()
        assert "{{" not in text
        assert "http://www.w3.org/2000/svg" in text
        assert text.count("http") == text.count("http-equiv") + 1


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here")
async def test_the_page_chats_shows_metrics_and_causes_faults(tmp_path: Path) -> None:
    go_on = trio.Event()

    async def script(request: TokenRequest) -> AsyncIterator[TokenPiece]:
        yield TokenPiece(token=0, text="Hello, ")
        if len(request.prompt) > 40:  # the second question
            await go_on.wait()
        await trio.lowlevel.checkpoint()
        yield TokenPiece(token=1, text=HOSTILE)
        yield TokenPiece(token=2, text="", finish="stop")

    async def cause() -> str:
        await trio.lowlevel.checkpoint()
        return "CUDA_ERROR_ILLEGAL_ADDRESS"

    with trio.fail_after(120):  # a browser takes its time to start
        async with (
            serving(script, cause_fault=cause) as (server, model),
            open_browser(tmp_path) as browser,
        ):
            await browser.look(1280, 900)
            await browser.open(f"{server.url}/")
            await browser.until("document.querySelectorAll('#figures > div').length === 6")
            await browser.value(SEND.format("first question"))
            await browser.until("document.querySelector('[data-finish=stop]')")
            assert await browser.value(SAID.format("assistant")) == [f"Hello, {HOSTILE}"]
            assert await browser.value("document.querySelectorAll('img').length") == 0
            assert "broken" not in await browser.value("document.title")
            figures = await browser.value(FIGURES)
            assert (figures["Running"], figures["Cache"]) == ("2", "75 %")
            await browser.until(f"({FIGURES}).Tokens === '3'")

            # A fault in the middle of an answer, and the answer goes on.
            await browser.value(SEND.format("second question"))
            await browser.until("document.querySelectorAll('.said.assistant')[1]?.textContent")
            await browser.value("document.getElementById('fault').click()")
            await browser.until("document.querySelector('.said.note')")
            assert await browser.value(SAID.format("note")) == ["Fault: CUDA_ERROR_ILLEGAL_ADDRESS"]
            go_on.set()
            await browser.until("document.querySelectorAll('[data-finish=stop]').length === 2")
            assert [message["role"] for message in model.rendered] == ["user", "assistant", "user"]
            for name, width, dark in (("light", 1280, False), ("phone", 390, True)):
                await browser.look(width, 800, dark=dark)
                wide = "document.documentElement.scrollWidth"
                assert await browser.value(f"{wide} <= {width}"), name
                await browser.take_picture(PICTURES / f"chat-{name}.png")
            assert browser.complaints == []


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here")
async def test_the_page_stops_streams_and_asks_for_a_key(tmp_path: Path) -> None:
    async def endless(_request: TokenRequest) -> AsyncIterator[TokenPiece]:
        yield TokenPiece(token=0, text="and ")
        await trio.sleep_forever()

    with trio.fail_after(120):
        async with (
            serving(endless, keys={"ann": "sk-1"}) as (server, model),
            open_browser(tmp_path) as browser,
        ):
            await browser.open(f"{server.url}/")
            await browser.until("document.querySelectorAll('#figures > div').length === 6")
            assert await browser.value("document.getElementById('fault').hidden")
            await browser.value(SEND.format("who are you"))
            await browser.until("document.querySelector('.said.error')")
            assert not await browser.value("document.getElementById('key-form').hidden")
            await browser.value("document.getElementById('key').value = 'sk-1'")
            await browser.value(SEND.format("who are you"))
            await browser.until("[...document.querySelectorAll('.assistant')].at(-1).textContent")
            assert model.open == 1
            await browser.value("document.getElementById('stop').click()")
            await browser.until("document.querySelector('[data-finish=stopped]')")
            await model.until_open(0)
            # The browser itself notes the answer of status 401.
            assert [each for each in browser.complaints if "status of 401" not in each] == []
