"""Ops that follow from declarations."""

from __future__ import annotations

import inspect
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import pytest

from atomr_accel import Device, GpuRef, open_device
from atomr_accel.executors.operations import array_handlers
from atomr_accel.libraries import registry
from atomr_accel.ops import D, DeviceView, Facade, LaneSpec, Library, op_of
from atomr_accel.testing import check_refusals
from atomr_accel.wire.operations import In, Operation, Out, SentAs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from atomr_accel.ops import Preparer

FLOATS: Final = ("float32", "float64")


class Moments(NamedTuple):
    mean: GpuRef
    number: GpuRef


class Reduce(Operation["Moments"]):
    """Reduce rows."""

    results: ClassVar[type[tuple[Any, ...]]] = Moments

    x: Annotated[GpuRef, In("m n", FLOATS, strided=True)]
    weights: Annotated[GpuRef | None, In("n", like="x")] = None
    _: KW_ONLY
    mean: Annotated[GpuRef | None, Out("m", like="x")] = None
    count: Annotated[GpuRef | None, Out("", dtype="int64")] = None


class Scale(Operation["GpuRef"]):
    """Multiply."""

    x: Annotated[GpuRef, In(dtypes=FLOATS)]
    _: KW_ONLY
    factor: float = 1.0
    times: int = 1
    negated: bool = False
    kind: Literal["plain", "square"] = "plain"
    shift: Annotated[object, SentAs(float)] = 0
    out: Annotated[GpuRef | None, Out(like="x", in_place=("x",))] = None


class Accumulate(Operation["GpuRef"]):
    """Add to a total."""

    x: Annotated[GpuRef, In("n", FLOATS)]
    total: Annotated[GpuRef, Out("n", like="x")]


class IsEmpty(Operation[bool]):
    """Tell whether all are zero."""

    x: Annotated[GpuRef, In()]


LANE: Final = LaneSpec("declared", {"cpu": f"{__name__}:CpuDeclared"})


def _shifted(call: Scale, _preparer: Preparer) -> Mapping[str, Any]:
    return {"shift": float(call.shift)}  # type: ignore[arg-type]


class Declared(Facade[D]):
    """Ops."""

    templated = True

    def __init__(self, device: DeviceView) -> None:
        self.home = device

    reduce: Final = op_of(Reduce, LANE)
    scale: Final = op_of(Scale, LANE, plan=_shifted)
    accumulate: Final = op_of(Accumulate, LANE)
    is_empty: Final = op_of(IsEmpty, LANE)


class CpuDeclared:
    """Executes them."""

    def __init__(self, context: Any, stream: object) -> None:
        del stream
        functions: dict[type[Operation[Any]], Any] = {
            Reduce: _reduce,
            Scale: _scale,
            Accumulate: _accumulate,
            IsEmpty: _is_empty,
        }
        self.handlers = array_handlers(context, functions)

    def close(self) -> None:
        """Nothing is held."""


def _reduce(x: Any, weights: Any, mean: Any, count: Any) -> None:
    mean[...] = (x if weights is None else x * weights).mean(1)
    count[...] = x.size


def _scale(x: Any, out: Any, kind: str, **numbers: Any) -> None:
    made = x * numbers["factor"] * numbers["times"] + numbers["shift"]
    made = made**2 if kind == "square" else made
    out[...] = -made if numbers["negated"] else made


def _accumulate(x: Any, total: Any) -> None:
    total += x


def _is_empty(x: Any) -> bool:
    return not x.any()


LIBRARY: Final = Library("declared", "declared ops", f"{__name__}:Declared", (LANE,))


@pytest.fixture
async def declaring(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Device]:
    monkeypatch.setattr(registry, "_known", registry.catalogue())
    registry.add_library(LIBRARY)
    async with open_device(0, backend="cpu", isolation="thread") as device:
        yield device


async def test_results_are_allocated_or_given(declaring: Device) -> None:
    ops: Any = declaring.declared  # type: ignore[attr-defined] # it was added just now
    x = np.arange(12.0).reshape(3, 4)
    ref = await declaring.put(x)
    for _ in range(3):  # the second call makes a template, which the third uses
        made = await ops.reduce(ref)
        assert isinstance(made, Moments)
        np.testing.assert_array_equal(await declaring.get(made.mean), x.mean(1))
        assert await declaring.get(made.number) == 12
        weights = await declaring.put(np.arange(4.0))
        mean = await declaring.zeros((3,))
        again = await ops.reduce(ref, weights, mean=mean)
        assert again.mean is mean
        np.testing.assert_array_equal(await declaring.get(mean), (x * np.arange(4)).mean(1))
        turned = await ops.reduce(ref.T)  # strided
        np.testing.assert_array_equal(await declaring.get(turned.mean), x.mean(0))


async def test_values_batches_recordings_requests_and_views(declaring: Device) -> None:
    ops: Any = declaring.declared  # type: ignore[attr-defined]
    x = np.arange(12.0).reshape(3, 4)
    ref = await declaring.put(x)
    made = await ops.scale(ref.T, factor=2, times=np.int8(3), kind="square", shift=1, negated=True)
    np.testing.assert_array_equal(await declaring.get(made), -((x.T * 6 + 1) ** 2))
    assert await ops.scale(ref, factor=3.0, out=ref) is ref
    async with declaring.batch() as batch:
        library: Any = batch.declared  # type: ignore[attr-defined]
        twice = library.scale(library.scale(ref, factor=2.0), factor=2.0)
    np.testing.assert_array_equal(await declaring.get(twice), x * 12)
    async with declaring.record(ref) as program:
        library = program.declared  # type: ignore[attr-defined]
        twice = library.scale(ref, times=2)
    await program.replay()
    np.testing.assert_array_equal(await declaring.get(twice), x * 6)
    request = declaring.requests.declared.scale(ref, factor=0.0)  # type: ignore[attr-defined]
    assert not (await declaring.get(await ops.ref.ask(request))).any()


async def test_an_operand_without_default_is_changed_and_an_op_without_result_answers(
    declaring: Device,
) -> None:
    ops: Any = declaring.declared  # type: ignore[attr-defined]
    ones, total = await declaring.put(np.ones(5)), await declaring.zeros((5,))
    for _ in range(4):
        assert await ops.accumulate(ones, total) is total
    assert (await declaring.get(total)).tolist() == [4] * 5
    assert not await ops.is_empty(total)
    assert await ops.is_empty(await declaring.zeros((3, 3), np.int32))


async def test_wrong_arguments_are_refused(declaring: Device) -> None:
    ops: Any = declaring.declared  # type: ignore[attr-defined]
    x, row = await declaring.zeros((3, 4)), await declaring.zeros((5,))
    refused = await check_refusals(declaring, "declared.reduce", x=x, weights=row[:4])
    assert {"x no ref", "weights longer by 1 at 0", "mean sealed", "count of int32"} <= {*refused}
    refused = await check_refusals(declaring, "declared.scale", x=x)
    assert {"times 1.5", "negated 'no'", "out longer by 1 at 1"} <= {*refused}
    refused = await check_refusals(
        declaring, "declared.accumulate", x=row, total=await declaring.copy(row)
    )
    assert "total in the memory of x" in refused
    await check_refusals(declaring, "declared.is_empty", x=x)
    with pytest.raises(ValueError, match=r"weights must have 4 as extent 0, since x has it, not"):
        await ops.reduce(x, row)
    with pytest.raises(ValueError, match="kind must be 'plain' or 'square', not 'cube'"):
        await ops.scale(x, kind="cube")
    with pytest.raises(TypeError, match=r"^scale\(\) missing 1 required positional argument: 'x'"):
        await ops.scale()
    with pytest.raises(TypeError, match=r"^scale\(\) got an unexpected .*'factr'; write factor="):
        await ops.scale(x, factr=1)


def test_a_method_has_the_signature_and_the_docstring_of_its_declaration() -> None:
    assert str(inspect.signature(Declared.is_empty)) == "(self, x: 'GpuRef') -> 'bool'"
    assert str(inspect.signature(Declared.accumulate)).endswith("-> 'GpuRef'")
    assert Declared.scale.__doc__ == "Multiply."
    assert (Declared.scale.__name__, Declared.scale.__module__) == ("scale", __name__)


@pytest.mark.parametrize(
    ("note", "default", "said"),
    [
        (In(like="y"), None, "must name an operand before it, not 'y'"),
        (Out("n", like="x", in_place=("z",)), None, "must name an operand before it, not 'z'"),
        (Out("n"), None, "must have dtype= or like="),
        (Out(dtype="int64"), None, "must have shape= or like="),
        (In(), 3, "must have None as its default, or none"),
    ],
)
def test_contradictions_are_told_at_the_import(note: In, default: object, said: str) -> None:
    annotations = {"x": Annotated[Any, In()], "made": Annotated[Any, note]}
    namespace = {"__annotations__": annotations, "made": default, "__module__": __name__}
    with pytest.raises(TypeError, match=f"Wrong.made {said}"):
        type("Wrong", (Operation,), namespace)
