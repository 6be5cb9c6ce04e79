"""Gradient rules of ops, by the op's name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, final

from .._errors import said_of

Backward = Callable[[Any, "Applied", Any], Mapping[str, Any]]
Forward = Callable[[Any, dict[str, Any]], tuple[Any, Any]]

_B = TypeVar("_B", bound=Backward)


@final
@dataclass(frozen=True)
class Applied:
    """A call of an op in the forward pass, for its gradient rule.

    ``applied["x"]`` is the argument of that name, with the default if it was not given.

    Attributes:
        arguments: the arguments by name, with refs in place of values.
        result: what the op has returned.
        saved: what the rule's ``forward`` has kept.
        wanted: names of the arguments that need a gradient.
    """

    arguments: dict[str, Any]
    result: Any
    saved: Any
    wanted: frozenset[str]

    def __getitem__(self, name: str) -> Any:
        """The argument of a name."""
        return self.arguments[name]

    def options(self, *names: str) -> dict[str, Any]:
        """Some of the arguments, to pass them on."""
        return {name: self.arguments[name] for name in names}


class OpRule(NamedTuple):
    """The rule of an op: its backward pass, and its forward pass if that differs from the op."""

    backward: Backward
    forward: Forward | None


_rules: Final[dict[str, OpRule]] = {}


def rule(name: str, *, forward: Forward | None = None) -> Callable[[_B], _B]:
    """Decorate the gradient rule of an op, so that `grad` can differentiate it.

    ::

        @train.rule("mylib.cube")
        def cube_gradient(batch, applied, grad):
            return {"x": 3 * applied["x"] ** 2 * grad}

    The function gets the batch (or recording) of the backward pass, the call as an ``Applied``,
    and the gradient with respect to the result: a contiguous ref; for an op with several results a
    tuple, with None for those that have none. It returns gradients with respect to arguments by
    their names, refs or expressions of the arguments' shapes, and for an argument that is a
    sequence a list of them. None means zeros. To take the gradient by a float argument that is left
    out is ``Unsupported``. A later rule of the same name replaces an earlier one.

    Args:
        name: the library's and the op's name, such as ``"blas.gemm"``.
        forward: makes the forward pass in place of the op, with what the backward pass needs: from
            the batch and the arguments by name, it returns the result and anything to keep.
    """
    if not isinstance(name, str):
        raise TypeError(f"name of a rule must be text, not {said_of(name)}")
    library, _, op = name.partition(".")
    if not library or not op:
        raise ValueError(f"name of a rule must be 'library.op', such as 'blas.gemm', not {name!r}")

    def register(backward: _B) -> _B:
        _rules[name] = OpRule(backward, forward)
        return backward

    return register


def rule_of(name: str) -> OpRule | None:
    """Return the rule of an op, or None."""
    return _rules.get(name)


def ruled() -> tuple[str, ...]:
    """Return the names of all ops that have a rule."""
    return tuple(sorted(_rules))


def bound(method: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Return a call's arguments by name, with defaults, and further options beside the others."""
    call = inspect.signature(method).bind(*args, **kwargs)
    call.apply_defaults()
    arguments = dict(call.arguments)
    for name, parameter in call.signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name)
    return arguments
