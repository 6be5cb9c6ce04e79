"""Modules imported in advance, and functions of the program that import the same."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest

from atomr_accel.host.host import IMPORTS, Imports, _import
from atomr_accel.libraries.cub.host import cpu as cub
from atomr_accel.libraries.cub.wire._spec import OperatorSpec
from atomr_accel.libraries.nvrtc.host import _cpu as nvrtc
from atomr_accel.libraries.nvrtc.wire.messages import Load

SECONDS = 20.0


def test_functions_and_imports_in_advance_take_turns() -> None:
    imports = Imports()
    log: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def run(name: str) -> None:
        with imports.running():
            log.append(name)

    def import_more() -> None:
        with imports.importing():
            log.append("imported")
            inside.set()
            assert leave.wait(SECONDS)
            log.append("complete")
        with imports.importing():
            log.append("next")

    importer = threading.Thread(target=import_more)
    importer.start()
    assert inside.wait(SECONDS)
    functions = [threading.Thread(target=run, args=(f"function {n}",)) for n in range(2)]
    for function in functions:
        function.start()
    leave.set()
    for thread in (importer, *functions):
        thread.join(SECONDS)
    assert log[:2] == ["imported", "complete"]
    assert sorted(log[2:]) == ["function 0", "function 1", "next"]


def test_functions_run_side_by_side() -> None:
    imports = Imports()
    together = threading.Barrier(2)

    def run() -> None:
        with imports.running():
            together.wait(SECONDS)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert not together.broken


@pytest.mark.parametrize("names", [("", ".y"), (".y", "")], ids=["package-first", "part-first"])
def test_import_waits_for_another_threads_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """Or its parts would be imported before it, which import it themselves."""
    gates = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "gates_of_a_test", gates, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "half_imported"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import sys\nbegun, go = sys.gates_of_a_test\nbegun.set()\ngo.wait(20)\n"
        "from .y import NAME\n"
    )
    (package / "y.py").write_text("import half_imported\nNAME = 1\n")
    errors: list[BaseException] = []

    def use() -> None:
        try:
            __import__("half_imported")
        except BaseException as error:  # noqa: BLE001 (looked at below)
            errors.append(error)

    def in_advance() -> None:
        for name in names:
            _import(f"half_imported{name}")

    threads = [threading.Thread(target=each) for each in (use, in_advance)]
    threads[0].start()
    assert gates[0].wait(SECONDS)
    threads[1].start()
    threads[1].join(0.1)  # time enough to overtake, where it may
    gates[1].set()
    for thread in threads:
        thread.join(SECONDS)
    try:
        assert errors == []
        assert sys.modules["half_imported"].NAME == 1
    finally:
        for name in ("half_imported", "half_imported.y"):
            sys.modules.pop(name, None)


class Noted:
    """Something whose loading is seen."""

    def __init__(self, note: str) -> None:
        self.note = note

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return _loaded, (self.note,)


loaded: list[str] = []


def _loaded(note: str) -> object:
    loaded.append(note)
    return print


@pytest.mark.parametrize("library", ["nvrtc", "cub"])
def test_functions_are_loaded_when_nothing_is_being_imported(library: str) -> None:
    loaded.clear()
    if library == "nvrtc":
        image = cloudpickle.dumps((Noted(library),))
        thread = threading.Thread(target=nvrtc._functions, args=(Load(1, image, ("k",)),))
    else:
        operator = OperatorSpec(("float32",), "float32", function=cloudpickle.dumps(Noted(library)))
        thread = threading.Thread(target=cub._ufunc, args=(operator,))
    with IMPORTS.importing():
        thread.start()
        thread.join(0.05)
        assert loaded == []
    thread.join(SECONDS)
    assert loaded == [library]


SHORT = """
import resource, numpy as np, trio
from atomr_accel import OutOfMemory, open_device

def limit(mebibytes):
    taken = resource.getpagesize() * int(open("/proc/self/statm").read().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = hard if mebibytes is None else taken + (mebibytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))

async def main():
    async with open_device(0, backend="cpu", isolation="thread") as device:
        x = await device.put(np.eye(8))
        await device.fft.fft(x)
        await device.evaluate(x + 1)
        for mebibytes in (50, 60, 70):
            limit(mebibytes)
            try:
                await device.linalg.solve(x, x)
            except OutOfMemory as error:
                print(str(error).partition("no room for the libraries")[1])
            limit(None)
        print((await device.get(await device.linalg.solve(x, x))).sum())

trio.run(main)
"""


@pytest.mark.slow
def test_parts_of_scipy_are_imported_only_where_there_is_room_for_them() -> None:
    """Or its BLAS would ask for it for ever, and nothing else would run."""
    command = [sys.executable, "-c", SHORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split("\n") == [*3 * ["no room for the libraries"], "8.0", ""], done.stderr
