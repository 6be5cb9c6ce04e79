"""Specs of builds: an algorithm for some types and operators, for all buffers and sizes."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from ....wire import encoder


class OperatorSpec(msgspec.Struct, frozen=True, array_like=True):
    """Operator that an algorithm applies to elements.

    Attributes:
        arguments: dtypes of its arguments, by name.
        result: the dtype of its result.
        kind: its name in ``UNARY`` or ``BINARY``; empty for an operator of the program.
        source: CUDA C++ that declares the program's operator.
        name: the name of the function there.
        function: the function for the CPU, pickled.
    """

    arguments: tuple[str, ...]
    result: str
    kind: str = ""
    source: str = ""
    name: str = ""
    function: bytes = b""


class CubSpec(msgspec.Struct, frozen=True, array_like=True):
    """Description of one build.

    Attributes:
        algorithm: its name, such as ``"reduce"``; see ``host/_algorithms``.
        dtypes: the dtypes of its buffers by name, in the algorithm's order; empty for a missing
            buffer.
        operators: the operators that it applies to elements.
        descending: whether the largest comes first, if it sorts.
        init: whether there is a value to begin with.
        determinism: of reductions; empty for the others.
        levels: edges of a histogram's bins.
    """

    algorithm: str
    dtypes: tuple[str, ...]
    operators: tuple[OperatorSpec, ...] = ()
    descending: bool = False
    init: bool = False
    determinism: str = ""
    levels: int = 0


@lru_cache(1024)
def encode(spec: CubSpec) -> bytes:
    """A spec's bytes; equal ones have the same."""
    return encoder.encode(spec)


def scans_in_order(spec: CubSpec) -> bool:
    """Return whether a kernel of ours runs a scan, which always adds up parts in one order."""
    if spec.algorithm != "inclusive_scan" or spec.init:
        return False
    x, accumulator, out = spec.dtypes
    plain = accumulator == x or (x in ("float16", "bfloat16") and accumulator == "float32")
    known = spec.operators[0].kind in ("plus", "multiplies")
    return known and plain and out == x and x != "bool"


_decoder: Final = msgspec.msgpack.Decoder(CubSpec)


def decode(encoded: bytes) -> CubSpec:
    """The spec of ``encode``."""
    return _decoder.decode(encoded)


class Rule(NamedTuple):
    """An operator that has a name.

    Attributes:
        code: the operator in C++, of ``a`` and ``b``.
        ufunc: the operator in NumPy.
        kinds: the kinds of dtypes that it takes, as ``numpy.dtype.kind`` has them; ``V`` for
            bfloat16.
        truth: whether its result is a bool.
        identity: the value that changes nothing, if all dtypes have the same; -1 for all bits set.
        exact: whether the order in which it is applied makes no difference to floats.
    """

    code: str
    ufunc: str
    kinds: str
    truth: bool = False
    identity: int | None = None
    exact: bool = False


_ANY: Final = "biufVc"
_REAL: Final = "biufV"
_BITS: Final = "biu"

BINARY: Final = {
    "plus": Rule("a + b", "add", _ANY, identity=0),
    "minus": Rule("a - b", "subtract", "iufVc"),
    "multiplies": Rule("a * b", "multiply", _ANY, identity=1),
    "divides": Rule("a / b", "divide", "fVc"),
    "minimum": Rule("(a != a || a < b) ? a : b", "minimum", _REAL, exact=True),
    "maximum": Rule("(a != a || b < a) ? a : b", "maximum", _REAL, exact=True),
    "bit_and": Rule("a & b", "bitwise_and", _BITS, identity=-1),
    "bit_or": Rule("a | b", "bitwise_or", _BITS, identity=0),
    "bit_xor": Rule("a ^ b", "bitwise_xor", _BITS, identity=0),
    "logical_and": Rule(
        "bool(a) && bool(b)", "logical_and", _REAL, truth=True, identity=1, exact=True
    ),
    "logical_or": Rule(
        "bool(a) || bool(b)", "logical_or", _REAL, truth=True, identity=0, exact=True
    ),
    "equal_to": Rule("a == b", "equal", _REAL, truth=True),
    "not_equal_to": Rule("a != b", "not_equal", _REAL, truth=True),
    "less": Rule("a < b", "less", _REAL, truth=True),
    "less_equal": Rule("a <= b", "less_equal", _REAL, truth=True),
    "greater": Rule("a > b", "greater", _REAL, truth=True),
    "greater_equal": Rule("a >= b", "greater_equal", _REAL, truth=True),
}
"""Operators of two arguments, by CUB's names."""

UNARY: Final = {
    "identity": Rule("a", "positive", _ANY),
    "negate": Rule("-a", "negative", "iufVc"),
    "bit_not": Rule("~a", "invert", "iu"),
    "logical_not": Rule("!bool(a)", "logical_not", _REAL, truth=True),
}
"""Operators of one."""

ALIASES: Final = {
    "sum": "plus",
    "add": "plus",
    "prod": "multiplies",
    "multiply": "multiplies",
    "min": "minimum",
    "max": "maximum",
}
"""Other names of operators."""

C_TYPES: Final = {
    "bool": "bool",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
}
"""Names of real dtypes in CUDA C++."""
