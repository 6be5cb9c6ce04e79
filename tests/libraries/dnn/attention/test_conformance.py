"""Attention against a naive reference, and in ways that tables do not show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ...conformance import MARKS, conform
from ..host.offers import graphs_of, offer
from ..rows.attention import OPERATIONS

pytestmark = MARKS

test_conforms = conform(OPERATIONS)


@pytest.mark.headers
@pytest.mark.slow
async def test_cudnn_takes_every_graph_of_the_conformance_tests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    graphs = await graphs_of(monkeypatch, OPERATIONS)
    verdicts = zip(graphs.values(), offer(list(graphs), tmp_path), strict=True)
    found = {case: verdict for case, verdict in verdicts if verdict not in TAKEN}
    # What cuDNN refuses is known, and refused with its reason.
    refused = {case: verdict for case, verdict in found.items() if REFUSED.search(case)}
    assert found == refused
    assert all(
        verdict.startswith("Unsupported: cuDNN does not do this") for verdict in refused.values()
    )


REFUSED = re.compile(r"\.refusable|\.window")
TAKEN = frozenset(
    f"takes {op}{suffix}{way}"
    for op, suffix in (("sdpa", ""), ("sdpa", "_fp8"))
    for way in ("", "_backward")
)
