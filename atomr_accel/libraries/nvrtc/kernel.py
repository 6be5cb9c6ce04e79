"""Kernels that programs launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ..._errors import Unsupported
from ...arrays import GpuRef
from ...ops import D, Facade, Request, Submission, op
from .lanes import KERNELS
from .launching import Dim, LaunchWish, geometry
from .signature import Parameter, Position
from .structures import StructValue
from .tensor_map import TensorMap
from .texture import Surface, Texture
from .wire.messages import (
    ArrayArgument,
    DescribeFunction,
    KernelAttributes,
    KernelEntry,
    LaunchKernel,
    Occupancy,
    Scalar,
    StructArgument,
    SuggestBlock,
    SurfaceObject,
    TextureObject,
    TiledMap,
)
from .wire.twins import check_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...memory import Block
    from ...ops import DeviceView, Preparer
    from ._resident import Resident


Argument = GpuRef | complex | np.generic | StructValue | TensorMap | Texture | Surface | None
"""An argument of a kernel: a buffer for a pointer, a number for a value (``complex`` includes
float, int and bool), a struct by value, a tensor map, a texture, a surface."""


_Sent = ArrayArgument | Scalar | StructArgument | TiledMap | TextureObject | SurfaceObject


@final
class Kernel(Facade[D]):
    """A compiled kernel. Made by ``device.nvrtc.compile`` and ``KernelModule.kernel``.

    Attributes:
        name: as given to ``compile``.
        parameters: parameters of ``launch``, or None if no compiler has told them.
        log: the compiler's warnings.
        twin: the function that stands for it on the CPU backend, or None.
    """

    templated = True

    def __init__(
        self,
        device: DeviceView,
        resident: Resident,
        at: int,
        name: str,
        parameters: tuple[Parameter, ...] | None,
        *,
        entry: KernelEntry,
        log: str,
        twin: Callable[..., object] | None,
        guessed: tuple[np.dtype[np.void], ...] | None = None,
    ) -> None:
        self.home = device
        self.resident = resident
        self._at = at
        self.entry = entry
        self._runs = twin is not None or not device.capabilities.python_kernels
        self._guessed = guessed  # structs of a source that no compiler has seen; else None
        self._positions = None if parameters is None else _positions(parameters, entry.parameters)
        self._op_name = f"kernel {name}"
        self.name: Final = name
        self.parameters: Final = parameters
        self.log: Final = log
        self.twin: Final = twin

    def __repr__(self) -> str:
        arguments = ", ".join(p.text for p in self.parameters) if self.parameters else "..."
        return f"<Kernel {self.name}({arguments})>"

    @op
    def launch(
        self,
        grid: Dim | None,
        block: Dim,
        *args: Argument,
        shared: int = 0,
        elements: Dim | None = None,
        cluster: Dim | None = None,
        cooperative: bool = False,
        programmatic: bool = False,
        priority: int | None = None,
    ) -> Request[None]:
        """Launch the kernel and wait until it has finished.

        Vendor function: ``cuLaunchKernel``, or ``cuLaunchKernelEx`` for options that need it.

        Args:
            grid: blocks in x, y, z; one number or up to three. None if ``elements`` is given.
            block: threads of a block in x, y, z.
            *args: refs for pointers, None for null pointers, numbers for values, structs by value.
                Numbers become the declared type where they fit it. A ``cpu=`` function gets None.
            shared: bytes of dynamic shared memory. The launch opts in to more than 48 KiB itself.
            elements: smallest number of threads, in x, y, z, from which the grid is computed. If
                it is 0 along an axis, nothing is launched.
            cluster: blocks of a cluster in x, y, z, from compute capability 9.0 on: up to 8, or 16
                on devices that support it.
            cooperative: all blocks run at once and may wait for each other
                (``cooperative_groups::this_grid().sync()``).
            programmatic: the kernel may begin before the previous one in the queue has ended
                (programmatic dependent launch). It must wait for that one itself, by
                ``cudaGridDependencySynchronize()``; otherwise it may read data that is not yet
                written.
            priority: priority among kernels that wait for the device; lower goes first, about -5
                to 0.

        Raises:
            TypeError: the wrong number or types of arguments.
            ValueError: dimensions, clusters or shared memory beyond the limits of all devices, of
                this one, or of the kernel; a ref of another device.
            OverflowError: a number that does not fit its parameter.
            GpuRefSealed: a sealed ref for a pointer that is not ``const``.
            GpuRefStale: a ref of an older generation, or one that was freed.
            LibraryError: the driver refuses, such as a cooperative launch of more blocks than
                the device holds.
            Unsupported: on the CPU backend, a kernel without ``cpu=``; clusters on a device
                without them.
        """
        wish = LaunchWish(shared, elements, cluster, cooperative, programmatic, priority)
        return self.launch_request(grid, block, args, wish)

    @op
    def attributes(self) -> Request[KernelAttributes]:
        """Get the resources that the kernel uses (``cuFuncGetAttribute``).

        Returns:
            Registers, shared and local memory, and the limits of a launch.

        Raises:
            Unsupported: the device is the CPU backend.
        """
        return self._ask("attributes", DescribeFunction(self.resident.number, self._at))

    @op
    def occupancy(self, block: Dim, *, shared: int = 0, cluster: Dim | None = None) -> Request[int]:
        """Get the number of blocks or clusters that the device can run at a time.

        Vendor function: ``cuOccupancyMaxActiveBlocksPerMultiprocessor``, or with a cluster
        ``cuOccupancyMaxActiveClusters``.

        Args:
            block: threads of a block.
            shared: bytes of dynamic shared memory.
            cluster: blocks of a cluster.

        Returns:
            Blocks of one multiprocessor; with a cluster, clusters of the device.

        Raises:
            Unsupported: the device is the CPU backend; or has no clusters, and one is given.
        """
        wish = LaunchWish(shared, cluster=cluster)
        grid = 1 if cluster is None else cluster
        shape = geometry(grid, block, wish, self.entry, self.home.info)
        asked = None if cluster is None else self.entry.cluster
        if shape.options is not None:
            asked = shape.options.cluster
        message = Occupancy(self.resident.number, self._at, shape.block, shape.shared, asked)
        return self._ask("occupancy", message)

    @op
    def suggest_block(self, *, shared: int = 0) -> Request[tuple[int, int]]:
        """A launch that fills the device (``cuOccupancyMaxPotentialBlockSize``).

        Args:
            shared: bytes of dynamic shared memory.

        Returns:
            Blocks and threads of a block.

        Raises:
            Unsupported: on the CPU backend.
        """
        size = geometry(1, 1, LaunchWish(shared), KernelEntry(""), self.home.info).shared
        return self._ask("suggest_block", SuggestBlock(self.resident.number, self._at, size))

    def _ask(self, what: str, message: Any) -> Request[Any]:
        """The request of something that the host knows."""
        resident = self.resident

        def prepare(preparer: Preparer) -> Submission[Any]:
            if preparer.home.capabilities.python_kernels:
                raise Unsupported(
                    f"{what} of kernel {self.name!r}: on the CPU backend a Python function stands "
                    "for it, which has none; ask a CUDA device"
                )
            kept = preparer.obtain(resident.loaded)
            return Submission(message, (kept,), (), finish=_itself)

        return Request(KERNELS, f"{what} of {self.name}", prepare)

    def launch_request(
        self, grid: Dim | None, block: Dim, args: tuple[Argument, ...], wish: LaunchWish
    ) -> Request[None]:
        """The request of ``launch``, its arguments in tuples."""
        resident = self.resident

        def prepare(preparer: Preparer) -> Submission[None]:
            shape = geometry(grid, block, wish, self.entry, preparer.home.info)
            if not self._runs:
                raise Unsupported(
                    f"kernel {self.name!r} must have a Python function on the CPU "
                    f"backend; give one: device.nvrtc.compile(source, {self.name!r}, "
                    "cpu=function)"
                )
            arguments, reads, writes = self.encoded(args, preparer)
            if shape.grid is None:
                return Submission(None, (), ())
            reads.append(preparer.obtain(resident.loaded))
            if resident.variables:
                for variable, memory in resident.used(preparer):
                    (reads if variable.constant else writes).append(memory)
            message = LaunchKernel(
                resident.number,
                self._at,
                shape.grid,
                shape.block,
                shape.shared,
                arguments,
                shape.options,
            )
            if not resident.prints:
                return Submission(message, reads, writes)
            device: Any = preparer.memory.owner
            return Submission(message, reads, writes, done=device.tell_output)

        return Request(KERNELS, self._op_name, prepare)

    def encoded(
        self, args: tuple[Argument, ...], preparer: Preparer
    ) -> tuple[tuple[_Sent, ...], list[Block], list[Block]]:
        """Return arguments as messages have them, and the blocks that they read and write."""
        positions = self._positions
        if positions is None:
            sizes = self.entry.parameters
            if sizes is not None and len(sizes) != len(args):
                raise TypeError(f"kernel {self.name} takes {len(sizes)} arguments, not {len(args)}")
            if self._guessed is not None and self.twin is not None:
                check_count(self.name, self.twin, self.resident.variables, len(args))
                args = tuple(
                    np.asarray(arg)[()] if isinstance(arg, complex | float | int) else arg
                    for arg in args
                )
            positions = _positions(tuple(map(self._guess, args)), sizes)
        if len(args) != len(positions):
            raise TypeError(
                f"kernel {self.name} takes {len(positions)} arguments "
                f"({', '.join(each.parameter.text for each in positions)}), not {len(args)}"
            )
        reads: list[Block] = []
        writes: list[Block] = []
        arguments = tuple(
            [
                position.array(arg, preparer.memory, reads, writes)
                if position.pointer
                else position.value(arg, preparer, reads, writes)
                for position, arg in zip(positions, args, strict=True)
            ]
        )
        return arguments, reads, writes

    def _guess(self, arg: Argument) -> Parameter:
        """Return the parameter of an argument if no compiler has told it."""
        if isinstance(arg, GpuRef):
            return Parameter("?", True, self._guessed is None or not arg.sealed, None)
        fitting = []
        if isinstance(arg, tuple):
            fitting = [each for each in self._guessed or () if len(each.names or ()) == len(arg)]
        return Parameter("?", False, False, None, fitting[0] if len(fitting) == 1 else None)


def launching(
    kernel: Kernel[Any], grid: Dim | None, block: Dim, *args: Argument, **options: Any
) -> Request[None]:
    """The request of ``kernel.launch``."""
    return kernel.launch_request(grid, block, args, LaunchWish(**options))


def _itself(answer: Any) -> Any:
    return answer


def _positions(
    parameters: tuple[Parameter, ...], sizes: tuple[tuple[int, int], ...] | None
) -> tuple[Position, ...]:
    return tuple(
        Position(at, parameter, None if sizes is None else sizes[at])
        for at, parameter in enumerate(parameters)
    )
