"""Text of expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .expression import Operand

_INFIX: Final = {
    "add": ("+", 6),
    "subtract": ("-", 6),
    "multiply": ("*", 7),
    "matmul": ("@", 7),
    "divide": ("/", 7),
    "floor_divide": ("//", 7),
    "remainder": ("%", 7),
    "power": ("**", 9),
    "left_shift": ("<<", 5),
    "right_shift": (">>", 5),
    "bitwise_and": ("&", 4),
    "bitwise_xor": ("^", 3),
    "bitwise_or": ("|", 2),
    "less": ("<", 1),
    "less_equal": ("<=", 1),
    "greater": (">", 1),
    "greater_equal": (">=", 1),
    "equal": ("==", 1),
    "not_equal": ("!=", 1),
}
_METHODS: Final = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_or": "any",
    "logical_and": "all",
}
_ATOM: Final = 10
_LONGEST: Final = 400
_DEEPEST: Final = 40
_MOST: Final = 400


def text_of(expression: Operand) -> str:
    """An expression as a NumPy program has it, with letters for its refs."""
    text = _TextWriter().text(expression)[0]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


class _TextWriter:
    """Names refs in the order in which they come."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._seen = 0

    def _name(self, leaf: object) -> str:
        count = len(self._names)
        letters = chr(ord("a") + count % 26) + (str(count // 26) if count >= 26 else "")
        return self._names.setdefault(id(leaf), letters)

    def text(self, x: Any, depth: int = 0) -> tuple[str, int]:
        """The text, and how tightly its outermost operator binds."""
        kind = getattr(x, "kind", None)
        # What is shared is written each time: so much of it, and no more, is gone through.
        self._seen += 1
        if kind is None:
            return self._name(x), _ATOM
        if depth > _DEEPEST or self._seen > _MOST:
            return "...", _ATOM
        if kind == "constant":
            text = str(x.params[0])
            return text, 8 if text.startswith("-") else _ATOM
        if kind == "index":
            return f"index(axis={x.params[0]})", _ATOM
        name, args = x.name, x.args
        if kind in ("ufunc", "matmul") and name in _INFIX:
            sign, binds = _INFIX[name]
            left, right = self.text(args[0], depth + 1), self.text(args[1], depth + 1)
            return f"{_within(left, binds)} {sign} {_within(right, binds + 1)}", binds
        if kind == "ufunc" and name == "negative":
            return f"-{_within(self.text(args[0], depth + 1), 8)}", 8
        if kind in ("cast", "reduce", "arg", "view"):
            inner = _within(self.text(args[0], depth + 1), _ATOM)
            if kind == "cast":
                return f"{inner}.astype({x.dtype.name})", _ATOM
            if kind == "view":
                return f"{inner}.view{list(x.shape)}", _ATOM
            axes, keepdims = x.params
            options = f"axis={axes[0] if len(axes) == 1 else axes}"
            options += ", keepdims=True" if keepdims else ""
            return f"{inner}.{_METHODS.get(name, name)}({options})", _ATOM
        texts = ", ".join(self.text(arg, depth + 1)[0] for arg in args)
        return f"{name.replace(':', '_') or kind}({texts})", _ATOM


def _within(part: tuple[str, int], binds: int) -> str:
    text, inner = part
    return f"({text})" if inner < binds else text
