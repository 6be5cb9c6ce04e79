"""What is imported in advance, and functions of the program that import the same."""

from __future__ import annotations

import threading

from atomr_accel.host._host import Imports

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
