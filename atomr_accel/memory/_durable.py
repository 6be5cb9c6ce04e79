"""Digests of durable and sealed blocks, as the program keeps them. No device and no I/O.

A durable block is divided into chunks, each of which has a digest of eight bytes. An op that
writes to a block is followed by a *proof*: new digests of the chunks that it may have written. If
it covers its first or last chunk in part, a *check* precedes it, which digests these chunks before
the op and must find the known digests. Without it the proof would vouch for bytes that the op has
not written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np
from xxhash import xxh64_hexdigest

from ..wire import CHUNK_BYTES

_DIGEST: Final = 8


@dataclass(frozen=True, slots=True)
class DurableStatistics:
    """Durable buffers of a device.

    Attributes:
        buffers: number of buffers that are usable now.
        nbytes: their size.
        verified: number of times that a buffer, durable or sealed, was verified after a fault and
            continued.
        in_flight: number of buffers lost because a write was in flight at a fault.
        changed: number of buffers, durable or sealed, lost because bytes had changed that no op
            wrote.
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
        checks: whether the digests must be those that are known, because nothing was written. It
            becomes true if the op is withdrawn.
        found: the digests, once they have arrived.
    """

    __slots__ = ("checks", "count", "first", "found")

    def __init__(self, first: int, count: int, *, checks: bool) -> None:
        self.first: Final = first
        self.count: Final = count
        self.checks: bool = checks
        self.found: bytes | None = None


@final
class DurableState:
    """Knowledge of a durable or sealed block: its digests, and those that have not arrived.

    Args:
        nbytes: the block's size.
        known: the digests, if they are known already.

    Attributes:
        nbytes: the block's size.
        chunks: number of its chunks.
        lost: the reason why the block is not usable any more; empty while it is.
    """

    __slots__ = ("_known", "_pending", "chunks", "lost", "nbytes")

    def __init__(self, nbytes: int, known: bytes = b"") -> None:
        self.nbytes: Final = nbytes
        self.chunks: Final = -(-nbytes // CHUNK_BYTES)
        self.lost: str = ""
        self._known = bytearray(known or bytes(_DIGEST * self.chunks))
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

    def all_of(self, most: int, *, checks: bool) -> list[Proof]:
        """Return proofs, or checks, to ask for of the whole block, of ``most`` chunks each."""
        return [
            self._ask(first, min(most, self.chunks - first), checks=checks)
            for first in range(0, self.chunks, most)
        ]

    def digest(self) -> str:
        """Return the digest of the digests, as 16 hexadecimal digits."""
        return xxh64_hexdigest(bytes(self._known))

    def range_of(self, proof: Proof) -> tuple[int, int]:
        """Return the offset and the size in bytes of what a proof digests."""
        begin = proof.first * CHUNK_BYTES
        return begin, min((proof.first + proof.count) * CHUNK_BYTES, self.nbytes) - begin

    def take(self, proof: Proof, found: bytes) -> list[int]:
        """Take the digests of a proof, which may come before those of an earlier one.

        Returns:
            The chunks in which a check has found other bytes than were written.
        """
        proof.found = found
        changed: list[int] = []
        while self._pending:
            oldest = next(iter(self._pending))
            if oldest.found is None:
                break
            del self._pending[oldest]
            place = slice(_DIGEST * oldest.first, _DIGEST * (oldest.first + oldest.count))
            if not oldest.checks:
                self._known[place] = oldest.found
            else:
                changed += self.changed(oldest.found, oldest.first)
        return changed

    def drop(self, proof: Proof) -> None:
        """Forget a check or proof that is not needed, because its op was not executed."""
        self._pending.pop(proof, None)

    def changed(self, found: bytes, first: int = 0) -> list[int]:
        """Return the chunks whose digests are not the known ones, given those from one on."""
        known = self._known[_DIGEST * first : _DIGEST * first + len(found)]
        return [first + chunk for chunk in differing(known, found)]

    def settle(self) -> None:
        """Forget checks that a fault has left without an answer."""
        self._pending.clear()

    def _ask(self, first: int, count: int, *, checks: bool) -> Proof:
        proof = Proof(first, count, checks=checks)
        self._pending[proof] = None
        return proof


def differing(known: bytes | bytearray, found: bytes) -> list[int]:
    """Return the chunks whose digests differ."""
    if found == known:
        return []
    differs = np.frombuffer(bytes(known), "<u8") != np.frombuffer(found, "<u8")
    return [int(chunk) for chunk in np.flatnonzero(differs)]


def told(changed: list[int], chunks: int) -> str:
    """Say which chunks have changed."""
    return (
        f"{len(changed)} of {chunks} ranges of {CHUNK_BYTES} bytes, the first at byte "
        f"{changed[0] * CHUNK_BYTES}"
    )
