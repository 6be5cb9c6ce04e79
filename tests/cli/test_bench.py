"""``bench``: measurements and their rivals."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest
import trio

from atomr_accel import Device, open_device
from atomr_accel._install import install_command
from atomr_accel.cli import _bench, _children
from atomr_accel.cli._bench import MEASUREMENTS
from atomr_accel.cli._documents import BenchDocument
from atomr_accel.cli._errors import Refusal
from atomr_accel.cli.host import _rivals
from atomr_accel.cli.host._rivals import THREADS
from atomr_accel.lanes.threads import with_threads

from .commands import Commands

QUICKLY = ("--backend", "cpu", "--isolation", "thread", "--quick", "--repeats", "1")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that take no time."""
    monkeypatch.setattr(
        _bench,
        "MEASUREMENTS",
        tuple(
            _bench.Measurement(m.name, m.what, (16, 16), m.work, m.unit, m.prepared)
            for m in MEASUREMENTS
        ),
    )


@pytest.mark.usefixtures("small")
def test_each_is_measured_and_set_beside_numpy(command: Commands) -> None:
    document = command.document("bench", *QUICKLY, "--rivals", "numpy")
    names = [m.name for m in MEASUREMENTS if m.name != "return"]
    assert [part.name for part in document.measurements] == names
    assert document.device.startswith("cpu:0")  # others may be open here
    assert list(document.rivals) == ["numpy"]
    for part in document.measurements:
        assert part.least <= part.seconds <= part.most
        assert part.rate > 0
        (rival,) = part.rivals
        assert rival.ratio == pytest.approx(part.seconds / rival.seconds)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("given", ["", "3"])
def test_rivals_have_as_many_threads_as_hosts(
    given: str, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    if given:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
    seen: list[dict[str, str]] = []

    def ask(_module: str, _question: bytes, _seconds: float, variables: dict[str, str]) -> bytes:
        seen.append(variables)
        return msgspec.json.encode(_rivals.Answer("1", None, {"ask": 1.0}))

    monkeypatch.setattr(_bench, "ask_child", ask)
    process = ("--backend", "cpu", "--quick", "--repeats", "1")
    document = command.document("bench", "ask", *process, "--rivals", "numpy")
    host = with_threads(os.environ)["OPENBLAS_NUM_THREADS"]
    assert host == (given or host)
    assert seen == [dict.fromkeys(THREADS, host)]
    assert document.threads == int(host)


def test_a_child_gets_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "child.py").write_text(
        "import os\ndef main(): print(os.environ['MINE'], 'PATH' in os.environ)"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(_children, "_BOOT", _children._BOOT.replace("sys.argv[1]", "'child'"))
    assert _children.ask_child("any", b"", 60, {"MINE": "yes"}) == b"yes True\n"


@pytest.mark.usefixtures("small")
def test_a_rival_that_is_missing_or_ends_is_left_out(
    tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cupy.py").write_text("import os; os.abort()")
    (tmp_path / "torch.py").write_text("print('noise'); raise ImportError('half of it')")
    monkeypatch.syspath_prepend(str(tmp_path))
    document = command.document("bench", "ask", *QUICKLY, "--rivals", "torch,cupy")
    assert document.rivals == {}
    assert document.left_out == {"torch": "not installed", "cupy": "it was ended by SIGABRT"}


@pytest.mark.usefixtures("small")
def test_for_people(command: Commands) -> None:
    done = command("bench", "ask", "gemm", *QUICKLY, "--rivals", "")
    assert done.code == 0
    assert re.match(r"On cpu:0( \(\d+\))?, 1 times each\n", done.out)
    assert [line.split()[0] for line in done.out.splitlines()[2:4]] == ["ask", "gemm"]


def test_a_list(command: Commands) -> None:
    document = command.document("bench", "--list")
    assert [part.name for part in document.measurements] == [m.name for m in MEASUREMENTS]
    assert {part.seconds for part in document.measurements} == {document.device} == {None}
    text = command("bench", "--list").out
    assert "a product of n x n, awaited" in text
    assert "{" not in text


def test_a_device_that_is_not_there(command: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atomr_accel.backends.cuda._DRIVER_FILES", ())
    refusal = command.document("bench", "ask", "--backend", "cuda", code=3)
    assert "no NVIDIA driver" in refusal.message


@pytest.mark.usefixtures("small")
def test_a_plot(tmp_path: Path, command: Commands) -> None:
    """Plots show ratios, or times if there are no rivals."""
    pytest.importorskip("matplotlib")
    pictures = tmp_path / "ratios.svg", tmp_path / "times.svg"
    words = ("bench", "ask", *QUICKLY, "--rivals", "numpy", "--plot", pictures[0])
    document = command.document(*words)
    _bench._plot(msgspec.structs.replace(document, rivals={}), str(pictures[1]))
    assert all("<svg" in picture.read_text() for picture in pictures)


def test_a_plot_that_has_no_place(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document = BenchDocument(
        version="", device="", repeats=0, threads=2, rivals={}, left_out={}, measurements=[]
    )
    with pytest.raises(Refusal, match="cannot be written"):
        _bench._plot(document, str(tmp_path / "not" / "there.svg"))


def test_a_plot_without_matplotlib(command: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bench, "find_spec", lambda _: None)
    refusal = command.document("bench", "--plot", "bench.svg", code=3)
    assert install_command("cli") in refusal.message


def test_rivals_do_all_but_faults() -> None:
    rival = _rivals.RIVALS["numpy"](__import__("numpy"), None)
    for measurement in MEASUREMENTS:
        name = _bench._RIVALS_CALL_IT.get(measurement.name, measurement.name)
        if name != "return":
            assert rival.prepared(name, 8)() is not None


async def test_a_return_is_measured_to_the_next_product() -> None:
    killed = []
    (measurement,) = (m for m in MEASUREMENTS if m.name == "return")

    async def kill_host(device: Device) -> None:
        killed.append(device.generation)
        await trio.lowlevel.checkpoint()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_bench, "kill_host", kill_host)
        async with open_device(0, backend="cpu", isolation="thread") as device:
            await (await measurement.prepared(device, 8))()
    assert killed == [1]
