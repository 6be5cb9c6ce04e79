"""Calls of tools in text that arrives in pieces."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel.llm._tool_calls import BEGIN, END, CalledTool, ToolCallFinder

NAMES = ("look_up", "add")
TEXTS = st.text("ab <>/tol_c\n", max_size=12).filter(lambda text: BEGIN not in text)
ARGUMENTS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=2)
CALLS = st.builds(lambda name, arguments: (name, arguments), st.sampled_from(NAMES), ARGUMENTS)


def found(text: str, cuts: list[int], *, only: bool = False) -> list[str | CalledTool]:
    """Return the parts of a text that comes in pieces, with neighbouring texts joined."""
    finder = ToolCallFinder(NAMES, only=only)
    parts: list[str | CalledTool] = []
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in itertools.pairwise(edges):
        parts += finder.add(text[start:end])
    parts += finder.end()
    joined: list[str | CalledTool] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


@given(st.lists(TEXTS | CALLS, max_size=4), st.lists(st.integers(0, 1000), max_size=8))
def test_calls_are_found_however_the_text_is_cut(
    parts: list[str | tuple[str, dict[str, object]]], cuts: list[int]
) -> None:
    text = "".join(
        part
        if isinstance(part, str)
        else f"{BEGIN}\n{json.dumps({'name': part[0], 'arguments': part[1]})}\n{END}"
        for part in parts
    )
    calls = [part for part in parts if not isinstance(part, str)]
    told = [part for part in found(text, cuts) if isinstance(part, CalledTool)]
    assert [(call.name, json.loads(call.arguments)) for call in told] == calls
    assert [call.number for call in told] == list(range(len(calls)))
    assert found(text, cuts) == found(text, [])


@given(
    st.text("ab <>/tol_ca\n", max_size=30).filter(lambda text: BEGIN not in text),
    st.lists(st.integers(0, 100), max_size=8),
)
def test_text_without_calls_is_unchanged(text: str, cuts: list[int]) -> None:
    assert "".join(str(part) for part in found(text, cuts)) == text


def test_what_is_no_call_is_text() -> None:
    for body in (
        "no JSON",
        '{"name": "unknown", "arguments": {}}',
        '{"name": "add", "arguments": 3}',
        '{"name": ["add"]}',
        "{}",
        "[1]",
        "[" * 100_000,
    ):
        text = f"{BEGIN}{body}{END}"
        assert found(text, [5, 9]) == [text]
        assert found(f"{BEGIN}{body}", []) == [f"{BEGIN}{body}"]


def test_a_call_counts_without_its_last_mark() -> None:
    assert found(f'{BEGIN}{{"name": "add"}}', []) == [CalledTool(0, "add", "{}")]


@given(CALLS, st.integers(0, 1000), st.booleans())
def test_a_call_that_is_cut_off_has_the_beginning_of_its_arguments(
    call: tuple[str, dict[str, object]], at: int, ascii_only: bool
) -> None:
    name, arguments = call
    whole = json.dumps(arguments, ensure_ascii=ascii_only)
    head = f'{BEGIN}\n{{"name": "{name}"'
    rest = f', "arguments": {whole}}}\n{END}'
    kept = rest[: at % len(rest)]
    (part,) = found(head + kept, [3, at])
    assert isinstance(part, CalledTool)
    assert (part.number, part.name) == (0, name)
    got = kept[len(', "arguments": ') :].removesuffix("\n")
    if len(got) >= len(whole):
        assert json.loads(part.arguments) == arguments
    else:
        assert part.arguments == got
        assert whole.startswith(part.arguments)


def test_a_call_that_is_cut_off_in_its_last_mark_is_whole() -> None:
    text = f'{BEGIN}{{"name": "add", "arguments": {{"a": 1}}}}\n{END}'
    for length in range(text.index(END), len(text)):
        assert found(text[:length], []) == [CalledTool(0, "add", '{"a": 1}')]


@pytest.mark.parametrize(
    "body", ["", "\n", '{"na', '{"name": "ad', '{"arguments": {"name": "x"}, "na']
)
def test_what_is_cut_off_before_its_name_is_dropped(body: str) -> None:
    finder = ToolCallFinder(NAMES)
    assert finder.add(f"{BEGIN}{body}") + finder.end() == []
    assert (finder.found, finder.begun, finder.dropped) == (0, False, True)
    assert found(f"So: {BEGIN}{body}", [6]) == ["So: "]


@pytest.mark.parametrize("body", ['{"name": "other", "arguments": {', '["name"', "no call"])
def test_what_will_be_no_call_of_a_tool_is_text(body: str) -> None:
    assert found(f"{BEGIN}{body}", [4]) == [f"{BEGIN}{body}"]


def test_text_of_calls_alone_has_no_other_text_wherever_it_is_cut_off() -> None:
    text = f'{BEGIN}\n{{"name": "add", "arguments": {{"a": 1}}}}\n{END}'
    for length in range(2 * len(text) + 1):
        parts = found(f"{text}\n{text}"[:length], [length // 2], only=True)
        assert all(isinstance(part, CalledTool) for part in parts)
    assert found("a <tool", []) == ["a <tool"]
