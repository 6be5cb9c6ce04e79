"""Selections and partitions: only the device knows the numbers of elements that they keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...ops import D, Request, Submission, op, require_readable
from ._operators import coded
from .call import INT64, WAITING, CubOutput, CubPart, element, opaque
from .wire._spec import CubSpec
from .wire.messages import Count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...arrays import GpuRef
    from ...ops import Preparer
    from ._operators import AnyOperator


class Selections(CubPart[D]):
    """``device.cub``'s selections and partitions.

    The number of kept elements is known on the device only. So a result has room for all elements,
    and comes with a number, an int64 on the device. ``trim`` waits for the number and returns the
    part that was written. What follows is undefined: whatever was in the memory before, and on the
    CPU backend bytes of 0xFF, so that no program comes to rely on it.
    """

    @op
    def select(self, x: GpuRef, predicate: AnyOperator) -> Request[tuple[GpuRef, GpuRef]]:
        """Keep the elements for which a predicate holds (``cub::DeviceSelect::If``).

        Args:
            x: any shape, taken as one row.
            predicate: an operator of one argument that ``operator`` made, or a Python function of
                the small subset: ``lambda a: a > 0``.

        Returns:
            The kept elements, in their order, and their number.
        """
        return self._divide("select", x, (predicate,))

    @op
    def select_flagged(self, x: GpuRef, flags: GpuRef) -> Request[tuple[GpuRef, GpuRef]]:
        """Keep the elements whose flag is set (``cub::DeviceSelect::Flagged``).

        Args:
            x: any shape, taken as one row; of any dtype.
            flags: one for each element; bool, int8 or uint8. Values other than zero are set.

        Returns:
            The kept elements, in their order, and their number.
        """
        self._require(x=x, flags=flags)
        if flags.dtype.name not in ("bool", "int8", "uint8"):
            raise TypeError(f"flags is {flags.dtype.name}; it must be bool, int8 or uint8")
        if x.size != flags.size:
            raise ValueError(f"there are {x.size} elements and {flags.size} flags")
        spec = CubSpec("select_flagged", (opaque(x.dtype),))
        return self._request(
            "cub.select_flagged",
            spec,
            [("x", x), ("flags", flags)],
            [CubOutput("out", (x.size,), x.dtype), None, None, CubOutput("count", (2,), INT64)],
            (x.size,),
            result=_counted,
        )

    @op
    def partition(
        self, x: GpuRef, predicate: AnyOperator
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef]]:
        """Divide elements by whether a predicate holds (``cub::DevicePartition::If``).

        CUB itself writes both parts into one array, the second from its end; here they are separate
        arrays, both in their order.

        Args:
            x: any shape, taken as one row.
            predicate: as for ``select``.

        Returns:
            The elements for which it holds, the others, and the number of the first.
        """
        return self._divide("partition", x, (predicate,))

    @op
    def three_way_partition(
        self, x: GpuRef, first: AnyOperator, second: AnyOperator
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef, GpuRef]]:
        """Divide elements by two predicates (``cub::DevicePartition::If``, of three parts).

        Args:
            x: any shape, taken as one row.
            first: as the predicate for ``select``.
            second: the same; called for the elements for which the first one does not hold.

        Returns:
            The elements for which the first holds, those for which the second does, the others, and
            the numbers of the first two, of shape (2,).
        """
        return self._divide("three_way_partition", x, (first, second))

    def _divide(
        self, algorithm: str, x: GpuRef, predicates: tuple[AnyOperator, ...]
    ) -> Request[Any]:
        self._require(x=x)
        dtype = element(x, "x")
        names = ("predicate",) if len(predicates) == 1 else ("first", "second")
        spec = CubSpec(
            algorithm,
            (dtype,),
            tuple(
                coded(self.home, each, (dtype,), "bool", name)
                for each, name in zip(predicates, names, strict=True)
            ),
        )
        parts = {"select": 1, "partition": 2, "three_way_partition": 3}[algorithm]
        outputs = [CubOutput("out", (x.size,), x.dtype) if at < parts else None for at in range(3)]
        return self._request(
            f"cub.{algorithm}",
            spec,
            [("x", x), ("flags", None)],
            [*outputs, CubOutput("count", (2,), INT64)],
            (x.size,),
            result=tuple if parts == 3 else _counted,
        )

    @op
    def unique(self, x: GpuRef, op: AnyOperator = "equal_to") -> Request[tuple[GpuRef, GpuRef]]:
        """Keep the first of equal neighbours (``cub::DeviceSelect::Unique``).

        For sorted elements, these are the different values. NaN equals nothing, so each NaN is
        kept.

        Args:
            x: any shape, taken as one row.
            op: returns whether two elements are equal.

        Returns:
            The kept elements, in their order, and their number.
        """
        self._require(x=x)
        return self._distinct("unique", "x", x, None, op)

    @op
    def unique_by_key(
        self, keys: GpuRef, values: GpuRef, op: AnyOperator = "equal_to"
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef]]:
        """Keep the first of equal neighbours, with a value (``cub::DeviceSelect::UniqueByKey``).

        Args:
            keys: any shape, taken as one row.
            values: one for each key, of any dtype.
            op: whether two keys are equal.

        Returns:
            The kept keys, their values, and their number.
        """
        self._require(keys=keys, values=values)
        if keys.size != values.size:
            raise ValueError(f"there are {keys.size} keys and {values.size} values")
        return self._distinct("unique_by_key", "keys", keys, values, op)

    def _distinct(
        self, name: str, first: str, keys: GpuRef, values: GpuRef | None, op: AnyOperator
    ) -> Request[Any]:
        dtype = element(keys, first)
        equal = coded(self.home, op, (dtype, dtype), "bool", "op")
        moved = "" if values is None else opaque(values.dtype)
        out = None if values is None else CubOutput("values", (keys.size,), values.dtype)
        return self._request(
            f"cub.{name}",
            CubSpec("unique_by_key", (dtype, moved), (equal,)),
            [(first, keys), ("values", values)],
            [CubOutput("keys", (keys.size,), keys.dtype), out, CubOutput("count", (), INT64)],
            (keys.size,),
            result=tuple,
        )

    @op
    def trim(self, count: GpuRef, x: GpuRef) -> Request[GpuRef]:
        """Wait for a number of elements; return the part of a buffer that holds them.

        Args:
            count: an int64 on the device, as ``select`` and the others return it.
            x: the buffer that goes with it.

        Returns:
            A view of the first ``count`` elements.

        Raises:
            Unsupported: in a batch or a recording, which cannot wait for an answer.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            block = require_readable(count, preparer.memory, "count")
            require_readable(x, preparer.memory, "x")
            if count.dtype is not INT64:
                raise TypeError(f"count must be an int64, not {count.dtype.name}")
            if count.size != 1:
                raise ValueError(f"count must be one number, not of shape {count.shape}")
            if x.ndim != 1:
                raise ValueError(f"x must have one dimension, not shape {x.shape}")
            return Submission(
                Count(block.address), (block,), (), finish=lambda found: x[: int(found)]
            )

        return Request(WAITING, "cub.trim", prepare)


def _counted(made: Sequence[GpuRef]) -> tuple[GpuRef, ...]:
    """Outputs, with the first one of the numbers in the place of both."""
    return (*made[:-1], made[-1][0])
