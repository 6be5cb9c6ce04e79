"""A tokenizer of bytes, some pairs of them, and an end of text."""

from __future__ import annotations

from functools import cache

import tokenizers

END = 0
"""The token that ends a text."""


@cache
def byte_tokenizer() -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer of 320 tokens."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<end>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = 'the stream of tokens, {\'name\': "weather", "size": [1, 2, 34]} and größer 日本語 ' * 4
    made.train_from_iterator([text, "true false null 0.125 and so on and so on"] * 3, trainer)
    return made
