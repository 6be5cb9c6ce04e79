"""The routines of levels 1 to 3, a row for each.

A row holds the facts that program and host share about a routine: its arguments and their roles,
its dtypes, the operands that it reads and writes, and the vendor's function. Checks, messages,
executors and tests iterate over the rows. A new routine needs a row, a line for the CPU
(``host/_cpu_routines``), and the method with its docstring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

SINGLE_OR_DOUBLE: Final = ("float32", "float64", "complex64", "complex128")
REAL: Final = ("float32", "float64")
COMPLEX: Final = ("complex64", "complex128")
FLOATS: Final = ("float16", "bfloat16", *SINGLE_OR_DOUBLE)
REAL_OF: Final = {"complex64": "float32", "complex128": "float64"}
"""The real dtype of the same precision; others are their own."""


PARAMETERS: Final = ("5",)
"""The shape of a modified rotation."""


class RowOperand(NamedTuple):
    """A vector, a matrix or a scalar result of a routine.

    Attributes:
        name: of the argument.
        shape: its sizes after transposing: ``("m", "n")`` for a matrix, one for a vector, none for
            a number. ``"s"`` is the size on the matrix's side: n on the right, m on the left.
            ``"5"`` stands for five numbers in a row.
        access: ``"r"`` read, ``"w"`` written, ``"rw"`` both; ``"beta"`` is written, and read unless
            beta is 0.
        word: the vendor's name for it.
        steps: the letter of a vector's increment among the vendor's arguments: x or y.
        trans: the option that transposes it.
        structure: the relation of the part that is read to the whole matrix.
        form: the storage of a matrix that is not full: a row for each diagonal of a band, or one
            column of a triangle after the other.
        dtype: ``"real"`` or ``"index"`` if it differs from the dtype of the other operands.
        made: how it is made if it is absent; ``""`` if it must be given.
    """

    name: str
    shape: tuple[str, ...]
    access: Literal["r", "w", "rw", "beta"] = "r"
    word: str = ""
    steps: Literal["", "x", "y"] = ""
    trans: str = ""
    structure: Literal["", "symmetric", "hermitian", "triangular"] = ""
    form: Literal["", "band", "packed"] = ""
    dtype: Literal["", "real", "index"] = ""
    made: Literal["", "empty", "zeros"] = ""

    @property
    def written(self) -> bool:
        """Return True if the routine writes it."""
        return self.access != "r"

    @property
    def gaps(self) -> bool:
        """Return True if there may be gaps: between the values of a vector, or between rows."""
        return bool(self.steps) or (len(self.shape) > 1 and not self.form)

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of all sizes that it has; ``k`` is how many diagonals are beside the main one.

        A band without structure has those that the caller counts.
        """
        if self.shape == PARAMETERS:
            return ()
        return (*self.shape, "k") if self.form == "band" and self.structure else self.shape

    def dtype_of(self, dtype: str) -> str:
        """Its dtype, where the others have this one."""
        if not self.dtype:
            return dtype
        return "int64" if self.dtype == "index" else REAL_OF.get(dtype, dtype)


@dataclass(frozen=True, eq=False)
class Row:
    """A description of one routine.

    Attributes:
        name: of the method.
        formula: its results as NumPy expressions of whole operands, transposed and completed by
            their structure. ``mul`` and ``solve`` depend on the side. Tests compare the routine
            with it.
        operands: in the order in which they are checked.
        vendor: the letter of the vendor's function (see ``symbol``), its name, and its arguments;
            None if others do its work.
        half: the vendor's function for 16-bit types, and its arguments.
        dtypes: of the operands.
        scalars: names; with ``:real`` those that are real for complex dtypes too.
        options: of ``lower``, ``side``, ``unit_diagonal`` and those that transpose.
        counts: sizes that the caller passes, because the operands do not determine them.
        in_place: operands that may be exactly the written one.
        forward: when steps must be positive: always, or for conjugates. ``"unordered"`` is always,
            for routines that may read a vector from its end.
        transposes: the transpositions that matrices of a complex dtype allow.
        filled: True if it needs at least one element.
    """

    name: str
    formula: str
    operands: tuple[RowOperand, ...]
    vendor: tuple[str, str, str] | None = None
    half: tuple[str, str] | None = None
    dtypes: tuple[str, ...] = SINGLE_OR_DOUBLE
    scalars: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()
    forward: Literal["", "always", "conjugates", "unordered"] = ""
    transposes: tuple[int, ...] = (0, 1, 2)
    filled: bool = False

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """The names of its sizes, in the order of messages."""
        sizes = [size for operand in self.operands for size in operand.sizes if size != "s"]
        return tuple(dict.fromkeys((*self.counts, *sizes)))

    @cached_property
    def numbers(self) -> tuple[tuple[str, bool], ...]:
        """Names of scalars, and whether they are real for complex dtypes too."""
        return tuple((each.removesuffix(":real"), each.endswith(":real")) for each in self.scalars)

    def scalar_dtype(self, name: str, dtype: str) -> str:
        """The dtype in which a scalar is passed."""
        if dict(self.numbers)[name]:
            dtype = REAL_OF.get(dtype, dtype)
        rotates = name in ("c", "s")
        return "float32" if dtype in ("float16", "bfloat16") and not rotates else dtype

    @cached_property
    def written(self) -> tuple[int, ...]:
        """The positions of the operands that it writes."""
        return tuple(at for at, each in enumerate(self.operands) if each.written)

    def shapes(self, sizes: Mapping[str, int], options: Mapping[str, int]) -> list[tuple[int, ...]]:
        """The shapes of all operands in memory."""
        known = {**sizes, "s": sizes["n"] if options.get("side") else sizes.get("m", 0)}
        found = []
        for operand in self.operands:
            shape = tuple(known[size] if size != "5" else 5 for size in operand.shape)
            if options.get(operand.trans):
                shape = shape[::-1]
            if operand.form == "band":
                beside = sizes["k"] if operand.structure else sizes["kl"] + sizes["ku"]
                shape = (beside + 1, shape[1])
            elif operand.form:
                shape = (packed(shape[0]),)
            found.append(shape)
        return found


def packed(n: int) -> int:
    """Return the number of elements of a packed triangle."""
    return n * (n + 1) // 2


def _in(name: str, size: str = "n") -> RowOperand:
    """A vector that is read."""
    steps: Any = name
    return RowOperand(name, (size,), word=name, steps=steps)


def _matrix(name: str, *shape: str, trans: str = "", structure: Any = "") -> RowOperand:
    """A matrix that is read."""
    return RowOperand(name, shape, word=name, trans=trans, structure=structure)


_X: Final = _in("x")
_Y: Final = _in("y")
_X_BOTH: Final = _X._replace(access="rw")
_Y_BOTH: Final = _Y._replace(access="rw")
_RESULT: Final = RowOperand("out", (), "w", "result", made="empty")
_MAGNITUDE: Final = "abs(real(x)) + abs(imag(x))"

_SYMMETRIC: Final = _matrix("a", "n", "n", structure="symmetric")
_HERMITIAN: Final = _SYMMETRIC._replace(structure="hermitian")
_TRIANGLE: Final = _matrix("a", "n", "n", trans="trans", structure="triangular")
_OUT_N: Final = RowOperand("out", ("n",), "beta", "y", "y", made="empty")
_OUT_M: Final = _OUT_N._replace(shape=("m",))
_SOLVED: Final = RowOperand("out", ("n",), "w", "x", "x", made="empty")
_ADDED: Final = RowOperand("a", ("m", "n"), "rw", "a", made="zeros")
_HALF_ADDED: Final = RowOperand("a", ("n", "n"), "rw", "a", made="zeros", structure="symmetric")

_HALF_HERMITIAN: Final = _HALF_ADDED._replace(structure="hermitian")

_BESIDE: Final = _matrix("a", "s", "s")
_B: Final = _matrix("b", "m", "n")
_C: Final = RowOperand("out", ("m", "n"), "w", "c", made="empty")
_C_BETA: Final = _C._replace(access="beta")
_WIDE_A: Final = _matrix("a", "n", "k", trans="trans")
_WIDE_B: Final = _matrix("b", "n", "k", trans="trans")
_C_HALF: Final = RowOperand("out", ("n", "n"), "beta", "c", structure="symmetric", made="zeros")
_C_HERMITIAN: Final = _C_HALF._replace(structure="hermitian")


def _band(operand: RowOperand) -> RowOperand:
    """A matrix of which only some diagonals are there."""
    return operand._replace(form="band")


def _packed(operand: RowOperand) -> RowOperand:
    """A matrix of which only a triangle is there."""
    return operand._replace(form="packed", name="ap", word="ap")


_REDUCED: Final = "n x incx result"
_HALF_REDUCED: Final = "n x type incx result type scale"
_HALF_TWO: Final = "n x type incx y type incy"
_FACTORS: Final = ("alpha", "beta")

_SQUARE: Final = "alpha * outer(x, x)"
_SQUARES: Final = "alpha * (outer(x, y) + outer(y, x))"
_HERMITIAN_SQUARE: Final = "alpha * outer(x, conj(x))"
_HERMITIAN_SQUARES: Final = "alpha * outer(x, conj(y)) + conj(alpha) * outer(y, conj(x))"


def _level1(
    name: str,
    formula: str,
    operands: tuple[RowOperand, ...],
    vendor: tuple[str, str, str],
    half: tuple[str, str],
    **more: Any,
) -> Row:
    return Row(name, formula, operands, vendor, half, FLOATS, **more)


_LEVEL1: Final = (
    _level1(
        "axpy",
        "a * x + y",
        (_X, _Y_BOTH),
        ("t", "axpy_v2", "n alpha x incx y incy"),
        ("AxpyEx", "n alpha scale x type incx y type incy scale"),
        scalars=("a",),
        in_place=("x",),
    ),
    _level1(
        "scal",
        "a * x",
        (_X_BOTH,),
        ("t", "scal_v2", "n alpha x incx"),
        ("ScalEx", "n alpha scale x type incx scale"),
        scalars=("a",),
        forward="unordered",
    ),
    _level1(
        "copy",
        "x",
        (_X, _Y._replace(access="rw", made="empty")),
        ("t", "copy_v2", "n x incx y incy"),
        ("CopyEx", _HALF_TWO),
    ),
    _level1(
        "swap",
        "y, x",
        (_X_BOTH, _Y_BOTH),
        ("t", "swap_v2", "n x incx y incy"),
        ("SwapEx", _HALF_TWO),
    ),
    _level1(
        "rot",
        "c * x + s * y, c * y - conj(s) * x",
        (_X_BOTH, _Y_BOTH),
        ("t", "rot_v2", "n x incx y incy cosine sine"),
        ("RotEx", f"{_HALF_TWO} cosine sine type scale"),
        scalars=("c:real", "s"),
    ),
    Row(
        "rotm",
        "rotm(x, y, param)",
        (_X_BOTH, _Y_BOTH, RowOperand("param", PARAMETERS, word="param")),
        ("t", "rotm_v2", "n x incx y incy param"),
        dtypes=REAL,
    ),
    Row(
        "rotg",
        "rotg(a, b)",
        (
            *(RowOperand(name, (), "rw", name) for name in ("a", "b")),
            _RESULT._replace(name="c", word="cosine", dtype="real"),
            _RESULT._replace(name="s", word="sine"),
        ),
        ("t", "rotg_v2", "a b cosine sine"),
    ),
    Row(
        "rotmg",
        "rotmg(d1, d2, x1, y1)",
        (
            *(RowOperand(name, (), "rw", name) for name in ("d1", "d2", "x1")),
            RowOperand("y1", (), word="y1"),
            RowOperand("param", PARAMETERS, "w", "param", made="empty"),
        ),
        ("t", "rotmg_v2", "d1 d2 x1 y1 param"),
        dtypes=REAL,
    ),
    *(
        _level1(
            name,
            formula,
            (_X, _Y, _RESULT),
            (letter, "dot", "n x incx y incy result"),
            (half, f"{_HALF_TWO} result type scale"),
        )
        for name, formula, letter, half in (
            ("dot", "x @ y", "u", "DotEx"),
            ("dotc", "conj(x) @ y", "c", "DotcEx"),
        )
    ),
    *(
        _level1(
            name,
            formula,
            (_X, _RESULT._replace(dtype="real")),
            ("r", f"{name}_v2", _REDUCED),
            (f"{name.capitalize()}Ex", _HALF_REDUCED),
            forward="unordered",
        )
        for name, formula in (
            ("nrm2", "sqrt(sum(abs(x) ** 2))"),
            ("asum", f"sum({_MAGNITUDE})"),
        )
    ),
    *(
        _level1(
            name,
            f"arg{name[1:]}({_MAGNITUDE})",
            (_X, _RESULT._replace(dtype="index")),
            ("i", f"{name}_v2", _REDUCED),
            (f"I{name}Ex", "n x type incx result"),
            forward="always",
            filled=True,
        )
        for name in ("amax", "amin")
    ),
)

_LEVEL2: Final = (
    Row(
        "gemv",
        "alpha * a @ x + beta * out",
        (_matrix("a", "m", "n", trans="trans"), _X, _OUT_M),
        ("t", "gemv_v2", "trans m n alpha a lda x incx beta y incy"),
        dtypes=FLOATS,
        scalars=_FACTORS,
        options=("trans",),
        forward="conjugates",
    ),
    Row(
        "gbmv",
        "alpha * a @ x + beta * out",
        (_band(_matrix("a", "m", "n", trans="trans")), _X, _OUT_M),
        ("t", "gbmv_v2", "trans m n kl ku alpha a lda x incx beta y incy"),
        scalars=_FACTORS,
        options=("trans",),
        counts=("m", "n", "kl", "ku"),
    ),
    Row(
        "symv",
        "alpha * a @ x + beta * out",
        (_SYMMETRIC, _X, _OUT_N),
        ("t", "symv_v2", "uplo n alpha a lda x incx beta y incy"),
        scalars=_FACTORS,
        options=("lower",),
    ),
    Row(
        "hemv",
        "alpha * a @ x + beta * out",
        (_HERMITIAN, _X, _OUT_N),
        dtypes=COMPLEX,
        scalars=_FACTORS,
        options=("lower",),
        forward="always",
    ),
    Row(
        "ger",
        "a + alpha * outer(x, y)",
        (_ADDED, _in("x", "m"), _Y),
        ("u", "ger", "m n alpha x incx y incy a lda"),
        scalars=("alpha",),
    ),
    Row(
        "gerc",
        "a + alpha * outer(x, conj(y))",
        (_ADDED, _in("x", "m"), _Y),
        scalars=("alpha",),
        forward="always",
    ),
    *(
        Row(
            name,
            f"alpha * {operand.name} @ x + beta * out",
            (operand, _X, _OUT_N),
            ("t", f"{name}_v2", f"uplo n {words} x incx beta y incy"),
            dtypes=dtypes,
            scalars=_FACTORS,
            options=("lower",),
        )
        for name, operand, words, dtypes in (
            ("sbmv", _band(_SYMMETRIC), "k alpha a lda", REAL),
            ("hbmv", _band(_HERMITIAN), "k alpha a lda", COMPLEX),
            ("spmv", _packed(_SYMMETRIC), "alpha ap", REAL),
            ("hpmv", _packed(_HERMITIAN), "alpha ap", COMPLEX),
        )
    ),
    Row(
        "syr",
        f"a + {_SQUARE}",
        (_HALF_ADDED, _X),
        ("t", "syr_v2", "uplo n alpha x incx a lda"),
        scalars=("alpha",),
        options=("lower",),
    ),
    Row(
        "syr2",
        f"a + {_SQUARES}",
        (_HALF_ADDED, _X, _Y),
        ("t", "syr2_v2", "uplo n alpha x incx y incy a lda"),
        scalars=("alpha",),
        options=("lower",),
    ),
    *(
        Row(
            name,
            f"a + {formula}",
            (_HALF_HERMITIAN, *vectors),
            dtypes=COMPLEX,
            scalars=scalars,
            options=("lower",),
            forward="always",
        )
        for name, formula, vectors, scalars in (
            ("her", _HERMITIAN_SQUARE, (_X,), ("alpha:real",)),
            ("her2", _HERMITIAN_SQUARES, (_X, _Y), ("alpha",)),
        )
    ),
    *(
        Row(
            name,
            f"ap + {formula}",
            (_packed(operand), *vectors),
            ("t", f"{name}_v2", f"uplo n alpha {words} ap"),
            dtypes=dtypes,
            scalars=scalars,
            options=("lower",),
        )
        for name, formula, operand, vectors, words, dtypes, scalars in (
            ("spr", _SQUARE, _HALF_ADDED, (_X,), "x incx", REAL, ("alpha",)),
            ("spr2", _SQUARES, _HALF_ADDED, (_X, _Y), "x incx y incy", REAL, ("alpha",)),
            ("hpr", _HERMITIAN_SQUARE, _HALF_HERMITIAN, (_X,), "x incx", COMPLEX, ("alpha:real",)),
            (
                *("hpr2", _HERMITIAN_SQUARES, _HALF_HERMITIAN, (_X, _Y)),
                *("x incx y incy", COMPLEX, ("alpha",)),
            ),
        )
    ),
    *(
        Row(
            f"{prefix}{name}",
            formula.format(operand.name),
            (operand, _X, _SOLVED),
            ("t", f"{prefix}{name}_v2", f"uplo trans diag n {words} x incx"),
            options=("lower", "trans", "unit_diagonal"),
            in_place=("x",),
            forward="" if operand.form else "conjugates",
        )
        for prefix, operand, words in (
            ("tr", _TRIANGLE, "a lda"),
            ("tb", _band(_TRIANGLE), "k a lda"),
            ("tp", _packed(_TRIANGLE), "ap"),
        )
        for name, formula in (("mv", "{} @ x"), ("sv", "solve({}, x)"))
    ),
)

_LEVEL3: Final = (
    *(
        Row(
            name,
            "alpha * mul(a, b) + beta * out",
            (operand, _B, _C_BETA),
            ("t", f"{name}_v2", "side uplo m n alpha a lda b ldb beta c ldc"),
            dtypes=dtypes,
            scalars=_FACTORS,
            options=("side", "lower"),
        )
        for name, operand, dtypes in (
            ("symm", _BESIDE._replace(structure="symmetric"), SINGLE_OR_DOUBLE),
            ("hemm", _BESIDE._replace(structure="hermitian"), COMPLEX),
        )
    ),
    *(
        Row(
            name,
            f"{formula} + beta * out",
            (_WIDE_A, *others, _C_HERMITIAN if name.startswith("her") else _C_HALF),
            ("t", vendor, f"uplo trans n k alpha a lda {'b ldb ' if others else ''}beta c ldc"),
            dtypes=COMPLEX if name.startswith("her") else SINGLE_OR_DOUBLE,
            scalars=scalars,
            options=("trans", "lower"),
            transposes=(0, 2) if name.startswith("her") else (0, 1),
        )
        for name, formula, vendor, others, scalars in (
            ("syrk", "alpha * a @ a.T", "syrk_v2", (), _FACTORS),
            ("herk", "alpha * a @ conj(a).T", "herk_v2", (), ("alpha:real", "beta:real")),
            ("syr2k", "alpha * (a @ b.T + b @ a.T)", "syr2k_v2", (_WIDE_B,), _FACTORS),
            (
                *("her2k", "alpha * a @ conj(b).T + conj(alpha) * b @ conj(a).T", "her2k_v2"),
                *((_WIDE_B,), ("alpha", "beta:real")),
            ),
            ("syrkx", "alpha * a @ b.T", "syrkx", (_WIDE_B,), _FACTORS),
            ("herkx", "alpha * a @ conj(b).T", "herkx", (_WIDE_B,), ("alpha", "beta:real")),
        )
    ),
    Row(
        "gemm3m",
        "alpha * a @ b + beta * out",
        (
            _matrix("a", "m", "k", trans="trans_a"),
            _matrix("b", "k", "n", trans="trans_b"),
            _C_BETA,
        ),
        ("t", "gemm3m", "trans_a trans_b m n k alpha a lda b ldb beta c ldc"),
        dtypes=COMPLEX,
        scalars=_FACTORS,
        options=("trans_a", "trans_b"),
    ),
    *(
        Row(
            name,
            formula,
            (_BESIDE._replace(trans="trans_a", structure="triangular"), _B, _C),
            ("t", f"{name}_v2", f"side uplo trans diag m n alpha a lda {words}c ldc"),
            scalars=("alpha",),
            options=("side", "lower", "trans_a", "unit_diagonal"),
            in_place=("b",),
        )
        for name, formula, words in (
            ("trmm", "alpha * mul(a, b)", "b ldb "),
            ("trsm", "solve(a, alpha * b)", ""),
        )
    ),
    Row(
        "geam",
        "alpha * a + beta * b",
        (
            _matrix("a", "m", "n", trans="trans_a"),
            _matrix("b", "m", "n", trans="trans_b"),
            _C,
        ),
        ("t", "geam", "trans_a trans_b m n alpha a lda beta b ldb c ldc"),
        scalars=_FACTORS,
        options=("trans_a", "trans_b"),
        in_place=("a", "b"),
    ),
    Row(
        "dgmm",
        "mul(diag(x), a)",
        (_matrix("a", "m", "n"), _in("x", "s"), _C),
        ("t", "dgmm", "side m n a lda x incx c ldc"),
        options=("side",),
        in_place=("a",),
    ),
)

ROWS: Final = {row.name: row for row in (*_LEVEL1, *_LEVEL2, *_LEVEL3)}
"""All of them, by name."""
