"""An MCP server over documents and a graph of steps, and a client that uses its tools.

``python agents_mcp.py serve FOLDER`` serves a program that starts it, such as a desktop assistant,
on its standard input and output. Without arguments it is tried in this process. Documents are
embedded by counting triples of letters, which is enough to find them again.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
import warnings
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device
from atomr_accel.agents import (
    END,
    START,
    StepContext,
    StepGraph,
    open_rag,
    open_step_graph,
    open_vector_index,
)

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from atomr_accel.agents import RagPipeline, StepRunner

DIMENSION = 256


async def embed(texts: list[str]) -> Any:
    """Count triples of letters by their hashes."""
    await trio.lowlevel.checkpoint()
    made = np.full((len(texts), DIMENSION), 1e-3, np.float32)
    for row, text in zip(made, texts, strict=True):
        for word in re.findall(r"\w+", text.lower()):
            for at in range(max(1, len(word) - 2)):
                row[zlib.crc32(word[at : at + 3].encode()) % DIMENSION] += 1
    return made


@dataclass
class Review:
    """The state of a run."""

    question: str
    draft: str = ""
    answer: str = ""


def graph_over(rag: RagPipeline) -> StepGraph[Review]:
    """Look up, and ask a person before anything is answered."""

    async def look(review: Review, _: StepContext) -> dict[str, Any]:
        (best,) = await rag.search(review.question, 1)
        return {"draft": f"{best.text} [{best.document}]"}

    async def approve(review: Review, step: StepContext) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        approved = step.ask({"send": review.draft}) == "yes"
        return {"answer": review.draft if approved else "(not sent)"}

    graph = StepGraph(Review)
    graph.add("look", look)
    graph.add("approve", approve)
    graph.edge(START, "look")
    graph.edge("look", "approve")
    graph.edge("approve", END)
    return graph


def server_of(rag: RagPipeline, runner: StepRunner[Review]) -> MCPServer:
    """Make a server whose tools are the index and the graph."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    server = MCPServer("documents")

    @server.tool()
    async def add_document(name: str, text: str) -> int:
        """Add a document, and return the number of its passages."""
        try:
            return await rag.add(name, text)
        except ValueError as error:
            raise ToolError(str(error)) from error

    @server.tool()
    async def search(question: str, k: int = 3) -> list[dict[str, str]]:
        """Find passages by meaning and by words."""
        found = await rag.search(question, k)
        return [{"document": each.document, "text": each.text} for each in found]

    @server.tool()
    async def begin_review(thread: str, question: str) -> str:
        """Look an answer up, and return it for approval."""
        result = await runner.run(Review(question), thread=thread)
        return str(result.asked["approve"]["send"])

    @server.tool()
    async def end_review(thread: str, decision: str) -> str:
        """Approve an answer by "yes", and return what is sent."""
        result = await runner.resume(thread, {"approve": decision})
        return result.state.answer

    return server


@asynccontextmanager
async def open_server(folder: Path) -> AsyncIterator[MCPServer]:
    """Open the files and a device, and make the server."""
    async with (
        open_device(0) as device,
        open_vector_index(device, folder / "vectors", dimension=DIMENSION) as index,
        open_rag(index, folder / "documents.sqlite", embed) as rag,
        open_step_graph(graph_over(rag), checkpoints=folder / "runs.sqlite") as runner,
    ):
        yield server_of(rag, runner)


async def serve(folder: Path) -> None:
    """Serve on standard input and output until the client leaves."""
    async with open_server(folder) as server:
        await server.run_stdio_async()


async def main() -> None:
    """Use all tools by a client in this process; the second program finds what the first left."""
    from mcp import Client

    folder = Path(tempfile.mkdtemp())

    async def call(client: Client, tool: str, **arguments: Any) -> Any:
        result = await client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        assert result.structured_content is not None
        return result.structured_content["result"]

    async with open_server(folder) as server, Client(server) as client:
        await call(client, "add_document", name="trio", text="Trio cancels tasks by scopes.")
        await call(client, "add_document", name="memory", text="Sealed buffers survive faults.")
        (found,) = await call(client, "search", question="what survives?", k=1)
        print(f"found: {found}")
        assert found["document"] == "memory"
        question = "how are tasks cancelled?"
        draft = await call(client, "begin_review", thread="ada", question=question)
        print(f"draft: {draft}")
        refused = await client.call_tool("add_document", {"name": "trio", "text": "again"})
        assert refused.is_error

    async with open_server(folder) as server, Client(server) as client:
        answer = await call(client, "end_review", thread="ada", decision="yes")
        print(f"sent: {answer}")
        assert answer == "Trio cancels tasks by scopes. [trio]"


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    if importlib.util.find_spec("mcp") is None:
        print("this example needs mcp 2 or newer: pip install mcp")
    elif sys.argv[1:2] == ["serve"]:
        trio.run(serve, Path(sys.argv[2]))
    else:
        trio.run(main)
