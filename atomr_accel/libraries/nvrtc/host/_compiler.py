"""NVRTC by cuda-bindings: source in, cubin or PTX out. Needs no GPU."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ...._errors import CompileError, LibraryError, LibraryMissing, Unsupported
from ...host._disk_cache import DiskCache

CUBINS: Final = DiskCache("cubins")
"""What was compiled by this user, so that neither rebuilds nor programs compile it again."""

_SEES_MORE: Final = re.compile(r"include|__DATE__|__TIME")
"""Where the result may depend on more than the text: other files, or the clock."""

_SPLICE: Final = re.compile(r"\\\r?\n")
"""Lines that C++ joins, so that a word may be spread over them."""

_ELF: Final = b"\x7fELF"
_LINKED: Final = b"\2\0"
"""The type in an ELF file's head, at byte 16, if nothing has to be linked to it any more."""


class Compiled(NamedTuple):
    """A kernel for one kind of device.

    Attributes:
        image: a cubin, or PTX for a device that this NVRTC does not know.
        lowered: the kernel's mangled name in it.
        log: what the compiler had to say.
        kept: whether it was on disk.
    """

    image: bytes
    lowered: str
    log: str
    kept: bool = False


def load_nvrtc() -> Any:
    """cuda-bindings' NVRTC module, with the library behind it loaded.

    Raises:
        LibraryMissing: one of them is not installed.
    """
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise LibraryMissing(
            "the vendor library nvrtc is not installed; "
            f"pip install 'atomr-accel[cuda12]' (or [cuda13]) brings it: {error}",
            library="nvrtc",
        ) from error
    return nvrtc


def find_cubin(
    source: str, name: str, options: tuple[str, ...], capability: tuple[int, int]
) -> Compiled:
    """Like ``compile_cubin``, unless the same was compiled before and is on disk.

    Raises:
        CompileError: with the log.
        LibraryMissing: NVRTC or cuda-bindings is not installed.
        Unsupported: as ``compile_cubin``.
    """
    nvrtc = load_nvrtc()
    if any(_SEES_MORE.search(_SPLICE.sub("", text)) for text in (source, *options)):
        return Compiled(*compile_cubin(source, name, options, capability))
    status, *version = nvrtc.nvrtcVersion()
    _check("nvrtcVersion", status)
    key = msgspec.msgpack.encode((version, source, name, options, capability))
    kept = CUBINS.get(key)
    if kept is not None:
        found = Compiled(*msgspec.msgpack.decode(kept, type=tuple[bytes, str, str]), kept=True)
        if _launchable(found.image, found.lowered):
            return found
    made = compile_cubin(source, name, options, capability)
    CUBINS.put(key, msgspec.msgpack.encode(made))
    return Compiled(*made)


def compile_cubin(
    source: str, name: str, options: tuple[str, ...], capability: tuple[int, int]
) -> tuple[bytes, str, str]:
    """Compile a kernel for a compute capability.

    Returns:
        What the driver loads, the kernel's mangled name in it, and the compiler's log.

    Raises:
        CompileError: with the log.
        LibraryMissing: NVRTC or cuda-bindings is not installed.
        Unsupported: this NVRTC makes nothing for such a device; or an option has it make
            something else than what a driver can load.
    """
    nvrtc = load_nvrtc()
    architecture = _architecture(nvrtc, capability)
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    _check("nvrtcCreateProgram", status)
    try:
        (status,) = nvrtc.nvrtcAddNameExpression(program, name.encode())
        _check("nvrtcAddNameExpression", status)
        flags = [f"--gpu-architecture={architecture}", "--std=c++17"]
        flags += [f"--include-path={path}" for path in toolkit_headers()]
        if "include" in source:
            flags += [f"--include-path={path}" for path in library_headers()]
        flags += options
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
        log = _text(nvrtc, program, "ProgramLog")
        if int(status) == 6:  # NVRTC_ERROR_COMPILATION
            raise CompileError(f"kernel {name!r} does not compile:\n{log}", log=log)
        _check("nvrtcCompileProgram", status, log)
        status, lowered = nvrtc.nvrtcGetLoweredName(program, name.encode())
        if int(status):
            missing = f"the source has no kernel named {name!r}"
            raise CompileError(f"{missing}\n{log}", log=log or missing)
        lowered = bytes(lowered).decode()
        what = "PTX" if architecture.startswith("compute") else "CUBIN"
        image = _text(nvrtc, program, what, raw=True)
        if not _launchable(image, lowered):  # whichever option it was
            raise Unsupported(
                f"with the options {[*options]} the compiler makes nothing that a driver can load "
                f"and launch as {name!r}: a kernel is compiled to a whole program, without a "
                "linker; leave out options for linking or for other kinds of output"
            )
        return image, lowered, log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def compile_linkable(
    source: str, name: str, capability: tuple[int, int], include_paths: tuple[str, ...]
) -> bytes:
    """Compile functions that are linked to others later, for a compute capability (LTO-IR).

    Args:
        source: CUDA C++ with ``extern "C"`` functions for the device.
        name: what to call it in errors.
        capability: of the device.
        include_paths: where headers are, beside the toolkit's own.

    Raises:
        CompileError: with the log.
        LibraryMissing: NVRTC or cuda-bindings is not installed.
        Unsupported: this NVRTC makes nothing for such a device.
    """
    nvrtc = load_nvrtc()
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), b"operator.cu", 0, [], [])
    _check("nvrtcCreateProgram", status)
    try:
        flags = [f"--gpu-architecture={_architecture(nvrtc, capability)}", "--std=c++17"]
        flags += ["-dlto", "--relocatable-device-code=true"]
        flags += [f"--include-path={path}" for path in (*include_paths, *toolkit_headers())]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
        log = _text(nvrtc, program, "ProgramLog")
        if int(status) == 6:  # NVRTC_ERROR_COMPILATION
            raise CompileError(f"operator {name!r} does not compile:\n{log}", log=log)
        _check("nvrtcCompileProgram", status, log)
        linkable: bytes = _text(nvrtc, program, "LTOIR", raw=True)
        return linkable
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _architecture(nvrtc: Any, capability: tuple[int, int]) -> str:
    """What to compile for, so that a device of some compute capability can execute it."""
    status, known = nvrtc.nvrtcGetSupportedArchs()
    _check("nvrtcGetSupportedArchs", status)
    wanted = 10 * capability[0] + capability[1]
    if wanted in known:
        return f"sm_{wanted}"
    # The device is newer than the compiler. Its driver is not: it compiles PTX for it.
    older = [number for number in known if number < wanted]
    if not older:
        status, *version = nvrtc.nvrtcVersion()
        raise Unsupported(
            f"NVRTC {'.'.join(map(str, version))} makes nothing for devices of compute capability "
            f"{capability[0]}.{capability[1]}, only from {min(known) // 10}.{min(known) % 10} on; "
            "install an older release of it"
        )
    return f"compute_{max(older)}"


def _launchable(image: bytes, lowered: str) -> bool:
    """Whether a driver can load an image as it is, and there is that kernel in it."""
    if image.startswith(_ELF):
        return image[16:18] == _LINKED and f".text.{lowered}\0".encode() in image
    return f".entry {lowered}(".encode() in image


def _text(nvrtc: Any, program: Any, what: str, *, raw: bool = False) -> Any:
    status, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    _check(f"nvrtcGet{what}Size", status)
    # Not bytes, as in the vendor's examples: b" " * 1 is an object that all of Python shares.
    buffer = bytearray(size)
    (status,) = getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    _check(f"nvrtcGet{what}", status)
    return bytes(buffer) if raw else buffer.rstrip(b"\0 ").decode(errors="replace")


def toolkit_headers() -> list[str]:
    """Where ``cuda_fp16.h`` and its like are, if the toolkit's headers are installed."""
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError:
        return []
    path = find_nvidia_header_directory("cudart")
    return [path] if path else []


def library_headers() -> list[str]:
    """Where ``curand_kernel.h`` is, and what it includes: libcu++.

    That is part of package cuda-cccl, and of toolkits.
    """
    try:
        from cuda.pathfinder import find_nvidia_header_directory

        found = [find_nvidia_header_directory("curand")]
        spec = find_spec("cuda.cccl")
    except ImportError:
        return []
    if spec is not None and spec.submodule_search_locations:
        found.append(str(Path(spec.submodule_search_locations[0]) / "headers" / "include"))
    else:
        with suppress(RuntimeError):  # older releases of pathfinder do not know it
            found.append(find_nvidia_header_directory("cccl"))
    return [path for path in found if path]


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
