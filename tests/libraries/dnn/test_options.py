"""Options of all functions of ``device.dnn``: values of a wrong type or range are refused."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np
import pytest

from atomr_accel import Device
from atomr_accel.libraries.dnn.attention.options import AttentionOptions
from atomr_accel.libraries.dnn.attention.paged import PagedKVCache
from atomr_accel.libraries.dnn.facade import Dnn
from atomr_accel.libraries.dnn.rnn.facade import Rnn
from atomr_accel.wire import options as _options

from ..conformance import MARKS, dtype_of
from ..writers import ROWS, C, I, M, Row, V, put_all, row

pytestmark = MARKS

MISSING: Final = "nothing"
"""A value for parameters that do not take None."""

WRONG: Final[dict[str, tuple[Any, ...]]] = {
    "bool": ("no", "", 1, 0.0, np.int64(1), MISSING),
    "int": ("1", 1.5, 1.0, True, np.float32(2), 1j, MISSING),
    "float": ("1", True, np.True_, 1j, math.nan, math.inf, -math.inf, [1.0], MISSING),
    "tuple[int, int]": ("12", (1,), (1, 2, 3), (1, 2.0), ("1", 2), (True, 1), 5),
    "Steps": ("1", 1.5, (1.0, 1.0)),
    "int | Sequence[int] | None": ("1", 1.5, True, (0.0,), (True,)),
}
"""By annotation: what a parameter must not be. Where it may be None, all but that."""

RANGES: Final[dict[str, tuple[Any, ...]]] = {
    "softcap": (-1.0,),
    "dropout_p": (-0.1, 1.0),
    "seed": (-1, 2**63),
    "offset": (-1, 2**63),
    "p": (-0.1, 1.0),
    "eps": (-1.0, -1e-30),
    "num_groups": (0, -2),
    "groups": (0, -1),
    "max_seqlen_q": (0, -1),
    "max_seqlen_k": (0, -1),
    "k": (0.0,),
    "beta": (0.0,),
    "size": (0, 17),
    "pages": (0,),
    "page_size": (0, 3),
    "kv_heads": (0,),
    "layers": (0,),
    "value_size": (0,),
}
"""Values out of range by parameter, for the functions that have a range for it."""

_NO_RANGE: Final = {
    ("silu", "beta"),
    ("silu_grad", "beta"),
    ("kv_cache", "size"),
    ("durable_pages", "size"),
    ("durable_pages", "page_size"),
    ("interpolate", "size"),
}

_STATISTICS: Final = {"grad": I, "x": I, "weight": C}
_MORE: Final = [
    row("dnn.batch_norm_grad", **_STATISTICS, mean=C, inv_variance=C, written=()),
    row("dnn.instance_norm_grad", **_STATISTICS, mean=(2, 8), inv_variance=(2, 8), written=()),
    row(
        "dnn.group_norm_grad",
        **_STATISTICS,
        mean=(2, 2),
        inv_variance=(2, 2),
        options={"num_groups": 2},
        written=(),
    ),
    row("dnn.layer_norm_grad", grad=M, x=M, weight=V, mean=V, inv_variance=V, written=()),
    row("dnn.rms_norm_grad", grad=M, x=M, weight=V, inv_variance=V, written=()),
    row(
        "dnn.kv_cache",
        written=(),
        options={"pages": 2, "page_size": 8, "kv_heads": 1, "size": 8, "dtype": "float16"},
    ),
    row(
        "dnn.durable_pages",
        written=(),
        options={"pages": 2, "page_size": 8, "kv_heads": 1, "size": 8, "dtype": "float16"},
    ),
]

TABLE: Final = {
    each.name: each for each in (*ROWS, *_MORE) if each.name.startswith("dnn.")
}  # of several calls of a function the last

_ONE_OF_ITS_KIND: Final = {
    "run",  # a plan has the options
    "flash_attention_fp8_grad",  # has those of the forward pass
}


def options_of(function: Any) -> dict[str, str]:
    """Return the annotations of a function's parameters other than buffers."""
    found: dict[str, str] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and "AttentionOptions" in parameter.annotation:
            found |= {
                each: str(getattr(hint, "__forward_arg__", hint))
                for each, hint in AttentionOptions.__annotations__.items()
            }
        elif isinstance(parameter.annotation, str):
            found[name] = parameter.annotation
    return {name: hint for name, hint in found.items() if hint.removesuffix(" | None") in WRONG} | {
        name: hint for name, hint in found.items() if hint in WRONG
    }


def wrong_of(hint: str) -> list[Any]:
    values = WRONG.get(hint)
    if values is None:
        return [each for each in WRONG[hint.removesuffix(" | None")] if each != MISSING]
    return [None if isinstance(each, str) and each == MISSING else each for each in values]


def functions() -> list[str]:
    return sorted(
        name
        for name, _ in inspect.getmembers(Dnn, inspect.iscoroutinefunction)
        if not name.startswith("_") and name not in _ONE_OF_ITS_KIND
    )


def test_the_table_has_every_function() -> None:
    with_options = {f"dnn.{name}" for name in functions() if options_of(getattr(Dnn, name))}
    assert with_options <= TABLE.keys()
    assert len(with_options) > 25


async def refused(
    call: Callable[[dict[str, Any]], Awaitable[Any]], name: str, value: Any, *errors: Any
) -> None:
    """The error names the argument, and is the same when a call like it was fine before."""
    for _ in range(2):
        with pytest.raises(errors or (TypeError, ValueError)) as caught:
            await call({name: value})
        assert name in str(caught.value), (name, value, str(caught.value))


@pytest.mark.parametrize("name", functions())
async def test_flags_and_numbers_are_checked(device: Device, name: str) -> None:
    each: Row | None = TABLE.get(f"dnn.{name}")
    function = getattr(device.dnn, name)
    wanted = options_of(function)
    if each is None:
        assert not wanted
        return
    found = each
    refs = await put_all(device, found, np.random.default_rng(0))

    async def call(given: dict[str, Any]) -> Any:
        return await found.call(function, refs, {**found.options, **given})

    for option, hint in wanted.items():
        for value in wrong_of(hint):
            await refused(call, option, value)
        for value in RANGES.get(option, ()):
            if (name, option) not in _NO_RANGE and hint != "GpuRef | None":
                await refused(call, option, value)
    before = device.statistics().caches["dnn.plans"]
    await call({})
    after = device.statistics().caches["dnn.plans"]
    assert after.misses - before.misses in (0, 1)  # refused calls made no plans
    for option, hint in wanted.items():
        for value in wrong_of(hint):
            await refused(call, option, value)


async def test_numbers_of_numpy_give_what_plain_ones_do(device: Device) -> None:
    rng = np.random.default_rng(0)
    dnn: Any = device.dnn
    q, k, v = [
        await device.put(rng.standard_normal((1, 4, 1, 16)).astype(np.float16)) for _ in range(3)
    ]
    x = await device.put(rng.standard_normal((4, 8)).astype(np.float32))
    w = await device.put(rng.standard_normal(8).astype(np.float32))

    async def results(attention: dict[str, Any], eps: Any, axis: Any, keep: Any) -> list[Any]:
        refs = [
            await dnn.flash_attention(q, k, v, **attention),
            await dnn.layer_norm(x, w, w, eps=eps),
            await dnn.reduce(x, "sum", axis, keepdims=keep),
        ]
        return [await device.get(ref) for ref in refs]

    plain = {
        "causal": True,
        "softmax_scale": 0.5,
        "softcap": 2.0,
        "window": (2, -1),
        "dropout_p": 0.5,
        "seed": 3,
    }
    of_numpy = {
        "causal": np.True_,
        "softmax_scale": np.float32(0.5),
        "softcap": np.int64(2),
        "window": [np.int32(2), -1],
        "dropout_p": dtype_of("bfloat16").type(0.5),
        "seed": np.uint64(3),
    }
    wanted = await results(plain, 0.125, 1, True)
    made = await results(of_numpy, np.float64(0.125), np.int64(1), np.True_)
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


async def test_one_value_for_each_channel_has_no_variance(device: Device) -> None:
    dnn = device.dnn
    w = await device.put(np.ones(3, np.float32))
    for shape, layout in (((1, 3), None), ((1, 3, 1, 1), None), ((1, 1, 1, 3), "NHWC")):
        x = await device.put(np.ones(shape, np.float32))
        with pytest.raises(
            ValueError, match="x must have several values for each channel to train with, not"
        ):
            await dnn.batch_norm_train(x, None, None, w, w, layout=layout)
        await dnn.batch_norm(x, w, await device.put(np.ones(3, np.float32)), w, w, layout=layout)
    x = await device.put(np.array([[1, 2, 3], [3, 2, 1]], np.float32))
    y, *_ = await dnn.batch_norm_train(x, None, None, w, w)
    np.testing.assert_allclose((await device.get(y))[0], [0, 1, 2], atol=1e-4)


async def test_recurrent_networks(device: Device) -> None:
    def made(given: dict[str, Any]) -> Any:
        rnn: Any = device.dnn.rnn
        return rnn(**{"cell": "lstm", "input_size": 3, "hidden_size": 4, **given})

    for option, hint in options_of(Dnn.rnn).items():
        for value in (*wrong_of(hint), *((-1,) if hint == "int" else ())):
            with pytest.raises((TypeError, ValueError), match=option):
                made({option: value})
    rnn = made({})
    weights = await rnn.pack(
        [await device.put(np.zeros(shape, np.float32)) for shape in rnn.parameter_shapes]
    )
    x = await device.put(np.zeros((2, 1, 3), np.float32))
    for option, hint in options_of(Rnn.forward).items():
        for value in wrong_of(hint):
            await refused(lambda given: rnn.forward(x, weights, **given), option, value)
    for lengths in ([1.5], ["1"], [True]):
        with pytest.raises(TypeError, match="lengths"):
            await rnn.forward(x, weights, lengths=lengths)


async def test_caches(device: Device) -> None:
    cache: Any = await device.dnn.kv_cache(2, 8, 2, 16, dtype="float16")
    sequence = cache.new()
    row_ = await device.put(np.zeros((1, 1, 2, 16), np.float16))
    await cache.append([sequence], row_, row_)
    for layer in ("0", 0.0, True):
        with pytest.raises(TypeError, match="layer must be a whole number"):
            await cache.append([sequence], row_, row_, layer=layer)
        with pytest.raises(TypeError, match="layer must be a whole number"):
            cache.length(sequence, layer)
        with pytest.raises(TypeError, match="length"):
            cache.trim(sequence, layer)
    wanted = options_of(PagedKVCache.attend)
    assert {"layer", "causal", "softmax_scale"} <= wanted.keys()
    for option, hint in wanted.items():
        for value in wrong_of(hint):
            with pytest.raises((TypeError, ValueError), match=option):
                await cache.attend(row_, [sequence], **{option: value})
    assert cache.length(sequence) == 1


async def test_settings(device: Device) -> None:
    dnn: Any = device.dnn
    for wrong in (0, -1, 1.5, "7", True):
        with pytest.raises((TypeError, ValueError), match="plan_limit"):
            dnn.plan_limit = wrong
    graph = dnn.graph()
    graph.output(graph.relu(graph.tensor((4,), "float32", name="x")))
    for name in ("autotune", "allow_tf32"):
        with pytest.raises(TypeError, match=name):
            await graph.build(**{name: "no"})


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("1", TypeError),
        (True, TypeError),
        (1j, TypeError),
        (None, TypeError),
        (10**400, ValueError),
    ],
)
def test_complex_number_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^x must be (a real number|within the range of floats)"):
        _options.real(value, "x")


def test_ranges_are_in_the_message() -> None:
    with pytest.raises(ValueError, match=r"^x must be at least 0 and below 1, not 1.0$"):
        _options.real(1.0, "x", least=0, below=1)
    with pytest.raises(ValueError, match=r"^x must be at least 0 and at most 1, not 2$"):
        _options.real(2, "x", least=0, most=1)
    with pytest.raises(ValueError, match=r"^x must be finite and at least 0, not inf$"):
        _options.real(math.inf, "x", least=0)
    with pytest.raises(ValueError, match=r"^x must be finite, not nan$"):
        _options.real(math.nan, "x")
    assert math.isnan(_options.real(math.nan, "x", finite=False))
    with pytest.raises(ValueError, match=r"^x must be a whole number from 1 to 16, not 17$"):
        _options.whole(17, "x", 1, 16)
    with pytest.raises(TypeError, match=r"^x must be True or False, not 'no' of type str$"):
        _options.flag("no", "x")
