"""Operations that only move elements, with NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..wire._graph import DnnTensor

Array = np.ndarray[Any, Any]


def _reshape(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    del outputs
    return {"y": inputs["input"].reshape(attributes["shape"])}


def _slice(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    del outputs
    starts, stops = attributes["starts"], attributes["stops"]
    steps = attributes["steps"] or (1,) * len(starts)
    return {"y": inputs["input"][tuple(map(slice, starts, stops, steps))]}


def _concatenate(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    del outputs
    return {"y": np.concatenate([*inputs.values()], attributes["axis"])}


def _transpose(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    del outputs
    return {"y": inputs["input"].transpose(attributes["permutation"])}


FUNCTIONS: Final[dict[str, Any]] = {
    "reshape": _reshape,
    "slice": _slice,
    "concatenate": _concatenate,
    "transpose": _transpose,
}
