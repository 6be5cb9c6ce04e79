"""Snapshots of a run in files, as safetensors. These functions wait for files."""

from __future__ import annotations

import json
import math
import os
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from .._errors import AccelError, Unsupported
from ._state import ModelLayout
from ._trees import safetensors, safetensors_numpy

_KIND: Final = "atomr-accel training 1"


class SnapshotDamaged(AccelError):
    """A snapshot's file is truncated or changed. The trainer is unchanged."""


class SnapshotForeign(AccelError):
    """A snapshot is of another model, optimizer or data. The trainer is unchanged."""


def write_snapshot(
    path: Path,
    layout: ModelLayout,
    flats: Sequence[np.ndarray[Any, Any]],
    about: Mapping[str, Any],
) -> None:
    """Write flat buffers into a file that is whole at every moment."""
    if layout.master_dtype not in (np.float32, np.float64):
        raise Unsupported(
            f"a snapshot must be of float32 or float64, not {layout.master_dtype.name}; train with "
            "parameters of bfloat16, whose masters are float32"
        )
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for number, flat in enumerate(flats):
        for place in layout.places:
            part = flat[place.start : place.start + math.prod(place.shape)]
            tensors[_name_of(number, place.name)] = part.reshape(place.shape)
    metadata = {"kind": _KIND, "about": json.dumps(about), "crc32": str(_sum_of(flats))}
    content = safetensors_numpy.save(tensors, metadata)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def read_snapshot(
    path: Path, layout: ModelLayout, count: int, expected: Mapping[str, Any]
) -> tuple[list[np.ndarray[Any, Any]], dict[str, Any]]:
    """Return the flat buffers of a file, and the facts with them.

    ``expected`` are facts that must be equal in the file.
    """
    with path.open("rb"):  # its errors are the system's
        pass
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    except safetensors.SafetensorError as error:
        raise SnapshotDamaged(f"{path} must be a whole snapshot: {error}") from error
    if metadata.get("kind") != _KIND:
        raise SnapshotForeign(f"{path} must be a snapshot of a trainer, not other tensors")
    shapes = {
        _name_of(number, place.name): place.shape
        for number in range(count)
        for place in layout.places
    }
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if found != shapes:
        names = sorted(
            name for name in found.keys() | shapes if found.get(name) != shapes.get(name)
        )
        raise SnapshotForeign(
            f"{path} must have the tensors of this model and optimizer, and differs in "
            f"{', '.join(names[:4])}; open the trainer as it was when it was saved"
        )
    about = json.loads(metadata["about"])
    for name, value in expected.items():
        if about.get(name) != value:
            raise SnapshotForeign(
                f"{path} must be of {name} {value}, not {about.get(name)}; open the trainer as it "
                "was when it was saved"
            )
    flats = []
    for number in range(count):
        flat = np.zeros(layout.size, layout.master_dtype)
        for place in layout.places:
            part = tensors[_name_of(number, place.name)]
            flat[place.start : place.start + part.size] = part.ravel()
        flats.append(flat)
    if str(_sum_of(flats)) != metadata.get("crc32"):
        raise SnapshotDamaged(f"{path} must have the checksum that it was written with")
    return flats, about


def _name_of(number: int, name: str) -> str:
    return f"slots.{number - 1}.{name}" if number else f"params.{name}"


def _sum_of(flats: Sequence[np.ndarray[Any, Any]]) -> int:
    made = 0
    for flat in flats:
        made = zlib.crc32(flat.data.cast("B"), made)
    return made
