"""``probe``: hardware and results of checks, also of failing ones."""

from __future__ import annotations

import re
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import LibraryMissing, Unsupported
from atomr_accel.cli import _checks, _packages, _probe, _vendor
from atomr_accel.cli._checks import checks, deviation
from atomr_accel.cli._children import ChildFailed, ask_child
from atomr_accel.cli._documents import DriverPart
from atomr_accel.cli._errors import ExitCode
from atomr_accel.cli._vendor import VendorAnswer, ask_vendor
from atomr_accel.libraries import names, registry
from atomr_accel.libraries.nvrtc.host import _cpu as nvrtc_cpu
from atomr_accel.libraries.nvrtc.wire.messages import CompiledCode, KernelEntry
from atomr_accel.libraries.registry import catalogue
from atomr_accel.ops import LibraryCheck

from ..harness import ROOT, cpu_only
from .commands import NO_DRIVER, Commands, with_gpus

ON_CPU = ("--backend", "cpu", "--isolation", "thread")


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child that looks at drivers and libraries takes its time."""
    monkeypatch.setattr(_probe, "ask_vendor", lambda: NO_DRIVER)


def only(monkeypatch: pytest.MonkeyPatch, *given: LibraryCheck) -> None:
    """Check these alone."""
    for module in (_checks, _probe):
        monkeypatch.setattr(module, "checks", lambda: tuple(("blas", each) for each in given))


def raising(error: BaseException) -> Any:
    async def compute(*_: object) -> Any:
        await trio.lowlevel.checkpoint()
        raise error

    return compute


BLAS = dict(checks())["blas"]


def test_every_library_is_checked() -> None:
    assert {name for name, _ in checks()} == {*catalogue().facades, "memory", "run"}


@pytest.mark.slow
def test_a_cpu_computes_right(command: Commands) -> None:
    document = command.document("probe", *ON_CPU)
    assert document.ok
    assert {check.outcome for check in document.checks} == {"ok"}
    assert [check.library for check in document.checks] == [name for name, _ in checks()]
    assert [part.device[:5] for part in document.devices] == ["cpu:0"]
    required = {part.name: part.version for part in document.libraries}
    assert required["numpy"] == np.__version__


def test_for_people(command: Commands) -> None:
    done = command("probe", *ON_CPU, "--library", "memory")
    assert done.code == 0
    assert re.search(r"cpu:0(?: \(\d+\))? +memory +ok +0 ", done.out)
    assert done.out.endswith("all is well\n")


@pytest.mark.parametrize(
    ("change", "outcome", "code"),
    [
        ({"tolerance": -1.0}, "wrong", 1),
        ({"compute": raising(LibraryMissing("no cublas", library="cublas"))}, "missing", 1),
        ({"compute": raising(Unsupported("not on this card"))}, "unsupported", 0),
        ({"compute": raising(RuntimeError("\x1b[31mboom"))}, "failed", 1),
    ],
)
def test_how_a_check_may_end(
    change: dict[str, Any],
    outcome: str,
    code: int,
    command: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, replace(BLAS, **change))
    document = command.document("probe", *ON_CPU, code=code)
    (check,) = document.checks
    assert check.outcome == outcome
    text = command("probe", *ON_CPU)
    assert text.code == code
    assert "\x1b" not in text.out


@cpu_only
@pytest.mark.parametrize("compiler", [True, False])
def test_what_is_said_to_be_compiled_was(
    *, compiler: bool, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a compiler, the check of ``nvrtc`` calls a Python function, and says so."""

    entry = KernelEntry("scale", type="_Z1tIFvPfifEE")

    def found(*_: object) -> CompiledCode:
        if not compiler:
            raise LibraryMissing("no NVRTC", library="nvrtc")
        return CompiledCode(b"cubin", (entry,), (), "", names=("scale",))

    monkeypatch.setattr(nvrtc_cpu, "find_module", found)
    (check,) = command.document("probe", *ON_CPU, "--library", "nvrtc").checks
    assert check.outcome == "ok"
    assert (", compiled, " in check.what) is compiler
    assert ("nothing was compiled" in check.what) is not compiler


def test_a_device_that_does_not_answer(command: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is over in the middle of a check."""
    scopes: list[trio.CancelScope] = []

    def move_on_after(seconds: float) -> trio.CancelScope:
        scopes.append(trio.CancelScope(deadline=trio.current_time() + seconds))
        return scopes[-1]

    async def hang(*_: object) -> Any:
        scopes[0].cancel()
        await trio.sleep_forever()

    monkeypatch.setattr(_probe, "move_on_after", move_on_after)
    only(monkeypatch, replace(BLAS, compute=hang))
    document = command.document("probe", *ON_CPU, "--seconds", "3600", code=1)
    (check,) = document.checks
    assert (check.outcome, check.detail) == ("failed", "it took more than 3600 s")


def test_a_device_that_does_not_open(command: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def open_device(*_: object, **__: object) -> AsyncIterator[None]:
        await trio.Event().wait()
        yield

    monkeypatch.setattr(_probe, "open_device", open_device)
    document = command.document("probe", *ON_CPU, "--seconds", "0.01", code=3)
    (device,) = document.devices
    assert (device.opened, device.problem) == (False, "it took more than 0.01 s")


@pytest.mark.parametrize("backend", ["cuda", "no-such-backend"])
def test_a_backend_that_is_not_there(
    backend: str, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atomr_accel.backends.cuda._DRIVER_FILES", ())
    document = command.document("probe", "--backend", backend, code=3)
    assert not document.ok
    (device,) = document.devices
    assert (device.opened, device.device) == (False, f"{backend}:0")
    assert backend in device.problem
    assert command("probe", "--backend", backend).out.endswith("no device could be opened\n")


def test_looking_alone_opens_and_computes_nothing_else(command: Commands) -> None:
    document = command.document("probe", *ON_CPU, "--no-checks")
    assert document.ok
    assert document.checks == []


def test_which_devices_are_looked_at() -> None:
    two = with_gpus("default", "default")
    assert _probe.places("all", None, two) == [("cuda", 0), ("cuda", 1), ("cpu", 0)]
    assert _probe.places("all", [1], two) == [("cuda", 1)]
    assert _probe.places("cuda", None, two) == [("cuda", 0), ("cuda", 1)]
    assert _probe.places("cuda", None, NO_DRIVER) == [("cuda", 0)]
    assert _probe.places("cpu", [0], two) == [("cpu", 0)]
    assert _probe.places("all", [3], NO_DRIVER) == [("cuda", 3)]


def test_advice_names_the_extra_that_brings_what_is_missing() -> None:
    told = with_gpus("default")
    parts = _packages.libraries({"cublas": {"version": None, "problem": "gone"}}, needed=True)
    (said,) = _probe.advice(told, parts, [])
    assert said.startswith("missing: cublas, ")
    assert "install with: pip install " in said


@pytest.mark.parametrize("extra", ["cuda12", "cli", "dashboard", "telemetry"])
def test_packages_come_with_the_extra_that_is_told(extra: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = {re.split(r"[^\w-]", n)[0] for n in project["optional-dependencies"][extra]}
    brought |= {"cuda-bindings"} if extra == "cuda12" else set()  # by cuda-python
    every = (*_packages.CUDA_PACKAGES, *_packages.OPTIONAL, *_packages.requirements())
    told = {p.name for p in every if p.extra == extra and not p.vendor}
    assert told <= brought
    required = {re.split(r"[^\w-]", n)[0] for n in project["dependencies"]}
    assert {p.name for p in _packages.REQUIRED} <= required


# --- children ------------------------------------------------------------------------------


def test_the_vendor_is_asked_in_a_child() -> None:
    told = ask_vendor()
    assert set(told.libraries) == {p.name for p in _packages.requirements() if p.vendor}
    assert (told.driver.problem is None) == (told.driver.cuda is not None and bool(told.gpus))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("raise RuntimeError('no such thing')", "RuntimeError: no such thing"),
    ],
)
def test_a_child_that_ends_otherwise(
    body: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child ends otherwise, such as in a vendor's library."""
    package = tmp_path / "atomr_children"
    (package / "host").mkdir(parents=True)
    (package / "host" / "_broken.py").write_text(f"def main():\n    {body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("atomr_accel.cli._children.__package__", "atomr_children")
    with pytest.raises(ChildFailed, match=says):
        ask_child("_broken", b"", 30.0)


def test_a_vendor_that_ends_the_child_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: object) -> bytes:
        raise ChildFailed("it was ended by SIGSEGV")

    monkeypatch.setattr(_vendor, "ask_child", failed)
    problem = "looking at it failed: it was ended by SIGSEGV"
    assert ask_vendor() == VendorAnswer(
        DriverPart(version=None, cuda=None, problem=problem), [], {}
    )


@pytest.mark.parametrize(
    ("got", "expected", "told"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([0.5], [0.0], 0.5),
        ([], [], 0.0),
        ([np.nan], [1.0], None),
        ([np.inf], [np.inf], None),
        ([1.0, 1.0], [1.0], None),
        ([1j], [0j], 1.0),
    ],
)
def test_deviations(got: Any, expected: Any, told: float | None) -> None:
    assert deviation(np.array(got), np.array(expected)) == told


def test_a_library_that_cannot_be_loaded_is_told(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [EntryPoint("x", "no_such_module:LIBRARY", names.GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    monkeypatch.setattr(registry, "_known", None)
    done = command("probe", *ON_CPU)
    assert done.code == ExitCode.UNAVAILABLE
    assert re.search(r"'x = no_such_module:LIBRARY'.*cannot be loaded", done.err)
