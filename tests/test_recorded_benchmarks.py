"""Figures of benchmarks beside those of an earlier run."""

from __future__ import annotations

import pytest

from .benchmarks.recorded import compared

WAS = """\
NVIDIA H200, backend cuda, Python 3.11.9
gemm 256 float16                       12.0 us     50.0 GB/s    | torch    24.0 us  ratio  2.00
gemm 512 float16                       20.0 us     80.0 GB/s    | torch    30.0 us  ratio  1.50
a step of 1,048,576 parameters, 8 rows
of one at a time by hand                9.50  (goal 10)
all: 231,245 tokens/s, recovered after 0.5 s
"""


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ("12.0 us", "12.3 us", []),
        ("12.0 us", "12.5 us", ["gemm 256 float16"]),
        ("12.0 us", "9.0 us", []),
        ("80.0 GB/s", "77.0 GB/s", ["gemm 512 float16"]),
        ("80.0 GB/s", "90.0 GB/s", []),
        ("ratio  1.50", "ratio  1.20", ["gemm 512 float16"]),
        ("9.50", "1.50", []),  # whether more is better is not known
        ("231,245", "200,000", ["all"]),
        ("0.5 s", "0.6 s", ["all"]),
        ("Python 3.11.9", "Python 3.12.1", []),
    ],
)
def test_losses_are_marked(old: str, new: str, lost: list[str]) -> None:
    assert old in WAS
    changes = compared(WAS, WAS.replace(old, new, 1))
    assert [change.now.name for change in changes if change.lost] == lost
    assert ["LOSS" in str(change) for change in changes] == [change.lost for change in changes]
    assert all(change.was is not None for change in changes)


def test_lines_that_are_new_or_gone_are_told_apart() -> None:
    lines = WAS.splitlines(keepends=True)
    missing = compared("".join(lines[:1] + lines[2:]), WAS)
    assert {change.now.name for change in missing if change.was is None} == {"gemm 256 float16"}
    assert not any(change.lost for change in missing)
    gone = compared(WAS, "".join(lines[2:]))
    assert all(change.was == change.now.value for change in gone)


def test_equal_lines_belong_together_in_their_order() -> None:
    was = "fault: 3.0 ms\nfault: 5.0 ms\n"
    changes = compared(was, "fault: 3.0 ms\nfault: 6.0 ms\nfault: 7.0 ms\n")
    assert [(change.was, change.lost) for change in changes] == [
        (3, False),
        (5, True),
        (None, False),
    ]
