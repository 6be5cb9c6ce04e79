"""NCCL in NumPy, behind the same symbols, for ranks that are threads of this process.

Ranks meet in a communicator whose calls do not block. Collectives go through one that is split off
it, whose calls block until all ranks have come, as they do when ranks connect.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import defaultdict, deque
from typing import Any, Final

import numpy as np

from atomr_accel._dtypes import DTYPES
from atomr_accel.libraries.nccl.host import _prototypes as prototypes

from .vendor import FakeVendor

IN_PROGRESS, INVALID_ARGUMENT, REMOTE_ERROR = 7, 4, 6
BLOCKING, SHARED = slice(16, 20), slice(40, 44)  # bytes of a configuration
YES, NO = b"\1\0\0\0", bytes(4)
REDUCTIONS: Final[dict[int, Any]] = {
    0: np.add.reduce,
    1: np.multiply.reduce,
    2: np.maximum.reduce,
    3: np.minimum.reduce,
    4: np.mean,
}
DTYPE_OF: Final = {
    value: DTYPES[name]
    for name, value in prototypes.TYPES.items()
    if name not in ("complex64", "complex128")
} | {1: DTYPES["uint8"]}

Array = np.ndarray[Any, Any]


def memory(pointer: int, count: int, dtype: np.dtype[Any]) -> Array:
    """Elements at a pointer."""
    assert pointer or not count, "a null pointer"
    buffer = (ctypes.c_ubyte * (count * dtype.itemsize)).from_address(pointer)
    found: Array = np.ctypeslib.as_array(buffer).view(dtype)
    return found


class Comm:
    """One rank's end."""

    def __init__(self, clique: Clique, rank: int, split_off: Comm | None = None) -> None:
        self.clique, self.rank = clique, rank
        self.begun = 0
        self.aborted = False
        self.split_off = split_off
        self.child: tuple[int, Any] | None = None  # what is being made of it

    @property
    def flagged(self) -> bool:
        """True if all waits are to end: both share the flag."""
        return any(comm.aborted for comm in (self, self.split_off) if comm)


class Clique:
    """Ranks that share an id, and the groups that they have come to."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ranks: set[int] = set()
        self.groups: dict[int, dict[int, list[tuple[str, tuple[Any, ...]]]]] = defaultdict(dict)
        self.done = 0


class FakeNccl(FakeVendor):
    """Stands in for the loaded library."""

    library = "nccl"
    status_names = prototypes.STATUS_NAMES

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self.connected = False  # whether calls return before all ranks have come
        self._ids = itertools.count(1)
        self._handles = itertools.count(1)
        self._cliques: dict[bytes, Clique] = {}
        self.comms: dict[int, Comm] = {}
        self._local = threading.local()
        self._scales: dict[int, float] = {}
        self.functions = {
            name: self._wrapped(name) for name in prototypes.PROTOTYPES if name[4:5].isupper()
        }

    def forget(self) -> None:
        """Forget all ranks that have joined."""
        self._cliques.clear()
        self.comms.clear()

    def _wrapped(self, name: str) -> Any:
        words = prototypes.PROTOTYPES[name].split()

        def call(*args: Any) -> int:
            assert len(args) == len(words), name
            handles = ctypes.c_void_p, ctypes.c_int
            plain = [arg.value if isinstance(arg, handles) else arg for arg in args]
            with self._lock:
                method = getattr(self, name, None)
                if method is not None:
                    return int(method(*plain) or 0)
                group = getattr(self._local, "group", None)
                if group is None:  # it is a group of its own
                    self._local.group = [(name, tuple(plain))]
                    return self.ncclGroupEnd()
                group.append((name, tuple(plain)))
                return 0

        return call

    def ncclGetUniqueId(self, cell: Any) -> None:  # noqa: N802
        raise AssertionError("a test makes ids itself")

    def ncclCommInitRankConfig(  # noqa: N802
        self, cell: Any, size: int, identifier: Any, rank: int, config: Any
    ) -> int:
        content = bytes(identifier)
        clique = self._cliques.setdefault(content, Clique(size))
        if clique.size != size or rank in clique.ranks:
            return INVALID_ARGUMENT
        assert config.raw[BLOCKING] == NO
        assert config.raw[SHARED] == YES
        clique.ranks.add(rank)
        handle = next(self._handles)
        self.comms[handle] = Comm(clique, rank)
        cell._obj.value = handle
        return IN_PROGRESS

    def ncclCommSplit(  # noqa: N802
        self, handle: int, color: int, key: int, cell: Any, config: Any
    ) -> int:
        comm = self.comms[handle]
        assert (color, key) == (0, comm.rank)
        assert config.raw[BLOCKING] == YES
        clique = self._cliques.setdefault(f"{id(comm.clique)}".encode(), Clique(comm.clique.size))
        clique.ranks.add(comm.rank)
        made = next(self._handles)
        self.comms[made] = Comm(clique, comm.rank, comm)
        comm.child = made, cell
        return IN_PROGRESS

    def ncclCommGetAsyncError(self, handle: int, cell: Any) -> None:  # noqa: N802
        comm = self.comms[handle]
        if comm.child is not None:  # it is there only after a while
            made, child = comm.child
            child._obj.value = made
            comm.child = None
            cell._obj.value = IN_PROGRESS
            return
        cell._obj.value = IN_PROGRESS if len(comm.clique.ranks) < comm.clique.size else 0

    def ncclCommAbort(self, handle: int) -> None:  # noqa: N802
        self.comms.pop(handle).aborted = True
        self._changed.notify_all()

    def ncclGroupStart(self) -> None:  # noqa: N802
        self._local.group = []

    def ncclGroupEnd(self) -> int:  # noqa: N802
        calls, self._local.group = self._local.group, None
        if not calls:
            return 0
        # The communicator comes right before the stream.
        comm = self.comms[calls[0][1][-2]]
        comm.begun += 1
        place = comm.begun
        group = comm.clique.groups[place]
        group[comm.rank] = calls
        letters = [args[3] for calls in group.values() for name, args in calls if _is_letter(name)]
        if len(letters) == sum(map(len, group.values())):
            complete = group.keys() >= {*letters}  # the others have no part in it
        else:
            complete = len(group) == comm.clique.size
        if complete:
            self._do(group)
            comm.clique.done += 1
            self._changed.notify_all()
        while not self.connected and comm.clique.done < place and not comm.flagged:
            self._changed.wait()
        return REMOTE_ERROR if comm.flagged else 0

    def ncclRedOpCreatePreMulSum(  # noqa: N802
        self, cell: Any, scalar: int, kind: int, residence: int, comm: int
    ) -> None:
        assert residence == 1
        assert comm in self.comms
        dtype = DTYPE_OF[kind]
        cell._obj.value = 100 + next(self._ids)
        self._scales[cell._obj.value] = float(memory(scalar, 1, dtype)[0])

    def ncclRedOpDestroy(self, op: int, comm: int) -> None:  # noqa: N802
        del self._scales[op]

    def _do(self, group: dict[int, list[tuple[str, tuple[Any, ...]]]]) -> None:
        """Everything that all ranks have called in a group."""
        letters: dict[tuple[int, int], deque[Array]] = defaultdict(deque)
        by_rank = {
            rank: [each for each in calls if not _is_letter(each[0])]
            for rank, calls in group.items()
        }
        for together in zip(*(by_rank[rank] for rank in sorted(by_rank)), strict=True):
            (name,) = {name for name, _ in together}
            self._collective(name[4:], [args for _, args in together])
        for wanted in ("Send", "Recv"):
            for rank, calls in group.items():
                for name, (pointer, count, kind, peer, *_) in calls:
                    if name == f"nccl{wanted}":
                        found = memory(pointer, count, DTYPE_OF[kind])
                        if wanted == "Send":
                            letters[rank, peer].append(found.copy())
                        else:
                            found[:] = letters[peer, rank].popleft()
        assert not any(letters.values()), "sent, and not received"

    def _collective(self, name: str, each: list[tuple[Any, ...]]) -> None:
        count, kind = each[0][2], DTYPE_OF[each[0][3]]
        size = len(each)
        if name == "Broadcast":
            root = each[0][4]
            sent = memory(each[root][0], count, kind).copy()
            for args in each:
                memory(args[1], count, kind)[:] = sent
            return
        rows = count * (size if name == "ReduceScatter" else 1)
        given = np.stack([memory(args[0], rows, kind) for args in each])
        if name == "AllGather":
            for args in each:
                memory(args[1], count * size, kind)[:] = given.ravel()
            return
        op = each[0][4]
        wide = given.astype(np.float64)
        if op in self._scales:
            wide *= np.array([[self._scales[args[4]]] for args in each])
            op = 0
        reduced = REDUCTIONS[op](wide, axis=0).astype(kind)
        for rank, args in enumerate(each):
            if name == "ReduceScatter":
                memory(args[1], count, kind)[:] = reduced[rank * count : (rank + 1) * count]
            elif name == "AllReduce" or rank == args[5]:
                memory(args[1], count, kind)[:] = reduced


def _is_letter(name: str) -> bool:
    """Return whether a call is from one rank to another."""
    return name in ("ncclSend", "ncclRecv")
