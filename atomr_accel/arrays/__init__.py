"""Arrays on the device as programs see them: refs, their views, and expressions."""

from ._ref import GpuRef, NotEvaluated, no_ref_error, ref_error, sealed_error
from .expressions import Expression
from .views import as_shape, repeats, share_elements, span

__all__ = [
    "Expression",
    "GpuRef",
    "NotEvaluated",
    "as_shape",
    "no_ref_error",
    "ref_error",
    "repeats",
    "sealed_error",
    "share_elements",
    "span",
]
