"""Calls of tools in the text of a model, which are found while it is being generated.

Models write a call as JSON with a name and arguments, between two marks. Anything else between the
marks is text like the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any, Final, final

BEGIN: Final = "<tool_call>"
"""Text before a call."""
END: Final = "</tool_call>"
"""Text behind a call."""
_HEAD: Final = re.compile(
    r"""\s*\{\s*"name"\s*:\s*(?P<name>"[^"\\]*")"""
    r"""(?:\s*,\s*"arguments"\s*:\s*(?P<arguments>\{.*))?""",
    re.DOTALL,
)
"""The beginning of a call's JSON, from which its name is known."""
_NONE: Final = object()
"""The value of any other text than JSON."""


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A call of a tool.

    Attributes:
        number: calls of the text before it.
        name: the tool's name.
        arguments: JSON of an object; of a call that was cut off, its beginning.
    """

    number: int
    name: str
    arguments: str


@final
class ToolCallFinder:
    """Parts of a text: plain text and calls of tools, as they become known.

    Args:
        names: the tools that there are; calls of others are text.
        only: whether the text has nothing but calls.

    Attributes:
        found: calls so far.
        begun: whether the last of them is the beginning of one that was cut off.
        dropped: whether the text was cut off in a call before its name was known.
    """

    def __init__(self, names: Iterable[str], *, only: bool = False) -> None:
        self._names: Final[Set[str]] = frozenset(names)
        self._only: Final = only
        self._held = ""
        self._inside = False
        self._space: str | None = None  # what follows a call, as long as that is only space
        self.found = 0
        self.begun = False
        self.dropped = False

    def add(self, text: str) -> list[str | CalledTool]:
        """Take a further piece of the text; return the parts that are known now, in order."""
        self._held += text
        parts: list[str | CalledTool] = []
        while self._held:
            mark = END if self._inside else BEGIN
            at = self._held.find(mark)
            if at < 0:
                break
            body, self._held = self._held[:at], self._held[at + len(mark) :]
            if not self._inside:
                parts.append(body)
            else:
                parts.append(self._call(_json(body)) or f"{BEGIN}{body}{END}")
            self._inside = not self._inside
        if not self._inside:
            kept = _begun(self._held)
            parts.append(self._held[: len(self._held) - kept])
            self._held = self._held[len(self._held) - kept :]
        return self._without_space(parts)

    def end(self) -> list[str | CalledTool]:
        """Return the rest: no more text comes.

        A call without its last mark counts: a model may stop right after the JSON. So does the
        beginning of a call with its name. A beginning without the name is dropped.
        """
        rest, self._held = self._held, ""
        part: str | CalledTool = rest
        if self._inside:
            self._inside = False
            body = rest[: len(rest) - _begun(rest, END)]
            value = _json(body)
            call = self._call(value) or (self._cut_call(body) if value is _NONE else None)
            self.dropped = call is None and value is _NONE and _may_become_call(body)
            part = call or ("" if self.dropped else f"{BEGIN}{rest}")
        elif self._only:
            self.dropped = bool(rest)  # of the first mark
            part = ""
        return self._without_space([part])

    def _without_space(self, parts: list[str | CalledTool]) -> list[str | CalledTool]:
        """Leave out empty text, and white space from a call to the next one or the end."""
        kept: list[str | CalledTool] = []
        for part in parts:
            if isinstance(part, CalledTool):
                self._space = ""
                kept.append(part)
            elif self._space is not None and not part.strip():
                self._space += part
            elif part:
                kept.append((self._space or "") + part)
                self._space = None
        return kept

    def _call(self, value: Any) -> CalledTool | None:
        if not isinstance(value, dict):
            return None
        name = value.get("name")
        if not isinstance(name, str) or name not in self._names:
            return None
        arguments = value.get("arguments", {})
        if not isinstance(arguments, dict):
            return None
        return self._found(name, json.dumps(arguments, ensure_ascii=False))

    def _cut_call(self, text: str) -> CalledTool | None:
        """Return the call that a text begins, if its name is known."""
        head = _HEAD.match(text)
        if head is None:
            return None
        name = json.loads(head["name"])
        if name not in self._names:
            return None
        self.begun = True
        rest = head["arguments"] or ""
        try:  # the arguments may have ended before the call has
            arguments, _ = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            return self._found(name, rest)
        return self._found(name, json.dumps(arguments, ensure_ascii=False))

    def _found(self, name: str, arguments: str) -> CalledTool:
        self.found += 1
        return CalledTool(self.found - 1, name, arguments)


def _json(text: str) -> Any:
    """Return the value of JSON, or `_NONE` if that is what the text is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NONE


def _may_become_call(text: str) -> bool:
    """Return whether more text could make a call of it."""
    return _HEAD.match(text) is None and text.lstrip()[:1] in ("", "{")


def _begun(text: str, mark: str = BEGIN) -> int:
    """Return the length of the end of a text that may begin a mark."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0
