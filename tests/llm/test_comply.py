"""Checks of a server by the package `llm-comply`: it passes, apart from pictures."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
import trio

from atomr_accel.llm import TokenPiece, TokenRequest

from .stand_in import ScriptedModel, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REFUSED = {"chat-image-input"}
"""Messages are text; the error names the field."""

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Paris"}}\n</tool_call>'


async def test_llm_comply_passes() -> None:
    pytest.importorskip("llm_comply")

    async def script(_request: TokenRequest) -> AsyncIterator[TokenPiece]:
        text = CALL if model.tools else "one two three"
        for letter in text:
            await trio.lowlevel.checkpoint()
            yield TokenPiece(token=ord(letter), text=letter)
        yield TokenPiece(token=0, text="", finish="stop")

    model = ScriptedModel(script, context=4096)
    async with serving(model) as (server, _):
        words = ["--base-url", f"{server.url}/v1", "--api-key", "none", "--model", "toy"]
        words += ["--format", "openai-chat", "--json"]
        program = "import sys; from llm_comply.cli import main; sys.exit(main())"
        with trio.fail_after(100):
            done = await trio.run_process(
                [sys.executable, "-c", program, *words],
                check=False,
                capture_stdout=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
    results: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    table = {each["id"]: each for each in results}
    assert len(table) == 9
    failed = {name for name, result in table.items() if result["status"] == "failed"}
    assert failed == REFUSED, table
    assert not any(result.get("warnings") for result in results), table
