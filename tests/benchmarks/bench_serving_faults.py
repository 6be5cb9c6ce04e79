"""A language model with random weights, served in this process: what faults cost its streams.

The model is that of `bench_serving_llm.py`, or a tiny one without a GPU, which only shows that the
program runs.

    python tests/benchmarks/bench_serving_faults.py
    python tests/benchmarks/bench_serving_faults.py --parts storm,poisoned

- ``faults``: all streams run without a fault, then again with SIGKILL of the host in the middle.
- ``storm``: streams of mixed lengths run, and a new one begins for each that ends; first without
  faults, then with one every ten seconds, SIGKILL of the host and a fault of the device in turn.
- ``poisoned``: one request faults the device whenever its prompt is computed.
- ``http``: event streams of the server, with SIGKILL of the host in the middle.

All but ``faults`` have a durable cache. A part that fails prints its error, and the others go on;
none takes more than ``--seconds``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import h11
import numpy as np
import trio
from bench_serving_llm import (
    ON_CUDA,
    ServingSizes,
    load_model,
    open_serving,
    parsed_options,
    run_parts,
    stream_all,
)

from atomr_accel import Device
from atomr_accel.llm import (
    LanguageModel,
    LanguageModelServer,
    LlamaModel,
    RequestAtFault,
    SamplingOptions,
    StepChoices,
    StepLogits,
    StepTokens,
    StepWork,
    TokenRequest,
    open_language_model,
    serve_language_model,
)
from atomr_accel.testing import FaultName, poison, standby_ready
from atomr_accel.testing._faults import simulate, source_of

PLACE: Final = 3
"""Position of the marker in the poisoned prompt. Generated tokens come behind it."""
FEWEST_SECONDS: Final = 3.0
"""Seconds of a storm that have to be left for one more fault."""


@dataclass(frozen=True)
class FaultSizes:
    """Sizes of the parts.

    Attributes:
        faults: numbers of streams of ``faults``.
        prompt: tokens of prompts of ``faults``, ``poisoned`` and ``http``.
        answer: generated tokens of these.
        streams: streams of ``storm`` at a time.
        prompts: shortest and longest prompts of ``storm``, log-uniform between them.
        answers: fewest and most tokens that its streams generate, in the same way.
        clean: seconds of ``storm`` without faults, from the time when all streams have begun.
        most: the most seconds of a part's runs. What there is by then is printed.
        every: seconds from a fault to the next one.
        first: seconds before the first one.
        poisoned: streams of ``poisoned``.
        http: streams of ``http``.
    """

    faults: tuple[int, ...] = (64, 256)
    prompt: int = 256
    answer: int = 128
    streams: int = 256
    prompts: tuple[int, int] = (16, 6000)
    answers: tuple[int, int] = (64, 1024)
    clean: float = 8.0
    most: float = 41.0
    every: float = 10.0
    first: float = 3.0
    poisoned: int = 256
    http: int = 32


SMALL_FAULTS: Final = FaultSizes(
    faults=(8,),
    prompt=16,
    answer=16,
    streams=8,
    prompts=(16, 600),
    answers=(16, 200),
    clean=3.0,
    most=18.0,
    poisoned=8,
    http=8,
    every=4.0,
)


@dataclass
class StormStream:
    """A stream of a storm.

    Attributes:
        number: what its prompt and its seed follow from.
        tokens: its tokens so far.
        times: when they came.
        ended: whether it has come to its end.
    """

    number: int
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    ended: bool = False


@dataclass
class StormFault:
    """A fault of a storm.

    Attributes:
        name: its kind.
        when: when it was caused.
        kept: tokens that were kept before, after all faults.
        recomputed: tokens that had been computed again before.
    """

    name: str
    when: float
    kept: int
    recomputed: int


class Storm:
    """Streams of mixed lengths, always as many.

    Attributes:
        streams: all that have begun.
        lost: errors of streams.
        begun: set when all places have a stream that has begun, or was lost.
        first: when the first streams were submitted.
        since: when all had begun.
        until: when the time was over.
    """

    def __init__(self, model: LanguageModel, size: FaultSizes, laps: int = 1 << 62) -> None:
        """Make one.

        Args:
            model: the model.
            size: the sizes.
            laps: number of streams after which numbers begin anew.
        """
        self.model = model
        self.streams: list[StormStream] = []
        self.lost: list[str] = []
        self.begun = trio.Event()
        self.first = self.since = self.until = 0.0
        self._size = size
        self._laps = laps
        self._waiting = size.streams

    def _request(self, number: int) -> TokenRequest:
        rng = np.random.default_rng(number)
        prompt, answer = (
            int(math.exp(rng.uniform(math.log(low), math.log(high))))
            for low, high in (self._size.prompts, self._size.answers)
        )
        return TokenRequest(
            prompt=tuple(rng.integers(self.model.vocabulary, size=prompt).tolist()),
            sampling=SamplingOptions(
                temperature=1.0, seed=number, max_tokens=answer, ignore_eos=True
            ),
        )

    def _note_begun(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self.begun.set()

    async def _one_place(self) -> None:
        """Run one stream after the other, until one is lost."""
        waited = True
        while True:
            stream = StormStream(len(self.streams) % self._laps)
            self.streams.append(stream)
            try:
                async with self.model.generate(self._request(stream.number)) as pieces:
                    async for piece in pieces:
                        stream.times.append(time.perf_counter())
                        stream.tokens.append(piece.token)
                        if waited:
                            waited = False
                            self._note_begun()
                stream.ended = True
            except Exception as error:  # noqa: BLE001 (it is counted)
                self.lost.append(repr(error)[:200])
                if waited:
                    self._note_begun()
                return

    async def run(self, during: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Run streams until a function returns, which is called when all have begun."""
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                self.first = self.since = time.perf_counter()
                for _ in range(self._size.streams):
                    nursery.start_soon(self._one_place)
                await self.begun.wait()
                self.since = time.perf_counter()
                await during()
                nursery.cancel_scope.cancel()
        self.until = time.perf_counter()

    def rate(self) -> float:
        """Return generated tokens per second, since all had begun."""
        came = sum(when > self.since for each in self.streams for when in each.times)
        return came / (self.until - self.since)

    def gaps(self) -> np.ndarray:
        """Milliseconds between tokens, since all had begun."""
        parts = [np.diff([t for t in each.times if t > self.since]) for each in self.streams]
        return np.concatenate(parts) * 1e3

    def describe(self, name: str) -> float:
        """Print what there is of a run, and return the usual gap."""
        told, gaps = self.model.statistics(), self.gaps()
        ended = sum(each.ended for each in self.streams)
        usual = float(np.median(gaps)) if len(gaps) else math.nan
        spread = np.percentile(gaps, (99, 100)) if len(gaps) else (math.nan, math.nan)
        print(
            f"  {name}: {self.since - self.first:.1f} s until all had begun, then "
            f"{self.rate():,.0f} tokens/s for {self.until - self.since:.1f} s; "
            f"{len(self.streams)} streams, {ended} to their ends, lost {len(self.lost)}; between "
            f"tokens p50 {usual:.2f}, p99 {spread[0]:.2f}, max {spread[1]:.2f} ms; preemptions "
            f"{told.preemptions}, {told.prompt_tokens:,} tokens of prompts",
            flush=True,
        )
        for error in self.lost[:3]:
            print(f"       {error}", flush=True)
        return usual


def equal_so_far(streams: list[StormStream], clean: list[StormStream]) -> str:
    """Compare streams with those of a run without faults, as far as both have come."""
    known = {each.number: each for each in clean}
    compared = [
        (each, known[each.number]) for each in streams if each.tokens and known[each.number].tokens
    ]
    equal = whole = tokens = 0
    for one, other in compared:
        both = min(len(one.tokens), len(other.tokens))
        same = one.tokens[:both] == other.tokens[:both]
        ended = one.ended and other.ended
        equal += same and (not ended or len(one.tokens) == len(other.tokens))
        whole += ended
        tokens += both
    return (
        f"equal {equal} of {len(compared)}, {whole} of them to their ends, {tokens:,} tokens "
        "compared"
    )


@dataclass
class NotedFault:
    """Times of a fault that a step has met.

    Attributes:
        streams: streams of the step.
        cached: tokens of running streams that the cache had.
        noticed: when the step failed.
        ready: when the device was ready again.
        verified: when the cache was compared with its digests.
    """

    streams: int
    cached: int
    noticed: float
    ready: float = math.nan
    verified: float = math.nan

    def describe(self, when: float, times: list[list[float]]) -> str:
        """Return how long each stage took, up to the next token of any stream."""
        came = min((at for each in times for at in each if at > self.noticed), default=math.nan)
        ends = self.noticed, self.ready, self.verified, came
        stages = zip(("noticed", "ready", "verified", "a token"), (when, *ends), ends, strict=False)
        parts = ", ".join(f"{name} {(b - a) * 1e3:.1f}" for name, a, b in stages)
        return f"{(came - when) * 1e3:.1f} ms to the next token ({parts})"


class NotedRunner:
    """A model with a durable cache that notes its faults.

    Attributes:
        faults: those that steps have met.
        failed: set when a step has met one.
        model: the language model that has the streams.
    """

    model: LanguageModel

    def __init__(self, model: LlamaModel, marker: int | None = None) -> None:
        """Make one.

        Args:
            model: the model.
            marker: a token that faults the device whenever it is computed at ``PLACE``.
        """
        self.faults: list[NotedFault] = []
        self.failed = trio.Event()
        self._model = model
        self._marker = marker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def step(self, work: StepWork) -> StepLogits:
        """Do a step."""
        with self._noted(work):
            await self._fault(work)
            return await self._model.step(work)

    async def choose(self, work: StepWork, choices: StepChoices, *, logits: bool) -> StepTokens:
        """Do a step, and choose tokens."""
        with self._noted(work):
            await self._fault(work)
            return await self._model.choose(work, choices, logits=logits)

    async def recover(self) -> Any:
        """Find out which positions the cache has kept."""
        await self._model.device.core.ready()
        fault = self.faults[-1]
        fault.ready = time.perf_counter()
        kept = await self._model.recover()
        fault.verified = time.perf_counter()
        return kept

    @contextmanager
    def _noted(self, work: StepWork) -> Iterator[None]:
        try:
            yield
        except Exception:
            running = self.model._scheduler._running
            cached = sum(max(each.computed, each.stored) for each in running)
            self.faults.append(NotedFault(len(work.slices), cached, time.perf_counter()))
            if self._marker is not None:
                print(f"    fault {len(self.faults)}, {len(work.slices)} streams", flush=True)
            self.failed.set()
            raise

    async def _fault(self, work: StepWork) -> None:
        for piece in work.slices:
            at = PLACE - piece.start
            if 0 <= at < len(piece.tokens) and piece.tokens[at] == self._marker:
                raise await poison(self._model.device, "trap")

    def since(self, when: float) -> NotedFault:
        """Return the first fault after a time; one without times if no step has met it."""
        found = (each for each in self.faults if each.noticed > when)
        return next(found, NotedFault(0, 0, math.nan))


@dataclass
class EventStream:
    """Answer of the server as a stream.

    Attributes:
        status: its status code.
        texts: texts of events.
        times: when they came.
    """

    status: int = 0
    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    async def ask(
        self, port: int, body: dict[str, Any], note: Callable[[], None] = lambda: None
    ) -> None:
        """Ask for a completion, and take its events.

        Args:
            port: the server's port on this machine.
            body: the request.
            note: called after each event with text.
        """
        data = json.dumps(body).encode()
        headers = [
            ("host", f"127.0.0.1:{port}"),
            ("content-type", "application/json"),
            ("content-length", str(len(data))),
            ("connection", "close"),
        ]
        client = h11.Connection(h11.CLIENT)
        request = h11.Request(method="POST", target="/v1/completions", headers=headers)
        sent = [request, h11.Data(data), h11.EndOfMessage()]
        left = b""
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"".join(client.send(each) or b"" for each in sent))
            while True:
                event = client.next_event()
                if event is h11.NEED_DATA:
                    client.receive_data(await stream.receive_some())
                elif isinstance(event, h11.Response):
                    self.status = event.status_code
                elif isinstance(event, h11.Data):
                    *events, left = (left + event.data).split(b"\n\n")
                    for each in events:
                        self._add(each.removeprefix(b"data: "), note)
                elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                    return

    def _add(self, data: bytes, note: Callable[[], None]) -> None:
        if data == b"[DONE]" or not data.startswith(b"{"):
            return
        event = json.loads(data)
        text = "".join(each["text"] for each in event.get("choices", ())) or event.get("error")
        if text:
            self.texts.append(str(text))
            self.times.append(time.perf_counter())
            note()


class FaultBenchmark:
    """Parts of the benchmark on one device."""

    def __init__(
        self, device: Device, serving: ServingSizes, size: FaultSizes, folder: Path
    ) -> None:
        self.device = device
        self.serving = serving
        self.size = size
        self.folder = folder
        self.models: dict[str, LlamaModel] = {}

    async def load(self, *, plain: bool) -> None:
        """Load the model with a durable cache, and before that with a plain one if wanted."""
        for name, durable in (("plain", False), ("durable", True)):
            if durable or plain:
                self.models[name] = await load_model(
                    self.device, self.folder, self.serving, durable=durable
                )
        # So that the faults need not wait for their compilation.
        kinds: tuple[FaultName, ...] = ("illegal_address", "trap")
        for kind in kinds:
            await self.device.nvrtc.compile(source_of(kind), "fault", cpu=partial(simulate, kind))

    async def _standby(self) -> None:
        with trio.fail_after(30):
            await standby_ready(self.device)

    def _kill(self) -> float:
        """Kill the host, and return when."""
        pid = self.device.statistics().host_pid
        assert pid is not None
        when = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        return when

    # --- one fault

    async def faults(self) -> None:
        """Streams without a fault, and again with one."""
        for name, model in self.models.items():
            print(f"  {name} cache", flush=True)
            for number in self.size.faults:
                await self._faults(model, number)

    async def _faults(self, runner: LlamaModel, number: int) -> None:
        size = self.size
        async with open_language_model(self.device, runner) as model:
            whole = await stream_all(model, number, size.prompt, size.answer, temperature=1.0)
        await self._standby()
        killed = [0.0, 0.0]

        async with open_language_model(self.device, runner) as model:

            async def kill(found: Any) -> None:
                await found.halfway.wait()
                # The last token of each is computed by the next step.
                killed[1] = sum(size.prompt + len(each) - 1 for each in found.tokens)
                killed[0] = self._kill()

            found = await stream_all(
                model, number, size.prompt, size.answer, temperature=1.0, meanwhile=kill
            )
            told = model.statistics()
        when, cached = killed
        pauses = found.pauses(when)
        largest = max(pauses)[0]
        # A step that was done before the fault may still have its tokens on the way.
        resumed = min(later for pause, later in pauses if pause > largest / 2)
        equal = sum(a == b for a, b in zip(found.tokens, whole.tokens, strict=True))
        print(
            f"  {number:4} streams: lost {len(found.lost)}, equal {equal} of {number}; "
            f"SIGKILL to the next token {(resumed - when) * 1e3:.1f} ms, longest pause "
            f"{largest:.1f} ms, otherwise p50 {np.median(whole.gaps()):.2f} ms; "
            f"{told.recomputed:,} of {cached:,.0f} cached tokens computed again, "
            f"{max(0.0, 1 - told.recomputed / cached):.0%} reused; faults {told.faults}, "
            f"{len(pauses):,} tokens came after it",
            flush=True,
        )
        for error in found.lost[:3]:
            print(f"       {error}", flush=True)

    # --- many faults

    async def storm(self) -> None:
        """Streams of mixed lengths, without faults and with them."""
        size, runner = self.size, self.models["durable"]
        began = time.perf_counter()
        async with open_language_model(self.device, runner, prefix_cache=False) as model:
            clean = Storm(model, size)
            await clean.run(partial(trio.sleep, size.clean), size.most / 2)
            usual = clean.describe("without faults")
        await self._standby()
        noted = NotedRunner(runner)
        async with open_language_model(self.device, noted, prefix_cache=False) as model:
            noted.model = model
            storm = Storm(model, size, len(clean.streams))
            end = began + size.most
            cause = partial(self._cause_faults, end, usual, storm, noted)
            await storm.run(cause, end - time.perf_counter())
            storm.describe("with faults")
            told = model.statistics()
        print(
            f"  lost {len(storm.lost)}, {equal_so_far(storm.streams, clean.streams)}; tokens/s "
            f"with faults by those without {storm.rate() / clean.rate():.2f}; faults told "
            f"{told.faults}, failed {told.failed}, {told.recomputed:,} tokens computed again, "
            f"{told.kept:,} kept",
            flush=True,
        )

    async def _cause_faults(
        self, end: float, usual: float, storm: Storm, noted: NotedRunner
    ) -> None:
        """Cause faults until the end, and print the cost of each."""
        await trio.sleep(self.size.first)
        for name in itertools.cycle(("SIGKILL", "device fault")):
            await self.device.core.ready()
            told = storm.model.statistics()
            fault = StormFault(name, time.perf_counter(), told.kept, told.recomputed)
            if name == "SIGKILL":
                self._kill()
            else:
                await poison(self.device)
            left = end - time.perf_counter() - 0.5
            await trio.sleep(max(0.0, min(self.size.every, left)))
            self._tell_fault(storm, fault, usual, noted)
            if end - time.perf_counter() < FEWEST_SECONDS:
                return

    def _tell_fault(
        self, storm: Storm, fault: StormFault, usual: float, noted: NotedRunner
    ) -> None:
        told, when = storm.model.statistics(), fault.when
        more = []
        silent = 0
        for stream in storm.streams:
            if stream.times and stream.times[0] < when:
                gaps = [b - a for a, b in itertools.pairwise(stream.times) if b > when]
                more += [max(gaps) * 1e3 - usual] if gaps else []
                silent += not stream.ended and not gaps
        largest = np.percentile(more, (50, 100)) if more else (math.nan, math.nan)
        kept, again = told.kept - fault.kept, told.recomputed - fault.recomputed
        times = [each.times for each in storm.streams]
        met = noted.since(when)
        print(
            f"    {fault.name} after {when - storm.since:.1f} s: {met.describe(when, times)}; "
            f"largest gap of {len(more)} streams, more than usual: p50 {largest[0]:.1f}, max "
            f"{largest[1]:.1f} ms, {silent} have had no token since; of {met.cached:,} cached "
            f"tokens {kept:,} kept ({kept / max(1, met.cached):.1%}), {again:,} computed again; "
            f"faults told {told.faults}",
            flush=True,
        )

    # --- one request at fault

    async def poisoned(self) -> None:
        """One of many requests faults the device."""
        size = self.size
        began = time.perf_counter()
        others, marker = size.poisoned - 1, self.serving.vocabulary - 1
        durable = self.models["durable"]
        sizes: dict[str, Any] = {"number": others, "prompt": size.prompt, "answer": size.answer}
        async with open_language_model(self.device, durable) as model:
            whole = await stream_all(model, temperature=1.0, **sizes)
        usual = float(np.median(whole.gaps()))
        print(f"  {others} streams without it: between tokens p50 {usual:.2f} ms", flush=True)
        await self._standby()
        runner = NotedRunner(durable, marker)
        prompt = (*range(PLACE), marker, *range(size.prompt - PLACE - 1))
        said, told_at = "nothing", math.nan
        found = whole

        async with open_language_model(self.device, runner) as model:
            runner.model = model

            async def meanwhile(begun: Any) -> None:
                nonlocal said, told_at, found
                found = begun
                await found.halfway.wait()
                request = TokenRequest(prompt=prompt, sampling=SamplingOptions(max_tokens=4))
                try:
                    async with model.generate(request) as pieces:
                        said = f"no error, {len([piece async for piece in pieces])} tokens"
                except Exception as error:  # noqa: BLE001 (it is the result)
                    said = f"{type(error).__name__}: {error}".partition("\n")[0]
                    if not isinstance(error, RequestAtFault):
                        said = f"the wrong error, {said}"
                told_at = time.perf_counter()

            with trio.move_on_after(size.most - (time.perf_counter() - began)):
                await stream_all(model, temperature=1.0, meanwhile=meanwhile, **sizes)
            told = model.statistics()
        first = runner.faults[0].noticed if runner.faults else math.nan
        for fault in runner.faults:
            print(
                f"    with {fault.streams} streams: {fault.describe(fault.noticed, found.times)}",
                flush=True,
            )
        pauses = [pause for pause, _ in found.pauses(first)]
        pairs = list(zip(found.tokens, whole.tokens, strict=True))
        equal, ended = (sum(a == b[: len(a)] for a, b in pairs), sum(a == b for a, b in pairs))
        print(
            f"  failed {told.failed}: {said[:160]}\n"
            f"  of {others} others lost {len(found.lost)}, equal {equal}, {ended} of them "
            f"to their ends; {len(runner.faults)} "
            f"faults, {told.faults} told by statistics, {(told_at - first) * 1e3:.0f} ms from the "
            f"first to its error; longest gap of the others "
            f"{max(pauses, default=math.nan):.1f} ms, "
            f"{told.recomputed:,} tokens computed again, {told.kept:,} kept",
            flush=True,
        )
        for error in found.lost[:3]:
            print(f"       {error}", flush=True)

    # --- over HTTP

    async def http(self) -> None:
        """Event streams of the server, with SIGKILL of the host in the middle."""
        runner = NotedRunner(self.models["durable"])
        tokenizer = runner.folder.tokenizer
        async with (
            open_language_model(self.device, runner, tokenizer=tokenizer) as model,
            serve_language_model(model) as server,
        ):
            runner.model = model
            clean, _, _ = await self._ask_all(model, server, None)
            gaps = np.concatenate([np.diff(each.times) for each in clean]) * 1e3
            firsts = f"p50 {np.median(gaps):.2f}, p99 {np.percentile(gaps, 99):.2f}"
            print(f"  {len(clean)} streams without a fault: between events {firsts} ms", flush=True)
            await self._standby()
            found, when, probe = await self._ask_all(model, server, runner)
            told = model.statistics()
        equal = sum(a.texts == b.texts for a, b in zip(found, clean, strict=True))
        times = [each.times for each in found]
        pauses = [b - a for each in times for a, b in itertools.pairwise(each) if b > when]
        codes = dict(Counter(each.status for each in found))
        print(
            f"  SIGKILL over HTTP: {runner.since(when).describe(when, times)}; longest "
            f"pause {max(pauses, default=math.nan) * 1e3:.1f} ms; equal {equal} of {len(found)}, "
            f"{sum(len(each.texts) for each in found):,} events; status codes {codes}, of a new "
            f"request after the fault {probe}; faults {told.faults}, failed {told.failed}, "
            f"{told.recomputed:,} tokens computed again",
            flush=True,
        )

    async def _ask_all(
        self, model: LanguageModel, server: LanguageModelServer, killed: NotedRunner | None
    ) -> tuple[list[EventStream], float, int]:
        """Return all streams, when the host was killed, and the status of a request after that."""
        size = self.size
        found = [EventStream() for _ in range(size.http)]
        rng = np.random.default_rng(5)
        prompts = rng.integers(self.serving.vocabulary, size=(size.http, size.prompt)).tolist()
        left, halfway = size.http * size.answer // 2, trio.Event()
        when, probe = math.nan, EventStream()

        def note() -> None:
            nonlocal left
            left -= 1
            if not left:
                halfway.set()

        def body(at: int, tokens: int) -> dict[str, Any]:
            options = {"seed": at, "temperature": 1.0, "ignore_eos": True, "stream": True}
            return {"model": model.name, "prompt": prompts[at], "max_tokens": tokens, **options}

        async with trio.open_nursery() as nursery:
            for at, stream in enumerate(found):
                nursery.start_soon(stream.ask, server.port, body(at, size.answer), note)
            if killed is not None:
                await halfway.wait()
                when = self._kill()
                await killed.failed.wait()
                await probe.ask(server.port, body(0, 1))
        return found, when, probe.status


PARTS: Final = ("faults", "storm", "poisoned", "http")


async def run(options: argparse.Namespace) -> None:
    """Run the parts."""
    async with open_serving(options) as (device, serving, folder):
        size = replace(FaultSizes(), most=options.seconds - 4) if ON_CUDA else SMALL_FAULTS
        benchmark = FaultBenchmark(device, serving, size, folder)
        await benchmark.load(plain="faults" in options.parts.split(","))
        await run_parts(benchmark, options)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    trio.run(run, parsed_options(parser, PARTS))


if __name__ == "__main__":
    main()
