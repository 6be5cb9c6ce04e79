"""NVRTC's options, by names and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike, fspath
from typing import Any, Final, Literal

Define = str | int | None


def _flag(option: str, default: Any = None) -> Any:
    """A field for an option.

    Args:
        option: its name; ``{}`` is where the value goes. An option without one is there or not.
        default: the field's.
    """
    return field(default=default, metadata={"option": option})


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Options of NVRTC. None leaves the compiler's default.

    Attributes:
        std: the standard, such as ``"c++20"``; ``"c++17"`` by default.
        architecture: such as ``"sm_90a"``, for instructions of one architecture alone (``wgmma``);
            by default the device's.
        define: macros, with their values or None.
        undefine: macros that are not defined.
        include_path: folders of headers of one's own.
        pre_include: headers that are included before the source.
        use_fast_math: faster and less exact division, square roots, functions and subnormals.
        ftz: flush subnormal numbers to zero.
        prec_sqrt: round square roots right.
        prec_div: round quotients right.
        fmad: make products and sums one instruction.
        maxrregcount: registers that a thread may have.
        device_debug: debug information, and no optimisation.
        generate_line_info: the lines of a source, for profilers and ``compute-sanitizer``.
        dopt: optimise together with debug information.
        extra_device_vectorization: vectorise more.
        restrict: all pointers of kernels are ``__restrict__``.
        default_device: functions without an execution space are for the device.
        device_int128: 128-bit integers.
        builtin_initializer_list: whether ``std::initializer_list`` is known.
        builtin_move_forward: whether ``std::move`` and ``std::forward`` are known.
        modify_stack_limit: raise the compiler's own stack.
        minimal: leave out most built-in declarations, for short compiling.
        device_stack_protector: look for stacks that overflow.
        split_compile: number of threads that optimise; 0 for all.
        jump_table_density: density in percent from which ``switch`` becomes a jump table.
        pch: keep and use precompiled headers. They lie in a folder for each content of the
            headers, since NVRTC does not check whether headers have changed.
        pch_dir: folder for them; by default that of this user's compiled kernels.
        create_pch: make this file of precompiled headers.
        use_pch: use this file of precompiled headers.
        pch_verbose: report why precompiled headers were not used.
        ptxas_options: options of the assembler, such as ``("-v",)`` to report registers and spills
            in the log.
        disable_warnings: no warnings.
        brief_diagnostics: errors without the line.
        diag_error: numbers of diagnostics that are errors.
        diag_suppress: numbers of diagnostics that are not reported.
        diag_warn: numbers of diagnostics that are warnings.
    """

    std: str | None = _flag("--std={}")
    architecture: str | None = _flag("--gpu-architecture={}")
    define: Mapping[str, Define] | None = _flag("--define-macro={}")
    undefine: Sequence[str] = _flag("--undefine-macro={}", ())
    include_path: Sequence[str | PathLike[str]] = _flag("--include-path={}", ())
    pre_include: Sequence[str] = _flag("--pre-include={}", ())
    use_fast_math: bool | None = _flag("--use_fast_math")
    ftz: bool | None = _flag("--ftz={}")
    prec_sqrt: bool | None = _flag("--prec-sqrt={}")
    prec_div: bool | None = _flag("--prec-div={}")
    fmad: bool | None = _flag("--fmad={}")
    maxrregcount: int | None = _flag("--maxrregcount={}")
    device_debug: bool | None = _flag("--device-debug")
    generate_line_info: bool | None = _flag("--generate-line-info")
    dopt: Literal["on"] | None = _flag("--dopt={}")
    extra_device_vectorization: bool | None = _flag("--extra-device-vectorization")
    restrict: bool | None = _flag("--restrict")
    default_device: bool | None = _flag("--device-as-default-execution-space")
    device_int128: bool | None = _flag("--device-int128")
    builtin_initializer_list: bool | None = _flag("--builtin-initializer-list={}")
    builtin_move_forward: bool | None = _flag("--builtin-move-forward={}")
    modify_stack_limit: bool | None = _flag("--modify-stack-limit={}")
    minimal: bool | None = _flag("--minimal")
    device_stack_protector: bool | None = _flag("--device-stack-protector={}")
    split_compile: int | None = _flag("--split-compile={}")
    jump_table_density: int | None = _flag("--jump-table-density={}")
    pch: bool | None = _flag("--pch")
    pch_dir: str | None = _flag("--pch-dir={}")
    create_pch: str | None = _flag("--create-pch={}")
    use_pch: str | None = _flag("--use-pch={}")
    pch_verbose: bool | None = _flag("--pch-verbose={}")
    ptxas_options: Sequence[str] = _flag("--ptxas-options={}", ())
    disable_warnings: bool | None = _flag("--disable-warnings")
    brief_diagnostics: bool | None = _flag("--brief-diagnostics={}")
    diag_error: Sequence[int] = _flag("--diag-error={}", ())
    diag_suppress: Sequence[int] = _flag("--diag-suppress={}", ())
    diag_warn: Sequence[int] = _flag("--diag-warn={}", ())

    def flags(self) -> tuple[str, ...]:
        """Return the options as texts for the compiler."""
        return tuple(
            flag
            for each in fields(self)
            for flag in _flags(each.name, each.metadata["option"], getattr(self, each.name))
        )


_SINGLE: Final = {
    **dict.fromkeys(("maxrregcount", "split_compile", "jump_table_density"), int),
    **dict.fromkeys(("std", "architecture", "dopt", "pch_dir", "create_pch", "use_pch"), str),
}


def _flags(name: str, option: str, value: Any) -> list[str]:
    if value is None:
        return []
    if name == "define":
        if not isinstance(value, Mapping):
            raise TypeError(f"define must map macros to values, not {value!r}")
        return [
            option.format(macro if given is None else f"{macro}={given}")
            for macro, given in value.items()
        ]
    kind = _SINGLE.get(name)
    if kind is not None:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(f"{name} must be {kind.__name__}, not {value!r}")
        return [option.format(value)]
    if isinstance(value, bool):
        if "{}" in option:
            return [option.format(str(value).lower())]
        return [option] if value else []
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a sequence or a bool, as its type says, not {value!r}")
    return [option.format(each if isinstance(each, int) else fspath(each)) for each in value]
