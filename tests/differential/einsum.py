"""Cases of ``device.tensor.einsum``: any subscripts, several operands, against NumPy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_accel import Device

from ..libraries.conformance import wide
from .cases import Case, chance, choose, close, values

LETTERS: Final = "abcdef"
DTYPES: Final = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "int32",
    "int64",
)


def subscripts(random: np.random.Generator) -> tuple[str, list[tuple[int, ...]]]:
    """An expression, and the shapes of its operands."""
    extents = {letter: choose(random, (1, 2, 3, 4, 5)) for letter in LETTERS}
    if chance(random, 0.1):
        extents["a"] = 0
    if chance(random, 0.2):
        extents["b"] = 17
    terms = []
    for _ in range(int(random.integers(1, 4))):
        count = int(random.integers(0, 4))
        repeats = chance(random, 0.2)
        terms.append("".join(random.choice(list(LETTERS), count, replace=repeats)))
    used = sorted(set("".join(terms)))
    shapes = [tuple(extents[letter] for letter in term) for term in terms]
    kept = [letter for letter in used if chance(random, 0.5)]
    order = [kept[at] for at in random.permutation(len(kept))]
    text = ",".join(terms)
    return (text if chance(random, 0.1) else f"{text}->{''.join(order)}"), shapes


async def check(device: Device, random: np.random.Generator) -> str | None:
    """Draw a case, run it, and compare."""
    case = Case(device, random)
    with case.described():
        text, shapes = subscripts(random)
        dtype = choose(random, DTYPES)
        arrays = [values(random, of, dtype) for of in shapes]
        case.tell(subscripts=text, shapes=shapes, dtype=dtype)
        large = [wide(array) for array in arrays]
        expected = np.einsum(text, *large)
        terms: Any = np.einsum(text, *[np.abs(array) for array in large])
        refs = [await case.put(array) for array in arrays]
        options: dict[str, Any] = {}
        if chance(random, 0.2):
            options["out"] = await case.output(expected.shape, arrays[0].dtype)
        optimize: Any = choose(random, (True, False, "greedy", "optimal"))
        case.tell(optimize=optimize)
        await case.poison(expected.size * arrays[0].itemsize)
        made = await device.tensor.einsum(text, *refs, optimize=optimize, **options)
        got = await case.fetch(made)
        if arrays[0].dtype.kind in "iu":
            expected = expected.astype(arrays[0].dtype)
        factor = 64.0 if arrays[0].itemsize > 2 else 8.0
        close(got, expected, dtype=arrays[0].dtype, factor=factor, magnitude=terms)
        await case.finish()
    return None
