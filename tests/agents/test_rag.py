"""Retrieval end to end: documents are found and cited, and survive interruptions."""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device
from atomr_accel.actors import open_actor_system
from atomr_accel.agents import (
    AddDocument,
    AskDocuments,
    FilesForeign,
    FilesInUse,
    NameUnknown,
    SearchDocuments,
    VectorIndex,
    open_rag,
    open_vector_index,
)
from atomr_accel.agents._passages import cut
from atomr_accel.patterns import Closed

from ..harness import on_shared, refused

DIMENSION = 64
TEXTS = {
    "trio": "Trio cancels tasks by scopes. A nursery waits for all of its children.",
    "memory": "A sealed buffer survives faults of the device. Others are stale after a rebuild.",
    "cooking": "Boil the potatoes for twenty minutes. Add salt and butter before you serve them.",
}


async def embed(texts: list[str]) -> Any:
    """Count words by their hashes, and the letters of each by threes."""
    await trio.lowlevel.checkpoint()
    made = np.full((len(texts), DIMENSION), 1e-3, np.float32)
    for row, text in zip(made, texts, strict=True):
        for word in re.findall(r"\w+", text.lower()):
            for at in range(max(1, len(word) - 2)):
                row[zlib.crc32(word[at : at + 3].encode()) % DIMENSION] += 1
    return made


async def quote(prompt: str) -> AsyncIterator[str]:
    """Answer with the first sentence of the first passage."""
    await trio.lowlevel.checkpoint()
    found = re.search(r"\[1\] \(.*\)\n([^.]*)\.", prompt)
    yield found[1] if found else "I cannot tell"
    yield " [1]. [9]"


def vectors_at(device: Device, path: Path) -> AbstractAsyncContextManager[VectorIndex]:
    return open_vector_index(device, path / "vectors", dimension=DIMENSION)


@settings(max_examples=40)
@given(
    text=st.text(st.sampled_from("ab. \n!c"), max_size=300),
    size=st.integers(2, 40),
    data=st.data(),
)
def test_pieces_are_the_whole_text(text: str, size: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, max(0, size // 2 - 1)))
    pieces = cut(text, size, overlap)
    covered: set[Any] = set()
    for start, end in pieces:
        assert 0 < end - start <= size
        assert text[start:end] == text[start:end].strip()
        covered.update(range(start, end))
    assert all(text[at].isspace() for at in {*range(len(text))} - covered)
    for (_, end), (start, _) in pairwise(pieces):
        assert start >= end - overlap


@on_shared
async def test_documents_are_found_and_cited(device: Device, tmp_path: Path) -> None:
    async with (
        vectors_at(device, tmp_path) as index,
        open_rag(index, tmp_path / "rag.sqlite", embed, quote, size=60, overlap=10) as rag,
    ):
        for name, text in TEXTS.items():
            assert await rag.add(name, text) == 2
        assert await rag.documents() == [*TEXTS]
        (best, *_) = await rag.search("which buffer survives faults?", 3)
        assert best.document == "memory"
        assert TEXTS["memory"][best.start :].startswith(best.text)
        # Words that no vector here is near to: the text search alone tells.
        assert (await rag.search("butter", 1))[0].document == "cooking"
        async with rag.answering("how does trio cancel tasks?", 2) as answer:
            await rag.add("more", "Tasks of trio end when their scopes are cancelled.")
            pieces = [piece async for piece in answer]
        assert "".join(pieces) == "Trio cancels tasks by scopes [1]. [9]"
        assert answer.so_far.cited == (answer.passages[0],)
        assert "Question: how does trio cancel tasks?" in answer.prompt
        assert "more" in {each.document for each in await rag.search("trio tasks end", 3)}
        await rag.remove("trio")
        assert "trio" not in {each.document for each in await rag.search("trio scopes", 9)}
        with pytest.raises(NameUnknown):
            await rag.remove("trio")
        statistics = rag.statistics()
        assert (statistics.added, statistics.removed, statistics.in_progress) == (4, 1, 0)
    async with (
        vectors_at(device, tmp_path) as index,
        open_rag(index, tmp_path / "rag.sqlite", embed, quote) as rag,
    ):
        assert await rag.documents() == ["memory", "cooking", "more"]
        assert (await rag.ask("which buffer survives?")).cited[0].document == "memory"


@on_shared
async def test_ranks_of_both_searches_are_joined(device: Device, tmp_path: Path) -> None:
    async with (
        vectors_at(device, tmp_path) as index,
        open_rag(index, tmp_path / "rag.sqlite", embed) as rag,
    ):
        for name, text in TEXTS.items():
            await rag.add(name, text)
        found = await rag.search("potatoes with butter", 3)
        assert found[0].document == "cooking"
        assert found[0].score == pytest.approx(2 / 61)
        assert [each.score for each in found[1:]] == pytest.approx([1 / 62, 1 / 63])
        with pytest.raises(ValueError, match="generate"):
            await rag.ask("why?")


@on_shared
async def test_what_was_not_whole_is_gone_when_it_is_opened(device: Device, tmp_path: Path) -> None:
    from atomr_accel.agents._passages import PassageTable

    table = PassageTable(tmp_path / "rag.sqlite")  # a program that ended before it was done
    ids = table.add("half", [(0, "half of it"), (11, "and the rest")])
    assert table.matching("half", 5) == []
    table.close()
    async with vectors_at(device, tmp_path) as index:
        await index.insert(ids[0], (await embed(["half of it"]))[0])
        async with open_rag(index, tmp_path / "rag.sqlite", embed) as rag:
            assert len(index) == 0
            assert await rag.documents() == []
            await rag.add("half", "half of it")
            assert [each.document for each in await rag.search("half")] == ["half"]


@on_shared
async def test_failed_and_cancelled_additions_leave_nothing(device: Device, tmp_path: Path) -> None:
    async def wrong(texts: list[str]) -> Any:
        await trio.lowlevel.checkpoint()
        return np.full((len(texts), DIMENSION), np.nan)

    async with (
        vectors_at(device, tmp_path) as index,
        open_rag(index, tmp_path / "rag.sqlite", wrong) as rag,
    ):
        with pytest.raises(ValueError, match="finite"):
            await rag.add("x", "text")
        assert await rag.documents() == []
        with trio.CancelScope() as scope:
            scope.cancel()
            await rag.add("y", "text")
        assert (await rag.documents(), len(index)) == ([], 0)


@on_shared
async def test_answers_are_finished_when_the_block_is_left(device: Device, tmp_path: Path) -> None:
    go, answers = trio.Event(), []

    async def slow(_: str) -> AsyncIterator[str]:
        await go.wait()
        yield "yes"

    async def ask() -> None:
        answers.append(await rag.ask("is it?"))

    async with trio.open_nursery() as nursery, vectors_at(device, tmp_path) as index:
        async with open_rag(index, tmp_path / "rag.sqlite", embed, slow) as rag:
            nursery.start_soon(ask)
            while not rag.depth():
                await trio.lowlevel.checkpoint()
            go.set()
        assert [answer.text for answer in answers] == ["yes"]
        with pytest.raises(Closed):
            await rag.search("x")


@on_shared
async def test_retrieval_is_an_actor(device: Device, tmp_path: Path) -> None:
    async with (
        open_actor_system("s") as system,
        vectors_at(device, tmp_path) as index,
        open_rag(index, tmp_path / "r", embed, quote, system=system, name="rag") as rag,
    ):
        assert await rag.ref.ask(AddDocument("trio", TEXTS["trio"])) == 1
        assert (await rag.ref.ask(SearchDocuments("trio")))[0].document == "trio"
        assert (await rag.ref.ask(AskDocuments("trio"))).text.startswith("Trio cancels")


@on_shared
async def test_bad_input_of_retrieval_is_refused(device: Device, tmp_path: Path) -> None:
    (tmp_path / "foreign").write_bytes(b"no database, but a text of some length" * 100)
    async with vectors_at(device, tmp_path) as index:
        await refused(FilesForeign, None, open_rag, index, tmp_path / "foreign", embed)
        await refused(
            ValueError, "overlap", open_rag, index, tmp_path / "r", embed, size=10, overlap=5
        )
        await refused(TypeError, "index must be", open_rag, device, tmp_path / "r", embed)
        async with open_rag(index, tmp_path / "r", embed) as rag:
            await rag.add("x", "text")
            with pytest.raises(ValueError, match="new document"):
                await rag.add("x", "text")
            with pytest.raises(ValueError, match="not be blank"):
                await rag.add("y", " \n")
            with pytest.raises(TypeError, match="text must be"):
                await rag.add("y", 3)  # type: ignore[arg-type]
            half = "\ud800"
            for call in (
                lambda: rag.add(half, "text"),
                lambda: rag.add("y", half),
                lambda: rag.remove(half),
                lambda: rag.search(half),
            ):
                with pytest.raises(ValueError, match="must be text without lone surrogates, not"):
                    await call()
            with pytest.raises(ValueError, match="k must be"):
                await rag.search("x", 0)
            for odd in ('"', "a AND NOT (b", "*", "'); DROP TABLE passages; --"):
                assert len(await rag.search(odd)) == 1

        def at_once(texts: list[str]) -> Any:
            return np.zeros((len(texts), index.dimension), np.float32)

        async with open_rag(index, tmp_path / "r", at_once) as rag:
            with pytest.raises(TypeError, match="embed must be an async function, and returned nd"):
                await rag.add("y", "text")


@on_shared
async def test_passages_and_vectors_belong_together(device: Device, tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    async with vectors_at(device, tmp_path) as index:
        async with open_rag(index, file, embed) as rag:
            for name, text in TEXTS.items():
                await rag.add(name, text)
        await refused(FilesForeign, "3 vectors are of no passage", open_rag, index, other, embed)
        async with open_rag(index, file, embed) as rag:
            assert await rag.documents() == [*TEXTS]
            await refused(FilesInUse, None, open_rag, index, file, embed)
    async with vectors_at(device, tmp_path / "fresh") as index:
        await refused(FilesForeign, "3 of its 3 have no vector", open_rag, index, file, embed)
