"""NVRTC by cuda-bindings: source in, cubin or PTX out. Needs no GPU.

Without NVRTC or cuda-bindings its functions raise `LibraryMissing`. Source that does not compile
raises `CompileError` with the log.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, final

import msgspec

from .._errors import CompileError, LibraryError, LibraryMissing, Unsupported
from .._install import cuda_command
from .disk_cache import DiskCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CUBINS: Final = DiskCache("cubins")
"""Compiled code of this user, so that rebuilds and later programs do not compile it again."""

_SEES_MORE: Final = re.compile(r"include|__DATE__|__TIME")
"""Texts whose result may depend on more than themselves: on other files, or the clock."""

_SPLICE: Final = re.compile(r"\\\r?\n")
"""Lines that C++ joins, so that a word may be spread over them."""

_ELF: Final = b"\x7fELF"
_LINKED: Final = b"\2\0"
"""The type in an ELF file's head, at byte 16, if nothing has to be linked to it any more."""


class CompiledKernel(NamedTuple):
    """A kernel for one kind of device.

    Attributes:
        image: a cubin, or PTX for a device that this NVRTC does not know.
        lowered: the kernel's mangled name in it.
        log: the compiler's messages.
        kept: whether it was on disk.
    """

    image: bytes
    lowered: str
    log: str
    kept: bool = False


def load_nvrtc() -> Any:
    """cuda-bindings' NVRTC module, with the library behind it loaded."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise LibraryMissing(
            f"the vendor library nvrtc is not installed ({error}): {cuda_command()}",
            library="nvrtc",
        ) from error
    return nvrtc


def nvrtc_version() -> tuple[int, ...]:
    """Its release."""
    status, *version = load_nvrtc().nvrtcVersion()
    _check("nvrtcVersion", status)
    return tuple(version)


def find_cubin(
    source: str, name: str, options: tuple[str, ...], capability: tuple[int, int]
) -> CompiledKernel:
    """Like ``compile_cubin``, unless the same was compiled before and is on disk."""
    load_nvrtc()
    if any(_SEES_MORE.search(_SPLICE.sub("", text)) for text in (source, *options)):
        return CompiledKernel(*compile_cubin(source, name, options, capability))
    key = msgspec.msgpack.encode((nvrtc_version(), source, name, options, capability))
    kept = CUBINS.get(key)
    if kept is not None:
        found = CompiledKernel(
            *msgspec.msgpack.decode(kept, type=tuple[bytes, str, str]), kept=True
        )
        if launchable(found.image, found.lowered):
            return found
    made = compile_cubin(source, name, options, capability)
    CUBINS.put(key, msgspec.msgpack.encode(made))
    return CompiledKernel(*made)


def compile_cubin(
    source: str, name: str, options: tuple[str, ...], capability: tuple[int, int]
) -> tuple[bytes, str, str]:
    """Compile a kernel for a compute capability.

    Returns:
        What the driver loads, the kernel's mangled name in it, and the compiler's log.

    Raises:
        Unsupported: this NVRTC makes nothing for such a device; or an option has it make
            something else than what a driver can load.
    """
    with NvrtcProgram(source, "kernel.cu") as program:
        program.expect(name)
        target = program.architecture(capability)
        log = program.compile(
            f"kernel {name!r}", (f"--gpu-architecture={target}", *toolkit_flags(), *options)
        )
        lowered = program.lowered(name)
        if lowered is None:
            missing = f"the source has no kernel named {name!r}"
            raise CompileError(f"{missing}\n{log}", log=log or missing)
        image = program.output("PTX" if target.startswith("compute") else "CUBIN")
    if not launchable(image, lowered):  # whichever option it was
        raise not_launchable(options, name)
    return image, lowered, log


def compile_linkable(
    source: str, name: str, capability: tuple[int, int], include_paths: tuple[str, ...]
) -> bytes:
    """Compile functions that are linked to others later, for a compute capability (LTO-IR).

    Raises:
        Unsupported: this NVRTC makes nothing for such a device.
    """
    with NvrtcProgram(source, "operator.cu") as program:
        flags = [f"--gpu-architecture={program.architecture(capability)}", *LINKABLE]
        flags += [f"--include-path={path}" for path in include_paths]
        program.compile(f"operator {name!r}", (*flags, *toolkit_flags()))
        return program.output("LTOIR")


NOWHERE: Final = "/proc/0/"
"""Folder of sources, which never exists. NVRTC first looks for headers next to a source."""

LINKABLE: Final = ("-dlto", "--relocatable-device-code=true")
"""Options for LTO-IR."""


@final
class NvrtcProgram:
    """A source on its way through NVRTC."""

    def __init__(self, source: str, file: str, headers: Mapping[str, str] | None = None) -> None:
        self._nvrtc = nvrtc = load_nvrtc()
        texts = headers or {}
        status, self._program = nvrtc.nvrtcCreateProgram(
            source.encode(),
            file.encode(),
            len(texts),
            [text.encode() for text in texts.values()],
            [name.encode() for name in texts],
        )
        _check("nvrtcCreateProgram", status)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._nvrtc.nvrtcDestroyProgram(self._program)

    def architecture(self, capability: tuple[int, int]) -> str:
        """Return the architecture to compile for, so that a device can execute the result."""
        return _architecture(self._nvrtc, capability)

    def expect(self, name: str) -> None:
        """Register a name for ``lowered`` (``nvrtcAddNameExpression``)."""
        (status,) = self._nvrtc.nvrtcAddNameExpression(self._program, name.encode())
        _check("nvrtcAddNameExpression", status)

    def compile(self, what: str, flags: Iterable[str]) -> str:
        """Compile it; the log."""
        given = [flag.encode() for flag in flags]
        (status,) = self._nvrtc.nvrtcCompileProgram(self._program, len(given), given)
        text = self.output("ProgramLog").rstrip(b"\0 ").decode(errors="replace")
        log = text.replace(NOWHERE, "")
        if int(status) == 6:  # NVRTC_ERROR_COMPILATION
            raise CompileError(f"{what} does not compile:\n{log}", log=log)
        _check("nvrtcCompileProgram", status, log)
        return log

    def lowered(self, name: str) -> str | None:
        """Return the mangled form of a name; None if the output does not have it."""
        status, lowered = self._nvrtc.nvrtcGetLoweredName(self._program, name.encode())
        return None if int(status) else bytes(lowered).decode()

    def output(self, what: str) -> bytes:
        """Return an output of the compiler, such as ``"CUBIN"``; empty if it was not made."""
        status, size = getattr(self._nvrtc, f"nvrtcGet{what}Size")(self._program)
        _check(f"nvrtcGet{what}Size", status)
        # Not bytes, as in the vendor's examples: b" " * 1 is an object that all of Python shares.
        buffer = bytearray(size)
        (status,) = getattr(self._nvrtc, f"nvrtcGet{what}")(self._program, buffer)
        _check(f"nvrtcGet{what}", status)
        return bytes(buffer)


def not_launchable(options: Sequence[str], name: str) -> Unsupported:
    """Return the error for options whose output cannot be loaded by a driver."""
    return Unsupported(
        f"with the options {[*options]} the compiler makes nothing that a driver can load and "
        f"launch as {name!r}: leave out options for linking or for other kinds of output"
    )


def _architecture(nvrtc: Any, capability: tuple[int, int]) -> str:
    """Return the architecture to compile for, so that a device can execute the result."""
    status, known = nvrtc.nvrtcGetSupportedArchs()
    _check("nvrtcGetSupportedArchs", status)
    wanted = 10 * capability[0] + capability[1]
    if wanted in known:
        return f"sm_{wanted}"
    # The device is newer than the compiler. Its driver is not: it compiles PTX for it.
    older = [number for number in known if number < wanted]
    if not older:
        raise Unsupported(
            f"NVRTC {'.'.join(map(str, nvrtc_version()))} makes nothing for devices of compute "
            f"capability {capability[0]}.{capability[1]}, only from "
            f"{min(known) // 10}.{min(known) % 10} on; install an older release of it"
        )
    return f"compute_{max(older)}"


def launchable(image: bytes, lowered: str) -> bool:
    """Return whether a driver can load an image without linking, and it contains a kernel."""
    if image.startswith(_ELF):
        return image[16:18] == _LINKED and f".text.{lowered}\0".encode() in image
    return f".entry {lowered}(".encode() in image


def toolkit_flags() -> list[str]:
    """Options that all sources have: the standard, and where the toolkit's headers are."""
    return ["--std=c++17", *(f"--include-path={path}" for path in toolkit_headers())]


def toolkit_headers() -> list[str]:
    """Return the folders of ``cuda_fp16.h`` and the toolkit's other headers, if installed."""
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError:
        return []
    path = find_nvidia_header_directory("cudart")
    return [path] if path else []


def _check(call: str, status: Any, log: str = "") -> None:
    if int(status):
        name = getattr(status, "name", str(status))
        raise LibraryError(
            f"{call} returned {name} ({int(status)}){': ' if log else ''}{log}",
            library="nvrtc",
            call=call,
            status=int(status),
            status_name=name,
        )
