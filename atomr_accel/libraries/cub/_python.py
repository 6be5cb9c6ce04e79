"""Operators written in Python, as CUDA C++: a small part of the language.

An expression of the arguments and of numbers: ``+ - * /``, comparisons, ``and or not``,
``min``, ``max``, ``abs`` and ``x if condition else y``. All is computed in the dtype of the
arguments, as NumPy does with its scalars. Whatever else there is in a function is an error that
says so, because it would mean something else on a device.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
from functools import lru_cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..._dtypes import DTYPES, is_float

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAME: Final = "atomr_function"
"""Name of a translated function."""

_ARITHMETIC: Final[dict[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
}
_COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_CALLS: Final = ("min", "max", "abs")
_HELPERS: Final = """
template <class T> __device__ T atomr_min(T a, T b) { return b < a ? b : a; }
template <class T> __device__ T atomr_max(T a, T b) { return a < b ? b : a; }
template <class T> __device__ T atomr_abs(T a) { return a < T(0) || a == T(0) ? T(T(0) - a) : a; }
"""


@lru_cache(256)
def translate(function: Callable[..., Any], count: int, dtype: str, types: str) -> str:
    """Return CUDA C++ that declares the same function as a Python function."""
    what, arguments, body = _parsed(function, count)
    closure = inspect.getclosurevars(function)
    known = {**closure.builtins, **closure.globals, **closure.nonlocals}
    code, truth = _Translator(what, arguments, known, dtype)(body)
    result = "bool" if truth else "T"
    parameters = ", ".join(f"T {name}" for name in _names(count))
    return f"""using T = {types};
{_HELPERS}
__device__ {result} {NAME}({parameters}) {{ return {code}; }}
"""


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"argument_{at}" for at in range(count))


def _parsed(function: Callable[..., Any], count: int) -> tuple[str, tuple[str, ...], ast.expr]:
    """Return a function's name in errors, the names of its arguments, and its expression."""
    if not isinstance(function, FunctionType):
        raise TypeError(
            f"an operator is a name, what device.cub.operator makes, a lambda or a def, not "
            f"{function!r}"
        )
    what = f"operator {function.__name__}"
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        raise TypeError(
            f"{what} has no source that could be read; write it into a file, or in CUDA C++ with "
            "device.cub.operator"
        )
    found = _functions("".join(lines), code)
    if len({ast.dump(node) for node in found}) != 1:
        raise TypeError(
            f"{what} is one of several in its line, and cannot be told from the others; give "
            "each a line of its own"
            if found
            else f"{what} is not in its file as it is here; write it there as a lambda or a def"
        )
    node = found[0]
    given = node.args
    plain = not (given.vararg or given.kwarg or given.kwonlyargs or given.defaults)
    names = tuple(each.arg for each in (*given.posonlyargs, *given.args))
    if not plain or len(names) != count:
        raise TypeError(f"{what} must take {count} plain arguments, not ({ast.unparse(given)})")
    if isinstance(node, ast.Lambda):
        return what, names, node.body
    body = [each for each in node.body if not _is_text(each)]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
        raise TypeError(f"{what}: its body must be one return, of an expression")
    return what, names, body[0].value


def _functions(source: str, code: CodeType) -> list[ast.Lambda | ast.FunctionDef]:
    """The functions in a file that begin where some code does, and take the same."""
    found: list[ast.Lambda | ast.FunctionDef] = []
    for node in ast.walk(_tree(source)):
        if not isinstance(node, ast.Lambda | ast.FunctionDef):
            continue
        name = "<lambda>"
        line = node.lineno
        if isinstance(node, ast.FunctionDef):
            name = node.name
            line = min([line, *(each.lineno for each in node.decorator_list)])
        arguments = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        same = arguments == [*code.co_varnames[: code.co_argcount]]
        if same and (name, line) == (code.co_name, code.co_firstlineno):
            found.append(node)
    if len(found) > 1:  # several in one line: one of them has the columns that the code is of
        found = [node for node in found if isinstance(node, ast.Lambda) and _within(code, node)]
    return found


def _within(code: CodeType, node: ast.Lambda) -> bool:
    """Return whether all code of ``code`` comes from a lambda's body."""
    body = node.body
    start = body.lineno, body.col_offset
    end = body.end_lineno or 0, body.end_col_offset or 0
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
    return bool(places) and all(start <= place < end for place in places)


@lru_cache(16)
def _tree(source: str) -> ast.AST:
    return ast.parse(source)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class _Translator:
    """Turns expressions into code, and reports whether they are boolean."""

    def __init__(
        self, what: str, arguments: Sequence[str], known: dict[str, Any], dtype: str
    ) -> None:
        self._what = what
        self._arguments = dict(zip(arguments, _names(len(arguments)), strict=True))
        self._known = known
        self._dtype = DTYPES[dtype]

    def __call__(self, node: ast.expr) -> tuple[str, bool]:
        match node:
            case ast.Name(id=name) if name in self._arguments:
                return self._arguments[name], self._dtype.kind == "b"
            case ast.Name(id=name) if name in self._known:
                return self._number(node, self._known[name])
            case ast.Constant(value=value):
                return self._number(node, value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"T(-{self._numeric(operand)})", False
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._numeric(operand), False
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"(!{self._truth(operand)})", True
            case ast.BoolOp(op=op, values=values):
                sign = " && " if isinstance(op, ast.And) else " || "
                return f"({sign.join(map(self._truth, values))})", True
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                if isinstance(op, ast.Div) and self._dtype.kind in "iu":
                    raise self._refuse(
                        node, "a division of whole numbers, which NumPy gives as float64"
                    )
                sign = _ARITHMETIC[type(op)]
                return f"T({self._numeric(left)} {sign} {self._numeric(right)})", False
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compared(node, left, ops, others), True
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                one, other = self(body), self(otherwise)
                if one[1] != other[1]:
                    raise self._refuse(node, "a choice between a number and a truth")
                return f"({self._truth(test)} ? {one[0]} : {other[0]})", one[1]
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._call(node, name, args), False
        raise self._refuse(node, "which is no part of Python that operators can have")

    def _call(self, node: ast.Call, name: str, args: list[ast.expr]) -> str:
        function = self._known.get(name)
        if name not in _CALLS or function is not getattr(builtins, name):
            raise self._refuse(node, f"a call of another function than {', '.join(_CALLS)}")
        if len(args) < 2 if name != "abs" else len(args) != 1:
            raise self._refuse(node, "with a wrong number of arguments")
        code = self._numeric(args[0])
        if name == "abs":
            return f"atomr_abs<T>({code})"
        for each in args[1:]:
            code = f"atomr_{name}<T>({code}, {self._numeric(each)})"
        return code

    def _compared(
        self, node: ast.Compare, left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr]
    ) -> str:
        parts = []
        for op, other in zip(ops, others, strict=True):
            sign = _COMPARISONS.get(type(op))
            if sign is None:
                raise self._refuse(node, "which compares by something else than < <= > >= == !=")
            parts.append(f"({self(left)[0]} {sign} {self(other)[0]})")
            left = other
        return f"({' && '.join(parts)})"

    def _number(self, node: ast.expr, value: Any) -> tuple[str, bool]:
        if isinstance(value, bool | np.bool_):
            return str(bool(value)).lower(), True
        if isinstance(value, np.generic):
            value = value.item()
        kind = self._dtype.kind
        if isinstance(value, int) and kind in "iu":
            info = np.iinfo(self._dtype)
            if not info.min <= value <= info.max:
                raise self._refuse(node, f"a number that {self._dtype.name} does not hold")
            suffix = "ull" if value > 2**63 - 1 else "ll"
            if value == -(2**63):
                return f"T(-{2**63 - 1}ll - 1)", False
            return f"T({value}{suffix})", False
        if isinstance(value, int | float) and is_float(self._dtype):
            number = float(value)
            if not np.isfinite(number):
                raise self._refuse(node, "a number that is not finite")
            literal = number.hex()
            return f"T({literal})", False
        raise self._refuse(node, f"where {self._dtype.name} has no such number")

    def _numeric(self, node: ast.expr) -> str:
        code, truth = self(node)
        if truth:
            raise self._refuse(node, "a truth where a number is wanted")
        return code

    def _truth(self, node: ast.expr) -> str:
        code, truth = self(node)
        if not truth:
            raise self._refuse(node, "a number where a truth is wanted; compare it with something")
        return code

    def _refuse(self, node: ast.expr, why: str) -> TypeError:
        return TypeError(
            f"{self._what} has {ast.unparse(node)!r}, {why}; write it in CUDA C++, with "
            "device.cub.operator"
        )
