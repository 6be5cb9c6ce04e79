"""Sealed buffers by digest: nodes offer them, and fetch them from any node that has them.

A digest is the hash of a listing, which has the shape, the dtype and a hash of each chunk. So a
listing is checked against the digest, and each chunk against the listing, whoever sent it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import trio

from .. import AccelError, Device, GpuRef
from .._dtypes import as_dtype
from ..actors.nursery import PlainNursery
from ..actors.util import check_instance
from ..device.data.transfer import in_thread
from ._errors import ProtocolViolated

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger("atomr_accel.cluster")

CHUNK: Final = 1 << 22
"""Bytes that are sent and checked at once."""

_AHEAD: Final = 4
"""Chunks that one node is asked for at a time."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

Ask = Callable[[str, str, bytes], Awaitable[bytes]]
"""Function that sends a node's target some bytes, and returns those of the answer."""


class SealedListing(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Shape, dtype and hashes of a buffer, which its digest is made of."""

    dtype: str
    shape: tuple[int, ...]
    chunk: int
    hashes: list[bytes]

    def digest(self) -> str:
        """Return the digest."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return math.prod(self.shape) * as_dtype(self.dtype).itemsize


@dataclass(eq=False)
class _Offer:
    device: Device
    ref: GpuRef
    flat: GpuRef
    listing: SealedListing


@dataclass(eq=False)
class _Download:
    """A buffer on its way: the chunks that are missing, and those that wait for a node."""

    digest: str
    host: NDArray[np.uint8]
    listing: SealedListing
    waiting: deque[int]
    missing: int
    changed: trio.Event = field(default_factory=trio.Event)

    def change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def take(self, number: int, chunk: bytes) -> bool:
        """Put a chunk into its place, if it is what the listing says; return whether it is."""
        place = self.host[number * CHUNK : (number + 1) * CHUNK]
        if len(chunk) != place.nbytes or _hash(chunk) != self.listing.hashes[number]:
            return False
        place[:] = np.frombuffer(chunk, np.uint8)
        return True


def check_digest(digest: object) -> str:
    """Return a digest, after a check of its form."""
    check_instance("digest", digest, str)
    assert isinstance(digest, str)
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"digest must be 64 hexadecimal digits, not {digest!r}")
    return digest


class SealedShelf:
    """The sealed buffers of this node that others may fetch."""

    def __init__(self, others: Callable[[], Iterable[str]], ask: Ask) -> None:
        self._others = others
        self._ask = ask
        self._offers: dict[str, _Offer] = {}
        self._locks: dict[str, trio.Lock] = {}
        self._limiter: Final = trio.CapacityLimiter(4)

    def __len__(self) -> int:
        return len(self._offers)

    async def offer(self, device: Device, ref: GpuRef) -> str:
        """Let other nodes fetch a sealed buffer, and return its digest."""
        check_instance("device", device, Device)
        check_instance("ref", ref, GpuRef)
        if not ref.sealed:
            raise ValueError(f"ref must be sealed, not {ref!r}; await device.seal(ref) first")
        if not ref.contiguous:
            raise ValueError(f"ref must be contiguous, not a view with strides {ref.strides}")
        flat = ref.reshape(-1).view(np.uint8)
        hashes: list[bytes] = []
        for start in range(0, flat.nbytes, CHUNK):
            content = await device.get(flat[start : start + CHUNK])
            hashes.append(await in_thread(partial(_hash, content), self._limiter))
        listing = SealedListing(ref.dtype.name, tuple(ref.shape), CHUNK, hashes)
        digest = listing.digest()
        await trio.lowlevel.checkpoint()
        self._offers.setdefault(digest, _Offer(device, ref, flat, listing))
        return digest

    def withdraw(self, digest: str) -> None:
        """Offer a buffer no more."""
        if self._offers.pop(check_digest(digest), None) is None:
            raise LookupError(f"this node offers no buffer of digest {digest}")

    def keeps(self, ref: object) -> bool:
        """Return whether a buffer is offered."""
        return any(offer.ref is ref for offer in self._offers.values())

    def clear(self) -> None:
        """Offer nothing."""
        self._offers.clear()

    async def answer(self, digest: str, body: bytes) -> bytes:
        """Answer another node: the listing, or a chunk by its number, which is not copied."""
        offer = self._offers.get(digest)
        if offer is not None and offer.ref.is_stale:
            del self._offers[digest]
            offer = None
        if offer is None:
            raise LookupError(f"this node offers no buffer of digest {digest}")
        number = msgspec.msgpack.decode(body, type=int | None)
        if number is None:
            return msgspec.msgpack.encode(offer.listing)
        if not 0 <= number < len(offer.listing.hashes):
            raise LookupError(f"the buffer has {len(offer.listing.hashes)} chunks, no {number}")
        part = offer.flat[number * CHUNK : (number + 1) * CHUNK]
        content: Any = await offer.device.get(part)
        return memoryview(content)  # type: ignore[return-value]

    async def fetch(self, digest: str, device: Device) -> GpuRef:
        """Return a sealed buffer of a digest on a device of this node, and offer it."""
        check_digest(digest)
        check_instance("device", device, Device)
        lock = self._locks.setdefault(digest, trio.Lock())
        try:
            async with lock:
                return await self._fetch(digest, device)
        finally:
            if not lock.locked():
                self._locks.pop(digest, None)

    async def _fetch(self, digest: str, device: Device) -> GpuRef:
        offer = self._offers.get(digest)
        if offer is not None and not offer.ref.is_stale:
            if offer.device is device:
                return offer.ref
            return await device.put(await offer.device.get(offer.ref), sealed=True)
        download = await self._download(digest)
        listing = download.listing
        dtype = as_dtype(listing.dtype)
        array = download.host.view(dtype).reshape(listing.shape)
        ref = await device.put(array, sealed=True)
        flat = ref.reshape(-1).view(np.uint8)
        self._offers[digest] = _Offer(device, ref, flat, listing)
        return ref

    async def _download(self, digest: str) -> _Download:
        found: list[_Download] = []
        async with PlainNursery() as nursery, PlainNursery() as nodes:
            for node in [*self._others()]:
                nodes.start_soon(self._from_node, node, digest, found, nursery.cancel_scope)
        if not found or found[0].missing:  # all nodes have failed, or have nothing
            left = f"{found[0].missing} chunks of it are missing" if found else "none has it"
            raise LookupError(f"no node offers a buffer of digest {digest}: {left}")
        return found[0]

    async def _from_node(
        self, node: str, digest: str, found: list[_Download], done: trio.CancelScope
    ) -> None:
        target = f"sealed:{digest}"
        try:
            body = await self._ask(node, target, msgspec.msgpack.encode(None))
            try:
                listing = msgspec.msgpack.decode(body, type=SealedListing)
                _check(listing, digest)
            except (msgspec.MsgspecError, ValueError) as error:
                raise ProtocolViolated(f"its listing is not that of the digest: {error}") from error
            if not found:
                found.append(_begun(digest, listing))
            download = found[0]
            if not download.missing:
                done.cancel()
                return
            async with PlainNursery() as nursery:
                for _ in range(_AHEAD):
                    nursery.start_soon(self._from_source, node, download, done)
        except* LookupError:
            pass
        except* (AccelError, OSError) as errors:
            _log.warning("node %s sends no buffer %s: %s", node, digest[:12], errors.exceptions[0])

    async def _from_source(self, node: str, download: _Download, done: trio.CancelScope) -> None:
        target = f"sealed:{download.digest}"
        while True:
            while not download.waiting:
                await download.changed.wait()
            number = download.waiting.popleft()
            try:
                chunk = await self._ask(node, target, msgspec.msgpack.encode(number))
                if not await in_thread(partial(download.take, number, chunk), self._limiter):
                    raise ProtocolViolated(f"chunk {number} has another hash than listed")
            except BaseException:
                download.waiting.append(number)
                download.change()
                raise
            download.missing -= 1
            if not download.missing:
                done.cancel()


def _hash(content: Any) -> bytes:
    return hashlib.sha256(content).digest()


def _check(listing: SealedListing, digest: str) -> None:
    """Raise a ValueError for a listing of another digest, or with other chunks than here."""
    if listing.digest() != digest:
        raise ValueError("it has another hash")
    if listing.chunk != CHUNK or -(-listing.nbytes // CHUNK) != len(listing.hashes):
        raise ValueError(f"it is of chunks of {listing.chunk} bytes")


def _begun(digest: str, listing: SealedListing) -> _Download:
    count = len(listing.hashes)
    host = np.empty(listing.nbytes, np.uint8)
    return _Download(digest, host, listing, deque(range(count)), count)
