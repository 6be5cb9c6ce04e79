"""Result types of ``matmul``, by its epilogue and ``amax``."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from ...memory import GpuRef
from ...ops import Awaited, Collected, Described, Facade, Request, op

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ..blas.checks import Number, Trans
    from .wire._layout import Layout

P = ParamSpec("P")
T = TypeVar("T")
One_co = TypeVar("One_co", covariant=True)
Two_co = TypeVar("Two_co", covariant=True)
Three_co = TypeVar("Three_co", covariant=True)
Some_co = TypeVar("Some_co", covariant=True)

WithOne = Literal["bias", "relu", "relu_bias", "gelu", "gelu_bias", "drelu", "dgelu"]
"""Epilogues with no result but the product."""

WithTwo = (
    Literal["relu_aux", "relu_aux_bias", "gelu_aux", "gelu_aux_bias"]
    | Literal["drelu_bgrad", "dgelu_bgrad", "bgrada", "bgradb"]
)
"""Epilogues with a second one."""


class _Product(TypedDict, total=False):
    """The options that tell a product, but how many results there are."""

    out: GpuRef | None
    c: GpuRef | None
    alpha: Number | GpuRef
    beta: Number
    trans_a: Trans
    trans_b: Trans
    dtype: DTypeLike | None
    compute_type: str | None
    bias: GpuRef | None
    aux: GpuRef | None
    scale_a: GpuRef | None
    scale_b: GpuRef | None
    scale_out: GpuRef | None
    fast_accum: bool
    layout_a: Layout | None
    layout_b: Layout | None
    layout_out: Layout | None


class Others(_Product, total=False):
    """The options that do not change how many results there are."""

    autotune: bool
    algorithm: int | None


class Anything(_Product, total=False):
    """All options but those that choose an algorithm."""

    epilogue: str | None
    amax: bool


class MatmulCall(Protocol[One_co, Two_co, Three_co, Some_co]):
    """The signatures of ``matmul``; see ``BlasLt.matmul``."""

    @overload
    def __call__(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        epilogue: WithOne | None = None,
        amax: Literal[False] = False,
        **others: Unpack[Others],
    ) -> One_co: ...
    @overload
    def __call__(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        epilogue: WithOne | None = None,
        amax: Literal[True],
        **others: Unpack[Others],
    ) -> Two_co: ...
    @overload
    def __call__(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        epilogue: WithTwo,
        amax: Literal[False] = False,
        **others: Unpack[Others],
    ) -> Two_co: ...
    @overload
    def __call__(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        epilogue: WithTwo,
        amax: Literal[True],
        **others: Unpack[Others],
    ) -> Three_co: ...
    @overload
    def __call__(
        self,
        a: GpuRef,
        b: GpuRef,
        *,
        epilogue: str | None = None,
        amax: bool = False,
        **others: Unpack[Others],
    ) -> Some_co: ...


Pair = tuple[GpuRef, GpuRef]
Triple = tuple[GpuRef, GpuRef, GpuRef]
Results = GpuRef | tuple[GpuRef, ...]

AwaitedCall = MatmulCall[
    Coroutine[Any, Any, GpuRef],
    Coroutine[Any, Any, Pair],
    Coroutine[Any, Any, Triple],
    Coroutine[Any, Any, Results],
]
CollectedCall = MatmulCall[GpuRef, Pair, Triple, Results]
DescribedCall = MatmulCall[Request[GpuRef], Request[Pair], Request[Triple], Request[Results]]


class matmul_op(op[P, T]):  # noqa: N801 - used as a decorator
    """Like ``op``, for ``matmul``."""

    if TYPE_CHECKING:

        @overload  # type: ignore[override]  # more exact than what the general one can say
        def __get__(self, facade: None, owner: Any = None) -> AwaitedCall: ...
        @overload
        def __get__(self, facade: Facade[Awaited], owner: Any = None) -> AwaitedCall: ...
        @overload
        def __get__(self, facade: Facade[Collected], owner: Any = None) -> CollectedCall: ...
        @overload
        def __get__(self, facade: Facade[Described], owner: Any = None) -> DescribedCall: ...
        def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any: ...
