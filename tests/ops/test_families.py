"""Families: ops that have the signature of the first of them."""

from __future__ import annotations

import inspect
from typing import Any, Final

from atomr_accel.arrays import GpuRef
from atomr_accel.ops import D, Facade, LaneSpec, Request, op, op_family


class Families(Facade[D]):
    """Ops whose requests have their names."""

    @op_family
    def first(self, _name: str, x: GpuRef, *, out: GpuRef | None = None) -> Request[GpuRef]:
        """The first of them."""
        return Request(LaneSpec("families", {}), _name, lambda _: (x, out))  # type: ignore[arg-type, return-value]

    other: Final = first.like("Another one.")
    both: Final = first.like(
        """One with two results.

        Returns:
            Both.
        """,
        returns=tuple[GpuRef, GpuRef],
    )


def test_ops_of_a_family_have_one_signature_and_names_and_docstrings_of_their_own() -> None:
    told = [Families.first, Families.other, Families.both]
    assert [each.__name__ for each in told] == ["first", "other", "both"]
    assert [inspect.getdoc(each) for each in told] == [
        "The first of them.",
        "Another one.",
        "One with two results.\n\nReturns:\n    Both.",
    ]
    parameters = [[*inspect.signature(each).parameters] for each in told]
    assert parameters == [["self", "x", "out"]] * 3
    results = [inspect.signature(each).return_annotation for each in told]
    assert results == ["GpuRef", "GpuRef", "tuple[GpuRef, GpuRef]"]


def test_a_signature_of_evaluated_annotations_has_the_result() -> None:
    def make(self: Any, x: GpuRef) -> Request[GpuRef]:
        raise NotImplementedError

    make.__annotations__["return"] = Request[GpuRef]
    made: Any = type("Made", (Facade,), {"made": op(make)})
    assert inspect.signature(made.made).return_annotation is GpuRef
