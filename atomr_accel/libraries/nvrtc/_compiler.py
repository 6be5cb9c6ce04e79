"""NVRTC by cuda-bindings: source in, cubin out. Needs no GPU."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec

from ..._errors import CompileError, LibraryError, LibraryMissing
from .._disk_cache import DiskCache

CUBINS: Final = DiskCache("cubins")
"""What was compiled by this user, so that neither rebuilds nor programs compile it again."""

_SEES_MORE: Final = re.compile(r"include|__DATE__|__TIME")
"""Where the result may depend on more than the text: other files, or the clock."""


class Compiled(NamedTuple):
    """A kernel for one kind of device.

    Attributes:
        image: the cubin.
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
    """
    nvrtc = load_nvrtc()
    if any(_SEES_MORE.search(text) for text in (source, *options)):
        return Compiled(*compile_cubin(source, name, options, capability))
    status, *version = nvrtc.nvrtcVersion()
    _check("nvrtcVersion", status)
    key = msgspec.msgpack.encode((version, source, name, options, capability))
    kept = CUBINS.get(key)
    if kept is not None:
        return Compiled(*msgspec.msgpack.decode(kept, type=tuple[bytes, str, str]), kept=True)
    made = compile_cubin(source, name, options, capability)
    CUBINS.put(key, msgspec.msgpack.encode(made))
    return Compiled(*made)


def compile_cubin(
    source: str, name: str, options: tuple[str, ...], capability: tuple[int, int]
) -> tuple[bytes, str, str]:
    """Compile a kernel for a compute capability.

    Returns:
        The cubin, the kernel's mangled name in it, and the compiler's log.

    Raises:
        CompileError: with the log.
        LibraryMissing: NVRTC or cuda-bindings is not installed.
    """
    nvrtc = load_nvrtc()
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    _check("nvrtcCreateProgram", status)
    try:
        (status,) = nvrtc.nvrtcAddNameExpression(program, name.encode())
        _check("nvrtcAddNameExpression", status)
        flags = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17"]
        flags += [f"--include-path={path}" for path in _include_paths()]
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
        return _text(nvrtc, program, "CUBIN", raw=True), lowered, log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _text(nvrtc: Any, program: Any, what: str, *, raw: bool = False) -> Any:
    status, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    _check(f"nvrtcGet{what}Size", status)
    # Not bytes, as in the vendor's examples: b" " * 1 is an object that all of Python shares.
    buffer = bytearray(size)
    (status,) = getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    _check(f"nvrtcGet{what}", status)
    return bytes(buffer) if raw else buffer.rstrip(b"\0 ").decode(errors="replace")


def _include_paths() -> list[str]:
    """Where ``cuda_fp16.h`` and its like are, if the toolkit's headers are installed."""
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
