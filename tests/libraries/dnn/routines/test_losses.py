"""Losses against their definitions, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Unsupported

from .... import seeds
from ...conformance import MARKS, conform, on_cuda
from ...refusals import refuses
from ..rows.losses import OPERATIONS

pytestmark = MARKS

test_conforms = conform(OPERATIONS, take=1 if on_cuda() else 3)

FLOAT = np.dtype(np.float32)


def log_softmax(scores: Any) -> Any:
    return scores - np.logaddexp.reduce(scores, -1, keepdims=True)


def forward_backward(logs: Any, target: Any) -> tuple[float, Any]:
    """The loss of a long sequence and its gradient by scores, by probabilities and not logs."""
    states = [0]
    for each in target:
        states += [int(each), 0]
    steps, count = len(logs), len(states)
    p = np.exp(logs.astype(np.longdouble))

    alpha = np.zeros((steps, count), np.longdouble)
    alpha[0, :2] = p[0, states[:2]]
    for t in range(1, steps):
        for s in range(count):
            before = [s, s - 1]
            if s > 1 and states[s] and states[s] != states[s - 2]:
                before.append(s - 2)
            alpha[t, s] = sum(alpha[t - 1, o] for o in before if o >= 0) * p[t, states[s]]
    turned = np.zeros((steps, count), np.longdouble)
    for t in range(steps - 1, -1, -1):
        for s in range(count):
            if t == steps - 1:
                turned[t, s] = float(s >= count - 2)
                continue
            after = [s, s + 1]
            if s + 2 < count and states[s + 2] and states[s + 2] != states[s]:
                after.append(s + 2)
            turned[t, s] = sum(turned[t + 1, o] * p[t + 1, states[o]] for o in after if o < count)
    total = alpha[-1, -2:].sum()
    slopes = p.copy()
    for s, label in enumerate(states):
        slopes[:, label] -= alpha[:, s] * turned[:, s] / total
    return float(-np.log(total)), slopes.astype(float)


async def test_long_sequences(device: Any) -> None:
    """More states than a block has threads, and more classes; targets that come again."""
    rng = seeds.rng()
    steps, classes, lengths, counts = 330, 300, (330, 290), (140, 3)
    logs = log_softmax(rng.standard_normal((steps, 2, classes))).astype(FLOAT)
    targets = rng.integers(1, 9, (2, 140)).astype(np.int32)
    given = [
        await device.put(np.asarray(each))
        for each in (logs, targets, np.array(lengths, np.int32), np.array(counts, np.int32))
    ]
    losses = await device.get(await device.dnn.ctc_loss(*given, reduction="none"))
    one = await device.put(np.ones(2, FLOAT))
    slopes = await device.get(await device.dnn.ctc_loss_grad(one, *given, reduction="none"))
    for n, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        loss, slope = forward_backward(logs[:length, n], targets[n, :count])
        np.testing.assert_allclose(losses[n], loss, rtol=1e-5)
        np.testing.assert_allclose(slopes[:length, n], slope, atol=2e-3)
        assert not slopes[length:, n].any()


async def test_a_gradient_is_that_of_small_steps(device: Any) -> None:
    rng = seeds.rng()
    scores = rng.standard_normal((4, 6))
    target = await device.put(np.array([1, 5, -100, 0]))
    weight = await device.put(rng.uniform(0.5, 2, 6))
    how: Any = {"label_smoothing": 0.2}

    async def loss(scores: Any) -> float:
        x = await device.put(scores)
        return float(await device.get(await device.dnn.cross_entropy(x, target, weight, **how)))

    x, one = await device.put(scores), await device.put(np.array(1.0))
    found = await device.get(await device.dnn.cross_entropy_grad(one, x, target, weight, **how))
    for at in ((0, 1), (1, 0), (2, 3), (3, 5)):
        step = np.zeros_like(scores)
        step[at] = 1e-6
        slope = (await loss(scores + step) - await loss(scores - step)) / 2e-6
        assert abs(slope - found[at]) < 1e-8


async def test_scores_of_minus_infinity_are_classes_that_are_out_of_the_question(
    device: Any,
) -> None:
    x = await device.put(np.array([[0, -np.inf, 0], [-np.inf, 3, -np.inf]], FLOAT))
    target = await device.put(np.array([2, 0]))
    losses = await device.get(await device.dnn.cross_entropy(x, target, reduction="none"))
    np.testing.assert_allclose(losses, np.array([np.log(2), np.inf]), rtol=1e-6)
    grad = await device.put(np.ones(2, FLOAT))
    got = await device.dnn.cross_entropy_grad(grad, x, target, reduction="none")
    expected = np.array([[0.5, 0, -0.5], [-1, 1, 0]])
    np.testing.assert_allclose(await device.get(got), expected, atol=1e-6)


async def test_in_batches_recordings_and_given_buffers(device: Any) -> None:
    rng = seeds.rng()
    x = await device.put(rng.standard_normal((6, 5)).astype(FLOAT))
    target = await device.put(rng.integers(0, 5, 6))
    expected = await device.get(await device.dnn.cross_entropy(x, target))
    async with device.batch() as batch:
        loss = batch.dnn.cross_entropy(x, target)
        dx = batch.dnn.cross_entropy_grad(loss, x, target)
    assert await device.get(loss) == expected
    out = await device.full((), 7.0, FLOAT)
    for _ in range(3):
        assert await device.dnn.cross_entropy(x, target, out=out) is out
    assert await device.get(out) == expected
    async with device.record() as recording:
        recorded = recording.dnn.cross_entropy_grad(out, x, target)
    await recording.replay()
    np.testing.assert_array_equal(await device.get(recorded), await device.get(dx))


@pytest.mark.parametrize(("reduction", "loss"), [("none", []), ("sum", 0), ("mean", np.nan)])
async def test_an_empty_batch(device: Any, reduction: str, loss: Any) -> None:
    """An empty batch gives PyTorch's result."""
    dnn = device.dnn
    none, flat, rows = [await device.zeros(shape, np.int32) for shape in ((0,), (2, 0), (0, 3))]
    scores, planes, logs = [
        await device.zeros(shape, FLOAT) for shape in ((0, 3), (2, 3, 0), (4, 0, 3))
    ]
    sequences = (logs, rows, none, none)
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("cross_entropy", (scores, none), {"label_smoothing": 0.1}),
        ("cross_entropy", (scores, none, await device.full((3,), 1, FLOAT)), {}),
        ("cross_entropy", (planes, flat), {}),
        ("ctc_loss", sequences, {}),
        ("ctc_loss", (logs, none, none, none), {"zero_infinity": True}),
        ("ctc_loss", sequences, {"cudnn": True}),
    ]
    for name, refs, options in calls:
        y = await getattr(dnn, name)(*refs, **options, reduction=reduction)
        shape = (2, 0) if refs[0] is planes and reduction == "none" else np.shape(loss)
        expected = np.array(loss, FLOAT).reshape(shape)
        np.testing.assert_array_equal(await device.get(y), expected, strict=True)
        grad = await getattr(dnn, f"{name}_grad")(y, *refs, **options, reduction=reduction)
        assert (grad.shape, grad.dtype) == (refs[0].shape, FLOAT)
        await device.get(grad)


async def test_losses_read_nothing_beyond_their_inputs(device: Any) -> None:
    """The CPU raises an error; CUDA gives NaN."""
    dnn = device.dnn
    x = await device.put(np.zeros((2, 3), FLOAT))
    logs = await device.put(log_softmax(np.zeros((4, 2, 3))).astype(FLOAT))
    three, far = [await device.put(np.array(each, np.int32)) for each in ((3, 1), (2, 9))]
    rows = await device.put(np.array([[1, 2], [1, 1]], np.int32))
    bad: Any = (
        (
            r"target\[1, 0\] must be from 0 to 2, not 9",
            lambda: dnn.cross_entropy(x, far, reduction="none"),
            [1],
        ),
        ("target_lengths", lambda: dnn.ctc_loss(logs, rows, three, far, reduction="none"), [1]),
        ("input_lengths", lambda: dnn.ctc_loss(logs, rows, far, three, reduction="none"), [0, 1]),
    )
    for match, call, wrong in bad:
        if not on_cuda():
            with pytest.raises(ValueError, match=match):
                await call()
            continue
        losses = await device.get(await call())
        assert np.flatnonzero(np.isnan(losses)).tolist() == wrong


async def test_losses_refuse_sizes_that_cudnn_lacks(device: Any) -> None:
    """Anywhere, so that a program that asks for it runs on CUDA, too."""
    logs = await device.put(log_softmax(np.zeros((4, 2, 3))).astype(FLOAT))
    rows = await device.put(np.array([[1, 2], [1, 1]], np.int32))
    counts = await device.put(np.array([2, 1], np.int32))
    given = (logs, rows, counts, counts)
    expected = await device.get(await device.dnn.ctc_loss(*given))
    got = await device.get(await device.dnn.ctc_loss(*given, cudnn=True))
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    wide = [await device.put((await device.get(each)).astype(np.int64)) for each in given[1:]]
    double = await device.put(log_softmax(np.zeros((4, 2, 3))))
    flat = rows.reshape(4)
    many = await device.zeros((2, 256), np.int32)
    for refs, more in (
        ((logs, *wide), {}),
        ((double, *given[1:]), {}),
        ((logs, flat, counts, counts), {}),
        ((logs, many, counts, counts), {}),
        (given, {"blank": 1}),
    ):
        with pytest.raises(Unsupported, match="cuDNN's CTC takes float32, rows of 1 to 255"):
            await device.dnn.ctc_loss(*refs, **more, cudnn=True)


test_bad_arguments = refuses(
    "dnn",
    [
        ("cross_entropy(0, i8_2)", TypeError, "x must be a GpuRef"),
        (
            "cross_entropy(f4_2x3, f8_3)",
            TypeError,
            "target must be int32 or int64, for classes, or of the dtype of x, float32, for prob",
        ),
        (
            "cross_entropy(i8_2, i8_2)",
            TypeError,
            "x must have dtype float16, bfloat16, float32 or float64, not int64",
        ),
        ("cross_entropy(f4_2x3, i4_2x2)", ValueError, "target"),
        ("cross_entropy(f4_2x3, i8_2, f4_2x3)", ValueError, "weight"),
        (
            "cross_entropy(f4_2x3, i8_2, f8_3)",
            TypeError,
            "weight must have dtype float32, not float64",
        ),
        ('cross_entropy(f4_2x3, i8_2, reduction="max")', ValueError, "reduction must"),
        ("cross_entropy(f4_2x3, i8_2, label_smoothing=2)", ValueError, "label_smoothing"),
        (
            "cross_entropy(f4_2x3, f4_2x3, ignore_index=1)",
            ValueError,
            "ignore_index must be left out",
        ),
        ("cross_entropy(f4_2x0, i8_2)", ValueError, "x must have shape"),
        ("ctc_loss(f4_4x2x3[:0], i4_2x2, i4_2, i4_2)", ValueError, "steps and classes"),
        ("cross_entropy(f4_2x3, i8_2, out=f4_2x3)", ValueError, "out is float32"),
        ("cross_entropy_grad(f4_2x3, f4_2x3, i8_2)", ValueError, "grad"),
        (
            "ctc_loss(f4_2x3, i4_2x2, i4_2, i4_2)",
            ValueError,
            r"log_probs must have shape \(steps, batch, classes\), with steps and",
        ),
        (
            "ctc_loss(f4_4x2x3, i4_2x2, i8_2, i4_2)",
            TypeError,
            "input_lengths must have dtype int32, not int64",
        ),
        (
            "ctc_loss(f4_4x2x3, i4_2x2[:1], i4_2, i4_2)",
            ValueError,
            r"targets must have shape \(2, most\), or one dimension, not \(1, 2\)",
        ),
        ("ctc_loss(f4_4x2x3, i4_2x2, i4_2x2, i4_2)", ValueError, "input_lengths"),
        ("ctc_loss(f4_4x2x3, i4_2x2, i4_2, i4_2, blank=3)", ValueError, "blank must be"),
    ],
)
