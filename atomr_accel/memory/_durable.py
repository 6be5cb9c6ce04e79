"""Digests of durable blocks, as the program keeps them. No device and no I/O.

A durable block is divided into chunks, each of which has a digest of eight bytes. An op that
writes to a block is followed by a *proof*: new digests of the chunks that it may have written. If
it covers its first or last chunk in part, a *check* precedes it, which digests these chunks before
the op and must find the known digests. Without it the proof would vouch for bytes that the op has
not written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from ..wire import CHUNK_BYTES

_DIGEST: Final = 8


@dataclass(frozen=True, slots=True)
class DurableStatistics:
    """Durable buffers of a device.

    Attributes:
        buffers: number of buffers that are usable now.
        nbytes: their size.
        verified: number of times that a buffer was verified after a fault and continued.
        in_flight: number of buffers lost because a write was in flight at a fault.
        changed: number of buffers lost because bytes had changed that no op wrote.
    """

    buffers: int
    nbytes: int
    verified: int
    in_flight: int
    changed: int


@final
class Proof:
    """Digests that were asked for and are applied in the order of the questions.

    Attributes:
        first: the first chunk.
        count: number of chunks.
        checks: whether the digests must be those that are known, because nothing was written.
        found: the digests, once they have arrived.
    """

    __slots__ = ("checks", "count", "first", "found")

    def __init__(self, first: int, count: int, *, checks: bool) -> None:
        self.first: Final = first
        self.count: Final = count
        self.checks: Final = checks
        self.found: bytes | None = None


@final
class DurableState:
    """Knowledge of a durable block: its digests, and those that have not arrived.

    Args:
        nbytes: the block's size.

    Attributes:
        nbytes: the block's size.
        chunks: number of its chunks.
        lost: the reason why the block is not usable any more; empty while it is.
    """

    __slots__ = ("_known", "_pending", "chunks", "lost", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes: Final = nbytes
        self.chunks: Final = -(-nbytes // CHUNK_BYTES)
        self.lost = ""
        self._known = bytearray(_DIGEST * self.chunks)
        self._pending: dict[Proof, None] = {}

    @property
    def in_flight(self) -> bool:
        """True while a write is not proven."""
        return any(not proof.checks for proof in self._pending)

    def proof_of(self, begin: int, end: int) -> Proof | None:
        """Note a write of the bytes from ``begin`` to ``end``; return the proof to ask for."""
        begin, end = max(0, begin), min(end, self.nbytes)
        if begin >= end:
            return None
        first = begin // CHUNK_BYTES
        return self._ask(first, -(-end // CHUNK_BYTES) - first, checks=False)

    def checks_of(self, begin: int, end: int) -> list[Proof]:
        """Return the checks to ask for before a write: of chunks that it covers in part."""
        begin, end = max(0, begin), min(end, self.nbytes)
        if begin >= end:
            return []
        partial = {begin // CHUNK_BYTES} if begin % CHUNK_BYTES else set()
        if end % CHUNK_BYTES and end < self.nbytes:
            partial.add(end // CHUNK_BYTES)
        return [self._ask(chunk, 1, checks=True) for chunk in sorted(partial)]

    def range_of(self, proof: Proof) -> tuple[int, int]:
        """Return the offset and the size in bytes of what a proof digests."""
        begin = proof.first * CHUNK_BYTES
        return begin, min((proof.first + proof.count) * CHUNK_BYTES, self.nbytes) - begin

    def take(self, proof: Proof, found: bytes) -> bool:
        """Take the digests of a proof, which may come before those of an earlier one.

        Returns:
            False if a check has found other bytes than were written.
        """
        proof.found = found
        good = True
        while self._pending:
            oldest = next(iter(self._pending))
            if oldest.found is None:
                break
            del self._pending[oldest]
            place = slice(_DIGEST * oldest.first, _DIGEST * (oldest.first + oldest.count))
            if not oldest.checks:
                self._known[place] = oldest.found
            elif self._known[place] != oldest.found:
                good = False
        return good

    def drop(self, proof: Proof) -> None:
        """Forget a check or proof that is not needed, because its op was not executed."""
        self._pending.pop(proof, None)

    def changed(self, found: bytes) -> list[int]:
        """Return the chunks whose digests are not the known ones, given those of all chunks."""
        if found == self._known:
            return []
        known = self._known
        return [
            chunk
            for chunk in range(self.chunks)
            if known[_DIGEST * chunk : _DIGEST * (chunk + 1)]
            != found[_DIGEST * chunk : _DIGEST * (chunk + 1)]
        ]

    def settle(self) -> None:
        """Forget checks that a fault has left without an answer."""
        self._pending.clear()

    def _ask(self, first: int, count: int, *, checks: bool) -> Proof:
        proof = Proof(first, count, checks=checks)
        self._pending[proof] = None
        return proof
