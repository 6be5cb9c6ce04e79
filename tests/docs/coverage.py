"""The page about coverage, made of the modules: which functions of other libraries are here.

``python -m tests.docs.coverage`` writes it; a test of style holds it up to date.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import numpy as np

from atomr_accel import solvers
from atomr_accel._other_names import WRITE, is_other_name
from atomr_accel._torch_names import INSTEAD
from atomr_accel.arrays.expressions._methods import FUNCTIONS
from atomr_accel.libraries import registry
from atomr_accel.libraries.rng.generator import Generator
from atomr_accel.wire.ufuncs import PAIRS, UFUNCS, find_ufunc

from ..harness import ROOT
from .torch_names import TORCH

PAGE: Final = ROOT / "docs" / "reference" / "coverage.md"

VERSIONS: Final = ("numpy", "scipy")
"""Packages whose installed versions the page counts."""


class Place(NamedTuple):
    """A place that has functions: its name in the page, and the object."""

    name: str
    owner: Any


class Theirs(NamedTuple):
    """A module of others.

    Attributes:
        title: what the page calls it.
        names: its functions.
        places: where they may be here, the most usual one first.
        module: the object that has the functions, or None: a list of names.
        reasons: why functions are not here: the reason, and a pattern of their whole names.
    """

    title: str
    names: Iterable[str]
    places: tuple[Place, ...]
    module: Any
    reasons: tuple[tuple[str, str], ...]


def facade(name: str) -> Place:
    reference = registry.catalogue().all[name].facade
    assert reference is not None
    module, _, kind = reference.partition(":")
    return Place(f"device.{name}", getattr(import_module(module), kind))


def functions_of(module: Any) -> list[str]:
    names = getattr(module, "__all__", None) or dir(module)
    found = {name: getattr(module, name) for name in names if not name.startswith("_")}
    return sorted(
        name for name, each in found.items() if callable(each) and not isinstance(each, type)
    )


def in_expressions(function: Any) -> bool:
    """Return whether refs and expressions are arguments of a function of NumPy's or SciPy's."""
    if isinstance(function, np.ufunc):
        name = function.__name__
        known = name in PAIRS or (name in UFUNCS and find_ufunc(name) is function)
        return known or function in FUNCTIONS
    return function in FUNCTIONS


HOST: Final = "on the host; nothing of it is about a device"
SMALL: Final = "small results that NumPy or SciPy makes on the host; `device.put` takes them"
OWN: Final = "views and dtypes of refs tell it without a device"
BANDED: Final = "banded storage; convert to a dense or a sparse matrix"
NOT_YET: Final = "not yet: "
LATER: Final = {
    "numpy.random.Generator": "`await device.put(np_rng.name(...))`",
    "scipy.sparse": "`await device.sparse.put(function(await device.sparse.get(a)))`",
    "scipy.sparse.linalg": "`await device.put(function(await device.sparse.get(a)))`",
}
"""The code to write meanwhile, unless it is the usual one."""

ON_REFS: Final = {"diagonal", "ndim", "ravel", "reshape", "shape", "size", "swapaxes", "transpose"}
"""Functions of NumPy's that are methods or attributes of refs."""

NUMPY: Final = (
    (
        HOST,
        (
            r".*str(ing)?|.*_repr|.*print.*|load.*|save.*|savez.*|from(buffer|file|function|iter|regex)"
            r"|frompyfunc|genfromtxt|get_include|(get|set)(err|err.*|buf.*)|show_.*|info|test|isscalar"
            r"|iterable|typename|mintypecode|format_.*|.*busday.*|datetime_.*|isnat|nested_iters"
            r"|asmatrix|bmat|array2string|array_str|unwrap|apply_over_axes|require|asarray_chkfinite"
        ),
    ),
    (SMALL, r"bartlett|blackman|hamming|hanning|kaiser|poly.*|roots|vander|.*_indices(_from)?|ix_"),
    (OWN, r".*shares?_memory|.*_type|promote_types|issubdtype|isfortran|broadcast_shapes|isdtype"),
)

LINALG: Final = (
    (HOST, r"find_best.*|get_.*_funcs|test|bandwidth|is(hermitian|symmetric)"),
    (BANDED, r".*_banded|eigvalsh_tridiagonal"),
    (
        SMALL,
        (
            r"circulant|companion|convolution_matrix|dft|fiedler.*|hadamard|hankel|helmert|(inv)?hilbert"
            r"|(inv)?pascal|leslie|diagsvd"
        ),
    ),
    (
        "by a Schur or a Hessenberg form, which cuSOLVER has not",
        (
            r"schur|rsf2csf|hessenberg|(ord)?qz|.*(lyapunov|sylvester|_are)|[a-z]+m|.*_frechet|.*_cond"
            r"|fractional_.*|cdf2rdf|cossin|matrix_balance"
        ),
    ),
    ("changes of a factorization, which cuSOLVER has not", r"qr_(delete|insert|update)"),
)

SPECIAL: Final = (
    (HOST, r"(get|set)err"),
    (
        "names of quadrature and of polynomials as objects: " + SMALL,
        (
            r"roots_.*|[a-z]{1,2}_roots|.*_zeros|cheby[cstu]|sh_.*|hermite(norm)?|jacobi|legendre"
            r"|(gen)?laguerre|gegenbauer|assoc_laguerre|.*_seq|lmbda|lq.*|riccati_.*|bernoulli|euler"
        ),
    ),
    (
        "distributions, which SciPy gets of Boost and CDFLIB",
        (
            r"(b|ch|ncf|nct|f|g|nb|nr|p|st|n|btd|chn)d?tr.*|kolmog.*|smirnov.*|owens_t|voigt_profile"
            r"|tklmbda|fdtr.*|stdtr.*"
        ),
    ),
    (
        "elliptic, hypergeometric, Mathieu, Kelvin, Struve, spheroidal and parabolic functions",
        (
            r"ellip.*|elliprc|agm|hyp.*|mathieu.*|ber.*|bei.*|ke[ir].*|kelvin|.*struve.*|obl_.*|pro_.*"
            r"|pb.*|wright.*|log_wright.*|it2?[a-z].*|legendre_p.*|assoc_leg.*|sph.*|lpmv|besselpoly"
        ),
    ),
)

SPARSE: Final = (
    (HOST, r"(load|save)_npz|get_index_dtype|is.*|safely.*|use_solver|aslinearoperator|find"),
    (SMALL, r"random.*|rand|kronsum|spbandwidth"),
)

RANDOM: Final = ((HOST, r"bit_generator|bytes"),)
FFT: Final = ((HOST, r".*_(backend|workers)|get_workers|skip_backend"),)

DNN: Final = (
    ("variants for training that draw; `device.dnn.dropout` draws", r".*dropout.*|gumbel.*|rrelu"),
    (
        "no kernel yet for windows that are drawn, and for distances of all pairs",
        r"fractional_.*|lp_pool.*|embedding_bag|pdist",
    ),
)


def modules() -> list[Theirs]:
    names = ("array", "xp", "linalg", "fft", "sparse", "dnn", "tensor")
    array, xp, linalg, fft, sparse, dnn, tensor = (facade(name) for name in names)
    refs = Place("methods and attributes of refs", type("Refs", (), dict.fromkeys(ON_REFS)))
    generator = Place("device.rng.default_rng(seed)", Generator)
    solving = Place("atomr_accel.solvers", solvers)
    made: list[Theirs] = []
    for title, places, reasons in (
        ("numpy", (array, tensor, refs, xp), NUMPY),
        ("numpy.linalg", (linalg, xp), LINALG),
        ("scipy.linalg", (linalg,), LINALG),
        ("scipy.special", (array,), SPECIAL),
        ("scipy.fft", (fft,), FFT),
        ("scipy.sparse", (sparse,), SPARSE),
        ("scipy.sparse.linalg", (sparse, solving), SPARSE),
    ):
        module = import_module(title)
        made.append(Theirs(title, functions_of(module), places, module, reasons))
    kind = np.random.Generator
    drawn = sorted(name for name in dir(kind) if not name.startswith("_"))
    made.insert(2, Theirs("numpy.random.Generator", drawn, (generator,), None, RANDOM))
    made.append(Theirs("torch.nn.functional", TORCH, (dnn,), None, DNN))
    return made


def place_of(name: str, theirs: Theirs) -> str | None:
    """Return where a function is here, or None."""
    if theirs.module is not None and in_expressions(getattr(theirs.module, name)):
        return "[expressions](../concepts/expressions.md)"
    for place in theirs.places:
        if hasattr(place.owner, name) and not (
            isinstance(place.owner, type) and is_other_name(place.owner, name)
        ):
            return place.name if " " in place.name else f"`{place.name}`"
    return None


def instead_of(name: str, theirs: Theirs) -> str | None:
    """Return the code to write for a name, or None."""
    if theirs.title == "torch.nn.functional":
        return INSTEAD.get(name)
    if theirs.title == "scipy.special" and name in UFUNCS:
        return f"np.{name}(x)"
    code = WRITE.get(name, "")
    return code if theirs.title.startswith("numpy") and "await" in code else None


def lines_of(names: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


def section(theirs: Theirs) -> tuple[str, str]:
    """Return a row of the table of modules, and the part of the page about one."""
    here: dict[str, list[str]] = {}
    instead: dict[str, str] = {}
    missing: dict[str, list[str]] = {}
    later = NOT_YET + LATER.get(theirs.title, "`await device.put(function(await device.get(x)))`")
    for name in theirs.names:
        place = place_of(name, theirs)
        code = None if place else instead_of(name, theirs)
        if place is not None:
            here.setdefault(place, []).append(name)
        elif code is not None:
            instead[name] = code
        else:
            found = (why for why, names in theirs.reasons if re.fullmatch(names, name))
            missing.setdefault(next(found, later), []).append(name)
    counts = [sum(map(len, each.values())) for each in (here, missing)]
    link = theirs.title.replace(".", "").lower()
    cells = (f"[`{theirs.title}`](#{link})", counts[0], len(instead), counts[1])
    row = f"| {' | '.join(map(str, cells))} |"
    parts = [f"## {theirs.title}\n"]
    if here:
        parts += ["| where | functions |", "|---|---|"]
        parts += [f"| {place} | {lines_of(names)} |" for place, names in here.items()]
    if instead:
        parts += ["\n| theirs | write |", "|---|---|"]
        parts += [f"| `{name}` | `{code}` |" for name, code in instead.items()]
    if missing:
        parts += ["\n| not here | why |", "|---|---|"]
        order = sorted(missing, key=lambda why: why == later)
        parts += [f"| {lines_of(missing[why])} | {why} |" for why in order]
    return row, "\n".join([*parts, ""])


def installed() -> str:
    return ", ".join(f"{each} {'.'.join(version(each).split('.')[:2])}" for each in VERSIONS)


INTRODUCTION: Final = """\
# Functions of NumPy, SciPy and PyTorch

Functions of other libraries that are here under their own names, other code for some, and reasons
for the rest. `python -m tests.docs.coverage` makes this page of the modules: {installed}; and of
PyTorch 2.9's names. [Libraries](libraries.md) tells the limits of each, and
[which call for what](which-call.md) which to use where several can do it. `device.xp` has all
functions of the Array API standard.
"""


def page() -> str:
    """Return the page."""
    rows, parts = zip(*(section(each) for each in modules()), strict=True)
    table = "\n".join(["| module | here | other code | not here |", "|---|---|---|---|", *rows])
    return "\n".join([INTRODUCTION.format(installed=installed()), table, "", *parts]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
