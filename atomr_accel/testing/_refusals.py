"""Wrong calls of a declared op, each of which has to be refused before anything is sent."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from .._dtypes import DTYPES
from .._errors import GpuRefSealed, GpuRefStale
from ..arrays import GpuRef
from ..ops import DeclaredOp
from ..wire.operations import In, Out

if TYPE_CHECKING:
    from ..device import Device

_WRONG_VALUES = {bool: ("no", TypeError), int: (1.5, TypeError), float: ("one", TypeError)}

WrongCall = tuple[str, dict[str, Any], type[Exception]]
"""A description of the mistake, the arguments that replace valid ones, and the error."""


async def check_refusals(device: Device, op: str, **valid: Any) -> list[str]:
    """Call a declared op with wrong arguments; every call must raise before anything is sent.

    The wrong calls follow from its declaration: other dtypes, ranks, extents and alignments, refs
    that are freed or sealed, results in the memory of operands, and values of another kind.

    Args:
        device: the device.
        op: the library and the op, such as ``"sparse.gather"``.
        **valid: arguments of a valid call, which is made first.

    Returns:
        A description of the mistake in each of the calls.

    Raises:
        TypeError: the op is not made by ``op_of``.
        AssertionError: a wrong call raised another error or none, or something was sent.
    """
    library, _, name = op.partition(".")
    facade = getattr(device, library)
    declared = inspect.getattr_static(type(facade), name, None)
    if not isinstance(declared, DeclaredOp):
        raise TypeError(f"op must name one that op_of has made, not {op!r}")
    method = getattr(facade, name)
    result = await method(**valid)
    made = iter(result if isinstance(result, tuple) else (result,))
    refs = {
        each: next(made) if isinstance(note, Out) else valid.get(each)
        for each, note in declared.kind.operands.items()
    }
    given = {**valid, **{each: ref for each, ref in refs.items() if ref is not None}}
    refused = []
    for what, wrong, error in await _cases(device, declared, refs):
        before = _sent(device, declared.lane.name)
        try:
            await method(**{**given, **wrong})
        except error:
            pass
        except Exception as other:
            raise AssertionError(f"{op} with {what} must raise {error.__name__}") from other
        else:
            raise AssertionError(f"{op} with {what} must raise {error.__name__}, not succeed")
        assert _sent(device, declared.lane.name) == before, f"{op} with {what} was sent"
        refused.append(what)
    return refused


def _sent(device: Device, lane: str) -> int:
    return sum(each.submitted for each in device.statistics().lanes if each.name == lane)


async def _cases(
    device: Device, declared: DeclaredOp[Any, Any], refs: dict[str, GpuRef | None]
) -> list[WrongCall]:
    kind = declared.kind
    found: list[WrongCall] = []
    shared = Counter(
        word for note in kind.operands.values() for word in {*(note.shape or "").split()}
    )
    for name, note in kind.operands.items():
        ref = refs[name]
        if ref is None:
            continue
        for what, wrong, error in await _wrong_refs(device, ref, note, shared):
            found.append((f"{name} {what}", {name: wrong}, error))
        if isinstance(note, Out):
            for other, read in refs.items():
                if read is None or other == name or other in note.in_place:
                    continue
                if (read.shape, read.dtype) == (ref.shape, ref.dtype) and ref.nbytes:
                    found.append((f"{name} in the memory of {other}", {name: read}, ValueError))
    for name, of in kind.values.items():
        if name in kind.sent_as:
            continue
        if get_origin(of) is Literal:
            found.append((f"{name} none of {get_args(of)}", {name: "other"}, ValueError))
        elif of in _WRONG_VALUES:
            value, error = _WRONG_VALUES[of]
            found.append((f"{name} {value!r}", {name: value}, error))
    return found


async def _wrong_refs(
    device: Device, ref: GpuRef, note: In, shared: Counter[str]
) -> list[tuple[str, Any, type[Exception]]]:
    shape, dtype = ref.shape, ref.dtype
    freed = await device.zeros(shape, dtype)
    await device.free(freed)
    found: list[tuple[str, Any, type[Exception]]] = [
        ("no ref", 3, TypeError),
        ("freed", freed, GpuRefStale),
    ]
    fixed = note.like or getattr(note, "dtype", "")
    found += [
        (f"of {other.name}", await device.zeros(shape, other), TypeError)
        for other in DTYPES.values()
        if other is not dtype and (fixed or (note.dtypes and other.name not in note.dtypes))
    ]
    if note.shape is not None or isinstance(note, Out):
        found.append(("of higher rank", await device.zeros((1, *shape), dtype), ValueError))
    number = (note.multiple or {}).get(dtype.itemsize, 1)
    words = (note.shape or "").split() or [""] * len(shape)
    for at, word in enumerate(words):
        bound = word.isdigit() or shared[word] > 1 or (isinstance(note, Out) and not word)
        for more in ([number] if bound else []) + ([1] if number > 1 else []):
            longer = tuple([extent + (at == axis) * more for axis, extent in enumerate(shape)])
            what = f"longer by {more} at {at}"
            found.append((what, await device.zeros(longer, dtype), ValueError))
    if dtype.itemsize % note.aligned and ref.size:
        flat = await device.zeros((math.prod(shape) + 1,), dtype)
        found.append(("not aligned", flat[1:].reshape(shape), ValueError))
    if isinstance(note, Out):
        found.append(("sealed", await device.seal(await device.zeros(shape, dtype)), GpuRefSealed))
    return found
