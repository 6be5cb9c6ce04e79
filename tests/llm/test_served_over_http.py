"""A tiny model behind HTTP, with faults of its device in the middle of streams."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from atomr_accel.llm import LanguageModelServer, open_language_model, serve_language_model
from atomr_accel.testing import poison

from ..harness import BACKEND, opened
from .stand_in import Reply, ask
from .tiny import TinyModel, make_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from atomr_accel import Device
    from atomr_accel.llm import LanguageModel

TOKENS = 24


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[tuple[Device, LanguageModel, LanguageModelServer]]:
    """A device, a tiny model and its server."""
    folder = make_folder(path / "tiny", TinyModel(context=512))
    with trio.fail_after(100):
        async with (
            opened() as device,
            open_language_model(device, folder, model_name="toy", page_size=4, pages=256) as model,
            serve_language_model(model, cause_fault=lambda: poison(device)) as server,
        ):
            yield device, model, server


def streamed(at: int) -> dict[str, Any]:
    """Return a request whose tokens depend on its seed."""
    return {
        "model": "toy",
        "prompt": f"the cat {at} sat",
        "stream": True,
        "seed": at,
        "temperature": 1.5,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "logprobs": 1,
    }


async def all_of(server: LanguageModelServer) -> list[list[Any]]:
    """Return tokens and texts of 8 streams at once."""
    found: dict[int, list[Any]] = {}

    async def one(at: int) -> None:
        reply = await ask(server, "/v1/completions", streamed(at))
        assert reply.status == 200
        found[at] = [event["choices"][0] for event in reply.events]

    async with trio.open_nursery() as nursery:
        for at in range(8):
            nursery.start_soon(one, at)
    return [found[at] for at in range(8)]


@pytest.mark.slow
async def test_faults_in_the_middle_of_streams_change_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as (device, model, server):
        expected = await all_of(server)
        assert len({str(choices) for choices in expected}) == 8
        before = device.generation
        result: list[list[Any]] = []
        async with trio.open_nursery() as nursery:

            async def again() -> None:
                result.extend(await all_of(server))

            nursery.start_soon(again)
            begun = model.statistics().tokens
            for more in (8 * 5, 8 * 12):  # each in the middle of all streams
                while model.statistics().tokens < begun + more:
                    await trio.lowlevel.checkpoint()
                await poison(device)
        assert device.generation == before + 2
        assert result == expected
        assert server.statistics().failed == 0
        assert (await ask(server, "/ready")).status == 200


@pytest.mark.slow
async def test_a_model_answers_every_kind_of_request(tmp_path: Path) -> None:
    async with served(tmp_path) as (_device, _model, server):
        chat: dict[str, Any] = {
            "model": "toy",
            "messages": [{"role": "user", "content": "the dog"}],
            "seed": 3,
            "max_tokens": 12,
        }
        whole = (await ask(server, "/v1/chat/completions", chat)).json()
        reply = await ask(server, "/v1/chat/completions", {**chat, "stream": True})
        deltas = [event["choices"][0]["delta"].get("content", "") for event in reply.events]
        assert "".join(deltas) == whole["choices"][0]["message"]["content"]
        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        made = {**chat, "response_format": form, "max_tokens": 60, "temperature": 0}
        told = (await ask(server, "/v1/chat/completions", made)).json()["choices"][0]
        if told["finish_reason"] == "stop":
            assert json.loads(told["message"]["content"])["a"] in (1, 2)
        else:
            assert told["message"]["content"].startswith("{")
        tool = {
            "type": "function",
            "function": {
                "name": "add",
                "parameters": {
                    "type": "object",
                    "properties": {"a": {"enum": [1, 2]}},
                    "required": ["a"],
                    "additionalProperties": False,
                },
            },
        }
        wanted = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
        wanted |= {"max_tokens": None, "temperature": 0}
        messages = [{"role": "user", "content": "a"}]
        reply = await ask(server, "/v1/chat/completions", {**chat, **wanted, "messages": messages})
        assert reply.status == 200, reply.body
        (choice,) = reply.json()["choices"]
        if choice["finish_reason"] == "tool_calls":
            (call,) = choice["message"]["tool_calls"]
            assert call["function"]["name"] == "add"
            assert json.loads(call["function"]["arguments"])["a"] in (1, 2)
        else:
            assert choice["finish_reason"] == "length"
            assert choice["message"]["content"] is None
        refused = await ask(server, "/v1/completions", {"model": "toy", "prompt": "a" * 999})
        assert refused.error["code"] == "context_length_exceeded"


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "cpu", reason="the command opens a device of the CPU backend")
def test_the_command_serves_until_sigterm(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "tiny")
    words = [sys.executable, "-m", "atomr_accel", "serve", str(folder), "--backend", "cpu"]
    words += ["--port", "0", "--model-name", "toy", "--api-key", "ann=sk-1", "--json"]
    words += ["--durable"]

    async def main() -> tuple[Reply, Reply, Reply, bytes, int]:
        with trio.fail_after(100):
            process = await trio.lowlevel.open_process(
                words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            assert process.stdout is not None
            assert process.stderr is not None
            said = b""
            while b" at http://" not in said or not said.endswith(b"\n"):
                more = await process.stderr.receive_some()
                assert more, said.decode()
                said += more
            port = int(said.decode().rpartition(":")[2])

            class At:
                """An address."""

            server: Any = At()
            server.port = port
            refused = await ask(server, "/v1/models")
            headers = {"authorization": "Bearer sk-1"}
            reply = await ask(server, "/v1/completions", streamed(1), headers=headers)
            metrics = await ask(server, "/metrics", headers=headers)
            process.send_signal(signal.SIGTERM)
            out = b"".join([part async for part in process.stdout])
            return refused, reply, metrics, out, await process.wait()

    refused, reply, metrics, out, code = trio.run(main)
    assert refused.status == 401
    assert len(reply.events) >= TOKENS
    assert b'atomr_accel_llm_model_durable_cache{model_name="toy"} 1' in metrics.body
    assert b'atomr_accel_llm_model_kept_total{model_name="toy"} 0' in metrics.body
    assert code == 0
    document = json.loads(out)
    assert document["document"] == "serve"
    assert (document["name"], document["answered"], document["lost"]) == ("toy", 1, False)
