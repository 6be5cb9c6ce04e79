"""Requests for cuDNN's routines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ....ops import (
    D,
    Request,
    Submission,
    require_no_alias,
    require_readable,
    require_ref,
    require_shape,
    require_writable,
)
from ..graph._run import LANE, DnnPart
from ..graph.layout import is_last_of, logical
from ..wire._graph import DnnTensor, strides_of
from ..wire.sequence_messages import Clear

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....arrays import GpuRef
    from ....memory import Block
    from ....ops import Preparer

DTYPES_OF_ROUTINES: Final = ("float16", "bfloat16", "float32", "float64")


class RoutinePart(DnnPart[D]):
    """Requests for routines with one result."""

    def _routine(
        self,
        name: str,
        inputs: dict[str, GpuRef],
        shape: tuple[int, ...],
        out: GpuRef | None,
        message: Callable[[list[Any], Any], Any],
        *,
        in_place: bool = False,
    ) -> Request[GpuRef]:
        """Return a request for a routine with one result.

        ``message`` makes the message from the addresses of inputs and result. With ``in_place`` the
        result may go to one of the inputs.
        """
        memory = self.home.memory

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            first = next(iter(inputs.values()))
            blocks: list[Block] = []
            for what, ref in inputs.items():
                blocks.append(require_readable(ref, memory, what))
                if ref.dtype.name not in DTYPES_OF_ROUTINES:
                    known = ", ".join(DTYPES_OF_ROUTINES)
                    raise TypeError(f"{what} must be one of {known}, not {ref.dtype.name}")
                if ref.dtype is not first.dtype:
                    raise TypeError(
                        f"{what} must have the dtype of the other inputs, "
                        f"{first.dtype.name}, not {ref.dtype.name}"
                    )
            result = out
            if result is None:
                result = preparer.output(shape, first.dtype)
            else:
                _check_out(name, result, inputs, shape, in_place=in_place)
                require_writable(result, memory, "out")
            address = result.block.address
            if not result.size:  # a batch of none
                return Submission(Clear(address, 0), blocks, [result.block], result)
            places = [block.address for block in blocks]
            return Submission(message(places, address), blocks, [result.block], result)

        return Request(LANE, name, prepare)


def image_of(x: Any, layout: str | None) -> DnnTensor:
    """Return the shape and strides of an image as (batch, channels, ...space)."""
    last = is_last_of(x.shape, layout)
    shape = logical(x.shape, last=last)
    return DnnTensor(x.dtype.name, shape, strides_of(shape, last=last), last=last)


def _check_out(
    op: str, out: GpuRef, inputs: dict[str, GpuRef], shape: tuple[int, ...], *, in_place: bool
) -> None:
    require_ref(out, "out")
    first = next(iter(inputs.values()))
    require_shape(out, shape, "out")
    if out.dtype is not first.dtype:
        raise TypeError(f"out must have dtype {first.dtype.name}, not {out.dtype.name}")
    may_be = [("out", name) for name in inputs] if in_place else []
    require_no_alias(op, [("out", out)], inputs.items(), in_place=may_be)
