"""Modules: all kernels of a source in one image, linked with other parts if there are any.

Functions raise what the compiler and the linker raise: `CompileError` with a log, or
`LibraryMissing`.
"""

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
from ..wire._mangled import function_name
from ..wire.messages import CompiledCode, KernelEntry
from ._precompiled import with_own_folder
from .includes import fingerprint, vendor_headers
from .linker import link, nvjitlink_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..wire.messages import Compile, LinkImage

_RELOCATABLE: Final = "--relocatable-device-code=true"
"""Option for sources that refer to others, whose output is not loaded."""

_STANDARD: Final = re.compile(r"--?std\b.*")
_ARCHITECTURE: Final = re.compile(r"(?:--gpu-architecture|-arch)\s*=\s*(\S+)")
_BEFORE_CPP14: Final = re.compile(r"--?std\s*=\s*c\+\+(?:03|11)")

_SIGNATURE: Final = "\n\ntemplate <class atomr_F> __device__ char atomr_signature;\n"
"""C++ behind a source. The name of each instance contains the type that it is made for."""

_AMBIGUOUS: Final = "cannot determine which instance of overloaded function"

_ENTRY: Final = r"\.entry {}\(([^)]*)\)([^{{;]*)"
"""A kernel in PTX: its parameters and directives."""

_PARAMETER: Final = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>[busf]\d+)\b[^,\[]*(?:\[(?P<count>\d+)\])?"
)
_KERNELS: Final = re.compile(r"^\.visible \.entry (\w+)\(", re.MULTILINE)
"""Kernels in PTX that are no instances of templates."""

_CONSTANT: Final = re.compile(r"^(?:\.\w+ )*\.const \.align \d+ \.\w+ (\w+)", re.MULTILINE)
_DIRECTIVE: Final = re.compile(r"\.(maxntid|reqntid|reqnctapercluster)\s+([\d, \t]+)")


def find_module(message: Compile, capability: tuple[int, int]) -> CompiledCode:
    """Like ``compile_module``, unless the same was compiled before and is on disk."""
    load_nvrtc()
    sources = [message.source, *(part.source for part in message.parts)]
    texts = [*sources, *(text for _, text in message.headers)]
    included = fingerprint(texts, message.options)
    message = with_own_folder(message, included)
    if included is None:
        return compile_module(message, capability)
    versions = [nvrtc_version(), nvjitlink_version() if message.parts else ()]
    key = msgspec.msgpack.encode(("module", _SIGNATURE, versions, message, capability, included))
    kept = CUBINS.get(key)
    if kept is not None:
        found = msgspec.msgpack.decode(kept, type=CompiledCode)
        if all(launchable(found.image, entry.symbol) for entry in found.entries):
            return msgspec.structs.replace(found, kept=True)
    made = compile_module(message, capability)
    CUBINS.put(key, msgspec.msgpack.encode(made))
    return made


def compile_module(message: Compile, capability: tuple[int, int]) -> CompiledCode:
    """Compile a source with its kernels and variables, and link it with its parts.

    Returns:
        The image for the driver, and the names in it.

    Raises:
        Unsupported: they do not support the device; or with these options NVRTC makes no image
            that a driver can load.
    """
    names = message.names or _all_kernels(message, capability)
    what = f"kernel {names[0]!r}" if len(names) == 1 else "the module"
    signed = not any(_BEFORE_CPP14.fullmatch(option.strip()) for option in message.options)
    source = message.source + _SIGNATURE * signed
    types = [_of_type(f"decltype({name})") for name in names] if signed else []
    structs = [_of_type(f"void({name})") for name in message.structs] if signed else []
    with NvrtcProgram(source, f"{NOWHERE}kernel.cu", dict(message.headers)) as program:
        for name in (*names, *types, *structs):
            program.expect(name)
        for name in message.variables:
            program.expect(f"&{name}")
        target = _target(program, message.options, capability)
        linked = LINKABLE if message.parts else ()
        log = _compile(program, what, (*_flags(message.options, target), *linked))
        symbols = _lowered(program, names, "kernel", log)
        signatures = _lowered(program, types, "kernel", log)
        taking = _lowered(program, structs, "struct", log)
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
    entries = tuple(
        msgspec.structs.replace(_entry(symbol, ptx), type=name)
        for symbol, name in zip(symbols, signatures or [""] * len(symbols), strict=True)
    )
    constants = tuple(_CONSTANT.findall(ptx))
    return CompiledCode(
        *(made, entries, tuple(variables), log),
        names=tuple(names),
        structs=tuple(taking),
        constants=constants,
    )


def link_image(message: LinkImage, capability: tuple[int, int]) -> CompiledCode:
    """Link LTO-IR to an image for the driver, and read the declarations of its kernels.

    Returns:
        The image, with entries that have the types of the kernels.

    Raises:
        Unsupported: they do not support the device.
    """
    types = [_of_type(f"decltype({name})") for name in message.names]
    structs = [_of_type(f"void({name})") for name in message.structs]
    with NvrtcProgram(message.declarations + _SIGNATURE, "declarations.cu") as program:
        target = program.architecture(capability)
        if message.declarations:
            for name in (*types, *structs):
                program.expect(name)
            flags = (*_flags((), target.replace("sm_", "compute_")), _RELOCATABLE)
            log = _compile(program, "the text of declarations=", flags)
            types = _lowered(program, types, "kernel", log)
            structs = _lowered(program, structs, "struct", log)
        else:
            types, structs = [""] * len(types), []
    image = link([("image", message.image)], target)[0] if message.image else b""
    entries = tuple(
        KernelEntry(name, type=found) for name, found in zip(message.names, types, strict=True)
    )
    return CompiledCode(image, entries, (), "", structs=tuple(structs))


def _of_type(kind: str) -> str:
    """Return the name expression whose mangled name contains a type."""
    return f"&atomr_signature<{kind}>"


def _all_kernels(message: Compile, capability: tuple[int, int]) -> list[str]:
    """Return the names of all kernels of a source that are no templates.

    Raises:
        CompileError: the source does not compile, or has no such kernels; with the log.
    """
    with NvrtcProgram(message.source, f"{NOWHERE}kernel.cu", dict(message.headers)) as program:
        target = _target(program, message.options, capability).replace("sm_", "compute_")
        log = program.compile("the module", (*_flags(message.options, target), _RELOCATABLE))
        ptx = program.output("PTX").decode(errors="replace")
    names = filter(None, map(function_name, _KERNELS.findall(ptx)))
    found = [*dict.fromkeys(names)]
    if not found:
        missing = "the source has no kernels: name those that are templates, such as 'scale<float>'"
        raise CompileError(f"{missing}\n{log}", log=log or missing)
    return found


def _compile(program: NvrtcProgram, what: str, flags: Iterable[str]) -> str:
    """Compile a program, and tell what to do about a name of several functions."""
    try:
        return program.compile(what, flags)
    except CompileError as error:
        if _AMBIGUOUS not in error.log:
            raise
        advice = "name one function of several by a cast, such as '(void (*)(float*))scale'"
        raise CompileError(f"{error}\n{advice}", log=error.log) from None


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


def _entry(symbol: str, ptx: str) -> KernelEntry:
    """Read the parameters and limits of a kernel from PTX."""
    found = re.search(_ENTRY.format(re.escape(symbol)), ptx)
    if found is None:
        return KernelEntry(symbol)
    parameters = []
    for each in _PARAMETER.finditer(found[1]):
        size = int(each["type"][1:]) // 8 * int(each["count"] or 1)
        parameters.append((size, int(each["align"] or size)))
    told = {name: tuple(map(int, sizes.split(","))) for name, sizes in _DIRECTIVE.findall(found[2])}
    most, exact = told.get("maxntid"), told.get("reqntid")
    return KernelEntry(
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
