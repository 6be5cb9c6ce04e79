"""Messages of the compiler's lane and the kernels' lane."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from ....wire import Address, Message


class KernelEntry(msgspec.Struct, frozen=True, array_like=True):
    """A kernel as the compiler has made it.

    Attributes:
        symbol: its mangled name in the image.
        parameters: bytes and alignment of each parameter; None if they are unknown.
        most_threads: threads of a block, by ``__launch_bounds__``; 0 without a limit.
        threads: a block's dimensions, by ``__block_size__``; None if they are free.
        cluster: a cluster's dimensions, by ``__cluster_dims__``; None if they are free.
        type: mangled name of a template's instance for its type; empty if it is unknown.
    """

    symbol: str
    parameters: tuple[tuple[int, int], ...] | None = None
    most_threads: int = 0
    threads: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None
    type: str = ""


UNCHECKED: Final = "NVRTC is not installed, so nothing was compiled or checked"
"""The log of sources that no compiler has seen."""


class CompiledCode(msgspec.Struct, frozen=True, array_like=True):
    """Compiled code for one kind of device.

    Attributes:
        image: a cubin, or PTX for a device that the compiler does not know; empty on the CPU.
        entries: the kernels, in the order of their names.
        variables: the mangled names of the variables, in the order of their names.
        log: the compiler's messages.
        kept: whether it was on disk.
        names: the names of the kernels.
        structs: mangled names of a template's instances for functions that take the structs.
        constants: the mangled names of variables that are surely ``__constant__``.
    """

    image: bytes
    entries: tuple[KernelEntry, ...]
    variables: tuple[str, ...]
    log: str
    kept: bool = False
    names: tuple[str, ...] = ()
    structs: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()


class LinkInput(msgspec.Struct, frozen=True, array_like=True):
    """A part to link with a source: another source, or a compiled image."""

    source: str = ""
    image: bytes = b""


class Compile(Message, frozen=True):
    """Compile CUDA C++ for this device.

    Attributes:
        source: its text.
        names: the kernels, as name expressions; empty for all that are no templates.
        options: the compiler's.
        variables: the variables, as name expressions without the ``&``.
        headers: texts that it may include, by name.
        parts: parts to link with it; without parts, nothing is linked.
        structs: types that kernels take by value.
    """

    returns: ClassVar[Any] = CompiledCode

    source: str
    names: tuple[str, ...]
    options: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    parts: tuple[LinkInput, ...] = ()
    structs: tuple[str, ...] = ()


class LinkImage(Message, frozen=True):
    """Link LTO-IR to an image for the driver (``nvJitLinkComplete``), and read declarations.

    Attributes:
        image: the LTO-IR; empty if nothing is linked.
        declarations: a source that declares kernels; empty if there is none.
        names: the kernels' names in it.
        structs: types that kernels take by value.
    """

    returns: ClassVar[Any] = CompiledCode

    image: bytes
    declarations: str = ""
    names: tuple[str, ...] = ()
    structs: tuple[str, ...] = ()


class Disassemble(Message, frozen=True):
    """Tell the machine code of an image as text."""

    returns: ClassVar[Any] = str

    image: bytes


class VariableContent(msgspec.Struct, frozen=True, array_like=True):
    """A module's variable, and its initial values."""

    name: str
    symbol: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Load(Message, frozen=True):
    """Make a module's kernels launchable under a number.

    Attributes:
        module: the number.
        image: the image for the driver; on the CPU a pickled tuple of functions (None for
            missing ones).
        symbols: the kernels' names in the image.
        variables: variables that programs use.
    """

    prepares: ClassVar[bool] = True
    """Done once, when a recording is recorded, not in its replays."""

    lasting: ClassVar[bool] = True

    module: int
    image: bytes
    symbols: tuple[str, ...]
    variables: tuple[VariableContent, ...] = ()

    def undo(self) -> Unload:
        """Return the message that unloads the module."""
        return Unload(self.module)


class Unload(Message, frozen=True):
    """Release a module, if it is loaded."""

    module: int


class MapVariable(Message, frozen=True):
    """Give the memory of a module's variable an address.

    Attributes:
        at: position among the variables with which it was loaded.
        slab: the number that addresses of it begin with.
    """

    module: int
    at: int
    slab: int


class KernelAttributes(msgspec.Struct, frozen=True, array_like=True):
    """Attributes of a kernel (``cuFuncGetAttribute``).

    Attributes:
        registers: number of registers of a thread.
        shared: bytes of static shared memory of a block.
        constant: bytes of constant memory.
        local: bytes of local memory of a thread: spilled registers and arrays.
        most_threads: largest number of threads of a block.
        most_shared: bytes of dynamic shared memory that a launch may use without opting in.
        ptx_version: version of PTX that it was compiled for, such as 90.
        binary_version: version of the machine code, such as 90.
    """

    registers: int
    shared: int
    constant: int
    local: int
    most_threads: int
    most_shared: int
    ptx_version: int
    binary_version: int


class DescribeFunction(Message, frozen=True):
    """Tell a kernel's attributes."""

    returns: ClassVar[Any] = KernelAttributes

    module: int
    function: int


class Occupancy(Message, frozen=True):
    """Tell how many blocks of a kernel one multiprocessor has room for at a time.

    With a cluster, how many clusters the device has room for.
    """

    returns: ClassVar[Any] = int

    module: int
    function: int
    block: tuple[int, int, int]
    shared: int
    cluster: tuple[int, int, int] | None = None


class SuggestBlock(Message, frozen=True):
    """Tell blocks and threads of a block with which a kernel fills the device."""

    returns: ClassVar[Any] = tuple[int, int]

    module: int
    function: int
    shared: int


class ArrayArgument(Message, frozen=True):
    """A buffer as an argument."""

    address: Address
    shape: tuple[int, ...]
    dtype: str


class Scalar(Message, frozen=True):
    """A value as an argument, by its bytes.

    Attributes:
        dtype: the dtype's name; empty for a null pointer.
    """

    data: bytes
    dtype: str


NULL: Final = Scalar(bytes(8), "")
"""A null pointer as an argument."""


class StructArgument(Message, frozen=True):
    """A struct by value as an argument, by its bytes.

    Attributes:
        fields: its NumPy dtype, as ``numpy.lib.format`` writes it.
    """

    data: bytes
    fields: str


class TiledMap(Message, frozen=True):
    """A tensor map as an argument, of 128 bytes (``cuTensorMapEncodeTiled``).

    Attributes:
        address: address of the array.
        kind: the vendor's number for the dtype.
        shape: shape of the array, outermost first; it is contiguous.
        box: shape of the elements that are moved at a time.
        steps: step between the elements taken along each axis.
        swizzle, promotion, fill: the vendor's values.
    """

    address: Address
    dtype: str
    kind: int
    shape: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int
    promotion: int
    fill: int


class TextureObject(Message, frozen=True):
    """A texture as an argument (``cuTexObjectCreate``), of memory or of a CUDA array.

    Attributes:
        address: address of the memory; 0 for a CUDA array.
        array: number of the CUDA array, or 0.
        shape: shape of the array.
        dtype: dtype of a channel.
        extent: texels along each axis, outermost first.
        format: the vendor's number for a channel's type.
        channels: number of channels of a texel.
        modes: the vendor's address mode of each axis, innermost first.
        linear: whether neighbouring texels are weighed.
        flags: the vendor's flags.
        border: value beyond the edges, for modes that use it.
    """

    address: Address
    array: int
    shape: tuple[int, ...]
    dtype: str
    extent: tuple[int, ...]
    format: int
    channels: int
    modes: tuple[int, ...]
    linear: bool
    flags: int
    border: tuple[float, ...]


class SurfaceObject(Message, frozen=True):
    """A surface as an argument (``cuSurfObjectCreate``), of a CUDA array."""

    array: int


class MakeArray(Message, frozen=True):
    """Make a CUDA array (``cuArray3DCreate``) if it does not exist, and copy an array into it.

    Attributes:
        array: its number.
        address: address of the array that is copied.
        extent, format, channels: as for a texture.
        surface: whether kernels may write to it.
    """

    array: int
    address: Address
    shape: tuple[int, ...]
    dtype: str
    extent: tuple[int, ...]
    format: int
    channels: int
    surface: bool


class FreeArray(Message, frozen=True):
    """Release a CUDA array, if it is there."""

    array: int


class CopyArray(Message, frozen=True):
    """Copy between a CUDA array and a buffer of its shape."""

    array: int
    address: Address
    to_array: bool


class LaunchOptions(msgspec.Struct, frozen=True, array_like=True):
    """Options of a launch that need ``cuLaunchKernelEx``."""

    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False
    programmatic: bool = False
    priority: int | None = None


class LaunchKernel(Message, frozen=True):
    """Launch a kernel of a module that is loaded.

    Attributes:
        function: position among the module's functions.
        shared: bytes of dynamic shared memory.
        options: None for a plain launch.
    """

    unchecked: ClassVar[bool] = True

    module: int
    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[
        ArrayArgument | Scalar | StructArgument | TiledMap | TextureObject | SurfaceObject, ...
    ]
    options: LaunchOptions | None = None
