"""``serve_language_model``: OpenAI's API before a language model."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, final

import trio

from .._errors import LibraryMissing
from .._install import install_command
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import NoPublicConstructor, check_instance
from ..telemetry.host_header import MISDIRECTED, REFUSAL, host_names, is_here
from ..wire.options import whole
from ._answers import ModelAnswer, encode, failed_event, listed_models, model_entry
from ._chat_page import chat_page
from ._http import ClientGone, HttpExchange, HttpFront, HttpRequest, ServerLimits
from ._openai import ApiError, Translated, chat_requests, completion_requests
from ._requests import TokenPiece, TokenRequest
from ._served_model import Readiness, ServedModel, api_error, gravest, refused_options
from ._server_metrics import CONTENT_TYPE, GROWING, MetricsText, ServerMetrics, numbers
from ._token_text import TokenText, tokens_of

if TYPE_CHECKING:
    from collections.abc import Iterator


_log: Final = logging.getLogger("atomr_accel.llm")

_JSON: Final = ("content-type", "application/json")
_IN_A_THREAD: Final = 16 << 10
"""Bytes of a body from which on it is translated in a thread, while other streams go on."""
_WITH_GRAMMARS: Final = (b'"response_format"', b'"structured_outputs"', b'"tools"')
"""Fields whose grammars take long to look at, so that these bodies are translated there too."""
_LARGE_AT_A_TIME: Final = 4
"""Number of such bodies that are translated at a time; further ones wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelServerStatistics:
    """A server at one moment.

    Attributes:
        connections: connections that are open.
        in_progress: choices that are generated or wait.
        answered: answers of status 200 to requests for text.
        refused: requests that were refused, such as for an unknown parameter or too many of them.
        failed: requests that failed by an error of the model or the device.
        aborted: requests whose client went away.
        prompt_tokens: tokens of prompts.
        generated_tokens: tokens that were generated.
        draining: whether no further requests are taken.
    """

    connections: int
    in_progress: int
    answered: int
    refused: int
    failed: int
    aborted: int
    prompt_tokens: int
    generated_tokens: int
    draining: bool


@final
class _Prompts:
    """Translation of text into tokens."""

    def __init__(self, model: ServedModel) -> None:
        self._model: Final = model
        self.name: Final = model.name
        self.context: Final = model.context

    def encode(self, text: str) -> Sequence[int]:
        """Return the tokens of a text."""
        return tokens_of(self._model.tokenizer, text, special=True)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special ones included."""
        text: str = self._model.tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> Sequence[int]:
        """Return the tokens of a prompt for messages."""
        return self._model.render(messages, tools=tools)


@final
class LanguageModelServer(metaclass=NoPublicConstructor):
    """A server that listens. `serve_language_model` makes one.

    Attributes:
        url: its address, such as ``"http://127.0.0.1:40123"``. OpenAI's clients want it with
            ``/v1``.
        port: its port.
    """

    _made_by = "serve_language_model(model)"

    def __init__(
        self,
        model: ServedModel,
        address: tuple[str, int],
        keys: Mapping[str, str],
        names: frozenset[str] | None,
        limits: ServerLimits,
        cause_fault: Callable[[], Awaitable[object]] | None,
    ) -> None:
        self.port: Final = address[1]
        self.url: Final = f"http://{_address(*address)}"
        self._model: Final = model
        self._prompts: Final = _Prompts(model)
        self._token_text: Final = TokenText(model.tokenizer)
        self._keys: Final = {name: _digest(key) for name, key in keys.items()}
        self._names: Final = names
        self._limits: Final = limits
        self._cause_fault: Final = cause_fault
        self._front: Final = HttpFront(self._handle, limits)
        self._metrics: Final = ServerMetrics()
        self._running: Final[Counter[str]] = Counter()
        # A text of megabytes needs gigabytes while it is cut into tokens.
        self._large: Final = trio.CapacityLimiter(_LARGE_AT_A_TIME)
        self._ready: Final = Readiness(model)
        self._created: Final = int(time.time())
        self._page: Final = chat_page(model.name, faults=cause_fault is not None)
        self._routes: Final[dict[str, tuple[str, Callable[[HttpExchange], Awaitable[None]]]]] = {
            "/": ("GET", self._show_page),
            "/live": ("GET", self._tell_live),
            "/ready": ("GET", self._tell_ready),
            "/metrics": ("GET", self._tell_metrics),
            "/v1/models": ("GET", self._list_models),
            "/v1/models/": ("GET", self._tell_model),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._complete),
        }
        if cause_fault is not None:
            self._routes["/demo/fault"] = ("POST", self._fault)

    def __repr__(self) -> str:
        return f"<LanguageModelServer {self.url}>"

    async def drain(self) -> None:
        """Take no further connections and requests, and wait until all streams have ended.

        ``/ready`` answers 503 from now on. Connections that wait for a request are closed.
        """
        await self._front.drain()

    def cut_off(self) -> None:
        """Close all connections at once; streams end without a last event."""
        self._front.cut_off()

    def statistics(self) -> LanguageModelServerStatistics:
        """The server at this moment."""
        metrics = self._metrics
        return LanguageModelServerStatistics(
            connections=self._front.connections,
            in_progress=self._running.total(),
            answered=sum(n for (_, status), n in metrics.answers.items() if status == 200),
            refused=metrics.refused,
            failed=metrics.failed,
            aborted=metrics.aborted,
            prompt_tokens=metrics.prompt_tokens,
            generated_tokens=metrics.generated_tokens,
            draining=self._front.draining,
        )

    # --- requests ----------------------------------------------------------------------------

    async def _handle(self, exchange: HttpExchange) -> None:
        request = exchange.request
        try:
            try:
                await self._route(exchange)
            except (ApiError, ClientGone):
                raise
            except Exception as error:
                _log.exception("request %s has failed", exchange.id)
                raise ApiError(
                    500, "the server has failed; its log says why", kind="server_error"
                ) from error
        except ApiError as error:
            self._metrics.refused += error.status < 500
            self._metrics.failed += error.status >= 500
            if exchange.begun:
                await exchange.tell(failed_event(error))
                await exchange.end()
                return
            if request.path.startswith("/v1/"):
                self._metrics.answers[request.path, error.status] += 1
            headers = [_JSON, ("x-request-id", exchange.id)]
            if error.retry_after is not None:
                headers.append(("retry-after", str(error.retry_after)))
            if error.status == 401:
                headers.append(("www-authenticate", "Bearer"))
            if error.status == 429:
                headers += self._limit_headers()
            await exchange.answer(error.status, headers, error.body())

    async def _route(self, exchange: HttpExchange) -> None:
        request = exchange.request
        if self._names is not None and not is_here([request.headers.get("host", "")], self._names):
            raise ApiError(MISDIRECTED, REFUSAL)
        path = request.path
        at = "/v1/models/" if path.startswith("/v1/models/") else path
        if at not in self._routes:
            raise ApiError(404, f"there is no {path} here", code="unknown_url")
        method, handle = self._routes[at]
        if request.method != method and not (method == "GET" and request.method == "HEAD"):
            raise ApiError(405, f"{path} must be asked for by {method}, not {request.method}")
        if path.startswith(("/v1/", "/demo/")):
            exchange.key = self._key(request)
        if method == "POST":
            # A page of another site may send other types without asking first.
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise ApiError(
                    415, f"the content-type must be application/json, not {kind or 'nothing'}"
                )
            coding = request.headers.get("content-encoding", "identity").strip().lower()
            if coding != "identity":
                raise ApiError(415, f"the content-encoding must be absent, not {coding}")
        await handle(exchange)

    def _key(self, request: HttpRequest) -> str:
        """Return whose request it is."""
        if not self._keys:
            return ""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        digest = _digest(given.strip() if scheme.lower() == "bearer" else "")
        # All are compared, so that the time tells nothing.
        found = [name for name, key in self._keys.items() if hmac.compare_digest(key, digest)]
        if not found:
            raise ApiError(
                401,
                "the header must be Authorization: Bearer, with a key of this server",
                code="invalid_api_key",
            )
        return found[0]

    async def _chat(self, exchange: HttpExchange) -> None:
        await self._generate(exchange, chat_requests)

    async def _complete(self, exchange: HttpExchange) -> None:
        await self._generate(exchange, completion_requests)

    async def _generate(
        self,
        exchange: HttpExchange,
        translate: Callable[[bytes, _Prompts, str], Translated],
    ) -> None:
        self._check_open()
        body = exchange.request.body
        large = len(body) > _IN_A_THREAD
        if large or any(each in body for each in _WITH_GRAMMARS):
            limiter = self._large if large else None
            asked = await trio.to_thread.run_sync(
                translate, body, self._prompts, exchange.key, limiter=limiter
            )
        else:
            asked = translate(body, self._prompts, exchange.key)
        with self._counted(exchange.key, len(asked.requests)):
            self._metrics.prompt_tokens += asked.prompt_tokens
            answer = ModelAnswer(asked, self._model.name, self._token_text)
            began = trio.current_time()
            try:
                if asked.stream:
                    await self._stream(exchange, asked, answer, began)
                else:
                    await self._whole(exchange, asked, answer, began)
            except (ClientGone, trio.Cancelled):
                self._metrics.aborted += 1
                raise
            except ExceptionGroup as group:
                raise api_error(gravest(group)) from group
            finally:
                self._metrics.generated_tokens += answer.completion_tokens
            self._metrics.answers[exchange.request.path, 200] += 1
            self._metrics.finishes.update(reason for reason in answer.finishes if reason)
            self._metrics.whole.add(trio.current_time() - began)

    def _check_open(self) -> None:
        if self._front.draining:
            raise ApiError(
                503,
                "the server is about to end",
                kind="server_error",
                code="draining",
                retry_after=5,
            )
        if _is_recovering(self._model):
            raise ApiError(
                503,
                "the device is being rebuilt after a fault",
                kind="server_error",
                code="recovering",
                retry_after=1,
            )

    @contextmanager
    def _counted(self, key: str, count: int) -> Iterator[None]:
        """Count a request's choices while it is answered."""
        limits = self._limits
        most = min(limits.choices, limits.requests, limits.requests_per_key or limits.requests)
        if count > most:  # which waiting does not help
            raise ApiError(
                400,
                f"a request must have at most {most} choices, not {count}",
                param="n",
                code="invalid_value",
            )
        most, now = limits.requests, self._running.total()
        if limits.requests_per_key is not None and (
            now + count <= most and self._running[key] + count > limits.requests_per_key
        ):
            most, now = limits.requests_per_key, self._running[key]
        if now + count > most:
            raise ApiError(
                429,
                f"at most {most} requests are answered at a time, and {now} are",
                retry_after=1,
                kind="requests",
                code="rate_limit_exceeded",
            )
        self._running[key] += count
        try:
            yield
        finally:
            self._running[key] -= count
            if not self._running[key]:
                del self._running[key]

    def _limit_headers(self) -> list[tuple[str, str]]:
        most = self._limits.requests
        return [
            ("x-ratelimit-limit-requests", str(most)),
            ("x-ratelimit-remaining-requests", str(max(0, most - self._running.total()))),
        ]

    async def _whole(
        self, exchange: HttpExchange, asked: Translated, answer: ModelAnswer, began: float
    ) -> None:
        async def choose(index: int, request: TokenRequest) -> None:
            async def take(piece: TokenPiece) -> None:
                answer.take(index, piece)

            await self._follow(request, asked, began, take)

        await _each(choose, asked.requests)
        headers = [_JSON, ("x-request-id", exchange.id), *self._limit_headers()]
        await exchange.answer(200, headers, answer.whole())

    async def _stream(
        self, exchange: HttpExchange, asked: Translated, answer: ModelAnswer, began: float
    ) -> None:
        telling = trio.Lock()
        headers = [
            ("content-type", "text/event-stream; charset=utf-8"),
            ("cache-control", "no-cache"),
            ("x-accel-buffering", "no"),
            ("x-request-id", exchange.id),
            *self._limit_headers(),
        ]

        async def choose(index: int, request: TokenRequest) -> None:
            async def tell(piece: TokenPiece) -> None:
                if events := answer.events(index, piece):
                    async with telling:
                        if not exchange.begun:  # until now, a status could tell an error
                            await exchange.begin(200, headers)
                        await exchange.tell(events)

            async def tell_alone(piece: TokenPiece) -> None:
                if events := answer.events(0, piece):
                    if not exchange.begun:
                        await exchange.begin(200, headers)
                    await exchange.tell(events)

            alone = len(asked.requests) == 1
            await self._follow(request, asked, began, tell_alone if alone else tell)

        await _each(choose, asked.requests)
        await exchange.tell(answer.last_events())
        await exchange.end()

    async def _follow(
        self,
        request: TokenRequest,
        asked: Translated,
        began: float,
        take: Callable[[TokenPiece], Awaitable[None]],
    ) -> None:
        """Give each piece of a stream to a function.

        Raises:
            ApiError: the model's error, in the form of the API.
            ClientGone: the client does not take its answer.
        """
        last = None
        try:
            async with AsyncExitStack() as stack:
                opening = self._model.generate(request)
                try:
                    pieces = await stack.enter_async_context(opening)
                except (TypeError, ValueError) as error:
                    raise refused_options(error, asked.grammar_field) from error
                async for piece in pieces:
                    if not piece.prompt:
                        now = trio.current_time()
                        if last is None:
                            self._metrics.first_token.add(now - began)
                        else:
                            self._metrics.between_tokens.add(now - last)
                        last = now
                    await take(piece)
        except Exception as error:
            raise api_error(gravest(error), asked.grammar_field) from error

    # --- what else there is --------------------------------------------------------------------

    async def _show_page(self, exchange: HttpExchange) -> None:
        await exchange.answer(200, self._page.headers, self._page.body)

    async def _tell_live(self, exchange: HttpExchange) -> None:
        await exchange.answer(200, [_JSON], b'{"live":true}')

    async def _tell_ready(self, exchange: HttpExchange) -> None:
        self._check_open()
        await self._ready.check()
        await exchange.answer(200, [_JSON], b'{"ready":true}')

    async def _list_models(self, exchange: HttpExchange) -> None:
        headers = [_JSON, ("x-request-id", exchange.id)]
        await exchange.answer(200, headers, listed_models([self._model.name], self._created))

    async def _tell_model(self, exchange: HttpExchange) -> None:
        name = exchange.request.path.removeprefix("/v1/models/")
        if name != self._model.name:
            raise ApiError(
                404,
                f"there is no model {name!r} here; ask for {self._model.name!r}",
                param="model",
                code="model_not_found",
            )
        headers = [_JSON, ("x-request-id", exchange.id)]
        await exchange.answer(200, headers, encode(model_entry(name, self._created)))

    async def _fault(self, exchange: HttpExchange) -> None:
        assert self._cause_fault is not None
        fault = await self._cause_fault()
        _log.warning("a client has caused a fault: %s", fault)
        await exchange.answer(200, [_JSON], encode({"fault": str(fault)}))

    async def _tell_metrics(self, exchange: HttpExchange) -> None:
        await exchange.answer(200, [("content-type", CONTENT_TYPE)], self._metrics_text())

    def _metrics_text(self) -> bytes:
        text = MetricsText({"model_name": self._model.name})
        model = self._model.statistics()
        told = numbers(model)
        waiting, running = told.get("waiting", 0), told.get("running", 0)
        pages = told.get("pages", 0)
        used = told.get("pages_used", 0) / pages if pages else 0.0
        add = text.add
        add("vllm:num_requests_waiting", "gauge", "Requests that wait.", waiting)
        add("vllm:num_requests_running", "gauge", "Requests that are generated.", running)
        add("vllm:kv_cache_usage_perc", "gauge", "Share of the cache in use, 0 to 1.", used)
        text.add_all(
            "vllm:cache_config_info",
            "gauge",
            "The cache's size.",
            [({"block_size": f"{told.get('page_size', 0):g}", "num_gpu_blocks": f"{pages:g}"}, 1)],
        )
        mine, own = self._metrics, "atomr_accel_llm_"
        for name, value in told.items():
            about = f"The model's statistics().{name}."
            if name in GROWING:
                add(f"{own}model_{name}_total", "counter", about, value)
            else:
                add(f"{own}model_{name}", "gauge", about, value)
        stats = self.statistics()
        for name in ("connections", "in_progress", "draining"):
            add(f"{own}{name}", "gauge", f"The server's statistics().{name}.", getattr(stats, name))
        for name in ("refused", "failed", "aborted", "prompt_tokens", "generated_tokens"):
            about = f"The server's statistics().{name}."
            add(f"{own}{name}_total", "counter", about, getattr(stats, name))
        text.add_all(
            f"{own}answers_total",
            "counter",
            "Answers by path and status.",
            [({"path": path, "status": str(s)}, n) for (path, s), n in mine.answers.items()],
        )
        text.add_all(
            f"{own}finishes_total",
            "counter",
            "Choices by the reason of their end.",
            [({"reason": reason}, n) for reason, n in mine.finishes.items()],
        )
        for name, about, durations in (
            ("time_to_first_token", "Time until the first token of a choice.", mine.first_token),
            ("time_between_tokens", "Time from one token to the next.", mine.between_tokens),
            ("request_duration", "Time of whole requests.", mine.whole),
        ):
            text.add_durations(f"{own}{name}_seconds", about, durations)
        return text.encoded()


async def _each(
    function: Callable[[int, TokenRequest], Awaitable[None]], requests: Sequence[TokenRequest]
) -> None:
    """Do all choices at once."""
    if len(requests) == 1:
        await function(0, requests[0])
        return
    async with PlainNursery() as nursery:
        for index, request in enumerate(requests):
            nursery.start_soon(function, index, request)


def _is_recovering(model: ServedModel) -> bool:
    return bool(getattr(model.statistics(), "recovering", False))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


@opens
async def serve_language_model(
    model: ServedModel,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    keys: Mapping[str, str] | None = None,
    public: bool = False,
    names: Iterable[str] = (),
    limits: ServerLimits | None = None,
    cause_fault: Callable[[], Awaitable[object]] | None = None,
) -> AsyncIterator[LanguageModelServer]:
    """Serve OpenAI's API until the block is left, which waits for streams in progress.

    It has chat completions, completions and models below ``/v1``, a page to chat with at ``/``,
    ``/live`` and ``/ready`` for probes, and ``/metrics`` for Prometheus.

    Args:
        model: the model, from `open_language_model`.
        host: the address to listen on. By default, only programs on this machine reach it.
        port: the port; 0 for a free one.
        keys: keys that clients must have, by the clients' names. Each gets a fair share.
        public: allow a ``host`` that other machines reach without keys.
        names: host names that requests may use, besides ``localhost`` and addresses. They are
            checked if there are no keys, or any page in a browser could send requests.
        limits: sizes, numbers and times.
        cause_fault: has the page offer a button that faults the device, for demonstrations.

    Raises:
        LibraryMissing: h11 is not installed.
        ValueError: other machines reach ``host``, and there are no keys.
        OSError: the port is taken, or the host is not one of this machine.
    """
    if find_spec("h11") is None:
        raise LibraryMissing(f"a server needs h11: {install_command('llm')}", library="h11")
    limits = limits or ServerLimits()
    check_instance("a server's limits", limits, ServerLimits)
    check_instance("host", host, str)
    keys = dict(keys or {})
    for name, key in keys.items():
        check_instance(f"the key of {name!r}", key, str)
        if not key.strip():
            raise ValueError(f"the key of {name!r} must be text that is not empty")
    if not keys and not public and not _is_loopback(host):
        raise ValueError(
            f"host must be of this machine alone, not {host!r}, where there are no keys; give "
            "keys=..., or public=True"
        )
    port, allowed = whole(port, "port", 0, 65535), host_names(names)
    checked = None if keys or public else allowed
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=1024)
    except OSError as error:
        shown, said = _address(host, port), error.strerror or str(error)
        raise OSError(error.errno, f"{shown} must be an address to listen on: {said}") from error
    address = listeners[0].socket.getsockname()[:2]
    server = LanguageModelServer.construct(model, address, keys, checked, limits, cause_fault)
    try:
        async with PlainNursery() as nursery:
            nursery.start_soon(server._front.run, listeners)
            yield server
            await server.drain()
            nursery.cancel_scope.cancel()
    finally:
        for listener in listeners:
            listener.socket.close()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
