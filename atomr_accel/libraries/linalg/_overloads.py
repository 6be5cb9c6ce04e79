"""Result types of ``qr``, by its mode."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from ...memory import GpuRef
from ...ops import Awaited, Collected, Described, Facade, Request, op

if TYPE_CHECKING:
    from ...expressions import Operand

P = ParamSpec("P")
T = TypeVar("T")
One_co = TypeVar("One_co", covariant=True)
Both_co = TypeVar("Both_co", covariant=True)

Mode = Literal["reduced", "complete", "r", "raw"]


class QR(NamedTuple):
    """The result of ``qr``.

    Attributes:
        Q: orthonormal columns; with mode "raw" the reflectors, as ``numpy.linalg.qr`` has them.
        R: the upper triangle; with mode "raw" the scalars of the reflectors.
    """

    Q: GpuRef
    R: GpuRef


class QrCall(Protocol[One_co, Both_co]):
    """The signatures of ``qr``; see ``Linalg.qr``."""

    @overload
    def __call__(self, a: Operand, mode: Literal["r"]) -> One_co: ...
    @overload
    def __call__(
        self, a: Operand, mode: Literal["reduced", "complete", "raw"] = "reduced"
    ) -> Both_co: ...


AwaitedQr = QrCall[Coroutine[Any, Any, GpuRef], Coroutine[Any, Any, QR]]
CollectedQr = QrCall[GpuRef, QR]
DescribedQr = QrCall[Request[GpuRef], Request[QR]]


class qr_op(op[P, T]):  # noqa: N801 - used as a decorator
    """Like ``op``, for ``qr``."""

    if TYPE_CHECKING:

        @overload  # type: ignore[override]  # more exact than what the general one can say
        def __get__(self, facade: None, owner: Any = None) -> AwaitedQr: ...
        @overload
        def __get__(self, facade: Facade[Awaited], owner: Any = None) -> AwaitedQr: ...
        @overload
        def __get__(self, facade: Facade[Collected], owner: Any = None) -> CollectedQr: ...
        @overload
        def __get__(self, facade: Facade[Described], owner: Any = None) -> DescribedQr: ...
        def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any: ...
