"""``device.nvrtc``: CUDA C++ compiled and launched at run time."""

from __future__ import annotations

import copy
import itertools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import cloudpickle
import numpy as np

from ..._errors import CompileError, Unsupported
from ...memory import GpuRef
from .._arguments import usable, writable
from .._library import LaneSpec
from .._op import D, Facade
from ._signature import Parameter, read_signature
from .wire._messages import Array, Compile, Launch, Load, Scalar, Unload

if TYPE_CHECKING:
    from ...memory import Block, Epoch
    from .._library import Submitter

COMPILER: Final = LaneSpec(
    "nvrtc",
    {
        "cpu": "atomr_accel.libraries.nvrtc.host._cpu:CpuCompiler",
        "cuda": "atomr_accel.libraries.nvrtc.host._cuda:CudaCompiler",
    },
    hangs=False,
)
KERNELS: Final = LaneSpec(
    "kernels",
    {
        "cpu": "atomr_accel.libraries.nvrtc.host._cpu:CpuKernels",
        "cuda": "atomr_accel.libraries.nvrtc.host._cuda:CudaKernels",
    },
)

_MAX_BLOCK: Final = 1024
_MAX_GRID: Final = (2**31 - 1, 65535, 65535)
_MAX_SHARED: Final = 2**31 - 1
"""What the driver can be asked for; each device has far less and says so."""

_NOT_A_KERNEL: Final = re.compile(
    r"\s*--?(dlto|dlink-time-opt|optix-ir|fdevice-syntax-only|dc|device-c"
    r"|(rdc|relocatable-device-code)(\s*=\s*|\s+)true)\s*"
)
"""Options that have the compiler make something that must be linked, or nothing."""

Dim = int | Sequence[int]


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
    include others are compiled each time.
    """

    def __init__(self, device: Submitter) -> None:
        self._device = device
        self._numbers = itertools.count(1)
        self._compiled = self._found = 0

    async def compile(
        self,
        source: str,
        name: str,
        *,
        cpu: Callable[..., object] | None = None,
        options: Sequence[str] = (),
    ) -> Kernel:
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
        if parameters is None and self._device.backend == "cpu":
            log = f"no __global__ function named {name!r} is declared in the source"
            raise CompileError(f"kernel {name!r} does not compile: {log}", log=log)
        function = cloudpickle.dumps(cpu) if self._device.backend == "cpu" and cpu else b""
        message = Compile(source, name, tuple(options))
        port = await self._device.open_lane(COMPILER)
        op = self._device.submit(port, "nvrtc.compile", message)
        image, lowered, log, kept = await op.wait()
        self._compiled += 1
        self._found += kept
        return Kernel(
            self._device,
            next(self._numbers),
            name,
            parameters,
            image=function if self._device.backend == "cpu" else image,
            lowered=lowered,
            log=log,
        )

    def statistics(self) -> NvrtcStatistics:
        """A snapshot of what was compiled."""
        return NvrtcStatistics(self._compiled, self._found)


class _Resident:
    """A kernel in the host, as all copies of its handle know it.

    Attributes:
        number: the host's number of it.
        kept: releases it, in the generation it was loaded in last.
    """

    __slots__ = ("kept", "number")

    def __init__(self, number: int) -> None:
        self.number: Final = number
        self.kept: Block | None = None


@final
class Kernel(Facade[D]):
    """A compiled kernel. Made by ``device.nvrtc.compile``.

    Attributes:
        name: as given to ``compile``.
        parameters: what ``launch`` takes, or None where the source does not tell.
        log: the compiler's warnings.
    """

    def __init__(
        self,
        device: Submitter,
        number: int,
        name: str,
        parameters: tuple[Parameter, ...] | None,
        *,
        image: bytes,
        lowered: str,
        log: str,
    ) -> None:
        self._device = device
        self._resident = _Resident(number)
        self._image = image
        self._lowered = lowered
        self._loaded: Epoch | None = None
        self.name: Final = name
        self.parameters: Final = parameters
        self.log: Final = log

    def _apart(self) -> Kernel:
        """The same kernel where executors of their own have to load it."""
        twin = copy.copy(self)
        twin._resident, twin._loaded = _Resident(self._resident.number), None
        return twin

    def __repr__(self) -> str:
        arguments = ", ".join(p.text for p in self.parameters) if self.parameters else "..."
        return f"<Kernel {self.name}({arguments})>"

    async def launch(self, grid: Dim, block: Dim, *args: Any, shared: int = 0) -> None:
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
        device, resident = self._device, self._resident
        grid3 = _dimensions(grid, "grid", _MAX_GRID)
        block3 = _dimensions(block, "block", (_MAX_BLOCK, _MAX_BLOCK, 64))
        if block3[0] * block3[1] * block3[2] > _MAX_BLOCK:
            raise ValueError(f"block {block3} has more than {_MAX_BLOCK} threads")
        if device.backend == "cpu" and not self._image:
            raise Unsupported(
                f"kernel {self.name!r} has no Python twin, so it cannot run on the CPU backend; "
                f"give one: device.nvrtc.compile(source, {self.name!r}, cpu=function)"
            )
        shared = _index(shared, "shared")
        if not 0 <= shared <= _MAX_SHARED:
            raise ValueError(f"shared is {shared} bytes; it must be from 0 to {_MAX_SHARED}")
        arguments, reads, writes = self._arguments(args)
        if self._loaded is not device.memory.epoch:
            while self._loaded is not device.memory.epoch:
                port = await device.open_lane(KERNELS)
                epoch = device.memory.epoch
                kept = resident.kept
                if kept is None or kept.epoch is not epoch:
                    unload = Unload(resident.number)
                    kept = device.keep(KERNELS.name, f"unload {self.name}", unload)
                    resident.kept = kept
                load = Load(resident.number, self._image, self._lowered)
                await device.submit(port, f"load {self.name}", load, (kept,)).wait()
                self._loaded = epoch
            arguments, reads, writes = self._arguments(args)
        message = Launch(resident.number, grid3, block3, shared, arguments)
        port = device.ports[KERNELS.name]  # open, or it would not be loaded
        assert resident.kept is not None
        reads = (*reads, resident.kept)
        await device.submit(port, f"kernel {self.name}", message, reads, writes).wait()

    def _arguments(
        self, args: tuple[Any, ...]
    ) -> tuple[tuple[Array | Scalar, ...], tuple[Block, ...], tuple[Block, ...]]:
        parameters = self.parameters
        if parameters is None:
            parameters = tuple(
                Parameter("?", isinstance(arg, GpuRef), isinstance(arg, GpuRef), None)
                for arg in args
            )
        if len(args) != len(parameters):
            raise TypeError(
                f"kernel {self.name} takes {len(parameters)} arguments "
                f"({', '.join(p.text for p in parameters)}), not {len(args)}"
            )
        memory = self._device.memory
        arguments: list[Array | Scalar] = []
        reads: list[Block] = []
        writes: list[Block] = []
        for position, (parameter, arg) in enumerate(zip(parameters, args, strict=True)):
            if parameter.pointer:
                check = writable if parameter.written else usable
                name = f"argument {position} ('{parameter.text}')"
                target = check(arg, memory, name)
                parameter.check_ref(arg, position)
                reads.append(target)
                if parameter.written:
                    writes.append(target)
                arguments.append(Array(target.address, arg.shape, arg.dtype.name))
            else:
                if isinstance(arg, GpuRef):
                    raise TypeError(
                        f"argument {position} is a GpuRef, but the kernel declares "
                        f"'{parameter.text}', which is no pointer"
                    )
                value = parameter.scalar(arg, position)
                arguments.append(Scalar(value.tobytes(), value.dtype.name))
        return tuple(arguments), tuple(reads), tuple(writes)


def _are_texts(values: object) -> bool:
    """Whether those are several texts, and not one."""
    return (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and all(isinstance(value, str) for value in values)
    )


def _dimensions(value: Dim, name: str, limits: tuple[int, int, int]) -> tuple[int, int, int]:
    sizes = tuple(value) if isinstance(value, Sequence | np.ndarray) else (value,)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{name} takes one to three sizes, not {len(sizes)}")
    x, y, z = (*(_index(size, name) for size in sizes), 1, 1)[:3]
    for size, limit in zip((x, y, z), limits, strict=True):
        if not 1 <= size <= limit:
            raise ValueError(f"{name} is {(x, y, z)}; each size must be from 1 to {limits}")
    return x, y, z


def _index(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} takes whole numbers, not {value!r}") from None
