"""Batched factorizations."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...conformance import Array, Near, Operation, Sample, product
from .common import DOUBLES, each, op, solve

STACKS = product(lead=[(), (3,), (2, 2), (0,)], n=[0, 1, 5, 17])


def square_stack(sample: Sample, lead: tuple[int, ...], n: int, **_: Any) -> tuple[Array, ...]:
    return (sample.array(*lead, n, n),)


async def call_getrf(device: Any, a: Any, **_: Any) -> Any:
    lu, piv, info = await device.blas.getrf_batched(a)
    host, pivots = await device.get(lu), await device.get(piv)
    # Factors are not unique to the last bit, but their product is.
    products = np.empty(host.shape, host.dtype)
    for one, factors, swaps in zip(each(products), each(host), each(pivots, 1), strict=True):
        lower, upper = np.tril(factors, -1) + np.eye(len(factors)), np.triu(factors)
        assert (np.abs(lower) <= 1 + 1e-3).all() or factors.dtype.kind == "c"
        whole = lower @ upper
        for i in range(len(swaps) - 1, -1, -1):
            whole[[i, swaps[i]]] = whole[[swaps[i], i]]
        one[...] = whole
    return products, info


def factored(a: Array, lead: tuple[int, ...], **_: Any) -> tuple[Near, Near]:
    return Near(a, np.abs(a).sum(-1, keepdims=True) + 1), Near(
        np.zeros(lead, np.int64), dtype="int32"
    )


def systems(sample: Sample, lead: tuple[int, ...], n: int, nrhs: int | None, **_: Any) -> Any:
    right = sample.array(*lead, n) if nrhs is None else sample.array(*lead, n, nrhs)
    return sample.regular(*lead, n, n), right


async def call_solve(device: Any, a: Any, b: Any, trans: Any, **_: Any) -> Any:
    lu, piv, _info = await device.blas.getrf_batched(a)
    return await device.blas.getrs_batched(lu, piv, b, trans=trans)


def solved(a: Array, b: Array, trans: Any, lead: tuple[int, ...], n: int, nrhs: int | None) -> Near:
    value = np.zeros(b.shape, b.dtype)
    ndim = 1 if nrhs is None else 2
    for one, matrix, right in zip(each(value, ndim), each(a), each(b, ndim), strict=True):
        one[...] = solve(op(matrix, trans), right)
    return Near(value)


async def call_inverse(device: Any, a: Any, **_: Any) -> Any:
    lu, piv, _info = await device.blas.getrf_batched(a)
    return await device.blas.getri_batched(lu, piv)


def inverses(a: Array, lead: tuple[int, ...], n: int) -> tuple[Near, Near]:
    value = np.zeros(a.shape, a.dtype)
    for one, matrix in zip(each(value), each(a), strict=True):
        one[...] = solve(matrix, np.eye(n, dtype=a.dtype))
    return Near(value), Near(np.zeros(lead, np.int64), dtype="int32")


async def call_qr(device: Any, a: Any, **_: Any) -> Any:
    qr, tau = await device.blas.geqrf_batched(a)
    host, scalars = await device.get(qr), await device.get(tau)
    products = np.empty(host.shape, host.dtype)
    for one, factors, each_tau in zip(each(products), each(host), each(scalars, 1), strict=True):
        whole = np.triu(factors)
        for i in range(len(each_tau) - 1, -1, -1):
            reflector = np.concatenate([np.zeros(i), [1], factors[i + 1 :, i]])
            whole = whole - each_tau[i] * np.outer(reflector, reflector.conj() @ whole)
        one[...] = whole
    return products


def rectangular(sample: Sample, lead: tuple[int, ...], m: int, n: int) -> tuple[Array, ...]:
    return (sample.array(*lead, m, n),)


def least_inputs(sample: Sample, lead: Any, m: int, n: int, nrhs: int | None) -> Any:
    a = sample.array(*lead, m, n)
    if n:
        a[..., :n, :n] = sample.regular(*lead, n, n)
    return a, sample.array(*lead, m) if nrhs is None else sample.array(*lead, m, nrhs)


def least(a: Array, b: Array, lead: Any, m: int, n: int, nrhs: int | None) -> tuple[Near, Near]:
    value = np.zeros((*lead, n) if nrhs is None else (*lead, n, nrhs), b.dtype)
    ndim = 1 if nrhs is None else 2
    for one, matrix, right in zip(each(value, ndim), each(a), each(b, ndim), strict=True):
        adjoint = matrix.conj().T
        one[...] = solve(adjoint @ matrix, adjoint @ right)
    return Near(value), Near(np.zeros(lead, np.int64), dtype="int32")


FACTORIZATIONS = [
    Operation("blas.getrf_batched", DOUBLES, STACKS, square_stack, call_getrf, factored, factor=64),
    Operation(
        "blas.getrs_batched",
        DOUBLES,
        [
            {**case, "nrhs": nrhs, "trans": trans}
            for case in STACKS
            for nrhs in (None, 1, 4)
            for trans in (0, 1, 2)
        ],
        systems,
        call_solve,
        solved,
        factor=256,
    ),
    Operation(
        "blas.getri_batched",
        DOUBLES,
        STACKS,
        lambda sample, lead, n: (sample.regular(*lead, n, n),),
        call_inverse,
        inverses,
        factor=256,
    ),
    Operation(
        "blas.matinv_batched",
        DOUBLES,
        STACKS[::3],
        lambda sample, lead, n: (sample.regular(*lead, n, n),),
        lambda device, a, **_: device.blas.matinv_batched(a),
        inverses,
        factor=256,
    ),
    Operation(
        "blas.geqrf_batched",
        DOUBLES,
        product(lead=[(), (3,), (2, 2)], m=[1, 5, 17], n=[1, 5]),
        rectangular,
        call_qr,
        lambda a, **_: Near(a, np.abs(a).sum((-1, -2), keepdims=True)),
        factor=16,
    ),
    Operation(
        "blas.gels_batched",
        DOUBLES,
        product(lead=[(), (3,), (0,)], m=[5, 17], n=[1, 5], nrhs=[None, 1, 3]),
        least_inputs,
        lambda device, a, b, **_: device.blas.gels_batched(a, b),
        least,
        factor=512,
    ),
]
