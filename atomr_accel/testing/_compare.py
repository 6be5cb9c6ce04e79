"""Kernels and the Python functions that stand for them, on the same random input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np
import trio

from .._errors import said_of
from ..arrays import GpuRef
from ..libraries.nvrtc.kernel import Kernel
from ..libraries.nvrtc.launching import LaunchWish, geometry
from ..libraries.nvrtc.tensor_map import TensorMap
from ..libraries.nvrtc.texture import Surface, Texture
from ..libraries.nvrtc.wire.messages import Scalar, StructArgument
from ..libraries.nvrtc.wire.twins import twin_function, value_of
from ..ops import perform
from ..wire.options import count, real, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..device import Device
    from ..libraries.nvrtc.kernel import Argument
    from ..libraries.nvrtc.launching import Dim
    from ..libraries.nvrtc.signature import Parameter

    Array = np.ndarray[Any, np.dtype[Any]]

_ULPS: Final = 64
"""Default difference of results that is accepted, in units in the last place."""

_WHOLE: Final = 100
"""Random whole numbers are from 0 to less than this."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences between the results of a kernel and its function.

    Attributes:
        differences: the largest difference of each buffer that the kernel writes, by its
            position and type, and of each variable of its module, by its name.
        rounds: the number of inputs that were tried.
    """

    differences: dict[str, float]
    rounds: int


async def compare(
    device: Device,
    kernel: Kernel[Any],
    grid: Dim | None,
    block: Dim,
    *args: Argument | np.ndarray[Any, Any] | Sequence[int],
    shared: int = 0,
    elements: Dim | None = None,
    cluster: Dim | None = None,
    cooperative: bool = False,
    rounds: int = 1,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
) -> Comparison:
    """Run a kernel and its CPU function, and compare their results.

    On CUDA the kernel runs on the device, and its function here. On the CPU backend the function
    runs in the host as well, which checks that it can be pickled and depends only on its arguments.
    All buffers hold random numbers first, even those that are only written.

    Args:
        device: the device of the kernel.
        kernel: a kernel compiled with ``cpu=``.
        grid: as for ``launch``.
        block: as for ``launch``.
        *args: the arguments of the kernel. For a pointer, give the shape of a buffer of random
            numbers of the declared dtype, or an array with its content. Random whole numbers are
            from 0 to 99, so they can index 100 elements. Without NVRTC, on the CPU backend, give
            arrays, because nothing tells the pointers. For a value, give an argument of
            ``launch``.
        shared: as for ``launch``.
        elements: as for ``launch``.
        cluster: as for ``launch``.
        cooperative: as for ``launch``.
        rounds: the number of inputs to try, each with other random numbers.
        seed: the seed of the random numbers.
        rtol: the accepted difference, relative to the function's result; by default 64 units in the
            last place, and 0 for whole numbers.
        atol: the absolute difference that is accepted in addition; ``rtol`` by default.

    Returns:
        The differences.

    Raises:
        AssertionError: the results differ by more; or one of the two has changed a ``const``
            buffer.
        TypeError: an argument of another type; or a ``GpuRef``, ``TensorMap``, ``Texture`` or
            ``Surface``, because ``compare`` makes the buffers.
        ValueError: the kernel has no function; ``rounds`` is less than 1, or a tolerance less than
            0.
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(f"compare takes a kernel, of device.nvrtc, not {said_of(kernel)}")
    rounds, seed = count(rounds, "rounds"), whole(seed, "seed", 0)
    rtol = None if rtol is None else real(rtol, "rtol", least=0, infinity=True)
    atol = None if atol is None else real(atol, "atol", least=0, infinity=True)
    if kernel.twin is None:
        raise ValueError(f"kernel {kernel.name!r} has no function: give one as cpu=")
    wish = LaunchWish(shared, elements, cluster, cooperative)
    differences: dict[str, float] = {}
    for at in range(rounds):
        generator = np.random.default_rng((seed, at))
        contents = _contents(kernel, args, generator)
        for name, there, here in await _both(device, kernel, grid, block, contents, wish):
            found = _difference(name, there, here, rtol, atol)
            differences[name] = max(found, differences.get(name, 0.0))
    return Comparison(differences, rounds)


def _contents(
    kernel: Kernel[Any], args: Sequence[Any], generator: np.random.Generator
) -> list[Any]:
    """The arguments of one round, arrays for buffers."""
    if any(isinstance(arg, GpuRef | TensorMap | Texture | Surface) for arg in args):
        raise TypeError(
            "compare makes buffers itself: it takes shapes and arrays, no GpuRef or TensorMap, and "
            "no Texture or Surface"
        )
    parameters = kernel.parameters
    if parameters is None:
        return [*args]
    if len(args) != len(parameters):
        raise TypeError(f"kernel {kernel.name} takes {len(parameters)} arguments, not {len(args)}")
    return [
        _content(arg, parameter, at, generator) if parameter.pointer else arg
        for at, (arg, parameter) in enumerate(zip(args, parameters, strict=True))
    ]


def _content(arg: Any, parameter: Parameter, at: int, generator: np.random.Generator) -> Array:
    """Return the initial content of a buffer."""
    if isinstance(arg, np.ndarray):
        return arg
    dtype = parameter.dtype
    if dtype is None:
        raise TypeError(
            f"argument {at} ('{parameter.text}') takes an array, since the source does not tell of "
            "which dtype"
        )
    match dtype.kind:
        case "b":
            drawn: Array = generator.integers(0, 2, arg)
        case "i" | "u":
            drawn = generator.integers(0, _WHOLE, arg)
        case "c":
            drawn = generator.standard_normal(arg) + 1j * generator.standard_normal(arg)
        case _:
            drawn = generator.standard_normal(arg)
    return np.asarray(drawn).astype(dtype)


async def _both(
    device: Device,
    kernel: Kernel[Any],
    grid: Dim | None,
    block: Dim,
    contents: Sequence[Any],
    wish: LaunchWish,
) -> list[tuple[str, Array, Array]]:
    """Return name, device result and CPU result of each buffer that was written."""
    assert kernel.twin is not None
    resident, core = kernel.resident, device.core
    refs = [await device.put(each) if _is_buffer(each) else each for each in contents]
    variables = {
        name: await perform(core, resident.map(variable))
        for name, variable in resident.variables.items()
    }
    shared = {name: np.array(await device.get(ref)) for name, ref in variables.items()}
    messages, _, _ = kernel.encoded(tuple(refs), core.first_try)
    await perform(core, kernel.launch_request(grid, block, tuple(refs), wish))

    shape = geometry(grid, block, wish, kernel.entry, device.info)
    here: list[Any] = [
        value_of(message) if isinstance(message, Scalar | StructArgument) else each.copy()
        for each, message in zip(contents, messages, strict=True)
    ]
    if shape.grid is not None:
        function = twin_function(kernel.twin, shared)
        await trio.to_thread.run_sync(function.call, shape.grid, shape.block, here, shared)

    compared: list[tuple[str, Array, Array]] = []
    parameters = kernel.parameters or (None,) * len(refs)
    for at, (content, own, ref, parameter) in enumerate(
        zip(contents, here, refs, parameters, strict=True)
    ):
        if not _is_buffer(content):
            continue
        there = await device.get(ref)
        name = f"argument {at}" if parameter is None else f"argument {at} ({parameter.text})"
        if parameter is None or parameter.written:
            compared.append((name, there, own))
            continue
        for who, found in (("kernel", there), ("function", own)):
            if found.tobytes() != content.tobytes():
                raise AssertionError(f"the {who} has changed '{name}', which is const")
    compared += [(name, await device.get(ref), shared[name]) for name, ref in variables.items()]
    return compared


def _is_buffer(content: object) -> bool:
    return isinstance(content, np.ndarray) and content.dtype.names is None


def _difference(
    name: str, there: Array, here: Array, rtol: float | None, atol: float | None
) -> float:
    """Return the largest difference of two arrays."""
    dtype = there.dtype
    exact = dtype.kind in "biu"
    if rtol is None:
        rtol = 0.0 if exact else _ULPS * float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    atol = rtol if atol is None else atol
    if exact and not rtol and not atol:
        same = there == here
        apart = np.where(same, 0.0, np.abs(there.astype("f8") - here.astype("f8")))
        wrong = ~same
    else:
        wide = np.complex128 if dtype.kind == "c" else np.float64
        one, other = there.astype(wide), here.astype(wide)
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        with np.errstate(invalid="ignore"):
            apart = np.abs(one - other)
        wrong = ~same & ~(apart <= atol + rtol * np.abs(other))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"'{name}' differs at {int(wrong.sum())} of {wrong.size} places, first at {list(at)}: "
            f"the kernel has {there[at]!r}, its function {here[at]!r} "
            f"(rtol={rtol:.3g}, atol={atol:.3g})"
        )
    return float(np.max(np.where(same, 0.0, apart), initial=0.0))
