"""Messages of a host's control socket, which carries one request and one reply at a time."""

from __future__ import annotations

import errno
import re
from pkgutil import resolve_name
from typing import Annotated, Any, Final, Literal

import msgspec

from .._errors import AccelError, DeviceUnavailable, Unsupported
from .failures import is_shortage
from .messages import Failure, Fault

MOST_MODULES: Final = 1 << 14
"""Modules that a host names: large frameworks have some thousands."""

MODULE_NAME: Final = 256
"""Characters of a module's name."""

_ModuleName = Annotated[str, msgspec.Meta(max_length=MODULE_NAME)]


class HostClass(msgspec.Struct, frozen=True):
    """A class that hosts import, and the arguments to call it with.

    The class is in a module that the program's ``sys.path`` has. The module runs in hosts, so it
    imports neither trio nor anything of the program. The program does not import it.

    Attributes:
        reference: ``"module:Class"``.
        arguments: keyword arguments: None, bools, ints of 64 bits, floats, str, bytes, and lists
            and dicts of these.
    """

    reference: str
    arguments: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not isinstance(self.reference, str):
            raise TypeError(
                f"the reference of a HostClass must be 'module:Class', not {self.reference!r}"
            )
        if not _REFERENCE.fullmatch(self.reference):
            raise ValueError(
                f"the reference of a HostClass must be 'module:Class', not {self.reference!r}"
            )
        if type(self.arguments) is not dict:
            raise TypeError(
                f"the arguments of {self.reference} must be a dict by name, not {self.arguments!r}"
            )
        _require_plain(self.arguments, f"the arguments of {self.reference}")

    def make(self, what: str) -> Any:
        """Import the class and make the object, in a host.

        Args:
            what: a description of the object, for errors.

        Raises:
            DeviceUnavailable: the class cannot be loaded.
            Unsupported: it cannot be called with these arguments.
            OSError: memory, processes, threads or descriptors are short.
        """
        kind = find_class(what, self.reference)
        try:
            return kind(**self.arguments)
        except (AccelError, OSError, MemoryError):
            raise
        except Exception as error:
            raise Unsupported(
                f"{what}, {self.reference!r}, cannot be made with the arguments "
                f"{self.arguments!r}: {type(error).__name__}: {error}"
            ) from error


_REFERENCE: Final = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")

_PLAIN: Final = (type(None), bool, float, str, bytes)


def _require_plain(value: object, what: str) -> None:
    """Raise unless a value can travel to a host unchanged."""
    if isinstance(value, list):
        for each in value:
            _require_plain(each, what)
    elif isinstance(value, dict):
        for key, each in value.items():
            if type(key) is not str:
                raise TypeError(f"{what} must have names of type str, not {key!r}")
            _require_plain(each, what)
    elif type(value) is int:
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"{what} must be numbers of at most 64 bits, not {value}")
    elif type(value) not in _PLAIN:
        raise TypeError(
            f"{what} must be plain values, such as numbers, str and lists, not {value!r}"
        )


class Open(msgspec.Struct, frozen=True, tag=True):
    """First request: open the device. The descriptor of the staging memory comes along.

    The staging memory has slab number 0, which is otherwise unused.

    Attributes:
        cores: the cores that a host process may run on: ``"near"`` the device, all (None), or
            these.
    """

    backend: str
    index: int
    staging_bytes: int
    plan: StreamPlan
    cores: Affinity = None


Affinity = Literal["near"] | tuple[int, ...] | None
"""Cores that a host may run on: ``"near"`` its device, the given ones, or all (None)."""


class StreamPlan(msgspec.Struct, frozen=True):
    """Settings for the streams and threads of lanes, and for how lanes find finished ops.

    Attributes:
        streams: the host's ``StreamAllocator``.
        priorities: stream priority by lane name; lower runs first, 0 is the default.
        completion: the ``CompletionStrategy`` of each thread of lanes.
        sleeps: whether threads sleep in the driver for the end of ops, as the host finds out from
            its strategy before it opens the device.
        threads: ``"shared"``: lanes that only launch share a thread. ``"per_library"``: each lane
            has its own. None: as suits the backend. The program names each lane's in ``OpenLane``.
        group: number of launches that may share one completion token, and so one answer.
        track_each_op: whether ops of a group that takes long are answered one by one.
        deterministic: whether results are independent of other ops in flight and of timing.
        sanitized: whether a sanitizer checks the process. Code is then compiled with line numbers.
    """

    streams: HostClass = HostClass("atomr_accel.host.streams:SharedStreams")
    priorities: dict[str, int] = {}
    completion: HostClass = HostClass("atomr_accel.host.completion:HybridCompletion")
    sleeps: bool = False
    threads: str | None = None
    group: int = 8
    track_each_op: bool = False
    deterministic: bool = False
    sanitized: bool = False


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The device is there."""

    info: DeviceInfo


class AskFree(msgspec.Struct, frozen=True, tag=True):
    """Ask for the free memory of the device."""


class Free(msgspec.Struct, frozen=True, tag=True):
    """Bytes of the device's memory that no process uses."""

    nbytes: int


class AskPeers(msgspec.Struct, frozen=True, tag=True):
    """Ask for the device's access to others, by their indices."""

    indices: list[int]


class Peer(msgspec.Struct, frozen=True):
    """A device's access to another device.

    Attributes:
        access: whether it can map the other's memory.
        atomics: whether its atomic operations work there, which takes more than PCIe.
        rank: the driver's rank of the link's speed; lower is faster, None if unknown.
    """

    access: bool
    atomics: bool = False
    rank: int | None = None


class Peers(msgspec.Struct, frozen=True, tag=True):
    """The device's access to other devices, in the order of the request."""

    peers: list[Peer]


class Preload(msgspec.Struct, frozen=True, tag=True):
    """Import classes, and call their ``preload`` if they have one."""

    references: list[str]


class Import(msgspec.Struct, frozen=True, tag=True):
    """Begin to import modules, as far as possible.

    The descriptor that comes along is closed at the end. Meanwhile other requests are answered.
    """

    modules: list[str]


class Imported(msgspec.Struct, frozen=True, tag=True):
    """Ask for the modules that functions of the program have imported."""


class Modules(msgspec.Struct, frozen=True, tag=True):
    """Names of modules, in an order in which they can be imported."""

    names: Annotated[list[_ModuleName], msgspec.Meta(max_length=MOST_MODULES)]


class OpenLane(msgspec.Struct, frozen=True):
    """A lane to be started.

    Attributes:
        name: the lane's name.
        index: its number in dependencies.
        executor: ``module:class`` of what executes its messages.
        max_streams: how many of them may run side by side.
        thread: the name of the thread that runs it, with all others of that name.
    """

    name: str
    index: int
    executor: str
    max_streams: int
    thread: str


class OpenLanes(msgspec.Struct, frozen=True, tag=True):
    """Start lanes in parallel, on the sockets that come along in the same order."""

    lanes: list[OpenLane]


class LanesOpened(msgspec.Struct, frozen=True, tag=True):
    """The reply to ``OpenLanes``, with the lanes that did not start.

    Attributes:
        failed: the errors of those lanes, by name, in the order in which they failed.
    """

    failed: dict[str, Failure | Fault]


class CreateSlab(msgspec.Struct, frozen=True, tag=True):
    """Allocate and map a slab; the reply carries its descriptor."""

    id: int
    nbytes: int
    sealed: bool


class MapSlab(msgspec.Struct, frozen=True, tag=True):
    """Map a slab whose descriptor comes along, read-only if sealed."""

    id: int
    nbytes: int
    sealed: bool


class MapPinned(msgspec.Struct, frozen=True, tag=True):
    """Page-lock and map memory of the program whose descriptor comes along.

    It has an address like a slab. A mapping that exists already is kept.
    """

    id: int
    nbytes: int


class MapPointer(msgspec.Struct, frozen=True, tag=True):
    """Give memory of this very process an address (under thread isolation)."""

    id: int
    pointer: int
    nbytes: int


class CreateManaged(msgspec.Struct, frozen=True, tag=True):
    """Allocate memory that moves between the device and the host by itself.

    The reply carries its descriptor if the program can map it.
    """

    id: int
    nbytes: int


class UnmapSlabs(msgspec.Struct, frozen=True, tag=True):
    """Unmap slabs, and page-locked memory, that the program has given up."""

    ids: list[int]


class HoldSlabs(msgspec.Struct, frozen=True, tag=True):
    """Unmap slabs, but keep their addresses: ``MapSlab`` maps them at the same place again."""

    ids: list[int]


class MoveProcess(msgspec.Struct, frozen=True, tag=True):
    """Park another host, or have it run again.

    Attributes:
        parker: ``module:class`` of the backend's ``Parker``.
        step: ``"check"`` only says whether this machine can park processes.
        pid: the other host's process id.
        uuid: the device's ``DeviceInfo.uuid``.
        nbytes: bytes of device memory that its return takes.
    """

    parker: str
    step: Literal["check", "park", "restore"]
    pid: int = 0
    uuid: str = ""
    nbytes: int = 0


class Done(msgspec.Struct, frozen=True, tag=True):
    """The reply to a control request without a value."""


class PcieLink(msgspec.Struct, frozen=True):
    """The best PCIe link that a card supports.

    Attributes:
        gigatransfers: 10^9 transfers per second and lane: 32.0 is PCIe 5.
        lanes: number of lanes, such as 16.
    """

    gigatransfers: float
    lanes: int


class DeviceInfo(msgspec.Struct, frozen=True):
    """Properties of a device.

    Attributes:
        name: the vendor's name of the device.
        backend: its backend's name, such as ``"cuda"``.
        index: its index.
        total_memory: its memory in bytes.
        compute_capability: such as ``(9, 0)``; ``(0, 0)`` on the CPU.
        driver_version: such as 13000 for CUDA 13.0; 0 on the CPU.
        uuid: the vendor's identifier, or the empty string.
        exports_memory: whether memory can outlive its process.
        pci_address: its PCI address, such as ``"0000:17:00.0"``; None if it has none.
        numa_node: the NUMA node of this machine that is closest to it; None if unknown.
        pcie: its PCIe link; None if unknown.
        mig: whether it is an instance of a card that is split (MIG); None if unknown.
        multiprocessors: number of multiprocessors; 0 on the CPU.
        shared_memory_per_block: bytes that a thread block may use at most; 0 on the CPU.
    """

    name: str
    backend: str
    index: int
    total_memory: int
    compute_capability: tuple[int, int] = (0, 0)
    driver_version: int = 0
    uuid: str = ""
    exports_memory: bool = True
    pci_address: str | None = None
    numa_node: int | None = None
    pcie: PcieLink | None = None
    mig: bool | None = None
    multiprocessors: int = 0
    shared_memory_per_block: int = 0


ControlRequest = (
    Open
    | Preload
    | OpenLanes
    | CreateSlab
    | CreateManaged
    | MapSlab
    | MapPinned
    | MapPointer
    | UnmapSlabs
    | HoldSlabs
    | MoveProcess
    | Import
    | Imported
    | AskFree
    | AskPeers
)
ControlReply = Opened | LanesOpened | Modules | Free | Peers | Done | Failure | Fault

_BRING_DESCRIPTOR: Final = (Open, MapSlab, MapPinned, Import)


def brings(request: ControlRequest) -> int:
    """Return the number of descriptors that come along with a request."""
    if isinstance(request, OpenLanes):
        return len(request.lanes)
    return int(isinstance(request, _BRING_DESCRIPTOR))


FETCH_DESCRIPTOR: Final = (CreateSlab, CreateManaged)
"""Requests whose reply may bring a descriptor."""


def find_class(what: str, reference: str, where: str = "the host") -> Any:
    """Return the class that a backend or a library names as ``module:class``.

    Args:
        what: a description of the class, for errors.
        reference: its name.
        where: the process that loads it, for errors.

    Raises:
        DeviceUnavailable: it cannot be loaded.
        OSError: memory, processes, threads or descriptors are short.
        AccelError: the module raised it; it is passed on.
        MemoryError: the module raised it; it is passed on.
    """
    try:
        found = resolve_name(reference)
        if not callable(found):
            raise TypeError(f"it is a {type(found).__name__}, not a class")
    except (AccelError, OSError, MemoryError):
        raise  # says itself which part is missing, or may succeed the next time
    except Exception as error:
        if is_shortage(error):
            raise OSError(errno.ENOMEM, f"{what}, {reference!r}: {error}") from error
        raise DeviceUnavailable(
            f"{what}, {reference!r}, cannot be loaded in {where}: {type(error).__name__}: "
            f"{error}; reinstall or update the package that names it"
        ) from error
    return found
