"""What the compiler's lane and the kernels' lane execute."""

from __future__ import annotations

from typing import Any, ClassVar

from ....wire import Message


class Compile(Message, frozen=True):
    """Compile CUDA C++ for this device.

    The result is ``(image, lowered name, log, whether it was kept on disk)``.
    """

    returns: ClassVar[Any] = tuple[bytes, str, str, bool]

    source: str
    name: str
    options: tuple[str, ...]


class Load(Message, frozen=True):
    """Make a compiled kernel launchable under a number.

    Attributes:
        kernel: the number.
        image: a cubin on CUDA, a pickled function on the CPU (empty: there is none).
        name: the kernel's name in the image.
    """

    prepares: ClassVar[bool] = True
    """Done once, when a program is recorded, not in its replays."""

    lasting: ClassVar[bool] = True

    kernel: int
    image: bytes
    name: str

    def undo(self) -> Unload:
        """What releases it."""
        return Unload(self.kernel)


class Unload(Message, frozen=True):
    """Release a kernel, if it is loaded."""

    kernel: int


class Array(Message, frozen=True):
    """A buffer as an argument."""

    address: int
    shape: tuple[int, ...]
    dtype: str


class Scalar(Message, frozen=True):
    """A value as an argument, by its bytes."""

    data: bytes
    dtype: str


class Launch(Message, frozen=True):
    """Launch a loaded kernel.

    Attributes:
        shared: bytes of dynamic shared memory.
    """

    kernel: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[Array | Scalar, ...]
