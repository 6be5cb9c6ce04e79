"""Answers from documents: hybrid search for passages, and a model that writes from them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack, final

import numpy as np
import trio

from .._errors import check_awaitable, said_of
from ..actors import Message, Place, Service, handler, serving
from ..actors.blocks import opens
from ..actors.util import NoPublicConstructor, check_instance
from ..device.data.in_turn import InTurn
from ..patterns import Closed
from ..wire.options import count
from ..wire.options import text as checked_text
from ._errors import FilesForeign, IdUnknown, NameUnknown
from ._passages import Passage, PassageTable, cut
from ._vector_index import VectorIndex

if TYPE_CHECKING:
    import os

_RANK: Final = 60
"""Added to ranks before they are turned over, as is usual for reciprocal rank fusion."""
_WIDER: Final = 4
"""Passages that each of both searches finds, for each one that is wanted."""
_LARGEST_K: Final = 512
_CITED: Final = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class RagAnswer:
    """An answer, and the passages it rests on.

    Attributes:
        text: the answer.
        passages: the passages of the prompt, numbered from 1 there.
        cited: those that the answer cites, as ``[1]``, in the order in which it does first.
    """

    text: str
    passages: tuple[Passage, ...]
    cited: tuple[Passage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RagStatistics:
    """Statistics of retrieval, at one moment.

    Attributes:
        added: documents that were added.
        removed: documents that were removed.
        searches: searches for passages.
        answers: answers that were written to their end.
        in_progress: calls that have begun and not ended.
    """

    added: int
    removed: int
    searches: int
    answers: int
    in_progress: int


class AskDocuments(Message[RagAnswer]):
    """A question by message; see `RagPipeline.ask`."""

    question: str
    k: int = 5


class SearchDocuments(Message[list[Passage]]):
    """A search by message; see `RagPipeline.search`."""

    question: str
    k: int = 5


class AddDocument(Message[int]):
    """A document by message; see `RagPipeline.add`."""

    name: str
    text: str


class AnswerStream:
    """An answer that is being written: ``async for piece in answer`` iterates over its text.

    Attributes:
        prompt: what the model was asked.
        passages: the passages of the prompt.
    """

    def __init__(
        self, prompt: str, passages: tuple[Passage, ...], pieces: AsyncIterator[str]
    ) -> None:
        self.prompt = prompt
        self.passages = passages
        self._pieces = pieces
        self._text: list[str] = []

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        await trio.lowlevel.checkpoint()
        piece = await anext(self._pieces)
        if not isinstance(piece, str):
            raise TypeError(f"generate must yield strings, not {said_of(piece)}")
        self._text.append(piece)
        return piece

    @property
    def so_far(self) -> RagAnswer:
        """The answer until now."""
        text = "".join(self._text)
        numbers = dict.fromkeys(int(found) for found in _CITED.findall(text))
        cited = [self.passages[at - 1] for at in numbers if 0 < at <= len(self.passages)]
        return RagAnswer(text, self.passages, tuple(cited))


def cited_prompt(question: str, passages: Sequence[Passage]) -> str:
    """Return a prompt that has numbered passages, and asks for their numbers in the answer."""
    numbered = "\n\n".join(
        f"[{number}] ({passage.document})\n{passage.text}"
        for number, passage in enumerate(passages, 1)
    )
    return (
        "Answer the question from these passages only. After each statement, cite the passage it "
        "rests on, by its number as in [1]. If they do not tell, say so.\n\n"
        f"{numbered}\n\nQuestion: {question}\nAnswer:"
    )


@final
class RagPipeline(Service, metaclass=NoPublicConstructor):
    """Documents that are searched and answer questions, as `open_rag` returns it.

    Methods raise ``TypeError`` or ``ValueError`` for wrong arguments, `FilesFailed` if the file
    system refuses, and `Closed` once the block was left.
    """

    _made_by = "open_rag"

    def __init__(
        self,
        index: VectorIndex,
        table: PassageTable,
        turns: InTurn,
        embed: Callable[[list[str]], Awaitable[Any]],
        generate: Callable[[str], AsyncIterator[str]] | None,
        prompt: Callable[[str, Sequence[Passage]], str],
        cutting: tuple[int, int],
    ) -> None:
        self._index = index
        self._table = table
        self._turns = turns
        self._embed = embed
        self._generate = generate
        self._prompt = prompt
        self._cutting = cutting
        self._closed = False
        self._changing = trio.Lock()
        self._in_progress = 0
        self._idle = trio.Event()
        self._counts = dict.fromkeys(("added", "removed", "searches", "answers"), 0)

    async def add(self, name: str, text: str) -> int:
        """Add a document. When this returns, searches find it, and it is in the files for good.

        If you are cancelled, it may have been added as a whole, or not at all. The same holds at
        the end of the program.

        Args:
            name: a name that no document has.
            text: its text.

        Returns:
            The number of its passages.

        Raises:
            ValueError: the name is taken, the text is blank, or ``embed`` returned vectors of
                another number or size.
        """
        checked_text(name, "name")
        checked_text(text, "text")
        pieces = [(start, text[start:end]) for start, end in cut(text, *self._cutting)]
        if not pieces:
            raise ValueError("text must say something, not be blank")
        with self._call():
            vectors = await self._embedded([piece for _, piece in pieces])
            async with self._changing:
                # Cancelled halfway it would leave a part, which only the next opening removes.
                with trio.CancelScope(shield=True):
                    ids = await self._turns.run(self._table.add, name, pieces)
                    try:
                        await self._index.insert(ids, vectors)
                        await self._turns.run(lambda: self._table.mark(name, whole=True))
                    except BaseException:
                        await self._erase(name)
                        raise
        self._counts["added"] += 1
        return len(pieces)

    async def remove(self, name: str) -> None:
        """Remove a document.

        Raises:
            NameUnknown: no document has this name.
        """
        checked_text(name, "name")
        with self._call():
            async with self._changing:
                with trio.CancelScope(shield=True):
                    if not await self._turns.run(lambda: self._table.mark(name, whole=False)):
                        raise NameUnknown(f"name must be a document's, not {name!r}")
                    await self._erase(name)
        self._counts["removed"] += 1

    async def documents(self) -> list[str]:
        """Return the names of all documents, in the order in which they were added."""
        with self._call():
            return await self._turns.run(lambda: self._table.names(whole=True))

    async def search(self, question: str, k: int = 5) -> list[Passage]:
        """Find passages by meaning and by words, and join both by their reciprocal ranks.

        Args:
            question: what to look for.
            k: how many to find, up to 512.
        """
        checked_text(question, "question")
        wanted = count(k, "k")
        if wanted > _LARGEST_K:
            raise ValueError(f"k must be at most {_LARGEST_K}, not {wanted}")
        with self._call():
            (vector,) = await self._embedded([question])
            near = await self._index.search(vector, _WIDER * wanted)
            worded = await self._turns.run(self._table.matching, question, _WIDER * wanted)
            scores: dict[int, float] = {}
            for ranked in (near.ids.tolist(), worded):
                for rank, number in enumerate(ranked, 1):
                    scores[number] = scores.get(number, 0.0) + 1 / (_RANK + rank)
            found = await self._turns.run(self._table.read, [*scores])
        self._counts["searches"] += 1
        best = sorted(found, key=lambda number: (-scores[number], number))[:wanted]
        return [replace(found[number], score=scores[number]) for number in best]

    def answering(self, question: str, k: int = 5) -> AbstractAsyncContextManager[AnswerStream]:
        """Stream an answer.

        ::

            async with rag.answering("why?") as answer:
                async for piece in answer:
                    print(piece, end="")

        Args:
            question: the question.
            k: how many passages to answer from.

        Raises:
            TypeError, ValueError, Closed: as `search`; ``generate`` was not given.
        """
        return self._answering(question, k)

    @asynccontextmanager
    async def _answering(self, question: str, k: int) -> AsyncIterator[AnswerStream]:
        if self._generate is None:
            raise ValueError("generate must be given to open_rag, not left out, to write answers")
        with self._call():
            passages = tuple(await self.search(question, k))
            prompt = self._prompt(question, passages)
            pieces: Any = self._generate(prompt)
            if not hasattr(pieces, "__anext__") or not hasattr(pieces, "aclose"):
                raise TypeError(f"generate must be an async generator, not give {said_of(pieces)}")
            async with aclosing(pieces):
                yield AnswerStream(prompt, passages, pieces)

    async def ask(self, question: str, k: int = 5) -> RagAnswer:
        """Return the whole answer. See `answering`."""
        async with self.answering(question, k) as answer:
            async for _ in answer:
                pass  # the stream keeps its text
        self._counts["answers"] += 1
        return answer.so_far

    # --- parts ------------------------------------------------------------------------------

    async def _embedded(self, texts: list[str]) -> Any:
        awaitable = self._embed(texts)
        check_awaitable("embed", awaitable)
        vectors = np.asarray(await awaitable)
        wanted = (len(texts), self._index.dimension)
        if vectors.shape != wanted:
            raise ValueError(f"embed must return vectors of shape {wanted}, not {vectors.shape}")
        return vectors

    async def _erase(self, name: str) -> None:
        """Remove the rest of a document that is not whole."""
        for number in await self._turns.run(self._table.of, name):
            with suppress(IdUnknown):  # the index may not have got it
                await self._index.delete(number)
        await self._turns.run(self._table.remove, name)

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Count a call in progress."""
        if self._closed:
            raise Closed("the documents' block was left")
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1
            if not self._in_progress:
                self._idle.set()

    # --- the service ------------------------------------------------------------------------

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Remove documents that the last program left unfinished, and be ready."""
        async with self._changing:
            with trio.CancelScope(shield=True):
                for name in await self._turns.run(lambda: self._table.names(whole=False)):
                    await self._erase(name)
        task_status.started()
        await trio.sleep_forever()

    async def call(self, item: Any, **options: Any) -> Any:
        """Answer the question of a `Call`. See `ask`."""
        return await self.ask(item, **options)

    async def finish(self) -> None:
        """Wait for the calls in progress."""
        await trio.lowlevel.checkpoint()
        while self._in_progress:
            self._idle = trio.Event()
            await self._idle.wait()
        self._closed = True

    def ended(self, cause: BaseException | None) -> None:  # noqa: ARG002 (callers get `Closed`)
        """Take no more calls."""
        self._closed = True

    def depth(self) -> int:
        """Calls in progress."""
        return self._in_progress

    def statistics(self) -> RagStatistics:
        """Return the statistics of this moment."""
        return RagStatistics(in_progress=self._in_progress, **self._counts)

    @handler
    async def _on_ask(self, message: AskDocuments) -> RagAnswer:
        return await self.ask(message.question, message.k)

    @handler
    async def _on_search(self, message: SearchDocuments) -> list[Passage]:
        return await self.search(message.question, message.k)

    @handler
    async def _on_add(self, message: AddDocument) -> int:
        return await self.add(message.name, message.text)


def _check_together(table: PassageTable, index: VectorIndex, path: object) -> None:
    """Compare the passages with the vectors. Documents that are not whole may lack some."""
    whole, parts = table.ids(whole=True), table.ids(whole=False)
    lacking = sum(number not in index for number in whole)
    others = len(index) - (len(whole) - lacking) - sum(number in index for number in parts)
    if lacking or others:
        raise FilesForeign(
            f"{path} must be of the passages whose vectors the index has; {lacking} of its "
            f"{len(whole)} have no vector there, and {others} vectors are of no passage"
        )


@opens
async def open_rag(
    index: VectorIndex,
    path: str | os.PathLike[str],
    embed: Callable[[list[str]], Awaitable[Any]],
    generate: Callable[[str], AsyncIterator[str]] | None = None,
    *,
    prompt: Callable[[str, Sequence[Passage]], str] = cited_prompt,
    size: int = 1000,
    overlap: int = 100,
    **place: Unpack[Place],
) -> AsyncIterator[RagPipeline]:
    """Open documents that are searched by meaning and by words, and answer questions.

    Documents may be added and removed while it answers. An answer rests on passages of documents
    that were whole when its search ended. Passages and their words are in a SQLite file, and
    vectors in the index; both keep every acknowledged one.

    Args:
        index: an index that nothing else uses, open as long as this.
        path: the SQLite file of passages, made if it is missing; it belongs to this index. One
            block at a time may have it open.
        embed: an async function of n texts, which returns vectors (n, d). A model in a host is
            ``async def embed(texts): return await device.run(model, texts)``.
        generate: an async generator function of the prompt, which yields the answer in pieces.
            Without it there is search only.
        prompt: a function of the question and its passages, which returns the prompt. By default
            one that numbers the passages and asks to cite them.
        size: the most characters of a passage.
        overlap: characters that neighbouring passages share, fewer than half of ``size``.
        **place: ``system=``, ``name=`` and ``parent=``, which make this an actor. It answers
            `AskDocuments`, `SearchDocuments` and `AddDocument`.

    Raises:
        FilesForeign: the file is another program's, or its passages are not those of the index.
        FilesDamaged: the file cannot be read.
        FilesInUse: another block has the file open.
        FilesFailed: the file system refused.
    """
    check_instance("index", index, VectorIndex)
    for name, function in (("embed", embed), ("prompt", prompt)):
        if not callable(function):
            raise TypeError(f"{name} must be a function, not {function!r}")
    if generate is not None and not callable(generate):
        raise TypeError(f"generate must be an async generator function, not {generate!r}")
    most, shared = count(size, "size", least=2), count(overlap, "overlap", least=0)
    if shared >= most // 2:
        raise ValueError(f"overlap must be below half of size, {most // 2}, not {shared}")
    turns = InTurn()
    table = await turns.run(PassageTable, Path(path))
    try:
        await turns.run(_check_together, table, index, path)
        rag: RagPipeline = RagPipeline.construct(
            index, table, turns, embed, generate, prompt, (most, shared)
        )
        async with serving(rag, **place):
            yield rag
    finally:
        with trio.CancelScope(shield=True):
            await turns.run(table.close)
