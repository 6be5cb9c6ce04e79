"""Requests of OpenAI's API, checked and translated into requests for tokens, without I/O.

Unsupported requests are refused by an error that names the field. No parameter is ignored, unless
it has no effect by its nature, such as ``user``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, NoReturn, Protocol, TypeVar

import msgspec

from .._errors import AccelError
from ._requests import SamplingOptions, TokenRequest
from ._sampler import HUGE
from ._tool_calls import BEGIN, END

_LONGEST_MESSAGE: Final = 2000
_LONGEST_PARAM: Final = 200
"""Characters of an error, which may name what a client has sent, of any length."""


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


class ApiError(Exception):
    """A request is refused, or has failed; the client gets OpenAI's form of it.

    ``code`` is a word for programs, ``kind`` OpenAI's ``type`` of the error. ``retry_after`` is in
    seconds.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        retry_after: int | None = None,
    ) -> None:
        super().__init__(_cut(message, _LONGEST_MESSAGE))
        self.status: Final = status
        self.param: Final = None if param is None else _cut(param, _LONGEST_PARAM)
        self.code: Final = code
        self.kind: Final = kind
        self.retry_after: Final = retry_after

    def body(self) -> bytes:
        """JSON as OpenAI's server gives it."""
        error = {
            "message": str(self),
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})


class PromptMaker(Protocol):
    """Maker of prompts from text and messages."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def context(self) -> int:
        """Tokens that a sequence may have."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the tokens of a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special ones included."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> Sequence[int]:
        """Return the tokens of a prompt for messages, by the model's template."""


class _RequestPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A part of a request."""


class StreamOptions(_RequestPart, frozen=True):
    """Options of streams: a last event tells how many tokens there were."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class TextPart(_RequestPart, frozen=True):
    """A part of a message, which is text."""

    type: Literal["text"]
    text: str


class CalledFunction(_RequestPart, frozen=True):
    """A function that a model has called, with JSON for its arguments."""

    name: str
    arguments: str


class EarlierToolCall(_RequestPart, frozen=True):
    """A call of a tool in a message of the assistant."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = None


class ChatMessage(_RequestPart, frozen=True):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[EarlierToolCall] | None = None
    tool_call_id: str | None = None
    # Answers have these; they are about an earlier text, which templates do not render.
    annotations: list[Any] | None = None


class FunctionTool(_RequestPart, frozen=True):
    """A function that a model may call."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_RequestPart, frozen=True):
    """A tool, which is a function."""

    type: Literal["function"]
    function: FunctionTool


class NamedFunction(_RequestPart, frozen=True):
    """The name of a function."""

    name: str


class NamedTool(_RequestPart, frozen=True):
    """A choice of one tool."""

    type: Literal["function"]
    function: NamedFunction


class NamedSchema(_RequestPart, frozen=True):
    """A JSON Schema with a name."""

    name: str
    schema: dict[str, Any] | bool = True
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(_RequestPart, frozen=True):
    """Form of the text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StructuredOutputs(_RequestPart, frozen=True):
    """One of several kinds of grammars; an extension of OpenAI's API."""

    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


_Unit = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_Count = Annotated[int, msgspec.Meta(ge=1)]
_LAST_TOKEN: Final = 2**31 - 1
"""The last token of any model. The model itself knows how many it has."""
_Token = Annotated[int, msgspec.Meta(ge=0, le=_LAST_TOKEN)]
_Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Asked(_RequestPart, frozen=True, kw_only=True):
    """Parameters of both kinds of requests."""

    model: str
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=4)] | None = None
    seed: _Seed | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logit_bias: dict[_Token, Annotated[float, msgspec.Meta(ge=-100, le=100)]] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    # Extensions, as other servers of this API have them.
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    min_p: _Unit | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(ge=1 / HUGE, le=HUGE)] | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] | None = None
    structured_outputs: StructuredOutputs | None = None


R = TypeVar("R", bound=_Asked)


class ChatRequest(_Asked, frozen=True, kw_only=True):
    """A request for the next message of a chat."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], msgspec.Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[list[Literal["text"]], msgspec.Meta(min_length=1)] | None = None


class CompletionRequest(_Asked, frozen=True, kw_only=True):
    """A request for text that continues a prompt."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    best_of: _Count | None = None
    suffix: Literal[""] | None = None


@dataclass(frozen=True, slots=True)
class Translated:
    """A request as the model gets it.

    Attributes:
        requests: one for each choice.
        prompt_tokens: tokens of all prompts, each counted once.
        chat: whether the answer is a message.
        stream: whether the answer is a stream.
        include_usage: whether a last event of the stream counts tokens.
        logprobs: the number of alternatives beside each token; None leaves logprobs out.
        tools: names of tools whose calls are found in the text.
        echo: the texts before each choice.
        grammar_field: the name of the field that asks for the grammar, or None.
    """

    requests: tuple[TokenRequest, ...]
    prompt_tokens: int
    chat: bool
    stream: bool
    include_usage: bool
    logprobs: int | None
    tools: tuple[str, ...] = ()
    echo: tuple[str, ...] = ()
    grammar_field: str | None = None


def chat_requests(body: bytes, maker: PromptMaker, key: str) -> Translated:
    """Translate the body of a request for a chat's next message."""
    asked = _decoded(body, ChatRequest, maker)
    if asked.top_logprobs is not None and not asked.logprobs:
        _refuse("top_logprobs must come with logprobs: true, not alone", "top_logprobs")
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        _refuse("max_tokens must not come with max_completion_tokens; give one", "max_tokens")
    tools, names, grammar = _tools(asked)
    messages = [_message(at, each) for at, each in enumerate(asked.messages)]
    try:
        prompt = tuple(maker.render(messages, tools or None))
    except (AccelError, ValueError, TypeError, LookupError) as error:
        raise ApiError(
            400, f"messages must be as the model's template takes them: {error}", param="messages"
        ) from error
    limit, field = asked.max_completion_tokens, "max_completion_tokens"
    if limit is None:
        limit, field = asked.max_tokens, "max_tokens"
    _check_length(prompt, limit, maker, "messages", field)
    options = _options(asked, limit, grammar or _grammar(asked, asked.response_format))
    logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
    options = replace(options, logprobs=logprobs)
    return _translated(
        asked, [prompt], options, key, chat=True, logprobs=logprobs, tools=names, echo=()
    )


def completion_requests(body: bytes, maker: PromptMaker, key: str) -> Translated:
    """Translate the body of a request for text that continues a prompt, or several."""
    asked = _decoded(body, CompletionRequest, maker)
    if asked.best_of not in (None, asked.n or 1):
        _refuse(f"best_of must be as n is, {asked.n or 1}, not {asked.best_of}", "best_of")
    several = _several(asked.prompt)
    prompts = [_prompt(each, maker) for each in several]
    for prompt in prompts:
        _check_length(prompt, asked.max_tokens, maker, "prompt", "max_tokens")
    # As OpenAI's own: 16 tokens, unless something else is asked for.
    limit = 16 if asked.max_tokens is None else asked.max_tokens
    scored = asked.logprobs if asked.echo else None
    options = replace(
        _options(asked, limit, _grammar(asked, None)),
        logprobs=asked.logprobs,
        prompt_logprobs=0 if scored is None and not limit else scored,
    )
    echo: tuple[str, ...] = ()
    if asked.echo:
        texts = [each if isinstance(each, str) else maker.decode(each) for each in several]
        echo = tuple(text for text in texts for _ in range(asked.n or 1))
    return _translated(
        asked, prompts, options, key, chat=False, logprobs=asked.logprobs, tools=(), echo=echo
    )


def _decoded(body: bytes, kind: type[R], maker: PromptMaker) -> R:
    try:
        try:
            asked = msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError:
            asked = msgspec.convert(_without_nulls(msgspec.json.decode(body)), kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body must be JSON: {error}") from None
    if asked.model != maker.name:
        raise ApiError(
            404,
            f"there is no model {asked.model!r} here; ask for {maker.name!r}",
            param="model",
            code="model_not_found",
        )
    if asked.stream_options is not None and not asked.stream:
        _refuse("stream_options must come with stream: true, not alone", "stream_options")
    return asked


_VALUES: Final = frozenset(("logit_bias", "metadata", "parameters", "schema"))
"""Fields whose objects have names of the client's choice."""


def _without_nulls(value: Any) -> Any:
    """Return a request without fields that are null: clients send these for any that are absent."""
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if isinstance(value, dict):
        return {
            name: each if name in _VALUES else _without_nulls(each)
            for name, each in value.items()
            if each is not None
        }
    return value


_WHERE: Final = re.compile(r"(?s)^(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?$")
_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(?P<name>.*)`$", re.DOTALL)


def _invalid(said: str) -> ApiError:
    """Return OpenAI's error for one of msgspec's, which names the field."""
    found = _WHERE.match(said)
    assert found is not None
    path = (found["path"] or "").removeprefix(".")
    what = found["what"]
    inside = f"{path}." if path else ""
    if unknown := _UNKNOWN.match(what):
        name = f"{inside}{unknown['name']}"
        return ApiError(400, f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
    if missing := _MISSING.match(what):
        name = f"{inside}{missing['name']}"
        return ApiError(
            400,
            f"Missing required parameter: '{name}'.",
            param=name,
            code="missing_required_parameter",
        )
    field = path or "body"
    return ApiError(
        400, f"Invalid value for '{field}': {what}.", param=path or None, code="invalid_value"
    )


def _refuse(message: str, param: str, code: str | None = "invalid_value") -> NoReturn:
    raise ApiError(400, message, param=param, code=code)


def _check_length(
    prompt: Sequence[int], limit: int | None, maker: PromptMaker, param: str, limit_param: str
) -> None:
    if not prompt:
        _refuse(f"{param} must have at least one token, not none", param)
    if len(prompt) >= maker.context:
        _refuse(
            f"{param} must have fewer tokens than the model's context of {maker.context}, not "
            f"{len(prompt)}",
            param,
            "context_length_exceeded",
        )
    if limit is not None and len(prompt) + limit > maker.context:
        _refuse(
            f"{limit_param} must be at most {maker.context - len(prompt)}, not {limit}: the "
            f"prompt has {len(prompt)} tokens, and the model's context is {maker.context}",
            limit_param,
            "context_length_exceeded",
        )


def _several(given: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """Return prompts, which are all text or all tokens."""
    if isinstance(given, str):
        return [given]
    tokens = [each for each in given if isinstance(each, int)]
    if tokens and len(tokens) == len(given):
        return [tokens]
    several = [each for each in given if not isinstance(each, int)]
    if not several or tokens or len({type(each) for each in several}) > 1:
        _refuse("prompt must be text, tokens, or a list of several of one of these", "prompt")
    return several


def _prompt(given: str | list[int], maker: PromptMaker) -> tuple[int, ...]:
    if isinstance(given, str):
        return tuple(maker.encode(given))
    for token in given:
        if not 0 <= token <= _LAST_TOKEN:
            _refuse(f"prompt must have tokens from 0 to {_LAST_TOKEN}, not {token}", "prompt")
    return tuple(given)


def _options(asked: _Asked, limit: int | None, grammar: str | None) -> SamplingOptions:
    stop = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    if "" in stop:
        _refuse("stop must have texts that are not empty", "stop")
    chosen = {
        "temperature": asked.temperature,
        "top_k": asked.top_k,
        "top_p": asked.top_p,
        "min_p": asked.min_p,
        "presence_penalty": asked.presence_penalty,
        "frequency_penalty": asked.frequency_penalty,
        "repetition_penalty": asked.repetition_penalty,
        "logit_bias": asked.logit_bias,
        "ignore_eos": asked.ignore_eos,
    }
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    return SamplingOptions(stop=stop, seed=asked.seed, max_tokens=limit, grammar=grammar, **given)


def _translated(
    asked: _Asked,
    prompts: Sequence[tuple[int, ...]],
    options: SamplingOptions,
    key: str,
    *,
    chat: bool,
    logprobs: int | None,
    tools: tuple[str, ...],
    echo: tuple[str, ...],
) -> Translated:
    requests = [
        TokenRequest(
            prompt=prompt,
            sampling=replace(options, seed=_seed(options.seed, number)),
            priority=asked.priority or 0,
            key=key,
        )
        for prompt in prompts
        for number in range(asked.n or 1)
    ]
    return Translated(
        requests=tuple(requests),
        prompt_tokens=sum(map(len, prompts)),
        chat=chat,
        stream=bool(asked.stream),
        include_usage=asked.stream_options is not None and asked.stream_options.include_usage,
        logprobs=logprobs,
        tools=tools,
        echo=echo,
        grammar_field=_grammar_field(asked, options),
    )


def _grammar_field(asked: _Asked, options: SamplingOptions) -> str | None:
    if options.grammar is None:
        return None
    if (outputs := asked.structured_outputs) is not None:
        names = ("regex", "choice", "grammar")
        return f"structured_outputs.{next(name for name in names if getattr(outputs, name))}"
    form = asked.response_format if isinstance(asked, ChatRequest) else None
    return "tool_choice" if form is None or form.type == "text" else "response_format"


def _seed(seed: int | None, number: int) -> int | None:
    """Return the seed of one of several choices. The first has the request's own."""
    if seed is None or number == 0:
        return seed
    return (seed + number * 0x9E3779B97F4A7C15) % 2**63


def _message(at: int, message: ChatMessage) -> dict[str, Any]:
    """Return a message as templates take it."""
    where = f"messages[{at}]"
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    # An answer may be a call alone, or nothing where one was cut off.
    if message.role != "assistant":
        if content is None:
            _refuse(f"{where}.content must be text, not null", f"{where}.content")
        if message.tool_calls:
            _refuse(
                f"{where}.tool_calls must be the assistant's, not {message.role}'s",
                f"{where}.tool_calls",
            )
    if (message.role == "tool") != (message.tool_call_id is not None):
        _refuse(
            f"{where}.tool_call_id must be in messages of tools, and only there",
            f"{where}.tool_call_id",
        )
    role = "system" if message.role == "developer" else message.role
    made: dict[str, Any] = {"role": role, "content": "" if content is None else content}
    if message.name is not None:
        made["name"] = message.name
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        made["tool_calls"] = [
            _earlier_call(f"{where}.tool_calls[{number}]", call)
            for number, call in enumerate(message.tool_calls)
        ]
    return made


def _earlier_call(where: str, call: EarlierToolCall) -> dict[str, Any]:
    field = f"{where}.function.arguments"
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        _refuse(f"{field} must be JSON", field)
    if not isinstance(arguments, dict):
        _refuse(f"{field} must be JSON of an object", field)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _tools(
    asked: ChatRequest,
) -> tuple[list[dict[str, Any]], tuple[str, ...], str | None]:
    """Return tools for the template, names of those to find, and a grammar that wants a call."""
    choice = asked.tool_choice
    if not asked.tools:
        if choice not in (None, "none", "auto"):
            _refuse("tool_choice must come with tools, not alone", "tool_choice")
        return [], (), None
    functions = {tool.function.name: tool.function for tool in asked.tools}
    if len(functions) != len(asked.tools):
        _refuse("tools must have names of their own, not one twice", "tools")
    if choice == "none":
        return [], (), None
    if isinstance(choice, NamedTool):
        if choice.function.name not in functions:
            _refuse(
                f"tool_choice must name one of tools, not {choice.function.name!r}",
                "tool_choice.function.name",
            )
        wanted = [functions[choice.function.name]]
    else:
        wanted = list(functions.values()) if choice == "required" else []
    grammar = None
    if wanted:
        form = asked.response_format
        if (form is not None and form.type != "text") or asked.structured_outputs is not None:
            _refuse("tool_choice must not want a call together with another form", "tool_choice")
        grammar = _calls_grammar(wanted, several=asked.parallel_tool_calls is not False)
    # Without the fields that were not given, since templates print what there is.
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in functions.values()
    ]
    return tools, tuple(functions), grammar


def _calls_grammar(functions: Sequence[FunctionTool], *, several: bool) -> str:
    """Return a grammar of one call or more."""
    schemas = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function.name},
                "arguments": function.parameters or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in functions
    ]
    bodies = [f"body_{number}: %json {json.dumps(schema)}" for number, schema in enumerate(schemas)]
    either = " | ".join(f"body_{number}" for number in range(len(schemas)))
    rules = [
        'start: call ("\\n" call)*' if several else "start: call",
        f'call: {json.dumps(BEGIN)} "\\n" body "\\n" {json.dumps(END)}',
        f"body: {either}",
        *bodies,
    ]
    return _checked("\n".join(rules), "tools", from_lark=True)


def _grammar(asked: _Asked, form: ResponseFormat | None) -> str | None:
    """Return the grammar that the text must follow, if any."""
    outputs = asked.structured_outputs
    if form is not None and form.type != "text":
        if outputs is not None:
            _refuse("structured_outputs must not come with response_format", "structured_outputs")
        if form.type == "json_object":
            return _checked({"type": "object"}, "response_format")
        if form.json_schema is None:
            _refuse(
                "response_format.json_schema must be given with type json_schema",
                "response_format.json_schema",
            )
        return _checked(form.json_schema.schema, "response_format.json_schema.schema")
    if form is not None and form.json_schema is not None:
        _refuse("response_format.json_schema must come with type json_schema", "response_format")
    if outputs is None:
        return None
    given = [name for name in ("regex", "choice", "grammar") if getattr(outputs, name) is not None]
    if len(given) != 1:
        _refuse(
            "structured_outputs must have one of regex, choice and grammar", "structured_outputs"
        )
    field = f"structured_outputs.{given[0]}"
    if outputs.choice is not None:
        if not outputs.choice:
            _refuse(f"{field} must have at least one text", field)
        # In Lark's strings, escapes are those of JSON.
        return _checked(
            "start: " + " | ".join(map(json.dumps, outputs.choice)), field, from_lark=True
        )
    if outputs.regex is not None:
        return _checked(outputs.regex, field, from_regex=True)
    return _checked(outputs.grammar or "", field, from_lark=True)


def _checked(given: Any, param: str, *, from_lark: bool = False, from_regex: bool = False) -> str:
    """Return a grammar for llguidance, which has looked at it."""
    from llguidance import LLMatcher

    try:
        if from_lark:
            grammar = LLMatcher.grammar_from_lark(given)
        elif from_regex:
            grammar = LLMatcher.grammar_from_regex(given)
        else:
            grammar = LLMatcher.grammar_from_json_schema(given)
        wrong = LLMatcher.validate_grammar(grammar)
    except ValueError as error:
        wrong = str(error)
    if wrong:
        _refuse(f"{param} must be a grammar that can be followed: {wrong}", param)
    return grammar
