"""A small agent: it looks notes up, asks before it answers, and survives a fault and a restart.

Notes are embedded by counting letters, which is enough to find them again.
"""

from __future__ import annotations

import operator
import tempfile
import warnings
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device
from atomr_accel.agents import (
    START,
    StepContext,
    StepGraph,
    VectorIndex,
    open_step_graph,
    open_vector_index,
)
from atomr_accel.testing import poison

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTES = [
    "trio cancels tasks by scopes",
    "a sealed buffer survives faults",
    "reducers join what parallel nodes return",
    "a lease ends with its block",
]


def embed(text: str) -> NDArray[np.float32]:
    """Count pairs of letters."""
    vector = np.zeros(27 * 27, np.float32)
    codes = [ord(letter) - 96 if letter.isalpha() else 0 for letter in text.lower()]
    for one, other in pairwise(codes):
        vector[27 * one + other] += 1
    return vector


@dataclass
class Question:
    """The state of a run."""

    text: str
    found: Annotated[list[str], operator.add] = field(default_factory=list)
    answer: str = ""


def graph_over(index: VectorIndex) -> StepGraph[Question]:
    """Look up, and write."""

    async def look(question: Question, _: StepContext) -> dict[str, Any]:
        matches = await index.search(embed(question.text), k=1)
        entries = await index.get(matches.ids)
        return {"found": [str((entry.payload or {})["text"]) for entry in entries]}

    async def write(question: Question, step: StepContext) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        if step.ask({"send": question.found}) != "yes":
            return {"answer": "(not sent)"}
        return {"answer": f"{question.found[0]}."}

    graph = StepGraph(Question)
    graph.add("look", look)
    graph.add("write", write)
    graph.edge(START, "look")
    graph.edge("look", "write")
    return graph


async def main() -> None:
    """Ask in one program, and answer in the next."""
    folder = Path(tempfile.mkdtemp())
    async with (
        open_device(0) as device,
        open_vector_index(device, folder / "notes", dimension=27 * 27) as index,
        open_step_graph(graph_over(index), checkpoints=folder / "runs.sqlite") as runner,
    ):
        vectors = np.stack([embed(note) for note in NOTES])
        await index.insert(range(len(NOTES)), vectors, [{"text": note} for note in NOTES])
        await poison(device)  # a kernel writes to an illegal address
        result = await runner.run(Question("what survives faults?"))
        print(f"asked: {result.asked['write']}")

    async with (
        open_device(0) as device,
        open_vector_index(device, folder / "notes", dimension=27 * 27) as index,
        open_step_graph(graph_over(index), checkpoints=folder / "runs.sqlite") as runner,
    ):
        result = await runner.resume(answers={"write": "yes"})
        print(f"answered in step {result.steps}: {result.state.answer}")
        assert result.state.answer == "a sealed buffer survives faults."


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
