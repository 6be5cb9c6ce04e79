"""Text of streams: the same in whatever pieces it comes."""

from __future__ import annotations

import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atomr_accel.llm._token_stream import Detokenizer, StopTexts, TokenPlaces
from atomr_accel.llm._token_text import TokenText

from .byte_tokenizer import END, byte_tokenizer


def _spaced() -> tokenizers.Tokenizer:
    """Return a tokenizer with spaces before words, which decoding drops at the beginning."""
    words = {"<end>": 0, "▁a": 1, "▁bc": 2, "d": 3, "▁": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<end>"))
    made.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(content=" ", left=1),
        ]
    )
    made.add_special_tokens(["<end>"])
    return made


SPACED = _spaced()


@given(st.lists(st.integers(0, 319), max_size=40))
@settings(max_examples=60)
def test_any_tokens_give_the_text_of_all(tokens: list[int]) -> None:
    stream = Detokenizer(byte_tokenizer())
    pieces = [stream.add(token) for token in tokens]
    assert "".join(pieces) + stream.flush() == byte_tokenizer().decode(tokens)


LETTERS = "ab \u0000\n\u00df\u0301\u20ac\u65e5\u200d\ufffd\U0001f469"
"""Characters of one to four bytes, and those that join others."""


@given(st.text(LETTERS, max_size=20))
@settings(max_examples=60)
@example("größer 日本語 👩‍👩‍👧")
def test_characters_come_when_they_are_complete(text: str) -> None:
    stream = Detokenizer(byte_tokenizer())
    tokens = byte_tokenizer().encode(text).ids
    pieces = [stream.add(token) for token in tokens]
    assert "".join(pieces).rstrip("\ufffd") == text.rstrip("\ufffd")


@given(st.lists(st.integers(0, 4), max_size=30))
@settings(max_examples=60)
def test_a_space_is_dropped_at_the_beginning_alone(tokens: list[int]) -> None:
    stream = Detokenizer(SPACED)
    pieces = [stream.add(token) for token in tokens]
    assert "".join(pieces) + stream.flush() == SPACED.decode(tokens)


def test_bytes_that_are_no_characters_are_not_waited_for() -> None:
    stream = Detokenizer(byte_tokenizer())
    broken = byte_tokenizer().token_to_id("Ļ")  # a byte that continues a character
    assert broken is not None
    pieces = [stream.add(broken) for _ in range(500)]
    assert len("".join(pieces)) >= 490


def test_places_are_where_texts_begin() -> None:
    places = TokenPlaces(TokenText(SPACED))
    tokens = [0, 1, 2, 0, 3]
    assert SPACED.decode(tokens) == "a bcd"
    assert [places.of_generated(token) for token in tokens] == [0, 0, 1, 4, 4]
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "bc": 1}, "a"))
    places = TokenPlaces(TokenText(words))
    assert words.decode([1, 0, 1]) == "bc a bc"
    assert [places.of_generated(token) for token in (1, 0, 1)] == [0, 2, 4]


CHARACTERS = st.sampled_from([*(letter.encode() for letter in LETTERS), b"\xff", b"\x80"])
"""Characters, and bytes that are none."""


@given(st.lists(CHARACTERS, max_size=12), st.booleans())
@settings(max_examples=60)
@example([b"\xa1", b"\xf2", b"c"], False)
def test_all_bytes_of_a_character_have_its_place(characters: list[bytes], prompt: bool) -> None:
    text = TokenText(byte_tokenizer())
    known = {text(token)[1]: token for token in range(319, END, -1)}
    places = TokenPlaces(text, b"".join(characters).decode(errors="replace") if prompt else "")
    place = places.of_prompt if prompt else places.of_generated
    for at, character in enumerate(characters):
        assert {place(known[bytes([byte])]) for byte in character} == {at}


def test_places_in_a_prompt_leave_out_tokens_that_were_added_to_it() -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "bc": 1}, "a"))
    places = TokenPlaces(TokenText(SPACED), "a bcd")
    assert [places.of_prompt(token) for token in (0, 1, 2, 3)] == [0, 0, 1, 4]
    # What is generated begins a text of its own.
    assert [places.of_generated(token) for token in (2, 3, 0)] == [5, 7, 8]
    tokens = [0, 1, 0, 3]
    echo = SPACED.decode(tokens, skip_special_tokens=False)
    assert echo == "<end> a<end>d"
    places = TokenPlaces(TokenText(SPACED), echo)
    assert [places.of_prompt(token) for token in tokens] == [0, 5, 7, 12]
    places = TokenPlaces(TokenText(SPACED), echo)  # one is added before the one that the text has
    assert [places.of_prompt(token) for token in (0, *tokens)] == [0, 5, 5, 7, 12]
    words.add_special_tokens(["</s>"])
    assert words.decode([0, 2, 1], skip_special_tokens=False) == "a </s> bc"
    places = TokenPlaces(TokenText(words), "a </s> bc")
    assert [places.of_prompt(token) for token in (2, 0, 2, 1)] == [0, 0, 1, 6]


TEXTS = st.text("ab ", max_size=12)


def _until_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@given(st.lists(TEXTS, max_size=8), st.lists(st.text("ab ", min_size=1, max_size=5), max_size=3))
@settings(max_examples=150)
def test_text_ends_where_a_stop_text_is_first_complete(pieces: list[str], stops: list[str]) -> None:
    stream = StopTexts(stops)
    found = ""
    for piece in pieces:
        found += stream.add(piece)
        assert "".join(pieces).startswith(found)
        if stream.stopped:
            break
    found += stream.flush()
    assert (found, stream.stopped) == _until_stop("".join(pieces), stops)


def test_only_what_may_begin_a_stop_text_is_held_back() -> None:
    stream = StopTexts(["END"])
    assert [stream.add(piece) for piece in ("a E", "N", "x", "E")] == ["a ", "", "ENx", ""]
    assert stream.flush() == "E"
