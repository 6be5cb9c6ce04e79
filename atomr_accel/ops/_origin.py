"""Origin of requests and of objects that libraries make: each belongs to one device."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .._errors import said_of
from ._request import Request

if TYPE_CHECKING:
    from ..memory import MemoryMap
    from ._library import DeviceView
    from ._op import Facade
    from ._request import Preparer, Submission

T = TypeVar("T")


def bound(request: Request[T], memory: MemoryMap) -> Request[T]:
    """Return the same request, which only the device with this memory carries out.

    A generator or a kernel holds numbers that are invalid on another device.
    """
    prepare = request.prepare

    def prepare_there(preparer: Preparer) -> Submission[T]:
        require_home(request.name, memory, preparer.memory)
        return prepare(preparer)

    return Request(request.lane, request.name, prepare_there, home=memory)


def require_home(name: str, made_by: MemoryMap | None, sent_to: MemoryMap) -> None:
    """Check that a message is for the device that it is sent to.

    Args:
        name: the name of the call, such as ``"blas.gemm"``.
        made_by: the memory of the device whose ``requests`` made it; None if nothing in it belongs
            to a device.
        sent_to: the memory of the device that is to carry it out.

    Raises:
        ValueError: they differ.
    """
    if made_by is not None and made_by is not sent_to:
        raise ValueError(
            f"{name} was made by the requests of {made_by.said}, and sent to "
            f"{sent_to.device}, which cannot carry it out; make one by the requests of the device "
            "that it is sent to, with what that device has made"
        )


def require_made_on(made: object, device: DeviceView) -> None:
    """Check that the argument of ``using`` is an object that a library of this device made.

    Raises:
        TypeError: ``made`` is something else, which the message names.
    """
    home: DeviceView | None = getattr(made, "home", None)
    if home is None or not hasattr(made, "on"):
        raise TypeError(
            f"{said_of(made)} was not made by a library of {device.memory.device}; what libraries "
            "make, and programs call, are generators, kernels, plans and the like"
        )
    facade: Facade = made  # type: ignore[type-arg, assignment]
    if hasattr(made, "share_libraries"):
        raise TypeError(
            f"{made!r} is what has libraries, not what one of them has made; those are generators, "
            "kernels, plans and the like"
        )
    if home.memory is not device.memory:
        raise TypeError(
            f"{made!r} must be made by a library of {device.memory.device}, not by "
            f"one of {home.memory.said}; have it made on the "
            "device that is to use it"
        )
    if facade.library:
        raise TypeError(
            f"{facade.library} is a library itself, not what one has made; what was to use it has "
            f"it already, as its attribute {facade.library!r}"
        )
    if home is not device:
        raise TypeError(
            f"{made!r} must be made by a library of {device.memory.device} itself, "
            "not in a batch, a recording or device.requests; have it made by the "
            "device, such as device.rng.default_rng(), to use it everywhere"
        )
