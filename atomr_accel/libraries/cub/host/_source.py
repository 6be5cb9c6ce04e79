"""CUDA C++ of operators and iterators, which are linked into CUB's kernels.

A linked function has untyped arguments: pointers to its inputs, then to its result.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ..wire._spec import BINARY, C_TYPES, UNARY

if TYPE_CHECKING:
    from ..wire._spec import OperatorSpec

TYPES: Final = {**C_TYPES, "complex64": "Complex<float>", "complex128": "Complex<double>"}
"""Names of dtypes in CUDA C++."""

COMPLEX: Final = """
template <class T>
struct Complex {
  T real, imag;
};
template <class T>
__device__ Complex<T> operator+(Complex<T> a, Complex<T> b) {
  return {a.real + b.real, a.imag + b.imag};
}
template <class T>
__device__ Complex<T> operator-(Complex<T> a, Complex<T> b) {
  return {a.real - b.real, a.imag - b.imag};
}
template <class T>
__device__ Complex<T> operator-(Complex<T> a) {
  return {-a.real, -a.imag};
}
template <class T>
__device__ Complex<T> operator*(Complex<T> a, Complex<T> b) {
  return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
}
template <class T>
__device__ Complex<T> operator/(Complex<T> a, Complex<T> b) {
  if (fabs(b.real) >= fabs(b.imag)) {
    T ratio = b.imag / b.real, scale = b.real + b.imag * ratio;
    return {(a.real + a.imag * ratio) / scale, (a.imag - a.real * ratio) / scale};
  }
  T ratio = b.real / b.imag, scale = b.real * ratio + b.imag;
  return {(a.real * ratio + a.imag) / scale, (a.imag * ratio - a.real) / scale};
}
"""

ARGUMENTS: Final = ("a", "b")
_INCLUDE: Final = re.compile(r"\s*#\s*include\b")


def head(dtypes: tuple[str, ...]) -> str:
    """Return the first lines of code for some dtypes."""
    lines = []
    if "float16" in dtypes:
        lines.append("#include <cuda_fp16.h>")
    if "bfloat16" in dtypes:
        lines.append("#include <cuda_bf16.h>")
    if any(name.startswith("complex") for name in dtypes):
        lines.append(COMPLEX)
    return "\n".join(lines)


def operator_source(operator: OperatorSpec, symbol: str) -> str:
    """Return the function that links an operator."""
    names = ARGUMENTS[: len(operator.arguments)]
    code = operator.source
    call = f"{operator.name}({', '.join(names)})"
    if operator.kind:
        rules = UNARY if len(names) == 1 else BINARY
        call, code = _named(rules[operator.kind].code, operator), ""
    loads = "\n".join(
        f"  const {TYPES[dtype]} {name} = *static_cast<const {TYPES[dtype]}*>(at_{name});"
        for name, dtype in zip(names, operator.arguments, strict=True)
    )
    pointers = ", ".join(f"void* at_{name}" for name in names)
    result = TYPES[operator.result]
    return f"""{head((*operator.arguments, operator.result))}
{_apart(code)}
extern "C" __device__ void {symbol}({pointers}, void* at_result) {{
{loads}
  *static_cast<{result}*>(at_result) = {_converted(result, operator, call)};
}}
"""


def _apart(source: str) -> str:
    """Return the program's source with its names hidden from other linked code."""
    lines = source.splitlines()
    included = [line for line in lines if _INCLUDE.match(line)]
    rest = ["" if _INCLUDE.match(line) else line for line in lines]
    return "\n".join((*included, "namespace {", *rest, "}"))


def _named(code: str, operator: OperatorSpec) -> str:
    """The code of a rule, for some dtypes."""
    if operator.result == "bool" and operator.arguments[0] == "bool":
        # The same as in NumPy: the sum of bools is their disjunction.
        return code.replace("a + b", "a || b").replace("a * b", "a && b")
    return code


def _converted(result: str, operator: OperatorSpec, call: str) -> str:
    """A value in the dtype of the result."""
    given = operator.arguments[0]
    halves = ("float16", "bfloat16")
    if operator.result in halves and given in halves and operator.result != given:
        return f"static_cast<{result}>(static_cast<float>({call}))"
    return f"static_cast<{result}>({call})"


def pair_source(dtype: str, symbol: str) -> str:
    """Return the read function of an iterator over two arrays: elements, and flags.

    Its state is two pointers and an index; its values are ``Pair``.
    """
    return f"""{_pair(dtype)}
extern "C" __device__ void {symbol}(void* state, void* result) {{
  const State* at = static_cast<const State*>(state);
  Pair pair;
  pair.value = static_cast<const {TYPES[dtype]}*>(at->values)[at->index];
  pair.index = static_cast<const unsigned char*>(at->flags)[at->index];
  *static_cast<Pair*>(result) = pair;
}}
"""


def advance_source(symbol: str) -> str:
    """Return the function that moves any iterator of ours: its state ends with the index."""
    return f"""{_STATE}
extern "C" __device__ void {symbol}(void* state, void* offset) {{
  static_cast<State*>(state)->index += *static_cast<const long long*>(offset);
}}
"""


def value_source(dtype: str, symbol: str) -> str:
    """Return the function that writes the value of a pair."""
    return f"""{_pair(dtype)}
extern "C" __device__ void {symbol}(void* state, void* given) {{
  const State* at = static_cast<const State*>(state);
  static_cast<{TYPES[dtype]}*>(at->values)[at->index] = static_cast<const Pair*>(given)->value;
}}
"""


def place_source(symbol: str) -> str:
    """Return the read function of an iterator over positions."""
    return f"""{_STATE}
extern "C" __device__ void {symbol}(void* state, void* result) {{
  *static_cast<unsigned long long*>(result) = static_cast<const State*>(state)->index;
}}
"""


def taken_source(dtype: str, symbol: str) -> str:
    """Return the function that takes a position, and writes the element at it of another array.

    Its state has the array to write first, then the array to read.
    """
    return f"""{head((dtype,))}
{_STATE}
extern "C" __device__ void {symbol}(void* state, void* given) {{
  const State* at = static_cast<const State*>(state);
  const unsigned long long place = *static_cast<const unsigned long long*>(given);
  const {TYPES[dtype]}* values = static_cast<const {TYPES[dtype]}*>(at->flags);
  static_cast<{TYPES[dtype]}*>(at->values)[at->index] = values[place];
}}
"""


def ignored_source(symbol: str) -> str:
    """Return a function that neither reads nor writes."""
    return f'extern "C" __device__ void {symbol}(void*, void*) {{}}\n'


def flagged_source(dtype: str, symbol: str) -> str:
    """Return the function that tests the flag of a pair."""
    return f"""{_pair(dtype)}
extern "C" __device__ void {symbol}(void* given, void* result) {{
  *static_cast<bool*>(result) = static_cast<const Pair*>(given)->index != 0;
}}
"""


def constant_source(symbol: str, *, truth: bool) -> str:
    """A predicate that looks at nothing."""
    return f"""extern "C" __device__ void {symbol}(void*, void* result) {{
  *static_cast<bool*>(result) = {str(truth).lower()};
}}
"""


def ordered_source(dtype: str, symbol: str, *, descending: bool = False) -> str:
    """Return the comparison by which one element comes before another; NaN is the largest."""
    x, y = ("y", "x") if descending else ("x", "y")
    return f"""{head((dtype,))}
extern "C" __device__ void {symbol}(void* one, void* other, void* result) {{
  const {TYPES[dtype]} x = *static_cast<const {TYPES[dtype]}*>(one);
  const {TYPES[dtype]} y = *static_cast<const {TYPES[dtype]}*>(other);
  *static_cast<bool*>(result) = {x} < {y} || ({y} != {y} && {x} == {x});
}}
"""


_STATE: Final = """
struct State {
  void* values;
  void* flags;
  long long index;
};
"""


def _pair(dtype: str) -> str:
    return f"""{head((dtype,))}
{_STATE}
struct alignas(8) Pair {{
  {TYPES[dtype]} value;
  long long index;
}};
"""
