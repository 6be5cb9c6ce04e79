"""Tensors of a model folder, in one file of safetensors or in several with an index."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

import numpy as np

from ._folder_errors import ModelFolderBroken
from ._json_file import read_json
from ._packages import package

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_LAYER: Final = re.compile(r"model\.layers\.([0-9]{1,9})\.")
_DTYPES: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class _TensorPlace(NamedTuple):
    """A tensor: the name of its file, its shape, and its dtype as safetensors names it."""

    file: str
    shape: tuple[int, ...]
    dtype: str


def _layer_of(name: str) -> int | None:
    """Return the number of the layer that a tensor is of, by its name; None for another one."""
    found = _LAYER.match(name)
    return None if found is None else int(found[1])


class Checkpoint:
    """The tensors of a folder. Nothing is read before `opened` but headers.

    Args:
        folder: the folder.

    Raises:
        ModelFolderBroken: a file is missing, truncated, or not as the index has it.
        OSError: a file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._places: Final[dict[str, _TensorPlace]] = {}
        index = read_json(folder / _INDEX, optional=True)
        if index is None:
            if not (folder / _SINGLE).is_file():
                raise ModelFolderBroken(
                    f"{folder} must have {_SINGLE} or {_INDEX}, and has neither"
                )
            self._read_header(_SINGLE)
            return
        expected = index.get("weight_map")
        if not isinstance(expected, dict) or not all(
            isinstance(each, str) and Path(each).name == each for each in expected.values()
        ):
            raise ModelFolderBroken(
                f"weight_map in {_INDEX} must map tensors to names of files in the folder"
            )
        shards = sorted(set(expected.values()))
        missing = [name for name in shards if not (folder / name).is_file()]
        if missing:
            raise ModelFolderBroken(
                f"{folder} must have all {len(shards)} shards that {_INDEX} names, and lacks "
                f"{', '.join(missing[:4])}; download the folder again"
            )
        for name in shards:
            self._read_header(name)
        for tensor, shard in expected.items():
            place = self._places.get(tensor)
            if place is None or place.file != shard:
                raise ModelFolderBroken(
                    f"{shard} must have the tensor {tensor}, as {_INDEX} says, and has not"
                )

    def check(self, shapes: Mapping[str, tuple[int, ...]], layers: int) -> None:
        """Check that tensors are there, with shapes, and that there are no further layers.

        Raises:
            ModelFolderBroken: one is missing, or has another shape, or another dtype than floats of
                16 or 32 bits. Or there is one of a layer that the config has not.
        """
        for name, shape in shapes.items():
            place = self._places.get(name)
            if place is None:
                why = ""
                if _layer_of(name) is not None:
                    why = f", because num_hidden_layers in config.json is {layers}"
                raise ModelFolderBroken(f"the folder must have a tensor {name}{why}, and has none")
            if place.shape != shape:
                raise ModelFolderBroken(
                    f"{name} in {place.file} must have shape {shape}, as config.json says, not "
                    f"{place.shape}"
                )
            if place.dtype not in _DTYPES:
                raise ModelFolderBroken(
                    f"{name} in {place.file} must be of {', '.join(_DTYPES)}, not {place.dtype}"
                )

        for name, place in self._places.items():
            layer = _layer_of(name)
            if layer is not None and layer >= layers:
                raise ModelFolderBroken(
                    f"num_hidden_layers in config.json must be that of the tensors, not {layers}: "
                    f"{place.file} has {name}"
                )

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def dtype(self, name: str) -> str:
        """Return the dtype of a tensor that was checked, as NumPy names it."""
        return _DTYPES[self._places[name].dtype]

    def opened(self) -> OpenCheckpoint:
        """Return the files, open as long as its ``with`` block."""
        return OpenCheckpoint(self._folder, self._places)

    def _read_header(self, name: str) -> None:
        with _opened(self._folder / name) as file:
            for tensor in file.keys():  # noqa: SIM118 - no dict
                found = file.get_slice(tensor)
                shape = tuple(found.get_shape())
                self._places[tensor] = _TensorPlace(name, shape, found.get_dtype())


class OpenCheckpoint:
    """Open files of a checkpoint, which are mapped into memory.

    Args:
        folder: the folder.
        places: the tensors.
    """

    def __init__(self, folder: Path, places: Mapping[str, _TensorPlace]) -> None:
        self._folder: Final = folder
        self._places: Final = places
        self._stack: Final = ExitStack()
        self._files: Final[dict[str, Any]] = {}

    def __enter__(self) -> OpenCheckpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.clear()
        self._stack.close()

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Return a tensor in its own dtype.

        Raises:
            ModelFolderBroken: its file was changed meanwhile.
            OSError: it cannot be read.
        """
        place = self._places[name]
        file = self._files.get(place.file)
        if file is None:
            file = self._stack.enter_context(_opened(self._folder / place.file))
            self._files[place.file] = file
        array: np.ndarray[Any, Any] = file.get_tensor(name)
        if array.shape != place.shape:
            raise ModelFolderBroken(f"{name} in {place.file} must not change while it is read")
        return array


def _opened(path: Path) -> Any:
    safetensors = package("safetensors", "safetensors")
    with path.open("rb"):  # its errors are the system's
        pass
    try:
        return safetensors.safe_open(path, framework="numpy")
    except safetensors.SafetensorError as error:
        raise ModelFolderBroken(
            f"{path} must be a whole file of safetensors: {error}; download it again"
        ) from error
