"""Messages of the DNN lane for samples of images at given positions, and for windows of images."""

from __future__ import annotations

from typing import Final, Literal

from ....wire import Address, Message
from ._graph import DnnTensor

SAMPLE_MODES: Final = ("bilinear", "nearest")
SAMPLE_PADDINGS: Final = ("zeros", "border", "reflection")


class AffineGrid(Message, frozen=True):
    """Positions made of affine matrices, or the gradient by the matrices.

    Attributes:
        batch: number of matrices.
        places: sizes of the grid, one for each dimension of space.
        dtype: element type.
        aligned: whether -1 and 1 are the centres of the outermost elements, not their edges.
        backward: whether ``theta`` is written, as the gradient, and ``grid`` read.
        theta, grid: addresses.
    """

    batch: int
    places: tuple[int, ...]
    dtype: str
    aligned: bool
    backward: bool
    theta: Address
    grid: Address


class SampleGrid(Message, frozen=True):
    """Elements of images at given positions, or a gradient.

    Attributes:
        kind: ``"sample"``, or the gradient by ``"image"`` or ``"grid"``.
        image: layout of the images.
        result: layout of the samples.
        mode: one of ``SAMPLE_MODES``.
        padding: one of ``SAMPLE_PADDINGS``.
        aligned: whether -1 and 1 are the centres of the outermost elements, not their edges.
        ordered: whether sums that several samples add to have an order.
        x: address of the images, or of their gradient.
        grid: address of the positions.
        y: address of the samples, or of the gradient by them.
        dgrid: address of the gradient by the grid, or 0.
        scratch: address of a float32 for each element of the images, for the gradient by images in
            16 bits, or 0.
    """

    kind: Literal["sample", "image", "grid"]
    image: DnnTensor
    result: DnnTensor
    mode: str
    padding: str
    aligned: bool
    ordered: bool
    x: Address
    grid: Address
    y: Address
    dgrid: Address = 0
    scratch: Address = 0


class MoveWindows(Message, frozen=True):
    """Windows of images, and columns or elements of them.

    Attributes:
        kind: ``"unfold"`` copies windows to columns, ``"fold"`` adds columns to images,
            ``"pool"`` finds the largest elements and where they are, ``"unpool"`` puts elements
            where they have been, and ``"pick"`` takes them from there.
        image: layout of the images.
        result: layout of the places. Columns have a channel for each element of a window.
        window, stride, padding, dilation: one number for each dimension of space.
        x: address of the images.
        y: address of the columns or the elements.
        indices: address of int64 positions within an image's space, or 0.
    """

    kind: Literal["unfold", "fold", "pool", "unpool", "pick"]
    image: DnnTensor
    result: DnnTensor
    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    x: Address
    y: Address
    indices: Address = 0
