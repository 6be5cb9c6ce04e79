"""Modules: all kernels and variables of a source, compiled at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from ..._errors import Unsupported
from ...ops import D, Facade, Request, Submission, op
from .kernel import Kernel
from .lanes import COMPILER, KERNELS
from .wire.messages import Disassemble

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...ops import DeviceView, Preparer
    from ._resident import Resident


@final
class KernelModule(Facade[D]):
    """Kernels and variables that belong together.

    Made by ``device.nvrtc.compile_module`` and ``load_module``. It is loaded when a kernel is first
    launched, and again after a rebuild, with the initial values of its variables. It is unloaded
    when the program has dropped it, its kernels and the refs of its variables.

    Attributes:
        names: the names of its kernels.
        variables: the names of its variables.
        log: messages of the compiler, assembler and linker.
    """

    def __init__(
        self, device: DeviceView, resident: Resident, kernels: tuple[Kernel[Any], ...], log: str
    ) -> None:
        self.home = device
        self._resident = resident
        self._kernels = {kernel.name: kernel for kernel in kernels}
        self.names: Final = tuple(self._kernels)
        self.variables: Final = tuple(resident.variables)
        self.log: Final = log

    def __repr__(self) -> str:
        return f"<KernelModule of {', '.join((*self.names, *self.variables))}>"

    @op
    def kernel(self, name: str) -> Request[Kernel[D]]:
        """Return one of the kernels, without sending a message.

        Args:
            name: as given to ``compile_module``.

        Raises:
            KeyError: it has no such kernel.
        """
        kernel = self._find(self._kernels, name, "kernel")

        def prepare(_preparer: Preparer) -> Submission[Kernel[D]]:
            return Submission(None, (), (), kernel.on(self.home))

        return Request(KERNELS, f"kernel {name}", prepare)

    @op
    def variable(self, name: str) -> Request[GpuRef]:
        """The memory of a ``__device__`` or ``__constant__`` variable (``cuModuleGetGlobal``).

        The buffer is like any other: ``get`` reads it, ``copy`` and ops write it. In the order of
        ops, each launch of the module's kernels reads its ``__constant__`` variables and writes
        the others. Therefore launches run one after the other while the program holds a ref of a
        ``__device__`` variable.

        Args:
            name: as given to ``compile_module``.

        Returns:
            The buffer, good for this generation; the same memory for every call.

        Raises:
            KeyError: the module was compiled without that variable.
        """
        return self._resident.map(self._find(self._resident.variables, name, "variable"))

    @op
    def sass(self) -> Request[str]:
        """The machine code of all kernels, as text (``cuobjdump -sass``).

        Returns:
            What the program of that name prints.

        Raises:
            LibraryMissing: cuobjdump or nvdisasm is not installed; both come with the toolkit.
            LibraryError: it refuses what the module is loaded from.
            Unsupported: the module has no machine code: on the CPU backend, and PTX, which the
                driver compiles.
        """
        resident = self._resident

        def prepare(preparer: Preparer) -> Submission[str]:
            if preparer.home.capabilities.python_kernels:
                raise Unsupported("on the CPU backend kernels have no machine code: ask CUDA")
            if b".address_size" in resident.image[:4096]:
                raise Unsupported("the module is PTX, which the driver compiles when it is loaded")
            return Submission(Disassemble(resident.image), (), (), finish=str)

        return Request(COMPILER, "nvrtc.sass", prepare)

    def _find(self, known: dict[str, Any], name: str, what: str) -> Any:
        found = known.get(name)
        if found is None:
            raise KeyError(
                f"the module has no {what} {name!r}; it has {', '.join(map(repr, known)) or 'none'}"
            )
        return found
