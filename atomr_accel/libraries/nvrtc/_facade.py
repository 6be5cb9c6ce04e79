"""``device.nvrtc``: CUDA C++ compiled and launched at run time."""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import cloudpickle
import numpy as np

from ..._dtypes import NAMES, as_dtype
from ..._errors import LibraryMissing, Unsupported
from ..._install import cuda_command
from ...ops import D, Facade, Request, Submission, op
from ._options import CompileOptions
from ._resident import Resident, Variable
from .cuda_array import CudaArray, array_of
from .kernel import Kernel
from .lanes import COMPILER
from .module import KernelModule
from .signature import read_signature
from .structures import StructType, all_structured, assertions
from .wire.messages import (
    UNCHECKED,
    Compile,
    CompiledCode,
    KernelEntry,
    LinkImage,
    LinkInput,
    VariableContent,
)

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...ops import DeviceView, Preparer

_NOT_A_KERNEL: Final = re.compile(
    r"\s*--?(dlto|dlink-time-opt|optix-ir|fdevice-syntax-only|dc|device-c"
    r"|(rdc|relocatable-device-code)(\s*=\s*|\s+)true)\s*"
)
"""Options that have the compiler make something that must be linked, or nothing."""

_NUMBER: Final = re.compile(
    r"\s*--?(?:maxrregcount|split-compile|jump-table-density|diag-(?:error|suppress|warn))"
    r"(?:\s*=\s*|\s+)([-+]?\d+)\s*"
)
"""Options with a number. NVRTC ends its process if the number does not fit a C int."""

_MOST_CONTENT: Final = 16 << 20
"""Bytes that a module's variables may begin with: they are sent whenever it is loaded."""

_IMAGES: Final = {
    b"\x7fELF": "cubin",
    b"\x50\xed\x55\xba": "fatbin",
    b"\xedCN\x7f": "LTO-IR",
}
"""Kinds of images, by their first bytes. PTX is text."""

_RELOCATABLE: Final = b"\1\0"
"""The type in an ELF file's head, at byte 16, if something has to be linked to it."""

CpuFallback = Callable[..., object]
CpuFallbacks = CpuFallback | Mapping[str, CpuFallback]
"""Python functions that replace kernels on the CPU backend: one for all, or by names."""

_log = logging.getLogger("atomr_accel.nvrtc")


_OF_THIS_PACKAGE: Final = "// atomr_accel: "
"""Beginning of sources of this package, such as the faults of ``testing``: no program can fix them,
so none is warned about them."""


@dataclass(frozen=True, slots=True)
class NvrtcStatistics:
    """Numbers of compilations.

    Attributes:
        kernels: kernels and modules that were made.
        found: those that were on disk, and were not compiled again.
    """

    kernels: int
    found: int


@dataclass(frozen=True, slots=True)
class _ModulePlan:
    """A module before it is compiled: all that the program knows of it."""

    names: tuple[str, ...]
    source: str
    structs: Mapping[str, np.dtype[np.void]]
    variables: Mapping[str, np.ndarray[Any, Any]]
    cpu: CpuFallbacks | None
    pickled: bytes


@final
class Nvrtc(Facade[D]):
    """The run-time compiler. Compiling has a lane of its own and delays no launch.

    Compiled code is kept on disk, in ``$ATOMR_CACHE_DIR``, by default ``~/.cache/atomr-accel``.
    Later programs use it, and so does this one after a rebuild. Its key covers all that a source
    may include: headers in memory, all files in the folders that options name, and the vendor's
    headers. The former count by content, the vendor's by their release. A source is compiled each
    time if its result may depend on more, such as the clock or files with absolute paths.
    """

    def __init__(self, device: DeviceView) -> None:
        self.home = device
        self._compiled = self._found = 0

    @op
    def compile(
        self,
        source: str,
        name: str,
        *,
        cpu: CpuFallback | None = None,
        options: CompileOptions | Sequence[str] = (),
    ) -> Request[Kernel[D]]:
        """Compile a kernel (``nvrtcCompileProgram``).

        Args:
            source: CUDA C++ with a ``__global__`` function. The compiler tells its type, which
                determines the arguments of ``launch`` and the buffers it writes: declare pointers
                that are only read as ``const``. Without NVRTC, on the CPU backend, ``launch``
                writes all buffers that are not sealed.
            name: the function's name; for an instance of a template as in C++,
                ``"scale<float>"``; for one function of several a cast,
                ``"(void (*)(float*))scale"``.
            cpu: function to call instead of the kernel on the CPU backend, with NumPy arrays
                for pointers and NumPy scalars for values. Parameters called ``grid`` and
                ``block``, if it has them, get the launch's dimensions. It runs in the
                host, so it must be picklable by cloudpickle, and it cannot see the
                program's variables change.
            options: further options of the compiler: ``CompileOptions``, or its own texts, such
                as ``"--use_fast_math"``. Options for other output than a whole program, such as
                ``"-dlto"``, are refused.

        Returns:
            The kernel, good for all generations: after a rebuild it loads itself again.

        Raises:
            CompileError: with the compiler's log.
            LibraryMissing: NVRTC is not installed.
            Unsupported: the output of these options cannot be launched, or the compiler makes
                none for this device.
            ValueError: text that is not valid Unicode, or contains a NUL; a number that an option
                cannot have.
        """
        if not all(isinstance(text, str) for text in (source, name)):
            raise TypeError("compile(source, name) takes the source and the name as str")
        message = Compile(source, (name,), _flags(options))
        _check_texts(source, name, *message.options)
        plan = self._plan((name,), source, {}, {}, cpu)

        def finish(answer: CompiledCode) -> Kernel[D]:
            return self._made(plan, answer)[1][0]

        return _compiling("nvrtc.compile", message, finish)

    @op
    def compile_module(
        self,
        source: str,
        names: Sequence[str] | None = None,
        *,
        cpu: CpuFallbacks | None = None,
        options: CompileOptions | Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        structs: Mapping[str, StructType] | None = None,
        variables: Mapping[str, np.ndarray[Any, Any]] | None = None,
        parts: Sequence[str | bytes] = (),
    ) -> Request[KernelModule[D]]:
        """Compile many kernels of one source, with the variables that they share.

        The vendor's headers are found where they are installed: those of the toolkit
        (``cuda_fp16.h``, ``mma.h``, ``cooperative_groups.h``), of package cuda-cccl (``cuda/std``,
        ``cub``), of cuRAND (``curand_kernel.h``) and of package nvidia-cutlass (``cute``).

        Args:
            source: CUDA C++.
            names: the kernels as in C++: ``"fill"``, ``"deep::scale<float, 4>"``. By default
                every ``__global__`` function that is not a template and that other sources can
                see; the source is then compiled twice.
            cpu: functions to call instead of the kernels on the CPU backend, as for ``compile``:
                by their names, or by the name of a template for all its instances. Parameters
                with the names of the module's variables get these as arrays.
            options: as for ``compile``.
            headers: texts that sources may include, by name.
            structs: the fields of C++ structs, as structured dtypes of NumPy or as
                ``ctypes.Structure``. Kernels take such structs by value, also as tuples. The
                source does not compile if its structs have another layout in memory;
                ``np.dtype(..., align=True)`` has that of C++.
            variables: ``__device__`` and ``__constant__`` variables that the program uses as refs
                (``KernelModule.variable``), with their values whenever the module is loaded; 16 MiB
                in all.
            parts: further sources and compiled images (LTO-IR, cubins, fatbins, PTX, libraries),
                which are linked with the source at link time (nvJitLink).

        Returns:
            The module, good for all generations: after a rebuild it loads itself again.

        Raises:
            CompileError: with the log of the compiler, or of the linker.
            LibraryMissing: NVRTC, or for parts nvJitLink, is not installed.
            Unsupported: the output of these options cannot be launched, or the compiler makes
                none for this device.
            ValueError: names that repeat, or no names; texts and options as for ``compile``.
        """
        if not isinstance(source, str):
            raise TypeError(f"source must be str, not {type(source).__name__}")
        fields = all_structured({} if structs is None else structs)
        contents = _contents(variables)
        texts = _headers(headers)
        plan = self._plan(names, source, fields, contents, cpu)
        checked = "\n".join([source, *assertions(fields, contents)])
        message = Compile(
            checked,
            plan.names,
            _flags(options),
            tuple(contents),
            tuple(texts.items()),
            _parts(parts),
            tuple(fields),
        )
        _check_texts(checked, *plan.names, *contents, *message.options, *texts, *texts.values())
        _check_texts(*(part.source or "" for part in message.parts))

        def finish(answer: CompiledCode) -> KernelModule[D]:
            return self._module(plan, answer)

        return _compiling("nvrtc.compile_module", message, finish)

    @op
    def load_module(
        self,
        image: bytes | str,
        names: Sequence[str] | Mapping[str, str],
        *,
        cpu: CpuFallbacks | None = None,
        declarations: str = "",
        structs: Mapping[str, StructType] | None = None,
        variables: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> Request[KernelModule[D]]:
        """Load a compiled image: a cubin, a fatbin, PTX or LTO-IR.

        Args:
            image: its bytes; PTX may be text.
            names: the kernels' names in it: those of ``extern "C"`` functions, or mangled ones. A
                mapping gives the program's names, with the names in the image.
            cpu: as for ``compile_module``.
            declarations: CUDA C++ that declares all of the kernels, and so the arguments of
                ``launch``, with the structs that they take; NVRTC reads it. Without declarations,
                ``launch`` takes refs, NumPy's scalars and structs, and counts all buffers as
                written.
            structs: as for ``compile_module``, but without a check of their layout in memory.
            variables: as for ``compile_module``, by their names in the image.

        Returns:
            The module, good for all generations.

        Raises:
            CompileError: LTO-IR that does not link, or declarations that do not compile; with
                the log.
            LibraryMissing: the image is LTO-IR, and nvJitLink is not installed; or there are
                declarations, and NVRTC is not installed.
            ValueError: the image is of another kind, or lacks a kernel.
        """
        if not isinstance(names, Mapping) and not _are_texts(names):
            raise TypeError(f"names must be a sequence of str or a mapping of them, not {names!r}")
        symbols = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
        if not isinstance(declarations, str):
            raise TypeError(f"declarations must be str, not {type(declarations).__name__}")
        plan = self._plan(
            [*symbols],
            declarations,
            all_structured({} if structs is None else structs),
            _contents(variables),
            cpu,
        )
        _check_texts(declarations, *symbols, *symbols.values(), *plan.variables)
        kind, data = _image(image)
        for symbol in symbols.values():
            mark = {"cubin": f".text.{symbol}\0", "PTX": f".entry {symbol}("}.get(kind, "")
            if mark.encode() not in data:
                raise ValueError(f"the {kind} has no kernel named {symbol!r}")

        known = CompiledCode(data, tuple(map(KernelEntry, symbols)), (), "")

        def made(answer: CompiledCode) -> KernelModule[D]:
            entries = tuple(
                KernelEntry(symbol, type=each.type)
                for symbol, each in zip(symbols.values(), answer.entries, strict=True)
            )
            compiled = CompiledCode(
                *(answer.image or data, entries, tuple(plan.variables), answer.log, True),
                structs=answer.structs,
            )
            return self._module(plan, compiled)

        def prepare(preparer: Preparer) -> Submission[KernelModule[D]]:
            linked = kind == "LTO-IR" and not preparer.home.capabilities.python_kernels
            if not linked and not declarations:
                return Submission(None, (), (), made(known))
            structs = tuple(plan.structs) if declarations else ()
            message = LinkImage(data if linked else b"", declarations, tuple(symbols), structs)
            return Submission(message, (), (), finish=made)

        return Request(COMPILER, "nvrtc.load_module", prepare)

    @op
    def cuda_array(
        self, ref: GpuRef, *, channels: int = 1, surface: bool = False
    ) -> Request[CudaArray[D]]:
        """Copy an array into a CUDA array, for a ``Texture`` or ``Surface`` (``cuArray3DCreate``).

        Its memory is the driver's, and counts for no ``memory_limit``.

        Args:
            ref: contiguous, of one to three axes of texels: (u)int8, (u)int16, (u)int32, float16
                or float32. If it is sealed the CUDA array is made again after a fault.
            channels: number of channels of a texel: 1, 2, or 4; more than one are the last axis.
            surface: whether kernels may write to it.

        Returns:
            The CUDA array.

        Raises:
            ValueError: too many axes, or none; more texels along one than every device has.
            Unsupported: elements that texture units do not know.
        """
        return array_of(self.home, ref, channels, surface=surface)

    def statistics(self) -> NvrtcStatistics:
        """Return the numbers of compilations so far."""
        return NvrtcStatistics(self._compiled, self._found)

    def _plan(
        self,
        names: Sequence[str] | None,
        source: str,
        structs: Mapping[str, np.dtype[np.void]],
        variables: Mapping[str, np.ndarray[Any, Any]],
        cpu: CpuFallbacks | None,
    ) -> _ModulePlan:
        _check_twins(cpu)
        if names is None:
            return _ModulePlan((), source, structs, variables, cpu, b"")
        if not _are_texts(names):
            raise TypeError(f"names must be a sequence of str, not {names!r}")
        if not names:
            raise ValueError("names must not be empty; leave it out for all but templates")
        if len({*names}) != len(names):
            raise ValueError(f"names must not repeat, not {[*names]}")
        return _ModulePlan(tuple(names), source, structs, variables, cpu, self._pickled(cpu, names))

    def _pickled(self, cpu: CpuFallbacks | None, names: Sequence[str]) -> bytes:
        """Return the functions of kernels for a host that calls them; empty for other hosts."""
        twins = _twins(cpu, names)
        return cloudpickle.dumps(twins) if self.home.capabilities.python_kernels else b""

    def _module(self, plan: _ModulePlan, compiled: CompiledCode) -> KernelModule[D]:
        resident, kernels = self._made(plan, compiled)
        return KernelModule(self.home, resident, kernels, compiled.log)

    def _made(
        self, plan: _ModulePlan, compiled: CompiledCode
    ) -> tuple[Resident, tuple[Kernel[D], ...]]:
        """Return the resident module and the kernels of a compilation."""
        self._compiled += 1
        self._found += compiled.kept
        unchecked = compiled.log == UNCHECKED
        names = plan.names or compiled.names
        symbols = tuple(entry.symbol for entry in compiled.entries)
        if unchecked and not plan.source.startswith(_OF_THIS_PACKAGE):
            _warn_unchecked()
        if not names:  # none were given, and no compiler has found them
            names = symbols = tuple(plan.cpu) if isinstance(plan.cpu, Mapping) else ()
        if not names:
            raise LibraryMissing(
                "names must be given if NVRTC is not installed, not left out; name the kernels, "
                f"or install it: {cuda_command('compile')}",
                library="nvrtc",
            )
        twins = _twins(plan.cpu, names)
        variables = tuple(
            Variable(
                VariableContent(name, symbol, NAMES[array.dtype], array.shape, array.tobytes()),
                array.dtype,
                constant=symbol in compiled.constants,
            )
            for (name, array), symbol in zip(
                plan.variables.items(), compiled.variables, strict=True
            )
        )
        prints = "printf" in plan.source or b"vprintf" in compiled.image
        image = plan.pickled or self._pickled(plan.cpu, names) or compiled.image
        resident = Resident(names[0], image, symbols, variables, prints=prints)
        kernels: tuple[Kernel[D], ...] = tuple(
            Kernel(
                self.home,
                resident,
                at,
                name,
                read_signature(entry.type, plan.structs, compiled.structs),
                entry=entry,
                log=compiled.log,
                twin=twins[at],
                guessed=tuple(plan.structs.values()) if unchecked else None,
            )
            for at, (name, entry) in enumerate(
                zip(names, compiled.entries or map(KernelEntry, names), strict=True)
            )
        )
        return resident, kernels


@functools.cache  # once for each process
def _warn_unchecked() -> None:
    _log.warning(
        "CUDA sources are not checked on the CPU backend, since NVRTC is not installed: %s",
        cuda_command("compile"),
    )


def _compiling(name: str, message: Compile, finish: Callable[[CompiledCode], Any]) -> Request[Any]:
    return Request(COMPILER, name, lambda _preparer: Submission(message, (), (), finish=finish))


def _flags(options: CompileOptions | Sequence[str]) -> tuple[str, ...]:
    """Options as the compiler takes them, and none that it must not have."""
    flags = options.flags() if isinstance(options, CompileOptions) else options
    if not _are_texts(flags):
        raise TypeError(
            f"options must be a sequence of str, as NVRTC takes them, or CompileOptions, not "
            f"{options!r}"
        )
    for option in (*flags, *map(" ".join, itertools.pairwise(flags))):
        if _NOT_A_KERNEL.fullmatch(option):
            raise Unsupported(
                f"option {option!r} makes output that must be linked, or none; a kernel is "
                "compiled to a whole program: leave the option out, and give what is to be linked "
                "as parts= of compile_module"
            )
        number = _NUMBER.fullmatch(option)
        if number is not None and not 0 <= int(number[1]) < 2**31:
            raise ValueError(f"option {option!r} takes a number from 0 to {2**31 - 1}")
    return tuple(flags)


def _check_texts(*texts: str) -> None:
    for text in texts:
        text.encode()  # a surrogate would only be noticed when the message is sent
        if "\0" in text:
            raise ValueError(
                f"{text[:40]!r} has a NUL at {text.index(chr(0))}: nothing behind it would be read"
            )


def _are_texts(values: object) -> bool:
    """Return whether a value is a sequence of texts, and not a single text."""
    return (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and all(isinstance(value, str) for value in values)
    )


def _headers(headers: object) -> dict[str, str]:
    given = {} if headers is None else headers
    if not isinstance(given, Mapping) or not _are_texts([*given, *given.values()]):
        raise TypeError("headers must map names to texts, both str")
    return dict(given)


def _parts(parts: Sequence[str | bytes]) -> tuple[LinkInput, ...]:
    if isinstance(parts, str | bytes) or not isinstance(parts, Sequence):
        raise TypeError("parts must be a sequence of sources (str) and images (bytes)")
    made = []
    for part in parts:
        if not isinstance(part, str | bytes):
            raise TypeError(f"a part must be a source (str) or an image (bytes), not {part!r}")
        made.append(LinkInput(source=part) if isinstance(part, str) else LinkInput(image=part))
    return tuple(made)


def _contents(
    variables: object,
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the initial values of variables, as arrays of dtypes that devices have."""
    if variables is None:
        return {}
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise TypeError(f"variables must map names to arrays, not {variables!r}")
    made = {}
    for name, array in variables.items():
        if not isinstance(array, np.ndarray):
            raise TypeError(f"variables[{name!r}] must be a NumPy array, not {array!r}")
        made[name] = np.array(array, as_dtype(array.dtype), order="C")
        if not array.size:
            raise ValueError(f"variables[{name!r}] has no elements")
    nbytes = sum(array.nbytes for array in made.values())
    if nbytes > _MOST_CONTENT:
        raise ValueError(f"variables take {nbytes} bytes; {_MOST_CONTENT} are the most")
    return made


def _twins(cpu: CpuFallbacks | None, names: Sequence[str]) -> tuple[CpuFallback | None, ...]:
    """The function of each kernel: its own, or that of all instances of its template."""
    if cpu is None:
        return (None,) * len(names)
    if isinstance(cpu, Mapping):
        plain = {name: name.partition("<")[0].strip() for name in names}
        unknown = {*cpu} - {*names} - {*plain.values()}
        if unknown:
            raise ValueError(f"cpu names kernels that there are not: {sorted(map(str, unknown))}")
        twins = tuple(cpu.get(name, cpu.get(plain[name])) for name in names)
    else:
        twins = (cpu,) * len(names)
    return twins


def _check_twins(cpu: CpuFallbacks | None) -> None:
    for twin in cpu.values() if isinstance(cpu, Mapping) else (cpu,):
        if twin is not None and not callable(twin):
            raise TypeError(f"cpu must be callable, not {type(twin).__name__}")
        if inspect.iscoroutinefunction(twin) or inspect.isgeneratorfunction(twin):
            raise TypeError(
                f"cpu is {getattr(twin, '__name__', twin)!r}, which would not run when it is "
                "called; it must be an ordinary function"
            )


def _image(image: object) -> tuple[str, bytes]:
    """Return the kind of an image, and its bytes as the driver takes them."""
    if isinstance(image, str):
        image = image.encode()
    if not isinstance(image, bytes):
        raise TypeError(f"image must be bytes, or PTX as str, not {type(image).__name__}")
    for magic, kind in _IMAGES.items():
        if image.startswith(magic):
            if kind == "cubin" and image[16:18] == _RELOCATABLE:
                raise ValueError(
                    "the cubin is relocatable: give it as one of the parts= of compile_module, "
                    "which are linked"
                )
            return kind, image
    if re.search(rb"^\s*\.version\s", image, re.MULTILINE):
        return "PTX", image if image.endswith(b"\0") else image + b"\0"
    raise ValueError(f"image is no cubin, fatbin, PTX or LTO-IR; it begins with {image[:8]!r}")
