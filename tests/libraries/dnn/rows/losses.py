"""Losses for the conformance tests.

The reference of CTC is its definition: it goes through all paths of classes, one for each step,
that become the targets when repetitions and blanks are left out.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ...conformance import HALF, REAL, Array, Case, Near, Operation, Sample, product

DTYPES = (*HALF, *REAL)

IGNORED = -100


# --- cross-entropy ------------------------------------------------------------------------


def options(case: Case) -> Case:
    names = ("reduction", "label_smoothing", "ignore_index")
    return {name: case[name] for name in names if name in case}


def entropy_inputs(sample: Sample, shape: tuple[int, ...], **case: Any) -> tuple[Array, ...]:
    rng = sample.rng
    classes = shape[min(1, len(shape) - 1)]
    rows = (*shape[:1], *shape[2:]) if len(shape) > 1 else ()
    x = rng.uniform(-4, 4, shape).astype(sample.dtype)
    target = rng.integers(0, classes, rows).astype(case["index"])
    ignored = case.get("ignore_index", IGNORED)
    if rows:
        target.ravel()[:: 1 if case.get("none_counts") else 3] = ignored
    if not case["weighted"]:
        return x, target
    return x, target, rng.uniform(0.5, 2, classes).astype(sample.dtype)


def by_rows(x: Array, target: Array, weight: Array | None, case: Case) -> tuple[Any, ...]:
    """Losses, their gradients, weights and magnitudes, of rows one after the other."""
    flat = np.moveaxis(x, min(1, x.ndim - 1), -1)
    classes = flat.shape[-1]
    weight = np.ones(classes) if weight is None else weight
    share = case.get("label_smoothing", 0.0)
    ignored = case.get("ignore_index", IGNORED)
    losses, counts, sizes = (np.zeros(target.shape) for _ in range(3))
    slopes = np.zeros(flat.shape)
    for at in np.ndindex(*target.shape):
        t = int(target[at])
        if t == ignored:
            continue
        row = np.asarray(flat[at], np.float64)
        p = np.exp(row - row.max())
        p /= p.sum()
        wanted = np.full(classes, share / classes)
        wanted[t] += 1 - share
        # Each class's weight is its own in the smoothed part, and the target's in the other.
        each = wanted * weight
        losses[at] = -(each * np.log(p)).sum()
        sizes[at] = (each * (abs(row) + abs(np.log(p)))).sum()
        counts[at] = weight[t]
        slopes[at] = each.sum() * p - each
    return losses, slopes, counts, sizes


def expect_entropy(x: Array, target: Array, weight: Array | None = None, **case: Any) -> Near:
    losses, _, counts, sizes = by_rows(x, target, weight, case)
    reduction = case.get("reduction", "mean")
    if reduction == "none":
        return Near(losses, sizes + 1)
    with np.errstate(invalid="ignore"):
        share = counts.sum() if reduction == "mean" else 1.0
        return Near(losses.sum() / share, sizes.sum() / (share or 1.0) + 1)


async def call_entropy(device: Any, x: Any, target: Any, weight: Any = None, **case: Any) -> Any:
    return await device.dnn.cross_entropy(x, target, weight, **options(case))


def entropy_grad_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    x, target, *weight = entropy_inputs(sample, **case)
    shape = target.shape if case.get("reduction") == "none" else ()
    return (np.asarray(sample.array(*shape)), x, target, *weight)


def expect_entropy_grad(
    dy: Array, x: Array, target: Array, weight: Array | None = None, **case: Any
) -> Near:
    _, slopes, counts, _ = by_rows(x, target, weight, case)
    share = counts.sum() if case.get("reduction", "mean") == "mean" else 1.0
    factor = np.broadcast_to(dy, target.shape)[..., None] / (share or 1.0)
    size = abs(factor) * np.where(counts, 4.0, 0.0)[..., None]
    axis = min(1, x.ndim - 1)
    return Near(
        np.moveaxis(slopes * factor, -1, axis),
        np.moveaxis(np.broadcast_to(size, slopes.shape), -1, axis),
    )


async def call_entropy_grad(
    device: Any, dy: Any, x: Any, target: Any, weight: Any = None, **case: Any
) -> Any:
    return await device.dnn.cross_entropy_grad(dy, x, target, weight, **options(case))


ENTROPIES: list[Case] = [
    *product(
        shape=[(7, 5)],
        index=["int64"],
        weighted=[False, True],
        reduction=["mean", "sum", "none"],
        label_smoothing=[0.0, 0.3],
    ),
    {"shape": (3, 70), "index": "int32", "weighted": True, "label_smoothing": 1.0},
    {"shape": (4, 300), "index": "int64", "weighted": False, "label_smoothing": 0.1},
    {"shape": (2, 4, 3, 5), "index": "int32", "weighted": True, "label_smoothing": 0.1},
    {"shape": (2, 40, 6), "index": "int64", "weighted": True, "reduction": "none"},
    {"shape": (6,), "index": "int64", "weighted": True},
    {"shape": (9, 4), "index": "int64", "weighted": True, "ignore_index": 2},
    {"shape": (4, 3), "index": "int32", "weighted": True, "none_counts": True},
]


# --- the same of probabilities ------------------------------------------------------------


def soft_inputs(sample: Sample, shape: tuple[int, ...], **case: Any) -> tuple[Array, ...]:
    rng, axis = sample.rng, min(1, len(shape) - 1)
    x = rng.uniform(-4, 4, shape).astype(sample.dtype)
    q = rng.uniform(0, 1, shape) * rng.integers(0, 2, shape)  # some are impossible
    q /= q.sum(axis, keepdims=True) + 0.1
    given = (x, q.astype(sample.dtype))
    return (*given, rng.uniform(0.5, 2, shape[axis]).astype(sample.dtype))[: 2 + case["weighted"]]


def by_classes(x: Array, q: Array, weight: Array | None, case: Case) -> tuple[Array, ...]:
    """Losses, gradients with the classes last, and magnitudes."""
    axis = min(1, x.ndim - 1)
    flat, wanted = (np.moveaxis(np.asarray(each, np.float64), axis, -1) for each in (x, q))
    p = np.exp(flat - flat.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    share = case.get("label_smoothing", 0.0)
    own = (1 - share) * wanted + share / flat.shape[-1]
    own = own * (1 if weight is None else np.asarray(weight, np.float64))
    losses = -(own * np.log(p)).sum(-1)
    sizes = (own * (abs(flat) + abs(np.log(p)))).sum(-1)
    return losses, own.sum(-1, keepdims=True) * p - own, sizes


def expect_soft(x: Array, q: Array, weight: Array | None = None, **case: Any) -> Near:
    losses, _, sizes = by_classes(x, q, weight, case)
    if case.get("reduction", "mean") == "none":
        return Near(losses, sizes + 1)
    count = losses.size if case.get("reduction", "mean") == "mean" else 1
    return Near(losses.sum() / count, sizes.sum() / count + 1)


def soft_grad_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    x, *rest = soft_inputs(sample, **case)
    rows = (*x.shape[:1], *x.shape[2:]) if x.ndim > 1 else ()
    shape = rows if case.get("reduction") == "none" else ()
    return (np.asarray(sample.array(*shape)), x, *rest)


def expect_soft_grad(
    dy: Array, x: Array, q: Array, weight: Array | None = None, **case: Any
) -> Near:
    losses, slopes, _ = by_classes(x, q, weight, case)
    count = losses.size if case.get("reduction", "mean") == "mean" else 1
    factor = np.broadcast_to(dy, losses.shape)[..., None] / count
    size = np.broadcast_to(4 * abs(factor), slopes.shape)
    axis = min(1, x.ndim - 1)
    return Near(np.moveaxis(slopes * factor, -1, axis), np.moveaxis(size, -1, axis))


SOFT: list[Case] = [
    {**case, "index": "int64"}
    for case in (
        *product(
            shape=[(7, 5)],
            weighted=[False, True],
            reduction=["mean", "sum", "none"],
            label_smoothing=[0.0, 0.3],
        ),
        {"shape": (4, 300), "weighted": True, "label_smoothing": 0.1},
        {"shape": (2, 4, 3, 5), "weighted": True},
        {"shape": (2, 40, 6), "weighted": False, "reduction": "none"},
        {"shape": (6,), "weighted": True},
    )
]


# --- connectionist temporal classification ------------------------------------------------


def ctc_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    rng, lengths = sample.rng, case["lengths"]
    scores = rng.uniform(-2, 2, (case["steps"], len(lengths), case["classes"]))
    logs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    counts = [len(each) for each in case["targets"]]
    if case["padded"]:
        targets = np.full((len(counts), max(counts) + 1), case["blank"])
        for row, each in zip(targets, case["targets"], strict=True):
            row[: len(each)] = each
    else:
        targets = np.array(list(itertools.chain(*case["targets"])))
    kind = case["index"]
    whole = (targets.astype(kind), np.array(lengths, kind), np.array(counts, kind))
    return (logs.astype(sample.dtype), *whole)


def by_paths(logs: Array, target: tuple[int, ...], blank: int) -> tuple[float, Array]:
    """A sequence's loss, and its gradient by scores, from all paths there are."""
    steps, classes = logs.shape
    p = np.exp(logs.astype(np.float64))
    total, through = 0.0, np.zeros((steps, classes))
    for path in itertools.product(range(classes), repeat=steps):
        if tuple(each for each, _ in itertools.groupby(path) if each != blank) == tuple(target):
            each = float(np.prod(p[np.arange(steps), path]))
            total += each
            through[np.arange(steps), path] += each
    if not total:
        return np.inf, np.full(p.shape, np.nan)
    return -np.log(total), p - through / total


def by_sequences(logs: Array, case: Case) -> tuple[Array, Array, Array]:
    """Losses and gradients, and by what a mean divides them."""
    losses, slopes = np.zeros(logs.shape[1]), np.zeros(logs.shape)
    for n, (steps, target) in enumerate(zip(case["lengths"], case["targets"], strict=True)):
        losses[n], slopes[:steps, n] = by_paths(logs[:steps, n], target, case["blank"])
    if case.get("zero_infinity"):
        endless = losses == np.inf
        losses, slopes[:, endless] = np.where(endless, 0, losses), 0
    mean = case["reduction"] == "mean"
    share = np.array([max(1, len(each)) if mean else 1 for each in case["targets"]])
    return losses, slopes, share


def expect_ctc(logs: Array, *_whole: Array, **case: Any) -> Near:
    losses, _, share = by_sequences(logs, case)
    if case["reduction"] == "none":
        return Near(losses, 8 * case["steps"])
    total = (losses / share).sum()
    return Near(total / len(share) if case["reduction"] == "mean" else total, 8 * case["steps"])


def how(case: Case) -> Case:
    return {
        name: case[name]
        for name in ("blank", "reduction", "zero_infinity", "cudnn")
        if name in case
    }


async def call_ctc(device: Any, *refs: Any, **case: Any) -> Any:
    return await device.dnn.ctc_loss(*refs, **how(case))


def ctc_grad_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    shape = (len(case["lengths"]),) if case["reduction"] == "none" else ()
    return (np.asarray(sample.array(*shape)), *ctc_inputs(sample, **case))


def expect_ctc_grad(dy: Array, logs: Array, *_whole: Array, **case: Any) -> Near:
    _, slopes, share = by_sequences(logs, case)
    factor = dy / share / (len(share) if case["reduction"] == "mean" else 1)
    value = slopes * factor[:, None]
    # What one half of a difference lost.
    return Near(
        np.where(slopes == 0, 0.0, value), np.broadcast_to(4 * abs(factor)[:, None], value.shape)
    )


async def call_ctc_grad(device: Any, *refs: Any, **case: Any) -> Any:
    return await device.dnn.ctc_loss_grad(*refs, **how(case))


SEQUENCES: list[Case] = [
    {"steps": 5, "classes": 3, "blank": 0, "lengths": (5, 3, 4), "targets": ((1, 2), (2,), (1, 1))},
    {"steps": 4, "classes": 4, "blank": 3, "lengths": (4, 4, 0), "targets": ((0, 0), (), ())},
    # Too short, also for the blank between two that are alike; none at all; nothing to be said.
    {
        "steps": 4,
        "classes": 3,
        "blank": 1,
        "zero_infinity": True,
        "lengths": (2, 1, 0, 4),
        "targets": ((0, 0), (0, 2), (2,), ()),
    },
    {
        "steps": 3,
        "classes": 3,
        "blank": 0,
        "lengths": (2, 3, 0),
        "targets": ((1, 1), (1, 2), (1,)),
    },
]
CLASSIFICATIONS = [
    {**case, "padded": padded, "reduction": reduction, "index": index}
    for case in SEQUENCES
    for padded, index in ((True, "int32"), (False, "int64"))
    for reduction in ("mean", "sum", "none")
]

OPERATIONS = [
    Operation("dnn.cross_entropy", DTYPES, ENTROPIES, entropy_inputs, call_entropy, expect_entropy),
    Operation(
        "dnn.cross_entropy_grad",
        DTYPES,
        ENTROPIES,
        entropy_grad_inputs,
        call_entropy_grad,
        expect_entropy_grad,
    ),
    Operation("dnn.cross_entropy", DTYPES, SOFT, soft_inputs, call_entropy, expect_soft),
    Operation(
        "dnn.cross_entropy_grad",
        DTYPES,
        SOFT,
        soft_grad_inputs,
        call_entropy_grad,
        expect_soft_grad,
    ),
    Operation("dnn.ctc_loss", DTYPES, CLASSIFICATIONS, ctc_inputs, call_ctc, expect_ctc),
    Operation(
        "dnn.ctc_loss_grad",
        DTYPES,
        CLASSIFICATIONS,
        ctc_grad_inputs,
        call_ctc_grad,
        expect_ctc_grad,
    ),
]
