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

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from ._call_template import CallTemplate
from ._signatures import signature
from ._staging import STAGED
from ._template_maker import TemplateMaker, UndeclaredAddress

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..memory import GpuRef
    from ._library import DeviceView
    from ._request import Request
    from ._signatures import Key

_SIGNATURES: Final = 1024
"""Largest number of signatures that a facade keeps."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """A cache of a device's calls.

    Attributes:
        name: the library whose call templates these are.
        entries: number of signatures that are kept.
        limit: largest number of them; a new one then replaces the least recently used.
        hits: calls that a template has made.
        misses: calls that were prepared in full although their signature can be kept, and calls
            that have made a template.
    """

    name: str
    entries: int
    limit: int
    hits: int
    misses: int


@final
class CallTemplates:
    """CallTemplates of a facade's calls by signature, shared by all copies of the facade."""

    def __init__(self) -> None:
        self._hits = self._misses = 0
        # The number of calls so far stands for a template that does not exist yet.
        self._known: OrderedDict[Key, CallTemplate | int] = OrderedDict()

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
        found = self._known.get(key)
        calls = 1
        if type(found) is CallTemplate:
            if found.epoch is memory.epoch and (not found.checks or found.holds()):
                self._hits += 1
                self._known.move_to_end(key)
                return found, refs, words
        elif found is None:
            self._keep(key, calls)
            return None
        else:
            calls = found
        # A call without a template may have one later, when the things that it needs exist. So
        # it is tried again and again, each time after twice as many calls.
        if calls & (calls - 1):
            self._keep(key, calls + 1)
            return None
        try:
            try:
                made = TemplateMaker(home).make(make, facade, args, kwargs)
            except STAGED:
                made = TemplateMaker(home).make(make, facade, args, kwargs, staged=True)
        except UndeclaredAddress:
            raise
        except Exception:  # noqa: BLE001 - the call is made in full next, and raises what is wrong
            self._keep(key, calls + 1)
            return None
        self._keep(key, made)
        return made, refs, words

    def statistics(self, name: str) -> CacheStatistics:
        """Return a snapshot.

        Args:
            name: the name of the library.
        """
        return CacheStatistics(name, len(self._known), _SIGNATURES, self._hits, self._misses)

    def _keep(self, key: Key, value: CallTemplate | int) -> None:
        """Keep a value, in the place of the least recently used one."""
        self._misses += 1
        self._known[key] = value
        self._known.move_to_end(key)
        if len(self._known) > _SIGNATURES:
            self._known.popitem(last=False)
