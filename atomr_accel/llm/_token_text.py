"""Tokens of texts, and texts of single tokens: a token may be a part of a character."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTE: Final = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
_SPACE: Final = "\u2581"


def tokens_of(tokenizer: Tokenizer, text: str, *, special: bool) -> list[int]:
    """Return the tokens of a text, while other threads run.

    ``tokenizer.encode`` gives the same, but lets no other thread run: a prompt of megabytes would
    hold up every stream for seconds.

    Args:
        tokenizer: of the package ``tokenizers``.
        text: the text.
        special: whether to add the tokens that begin and end a text.
    """
    (found,) = tokenizer.encode_batch_fast([text], add_special_tokens=special)
    tokens: list[int] = found.ids
    return tokens


@final
class TokenText:
    """Texts and bytes of the tokens of a tokenizer.

    Args:
        tokenizer: of the package ``tokenizers``.

    Attributes:
        tokenizer: the same.
        special: texts of special tokens, which texts of several tokens leave out.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer: Final = tokenizer
        decoder = tokenizer.decoder
        about = "" if decoder is None else json.dumps(json.loads(decoder.__getstate__()))
        self._by_bytes: Final = "ByteLevel" in about
        self._with_spaces: Final = any(
            each in about for each in ("Metaspace", "ByteFallback", '"Replace"')
        )
        added = tokenizer.get_added_tokens_decoder()
        self._added: Final = {number: token.content for number, token in added.items()}
        self.special: Final = {
            number: token.content for number, token in added.items() if token.special
        }

    def __call__(self, token: int) -> tuple[str, bytes]:
        """Return a token's text and bytes.

        A part of a character becomes the text of its bytes. A row of the model's vocabulary that no
        token has becomes its number, without bytes.
        """
        content = self._bytes(token)
        if content is None:
            return f"token_id:{token}", b""
        try:
            return content.decode("utf-8"), content
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content), content

    def _bytes(self, token: int) -> bytes | None:
        if token in self._added:
            return self._added[token].encode()
        text = self.tokenizer.id_to_token(token)
        if text is None:
            return None
        if self._by_bytes:
            alphabet = _byte_alphabet()
            if all(letter in alphabet for letter in text):
                return bytes(alphabet[letter] for letter in text)
        elif found := _BYTE.match(text):
            return bytes([int(found[1], 16)])
        elif self._with_spaces:
            text = text.replace(_SPACE, " ")
        return str(text).encode()


@lru_cache(maxsize=1)
def _byte_alphabet() -> Mapping[str, int]:
    """Return the letters that stand for bytes in byte-level vocabularies.

    Printable bytes of Latin-1 stand for themselves, and the others for letters from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + at): byte for at, byte in enumerate(others)}
