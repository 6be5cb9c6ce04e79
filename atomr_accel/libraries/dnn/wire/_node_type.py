"""Type of the rows of ``_nodes.NODES``: the properties of an operation of graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from ._graph import Attribute, DnnTensor

Inputs = Mapping[str, DnnTensor]
Attributes = Mapping[str, Any]
Infer = Callable[[Inputs, Attributes], dict[str, DnnTensor]]


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
        inputs: names of its required inputs.
        outputs: names of its outputs, in the vendor's order; ``infer`` may leave some out.
        infer: returns the outputs' tensors for the inputs' tensors and the attributes; raises
            ValueError or TypeError if these do not fit.
        optional: inputs that may be absent.
        attributes: names of attributes, with their defaults.
        about: description of its results, for the documentation.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    infer: Infer
    optional: tuple[str, ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    about: str = ""
