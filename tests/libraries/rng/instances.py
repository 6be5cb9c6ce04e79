"""The instances of the RNG lane's kernels that the package compiles."""

from __future__ import annotations

from atomr_accel.executors.device_code import C_TYPES
from atomr_accel.libraries.rng.host._source import ROWS, type_of
from atomr_accel.libraries.rng.wire._distributions import DISTRIBUTIONS, FLOATS, WHOLE
from atomr_accel.libraries.rng.wire._messages import Distribution

from ..conformance import Array

WHOLE_LAWS = ("search", "geometric", "poisson", "negative_binomial")
FILL = "{t}* out; u64 count; u64 key; u64 first; Params p"
APPLY = "{t}* out; const uint4* there; u64 count; u64 key; u64 first; Params p"
SOBOL = (
    "{t}* out; const {w}* vectors; const {w}* scramble; u64 count; u64 first; u64 dims; Params p"
)


def a_distribution(
    name: str, dtype: str, floats: tuple[float, ...] = (), **more: int
) -> Distribution:
    values = {"low": 0, "span": 0, "table": 0, "extent": 0, **more}
    return Distribution(name, dtype, floats, **values)


def instances(whole: tuple[str, ...] = (*WHOLE, "bool")) -> dict[str, str]:
    """Every kernel for every law and dtype, with its parameters."""
    members: dict[str, str] = {}
    for name, rule in DISTRIBUTIONS.items():
        integral = name.startswith("integers") or name in WHOLE_LAWS
        for dtype in whole if integral else FLOATS:
            law, t = type_of(a_distribution(name, dtype)), C_TYPES[dtype]
            if rule.until_accepted:
                members[f"draw_each<{law}>"] = FILL.format(t=t)
                continue
            members[f"fill<{law}>"] = FILL.format(t=t)
            members[f"apply<{law}>"] = APPLY.format(t=t)
            for word in ("u32", "u64"):
                members[f"sobol<{law}, {word}>"] = SOBOL.format(t=t, w=word)
    members["draw_each<Race>"] = FILL.format(t="double")
    members["first_of"] = "i64* out; const double* times; u64 items; u64 wanted"
    members["permute"] = "i64* out; u64 items; u64 wanted; u64 key; u64 call"
    for row in ROWS.values():
        members[f"take<{row}>"] = (
            f"{row}* out; const {row}* rows; const i64* index; u64 count; u64 width"
        )
    return members


def at(array: Array | None) -> int:
    return 0 if array is None else array.ctypes.data
