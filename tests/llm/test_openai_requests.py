"""Translation of requests of OpenAI's API, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageFunctionToolCall
from openai.types.chat.chat_completion_message_function_tool_call import Function

from atomr_accel.llm import SamplingOptions
from atomr_accel.llm._openai import ApiError, Translated, chat_requests, completion_requests

from .stand_in import chat, completion


class Letters:
    """A model whose tokens are the numbers of letters."""

    name = "toy"
    context = 64

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return list(text.encode())

    def decode(self, tokens: Any) -> str:
        """Return the text of tokens."""
        return bytes(tokens).decode()

    def render(self, messages: Any, tools: Any) -> list[int]:
        """Return the tokens of the messages' texts."""
        self.messages, self.tools = messages, tools
        return list("".join(message["content"] for message in messages).encode())


def asked(body: dict[str, Any]) -> Translated:
    """Translate a request of either kind."""
    translate = chat_requests if "messages" in body else completion_requests
    return translate(json.dumps(body).encode(), Letters(), "me")


def options(**more: object) -> SamplingOptions:
    """Return the options of a request for text."""
    (request,) = asked(completion(**more)).requests
    return request.sampling


TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, SamplingOptions(max_tokens=16)),
        ({"temperature": 0}, SamplingOptions(temperature=0, max_tokens=16)),
        ({"temperature": None}, SamplingOptions(max_tokens=16)),
        ({"top_p": 0.5}, SamplingOptions(top_p=0.5, max_tokens=16)),
        ({"top_k": 5}, SamplingOptions(top_k=5, max_tokens=16)),
        ({"min_p": 0.1}, SamplingOptions(min_p=0.1, max_tokens=16)),
        ({"seed": -3}, SamplingOptions(seed=-3, max_tokens=16)),
        ({"stop": "a"}, SamplingOptions(stop=("a",), max_tokens=16)),
        ({"stop": ["a", "bc"]}, SamplingOptions(stop=("a", "bc"), max_tokens=16)),
        ({"max_tokens": 4}, SamplingOptions(max_tokens=4)),
        ({"presence_penalty": -2}, SamplingOptions(presence_penalty=-2, max_tokens=16)),
        ({"frequency_penalty": 2}, SamplingOptions(frequency_penalty=2, max_tokens=16)),
        ({"repetition_penalty": 1.5}, SamplingOptions(repetition_penalty=1.5, max_tokens=16)),
        ({"logit_bias": {"7": -100}}, SamplingOptions(logit_bias={7: -100}, max_tokens=16)),
        ({"logprobs": 2}, SamplingOptions(logprobs=2, max_tokens=16)),
        ({"ignore_eos": True}, SamplingOptions(ignore_eos=True, max_tokens=16)),
        ({"user": "u", "store": False, "metadata": {"a": "b"}}, SamplingOptions(max_tokens=16)),
        ({"service_tier": "auto"}, SamplingOptions(max_tokens=16)),
        ({"suffix": None, "best_of": 1, "foo": None}, SamplingOptions(max_tokens=16)),
        ({"suffix": "", "stream_options": None}, SamplingOptions(max_tokens=16)),
        ({"prompt_cache_key": "k", "safety_identifier": "s"}, SamplingOptions(max_tokens=16)),
        (
            {"logit_bias": {"300": 1}, "suffix": None},
            SamplingOptions(logit_bias={300: 1}, max_tokens=16),
        ),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else "",
)
def test_options_mean_the_same_to_the_model(
    given: dict[str, object], expected: SamplingOptions
) -> None:
    assert options(**given) == expected


def test_a_chat_may_go_on_to_the_end_of_the_context() -> None:
    (request,) = asked(chat()).requests
    assert (request.prompt, request.key, request.priority) == (tuple(b"hi"), "me", 0)
    assert request.sampling.max_tokens is None
    (request,) = asked(chat(max_completion_tokens=5, priority=2)).requests
    assert (request.sampling.max_tokens, request.priority) == (5, 2)


def test_choices_have_seeds_of_their_own_and_the_first_has_the_one_asked_for() -> None:
    made = asked(completion(["a", "bc"], n=3, seed=2**63 - 1))
    assert [request.prompt for request in made.requests] == [(97,)] * 3 + [(98, 99)] * 3
    seeds = [request.sampling.seed for request in made.requests]
    assert seeds[0] == seeds[3] == 2**63 - 1
    assert len(set(seeds)) == 3
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)
    assert made.prompt_tokens == 3
    assert {request.sampling.seed for request in asked(chat(n=2)).requests} == {None}


@pytest.mark.parametrize("prompt", ["ab", [97, 98], ["ab"], [[97, 98]]], ids=repr)
def test_prompts_are_text_or_tokens(prompt: object) -> None:
    (request,) = asked(completion(prompt)).requests
    assert request.prompt == (97, 98)


def test_messages_reach_the_template_in_its_form() -> None:
    model = Letters()
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    messages = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": parts, "name": "me"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "c"},
    ]
    body = json.dumps(chat() | {"messages": messages, "tools": [TOOL]}).encode()
    made = chat_requests(body, model, "")
    assert model.messages == [
        {"role": "system", "content": "d"},
        {"role": "user", "content": "xy", "name": "me"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
            ],
        },
        {"role": "tool", "content": "2", "tool_call_id": "c"},
    ]
    assert model.tools == [TOOL]
    assert made.tools == ("add",)
    chat_requests(json.dumps(chat(tools=[TOOL], tool_choice="none")).encode(), model, "")
    assert model.tools is None


def test_answers_that_a_client_sends_back_are_accepted() -> None:
    function = Function(name="add", arguments='{"a": null}')
    answers = [
        ChatCompletionMessage(role="assistant", content="x", annotations=[]),
        ChatCompletionMessage(
            role="assistant",
            tool_calls=[
                ChatCompletionMessageFunctionToolCall(id="c", type="function", function=function)
            ],
        ),
        ChatCompletionMessage(role="assistant"),  # of a call that was cut off
    ]
    messages = [answer.model_dump() for answer in answers]
    assert {"audio", "function_call", "refusal"} <= set(messages[0])
    more = {"modalities": ["text"], "audio": None, "functions": None, "tools": None}
    model = Letters()
    chat_requests(json.dumps({**chat(), "messages": messages, **more}).encode(), model, "")
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": None}}}
    assert model.messages == [
        {"role": "assistant", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "assistant", "content": ""},
    ]


def test_nulls_in_schemas_stay() -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"default": None}}}
    model = Letters()
    chat_requests(json.dumps(chat(tools=[tool], audio=None)).encode(), model, "")
    assert model.tools[0]["function"]["parameters"] == {"default": None}


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_object"}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": SCHEMA, "strict": True},
            }
        },
        {"structured_outputs": {"regex": "a+"}},
        {"structured_outputs": {"choice": ['a"b', "c\nd"]}},
        {"structured_outputs": {"grammar": 'start: "a" | "b"'}},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": NAMED, "parallel_tool_calls": False},
    ],
    ids=str,
)
def test_forms_of_text_are_grammars_that_compile(more: dict[str, Any]) -> None:
    (request,) = asked(chat(**more)).requests
    assert request.sampling.grammar
    assert LLMatcher.validate_grammar(request.sampling.grammar) == ""
    (free,) = asked(chat(response_format={"type": "text"})).requests
    assert free.sampling.grammar is None


REFUSED: list[tuple[dict[str, object], str, str]] = [
    ({"foo": 1}, "foo", "unknown_parameter"),
    ({"messages": [{"role": "user", "content": "a", "x": 1}]}, "messages[0].x", "unknown"),
    ({"messages": [{"content": "a"}]}, "messages[0].role", "missing"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "invalid"),
    ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id", "invalid_value"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages", "invalid_value"),
    ({"messages": [{"role": "user", "content": "a" * 64}]}, "messages", "context_length_exceeded"),
    ({"max_tokens": 63}, "max_tokens", "context_length_exceeded"),
    ({"max_completion_tokens": 63}, "max_completion_tokens", "context_length_exceeded"),
    ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"model": "other"}, "model", "model_not_found"),
    ({"temperature": 2.5}, "temperature", "invalid_value"),
    ({"temperature": "hot"}, "temperature", "invalid_value"),
    ({"top_p": -1}, "top_p", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 1.5}, "n", "invalid_value"),
    ({"seed": 2**63}, "seed", "invalid_value"),
    ({"stop": ["a"] * 5}, "stop", "invalid_value"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {str(2**31): 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"1": None}}, "logit_bias", "invalid_value"),
    ({"repetition_penalty": 1e-320}, "repetition_penalty", "invalid_value"),
    ({"repetition_penalty": 1e300}, "repetition_penalty", "invalid_value"),
    ({"modalities": ["text", "audio"]}, "modalities", "invalid_value"),
    ({"model": None}, "model", "missing"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "invalid_value"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "invalid_value"),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"store": True}, "store", "invalid_value"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema",
        "invalid_value",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": {"type": "blah"}},
            }
        },
        "response_format.json_schema.schema",
        "invalid_value",
    ),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "invalid_value"),
    ({"structured_outputs": {"grammar": "?"}}, "structured_outputs.grammar", "invalid_value"),
    ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tools": [TOOL, TOOL]}, "tools", "invalid_value"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice.function.name",
        "invalid_value",
    ),
    (
        {"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}},
        "tool_choice",
        "invalid_value",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools[0].function.name",
        "invalid_value",
    ),
]


@pytest.mark.parametrize(("more", "param", "code"), REFUSED, ids=str)
def test_what_a_chat_refuses_names_its_field(
    more: dict[str, object], param: str, code: str
) -> None:
    with pytest.raises(ApiError) as caught:
        asked(chat() | more)
    error = caught.value
    assert error.status == (404 if code == "model_not_found" else 400)
    assert error.param is not None
    assert error.param.startswith(param)
    assert error.code is not None
    assert code in error.code
    assert error.param.split("[")[0].split(".")[0] in str(error)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"logprobs": 6}, "logprobs"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"suffix": "a"}, "suffix"),
        ({"messages": 1}, "messages"),
    ],
    ids=str,
)
def test_what_a_completion_refuses_names_its_field(more: dict[str, object], param: str) -> None:
    body = json.dumps(completion() | more).encode()
    with pytest.raises(ApiError) as caught:
        completion_requests(body, Letters(), "")
    assert (caught.value.status, caught.value.param) == (400, param)


@given(st.binary(max_size=40) | st.just(b"[" * 100_000))
def test_bytes_that_are_no_request_are_refused(body: bytes) -> None:
    for translate in (chat_requests, completion_requests):
        with pytest.raises(ApiError) as caught:
            translate(body, Letters(), "")
        assert caught.value.status == 400
        assert set(json.loads(caught.value.body())["error"]) == {
            "message",
            "type",
            "param",
            "code",
        }
