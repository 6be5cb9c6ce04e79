"""Rows of ``NODES`` that resample images: windows that move, windows that fit, interpolation.

The vendor's graphs have one operation for it (``CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR``),
which its frontend for Python does not offer. So on CUDA these are kernels of this package. They
compute the same as ``torch.nn.functional``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ._graph import DnnTensor, strides_of
from ._node_type import REQUIRED, NodeType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._graph import Attribute
    from ._node_type import Attributes, Infer, Inputs

POOLS: Final = ("MAXPOOL", "AVGPOOL_INCLUDE_PADDING", "AVGPOOL_EXCLUDE_PADDING")
ADAPTIVE: Final = ("MAXPOOL", "AVGPOOL")
INTERPOLATIONS: Final = ("NEAREST", "NEAREST_EXACT", "LINEAR", "CUBIC")


class ResampleAxis(NamedTuple):
    """Resampling of one dimension of space.

    Attributes:
        kind: ``"window"``, ``"adaptive"``, or one of ``INTERPOLATIONS``.
        size: number of elements before.
        places: number of elements after.
        window, stride, before, after: size, stride and padding of a moving window.
        aligned: whether the first and the last element stay where they are.
    """

    kind: str
    size: int
    places: int
    window: int = 1
    stride: int = 1
    before: int = 0
    after: int = 0
    aligned: bool = False


def _image(op: str, tensor: DnnTensor) -> int:
    """Return the number of dimensions of space."""
    if not 3 <= len(tensor.shape) <= 5 or tensor.kind == "scalar":
        raise ValueError(f"{op} takes images of 3 to 5 dimensions, not {tensor.shape}")
    return len(tensor.shape) - 2


def _choice(op: str, attributes: Attributes, known: tuple[str, ...]) -> str:
    mode: str = attributes["mode"]
    if mode not in known:
        raise ValueError(f"{op}: mode must be one of {', '.join(known)}, not {mode!r}")
    return mode


def axes_of(op: str, space: tuple[int, ...], attributes: Attributes) -> tuple[ResampleAxis, ...]:
    """Return the resampling of each dimension of space by an operation, or its gradient.

    ``op`` comes without ``_backward``.
    """
    if op == "resample":
        return _windows(space, attributes)
    places = attributes["size"]
    if len(places) != len(space) or min(places) < 1:
        raise ValueError(f"{op}: size must be {len(space)} numbers of at least 1, not {places}")
    pairs = zip(space, places, strict=True)
    if op == "adaptive_pool":
        return tuple(ResampleAxis("adaptive", size, count) for size, count in pairs)
    mode, aligned = str(attributes["mode"]), bool(attributes["align_corners"])
    if aligned and mode.startswith("NEAREST"):
        raise ValueError(f"{op}: align_corners is for LINEAR and CUBIC, not for {mode}")
    if mode == "CUBIC" and len(space) != 2:
        raise ValueError(f"{op}: CUBIC is for two dimensions of space, not for {len(space)}")
    return tuple(ResampleAxis(mode, size, count, aligned=aligned) for size, count in pairs)


def _windows(space: tuple[int, ...], attributes: Attributes) -> tuple[ResampleAxis, ...]:
    names = ("window", "stride", "pre_padding", "post_padding")
    for name, least in zip(names, (1, 1, 0, 0), strict=True):
        values = attributes[name]
        if len(values) != len(space) or min(values) < least:
            raise ValueError(
                f"resample: {name} must be {len(space)} numbers of at least {least}, not {values}"
            )
    axes = []
    for size, taps, step, before, after in zip(
        space, *(attributes[name] for name in names), strict=True
    ):
        if max(before, after) >= taps:
            raise ValueError(f"resample: padding {before}, {after} is not below a window of {taps}")
        room = size + before + after - taps
        places = room // step + 1
        # One more, which is not all inside, if it begins before the image ends.
        if attributes["ceil_mode"] and room % step and places * step < size + before:
            places += 1
        if places < 1:
            raise ValueError(
                f"resample: a window of {taps} in steps of {step} does not fit into {size} "
                f"elements with padding {before}, {after}"
            )
        axes.append(ResampleAxis("window", size, places, taps, step, before, after))
    return tuple(axes)


def _result(tensor: DnnTensor, space: tuple[int, ...]) -> DnnTensor:
    shape = (*tensor.shape[:2], *space)
    return DnnTensor(
        tensor.dtype, shape, strides_of(shape, last=tensor.last), "virtual", last=tensor.last
    )


def _forward(op: str, modes: tuple[str, ...]) -> Infer:
    def infer(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
        tensor = inputs["input"]
        _image(op, tensor)
        _choice(op, attributes, modes)
        axes = axes_of(op, tensor.shape[2:], attributes)
        return {"y": _result(tensor, tuple(axis.places for axis in axes))}

    return infer


def _backward(op: str, modes: tuple[str, ...]) -> Infer:
    name = f"{op}_backward"

    def infer(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
        loss, shape = inputs["loss"], attributes["shape"]
        space = _image(name, loss)
        mode = _choice(name, attributes, modes)
        image = inputs.get("input")
        if (mode == "MAXPOOL") != (image is not None):
            raise ValueError(f"{name}: input belongs to MAXPOOL, whose gradient needs it")
        if image is not None and image.shape != shape:
            raise ValueError(f"{name}: shape must be that of input, {image.shape}, not {shape}")
        if image is not None and image.dtype != loss.dtype:
            raise TypeError(
                f"{name}: input must have the dtype of loss, {loss.dtype}, not {image.dtype}"
            )
        if len(shape) != space + 2 or min(shape[1:]) < 1:
            raise ValueError(f"{name}: shape {shape} has not the dimensions of {loss.shape}")
        axes = axes_of(op, shape[2:], attributes)
        expected = (*shape[:2], *(axis.places for axis in axes))
        if loss.shape != expected:
            raise ValueError(
                f"{name}: the gradient must have shape {expected}, as an image "
                f"{shape} gives, not {loss.shape}"
            )
        return {"dx": _result(loss, shape[2:])}

    return infer


_MODE: Final[Mapping[str, Attribute]] = {"mode": REQUIRED}
_FAMILIES: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, Attribute], str]]] = {
    "resample": (
        POOLS,
        {
            **dict.fromkeys(("window", "stride", "pre_padding", "post_padding"), REQUIRED),
            "ceil_mode": False,
        },
        (
            "the largest element, or the average, in each place of a window; with ``ceil_mode`` "
            "in places too that are only partly inside"
        ),
    ),
    "adaptive_pool": (
        ADAPTIVE,
        {"size": REQUIRED},
        "the same in windows of which there are ``size``, side by side or overlapping by little",
    ),
    "interpolate": (
        INTERPOLATIONS,
        {"size": REQUIRED, "align_corners": False},
        "an image of ``size``, between whose elements there is interpolated",
    ),
}


def _rows() -> dict[str, NodeType]:
    rows: dict[str, NodeType] = {}
    for op, (modes, attributes, text) in _FAMILIES.items():
        rows[op] = NodeType(
            ("input",),
            ("y",),
            _forward(op, modes),
            attributes={**_MODE, **attributes},
            about=f"{text}; one of {', '.join(modes)}",
        )
        rows[f"{op}_backward"] = NodeType(
            ("loss",),
            ("dx",),
            _backward(op, modes),
            optional=("input",) if "MAXPOOL" in modes else (),
            attributes={**_MODE, **attributes, "shape": REQUIRED},
            about=f"the gradient of ``{op}`` by its input, of ``shape``"
            + (", which MAXPOOL reads" if "MAXPOOL" in modes else ""),
        )
    return rows


RESAMPLING: Final = _rows()
"""The operations by name."""
