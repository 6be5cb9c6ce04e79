"""A fault is reduced to the calls it needs, and becomes a program that faults again."""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import ContextPoisoned, Unsupported
from atomr_accel.replay import JournalError, explain, open_journal
from atomr_accel.replay._entries import ArrayValue, FunctionValue
from atomr_accel.replay._explain import _Trials
from atomr_accel.replay._minimal import minimal
from atomr_accel.replay._reading import Recorded
from atomr_accel.replay._restore import _module_of, require_guard
from atomr_accel.testing import poison

from ..harness import ROOT, cpu_only, opened, sized
from .programs import Random, gelu

FAULTY = """
import os

def dies_of_seven(x):
    if (x == 7).any():
        os._exit(3)
"""


@given(st.integers(1, 30), st.data())
def test_minimal_program_fails_and_needs_each_of_its_calls(count: int, data: st.DataObject) -> None:
    wanted = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    asked: list[list[int]] = []

    async def fails(chosen: list[int]) -> bool:
        asked.append(chosen)
        return wanted <= set(chosen)

    async def search() -> list[int]:
        return await minimal(range(count), fails)

    steps = search()
    with pytest.raises(StopIteration) as ended:
        steps.send(None)
    assert ended.value.value == sorted(wanted)
    assert len({tuple(each) for each in asked}) == len(asked)
    assert len(asked) <= 4 * count + count**2


async def record_a_fault(folder: Path, name: str = "dies_of_seven") -> Path:
    """Some calls, of which a few make the buffer that a function dies of."""
    (folder / "faulty.py").write_text(FAULTY)
    sys.path.insert(0, str(folder))  # where the host and the trials look as well
    try:
        return await _record_a_fault(folder / "journal", name)
    finally:
        sys.path.pop(0)
        del sys.modules["faulty"]


async def _record_a_fault(path: Path, name: str) -> Path:
    faulty = importlib.import_module("faulty")
    async with opened(isolation="process", standby=None) as device:
        await device.put(np.ones(1))
        async with open_journal(device, path, contents=True):
            await Random(device, 3).run(5)
            x = await device.put(np.arange(4.0))
            w = await device.full((4,), 3.0)
            y = await device.evaluate(x + w + 1)  # 4, 5, 6 and 7
            await device.evaluate(x * 2, out=w)
            with pytest.raises(ContextPoisoned):
                await device.run(getattr(faulty, name), y)
            await device.put(np.ones(1))
    return path


@cpu_only
async def test_a_fault_is_reduced_to_the_calls_that_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each trial says here what a process would: a function that gets a 7 dies."""
    path = await record_a_fault(tmp_path)
    needed = (
        "device.put(np.array([0.0, 1.0, 2.0, 3.0]",
        "device.full((4,), 3.0)",
        "np.add(np.add(",
    )

    async def faults(text: str) -> bool:
        ast.parse(text)
        return "dies_of_seven" in text and all(part in text for part in needed)

    told: list[tuple[int, int]] = []

    def progress(trial: int, calls: int) -> None:
        told.append((trial, calls))

    found = await explain(path, out=tmp_path / "least.py", faults=faults, last=3, progress=progress)
    assert [trial for trial, _ in told] == [*range(1, found.trials + 1)]
    assert min(calls for _, calls in told) <= len(found.minimal) <= max(calls for _, calls in told)
    assert found.fault.startswith("ContextPoisoned: op 'run dies_of_seven' did not finish")
    assert "device.run(faulty.dies_of_seven, #" in found.call
    assert len(found.last) == 3
    assert [each.split("(")[0].split(" ", 1)[1] for each in found.minimal] == [
        "device.put",
        "device.full",
        "device.evaluate",
        "device.run",
    ]
    assert (tmp_path / "least.py").read_text() == found.program
    assert found.trials <= 30
    assert all(part in str(found) for part in (*found.minimal, *found.last))

    # It finds the program's modules wherever it is run.
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = sys.modules.copy()
    exec(found.program, {"__name__": "least"})
    assert sys.modules["faulty"].__file__ == str(tmp_path / "faulty.py")
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]

    async def never(_text: str) -> bool:
        return False

    with pytest.raises(JournalError, match=r"not even with all calls$"):
        await explain(path, faults=never)

    async def hash_alone(_recorded: Recorded, _array: ArrayValue) -> None:
        return None

    monkeypatch.setattr(Recorded, "array", hash_alone)
    with pytest.raises(
        JournalError, match=r"zeros stood for \d+ arrays.*record with contents=True"
    ):
        await explain(path, faults=never)


@pytest.mark.slow
@cpu_only
async def test_the_program_that_is_left_faults(tmp_path: Path) -> None:
    if sized(quick=True, full=False):
        path = tmp_path / "journal"
        async with opened(standby=None) as device, open_journal(device, path):
            await device.put(np.ones(4))
            await device.fuse(gelu)(await device.zeros(3))
            await poison(device)
    else:
        path = await record_a_fault(tmp_path)
    found = await explain(path, out=tmp_path / "least.py")
    assert len(found.minimal) == sized(2, 4)
    command = [sys.executable, str(tmp_path / "least.py")]
    paths = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    if sized(quick=False, full=True):
        done = await trio.run_process(command, capture_stderr=True, env=paths, check=False)
        assert b"ContextPoisoned: op 'run dies_of_seven' did not finish" in done.stderr


@cpu_only
async def test_unexplained_failure_says_why(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device, open_journal(device, path):
        await device.put(np.ones(1))
    with pytest.raises(JournalError, match="tells of no fault"):
        await explain(path)


@cpu_only
async def test_a_function_that_has_no_name_cannot_be_in_a_program(tmp_path: Path) -> None:
    path = tmp_path / "journal"

    def dies() -> None:
        import os

        os._exit(1)

    async with opened(standby=None) as device, open_journal(device, path):
        with pytest.raises(ContextPoisoned):
            await device.run(dies)
    with pytest.raises(Unsupported, match="has no name to import it by"):
        await explain(path)


@pytest.mark.slow
@cpu_only
async def test_functions_of_a_program_s_own_file_are_taken_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever name they have in it; functions without a name do not count."""
    text = (
        "import os\n\n\nclass Model:\n    @staticmethod\n    def dies(x):\n        os._exit(1)\n"
        "\n\ndef made():\n    def inner(x):\n        os._exit(1)\n    return inner\n"
    )
    file = tmp_path / "own.py"
    file.write_text(text)
    main = types.ModuleType("__main__")
    main.__file__ = str(file)
    exec(compile(text, str(file), "exec"), vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    programs: list[str] = []

    async def faults(program: str) -> bool:
        programs.append(program)
        return True

    for number, function in enumerate((main.Model.dies, main.made())):
        path = tmp_path / f"{number}"
        async with opened(standby=None) as device, open_journal(device, path):
            x = await device.put(np.ones(1))
            with pytest.raises(ContextPoisoned):
                await device.run(function, x)
        if number:
            with pytest.raises(Unsupported, match="inner has no name to import it by"):
                await explain(path, faults=faults)
        else:
            await explain(path, faults=faults)
    names: dict[str, Any] = {"__name__": "least"}
    exec(programs[-1], names)
    assert names["Model_dies"].__code__.co_code == main.Model.dies.__code__.co_code


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("import trio\n\nasync def main(): pass\n\ntrio.run(main)\n", True),
        ("def main(): pass\n\ncode = main()\n", True),
        ("for _ in range(2):\n    print()\n", True),
        ("def main(): pass\n\nif __name__ == '__main__':\n    main()\n", False),
        ("import sys\nif '__main__' != __name__:\n    print()\nelse:\n    sys.exit()\n", False),
        ("LIMIT = 3\n\ndef twice(x): return 2 * abs(x)\n", False),
    ],
)
def test_a_script_is_imported_only_if_that_does_not_run_it(
    tmp_path: Path, text: str, runs: bool
) -> None:
    file = tmp_path / "script.py"
    file.write_text(text)
    if runs:
        with pytest.raises(ImportError, match="under `if __name__"):
            require_guard(str(file))
    else:
        require_guard(str(file))


@cpu_only
async def test_a_script_without_a_guard_is_not_run_again_to_explain_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def dies(x):\n    import os\n    os._exit(1)\n\nRUNS.append(1)\n"
    file = tmp_path / "script.py"
    file.write_text(text)
    main = types.ModuleType("__main__")
    main.__file__ = str(file)
    runs: list[int] = []
    monkeypatch.setattr(builtins, "RUNS", runs, raising=False)
    exec(compile(text, str(file), "exec"), vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    path = tmp_path / "journal"
    async with opened(standby=None) as device, open_journal(device, path, contents=True):
        x = await device.put(np.ones(1))
        with pytest.raises(ContextPoisoned):
            await device.run(main.dies, x)
    with pytest.raises(Unsupported, match="under `if __name__"):
        await explain(path)
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    described = FunctionValue("__main__", "dies", b"", str(file))
    with pytest.raises(ImportError, match="under `if __name__"):
        _module_of(described)
    assert runs == [1]


async def test_a_trial_tells_how_it_has_ended_unless_by_a_fault() -> None:
    trials = _Trials(())
    assert not await trials.fault("raise KeyError('no table')")
    assert trials.error == "KeyError: 'no table'"
    assert not await trials.fault("raise SystemExit(3)")
    assert trials.error == "exit 3"
    assert not await trials.fault("")
    assert trials.error == ""
