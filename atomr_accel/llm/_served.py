"""Language models that answer requests for tokens, and go on after faults of the device."""

from __future__ import annotations

import secrets
import signal
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Unpack, final

import numpy as np
import trio

from .._errors import ContextPoisoned, DeviceLost, GpuRefStale, OutOfMemory, Unsupported, said_of
from ..actors import Place, Service, serving
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import NoPublicConstructor, check_instance
from ..device import Device
from ..patterns import Closed, Overloaded, WrongResults, is_transient
from ..wire.options import flag, several, whole
from ._folder import ModelFolder, load_folder
from ._model import LlamaModel
from ._request_errors import GrammarInvalid, RequestAtFault
from ._request_stream import Chosen, TokenStream, Wakes
from ._requests import TokenPiece, TokenRequest
from ._sampler import (
    GrammarCompiler,
    TokenSampler,
    check_sampling,
)
from ._scheduler import Scheduler, SequenceState

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from tokenizers import Tokenizer

    from ._model import Progress
    from ._steps import Runner, StepLogits, StepSlice, StepWork

_IN_THREAD: Final = 1 << 16
"""Logits of a step beyond which tokens are chosen in a thread."""

_SECONDS: Final = 10
"""Seconds that ``tokens_per_second`` is a mean of."""

_OUTSIDE: Final = 3
"""Steps in a row that may fail from outside before the fault is one of theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelStatistics:
    """A language model at one moment.

    Attributes:
        requests: streams that were begun.
        waiting: streams that wait for memory or for their turn.
        running: streams that are computed.
        finished: streams that came to their end.
        aborted: streams that were left early, or whose deadlines passed.
        failed: streams that ended with an error.
        refused: requests that found no room, or came after the end.
        tokens: tokens that were generated.
        tokens_per_second: the mean of the last ten seconds.
        prompt_tokens: tokens of prompts that were looked up in the prefix cache.
        cache_hits: tokens of prompts that were found there.
        pages: pages of the cache.
        page_size: tokens of a page.
        pages_used: pages of running streams.
        pages_cached: further pages whose content may be reused.
        steps: steps that were computed.
        preemptions: number of times that a stream lost its pages to another one.
        faults: steps that failed.
        recomputed: tokens that were computed again, after preemptions and faults.
        kept: tokens that a durable cache has kept, added up over all faults. Those that streams
            share count once.
        suspects: streams that failed steps had, and that have not got as far since.
        recovering: True from a failed step to the next one that is done.
        draining: True if no more requests are taken.
        durable_cache: True if the cache survives faults. Otherwise they lose all of it.
    """

    requests: int
    waiting: int
    running: int
    finished: int
    aborted: int
    failed: int
    refused: int
    tokens: int
    tokens_per_second: float
    prompt_tokens: int
    cache_hits: int
    pages: int
    page_size: int
    pages_used: int
    pages_cached: int
    steps: int
    preemptions: int
    faults: int
    recomputed: int
    kept: int
    suspects: int
    recovering: bool
    draining: bool
    durable_cache: bool


@final
class LanguageModel(Service, metaclass=NoPublicConstructor):
    """A language model that answers requests, as `open_language_model` returns it.

    Attributes:
        device: the device of the model.
        name: its name.
        context: the most tokens of a prompt and its answer.
        vocabulary: the number of tokens.
        end_tokens: tokens that end a text.
    """

    _made_by = "open_language_model"

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        device: Device,
        *,
        name: str,
        tokenizer: Tokenizer | None,
        end_tokens: frozenset[int],
        folder: Any,
    ) -> None:
        self.device: Final = device
        self.name: Final = name
        self.context: Final = scheduler.longest
        self.vocabulary: Final = runner.vocabulary
        self.end_tokens: Final = end_tokens
        self._runner = runner
        self._chooses = hasattr(runner, "choose")
        self._durable: Final[bool] = getattr(runner, "durable", False)
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._folder = folder
        self._compiler: GrammarCompiler | None = None
        self._streams: dict[int, TokenStream] = {}
        self._wakes = Wakes()
        self._work = trio.Event()
        self._empty = trio.Event()
        self._lived = False
        self._outside = 0
        self._recovering = False
        self._closed: Exception | None = None
        self._draining = False
        self._counts = dict.fromkeys(
            ("requests", "finished", "aborted", "failed", "refused", "tokens"), 0
        )
        self._lately: deque[list[int]] = deque()  # seconds and their tokens

    # --- for callers

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, of the package ``tokenizers``.

        Raises:
            Unsupported: it has none.
        """
        if self._tokenizer is None:
            raise Unsupported(f"{self.name} has no tokenizer; open it with tokenizer=...")
        return self._tokenizer

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[int, ...]:
        """Return messages as tokens, by the chat template of the model's folder.

        Args:
            messages: mappings with ``role`` and ``content``.
            tools: functions that the model may call, in OpenAI's form.

        Raises:
            ChatRefused: the template refuses the messages.
            Unsupported: the model has no chat template.
        """
        if self._folder is None:
            raise Unsupported(f"{self.name} has no chat template; pass a prompt instead")
        found: tuple[int, ...] = self._folder.render(messages, tools=tools)
        return found

    @asynccontextmanager
    async def generate(self, request: TokenRequest) -> AsyncIterator[AsyncIterator[TokenPiece]]:
        """Generate tokens: ``async with model.generate(request) as pieces:``.

        ``async for piece in pieces:`` gives one piece for each token; the last one has ``finish``.
        Pieces are kept until they are taken. Leaving the block early ends the request at once. The
        deadline of the scopes around is the request's.

        After a fault of the device the stream goes on as if nothing had happened.

        Args:
            request: the prompt and options.

        Raises:
            PromptTooLong: the prompt has no room in the context or in the cache.
            GrammarInvalid: the grammar does not compile, or the model has no end tokens. From the
                stream: it has become too large, or nothing can follow the text.
            Overloaded: too many requests wait.
            Closed: the model is drained, or its block was left.
            RequestAtFault: from the stream: steps with this request fail.
            DeviceLost: from the stream: the device will not come back.
            TooSlowError: from the stream: the deadline has passed.
        """
        check_instance("request", request, TokenRequest)
        check_instance("key", request.key, str)
        check_sampling(request.sampling, self.vocabulary, texts=self._tokenizer is not None)
        prompt, most = several(request.prompt, "prompt"), self.vocabulary
        if not all(type(token) is int and 0 <= token < most for token in prompt):
            prompt = tuple(whole(token, "a token of prompt", 0, most - 1) for token in prompt)
        grammar = None
        if request.sampling.grammar is not None:
            compiler = await self._grammars()
            grammar = await trio.to_thread.run_sync(compiler.compile, request.sampling.grammar)
        await trio.lowlevel.checkpoint()
        sampling = request.sampling
        if self._draining or self._closed is not None:
            self._counts["refused"] += 1
            raise Closed(f"{self.name} takes no more requests") from self._closed
        try:
            sequence = self._scheduler.submit(
                prompt,
                most=sampling.max_tokens,
                priority=whole(request.priority, "priority"),
                key=request.key,
                deadline=trio.current_effective_deadline(),
                scores=sampling.prompt_logprobs is not None,
            )
        except Overloaded:
            self._counts["refused"] += 1
            raise
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        sampler = TokenSampler(sampling, prompt, seed, grammar)
        stream = TokenStream(request, sequence, sampler, self._tokenizer)
        if not self._streams:
            self._empty = trio.Event()
        self._streams[sequence.number] = stream
        self._counts["requests"] += 1
        self._work.set()
        try:
            yield stream
        finally:
            if sequence.number in self._streams:
                self._scheduler.abort(sequence)
                self._end(stream, "aborted")
            stream.fail(Closed("the stream is closed: its block was left"))

    async def _grammars(self) -> GrammarCompiler:
        if self._compiler is None:
            if not self.end_tokens:
                raise GrammarInvalid(
                    "grammar must be left out for a model without end_tokens, not given"
                )
            self._compiler = await trio.to_thread.run_sync(
                GrammarCompiler, self.tokenizer, self.vocabulary, sorted(self.end_tokens)
            )
        return self._compiler

    async def drain(self) -> None:
        """Take no more requests, and wait for the end of those in progress."""
        self._draining = True
        await self.finish()

    def statistics(self) -> LanguageModelStatistics:
        """The model at this moment."""
        scheduled = self._scheduler.statistics()
        self._forget_seconds()
        return LanguageModelStatistics(
            **self._counts,
            waiting=scheduled.waiting,
            running=scheduled.running,
            tokens_per_second=sum(each[1] for each in self._lately) / _SECONDS,
            prompt_tokens=scheduled.prompt_tokens,
            cache_hits=scheduled.cache_hits,
            pages=scheduled.pages,
            page_size=self._runner.page_size,
            pages_used=scheduled.pages_used,
            pages_cached=scheduled.pages_cached,
            steps=scheduled.steps,
            preemptions=scheduled.preemptions,
            faults=scheduled.faults,
            recomputed=scheduled.recomputed,
            kept=scheduled.kept,
            suspects=scheduled.suspects,
            recovering=self._recovering,
            draining=self._draining or self._closed is not None,
            durable_cache=self._durable,
        )

    # --- as a service

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Do steps as long as there are sequences."""
        scheduler = self._scheduler
        task_status.started()
        if self._lived:  # an earlier life may have ended before it had added the tokens of a step
            scheduler.failed(lost=True, kept=await self._kept(), blame=False)
        self._lived = True
        async with PlainNursery() as nursery:
            nursery.start_soon(self._wakes.serve)
            while True:
                self._expire()
                work = scheduler.plan()
                if work is None:
                    self._recovering = False  # a new request may try again
                    self._work = trio.Event()
                    await self._work.wait()
                    continue
                await self._step(work)

    async def finish(self) -> None:
        """Wait for the streams in progress; no more are taken."""
        self._draining = True
        await trio.lowlevel.checkpoint()
        while self._streams:
            await self._empty.wait()

    def ended(self, cause: BaseException | None) -> None:
        """End all streams."""
        error: Exception
        if isinstance(cause, DeviceLost):
            error = cause
        else:
            error = Closed(f"the block of {self.name} was left")
            error.__cause__ = cause
        if self._closed is None:
            self._closed = error
        for stream in list(self._streams.values()):
            self._scheduler.abort(stream.sequence)
            stream.fail(error)
            self._end(stream, "failed")

    async def call(self, item: Any, **options: Any) -> tuple[TokenPiece, ...]:
        """Answer a request with all pieces of its stream."""
        if options:
            raise TypeError(f"a TokenRequest must come without options, not with {[*options]}")
        async with self.generate(item) as pieces:
            return tuple([piece async for piece in pieces])

    def depth(self) -> int:
        """Streams in progress."""
        return len(self._streams)

    # --- steps

    async def _step(self, work: StepWork) -> None:
        try:
            logits, tokens = await self._computed(work)
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 (it ends one request, or is gone the next time)
            await self._failed(error)
            await trio.lowlevel.checkpoint()
            return
        self._scheduler.computed()
        self._recovering = False
        # Not while suspects are tried, or each trial that fails would begin to doubt anew.
        if not self._scheduler.statistics().suspects:
            self._outside = 0
        parts = []
        at = 0
        for piece in work.slices:
            number = piece.rows
            if number and (stream := self._streams.get(piece.sequence)) is not None:
                rows = None if logits is None else logits[at : at + number]
                parts.append((stream, piece, rows, tokens.get(piece.sequence)))
            at += number
        # A grammar may take a second to follow a token, and to find those that may come next.
        grammars = any(each[0].request.sampling.grammar is not None for each in parts)
        if grammars or (logits is not None and logits.size > _IN_THREAD):
            taken = await trio.to_thread.run_sync(_take_all, parts)
        else:
            taken = _take_all(parts)
            await trio.lowlevel.checkpoint()
        before = self._counts["tokens"]
        for (stream, piece, *_), chosen in zip(parts, taken, strict=True):
            self._add(stream, piece, chosen)
        self._count_lately(self._counts["tokens"] - before)

    async def _computed(self, work: StepWork) -> tuple[StepLogits | None, dict[int, int]]:
        """Do a step, and return logits if they are needed, and tokens by sequence.

        The device chooses the tokens of requests for which that is possible, in any step.
        """
        runner: Any = self._runner
        if not self._chooses:
            return self._checked(work, await runner.step(work)), {}
        rows, numbers, needed = [], [], False
        sequences = []
        at = 0
        for piece in work.slices:
            stream = self._streams.get(piece.sequence) if piece.rows else None
            if stream is not None:
                choice = stream.choice(piece)
                if choice is None:
                    needed = True
                else:
                    rows.append(at)
                    numbers.append(choice)
                    sequences.append(piece.sequence)
            at += piece.rows
        choices = np.zeros((at, 2))
        if rows:
            choices[rows] = numbers
        tokens, logits = await runner.choose(work, choices, logits=needed)
        if needed:
            self._checked(work, logits)
        return logits, dict(zip(sequences, tokens[rows].tolist(), strict=True))

    def _checked(self, work: StepWork, logits: StepLogits) -> StepLogits:
        wanted = sum(piece.rows for piece in work.slices), self.vocabulary
        if np.shape(logits) != wanted:
            raise WrongResults(
                f"a step must give logits of shape {wanted}, not {np.shape(logits)}",
                expected=wanted[0],
                got=len(logits),
            )
        return logits

    def _add(self, stream: TokenStream, piece: StepSlice, chosen: Chosen | Exception) -> None:
        sequence = stream.sequence
        if sequence.state is SequenceState.ENDED:  # while tokens were chosen
            return
        try:
            if isinstance(chosen, Exception):
                raise chosen
            scores, choice = chosen
            if piece.every:
                stream.add_scores(scores)
                self._scheduler.score(sequence, piece.start + len(piece.tokens))
            if choice is not None:
                stream.add(choice, self.end_tokens)
            self._wakes.add(stream)
        except Exception as error:  # noqa: BLE001 (it is the request's answer)
            self._scheduler.abort(sequence)
            stream.fail(error)
            self._end(stream, "failed")
            return
        if choice is not None:
            self._counts["tokens"] += 1
            self._scheduler.append(sequence, choice.token)
        if stream.finish is not None:
            self._scheduler.finish(sequence)
            self._end(stream, "finished")

    async def _failed(self, error: Exception) -> None:
        self._recovering = True
        scheduler = self._scheduler
        if _from_outside(error) and self._outside < _OUTSIDE:
            self._outside += 1
            scheduler.failed(lost=True, kept=await self._kept(), blame=False)
            return
        lost = is_transient(error)
        kept = await self._kept() if lost else None
        guilty = scheduler.failed(lost=lost, kept=kept, smaller=isinstance(error, OutOfMemory))
        if guilty is None:
            return
        stream = self._streams[guilty.number]
        told = RequestAtFault(f"steps with this request fail, also without any other one: {error}")
        told.__cause__ = error
        stream.fail(told)
        self._end(stream, "failed")

    async def _kept(self) -> Sequence[int] | None:
        """Return what a durable cache has kept, page by page; None if nothing is left."""
        if not self._durable:
            return None
        runner: Any = self._runner
        try:
            kept: Sequence[int] = np.asarray(await runner.recover()).tolist()
        except (ContextPoisoned, GpuRefStale):  # the next step finds out whether it is over
            return None
        return kept

    def _expire(self) -> None:
        for sequence in self._scheduler.expire(trio.current_time()):
            stream = self._streams[sequence.number]
            stream.fail(trio.TooSlowError("the deadline of the request has passed"))
            self._end(stream, "aborted")

    def _end(self, stream: TokenStream, how: str) -> None:
        del self._streams[stream.sequence.number]
        self._counts[how] += 1
        if not self._streams:
            self._empty.set()

    # --- counts

    def _count_lately(self, tokens: int) -> None:
        now = int(trio.current_time())
        if not self._lately or self._lately[-1][0] != now:
            self._forget_seconds()
            self._lately.append([now, 0])
        self._lately[-1][1] += tokens

    def _forget_seconds(self) -> None:
        now = trio.current_time()
        while self._lately and self._lately[0][0] < now - _SECONDS:
            self._lately.popleft()


def _from_outside(error: Exception) -> bool:
    """Return whether a step may not have caused its failure.

    Another op's fault had emptied its cache, another process has killed the host, or another task
    had an op in flight.
    """
    if isinstance(error, GpuRefStale):
        return True
    if type(error) is not ContextPoisoned:  # a step that hangs is told by itself
        return False
    if error.status == -signal.SIGKILL:
        return True
    report, own = error.report, trio.lowlevel.current_task().name
    if report is None:
        return False
    suspects = () if report.certain else report.in_flight
    # Ops of a batch have no task. They count as the step's.
    return any(op.task not in {None, own} for op in (report.op, *suspects) if op is not None)


def _take_all(
    parts: list[tuple[TokenStream, StepSlice, Any, int | None]],
) -> list[Chosen | Exception]:
    return [stream.take(piece, rows, token) for stream, piece, rows, token in parts]


def _checked_runner(runner: Any) -> Runner:
    for name in ("pages", "page_size", "vocabulary", "context", "step"):
        if not hasattr(runner, name):
            raise TypeError(
                f"folder_or_runner must be a folder or a Runner, not {said_of(runner)}, which "
                f"has no {name}"
            )
    found: Runner = runner
    return found


@opens
async def open_language_model(
    device: Device,
    folder_or_runner: str | PathLike[str] | ModelFolder | Runner,
    *,
    model_name: str | None = None,
    tokenizer: Tokenizer | None = None,
    end_tokens: Sequence[int] | None = None,
    pages: int | None = None,
    page_size: int = 16,
    dtype: DTypeLike | None = None,
    invariant: bool = True,
    durable: bool = False,
    progress: Progress | None = None,
    step_tokens: int = 2048,
    step_sequences: int = 256,
    most_waiting: int = 1024,
    weights: Mapping[str, float] | None = None,
    prefix_cache: bool = True,
    **place: Unpack[Place],
) -> AsyncIterator[LanguageModel]:
    """Open a language model on a device for the length of a block.

    Leaving the block waits for the streams in progress. Open the device with an ``op_deadline``, or
    a step that hangs is waited for without end.

    Args:
        device: the device of the model.
        folder_or_runner: a folder in Hugging Face's form, or a model that does steps.
        model_name: the model's name; by default the folder's.
        tokenizer: of the package ``tokenizers``; by default the folder's.
        end_tokens: tokens that end a text; by default the folder's.
        pages: pages of a folder's cache; by default as many as there is room for.
        page_size: tokens of a page of a folder's cache.
        dtype: the dtype of a folder's weights and cache, see `LlamaModel.load`.
        invariant: whether tokens of a folder's model are independent of the batch.
        durable: whether a folder's cache survives faults, so that streams continue with the tokens
            that digests prove. A runner has a durable cache if it was loaded with one.
        progress: called with the bytes that were loaded from a folder, and all.
        step_tokens: the most tokens of a step.
        step_sequences: the most sequences of a step; fewer than ``step_tokens``.
        most_waiting: the most requests that wait before their first step. More are refused.
        weights: shares of keys of requests; 1 for others.
        prefix_cache: whether requests with the same beginning share its pages.
        **place: ``system=``, ``name=`` and ``parent=``, which make this an actor. It answers `Call`
            with a `TokenRequest`, by all of its pieces.

    Raises:
        ModelFolderBroken: the folder is damaged.
        Unsupported: the folder's architecture is not supported; or ``durable`` is set, and the
            device is isolated in a thread, or its platform cannot export device memory.
        OutOfMemory: no room for weights and cache.
    """
    check_instance("device", device, Device)
    if weights is not None:
        check_instance("weights", weights, Mapping)
    folder: ModelFolder | None = None
    if isinstance(folder_or_runner, (str, PathLike)):
        folder = await trio.to_thread.run_sync(load_folder, folder_or_runner)
    elif isinstance(folder_or_runner, ModelFolder):
        folder = folder_or_runner
    if folder is None:
        if flag(durable, "durable"):
            raise ValueError(
                "durable must be left out with a runner, not True; load it with "
                "LlamaModel.load(..., durable=True)"
            )
        runner = _checked_runner(folder_or_runner)
    else:
        runner = await LlamaModel.load(
            device,
            folder,
            pages=pages,
            page_size=page_size,
            dtype=dtype,
            invariant=invariant,
            durable=durable,
            progress=progress,
        )
        model_name = folder.name if model_name is None else model_name
        tokenizer = folder.tokenizer if tokenizer is None else tokenizer
        end_tokens = folder.end_tokens if end_tokens is None else end_tokens
    scheduler = Scheduler(
        pages=runner.pages,
        page_size=runner.page_size,
        context=runner.context,
        step_tokens=step_tokens,
        step_sequences=step_sequences,
        most_waiting=most_waiting,
        weights=weights,
        prefix_cache=prefix_cache,
    )
    ends = [
        whole(each, "a token of end_tokens", 0, runner.vocabulary - 1) for each in end_tokens or ()
    ]
    model: LanguageModel = LanguageModel.construct(
        runner,
        scheduler,
        device,
        name="model" if model_name is None else model_name,
        tokenizer=tokenizer,
        end_tokens=frozenset(ends),
        folder=folder,
    )
    async with serving(model, **place):
        yield model
