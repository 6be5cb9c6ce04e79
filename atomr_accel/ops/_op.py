"""Ops: methods that make requests, and how they are called.

A library's facade has one method for each op: a plain function of its arguments that returns a
``Request``. The same facade exists in three forms, which differ in type. On a device, its methods
are awaited. In a batch or a recording, they return their result at once. On ``device.requests``,
they return the requests themselves, to be sent to actors.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Coroutine
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    final,
    get_args,
    overload,
)

import trio

from .._calling import clarify
from .._other_names import HasOtherNames
from ._library import AsRequests, Awaited, Collected, D
from ._origin import bound
from ._perform import perform, send
from ._staging import STAGED, needs_staging, on_any_views, on_copies
from ._templates import CallTemplates

if TYPE_CHECKING:
    from ..actors import ActorRef
    from ..wire.recent import Recent
    from ._library import DeviceView, Transfers
    from ._request import Request

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

_MODULES: Final = re.compile(r"\b[a-z_][\w]*\.(?=\w)")
"""Names of modules before those of types."""


class Identity:
    """Identity that all copies of one facade share."""

    __slots__ = ("__weakref__",)


class Facade(Generic[D], HasOtherNames):
    """Object with ops: a library, or an object that one made, such as a generator or a kernel.

    Attributes:
        home: what its ops go to: a device, a batch or a recording, or what makes requests.
        library: the library's attribute name, such as ``"blas"``; empty for what a library made.
        caches: the library's caches other than call templates. ``device.statistics()`` shows them.
        transfers: moves arrays between the program and the device, for methods that are not ops;
            None for what a library made, and where ops are not awaited.
        call_templates: calls that were prepared before, if the class is ``templated``.
    """

    templated: ClassVar[bool] = False
    """True if its calls depend only on their arguments and on the answers of their preparers."""

    home: DeviceView
    library: str = ""
    caches: tuple[Recent[Any, Any], ...] = ()
    transfers: Transfers | None = None
    call_templates: CallTemplates

    shared_identity: Identity

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        facade = super().__new__(cls)
        facade.shared_identity = Identity()
        if cls.templated:
            facade.call_templates = CallTemplates()  # which copies share
        return facade

    @property
    def ref(self) -> ActorRef:
        """The library's actor: others ask it, or tell it, the requests of ``device.requests``.

        It exists as long as the device, also during rebuilds.
        """
        return self.home.library_ref(self.library)

    def on(self, device: DeviceView) -> Any:
        """Return a copy with the same state, whose ops go to ``device``."""
        facade = object.__new__(type(self))  # what copy.copy does takes longer than a call
        vars(facade).update(vars(self), home=device, transfers=None)
        return facade

    def as_requests(self, home: DeviceView) -> Any:
        """Return a copy with the same state, whose ops return requests for ``home``.

        A library that uses another one makes parts of its own ops by that one's requests.
        """
        return self.on(RequestsOnly(home))


@final
class RequestsOnly:
    """A device in the form that facades need whose ops give requests."""

    call_mode: Final = AsRequests
    recorder: Final = None  # these requests are parts of calls, not calls

    def __init__(self, home: DeviceView) -> None:
        self._home = home

    def __getattr__(self, name: str) -> Any:
        return getattr(self._home, name)


class op(Generic[P, T]):  # noqa: N801 - used as a decorator
    """Make an op of a method that returns a request."""

    def __init__(self, make: Callable[Concatenate[Any, P], Request[T]]) -> None:
        @functools.wraps(make)
        async def awaited(facade: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
            device: Any = facade.home  # of such facades it is what carries requests out
            try:
                if device.recorder is not None:
                    told: T = await device.recorder.awaited(make, facade, args, kwargs)
                    return told
                if facade.templated:
                    found = facade.call_templates.find(make, facade, device, args, kwargs)
                    sent = send(device, *found) if found is not None else None
                    if sent is not None:
                        made, submitted = sent
                        answer = await submitted.wait()
                        finish = found[0].finish  # type: ignore[index] # or nothing was sent
                        return made if finish is None else finish(answer, made)  # type: ignore[no-any-return]
                try:
                    return await perform(device, make(facade, *args, **kwargs))
                except STAGED:
                    if not needs_staging(args, kwargs):
                        raise  # it is in something that an argument holds
                result: T = await perform(device, on_copies(make, facade, args, kwargs))
            except TypeError as error:
                clarify(error, make, (facade, *args), kwargs)
                raise
            return result

        def beside_batch(facade: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
            coroutine = self._by_mode[Awaited](facade, *args, **kwargs)
            device: Any = facade.home
            device.note_unawaited(coroutine, facade)
            return coroutine

        @functools.wraps(make)
        def collected(facade: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
            collector: Any = facade.home
            result: T
            try:
                if collector.recorder is not None:
                    result = collector.recorder.collected(make, facade, args, kwargs)
                else:
                    result = collector.collect(make, facade, args, kwargs)
            except TypeError as error:
                clarify(error, make, (facade, *args), kwargs)
                raise
            return result

        @functools.wraps(make)
        def described(facade: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> Request[T]:
            device = facade.home
            try:
                request = bound(on_any_views(make, facade, args, kwargs), device.memory)
            except TypeError as error:
                clarify(error, make, (facade, *args), kwargs)
                raise
            if device.recorder is not None:
                return device.recorder.described(request, make, facade, args, kwargs)
            return request

        signature = inspect.signature(make)
        result = signature.return_annotation
        if isinstance(result, str):  # as it is with ``from __future__ import annotations``
            result = result.removeprefix("Request[").removesuffix("]")
        else:
            (result,) = get_args(result) or (Any,)
        functions: tuple[Any, ...] = (awaited, collected, described)
        for function in functions[:2]:
            del function.__wrapped__
            function.__signature__ = signature.replace(return_annotation=result)
        self._by_mode: Final = {
            mode: trio.lowlevel.enable_ki_protection(function)
            for mode, function in zip((Awaited, Collected, AsRequests), functions, strict=True)
        }
        self._beside_batch: Final = beside_batch
        self.__doc__ = make.__doc__

    @overload
    def __get__(
        self, facade: None, owner: Any = None
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(
        self, facade: Facade[Awaited], owner: Any = None
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, facade: Facade[Collected], owner: Any = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, facade: Facade[AsRequests], owner: Any = None) -> Callable[P, Request[T]]: ...
    def __get__(self, facade: Facade[Any] | None, owner: Any = None) -> Any:
        if facade is None:
            return self._by_mode[Awaited]  # a plain async function, for help() and docs
        device: Any = facade.home
        mode = device.call_mode
        if mode is Awaited and device.open_batches:  # in one, `await` is easily forgotten
            return MethodType(self._beside_batch, facade)
        return MethodType(self._by_mode[mode], facade)


def _named(
    make: Callable[Concatenate[Any, str, P], Request[T]],
    name: str,
    doc: str,
    returns: object = None,
) -> Callable[Concatenate[Any, P], Request[T]]:
    """Return the method of the op of a name; ``returns`` replaces the type of its result."""

    def made(facade: Any, /, *args: P.args, **kwargs: P.kwargs) -> Request[T]:
        return make(facade, name, *args, **kwargs)

    signature = inspect.signature(make)
    facade, _, *others = signature.parameters.values()
    facade = facade.replace(annotation=facade.empty)
    result = signature.return_annotation
    if returns is not None:
        result = f"Request[{_MODULES.sub('', inspect.formatannotation(returns))}]"
    given: Any = made
    given.__signature__ = signature.replace(parameters=[facade, *others], return_annotation=result)
    given.__wrapped__ = make  # whose name is in Python's errors, and whose module has the options
    made.__name__ = made.__qualname__ = name
    made.__module__, made.__doc__ = make.__module__, inspect.cleandoc(doc)
    return made


class op_family(op[P, T]):  # noqa: N801 - used as a decorator
    """Make an op of a method that is the prototype of others, too.

    The method gets the name of the op right after ``self``.
    """

    def __init__(self, make: Callable[Concatenate[Any, str, P], Request[T]]) -> None:
        self._make: Final = make
        super().__init__(_named(make, make.__name__, make.__doc__ or ""))

    @overload
    def like(self, doc: str) -> op[P, T]: ...
    @overload
    def like(self, doc: str, returns: type[R]) -> op[P, R]: ...
    def like(self, doc: str, returns: object = None) -> Any:
        """Make another op of the family, named by the attribute that it is assigned to.

        Args:
            doc: its docstring.
            returns: the type of its result, if it has another one.
        """
        return _NamedLater(self._make, doc, returns)


class _NamedLater(op[P, T]):
    """An op that learns its name from its class."""

    def __init__(
        self, make: Callable[Concatenate[Any, str, P], Request[T]], doc: str, returns: object
    ) -> None:
        self._given: Final = (make, doc, returns)

    def __set_name__(self, owner: type, name: str) -> None:
        make, doc, returns = self._given
        super().__init__(_named(make, name, doc, returns))
