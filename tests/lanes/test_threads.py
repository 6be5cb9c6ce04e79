"""Threads of OpenBLAS in hosts: half of the cores, unless the program says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atomr_accel.lanes.threads import openblas_threads, usable_cores, with_threads

from ..harness import opened

QUOTAS = {"max 100000": 6, "150000 100000": 2, "20000 100000": 1, "800000 100000": 6, "": 6}


@pytest.fixture(autouse=True)
def six_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(6)), raising=False)


@pytest.mark.parametrize("quota", QUOTAS)
def test_usable_cores_are_limited_by_the_quota_of_a_container(tmp_path: Path, quota: str) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores(tmp_path) == QUOTAS[quota]


@pytest.mark.parametrize(("quota", "cores"), [("-1", 6), ("250000", 3)])
def test_usable_cores_are_limited_by_the_quota_of_an_old_kernel(
    tmp_path: Path, quota: str, cores: int
) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == cores


def test_hosts_have_half_of_the_cores_for_openblas(tmp_path: Path) -> None:
    assert openblas_threads({}, tmp_path) == (3, "")
    assert with_threads({"A": "b"}, tmp_path) == {"A": "b", "OPENBLAS_NUM_THREADS": "3"}
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert openblas_threads({}, tmp_path) == (1, "")


@pytest.mark.parametrize("name", ["OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"])
def test_hosts_have_the_threads_that_the_program_asks_for(tmp_path: Path, name: str) -> None:
    environment = {name: "5"}
    assert openblas_threads(environment, tmp_path) == (5, name)
    assert with_threads(environment, tmp_path) == environment


def threads_of_host() -> str | None:
    return os.environ.get("OPENBLAS_NUM_THREADS")


async def test_a_host_starts_with_its_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    async with opened(isolation="process") as device:
        assert await device.run(threads_of_host) == str(openblas_threads({})[0])
    assert "OPENBLAS_NUM_THREADS" not in os.environ
