"""Image filters, in batches and recordings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from .. import Unsupported
from ..actors.util import check_instance
from ..arrays import GpuRef
from ._checks import array_of, number, one_of, whole
from ._kernels import KernelSet, check_collector
from .wire.filters import BORDERS, FILTERS

if TYPE_CHECKING:
    from .. import Batch, Device, Recording

Border: TypeAlias = Literal["constant", "replicate", "reflect", "wrap", "reflect_101"]
_METHODS: Final = ("nearest", "linear", "cubic", "area")

_GRAY: Final = (0.299, 0.587, 0.114)
_MIXES: Final = {
    "rgb2gray": ((*_GRAY, 0.0),),
    "bgr2gray": ((*reversed(_GRAY), 0.0),),
    "gray2rgb": ((1.0, 0.0),) * 3,
    "rgb2bgr": ((0, 0, 1.0, 0), (0, 1.0, 0, 0), (1.0, 0, 0, 0)),
    "rgb2ycrcb": (
        (*_GRAY, 0.0),
        (0.713 * (1 - 0.299), -0.713 * 0.587, -0.713 * 0.114, 0.5),
        (-0.564 * 0.299, -0.564 * 0.587, 0.564 * (1 - 0.114), 0.5),
    ),
    "ycrcb2rgb": (
        (1.0, 1.403, 0.0, -0.5 * 1.403),
        (1.0, -0.714, -0.344, 0.5 * (0.714 + 0.344)),
        (1.0, 0.0, 1.773, -0.5 * 1.773),
    ),
    "rgb2xyz": (
        (0.412453, 0.357580, 0.180423, 0),
        (0.212671, 0.715160, 0.072169, 0),
        (0.019334, 0.119193, 0.950227, 0),
    ),
}
_SPACES: Final = (*_MIXES, "rgb2hsv", "hsv2rgb")

_SOBEL: Final = {
    3: ((1, 2, 1), (-1, 0, 1)),
    5: ((1, 4, 6, 4, 1), (-1, -2, 0, 2, 1)),
}


class Filters:
    """Image filters of a device; ``await Filters.load(device)`` makes them.

    Each takes a batch or a recording first, and an image: float32 of shape (height, width) or
    (height, width, channels). It returns a new image. In a recording all filters of an effect are
    one graph; `open_effect` makes one for the pictures of a video. Brightness has any range unless
    a filter says otherwise.

    ``border`` says which values are outside of the image, by OpenCV's names: ``"constant"``,
    ``"replicate"``, ``"reflect"``, ``"wrap"`` and ``"reflect_101"``. With ``"constant"`` it is
    ``value``.

    Filters raise `TypeError` or `ValueError` in the caller for images of another dtype or number of
    axes, and for sizes and settings out of bounds.
    """

    def __init__(self, device: Device, kernels: KernelSet) -> None:
        self.device: Final = device
        self._kernels: Final = kernels

    @classmethod
    async def load(cls, device: Device) -> Filters:
        """Compile the filters, or find them compiled."""
        return cls(device, await KernelSet.load(device, FILTERS))

    # --- smoothing -------------------------------------------------------------------------

    def separable(
        self,
        on: Batch | Recording,
        image: GpuRef,
        across: GpuRef,
        down: GpuRef,
        *,
        border: Border = "reflect_101",
        value: float = 0.0,
    ) -> GpuRef:
        """Correlate with ``across`` along rows, then with ``down`` along columns.

        Both are float32 weights of one axis, whose middle is at the pixel.
        """
        h, w, c = _sizes(on, image)
        edge, outside = _edge(border), number(value, "value")
        for name, weights in (("across", across), ("down", down)):
            _check_weights(weights, name, 1)
        row, made = on.empty(image.shape, np.float32), on.empty(image.shape, np.float32)
        for out, x, weights, axis in ((row, image, across, 0), (made, row, down, 1)):
            size = weights.size
            self._kernels.launch(
                *(on, "correlate_line", h * w * c, out, x, weights, h, w, c, size, size // 2),
                *(axis, edge, outside),
            )
        return made

    def correlate(
        self,
        on: Batch | Recording,
        image: GpuRef,
        weights: GpuRef,
        *,
        border: Border = "reflect_101",
        value: float = 0.0,
    ) -> GpuRef:
        """Correlate with float32 weights of shape (rows, columns), as ``cv2.filter2D``."""
        h, w, c = _sizes(on, image)
        _check_weights(weights, "weights", 2)
        made = on.empty(image.shape, np.float32)
        edge = (_edge(border), number(value, "value"))
        sizes = (h, w, c, *weights.shape, *edge)
        self._kernels.launch(on, "correlate", h * w * c, made, image, weights, *sizes)
        return made

    async def gaussian(self, size: int, sigma: float = 0.0) -> GpuRef:
        """Return sealed weights of a Gauss filter for `separable`, as ``cv2.getGaussianKernel``.

        Args:
            size: number of weights, odd.
            sigma: standard deviation in pixels; 0 for ``0.3 * ((size - 1) * 0.5 - 1) + 0.8``.
        """
        count = _odd(size, "size", 1, 255)
        width = number(sigma, "sigma", 0.0) or 0.3 * ((count - 1) * 0.5 - 1) + 0.8
        at = np.arange(count) - count // 2
        weights = np.exp(-0.5 * (at / width) ** 2)
        return await self.weights(weights / weights.sum())

    async def sobel(self, size: int = 3) -> tuple[GpuRef, GpuRef]:
        """Return sealed weights (smoothing, derivative) for `separable`; ``size`` is 3 or 5."""
        if size not in _SOBEL:
            raise ValueError(f"size must be 3 or 5, not {size!r}")
        smooth, derive = _SOBEL[size]
        return await self.weights(smooth), await self.weights(derive)

    async def weights(self, values: object) -> GpuRef:
        """Return sealed float32 weights, for use in recordings, which faults do not touch."""
        made = np.asarray(values, np.float32)
        return await self.device.put(array_of(made, "values", (None,) * made.ndim), sealed=True)

    def bilateral(
        self,
        on: Batch | Recording,
        image: GpuRef,
        diameter: int,
        colour: float,
        space: float,
        *,
        border: Border = "reflect_101",
        value: float = 0.0,
    ) -> GpuRef:
        """Smooth within edges, as ``cv2.bilateralFilter``: an image of 1 to 4 channels.

        ``diameter`` is the size of the neighbourhood in pixels, odd. ``colour`` and ``space`` are
        the standard deviations of brightness, and of the distance in pixels.
        """
        h, w, c = _sizes(on, image)
        if c > 4:
            raise ValueError(f"image must have 4 channels at most for bilateral, not {c}")
        radius = _odd(diameter, "diameter", 1, 255) // 2
        made = on.empty(image.shape, np.float32)
        self._kernels.launch(
            *(on, "bilateral", h * w, made, image, h, w, c, radius),
            1 / number(colour, "colour", 1e-6) ** 2,
            1 / number(space, "space", 1e-6) ** 2,
            *(_edge(border), number(value, "value")),
        )
        return made

    def median(
        self,
        on: Batch | Recording,
        image: GpuRef,
        size: int,
        *,
        border: Border = "replicate",
        value: float = 0.0,
    ) -> GpuRef:
        """Take the median of each square of ``size`` pixels: 3, 5 or 7."""
        h, w, c = _sizes(on, image)
        size = _odd(size, "size", 3, 7)
        made = on.empty(image.shape, np.float32)
        self._kernels.launch(
            *(on, "median", h * w * c, made, image, h, w, c, size, _edge(border)),
            number(value, "value"),
        )
        return made

    # --- shapes ----------------------------------------------------------------------------

    def erode(self, on: Batch | Recording, image: GpuRef, shape: GpuRef) -> GpuRef:
        """Take the least value where ``shape``, uint8 of odd sizes, is not 0; none of outside."""
        return self._extreme(on, image, shape, largest=False)

    def dilate(self, on: Batch | Recording, image: GpuRef, shape: GpuRef) -> GpuRef:
        """Take the largest value, as `erode` the least."""
        return self._extreme(on, image, shape, largest=True)

    def opening(self, on: Batch | Recording, image: GpuRef, shape: GpuRef) -> GpuRef:
        """Erode, then dilate: bright spots smaller than the shape vanish."""
        return self.dilate(on, self.erode(on, image, shape), shape)

    def closing(self, on: Batch | Recording, image: GpuRef, shape: GpuRef) -> GpuRef:
        """Dilate, then erode: dark spots smaller than the shape vanish."""
        return self.erode(on, self.dilate(on, image, shape), shape)

    def _extreme(
        self, on: Batch | Recording, image: GpuRef, shape: GpuRef, *, largest: bool
    ) -> GpuRef:
        h, w, c = _sizes(on, image)
        check_instance("shape", shape, GpuRef)
        if shape.dtype != np.uint8 or shape.ndim != 2 or not all(n % 2 for n in shape.shape):
            raise ValueError(
                f"shape must be uint8 of two odd sizes, not {shape.dtype} of shape {shape.shape}"
            )
        made = on.empty(image.shape, np.float32)
        sizes = (h, w, c, *shape.shape, int(largest))
        self._kernels.launch(on, "extreme", h * w * c, made, image, shape, *sizes)
        return made

    # --- edges -----------------------------------------------------------------------------

    def canny(
        self,
        on: Batch | Recording,
        dx: GpuRef,
        dy: GpuRef,
        low: float,
        high: float,
        *,
        squares: bool = False,
    ) -> GpuRef:
        """Find edges, as ``cv2.Canny``: 255 on edges, else 0.

        Args:
            on: a batch or a recording.
            dx: derivative along rows, of one channel; OpenCV's is of `sobel` with
                ``border="replicate"``.
            dy: derivative along columns.
            low: strength from which a pixel is of an edge if the edge has a strong one.
            high: strength from which a pixel is strong.
            squares: whether the strength is Euclid's norm, in place of the sum of magnitudes.
        """
        h, w, c = _sizes(on, dx)
        if c != 1 or dx.shape != dy.shape or dy.dtype != np.float32:
            raise ValueError(
                f"dx and dy must be float32 images of one shape and channel, not {dx.shape} and "
                f"{dy.shape}"
            )
        least, most = number(low, "low", 0.0), number(high, "high", 0.0)
        if least > most:
            raise ValueError(f"low must be at most high, not {least:g} for {most:g}")
        limits = (least**2, most**2) if squares else (math.floor(least), math.floor(most))
        n = h * w
        kinds, strong = on.empty(n, np.uint8), on.empty(n, np.uint8)
        parent, made = on.empty(n, np.int32), on.empty(dx.shape, np.float32)
        run = self._kernels.launch
        run(on, "thin", n, kinds, dx, dy, h, w, *limits, int(squares))
        run(on, "begin_parts", n, parent, strong, n)
        run(on, "join_parts", n, parent, kinds, h, w)
        run(on, "mark_parts", n, strong, parent, kinds, n)
        run(on, "keep_parts", n, made, strong, parent, kinds, n)
        return made

    # --- brightness and colours ------------------------------------------------------------

    def equalize(self, on: Batch | Recording, image: GpuRef) -> GpuRef:
        """Make brightness even, as ``cv2.equalizeHist``: of one channel, whole numbers to 255."""
        h, w, c = _sizes(on, image)
        if c != 1:
            raise ValueError(f"image must have one channel for equalize, not {c}")
        counts = on.cub.histogram_even(image, 256, 0, 256, dtype=np.int32)
        table, made = on.empty(256, np.float32), on.empty(image.shape, np.float32)
        self._kernels.launch(on, "even_table", 256, table, counts)
        self._kernels.launch(on, "look_up", h * w, made, image, table, h * w, 1, 1)
        return made

    def look_up(self, on: Batch | Recording, image: GpuRef, table: GpuRef) -> GpuRef:
        """Replace brightness by a table's entries, as ``cv2.LUT``.

        Values are rounded and limited to 0 to 255. The table is float32 of shape (256,), or
        (256, channels).
        """
        h, w, c = _sizes(on, image)
        check_instance("table", table, GpuRef)
        if table.dtype != np.float32 or table.shape not in {(256,), (256, c)}:
            raise ValueError(
                f"table must be float32 of shape (256,) or (256, {c}), not {table.dtype} of shape "
                f"{table.shape}"
            )
        made = on.empty(image.shape, np.float32)
        columns = 1 if table.ndim == 1 else c
        self._kernels.launch(on, "look_up", h * w * c, made, image, table, h * w * c, c, columns)
        return made

    async def space(self, name: str) -> ColourSpace:
        """Return a conversion for `convert`, by OpenCV's formulas for images from 0 to 1.

        Names are ``"rgb2gray"``, ``"bgr2gray"``, ``"gray2rgb"``, ``"rgb2bgr"``, ``"rgb2ycrcb"``,
        ``"ycrcb2rgb"``, ``"rgb2xyz"``, ``"rgb2hsv"`` and ``"hsv2rgb"``.
        """
        one_of(name, "name", _SPACES)
        matrix = await self.weights(_MIXES[name]) if name in _MIXES else None
        return ColourSpace(name, matrix)

    def convert(self, on: Batch | Recording, image: GpuRef, space: ColourSpace) -> GpuRef:
        """Convert colours; see `space`. Gray images have shape (height, width)."""
        h, w, c = _sizes(on, image)
        check_instance("space", space, ColourSpace)
        matrix = space.matrix
        wanted = 3 if matrix is None else matrix.shape[1] - 1
        if c != wanted:
            raise ValueError(f"image must have {wanted} channels for {space.name}, not {c}")
        count = 3 if matrix is None else matrix.shape[0]
        made = on.empty((h, w) if count == 1 else (h, w, count), np.float32)
        if matrix is None:
            name = "rgb_to_hsv" if space.name == "rgb2hsv" else "hsv_to_rgb"
            self._kernels.launch(on, name, h * w, made, image, h * w)
        else:
            self._kernels.launch(on, "mix", h * w * count, made, image, matrix, h * w, c, count)
        return made

    def resize(
        self,
        on: Batch | Recording,
        image: GpuRef,
        height: int,
        width: int,
        *,
        method: Literal["nearest", "linear", "cubic", "area"] = "linear",
    ) -> GpuRef:
        """Change the size of an image, as ``cv2.resize``.

        The method ``"area"`` averages and only makes images smaller.

        Raises:
            Unsupported: ``"area"`` for a larger image.
        """
        h, w, c = _sizes(on, image)
        rows, columns = whole(height, "height", 1, 1 << 20), whole(width, "width", 1, 1 << 20)
        number_of = _METHODS.index(one_of(method, "method", _METHODS))
        if method == "area" and (rows > h or columns > w):
            raise Unsupported('method="area" makes no image larger; use "linear"')
        made = on.empty((rows, columns, *image.shape[2:]), np.float32)
        self._kernels.launch(
            *(on, "resample", rows * columns * c, made, image, h, w, c, rows, columns, number_of),
        )
        return made


class ColourSpace:
    """A conversion of colours; `Filters.space` makes it.

    Attributes:
        name: its name.
        matrix: float32 rows of weights with a constant, or None for one that is not linear.
    """

    def __init__(self, name: str, matrix: GpuRef | None) -> None:
        self.name: Final = name
        self.matrix: Final = matrix


def _sizes(on: object, image: object) -> tuple[int, int, int]:
    check_collector(on)
    check_instance("image", image, GpuRef)
    assert isinstance(image, GpuRef)
    if image.dtype != np.float32:
        raise TypeError(f"image must be float32, not {image.dtype}; use astype(np.float32)")
    if image.ndim not in {2, 3} or not image.size:
        raise ValueError(
            f"image must have shape (height, width) or (height, width, channels), not {image.shape}"
        )
    if not image.contiguous:
        raise ValueError("image must be contiguous, not a view with gaps; copy it")
    h, w, *c = image.shape
    return h, w, *c, *(() if c else (1,))


def _edge(border: object) -> int:
    return BORDERS.index(one_of(border, "border", BORDERS))


def _odd(value: object, name: str, low: int, high: int) -> int:
    made = whole(value, name, low, high)
    if made % 2 == 0:
        raise ValueError(f"{name} must be odd, not {made}")
    return made


def _check_weights(weights: object, name: str, axes: int) -> None:
    check_instance(name, weights, GpuRef)
    assert isinstance(weights, GpuRef)
    if weights.dtype != np.float32 or weights.ndim != axes or not all(n % 2 for n in weights.shape):
        raise ValueError(
            f"{name} must be float32 with {axes} axes of odd sizes, not {weights.dtype} of shape "
            f"{weights.shape}"
        )
