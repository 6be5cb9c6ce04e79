"""Choice of cuDNN or of this package's kernels for a call."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_accel import Unsupported
from atomr_accel.libraries.dnn.attention.graph import AttentionSpec
from atomr_accel.libraries.flash_attention._call import _require_tensor_cores
from atomr_accel.libraries.flash_attention._choice import REASONS, Case, by_kernel

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "attention.md"


def case(of: dict[str, Any], **spec: Any) -> Case:
    given = {"queries": 8, "keys": 8, "size": 64, "value_size": 64, **spec}
    return Case(AttentionSpec("float16", 2, 4, 4, **given), **of)


@pytest.mark.parametrize(
    ("of", "spec"),
    [
        ({}, {"keys": 0}),
        ({"narrow": True}, {}),
        ({"lengths": True}, {"softcap": True}),
        ({"lengths": True}, {"slopes": (1, 4, 1, 1)}),
        ({}, {"bias": (1, 4, 8, 8), "top_left": False}),
        ({}, {"dropout": 0.1, "top_left": False}),
        ({}, {"paper": True, "top_left": False}),
        ({}, {"queries": 9, "top_left": False}),
        ({"ragged": True, "lengths": True, "backward": True}, {"sink": True}),
        ({"lengths": True}, {"sink": True, "queries": 1}),
        ({"lengths": True}, {"queries": 1, "page": 12}),
    ],
    ids=[reason.what for reason in REASONS],
)
def test_what_cudnn_does_not_do_is_done_by_kernels(
    of: dict[str, Any], spec: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    wanted = case(of, **spec)
    held = [reason.what for reason in REASONS if reason.holds(wanted)]
    assert len(held) == 1
    assert request.node.callspec.id == held[0]
    assert by_kernel("op", "auto", wanted)
    assert by_kernel("op", "kernel", wanted)
    with pytest.raises(Unsupported, match=r"cuDNN does not do .*; backend='kernel' does"):
        by_kernel("op", "cudnn", wanted)


@pytest.mark.parametrize(
    ("of", "spec"),
    [
        ({}, {}),
        ({"backward": True}, {"softcap": True, "slopes": (1, 4, 1, 1)}),
        ({"lengths": True, "ragged": True}, {"sink": True}),
        ({"lengths": True}, {"queries": 1, "page": 16}),
        ({}, {"bias": (1, 4, 8, 8), "dropout": 0.1}),
    ],
)
def test_the_rest_is_done_by_cudnn(of: dict[str, Any], spec: dict[str, Any]) -> None:
    assert not by_kernel("op", "auto", case(of, **spec))
    assert not by_kernel("op", "cudnn", case(of, **spec))
    assert by_kernel("op", "kernel", case(of, **spec))


def test_what_drops_the_result_drops_the_gradient() -> None:
    """Masks differ, so both passes have to be computed by the same."""
    for backward in (False, True):
        of = {"ragged": True, "lengths": True, "backward": backward}
        assert by_kernel("op", "auto", case(of, sink=True, dropout=0.1))


@pytest.mark.parametrize("sizes", [{"size": 20}, {"value_size": 264}])
def test_sizes_of_kernels(sizes: dict[str, int]) -> None:
    with pytest.raises(Unsupported, match=r"multiples of 8 up to 256, and [qkv]"):
        by_kernel("op", "kernel", case({}, **sizes))
    with pytest.raises(Unsupported, match="cuDNN does not do a softcap where"):
        by_kernel("op", "auto", case({"lengths": True}, softcap=True, **sizes))
    assert not by_kernel("op", "auto", case({}, **sizes))  # cuDNN raises the error


def test_sizes_in_fp8() -> None:
    with pytest.raises(Unsupported, match="multiples of 16 up to 256 in fp8, and v have 40"):
        by_kernel("op", "auto", case({"narrow": True}, value_size=40))


def test_backends() -> None:
    with pytest.raises(ValueError, match="backend must be one of auto, cudnn, kernel, not 'flash'"):
        by_kernel("op", "flash", case({}))


def test_devices_that_are_too_old() -> None:
    for capability in ((0, 0), (8, 0), (9, 0)):
        home: Any = SimpleNamespace(info=SimpleNamespace(compute_capability=capability))
        _require_tensor_cores(home)
    home.info.compute_capability = (7, 5)
    with pytest.raises(Unsupported, match=r"need compute capability 8\.0, and .* 7\.5"):
        _require_tensor_cores(home)


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.what)
def test_the_page_has_every_reason(reason: Any) -> None:
    assert reason.what in " ".join(PAGE.read_text(encoding="utf-8").split())
