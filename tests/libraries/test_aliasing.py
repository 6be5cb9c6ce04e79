"""Whatever is written shares no memory with anything else: every function, every pair."""

from __future__ import annotations

import inspect
import math
import re
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import Device, Unsupported
from atomr_accel.libraries.blas.wire._rows import ROWS as BLAS
from atomr_accel.ops import require_no_alias

from .conformance import MARKS, dtype_of
from .writers import LIBRARIES, ROWS, SHIFT, Buffer, Row, put_all

pytestmark = MARKS

_NOTHING_ELSE: Final = {
    f"rng.{name}"
    for name in (
        *("beta", "binomial", "cauchy", "chisquare", "exponential", "f", "gamma", "geometric"),
        *("gumbel", "hypergeometric", "integers", "laplace", "lognormal", "negative_binomial"),
        *("normal", "poisson", "random", "rayleigh", "sobol", "standard_cauchy"),
        *("standard_exponential", "standard_gamma", "standard_normal", "standard_t", "uniform"),
        *("vonmises", "weibull"),
    )
}
"""Functions that write one buffer and get no other."""

_FROM_SCRATCH: Final = {"rng.permuted"}
"""Functions that copy a finished result to ``out``, which may share memory with anything."""

_ONLY_READ: Final = {"dnn.flash_attention_fp8_grad"}
"""Functions whose ``out`` is what another one has returned."""

_BY_OPTIONS: Final = {"blaslt.matmul_extra"}
"""Functions that take ``out`` among ``**options``."""

_ids = [f"{each.name}{'' if not at else f'-{at}'}" for at, each in enumerate(ROWS)]


async def test_the_table_has_every_function(device: Device) -> None:
    found = set()
    for library in LIBRARIES:
        facade = type(getattr(device, library))
        for name, function in inspect.getmembers(facade, inspect.iscoroutinefunction):
            parameters = inspect.signature(function).parameters
            of_row = library == "blas" and name in BLAS and len(BLAS[name].operands) > 1
            writes = of_row or {"out", "grads", "y"} & parameters.keys()
            if not name.startswith("_") and writes:
                found.add(f"{library}.{name}")
    assert (found | _BY_OPTIONS) - _NOTHING_ELSE - _FROM_SCRATCH - _ONLY_READ == {
        each.name for each in ROWS
    }


def _nbytes(buffer: Buffer) -> int:
    shape, dtype = buffer
    return math.prod(shape) * dtype_of(dtype).itemsize


@pytest.mark.parametrize("each", ROWS, ids=_ids)
async def test_outputs_share_no_memory_with_inputs(device: Device, each: Row) -> None:
    library, _, name = each.name.partition(".")
    function = getattr(getattr(device, library), name)
    plain = await put_all(device, each, np.random.default_rng(0))
    await each.call(function, plain, each.options)  # it is a call that works
    recorded = await _is_recorded(device, each, plain)
    for target in each.written:
        for other in each.buffers:
            if other == target or (other in each.written and other < target):
                continue
            one, two = each.buffers[target], each.buffers[other]
            size = max(_nbytes(one), _nbytes(two)) + SHIFT
            base = await device.zeros(size, np.uint8)
            for shift in (0, SHIFT):
                refs = dict(plain)
                if _nbytes(two) <= shift:
                    continue
                for what, (shape, dtype), start in ((target, one, shift), (other, two, 0)):
                    part = base[start : start + _nbytes((shape, dtype))]
                    refs[what] = part.view(dtype_of(dtype)).reshape(shape)
                if not shift and (target, other) in each.in_place:
                    apart = {**plain, target: await device.copy(plain[other])}
                    await device.copy(plain[other], refs[target])
                    for which in (apart, refs):
                        await each.call(function, which, each.options)
                    expected, got = await device.get(apart[target]), await device.get(refs[target])
                    np.testing.assert_array_equal(got, expected)
                    continue
                with pytest.raises(ValueError, match=r"shares? (no )?memory") as caught:
                    await each.call(function, refs, each.options)
                said = str(caught.value)
                for what in (target, other):
                    assert re.search(rf"(^|\W){re.escape(what)}(\W|$)", said), (what, said)
                if recorded:  # where each has a stand-in of its own
                    with pytest.raises(ValueError, match=re.escape(said)):
                        await _is_recorded(device, each, refs)


async def _is_recorded(device: Device, each: Row, refs: dict[str, Any]) -> bool:
    """Return whether a recording takes a call; some calls need to be awaited."""
    library, _, name = each.name.partition(".")
    try:
        async with device.record() as recording:
            each.call(getattr(getattr(recording, library), name), refs, each.options)
    except (AttributeError, Unsupported):
        return False
    return True


async def test_outputs_of_a_graph_are_apart(device: Device) -> None:
    graph = device.dnn.graph()
    x = graph.tensor((16,), "float32", name="x")
    graph.output(graph.relu(x), name="low")
    graph.output(graph.neg(x), name="high")
    plan = await graph.build()
    base = await device.zeros(32, np.float32)
    await plan(x=await device.zeros(16, np.float32), low=base[:16], high=base[16:])
    with pytest.raises(ValueError, match="high shares memory with low"):
        await plan(x=await device.zeros(16, np.float32), low=base[:16], high=base[8:24])
    with pytest.raises(ValueError, match="low shares memory with x"):
        await plan(x=base[4:20], low=base[:16])


async def test_a_cache_does_not_append_itself(device: Device) -> None:
    cache = await device.dnn.kv_cache(2, 8, 2, 16, dtype="float16")
    sequence = cache.new()
    row_ = await device.put(np.ones((1, 1, 2, 16), np.float16))
    with pytest.raises(ValueError, match="cache's k shares memory with v"):
        await cache.append([sequence], row_, cache.k[0, 0, :1].reshape(1, 1, 2, 16))
    with pytest.raises(ValueError, match="k_cache shares memory with v"):
        await cache.attend(row_, [sequence], row_, cache.k[0, 0, :1].reshape(1, 1, 2, 16))
    assert cache.length(sequence) == 0


class _Ref:
    """The parts of a ref that the check reads."""

    class _Block:
        def __init__(self, base: object, offset: int) -> None:
            self.base = base
            self.offset = offset

    def __init__(self, base: object, offset: int, nbytes: int) -> None:
        self.block = self._Block(base, offset)
        self.own_strides = None
        self.nbytes = nbytes

    def bytes(self) -> set[tuple[int, int]]:
        return {(id(self.block.base), self.block.offset + at) for at in range(self.nbytes)}


_BASES: Final = (SimpleNamespace(stands_for=None), SimpleNamespace(stands_for=None))
_refs = st.builds(_Ref, st.sampled_from(_BASES), st.integers(0, 12), st.integers(0, 6))
_named = st.dictionaries(st.sampled_from("abcdef"), _refs, max_size=5)


@given(_named, _named, st.sets(st.tuples(st.sampled_from("abcdef"), st.sampled_from("ABCDEF"))))
def test_the_check_finds_what_looking_at_each_byte_finds(
    written: dict[str, Any], read: dict[str, Any], in_place: set[tuple[str, str]]
) -> None:
    read = {name.upper(): ref for name, ref in read.items()}

    def same(one: Any, two: Any) -> bool:
        return bool(one.bytes() == two.bytes())

    wrong = {
        (name, other)
        for name, ref in written.items()
        for other, another in {**written, **read}.items()
        if name != other
        and ref.bytes() & another.bytes()
        and not ((name, other) in in_place and same(ref, another))
    }
    try:
        require_no_alias("test", written.items(), read.items(), in_place=in_place)
    except ValueError as error:
        found = re.match(r"(\w) shares memory with (\w),", str(error))
        assert found is not None
        assert found.groups() in wrong
    else:
        assert not wrong
