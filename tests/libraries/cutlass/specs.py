"""Specs that tests build on."""

from __future__ import annotations

from typing import Any, Final

from atomr_accel.libraries.cutlass.wire._spec import Node, Spec

PRODUCT: Final = Node("accumulator")


def spec(**changed: Any) -> Spec:
    given = {
        **dict.fromkeys(("a", "b", "out"), "bfloat16"),
        "trans_a": False,
        "trans_b": True,
        "epilogue": PRODUCT,
        "source": "",
        "tile": (128, 128, 64),
        "cluster": (2, 1, 1),
        "schedule": "cooperative",
        "stages": 0,
        "fast": False,
    }
    return Spec(**{**given, **changed})
