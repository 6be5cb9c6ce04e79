"""Ops that follow from declarations."""

from __future__ import annotations

import inspect
import types
from dataclasses import KW_ONLY, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import pytest

from atomr_accel import Device, GpuRef, open_device
from atomr_accel.executors.operations import array_handlers
from atomr_accel.libraries import registry
from atomr_accel.ops import D, DeviceView, Facade, LaneSpec, Library, op_of
from atomr_accel.testing import check_refusals
from atomr_accel.wire.operations import In, Operation, Out, SentAs, argument_types

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


class Careless(Operation["GpuRef"]):
    """Return the result, too."""

    x: Annotated[GpuRef, In("n", FLOATS)]
    out: Annotated[GpuRef | None, Out(like="x")] = None


class Lies(Operation[bool]):
    """Answer in words."""

    x: Annotated[GpuRef, In()]


class Several(Operation["GpuRef"]):
    """Count numbers."""

    x: Annotated[GpuRef, In("n", FLOATS)]
    _: KW_ONLY
    text: str = ""
    number: int | None = None
    pair: tuple[int, int] = (0, 0)
    numbers: list[float] = field(default_factory=list)
    low: float = 0.0
    level: Literal[1, 2] = 1
    out: Annotated[GpuRef | None, Out(like="x")] = None


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
    careless: Final = op_of(Careless, LANE)
    lies: Final = op_of(Lies, LANE)
    several: Final = op_of(Several, LANE)


class CpuDeclared:
    """Executes them."""

    def __init__(self, context: Any, stream: object) -> None:
        del stream
        functions: dict[type[Operation[Any]], Any] = {
            Reduce: _reduce,
            Scale: _scale,
            Accumulate: _accumulate,
            IsEmpty: _is_empty,
            Careless: lambda x, out: np.add(x, 1, out=out),
            Lies: lambda x: "no",
            Several: _several,
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


def _several(x: Any, out: Any, numbers: list[float], **_: Any) -> None:
    out[...] = len(numbers)


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
    with pytest.raises(ValueError, match=r"weights must have 4 as extent 0, as x has as ext"):
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


ANY: Final = Annotated[Any, In("n")]


@pytest.mark.parametrize(
    ("note", "default", "said"),
    [
        (In(like="y"), None, "must name an operand before it, not 'y'"),
        (Out("n", like="x", in_place=("z",)), None, "must name an operand before it, not 'z'"),
        (Out("n"), None, "must have dtype= or like="),
        (Out("n", FLOATS), None, "must have dtype= or like="),
        (Out(dtype="int64"), None, "must have shape= or like="),
        (Out("k", like="x"), None, "must have extents of operands, not 'k'"),
        (In(), 3, "must have None as its default, or none"),
        (In, ..., r"must have In\(...\), not the class itself"),
    ],
)
def test_contradictions_are_told_at_the_import(note: Any, default: object, said: str) -> None:
    with pytest.raises(TypeError, match=f"Wrong.made {said}"):
        _declare({"x": ANY, "made": Annotated[Any, note]}, made=default)


@pytest.mark.parametrize("default", [..., None])
@pytest.mark.parametrize(
    "note",
    [
        In("n", ("int64",), like="x"),
        In("n", ("int64",), like="y"),
        Out("n", ("float32", "int64"), like="x"),
    ],
)
def test_an_operand_takes_the_dtypes_of_the_one_that_it_is_like(note: In, default: object) -> None:
    before = {"x": Annotated[Any, In("n", FLOATS)], "y": Annotated[Any, In("n", like="x")]}
    said = rf"Wrong.made must take the dtypes of {note.like}, .* not only .*int64; leave out its"
    with pytest.raises(TypeError, match=said):
        _declare({**before, "made": Annotated[Any, note]}, made=default)
    _declare(
        {**before, "made": Annotated[Any, In("n", (*FLOATS, "int64"), like="y")]}, made=default
    )
    _declare({**before, "made": Annotated[Any, Out("n", dtype="int64", like="y")]}, made=default)


def test_an_operand_that_may_be_left_out_takes_some_dtypes() -> None:
    x, bias = Annotated[Any, In("n", FLOATS)], In("n", ("float32",), like="x")
    _declare({"x": x, "bias": Annotated[Any, bias]}, bias=None)
    with pytest.raises(TypeError, match="must take the dtypes of x"):
        _declare({"x": x, "bias": Annotated[Any, bias]})


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"x": "Block"}, r"Wrong.x must have a note, such as In\(\), or .* not Block"),
        ({"n": "itn"}, "Wrong.n must have a note, .* not itn"),
        ({"x": "Anotated[GpuRef, In()]"}, "Wrong.x must have a valid .*; Anotated.* not imported"),
        ({"x": ANY, "returns": int}, "Wrong.returns must have another name"),
        ({"x": ANY, "layouts": int}, "Wrong.layouts must have another name"),
        ({"x": GpuRef}, "Wrong must have values that msgspec encodes"),
        ({"x": ANY, "y": Annotated[Any, In("n")], "out": Annotated[Any, Out(like="y")]}, "always"),
    ],
)
def test_wrong_annotations_are_told_at_the_import(annotations: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        _declare(annotations, **({"y": None, "out": None} if "y" in annotations else {}))


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("bool", "must have an Out, or answer with a type that is not in quotes, not 'bool'"),
        (int | None, "must always answer"),
        (object(), "isn't supported|is not supported|encodes"),
    ],
)
def test_wrong_answers_are_told_at_the_import(result: Any, said: str) -> None:
    base: Any = Operation
    with pytest.raises(TypeError, match=said):
        types.new_class("Wrong", (base[result],), {}, lambda namespace: namespace.update(_body()))


def _body() -> dict[str, Any]:
    return {"__annotations__": {"x": ANY}, "__module__": __name__}


def _declare(annotations: dict[str, Any], **defaults: object) -> None:
    given = {name: each for name, each in defaults.items() if each is not ...}
    namespace = {"__annotations__": annotations, "__module__": __name__, **given}
    type("Wrong", (Operation,), namespace)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"shape": ("m", "k")}, TypeError),
        ({"shape": "m, n"}, TypeError),
        ({"shape": "m n+1"}, TypeError),
        ({"dtypes": "float32"}, TypeError),
        ({"dtypes": ("f4",)}, TypeError),
        ({"aligned": 0}, ValueError),
        ({"multiple": 4}, TypeError),
    ],
)
def test_notes_are_checked(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{next(iter(wrong))} must be|dtypes must have names such"):
        In(**wrong)
    with pytest.raises(TypeError, match="dtype must have names such as"):
        Out("n", dtype="float23")


def test_declarations_are_extended() -> None:
    class Child(IsEmpty):
        times: int = 1

    assert Child.message.returns is bool
    assert Child.__doc__ == "Tell whether all are zero."
    assert list(argument_types(Child).items()) == [("x", "GpuRef"), ("times", "int")]


def test_a_declaration_needs_no_postponed_annotations() -> None:
    namespace = {"__annotations__": {"x": ANY, "n": int}, "__module__": __name__}
    kind: Any = type("Direct", (Operation,), namespace)
    assert argument_types(kind) == {"x": "Any", "n": "int"}


async def test_a_plan_must_make_what_is_sent_otherwise(declaring: Device) -> None:
    with pytest.raises(TypeError, match=r"op_of\(Scale\) must have a plan, which makes shift"):
        op_of(Scale, LANE)

    class Planned(Declared[D]):
        forgot: Final = op_of(Scale, LANE, plan=lambda _call, _preparer: {})
        unknown: Final = op_of(Scale, LANE, plan=lambda *_: {"shift": 1.0, "shfit": 1.0})

    ops: Any = Planned(declaring.declared.home)  # type: ignore[attr-defined]
    x = await declaring.zeros(3)
    for op in (ops.forgot, ops.unknown):
        with pytest.raises(TypeError, match="the plan of Scale must return a dict with shift, not"):
            await op(x)


async def test_what_a_handler_returns_is_checked(declaring: Device) -> None:
    ops: Any = declaring.declared  # type: ignore[attr-defined]
    x = await declaring.zeros(1)
    with pytest.raises(TypeError, match=r"executes Careless, must return nothing, not .*ndarray"):
        await ops.careless(x)
    with pytest.raises(TypeError, match=r"executes Lies, must return <class 'bool'>, not"):
        await ops.lies(x)
    assert declaring.generation == 1


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"text": 3}, TypeError, "text must be str, not"),
        ({"text": "\ud800"}, ValueError, "text must be text that UTF-8 encodes"),
        ({"number": "3"}, TypeError, "number must be int | None, not"),
        ({"pair": (1, "b")}, TypeError, "pair must be tuple"),
        ({"level": True}, ValueError, "level must be 1 or 2, not True"),
        ({"level": np.arange(2)}, ValueError, "level must be 1 or 2, not"),
    ],
)
async def test_values_of_other_types_are_refused(
    declaring: Device, wrong: dict[str, Any], error: type[Exception], said: str
) -> None:
    ops: Any = declaring.declared  # type: ignore[attr-defined]
    with pytest.raises(error, match=said):
        await ops.several(await declaring.zeros(1), **wrong)


async def test_values_are_taken_when_the_request_is_made(declaring: Device) -> None:
    ops: Any = declaring.requests.declared  # type: ignore[attr-defined]
    numbers = [1.0, float("-inf")]
    request = ops.several(await declaring.zeros(1), numbers=numbers, low=float("nan"))
    numbers.append(3.0)
    ref: Any = declaring.declared.ref  # type: ignore[attr-defined]
    assert await declaring.get(await ref.ask(request)) == 2
