"""The collectives, as worlds, groups, batches and recordings have them.

Each is a method that returns its plan. Objects whose collectives are awaited differ in type from
those whose collectives return their results at once, as facades of libraries do.
"""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from functools import partial
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    overload,
)

import numpy as np

from ..ops import Awaited, Collected, D
from . import _plans as plans

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from ..arrays import GpuRef
    from ._plans import CollectivePlan

P = ParamSpec("P")
T = TypeVar("T")

Op = Literal["sum", "prod", "min", "max", "avg"]
"""Reduction of several elements to one."""


class collective(Generic[P, T]):  # noqa: N801 - used as a decorator
    """Make a collective of a method that returns its plan."""

    def __init__(self, plan: Callable[Concatenate[Any, P], partial[T]]) -> None:
        @functools.wraps(plan)
        async def awaited(calls: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
            result: T = await calls._carry_out(plan(calls, *args, **kwargs))
            return result

        @functools.wraps(plan)
        def collected(calls: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
            result: T = calls._carry_out(plan(calls, *args, **kwargs))
            return result

        signature = inspect.signature(plan)
        result = signature.return_annotation.removeprefix("partial[").removesuffix("]")
        functions: tuple[Any, ...] = (awaited, collected)
        for function in functions:
            del function.__wrapped__
            function.__signature__ = signature.replace(return_annotation=result)
        self._by_mode: Final = dict(zip((Awaited, Collected), functions, strict=True))
        self.__doc__ = plan.__doc__

    @overload
    def __get__(
        self, calls: None, owner: Any = None
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(
        self, calls: Collectives[Awaited], owner: Any = None
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, calls: Collectives[Collected], owner: Any = None) -> Callable[P, T]: ...
    def __get__(self, calls: Any, owner: Any = None) -> Any:
        if calls is None:
            return self._by_mode[Awaited]  # a plain async function, for help() and docs
        return MethodType(self._by_mode[calls.call_mode], calls)


class Collectives(Generic[D]):
    """Calls that all ranks take part in.

    A call takes a list of buffers, one for each rank in the order of ranks, and gives a list. All
    are contiguous, and of one dtype. Nothing is sent to any device before everything was checked. A
    call that is cancelled before that has no effect. After that, cancellation ends only the wait.
    In groups calls do not wait, see ``World.group``. In batches and recordings they are not
    awaited and return their results at once, see ``World.batch`` and ``World.record``.

    All of them may raise:
        TypeError, ValueError: wrong buffers, shapes, dtypes or ranks.
        GpuRefStale: a buffer is of an older generation of its device, or was freed.
        GpuRefSealed: an output is sealed.
        WorldBroken: a rank failed meanwhile, or the world went on with other ranks.
        OutOfMemory: no room for an output.
    """

    call_mode: ClassVar[type[Awaited | Collected]] = Awaited

    @abstractmethod
    def _carry_out(self, plan: partial[Any]) -> Any:
        """Carry out a function of ``_plans``, whose named arguments are the caller's."""

    @collective
    def all_reduce(
        self,
        x: Sequence[GpuRef],
        op: Op = "sum",
        *,
        scale: float | None = None,
        out: Sequence[GpuRef] | None = None,
    ) -> partial[list[GpuRef]]:
        """Reduce over all ranks; each gets the result (``ncclAllReduce``).

        Args:
            x: one buffer on each rank, all of one shape and dtype. Dtypes are integers of 8, 32 or
                64 bits, floats from fp8 on, and complex numbers, which have sum and avg only.
            op: how. Integers are added up in their own dtype, where a sum may wrap around; the
                average is that sum divided, rounded towards zero.
            scale: a factor that multiplies every element before the sum; only with op ``"sum"``
                and floating dtypes (``ncclRedOpCreatePreMulSum``).
            out: where to; may be ``x`` itself. By default, new buffers.

        Returns:
            The results, of the shape and dtype of ``x``.
        """
        return partial(plans.all_reduce, x=x, op=op, scale=scale, out=out)

    @collective
    def reduce(
        self,
        x: Sequence[GpuRef],
        root: int = 0,
        op: Op = "sum",
        *,
        scale: float | None = None,
        out: GpuRef | None = None,
    ) -> partial[GpuRef]:
        """Reduce over all ranks; one of them gets the result (``ncclReduce``).

        Args:
            x: as in ``all_reduce``.
            op: likewise.
            scale: likewise.
            root: the rank that gets it.
            out: where to, on that rank; may be its ``x``.

        Returns:
            The result, on ``root``.
        """
        return partial(plans.reduce, x=x, root=root, op=op, scale=scale, out=out)

    @collective
    def broadcast(self, x: GpuRef, *, out: Sequence[GpuRef] | None = None) -> partial[list[GpuRef]]:
        """Copy a buffer to all ranks (``ncclBroadcast``).

        Args:
            x: the buffer, of any shape and dtype; the rank that has it is the root.
            out: where to; the root's may be ``x`` itself.

        Returns:
            The copies. The root's is ``x`` itself, unless ``out`` has another.
        """
        return partial(plans.broadcast, x=x, out=out)

    @collective
    def all_gather(
        self, x: Sequence[GpuRef], *, out: Sequence[GpuRef] | None = None
    ) -> partial[list[GpuRef]]:
        """Every rank gets the buffers of all (``ncclAllGather``).

        Args:
            x: one buffer on each rank, all of one shape and dtype. It may be the row of ``out``
                that is its rank's: then it is in place.
            out: where to, of shape ``(size, *x.shape)``.

        Returns:
            Buffers of that shape: row r is that of rank r.
        """
        return partial(plans.all_gather, x=x, out=out)

    @collective
    def gather(
        self, x: Sequence[GpuRef], root: int = 0, *, out: GpuRef | None = None
    ) -> partial[GpuRef]:
        """One rank gets the buffers of all (``ncclSend`` and ``ncclRecv``).

        Args:
            x: one buffer on each rank, all of one shape and dtype.
            root: the rank that gets them.
            out: where to, of shape ``(size, *x.shape)``.

        Returns:
            A buffer of that shape on ``root``.
        """
        return partial(plans.gather, x=x, root=root, out=out)

    @collective
    def scatter(self, x: GpuRef, *, out: Sequence[GpuRef] | None = None) -> partial[list[GpuRef]]:
        """Each rank gets a row of a buffer (``ncclSend`` and ``ncclRecv``).

        Args:
            x: of shape ``(size, ...)``; the rank that has it is the root.
            out: where to, of the shape of a row.

        Returns:
            Row r on rank r.
        """
        return partial(plans.scatter, x=x, out=out)

    @collective
    def reduce_scatter(
        self,
        x: Sequence[GpuRef],
        op: Op = "sum",
        *,
        scale: float | None = None,
        out: Sequence[GpuRef] | None = None,
    ) -> partial[list[GpuRef]]:
        """Reduce over all ranks; each gets a row of the result (``ncclReduceScatter``).

        Args:
            x: one buffer on each rank, of shape ``(size, ...)``.
            op: as in ``all_reduce``.
            scale: likewise.
            out: where to, of the shape of a row. It may be the row of ``x`` that is its rank's:
                then it is in place.

        Returns:
            Row r of the result on rank r.
        """
        return partial(plans.reduce_scatter, x=x, op=op, scale=scale, out=out)

    @collective
    def all_to_all(
        self, x: Sequence[GpuRef], *, out: Sequence[GpuRef] | None = None
    ) -> partial[list[GpuRef]]:
        """Each rank gets a row of each (``ncclSend`` and ``ncclRecv``).

        Args:
            x: one buffer on each rank, of shape ``(size, ...)``.
            out: where to, of the same shape.

        Returns:
            On rank r, row s is row r of what rank s gave.
        """
        return partial(plans.all_to_all, x=x, out=out)

    @collective
    def all_to_all_v(
        self,
        x: Sequence[GpuRef],
        counts: Sequence[Sequence[int]],
        *,
        out: Sequence[GpuRef] | None = None,
    ) -> partial[list[GpuRef]]:
        """Each rank gets some rows of each (``ncclSend`` and ``ncclRecv``).

        Args:
            x: one buffer on each rank; they differ in their first dimension only.
            counts: ``counts[s][d]`` rows go from rank s to rank d. They are taken from ``x[s]``
                in the order of d.
            out: where to.

        Returns:
            On rank d, the rows from all ranks in the order of s.
        """
        return partial(plans.all_to_all_v, x=x, counts=counts, out=out)


def scratch(plan: CollectivePlan) -> None:
    """A collective that brings nothing, but all ranks come to it."""
    byte = np.dtype(np.uint8)
    refs = [plan.output(rank, (1,), byte, None) for rank in range(plan.size)]
    plans.all_reduce(plan, refs, "max", None, refs)
