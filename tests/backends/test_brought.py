"""A backend that another package brings, found by its entry point and by nothing else."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

from atomr_accel import AccelError, DeviceUnavailable, Unsupported, open_device
from atomr_accel.backends import Backend, Capabilities
from atomr_accel.backends.registry import BUILT_IN, GROUP, find_backend
from atomr_accel.device.interop._exports import _DeviceMappings
from atomr_accel.lanes import Isolation
from atomr_accel.ops import LaneSpec

from ..harness import ROOT
from ..harness import program as running


@pytest.fixture
def abacus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, on the path with its metadata, as if it were installed."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "abacus")
    import abacus_accel  # type: ignore[import-not-found]

    return abacus_accel


@running
async def test_external_backend_runs_from_end_to_end(abacus: Any, isolation: Isolation) -> None:
    async with open_device(0, backend="abacus", isolation=isolation) as device:
        assert (device.name, device.backend, device.info.backend) == (
            "abacus:0",
            "abacus",
            "abacus",
        )
        a = np.array([[1.5, 2.0], [3.0, 4.75]])
        ref = await device.put(a)
        assert np.array_equal(
            await device.get(await device.blas.gemm(ref, ref)), [[7, 10], [15, 22]]
        )
        async with device.batch() as batch:
            late = batch.blas.gemm(ref, ref)
        assert (await device.get(late)).sum() == 54
        async with device.record() as recording:
            product = recording.blas.gemm(ref, ref)
        await recording.replay()
        assert (await device.get(product)).sum() == 54
        if isolation == "thread":
            exported = await device.export(ref)
            assert np.array_equal(np.asarray(exported), a), "its memory is the host's"
        with pytest.raises(ValueError, match=r"made by device\.managed"):
            await device.prefetch(ref)
        await device.prefetch(await device.managed((3,)))
        with pytest.raises(TypeError, match="Routine"):
            await device.blas.gemv(ref, await device.put(a[0]))
        with pytest.raises(Unsupported, match=r"fft has no executor for backend 'abacus'.*'cuda'"):
            await device.fft.fft(ref)


@running
async def test_a_library_names_an_executor_for_it(abacus: Any, isolation: Isolation) -> None:
    async with open_device(0, backend="abacus", isolation=isolation) as device:
        from abacus_accel._messages import Count  # type: ignore[import-not-found]

        beads = await device.put(np.arange(5))
        block = beads.block
        port = await device.core.open_lane(abacus.COUNTING)
        op = device.core.submit(port, "count", Count(block.address, 5), (block,))
        assert await op.wait() == 10
    async with open_device(0, backend="cpu", isolation=isolation) as device:
        with pytest.raises(Unsupported, match="counting has no executor for backend 'cpu'"):
            await device.core.open_lane(abacus.COUNTING)


def test_unknown_backend_error_lists_the_known_ones(abacus: Any) -> None:
    with pytest.raises(DeviceUnavailable, match=r"'auto', 'cpu', 'cuda'.*'abacus'"):
        find_backend("tpu")
    with pytest.raises(
        TypeError, match=r"'not-a-backend = .*abacus-accel 1\.0 is .*, not a Backend"
    ):
        find_backend("not-a-backend")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("not-there", "abacus_accel.not_there:BACKEND", "ModuleNotFoundError: No module named"),
        ("misspelt", "abacus_accel:BACK_END", "AttributeError: .*BACK_END"),
    ],
)
def test_a_broken_entry_point_is_named_with_its_package(
    abacus: Any, name: str, value: str, why: str
) -> None:
    said = (
        rf"entry point '{name} = {value}' .* abacus-accel 1\.0 cannot be loaded: {why}.*reinstall"
    )
    with pytest.raises(DeviceUnavailable, match=said) as info:
        find_backend(name)
    assert isinstance(info.value.__cause__, (ImportError, AttributeError))


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("abacus_accel._nothing:Bead", "ModuleNotFoundError: No module named"),
        ("abacus_accel._host:Bead", "AttributeError: .*Bead"),
        ("abacus_accel._host", "it is a module, not a class"),
        ("no reference", "ValueError"),
    ],
)
@running
async def test_backend_error_names_the_missing_class(
    abacus: Any, monkeypatch: pytest.MonkeyPatch, isolation: Isolation, reference: str, why: str
) -> None:
    def brings(**changes: Any) -> None:
        backend = replace(abacus.BACKEND, **changes)
        monkeypatch.setattr("atomr_accel.device._open.find_backend", lambda _name: backend)

    for kind, changes in (("context", {"context": reference}), ("memory", {"memory": reference})):
        brings(**changes)
        with pytest.raises(AccelError, match=rf"{kind}.*'{reference}', cannot be loaded.*{why}"):
            async with open_device(0, backend="abacus", isolation=isolation):
                raise AssertionError("opened")
    brings(executors={**abacus.BACKEND.executors, "blas": reference})
    async with open_device(0, backend="abacus", isolation=isolation) as device:
        ref = await device.put(np.eye(2))
        with pytest.raises(
            DeviceUnavailable, match=rf"blas.*'{reference}', cannot be loaded.*{why}"
        ):
            await device.blas.gemm(ref, ref)
        async with device.record() as recording:
            recording.blas.gemm(ref, ref)
        said = rf"recorded call, '{reference}', cannot be loaded in the host.*{why}.*reinstall"
        with pytest.raises(DeviceUnavailable, match=said):
            await recording.replay()
    said = rf"context, '{reference}', cannot be loaded in this program.*{why}.*reinstall"
    with pytest.raises(DeviceUnavailable, match=said):
        _DeviceMappings(reference, 0).synchronize()


def test_an_executor_is_found_by_backend_and_library() -> None:
    lane = LaneSpec("blas", {"one": "of_the_library:One"})

    def backend(name: str, **executors: str) -> Backend:
        return Backend(name, "a:b", "c:d", lambda: None, executors=executors)

    assert lane.executor_on(backend("one")) == "of_the_library:One"
    assert lane.executor_on(backend("two", blas="of_the_backend:Two")) == "of_the_backend:Two"
    assert lane.executor_on(backend("one", blas="of_the_backend:Two")) == "of_the_backend:Two"
    with pytest.raises(Unsupported, match=r"blas has no executor for backend 'two'.*'one'"):
        lane.executor_on(backend("two", fft="of_the_backend:Two"))


def test_entry_points_of_the_project_are_backends() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"][GROUP] == BUILT_IN
    for name, reference in BUILT_IN.items():
        backend = resolve_name(reference)
        assert isinstance(backend, Backend)
        assert backend.name == name
        assert find_backend(name) is backend


def test_a_backend_says_how_it_differs() -> None:
    cpu, cuda = find_backend("cpu").capabilities, find_backend("cuda").capabilities
    assert cpu == Capabilities(host_memory=True, python_kernels=True)
    assert cuda == Capabilities(needs_scratch=True, counts_in_int32=True, asynchronous=True)


def test_libraries_alone_look_up_a_backend_by_name() -> None:
    """Equality of two backends' names is another question: whether they are the same.

    The command line is asked for backends by their names, so it may ask, too; and so may the areas
    that are written as any user's program is.
    """
    package = ROOT / "atomr_accel"
    may_ask = [package / name for name in ("agents", "cli", "cluster", "llm", "realtime", "train")]
    asking = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted(package.rglob("*.py"))
        if not any(path.is_relative_to(folder) for folder in may_ask)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"""[!=]= ["'](cpu|cuda)["']|["'](cpu|cuda)["'] [!=]=""", line)
    ]
    assert asking == []
