"""The server of OpenAI's API, asked by the ``openai`` client and by hand."""

from __future__ import annotations

import errno
import json
import threading
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import openai
import pytest
import trio

from atomr_accel import ContextPoisoned, DeviceLost
from atomr_accel.llm import (
    GrammarInvalid,
    LanguageModelStatistics,
    ServerLimits,
    TokenPiece,
    TokenRequest,
    TokenScore,
    _http,
    _server,
    serve_language_model,
)
from atomr_accel.llm._server_metrics import GROWING
from atomr_accel.llm._token_text import tokens_of
from atomr_accel.patterns import Overloaded

from .stand_in import (
    ScriptedModel,
    ask,
    byte_tokenizer,
    chat,
    completion,
    failing,
    parsed,
    posted,
    raw,
    saying,
    serving,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atomr_accel.llm import LanguageModelServer

    from .stand_in import Script

# The client leaves generators of its streams to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <async_generator:pytest.PytestUnraisableExceptionWarning"
)

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
ASKED: Any = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def client_of(
    server: LanguageModelServer, key: str = "none"
) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client that does not ask again."""
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=10
    ) as client:
        yield client


@asynccontextmanager
async def asking(
    script: Script | ScriptedModel, **options: Any
) -> AsyncIterator[tuple[openai.AsyncOpenAI, ScriptedModel, LanguageModelServer]]:
    """A server with a scripted model, and a client."""
    with trio.fail_after(20):
        async with serving(script, **options) as (server, model), client_of(server) as client:
            yield client, model, server


# --- answers -----------------------------------------------------------------------------------


async def test_a_chat_whole_and_streamed_says_the_same() -> None:
    async with asking(saying("Hel", "lo", "!")) as (client, _model, _server):
        whole = await client.chat.completions.create(**ASKED)
        (choice,) = whole.choices
        assert (choice.message.role, choice.message.content) == ("assistant", "Hello!")
        assert choice.finish_reason == "stop"
        assert whole.model == "toy"
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 3)
        assert whole.usage.total_tokens == 8
        stream = await client.chat.completions.create(
            **ASKED, stream=True, stream_options={"include_usage": True}
        )
        events = [event async for event in stream]
        assert len({event.id for event in events}) == 1
        assert events[0].choices[0].delta.role == "assistant"
        text = [e.choices[0].delta.content for e in events[:-1] if e.choices[0].delta.content]
        assert text == ["Hel", "lo", "!"]
        assert [e.choices[0].finish_reason for e in events[:-1]] == [None] * 4 + ["stop"]
        assert (events[-1].choices, events[-1].usage) == ([], whole.usage)


async def test_a_completion_whole_and_streamed_says_the_same() -> None:
    async with asking(saying("a", "b", finish="length")) as (client, _model, _server):
        whole = await client.completions.create(model="toy", prompt="hi", echo=True)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("hiab", "length")
        stream = await client.completions.create(model="toy", prompt="hi", echo=True, stream=True)
        events = [event async for event in stream]
        assert "".join(event.choices[0].text for event in events) == "hiab"
        assert events[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_events_come_in_chunks_to_those_who_know_them(version: str) -> None:
    texts = ("a", "\r\n0\r\n\r\n", "ö" * 5000, "b")
    body = json.dumps(completion(stream=True)).encode()
    head = (
        f"POST /v1/completions HTTP/{version}\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    async with serving(saying(*texts)) as (server, _model):
        reply = await raw(server, head.encode() + body)
    assert (reply.headers.get("transfer-encoding") == "chunked") == (version == "1.1")
    assert [event["choices"][0]["text"] for event in reply.events] == [*texts, ""]


async def test_choices_are_told_apart() -> None:
    async def script(request: TokenRequest) -> AsyncIterator[TokenPiece]:
        await trio.lowlevel.checkpoint()
        text = bytes(33 + token for token in request.prompt).decode()
        for letter in f"{text}{request.sampling.seed}":
            yield TokenPiece(token=0, text=letter)
        yield TokenPiece(token=1, text="", finish="stop")

    async with asking(script) as (client, model, _server):
        asked: Any = {"model": "toy", "prompt": ["a", "bc"], "n": 2, "seed": 7}
        whole = await client.completions.create(**asked)
        texts = [choice.text for choice in whole.choices]
        (other,) = {request.sampling.seed for request in model.asked} - {7}
        assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
        assert texts == ["a7", f"a{other}", "bc7", f"bc{other}"]
        streamed = ["", "", "", ""]
        async for event in await client.completions.create(**asked, stream=True):
            streamed[event.choices[0].index] += event.choices[0].text
        assert streamed == texts


async def test_tool_calls_are_parsed_whole_and_streamed() -> None:
    pieces = [CALL[at : at + 5] for at in range(0, len(CALL), 5)]
    async with asking(saying("So: ", *pieces, "\n", *pieces)) as (client, model, _server):
        whole = await client.chat.completions.create(**ASKED, tools=TOOLS)
        (choice,) = whole.choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "So: ")
        assert model.tools is not None
        assert choice.message.tool_calls is not None
        calls: list[Any] = list(choice.message.tool_calls)
        assert [call.function.name for call in calls] == ["add", "add"]
        assert [json.loads(call.function.arguments) for call in calls] == [{"a": 1}] * 2
        assert len({call.id for call in calls}) == 2
        stream = await client.chat.completions.create(**ASKED, tools=TOOLS, stream=True)
        told: list[Any] = []
        text = ""
        async for event in stream:
            told += event.choices[0].delta.tool_calls or []
            text += event.choices[0].delta.content or ""
        assert [call.index for call in told] == [0, 1]
        assert text == "So: "
        assert event.choices[0].finish_reason == "tool_calls"
        # A call that was cut off is told as far as it goes, and the reason stays.
        for most, arguments in ((4, None), (10, '{"a"'), (11, '{"a": 1}')):
            cut = await client.chat.completions.create(**ASKED, tools=TOOLS, max_tokens=most)
            assert cut.choices[0].finish_reason == "length"
            assert cut.choices[0].message.content == "So: "
            made: list[Any] = list(cut.choices[0].message.tool_calls or [])
            assert [call.function.arguments for call in made] == ([arguments] if arguments else [])
        none = await client.chat.completions.create(**ASKED, tools=TOOLS, tool_choice="none")
        assert none.choices[0].message.content == f"So: {CALL}\n{CALL}"


@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_a_call_that_is_cut_off_leaves_no_markup(finish: Any) -> None:
    """By a stop text or by the limit: the client gets the beginning of a call, or no text."""
    for size, arguments in (
        (3, None),
        (20, None),
        (30, ""),
        (46, '{"a":'),
        (len(CALL), '{"a": 1}'),
    ):
        async with asking(saying(CALL[:size], finish=finish)) as (client, _model, _server):
            asked = {**ASKED, "tools": TOOLS, "tool_choice": "required"}
            (choice,) = (await client.chat.completions.create(**asked)).choices
            assert choice.message.content is None
            calls: list[Any] = list(choice.message.tool_calls or [])
            assert [call.function.arguments for call in calls] == (
                [] if arguments is None else [arguments]
            )
            # Nobody should run a call by its beginning.
            whole = size == len(CALL) and finish == "stop"
            assert choice.finish_reason == ("tool_calls" if whole else finish)
            text, told = "", 0
            async for event in await client.chat.completions.create(**asked, stream=True):
                text += event.choices[0].delta.content or ""
                told += len(event.choices[0].delta.tool_calls or [])
            assert (text, told) == ("", len(calls))


async def test_logprobs_have_texts_and_bytes() -> None:
    async with asking(saying("x", "", "y")) as (client, _model, _server):
        whole = await client.chat.completions.create(**ASKED, logprobs=True, top_logprobs=2)
        assert whole.choices[0].logprobs is not None
        content = whole.choices[0].logprobs.content
        assert content is not None
        assert [(one.token, one.logprob, one.bytes) for one in content] == [
            ("!", -0.5, [33]),
            ('"', -1.5, [34]),
            ("#", -2.5, [35]),
        ]
        assert [top.token for top in content[0].top_logprobs] == ["!", '"']
        stream = await client.chat.completions.create(**ASKED, logprobs=True, stream=True)
        scores = [
            score
            async for event in stream
            if event.choices[0].logprobs
            for score in event.choices[0].logprobs.content or []
        ]
        assert [score.token for score in scores] == ["!", '"', "#"]
        old = (await client.completions.create(model="toy", prompt="hi", logprobs=1)).choices[0]
        assert old.logprobs is not None
        assert old.logprobs.tokens == ["!", '"', "#"]
        assert old.logprobs.token_logprobs == [-0.5, -1.5, -2.5]
        assert old.logprobs.top_logprobs == [{"!": -0.5}, {'"': -1.5}, {"#": -2.5}]
        assert old.logprobs.text_offset == [0, 1, 2]


async def test_every_parameter_that_is_accepted_reaches_the_model() -> None:
    async with asking(saying("a", finish="length")) as (client, model, _server):
        await client.chat.completions.create(
            **ASKED,
            frequency_penalty=0.5,
            logit_bias={"5": -10},
            logprobs=True,
            max_completion_tokens=9,
            metadata={"a": "b"},
            n=1,
            presence_penalty=0.25,
            response_format={"type": "json_object"},
            seed=3,
            service_tier="auto",
            stop=["x"],
            store=False,
            temperature=0.5,
            top_logprobs=1,
            top_p=0.75,
            user="me",
            extra_body={"top_k": 4, "min_p": 0.125, "repetition_penalty": 2, "priority": 1},
        )
        (request,) = model.asked
        options = request.sampling
        assert (options.frequency_penalty, options.presence_penalty) == (0.5, 0.25)
        assert (options.logit_bias, options.logprobs, options.max_tokens) == ({5: -10}, 1, 9)
        assert (options.seed, options.stop, options.temperature) == (3, ("x",), 0.5)
        assert (options.top_p, options.top_k, options.min_p) == (0.75, 4, 0.125)
        assert (options.repetition_penalty, request.priority) == (2, 1)
        assert options.grammar is not None


async def test_models_are_listed() -> None:
    async with asking(saying("a")) as (client, _model, _server):
        assert [model.id async for model in client.models.list()] == ["toy"]
        assert (await client.models.retrieve("toy")).id == "toy"
        with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
            await client.models.retrieve("other")


# --- errors ------------------------------------------------------------------------------------


async def test_errors_have_openais_form_and_name_the_field() -> None:
    async with asking(saying("a")) as (client, model, _server):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**ASKED, extra_body={"foo": 1})
        assert (caught.value.param, caught.value.code) == ("foo", "unknown_parameter")
        assert caught.value.type == "invalid_request_error"
        assert caught.value.request_id
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(**{**ASKED, "model": "other"})
        assert missing.value.code == "model_not_found"
        refusing: Any = [{"role": "user", "content": "!refuse"}]
        with pytest.raises(openai.BadRequestError, match="template refuses") as refused:
            await client.chat.completions.create(model="toy", messages=refusing)
        assert refused.value.param == "messages"
        assert model.asked == []


FAULT = ContextPoisoned(
    "a kernel has faulted", generation=1, status=700, status_name="FAULT", op="step"
)


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (Overloaded("there is no room", waiting=1, capacity=1), 429, "1"),
        (DeviceLost("the device is gone"), 503, "5"),
        (FAULT, 500, None),
        (ExceptionGroup("both", [FAULT, Overloaded("full", waiting=1, capacity=1)]), 500, None),
        (RuntimeError("a secret"), 500, None),
    ],
    ids=lambda case: type(case).__name__ if isinstance(case, Exception) else "",
)
async def test_errors_of_the_model_have_their_status(
    error: Exception, status: int, retry: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    for stream in (False, True):
        async with serving(failing(error)) as (server, model):
            reply = await ask(server, "/v1/chat/completions", chat(stream=stream))
            assert (reply.status, reply.headers.get("retry-after")) == (status, retry)
            assert "secret" not in reply.error["message"]
            assert server.statistics().in_progress == model.open == 0
    assert ("a secret" in caplog.text) == isinstance(error, RuntimeError)


async def test_a_failure_of_the_server_has_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(saying("a")) as (server, _model):

        def broken() -> bytes:
            raise RuntimeError("a bug")

        monkeypatch.setattr(server, "_metrics_text", broken)
        reply = await ask(server, "/metrics", headers={"x-request-id": "mine"})
        assert (reply.status, reply.headers["x-request-id"]) == (500, "mine")
        assert "a bug" not in reply.error["message"]


async def test_an_error_in_a_stream_is_its_last_event() -> None:
    async with asking(failing(FAULT, "a", "b")) as (client, _model, server):
        stream = await client.chat.completions.create(**ASKED, stream=True)
        text = ""
        with pytest.raises(openai.APIError, match="a kernel has faulted"):
            async for event in stream:
                text += event.choices[0].delta.content or ""
        assert text == "ab"
        assert server.statistics().failed == 1


async def test_keys_are_needed_where_there_are_keys() -> None:
    keys = {"ann": "sk-1", "bob": "sk-2"}
    async with serving(saying("a"), keys=keys) as (server, model):
        for key, allowed in (("sk-1", True), ("sk-2", True), ("sk-3", False), ("", False)):
            headers = {"authorization": f"Bearer {key}"}
            reply = await ask(server, "/v1/chat/completions", chat(), headers=headers)
            assert reply.status == (200 if allowed else 401)
            assert allowed or reply.headers["www-authenticate"] == "Bearer"
        assert [request.key for request in model.asked] == ["ann", "bob"]
        assert (await ask(server, "/v1/models")).status == 401
        for path in ("/live", "/ready", "/metrics", "/"):
            assert (await ask(server, path)).status == 200
        async with client_of(server, "wrong") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.models.list()
            assert caught.value.code == "invalid_api_key"


async def test_an_address_that_is_taken_is_named() -> None:
    async with serving(saying("a")) as (server, model):
        with pytest.raises(OSError, match=f"127.0.0.1:{server.port} must be") as raised:
            async with serve_language_model(model, port=server.port):
                pass
        assert raised.value.errno == errno.EADDRINUSE


async def test_servers_that_others_reach_need_keys() -> None:
    model = ScriptedModel(saying("a"))
    with pytest.raises(ValueError, match="host must be of this machine alone"):
        async with serve_language_model(model, host="0.0.0.0"):
            pass
    with pytest.raises(ValueError, match="not empty"):
        async with serve_language_model(model, keys={"ann": ""}):
            pass
    async with serve_language_model(model, host="0.0.0.0", public=True) as server:
        assert (await ask(server, "/live")).status == 200


async def test_names_of_others_are_refused() -> None:
    async with serving(saying("a"), names=["box.example"]) as (server, _model):
        for host, status in (("localhost", 200), ("box.example", 200), ("evil.example", 421)):
            reply = await ask(server, "/v1/models", headers={"host": f"{host}:{server.port}"})
            assert reply.status == status
        kind = {"content-type": "text/plain"}
        assert (await ask(server, "/v1/chat/completions", chat(), headers=kind)).status == 415


# --- limits --------------------------------------------------------------------------------------


def held(go_on: trio.Event) -> Script:
    """Return a script that waits after its first piece."""

    async def script(_request: TokenRequest) -> AsyncIterator[TokenPiece]:
        yield TokenPiece(token=0, text="a")
        await go_on.wait()
        yield TokenPiece(token=1, text="b", finish="stop")

    return script


async def test_more_requests_than_fit_get_429_and_later_ones_are_answered() -> None:
    go_on = trio.Event()
    limits = ServerLimits(requests=3, choices=2)
    async with asking(held(go_on), limits=limits) as (client, _model, server):
        first = await client.chat.completions.create(**ASKED, n=2, stream=True)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(**ASKED, n=2)
        headers = caught.value.response.headers
        assert (headers["retry-after"], headers["x-ratelimit-limit-requests"]) == ("1", "3")
        assert headers["x-ratelimit-remaining-requests"] == "1"
        with pytest.raises(openai.BadRequestError, match="at most 2 choices"):
            await client.chat.completions.create(**ASKED, n=3)
        go_on.set()
        async for _ in first:
            pass
        assert (await client.chat.completions.create(**ASKED, n=2)).choices
        assert server.statistics().refused == 2


async def test_choices_that_never_fit_get_400() -> None:
    for limits in (ServerLimits(requests=3), ServerLimits(requests_per_key=3)):
        async with serving(saying("a"), limits=limits) as (server, model):
            reply = await ask(server, "/v1/completions", completion(n=4))
            assert (reply.status, reply.error["param"]) == (400, "n")
            assert "at most 3" in reply.error["message"]
            assert model.asked == []
            assert (await ask(server, "/v1/completions", completion(n=3))).status == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_a_grammar_that_cannot_be_followed_is_the_requests_fault(
    fields: dict[str, Any], param: str
) -> None:
    async with serving(failing(GrammarInvalid("grammar must be small"))) as (server, _model):
        reply = await ask(server, "/v1/chat/completions", chat(**fields))
        assert (reply.status, reply.error["param"]) == (400, param)
        assert reply.error["message"] == f"{param} is refused: grammar must be small"
        assert server.statistics().failed == 0


async def test_errors_do_not_repeat_all_that_was_sent() -> None:
    async with serving(saying("a")) as (server, _model):
        for more in ({"x" * 9000: 1}, {"model": "x" * 9000}):
            reply = await ask(server, "/v1/completions", {**completion(), **more})
            assert reply.status in (400, 404)
            assert len(reply.error["message"]) <= 2000
            assert len(reply.error["param"]) <= 200


async def test_offsets_of_tokens_are_places_in_the_text() -> None:
    prompt = "h\u00e9llo \u20ac!"
    tokens = tuple(byte_tokenizer().encode(prompt).ids)

    async def script(request: TokenRequest) -> AsyncIterator[TokenPiece]:
        await trio.lowlevel.checkpoint()
        assert request.prompt == tokens
        for at, token in enumerate(tokens):
            last = at + 1 == len(tokens)
            yield TokenPiece(
                token=token,
                text="",
                logprob=-1.0 if at else None,
                prompt=True,
                finish="length" if last else None,
            )

    async with serving(script) as (server, _model):
        asked = completion(prompt=prompt, echo=True, logprobs=0, max_tokens=0)
        (choice,) = (await ask(server, "/v1/completions", asked)).json()["choices"]
    offsets = choice["logprobs"]["text_offset"]
    assert choice["text"] == prompt
    # A character of several tokens begins where its first one stands.
    assert offsets == [0, 1, 1, 2, 3, 4, 5, 6, 6, 6, 7]


async def test_rows_that_no_token_has_are_told_apart() -> None:
    async def script(_request: TokenRequest) -> AsyncIterator[TokenPiece]:
        await trio.lowlevel.checkpoint()
        top = (TokenScore(299, -1.0), TokenScore(298, -2.0))
        yield TokenPiece(token=299, text="", logprob=-1.0, top=top, finish="length")

    async with serving(script) as (server, model):
        asked = completion(logprobs=2, logit_bias={"299": 5})
        (choice,) = (await ask(server, "/v1/completions", asked)).json()["choices"]
        assert model.asked[0].sampling.logit_bias == {299: 5}
    assert choice["logprobs"]["tokens"] == ["token_id:299"]
    assert choice["logprobs"]["top_logprobs"] == [{"token_id:299": -1.0, "token_id:298": -2.0}]


async def test_a_long_prompt_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def noted(*args: Any, **options: Any) -> Any:
        threads.append(threading.get_ident())
        return tokens_of(*args, **options)

    monkeypatch.setattr(_server, "tokens_of", noted)
    async with serving(saying("a")) as (server, _model):
        await ask(server, "/v1/completions", completion())
        reply = await ask(server, "/v1/completions", completion(prompt="x" * 500_000))
    assert reply.error["code"] == "context_length_exceeded"
    assert [each == threading.get_ident() for each in threads] == [True, False]


async def test_keys_have_limits_of_their_own() -> None:
    go_on = trio.Event()
    keys = {"ann": "1", "bob": "2"}
    limits = ServerLimits(requests_per_key=1)
    async with (
        serving(held(go_on), keys=keys, limits=limits) as (server, _model),
        client_of(server, "1") as ann,
        client_of(server, "2") as bob,
    ):
        of_ann = await ann.chat.completions.create(**ASKED, stream=True)
        with pytest.raises(openai.RateLimitError):
            await ann.chat.completions.create(**ASKED)
        of_bob = await bob.chat.completions.create(**ASKED, stream=True)
        go_on.set()
        for stream in (of_ann, of_bob):
            assert len([event async for event in stream]) == 4


async def test_a_device_that_recovers_refuses_new_requests() -> None:
    model = ScriptedModel(saying("a"))
    async with asking(model) as (client, _model, server):
        model.numbers = replace(model.numbers, recovering=True)
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(**ASKED)
        assert caught.value.status_code == 503
        assert caught.value.response.headers["retry-after"] == "1"
        assert (await ask(server, "/ready")).status == 503
        assert (await ask(server, "/live")).status == 200
        model.numbers = replace(model.numbers, recovering=False)
        assert (await client.chat.completions.create(**ASKED)).choices


async def test_ready_generates_a_token_and_not_more_than_one_a_second() -> None:
    model = ScriptedModel(saying("a"))
    async with serving(model) as (server, _model):
        for _ in range(3):
            assert (await ask(server, "/ready")).status == 200
        assert len(model.asked) == 1
        assert model.asked[0].sampling.max_tokens == 1
    async with serving(failing(DeviceLost("gone"))) as (server, _model):
        reply = await ask(server, "/ready")
        assert (reply.status, reply.error["code"]) == (503, "not_ready")


# --- clients that go, and the end ----------------------------------------------------------------


async def test_a_client_that_goes_has_its_request_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "_GRACE", 0.001)
    async with asking(held(trio.Event())) as (client, model, server):
        stream = await client.chat.completions.create(**ASKED, n=2, stream=True)
        await stream.close()
        await model.until_open(0)
        async with await trio.open_tcp_stream("127.0.0.1", server.port) as raw:
            await raw.send_all(posted(chat()))
            await model.until_open(1)
        await model.until_open(0)
        assert server.statistics().in_progress == 0
        assert server.statistics().aborted == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_client_that_ends_its_sending_gets_its_answer(
    stream: bool, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients such as ``nc -N`` do so. They are asked whether they are still there."""
    monkeypatch.setattr(_http, "_GRACE", 0.001)
    asked = b":\n\n" if stream else GO_ON
    go_on = trio.Event()
    async with serving(held(go_on)) as (server, model):
        with trio.fail_after(10):
            async with await trio.open_tcp_stream("127.0.0.1", server.port) as raw:
                await raw.send_all(posted(chat(stream=stream), version))
                await raw.send_eof()
                await model.until_open(1)
                answer = b""
                while asked not in answer and (stream or version == "1.1"):
                    answer += await raw.receive_some()
                go_on.set()
                answer += b"".join([part async for part in raw])
        reply = parsed(answer.replace(GO_ON, b""))
        assert reply.status == 200
        assert server.statistics().aborted == 0
        if stream:
            events = replace(reply, body=reply.body.replace(asked, b"")).events
            assert events[-1]["choices"][0]["finish_reason"] == "stop"
        else:
            assert reply.json()["choices"][0]["message"]["content"] == "ab"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_ends_its_sending_and_then_goes_is_aborted(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_http, "_GRACE", 0.001)
    async with serving(held(trio.Event())) as (server, model):
        with trio.fail_after(10):
            raw = await trio.open_tcp_stream("127.0.0.1", server.port)
            await raw.send_all(posted(chat(stream=stream)))
            await raw.send_eof()
            await model.until_open(1)
            answer = b""
            while (b":\n\n" if stream else GO_ON) not in answer:
                answer += await raw.receive_some()
            await raw.aclose()
            await model.until_open(0)
        assert server.statistics().aborted == 1


async def test_a_client_that_takes_nothing_has_its_request_aborted() -> None:
    async def endless(_request: TokenRequest) -> AsyncIterator[TokenPiece]:
        while True:
            await trio.lowlevel.checkpoint()
            yield TokenPiece(token=0, text="a" * 10_000)

    limits = ServerLimits(write_seconds=0.05)
    async with serving(endless, limits=limits) as (server, model):
        with trio.fail_after(10):
            async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
                await stream.send_all(posted(chat(stream=True)))
                await model.until_open(1)
                await model.until_open(0)


async def test_draining_waits_for_streams_and_takes_no_more() -> None:
    go_on = trio.Event()
    async with asking(held(go_on)) as (client, _model, server):
        stream = await client.chat.completions.create(**ASKED, stream=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.drain)
            while not server.statistics().draining:
                await trio.lowlevel.checkpoint()
            with pytest.raises(openai.APIConnectionError):
                await client.chat.completions.create(**ASKED)
            go_on.set()
            assert len([event async for event in stream]) == 4
        assert server.statistics().connections == 0


async def test_streams_can_be_cut_off() -> None:
    async with asking(held(trio.Event())) as (client, model, server):
        stream = await client.chat.completions.create(**ASKED, n=2, stream=True)
        server.cut_off()
        with trio.fail_after(10):
            await server.drain()
        with pytest.raises(openai.APIConnectionError):
            [event async for event in stream]
        assert (model.open, server.statistics().connections) == (0, 0)


async def test_leaving_the_block_by_an_error_does_not_wait() -> None:
    with trio.fail_after(10), pytest.raises(RuntimeError, match="of the block"):
        async with asking(held(trio.Event())) as (client, _model, _server):
            await client.chat.completions.create(**ASKED, stream=True)
            raise RuntimeError("of the block")


# --- metrics and the demonstration ---------------------------------------------------------------


async def test_metrics_are_those_that_the_gateway_reads() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    async with serving(saying("a", "b")) as (server, _model):
        await ask(server, "/v1/completions", completion(stream=True))
        await ask(server, "/v1/completions", completion(foo=1))
        reply = await ask(server, "/metrics")
        families = list(text_string_to_metric_families(reply.body.decode()))
        kinds = {family.name: family.type for family in families}
        samples = {
            (sample.name, sample.labels.get("status") or sample.labels.get("le")): sample
            for family in families
            for sample in family.samples
        }
        assert samples["vllm:num_requests_waiting", None].value == 3
        assert samples["vllm:num_requests_running", None].value == 2
        assert samples["vllm:kv_cache_usage_perc", None].value == 0.75
        config = samples["vllm:cache_config_info", None].labels
        assert (config["block_size"], config["num_gpu_blocks"]) == ("16", "8")
        assert samples["atomr_accel_llm_generated_tokens_total", None].value == 2
        assert samples["atomr_accel_llm_model_faults_total", None].value == 0
        assert kinds["atomr_accel_llm_model_faults"] == "counter"
        assert kinds["atomr_accel_llm_model_recovering"] == "gauge"
        assert samples["atomr_accel_llm_answers_total", "400"].value == 1
        assert samples["atomr_accel_llm_time_to_first_token_seconds_bucket", "+Inf"].value == 1
        assert samples["atomr_accel_llm_time_between_tokens_seconds_count", None].value == 1


def test_every_statistic_of_a_model_is_a_counter_or_a_gauge() -> None:
    gauges = {"waiting", "running", "tokens_per_second", "pages", "page_size", "pages_used"}
    gauges |= {"pages_cached", "suspects", "recovering", "draining", "durable_cache"}
    assert {field.name for field in fields(LanguageModelStatistics)} == gauges | GROWING
    assert not gauges & GROWING


async def test_faults_on_purpose_are_there_if_asked_for() -> None:
    caused = []

    async def cause() -> str:
        await trio.lowlevel.checkpoint()
        caused.append(1)
        return "a fault"

    async with serving(saying("a")) as (server, _model):
        assert (await ask(server, "/demo/fault", {})).status == 404
    async with serving(saying("a"), cause_fault=cause, keys={"a": "k"}) as (server, _model):
        assert (await ask(server, "/demo/fault", {})).status == 401
        headers = {"authorization": "Bearer k"}
        assert (await ask(server, "/demo/fault", {}, headers=headers)).json() == {
            "fault": "a fault"
        }
    assert caused == [1]
