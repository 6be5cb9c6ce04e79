"""Convolutions: products whose rows are found in images, and what of them can be wrong."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from ..._errors import Unsupported
from ...wire.options import whole
from ..dnn.graph.layout import paddings, steps
from .wire._window import ImageWindow

if TYPE_CHECKING:
    from ..dnn.graph.layout import Padding, Steps
    from .wire._messages import Sizes

_LAYOUTS: Final = ("NWC", "NHWC", "NDHWC")

Shape = tuple[int, ...]


class Movement(NamedTuple):
    """The movement of a filter over images, and the result to compute from it.

    The operands depend on the result: for the convolution they are images and filters. For the
    gradient by images they are the gradient by the result, and filters. For the gradient by filters
    they are the gradient by the result, and images. The caller gives the shape of a gradient.

    Attributes:
        stride, padding, dilation, groups, layout: as for ``Cutlass.conv``.
        images: the shape of the images whose gradient is computed, if it is.
        filters: the shape of the filters whose gradient is computed, if it is.
    """

    stride: Steps
    padding: Padding
    dilation: Steps
    groups: int
    layout: str | None
    images: Shape | None = None
    filters: Shape | None = None

    @property
    def names(self) -> tuple[str, str]:
        """The names that the program uses for the operands."""
        if self.filters is not None:
            return "grad", "x"
        return "x" if self.images is None else "grad", "w"

    def over(self, a: Shape, b: Shape) -> tuple[Sizes, Shape]:
        """The sizes of the product with its window, and the shape of the result."""
        w = b if self.filters is None else self.filters
        x = b if self.filters is not None else a if self.images is None else self.images
        self._require_layout(x)
        if not len(w) == len(x) == len(a):
            raise ValueError(
                f"images have {len(x)} dimensions, filters {len(w)}, and {self.names[0]} {len(a)}; "
                "they must have as many"
            )
        count, channels = w[0], w[-1]
        if min(*x, *w) < 1:
            raise ValueError(f"images of shape {x} and filters of shape {w} have no elements")
        if x[-1] != channels:
            raise ValueError(
                f"with their channels last images of shape {x} have {x[-1]} channels and filters "
                f"of shape {w} have {channels}; with layout 'NCHW' see device.dnn"
            )
        window, reach = self._window(x, w)
        result = (x[0], *window.positions, count)
        if self.images is None and self.filters is None:
            rows = math.prod(result[:-1])
            return window.sizes(rows, count, window.taps * channels), result
        if a != result:
            raise ValueError(
                f"grad must have shape {result}, as the result of the convolution has, not {a}"
            )
        if self.filters is not None:
            positions = math.prod(result[:-1])
            return window.sizes(count, channels, positions, window.taps), self.filters
        if set(window.stride) != {1}:
            raise Unsupported(
                f"the gradient by images of a convolution with stride {window.stride}: kernels "
                "gather it for stride 1; device.dnn has it for any"
            )
        # An element of the images goes to the positions whose taps meet it, from the last tap on.
        turned = window._replace(
            channels=count,
            flipped=True,
            image=window.positions,
            positions=x[1:-1],
            corner=tuple(-low - far for low, far in zip(window.corner, reach, strict=True)),
        )
        rows = math.prod(x[:-1])
        return _reached(turned).sizes(rows, channels, turned.taps * count), x

    def _window(self, x: Shape, w: Shape) -> tuple[ImageWindow, Shape]:
        """The convolution's own window, and how far its last tap is from the first."""
        taps, image, space = w[1:-1], x[1:-1], len(x) - 2
        stride = steps(self.stride, space, "stride")
        dilation = steps(self.dilation, space, "dilation")
        before, after = paddings(self.padding, taps, stride, dilation)
        reach = tuple(step * (count - 1) for step, count in zip(dilation, taps, strict=True))
        room = [
            size + low + high - far
            for size, low, high, far in zip(image, before, after, reach, strict=True)
        ]
        if min(room) < 1:
            raise ValueError(
                f"filters of shape {w} with dilation {dilation} reach beyond images of shape {x} "
                f"with padding {before} and {after}"
            )
        positions = tuple((each - 1) // step + 1 for each, step in zip(room, stride, strict=True))
        corner = tuple(-low for low in before)
        window = ImageWindow(x[-1], False, image, positions, corner, stride, taps, dilation)
        return _reached(window), reach

    def _require_layout(self, x: Shape) -> None:
        if not 3 <= len(x) <= 5:
            raise ValueError(f"images have 3 to 5 dimensions, not shape {x}")
        wanted = _LAYOUTS[len(x) - 3]
        if self.layout not in (None, wanted):
            raise Unsupported(
                f"layout {self.layout!r}: tensor cores and TMA want channels last, {wanted!r} for "
                f"{len(x)} dimensions; device.dnn has the others"
            )
        if whole(self.groups, "groups", 1) != 1:
            raise Unsupported("groups: kernels here take all channels; device.dnn has groups")


def _reached(window: ImageWindow) -> ImageWindow:
    """A window that TMA can gather."""
    refused = window.refusal()
    if refused is not None:
        raise Unsupported(f"{refused}; device.dnn has no such limit")
    return window
