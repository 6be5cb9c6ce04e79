"""Chat templates: messages as the text that a model was trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

from ._folder_errors import ChatRefused, ModelFolderBroken
from ._packages import package


class ChatTemplate:
    """A chat template, which runs in Jinja's sandbox.

    It has the functions and filters that templates of Hugging Face expect: ``tojson``,
    ``raise_exception`` and ``strftime_now``, loop controls, and ``generation`` blocks.

    Args:
        source: the template.
        tokens: texts of special tokens by their names, such as ``bos_token``.

    Raises:
        ModelFolderBroken: the template has an error of syntax.
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        jinja = package("jinja2", "jinja2")
        self._errors: Final = (jinja.TemplateError, ArithmeticError, LookupError, TypeError)
        self._tokens: Final = dict(tokens)
        environment = package("jinja2.sandbox", "jinja2").ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _generation_blocks()],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refusing(jinja.TemplateError)
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template: Final = environment.from_string(source)
        except (jinja.TemplateSyntaxError, RecursionError) as error:
            line = getattr(error, "lineno", 0)
            raise ModelFolderBroken(
                f"the chat template must be one of Jinja: {error} (line {line})"
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Return messages as text.

        Args:
            messages: objects with a ``role`` and a ``content``, as OpenAI's.
            tools: functions that the model may call, as OpenAI's; None for none.
            add_generation_prompt: whether the beginning of an answer is appended.
            options: variables of this template alone, such as ``enable_thinking``.

        Raises:
            ChatRefused: the template refuses the messages, or cannot render them.
        """
        variables = {**self._tokens, **(options or {})}
        variables |= {
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return str(self._template.render(variables))
        except (*self._errors, ValueError, AttributeError, RecursionError) as error:
            raise ChatRefused(f"the chat template refuses these messages: {error}") from error


def _refusing(error: type[Exception]) -> Callable[[str], NoReturn]:
    def raise_exception(message: str) -> NoReturn:
        raise error(message)

    return raise_exception


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _generation_blocks() -> Any:
    """Return an extension for blocks that mark the model's own text. Only their bodies count."""
    extension: Any = package("jinja2.ext", "jinja2").Extension

    class Generation(extension):  # type: ignore[misc]
        tags: Final = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    return Generation
