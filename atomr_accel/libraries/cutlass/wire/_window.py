"""Windows: where the taps of a filter meet an image, for each row of a product."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ._messages import Sizes

_PRODUCT: Final = 4
"""Sizes begin with those of the product."""

_REACH: Final = 16
"""Bits that TMA has for where a filter meets an image, for all axes together."""
_MOST_STRIDE: Final = 8


class ImageWindow(NamedTuple):
    """The way in which an operand of a product is gathered from images with channels last.

    At position ``p`` of an axis tap ``t`` meets element ``corner + stride * p + dilation * t``, and
    zero outside of the image. The elements that all taps meet, channels innermost, are one row of a
    convolution's first operand. For the gradient by filters, the elements that one tap meets are a
    row of the second operand.

    Attributes:
        channels: of the images.
        flipped: True if taps meet the filter in reverse, the first tap with the last of the filter.
        image: elements along each axis.
        positions: along each axis.
        corner: the element that the first tap meets at the first position.
        stride: between positions.
        filter: taps along each axis.
        dilation: between taps.
    """

    channels: int
    flipped: bool
    image: tuple[int, ...]
    positions: tuple[int, ...]
    corner: tuple[int, ...]
    stride: tuple[int, ...]
    filter: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def taps(self) -> int:
        """The number of taps of the filter."""
        return math.prod(self.filter)

    @property
    def last(self) -> tuple[int, ...]:
        """The element that the first tap meets at the last position."""
        places = zip(self.corner, self.stride, self.positions, strict=True)
        return tuple(corner + stride * (count - 1) for corner, stride, count in places)

    @property
    def margins(self) -> tuple[tuple[int, int], ...]:
        """Zeros before and after the image along each axis, with which all that is met is there."""
        return tuple(
            (max(0, -corner), max(0, last + dilation * (count - 1) - (size - 1)))
            for corner, last, dilation, count, size in zip(
                self.corner, self.last, self.dilation, self.filter, self.image, strict=True
            )
        )

    def slices(self, tap: tuple[int, ...]) -> tuple[slice, ...]:
        """Return the elements that a tap meets at all positions, of an image with its margins."""
        found = []
        for (before, _), corner, stride, count, at, dilation in zip(
            *(self.margins, self.corner, self.stride, self.positions, tap, self.dilation),
            strict=True,
        ):
            begin = before + corner + dilation * at
            found.append(slice(begin, begin + stride * (count - 1) + 1, stride))
        return tuple(found)

    def sizes(self, m: int, n: int, k: int, count: int = 1) -> Sizes:
        """Return the sizes of products, followed by the window."""
        axes = (number for each in self[2:] for number in each)
        return (m, n, k, count, self.channels, int(self.flipped), *axes)

    @staticmethod
    def of(sizes: Sizes, space: int) -> ImageWindow:
        """Return the window that ``sizes`` encoded."""
        channels, flipped, *axes = sizes[_PRODUCT:]
        image, positions, corner, stride, taps, dilation = (
            tuple(axes[at : at + space]) for at in range(0, 6 * space, space)
        )
        return ImageWindow(
            channels, bool(flipped), image, positions, corner, stride, taps, dilation
        )

    def refusal(self) -> str | None:
        """Return the reason why TMA, whose offsets have few bits, cannot gather this, or None."""
        bits = _REACH // len(self.image)
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        for first, last, size in zip(self.corner, self.last, self.image, strict=True):
            beyond = last - (size - 1)
            if not (low <= first <= high and low <= beyond <= high):
                return (
                    f"the filter begins at {first} and ends {beyond} from the image's end; TMA has "
                    f"from {low} to {high} in {len(self.image)} dimensions of space"
                )
        for count, dilation, stride in zip(self.filter, self.dilation, self.stride, strict=True):
            farthest = (1 << bits) - 2
            if (count - 1) * dilation > farthest:
                return (
                    f"the last of {count} taps with dilation {dilation} is {(count - 1) * dilation}"
                    f" from the first; TMA has up to {farthest} in {len(self.image)} dimensions of "
                    "space"
                )
            if stride > _MOST_STRIDE:
                return f"stride is {stride}; TMA has up to {_MOST_STRIDE}"
        return None
