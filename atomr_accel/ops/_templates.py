"""Call templates of a facade, by signature.

Checking a call and making its message takes most of the time that an op costs the program's thread.
Calls with one signature differ only in addresses and in the numbers inside expressions. So the
second call of a signature is made on stand-ins for its buffers, and its template is kept. The
template has the encoded messages with places for addresses, the outputs, and the blocks that are
read and written. Later calls fill these in.

Each call asks its preparer again for the things that the template's request asked for. A request
that depends on anything besides its arguments declares that by ``Preparer.depends``. A request has
no template if sending it changes something, or if it has to wait for an answer before it is made. A
facade sets ``templated`` to declare that its calls follow these rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from ..wire.recent import Recent
from ._call_template import CallTemplate
from ._signatures import signature
from ._staging import STAGED
from ._template_maker import TemplateMaker, UndeclaredAddress

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..arrays import GpuRef
    from ._library import DeviceView
    from ._request import Request
    from ._signatures import Key

_SIGNATURES: Final = 1024
"""Largest number of signatures that a facade keeps."""


@final
class CallTemplates:
    """Call templates of a facade by signature, shared by all copies of the facade.

    Attributes:
        known: the templates. A signature without a template has the number of its calls instead.
    """

    def __init__(self) -> None:
        self.known: Final[Recent[Key, CallTemplate | int]] = Recent(_SIGNATURES, name="templates")

    def find(
        self,
        make: Callable[..., Request[Any]],
        facade: object,
        home: DeviceView,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[CallTemplate, list[GpuRef], list[int]] | None:
        """Return the template of a call and its own values; None if it has to be made in full.

        Args:
            make: makes its request.
            facade: the object whose method is called.
            home: the device, batch or recording on which it is called.
            args: its positional arguments.
            kwargs: its arguments by name.
        """
        memory = home.memory
        known = signature((make, home.call_mode), memory, args, kwargs)
        if known is None:
            return None
        key, refs, words = known
        found = self.known.get(key)
        calls = 1
        if type(found) is CallTemplate:
            if found.epoch is memory.epoch and (not found.checks or found.holds()):
                return found, refs, words
            self.known.discount()
        elif found is None:
            self.known.add(key, calls)
            return None
        else:
            self.known.discount()
            calls = found
        # A call without a template may have one later, when the things that it needs exist. So
        # it is tried again and again, each time after twice as many calls.
        if calls & (calls - 1):
            self.known.add(key, calls + 1)
            return None
        try:
            try:
                made = TemplateMaker(home).make(make, facade, args, kwargs)
            except STAGED:
                made = TemplateMaker(home).make(make, facade, args, kwargs, staged=True)
        except UndeclaredAddress:
            raise
        except Exception:  # noqa: BLE001 - the call is made in full next, and raises what is wrong
            self.known.add(key, calls + 1)
            return None
        self.known.add(key, made)
        return made, refs, words
