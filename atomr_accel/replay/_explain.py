"""``explain``: which call took the device down, and the least that does it again."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio

from .._errors import Unsupported
from ._entries import ArrayValue, Brought, Outside, Ref
from ._minimal import minimal
from ._program import ProgramWriter, Unwritable
from ._reading import JournalCall, Recorded, reading
from ._restore import handles_of, refs_given, refs_of
from ._storage import JournalError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ._storage import Storage

_LAST: Final = 10
_SECONDS: Final = 120.0
"""Limit for a trial; one that takes longer hangs, and does not count as the fault."""

_FAULTS: Final = ("ContextPoisoned", "KernelHung", "DeviceLost")

Faults = "Callable[[str], Awaitable[bool]]"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of a fault from a journal.

    Attributes:
        fault: the error that the program got: its type and message.
        call: the call with the fault, as ``read_journal`` shows it.
        last: the calls before it, the latest last.
        minimal: the calls of a short program that faults again.
        program: that program as Python text: public calls that end with the fault.
        trials: the number of programs that were run to find it.
    """

    fault: str
    call: str
    last: tuple[str, ...]
    minimal: tuple[str, ...]
    program: str
    trials: int

    def __str__(self) -> str:
        before = "\n".join(f"    {line}" for line in self.last)
        least = "\n".join(f"    {line}" for line in self.minimal)
        return (
            f"{self.fault}\nwith call\n    {self.call}\nafter\n{before}\n"
            f"which comes again with these calls alone ({self.trials} programs were run):\n{least}"
        )


async def explain(
    path: str | os.PathLike[str] | Storage,
    *,
    out: str | os.PathLike[str] | None = None,
    backend: str | None = None,
    last: int = _LAST,
    faults: Callable[[str], Awaitable[bool]] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Explanation:
    """Explain the first fault of a journal with a minimal program that faults again.

    The calls that led to the fault are reduced by delta debugging. Each trial is a separate
    program, run in its own process. Buffers whose calls are left out are zeros, and so are arrays
    whose content is not in the journal.

    Args:
        path: the journal's file or storage.
        out: the file to write the program to; by default it is not written.
        backend: the backend that the programs open; by default the recorded one. Faults of the CPU
            backend are those of kernels and functions that die, see ``atomr_accel.testing``.
        last: the number of calls before the fault to report.
        faults: an async function that returns True if a program, given as text, faults; by default
            it runs the program.
        progress: a function to call before each trial, with the number of the trial and the number
            of calls that its program makes, such as ``print``.

    Returns:
        The explanation; ``str(explanation)`` is a readable report.

    Raises:
        JournalError: the storage holds no journal; the journal has no fault; or the fault does not
            recur, even with all calls.
        Unsupported: the call that faults cannot be written as a program; the message says why.
    """
    async with reading(path) as recorded:
        recalls = [*recorded.calls]
        at = next((at for at, each in enumerate(recalls) if _is_fault(each)), None)
        if at is None:
            raise JournalError(f"{recorded!r} tells of no fault")
        # Others that were in flight went down with it, and were perhaps called before.
        down = [each for each in recalls[at:] if _is_fault(each)]
        generation = recalls[at].call.generation
        down = [each for each in down if each.call.generation == generation]
        candidates = [
            each
            for each in recalls
            if each.call.number <= down[-1].call.number
            and (_is_fault(each) or (each.done is not None and each.done.outcome in ("ok", "sent")))
            and each.call.method not in _NOT_WRITTEN
        ]
        return await _Search(recorded, candidates, down, backend, faults, progress).run(
            [str(each) for each in recalls[max(0, at - last) : at]], out
        )


_NOT_WRITTEN: Final = ("batch", "leave", "get", "free")


def _is_fault(recall: JournalCall) -> bool:
    return recall.done is not None and recall.done.error[0] in _FAULTS


class _Search:
    """Looks for the least program that faults."""

    def __init__(
        self,
        recorded: Recorded,
        candidates: list[JournalCall],
        down: list[JournalCall],
        backend: str | None,
        faults: Callable[[str], Awaitable[bool]] | None,
        progress: Callable[[int, int], object] | None,
    ) -> None:
        self._recorded = recorded
        self._candidates = candidates
        self._down = down
        self._backend = backend or recorded.backend
        self._trials = _Trials(recorded.header.paths)
        self._faults = faults or self._trials.fault
        self._brought: dict[int, Outside | Brought] = {}
        self._made: dict[int, Ref] = {}
        self._makers: dict[int, JournalCall] = {}
        self.trials = 0
        self._progress = progress
        self._zeros = 0  # arrays that are not in the journal
        for recall in recorded.calls:
            for entry in recall.brought:
                number = entry.ref.id if isinstance(entry, Outside) else entry.id
                self._brought[number] = entry
                if isinstance(entry, Outside):
                    self._made[number] = entry.ref
            if recall.done is not None:
                for _, ref in refs_of(recall.done.result):
                    self._made.setdefault(ref.id, ref)
                for handle in handles_of(recall.done.result):
                    self._makers[handle] = recall

    async def run(self, last: list[str], out: str | os.PathLike[str] | None) -> Explanation:
        """Search for a program that faults, with the most likely reductions first."""
        arrays = await self._arrays()
        writer = ProgramWriter(arrays, self._recorded.contents, self._recorded.header.paths)
        reason = ""

        async def fails(recalls: list[JournalCall]) -> bool:
            nonlocal reason
            reason = ""
            try:
                text = self._text(writer, recalls)
            except Unwritable as error:
                reason = str(error)
                return False
            self.trials += 1
            if self._progress is not None:
                self._progress(self.trials, len(recalls))
            return await self._faults(text)

        found: list[JournalCall] | None = None
        for culprit in self._down:  # one call, with only the calls that it needs
            if await fails([culprit]):
                found = [culprit]
                break
        if found is None:
            # What its buffers came from, and at last all there is.
            for culprit in self._down:
                needed = self._needed(culprit)
                if len(needed) < len(self._candidates) and await fails(needed):
                    found = await minimal(needed, fails)
                    break
        if found is None:
            if not await fails(self._candidates):
                if reason:
                    raise Unsupported(f"the fault cannot be written as a program: {reason}")
                raise JournalError(self._not_again())
            found = await minimal(self._candidates, fails)
        text = self._text(writer, found)
        if out is not None:
            await trio.Path(out).write_text(text, encoding="utf-8")
        culprit = next((each for each in found if each in self._down), self._down[0])
        done = culprit.done
        assert done is not None
        return Explanation(
            f"{done.error[0]}: {done.error[1]}",
            str(culprit),
            tuple(last),
            tuple(map(str, self._with_makers(found))),
            text,
            self.trials,
        )

    def _text(self, writer: ProgramWriter, recalls: list[JournalCall]) -> str:
        return writer.program(
            self._with_makers(recalls),
            brought=self._brought,
            made=self._made,
            backend=self._backend,
            title="The least of a recorded program that ends with the same fault.",
        )

    def _with_makers(self, recalls: list[JournalCall]) -> list[JournalCall]:
        """Add the calls that make the facades, such as kernels, that the calls need."""
        chosen = {each.call.number: each for each in recalls}
        waiting = [*recalls]
        while waiting:
            call = waiting.pop().call
            for handle in handles_of([call.target, call.args, [*call.kwargs.values()]]):
                maker = self._makers.get(handle)
                if maker is not None and maker.call.number not in chosen:
                    chosen[maker.call.number] = maker
                    waiting.append(maker)
        return [chosen[number] for number in sorted(chosen)]

    def _needed(self, culprit: JournalCall) -> list[JournalCall]:
        """Return the earlier calls on which the buffers of a call depend, and the call."""
        wanted = {ref.id for ref in refs_given(culprit.call).values()}
        needed = [culprit]
        for recall in reversed(self._candidates):
            if recall.call.number >= culprit.call.number:
                continue
            result = recall.done.result if recall.done is not None else None
            given = {ref.id for ref in refs_given(recall.call).values()}
            if wanted & ({ref.id for _, ref in refs_of(result)} | given):
                wanted |= given
                needed.append(recall)
        return needed[::-1]

    async def _arrays(self) -> dict[bytes, np.ndarray[Any, Any]]:
        """Return the contents of all arrays among the calls' arguments."""
        found: dict[bytes, np.ndarray[Any, Any]] = {}
        wanted: list[ArrayValue] = [*self._recorded.contents.values()]
        for recall in self._candidates:
            wanted += arrays_of([recall.call.args, [*recall.call.kwargs.values()]])
        for array in wanted:
            content = await self._recorded.array(array)
            if content is not None:
                found[array.hash] = content
            else:
                self._zeros += 1
        return found

    def _not_again(self) -> str:
        text = "the fault does not come again, not even with all calls"
        if self._trials.error:
            text += f", which end with another error: {self._trials.error}"
        if self._zeros:
            text += (
                f"; but zeros stood for {self._zeros} arrays, of which the journal holds hashes "
                "alone: record with contents=True"
            )
        return text


def arrays_of(value: Any) -> list[ArrayValue]:
    """Return the arrays in a journal's arguments."""
    if isinstance(value, ArrayValue):
        return [value]
    if isinstance(value, list | tuple):
        return [found for each in value for found in arrays_of(each)]
    if hasattr(value, "__struct_fields__"):
        return arrays_of([getattr(value, name) for name in value.__struct_fields__])
    return []


class _Trials:
    """Runs programs, each in its own process.

    Attributes:
        error: how the last one has ended, if it raised anything but a fault.
    """

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._paths = paths
        self.error = ""

    async def fault(self, program: str) -> bool:
        """Run a program and return True if it ends with a fault."""
        self.error = ""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "program.py"
            file.write_text(program, encoding="utf-8")
            path = os.pathsep.join([each for each in (*sys.path, *self._paths) if each])
            with trio.move_on_after(_SECONDS):
                done = await trio.run_process(
                    [sys.executable, str(file)],
                    check=False,
                    capture_stdout=True,
                    capture_stderr=True,
                    env={**os.environ, "PYTHONPATH": path},
                )
                told = done.stderr.decode(errors="replace")
                if done.returncode != 0 and any(f".{name}: " in told for name in _FAULTS):
                    return True
                if done.returncode != 0:
                    self.error = told.strip().rpartition("\n")[2] or f"exit {done.returncode}"
                return False
        self.error = f"it does not end within {_SECONDS:g} s"
        return False
