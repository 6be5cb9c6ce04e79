"""Pages of a cache: free ones, shared ones, and those whose content may be reused.

A full page whose keys and values were computed has a key: the page before it and its own tokens.
So a key stands for the whole prefix up to the end of the page. The dictionary hashes it, and
compares it in full: the page before by identity, and by induction all of the prefix, and the
tokens one by one. Two prefixes are never taken for each other.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

PageKey: TypeAlias = tuple[int, tuple[int, ...]]
"""The number of the prefix before a page, and the page's tokens."""

ROOT: Final = 0
"""The number of the empty prefix."""


class _PageEntry:
    """A page that is known by its content."""

    __slots__ = ("key", "page", "prefix")

    def __init__(self, page: int, key: PageKey, prefix: int) -> None:
        self.page = page
        self.key = key
        self.prefix = prefix


class PagePool:
    """The pages of a cache, with a count of their users.

    Pages without users keep their content until they are needed, those unused for the longest
    first. ``reuse=False`` makes no page known by its content.

    Attributes:
        lost: pages that have users and have lost tokens by a fault, and how many they have kept
            before the first lost one. They are not found by ``match`` until they are restored.
    """

    def __init__(self, pages: int, page_size: int, *, reuse: bool = True) -> None:
        self.pages: Final = pages
        self.page_size: Final = page_size
        self.reuse: Final = reuse
        self._free = list(range(pages - 1, -1, -1))
        self._users = [0] * pages
        self._known: dict[PageKey, _PageEntry] = {}
        self._entries: list[_PageEntry | None] = [None] * pages
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._prefixes = ROOT
        self.evictions = 0
        self.lost: Final[dict[int, int]] = {}

    @property
    def available(self) -> int:
        """Pages without users."""
        return len(self._free) + len(self._idle)

    @property
    def cached(self) -> int:
        """Pages without users whose content may be reused."""
        return len(self._idle)

    def users(self, page: int) -> int:
        """Return the number of users of a page."""
        return self._users[page]

    def take(self) -> int:
        """Take a page to write to; there must be one available."""
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
            self.evictions += 1
        self._users[page] = 1
        return page

    def match(self, tokens: list[int], most: int) -> tuple[list[int], int]:
        """Use the pages that have a beginning of some tokens.

        Args:
            tokens: the tokens of a sequence.
            most: the most tokens that may be found.

        Returns:
            The pages, in order, and the number of the prefix that they have.
        """
        found: list[int] = []
        prefix = ROOT
        size = self.page_size
        for start in range(0, most - size + 1, size):
            entry = self._known.get((prefix, tuple(tokens[start : start + size])))
            if entry is None or entry.page in self.lost:
                break
            page = entry.page
            if not self._users[page]:
                del self._idle[page]
            self._users[page] += 1
            found.append(page)
            prefix = entry.prefix
        return found, prefix

    def fill(self, page: int, prefix: int, tokens: tuple[int, ...]) -> tuple[int, int]:
        """Make the content of a page known, which will not be written to again.

        Args:
            page: a page with one user.
            prefix: the number of the prefix before it.
            tokens: its own.

        Returns:
            The page to use from now on, and the number of the prefix up to its end. If another page
            has the same content, it is that one, and the given page is free. If the other one has
            lost tokens, the given page takes its place.
        """
        if not self.reuse:
            return page, prefix
        key = (prefix, tokens)
        entry = self._known.get(key)
        if entry is None:
            self._prefixes += 1
            entry = _PageEntry(page, key, self._prefixes)
            self._known[key] = self._entries[page] = entry
        elif entry.page in self.lost:
            self._entries[entry.page] = None
            self._entries[page] = entry
            entry.page = page
        elif entry.page != page:
            if not self._users[entry.page]:
                del self._idle[entry.page]
            self._users[entry.page] += 1
            self.release([page])
        return entry.page, entry.prefix

    def release(self, pages: list[int]) -> None:
        """Stop using pages of a sequence, which are in order.

        Later ones are evicted first: an earlier one is of use without them, but not vice versa.
        """
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page]:
                continue
            if self.lost.pop(page, None) is not None:
                self._forget(page)
            if self._entries[page] is not None:
                self._idle[page] = None
            else:
                self._free.append(page)

    def clear(self) -> None:
        """Forget the content of all pages, because it is lost."""
        self._free += reversed(self._idle)
        self._idle.clear()
        self._known.clear()
        self._entries = [None] * self.pages
        self.lost.clear()

    def keep(self, kept: Sequence[int]) -> int:
        """Take note of a fault: pages without users that have lost tokens become free.

        Args:
            kept: for each page, the number of its tokens before the first one that is lost.

        Returns:
            The number of tokens that these pages have kept.
        """
        for page in [each for each in self._idle if kept[each] < self.page_size]:
            del self._idle[page]
            self._forget(page)
            self._free.append(page)
        return len(self._idle) * self.page_size

    def lose(self, page: int, kept: int, needed: int) -> None:
        """Take note of the tokens that a page has kept, of those that its users need."""
        if kept < needed:
            self.lost[page] = min(kept, self.lost.get(page, needed))

    def restore(self, page: int, tokens: int, needed: int) -> None:
        """Take note that the first tokens of a page are there, of those that its users need."""
        if page in self.lost:
            self.lost[page] = max(tokens, self.lost[page])
            if tokens >= needed:
                del self.lost[page]

    def _forget(self, page: int) -> None:
        entry = self._entries[page]
        if entry is not None:
            self._entries[page] = None
            del self._known[entry.key]
