"""Modules: all kernels of a source in one image, linked with other parts if there are any."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from ...._errors import CompileError
from ....executors.compiler import (
    CUBINS,
    LINKABLE,
    NOWHERE,
    NvrtcProgram,
    launchable,
    load_nvrtc,
    not_launchable,
    nvrtc_version,
)
from ..wire.messages import Compiled, Entry
from ._precompiled import with_own_folder
from .includes import fingerprint, vendor_headers
from .linker import link, nvjitlink_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..wire.messages import Compile

_STANDARD: Final = re.compile(r"--?std\b.*")
_ARCHITECTURE: Final = re.compile(r"(?:--gpu-architecture|-arch)\s*=\s*(\S+)")

_ENTRY: Final = r"\.entry {}\(([^)]*)\)([^{{;]*)"
"""A kernel in PTX: its parameters and directives."""

_PARAMETER: Final = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>[busf]\d+)\b[^,\[]*(?:\[(?P<count>\d+)\])?"
)
_DIRECTIVE: Final = re.compile(r"\.(maxntid|reqntid|reqnctapercluster)\s+([\d, \t]+)")


def find_module(message: Compile, capability: tuple[int, int]) -> Compiled:
    """Like ``compile_module``, unless the same was compiled before and is on disk.

    Raises:
        CompileError, LibraryMissing, LibraryError, Unsupported: as ``compile_module``.
    """
    load_nvrtc()
    sources = [message.source, *(part.source for part in message.parts)]
    texts = [*sources, *(text for _, text in message.headers)]
    included = fingerprint(texts, message.options)
    message = with_own_folder(message, included)
    if included is None:
        return compile_module(message, capability)
    versions = [nvrtc_version(), nvjitlink_version() if message.parts else ()]
    key = msgspec.msgpack.encode(("module", versions, message, capability, included))
    kept = CUBINS.get(key)
    if kept is not None:
        found = msgspec.msgpack.decode(kept, type=Compiled)
        if all(launchable(found.image, entry.symbol) for entry in found.entries):
            return msgspec.structs.replace(found, kept=True)
    made = compile_module(message, capability)
    CUBINS.put(key, msgspec.msgpack.encode(made))
    return made


def compile_module(message: Compile, capability: tuple[int, int]) -> Compiled:
    """Compile a source with its kernels and variables, and link it with its parts.

    Returns:
        The image for the driver, and the names in it.

    Raises:
        CompileError: with the log, of the compiler or of the linker.
        LibraryMissing: NVRTC, nvJitLink or cuda-bindings is not installed.
        Unsupported: they do not support the device; or with these options NVRTC makes no image
            that a driver can load.
    """
    names = message.names
    what = f"kernel {names[0]!r}" if len(names) == 1 else "the module"
    with NvrtcProgram(message.source, f"{NOWHERE}kernel.cu", dict(message.headers)) as program:
        for name in names:
            program.expect(name)
        for name in message.variables:
            program.expect(f"&{name}")
        target = _target(program, message.options, capability)
        linked = LINKABLE if message.parts else ()
        log = program.compile(what, (*_flags(message.options, target), *linked))
        symbols = _lowered(program, names, "kernel", log)
        variables = _lowered(program, [f"&{name}" for name in message.variables], "variable", log)
        if message.parts:
            made, ptx = program.output("LTOIR"), ""
        else:
            text = program.output("PTX")
            ptx = text.rstrip(b"\0").decode(errors="replace")
            made = text if target.startswith("compute") else program.output("CUBIN")
    if message.parts:
        parts = [("kernel.cu", made)]
        for at, part in enumerate(message.parts):
            name = f"part{at}.cu"
            parts.append((name, part.image or _compile_part(part.source, name, message, target)))
        made, told = link(parts, target)
        log = "\n".join(filter(None, (log, told)))
    for name, symbol in zip(names, symbols, strict=True):
        if not launchable(made, symbol):
            raise not_launchable(message.options, name)
    entries = tuple(_entry(symbol, ptx) for symbol in symbols)
    return Compiled(made, entries, tuple(variables), log)


def link_image(image: bytes, capability: tuple[int, int]) -> bytes:
    """Link LTO-IR to an image for the driver.

    Raises:
        CompileError: with the linker's log.
        LibraryMissing: nvJitLink, NVRTC or cuda-bindings is not installed.
        Unsupported: they do not support the device.
    """
    with NvrtcProgram("", "none.cu") as program:
        target = program.architecture(capability)
    return link([("image", image)], target)[0]


def _compile_part(source: str, name: str, message: Compile, target: str) -> bytes:
    with NvrtcProgram(source, f"{NOWHERE}{name}", dict(message.headers)) as program:
        program.compile(f"part {name}", (*_flags(message.options, target), *LINKABLE))
        return program.output("LTOIR")


def _target(program: NvrtcProgram, options: Sequence[str], capability: tuple[int, int]) -> str:
    """Return the architecture to compile for: that of an option, or else of the device."""
    for option in options:
        found = _ARCHITECTURE.fullmatch(option.strip())
        if found is not None:
            return found[1]
    return program.architecture(capability)


def _flags(options: Sequence[str], target: str) -> Iterable[str]:
    """All options, the vendor's headers before the program's own."""
    yield f"--gpu-architecture={target}"
    if not any(_STANDARD.fullmatch(option.strip()) for option in options):
        yield "--std=c++17"
    yield from (f"--include-path={path}" for path in vendor_headers())
    yield from (option for option in options if not _ARCHITECTURE.fullmatch(option.strip()))


def _lowered(program: NvrtcProgram, names: Sequence[str], what: str, log: str) -> list[str]:
    found = []
    for name in names:
        lowered = program.lowered(name)
        if lowered is None:
            missing = f"the source has no {what} named {name.removeprefix('&')!r}"
            raise CompileError(f"{missing}\n{log}", log=log or missing)
        found.append(lowered)
    return found


def _entry(symbol: str, ptx: str) -> Entry:
    """Read the parameters and limits of a kernel from PTX."""
    found = re.search(_ENTRY.format(re.escape(symbol)), ptx)
    if found is None:
        return Entry(symbol)
    parameters = []
    for each in _PARAMETER.finditer(found[1]):
        size = int(each["type"][1:]) // 8 * int(each["count"] or 1)
        parameters.append((size, int(each["align"] or size)))
    told = {name: tuple(map(int, sizes.split(","))) for name, sizes in _DIRECTIVE.findall(found[2])}
    most, exact = told.get("maxntid"), told.get("reqntid")
    return Entry(
        symbol,
        tuple(parameters),
        0 if most is None else _product(most),
        None if exact is None else _three(exact),
        _three(told["reqnctapercluster"]) if "reqnctapercluster" in told else None,
    )


def _product(sizes: tuple[int, ...]) -> int:
    x, y, z = _three(sizes)
    return x * y * z


def _three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
