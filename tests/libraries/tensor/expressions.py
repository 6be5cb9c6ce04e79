"""Expressions for ``einsum``: those on which opt_einsum is tried, and generated ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from ..conformance import dtype_of

Array = np.ndarray[Any, Any]

SIZES: Final = dict(zip("abcdefghijklmnopqrstuvwxyz", [2, 3, 4, 5, 4, 3, 2] * 4, strict=False))
"""Size of each index of ``OPT_EINSUM``."""

OPT_EINSUM: Final = (
    # products of all elements with matrices
    *("a,ab,abc->abc", "a,b,ab->ab"),
    # chains, into other bases
    *("ea,fb,gc,hd,abcd->efgh", "ea,fb,abcd,gc,hd->efgh", "abcd,ea,fb,gc,hd->efgh"),
    # vectors, and matrices among them
    *("acdf,jbje,gihb,hfac", "acdf,jbje,gihb,hfac,gfac,gifabc,hfac", "chd,bde,agbc,hiad,hgc"),
    *("chd,bde,agbc,hiad,bdi,cgh,agdb", "bdhe,acad,hiab,agac,hibd"),
    # products along nothing
    *("ab,cd,ef,gh", "ab,cd,ef,gh->hbe"),
    # what an optimiser might take apart the wrong way
    *("abj,cbk->ajck", "abc,bca->a", "abc,bca,cab->abc"),
    # some with indices that are in many operands
    *("eb,cb,fb->cef", "dd,fb,be,cdb->cef", "bca,cdb,dbf,afc->", "dcc,fce,ea,dbf->ab"),
    *("fdf,cdd,ccd,afe->ae", "abcd,ad", "ed,fcd,ff,bcf->be", "baa,dcf,af,cde->be"),
    *("bd,db,eac->ace", "fff,fae,bef,def->abd", "efc,dbc,acf,fd->abe"),
    # products of matrices, and of more than that
    *("ab,ab", "ab,ba", "abc,abc", "abc,bac", "abc,cba", "ab,bc", "ab,cb", "ba,bc", "ba,cb"),
    *("abcd,cd", "abcd,ab", "abcd,cdef", "abcd,cdef->feba", "abcd,efdc"),
    *("aab,bc->ac", "ab,bcc->ac", "aab,bcc->ac", "aab,bcc->ca", "aab,ccb->ac"),
    # traces and diagonals
    *("aa", "aab->b", "abb->ab", "aba->ba", "abcb->ca", "a,a,a", "a,,a->a", "ab,ab,c->c"),
)
"""The kinds of expressions that opt_einsum's own tests go through."""

NUMPY: Final = (
    ("...", [(2, 3)]),
    ("i...->...", [(3, 2, 4)]),
    ("...i->i...", [(2, 3, 4)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
    ("i...j,j->...", [(2, 3, 4), (4,)]),
    ("ij,jk", [(1, 4), (4, 1)]),
    ("ij,jk", [(3, 4), (1, 5)]),
    ("ij,ij->i", [(3, 4), (1, 4)]),
    ("ij,ij", [(1, 1), (3, 4)]),
    ("ij->", [(0, 3)]),
    ("ij,jk->ik", [(3, 0), (0, 2)]),
    ("ij,jk->ik", [(0, 4), (4, 2)]),
    ("i,j", [(0,), (3,)]),
    ("", [()]),
    (",", [(), ()]),
    ("i,->i", [(3,), ()]),
    ("Ba,aC", [(2, 3), (3, 2)]),
    (" i j , j k -> k i ", [(2, 3), (3, 4)]),
)
"""Other forms of NumPy's syntax, with shapes."""


@dataclass(frozen=True)
class Expression:
    """Subscripts with operands for them.

    Attributes:
        subscripts: in one string.
        operands: arrays, some of them views.
    """

    subscripts: str
    operands: tuple[Array, ...]


def operands_for(subscripts: str, rng: np.random.Generator, dtype: str) -> tuple[Array, ...]:
    """Operands whose axes go as far as ``SIZES`` says."""
    terms = subscripts.partition("->")[0].split(",")
    return tuple(numbers(rng, tuple(SIZES[each] for each in term), dtype) for term in terms)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Whole numbers small enough that sums of products are exact."""
    kind = dtype_of(dtype)
    values: Any = rng.integers(-2, 3, shape)
    if kind.kind == "b":
        values = rng.integers(0, 2, shape)
    if kind.kind == "c":
        values = values + 1j * rng.integers(-2, 3, shape)
    return np.asarray(values).astype(kind)


@st.composite
def expressions(draw: DrawFn, dtypes: tuple[str, ...]) -> Expression:
    """Operands with any subscripts: repeated ones, ellipses, axes of one element, views."""
    letters = "abcdeZ"
    sizes = {each: draw(st.sampled_from([1, 2, 3, 4])) for each in letters}
    sizes[draw(st.sampled_from(letters))] = draw(st.sampled_from([0, 2, 3]))
    dots = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2))
    dtype = draw(st.sampled_from(dtypes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    terms, operands = [], []
    for _ in range(draw(st.integers(1, 4))):
        term = draw(st.lists(st.sampled_from(letters), max_size=3))
        shape = [sizes[each] if draw(st.integers(0, 7)) else 1 for each in term]
        for each in {*term}:  # NumPy wants equal sizes along a diagonal
            places = [at for at, letter in enumerate(term) if letter == each]
            for at in places:
                shape[at] = shape[places[0]]
        if draw(st.booleans()):
            some = dots[len(dots) - draw(st.integers(0, len(dots))) :]
            at = draw(st.integers(0, len(term)))
            term.insert(at, "...")
            shape[at:at] = [size if draw(st.integers(0, 3)) else 1 for size in some]
        terms.append("".join(term))
        operands.append(numbers(rng, tuple(shape), dtype))
    subscripts = ",".join(terms)
    if draw(st.booleans()):
        known = sorted({*subscripts} - {",", "."})
        chosen = draw(st.lists(st.sampled_from(known), unique=True)) if known else []
        if "..." in subscripts:
            chosen.insert(draw(st.integers(0, len(chosen))), "...")
        subscripts += "->" + "".join(chosen)
    return Expression(subscripts, tuple(operands))
