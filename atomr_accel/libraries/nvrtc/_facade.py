"""``device.nvrtc``: CUDA C++ compiled and launched at run time."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakKeyDictionary, WeakSet

import cloudpickle
import numpy as np

from ..._errors import CompileError, Unsupported
from ...memory import GpuRef
from .._library import LaneSpec
from .._op import D, Facade, op
from .._request import Request, Submission
from ._signature import Parameter, Position, read_signature
from .wire._messages import Array, Compile, Launch, Load, Scalar, Unload

if TYPE_CHECKING:
    from ...memory import Block, MemoryMap
    from .._library import Home
    from .._request import Driver

COMPILER: Final = LaneSpec(
    "nvrtc",
    {
        "cpu": "atomr_accel.libraries.nvrtc.host._cpu:CpuCompiler",
        "cuda": "atomr_accel.libraries.nvrtc.host._cuda:CudaCompiler",
    },
    hangs=False,
    blocks=True,
)
KERNELS: Final = LaneSpec(
    "kernels",
    {
        "cpu": "atomr_accel.libraries.nvrtc.host._cpu:CpuKernels",
        "cuda": "atomr_accel.libraries.nvrtc.host._cuda:CudaKernels",
    },
    max_streams=4,
)

_numbers: Final = itertools.count(1)
"""Of kernels, in all hosts: one may have some from when it was a standby."""

_MAX_BLOCK: Final = 1024
_MAX_BLOCKS: Final = (_MAX_BLOCK, _MAX_BLOCK, 64)
_MAX_GRID: Final = (2**31 - 1, 65535, 65535)
_MAX_SHARED: Final = 2**31 - 1
"""What the driver can be asked for; each device has far less and says so."""

_NOT_A_KERNEL: Final = re.compile(
    r"\s*--?(dlto|dlink-time-opt|optix-ir|fdevice-syntax-only|dc|device-c"
    r"|(rdc|relocatable-device-code)(\s*=\s*|\s+)true)\s*"
)
"""Options that have the compiler make something that must be linked, or nothing."""

Dim = int | Sequence[int]
"""Sizes in x, y and z; what is left out is 1."""

Argument = GpuRef | complex | np.generic
"""What kernels take: a buffer for a pointer, a number for a value (complex stands for float, int
and bool, too)."""


@dataclass(frozen=True, slots=True)
class NvrtcStatistics:
    """What the compiler was asked for.

    Attributes:
        kernels: kernels that were made.
        found: those of them that were on disk and not compiled again.
    """

    kernels: int
    found: int


@final
class Nvrtc(Facade[D]):
    """The run-time compiler. Compiling has a lane of its own and delays no launch.

    What was compiled is kept on disk and found there by later programs and by this one after
    a rebuild: in ``$ATOMR_CACHE_DIR``, by default ``~/.cache/atomr-accel``. Sources that
    include others are compiled each time. They find the toolkit's headers, such as
    ``cuda_fp16.h``, those of cuRAND (``curand_kernel.h``) and of libcu++ and CUB (``cuda/std``,
    ``cub``), from package cuda-cccl or a toolkit, where these are installed.
    """

    def __init__(self, device: Home) -> None:
        self._device = device
        self._compiled = self._found = 0

    @op
    def compile(
        self,
        source: str,
        name: str,
        *,
        cpu: Callable[..., object] | None = None,
        options: Sequence[str] = (),
    ) -> Request[Kernel[D]]:
        """Compile a kernel (``nvrtcCompileProgram``).

        Args:
            source: CUDA C++ with a ``__global__`` function. Its declaration tells which
                arguments ``launch`` takes and which buffers it writes: declare what is
                only read as ``const``.
            name: the function's name; for an instance of a template as in C++,
                ``"scale<float>"``.
            cpu: what to call in the kernel's place on the CPU backend, with NumPy arrays
                for pointers and NumPy scalars for values. Parameters called ``grid`` and
                ``block``, if it has them, get the launch's dimensions. It runs in the
                host, so it must be picklable by cloudpickle, and it cannot see the
                program's variables change.
            options: further compiler options, such as ``"--use_fast_math"``. None that makes
                other output than a whole program, such as ``"-dlto"``.

        Returns:
            The kernel, good for all generations: after a rebuild it loads itself again.

        Raises:
            CompileError: with the compiler's log.
            LibraryMissing: NVRTC is not installed.
            TypeError: ``cpu`` is not callable, or text is not ``str``.
            Unsupported: the output of these options cannot be launched, or the compiler makes
                none for this device.
            ValueError: text that is no Unicode.
        """
        if not all(isinstance(text, str) for text in (source, name)):
            raise TypeError("compile(source, name) takes the source and the name as str")
        if not _are_texts(options):
            raise TypeError(f"options must be a sequence of str, not {options!r}")
        for text in (source, name, *options):
            text.encode()  # a surrogate would only be noticed when the message is sent
        for option in (*options, *map(" ".join, itertools.pairwise(options))):
            if _NOT_A_KERNEL.fullmatch(option):
                raise Unsupported(
                    f"option {option!r} makes output that must be linked, or none; a kernel is "
                    "compiled to a whole program, without a linker: leave the option out"
                )
        if cpu is not None and not callable(cpu):
            raise TypeError(f"cpu must be callable, not {type(cpu).__name__}")
        parameters = read_signature(source, name)
        in_python = self._device.capabilities.python_kernels
        if parameters is None and in_python:
            log = f"no __global__ function named {name!r} is declared in the source"
            raise CompileError(f"kernel {name!r} does not compile: {log}", log=log)
        function = cloudpickle.dumps(cpu) if in_python and cpu else b""
        message = Compile(source, name, tuple(options))

        def finish(answer: tuple[bytes, str, str, bool]) -> Kernel[D]:
            image, lowered, log, found = answer
            self._compiled += 1
            self._found += found
            return Kernel(
                self._device,
                next(_numbers),
                name,
                parameters,
                image=function if in_python else image,
                lowered=lowered,
                log=log,
            )

        return Request(
            COMPILER, "nvrtc.compile", lambda _driver: Submission(message, (), (), finish=finish)
        )

    def statistics(self) -> NvrtcStatistics:
        """A snapshot of what was compiled."""
        return NvrtcStatistics(self._compiled, self._found)


@dataclass(slots=True, eq=False)
class _Copy:
    """A kernel among some executors, in one generation.

    Attributes:
        kept: has it released in the end; launches name it as read.
        loaded: whether it is there for sure.
        asked_by: the batches and recordings that have it loaded themselves: it is there for
            what they launch afterwards, but not for others, as long as it is not sure.
    """

    kept: Block
    loaded: bool = False
    asked_by: WeakSet[object] = field(default_factory=WeakSet)


@final
class _Resident:
    """A kernel in the host, as all copies of its handle know it.

    Attributes:
        number: the host's number of it.
    """

    __slots__ = ("_copies", "_image", "_lowered", "_name", "number")

    def __init__(self, number: int, name: str, image: bytes, lowered: str) -> None:
        self.number: Final = number
        self._name = name
        self._image = image
        self._lowered = lowered
        self._copies: WeakKeyDictionary[object, _Copy] = WeakKeyDictionary()

    def loaded(self, driver: Driver) -> Block:
        """What stands for it where the driver's ops are executed; it is loaded first, if need be.

        Args:
            driver: that of the launch.
        """
        keeper = driver.keeper
        copy = self._copies.get(keeper)
        if copy is None or copy.kept.epoch is not driver.memory.epoch:
            kept = keeper.keep(KERNELS.name, f"unload {self._name}", Unload(self.number))
            copy = self._copies[keeper] = _Copy(kept)
        if not copy.loaded and driver.home not in copy.asked_by:
            driver.perform(self._load(copy))
            copy.asked_by.add(driver.home)
        return copy.kept

    def _load(self, copy: _Copy) -> Request[None]:
        def done() -> None:
            copy.loaded = True

        def prepare(_driver: Driver) -> Submission[None]:
            message = Load(self.number, self._image, self._lowered)
            return Submission(message, (copy.kept,), (), done=done)

        return Request(KERNELS, f"load {self._name}", prepare, ("nvrtc.load", self.number))


@final
class Kernel(Facade[D]):
    """A compiled kernel. Made by ``device.nvrtc.compile``.

    Attributes:
        name: as given to ``compile``.
        parameters: what ``launch`` takes, or None where the source does not tell.
        log: the compiler's warnings.
    """

    traced = True

    def __init__(
        self,
        device: Home,
        number: int,
        name: str,
        parameters: tuple[Parameter, ...] | None,
        *,
        image: bytes,
        lowered: str,
        log: str,
    ) -> None:
        self._device = device
        self._resident = _Resident(number, name, image, lowered)
        self._runs = bool(image) or not device.capabilities.python_kernels
        self._positions = None if parameters is None else _positions(parameters)
        self._op_name = f"kernel {name}"
        self.name: Final = name
        self.parameters: Final = parameters
        self.log: Final = log

    def __repr__(self) -> str:
        arguments = ", ".join(p.text for p in self.parameters) if self.parameters else "..."
        return f"<Kernel {self.name}({arguments})>"

    @op
    def launch(self, grid: Dim, block: Dim, *args: Argument, shared: int = 0) -> Request[None]:
        """Launch the kernel and wait until it has finished (``cuLaunchKernel``).

        Args:
            grid: blocks in x, y, z; one number or up to three.
            block: threads of a block in x, y, z.
            *args: refs for pointers, numbers for values. Numbers become the declared
                type where that loses nothing.
            shared: bytes of dynamic shared memory.

        Raises:
            TypeError: the wrong number or types of arguments.
            ValueError: dimensions no device has, a ref of another device.
            OverflowError: a number that does not fit its parameter.
            GpuRefSealed: a sealed ref for a pointer that is not ``const``.
            GpuRefStale: a ref of an older generation, or freed.
            Unsupported: on the CPU backend, a kernel without ``cpu=``.
        """
        return self._launch(grid, block, args, shared)

    def _launch(
        self, grid: Dim, block: Dim, args: tuple[Argument, ...], shared: int
    ) -> Request[None]:
        """The request of ``launch``, its arguments in a tuple."""
        resident = self._resident

        def prepare(driver: Driver) -> Submission[None]:
            grid3 = _dimensions(grid, "grid", _MAX_GRID)
            block3 = _dimensions(block, "block", _MAX_BLOCKS)
            if block3[0] * block3[1] * block3[2] > _MAX_BLOCK:
                raise ValueError(f"block {block3} has more than {_MAX_BLOCK} threads")
            if not self._runs:
                raise Unsupported(
                    f"kernel {self.name!r} has no Python function, so it cannot run on the CPU "
                    f"backend; give one: device.nvrtc.compile(source, {self.name!r}, cpu=function)"
                )
            size = shared if type(shared) is int else _index(shared, "shared")
            if not 0 <= size <= _MAX_SHARED:
                raise ValueError(f"shared is {size} bytes; it must be from 0 to {_MAX_SHARED}")
            arguments, reads, writes = self._arguments(args, driver.memory)
            reads.append(driver.obtain(resident.loaded))
            message = Launch(resident.number, grid3, block3, size, arguments)
            return Submission(message, reads, writes)

        return Request(KERNELS, self._op_name, prepare)

    def _arguments(
        self, args: tuple[Argument, ...], memory: MemoryMap
    ) -> tuple[tuple[Array | Scalar, ...], list[Block], list[Block]]:
        positions = self._positions
        if positions is None:
            positions = _positions(
                tuple(
                    Parameter("?", isinstance(arg, GpuRef), isinstance(arg, GpuRef), None)
                    for arg in args
                )
            )
        if len(args) != len(positions):
            raise TypeError(
                f"kernel {self.name} takes {len(positions)} arguments "
                f"({', '.join(each.parameter.text for each in positions)}), not {len(args)}"
            )
        reads: list[Block] = []
        writes: list[Block] = []
        arguments = tuple(
            [
                position.array(arg, memory, reads, writes)
                if position.pointer
                else position.scalar(arg)
                for position, arg in zip(positions, args, strict=True)
            ]
        )
        return arguments, reads, writes


def launching(
    kernel: Kernel[Any], grid: Dim, block: Dim, *args: Argument, shared: int = 0
) -> Request[None]:
    """The request of ``kernel.launch``."""
    return kernel._launch(grid, block, args, shared)


def _positions(parameters: tuple[Parameter, ...]) -> tuple[Position, ...]:
    return tuple(Position(at, parameter) for at, parameter in enumerate(parameters))


def _are_texts(values: object) -> bool:
    """Whether those are several texts, and not one."""
    return (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and all(isinstance(value, str) for value in values)
    )


def _dimensions(value: Dim, name: str, limits: tuple[int, int, int]) -> tuple[int, int, int]:
    if type(value) is int:
        sizes: tuple[Any, ...] = (value,)
    else:
        sizes = tuple(value) if isinstance(value, Sequence | np.ndarray) else (value,)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{name} takes one to three sizes, not {len(sizes)}")
    x, y, z = (*sizes, 1, 1)[:3]
    if not type(x) is type(y) is type(z) is int:
        x, y, z = _index(x, name), _index(y, name), _index(z, name)
    if not (0 < x <= limits[0] and 0 < y <= limits[1] and 0 < z <= limits[2]):
        raise ValueError(f"{name} is {(x, y, z)}; each size must be from 1 to {limits}")
    return x, y, z


def _index(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} takes whole numbers, not {value!r}") from None
