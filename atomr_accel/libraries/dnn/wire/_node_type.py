"""What is known of an operation of graphs: a row of ``_nodes.NODES``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from ._graph import Attribute, Tensor

Inputs = Mapping[str, Tensor]
Attributes = Mapping[str, Any]
Infer = Callable[[Inputs, Attributes], dict[str, Tensor]]


@final
class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final[Any] = _Required()
"""The default of an attribute that has none."""


@dataclass(frozen=True, slots=True)
class NodeType:
    """An operation.

    Attributes:
        inputs: what it needs.
        outputs: what it gives, in the vendor's order; ``infer`` may leave some out.
        infer: the outputs' tensors from the inputs' and the attributes; raises ValueError
            or TypeError for what does not fit.
        optional: inputs that may be absent.
        attributes: with their defaults.
        about: what it computes, for the documentation.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    infer: Infer
    optional: tuple[str, ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    about: str = ""
