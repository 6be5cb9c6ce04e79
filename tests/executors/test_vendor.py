"""Calls of a vendor library: numbers are not cut off, and failed steps are undone."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import LibraryError, OutOfMemory
from atomr_accel._dtypes import DTYPES
from atomr_accel.executors import vendor as _vendor
from atomr_accel.executors.numbers import Scalars, number_cell
from atomr_accel.executors.vendor import TYPES, VendorLibrary, array, undone_on_error

from ..libraries.vendor_tables import TABLES

# --- numbers -------------------------------------------------------------------------------

FLOAT_MAX: Final = float(np.finfo(np.float32).max)
LIMITS: Final[dict[str, tuple[Any, Any]]] = {
    "int": (-(2**31), 2**31 - 1),
    "uint": (0, 2**32 - 1),
    "i64": (-(2**63), 2**63 - 1),
    "u64": (0, 2**64 - 1),
    "size": (0, 2**64 - 1),
    "float": (-FLOAT_MAX, FLOAT_MAX),
}


class Listener:
    """A library that records the arguments of its calls."""

    def __init__(self, names: Any = ()) -> None:
        self.calls: list[tuple[Any, ...]] = []
        for name in names:
            setattr(self, name, self._function())

    def _function(self) -> Callable[..., int]:
        def call(*args: Any) -> int:
            self.calls.append(args)
            return 0

        return call

    def __getitem__(self, name: str) -> Callable[..., int]:
        return self._function()


def listening(
    monkeypatch: pytest.MonkeyPatch, prototypes: dict[str, str]
) -> tuple[VendorLibrary, Listener]:
    listener = Listener(prototypes)
    monkeypatch.setattr(_vendor, "_load", lambda _name, _extra: listener)
    return VendorLibrary("a library", prototypes, {1: "FAILED"}), listener


@pytest.mark.parametrize("name", TABLES)
def test_no_function_of_a_table_takes_what_it_would_cut_off(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prototypes = TABLES[name].tables.PROTOTYPES
    library, listener = listening(monkeypatch, prototypes)
    for function, text in prototypes.items():
        words = text.split()
        plain: list[Any] = [
            0 if word in LIMITS or word == "double" else ctypes.c_void_p() for word in words
        ]
        for at, word in enumerate(words):
            if word not in LIMITS:
                continue
            least, most = LIMITS[word]
            good = [least, most, np.float32(most) if word == "float" else np.int64(7)]
            good += [np.inf, -np.inf, np.nan] if word == "float" else [True]
            beyond = [most * 1.001, least * 1.001] if word == "float" else [most + 1, least - 1]
            if word in ("int", "uint"):
                beyond.append(np.int64(most + 1))
            for value in good:
                args = [*plain[:at], value, *plain[at + 1 :]]
                library.call(function, *args)
                assert str(listener.calls.pop()) == str(tuple(args))
                library.prepare(function, *args)
            for value in beyond:
                args = [*plain[:at], value, *plain[at + 1 :]]
                with pytest.raises(OverflowError, match=f"^{function} takes '{word}' at"):
                    library.call(function, *args)
                with pytest.raises(OverflowError, match=f"^{function} takes '{word}' at"):
                    library.prepare(function, *args)
    assert listener.calls == []


@pytest.mark.parametrize(
    ("function", "name", "short"),
    [
        ("cublasCreate_v2", "CUBLAS_STATUS_ALLOC_FAILED", True),
        ("cublasCreate_v2", "CUBLAS_STATUS_NOT_INITIALIZED", True),
        ("cublasGemmEx_64", "CUBLAS_STATUS_ALLOC_FAILED", True),
        ("cublasGemmEx_64", "CUBLAS_STATUS_NOT_INITIALIZED", False),
        ("cublasLtCreate", "CUBLAS_STATUS_NOT_INITIALIZED", True),
        ("cusolverDnCreate", "CUSOLVER_STATUS_ALLOC_FAILED", True),
        ("cusparseCreate", "CUSPARSE_STATUS_NOT_INITIALIZED", True),
        ("cusparseLtInit", "CUSPARSE_STATUS_NOT_INITIALIZED", True),
        ("cutensorCreate", "CUTENSOR_STATUS_ALLOC_FAILED", True),
        ("cudssCreate", "CUDSS_STATUS_ALLOC_FAILED", True),
        ("cufftXtMakePlanMany", "CUFFT_ALLOC_FAILED", True),
        ("curandCreateGenerator", "CURAND_STATUS_ALLOCATION_FAILED", True),
        ("curandCreateGenerator", "CURAND_STATUS_INITIALIZATION_FAILED", True),
        ("cudnnCreate", "CUDNN_STATUS_NOT_INITIALIZED", True),
        ("cudnnBackendExecute", "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", True),
        ("cudnnBackendExecute", "CUDNN_STATUS_EXECUTION_FAILED", False),
        ("cublasCreate_v2", "CUBLAS_STATUS_ARCH_MISMATCH", False),
    ],
)
def test_a_status_that_tells_of_a_lack_of_memory_is_out_of_memory(
    function: str, name: str, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_vendor, "_load", lambda _name, _extra: Listener())
    error = VendorLibrary("a library", {}, {7: name}).error(function, 7)
    assert isinstance(error, OutOfMemory if short else LibraryError)
    assert str(error) == f"{function} returned {name} (7)"


@pytest.mark.parametrize("name", TABLES)
def test_every_status_of_a_table_that_names_a_failed_allocation_is_out_of_memory(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = getattr(TABLES[name].tables, "STATUS_NAMES", {})
    monkeypatch.setattr(_vendor, "_load", lambda _name, _extra: Listener())
    library = VendorLibrary(name, {}, names)
    for status, text in names.items():
        error = library.error("call", status)
        assert isinstance(error, OutOfMemory) == ("ALLOC" in text), text


@given(word=st.sampled_from(sorted(LIMITS)), data=st.data())
def test_an_array_holds_what_it_was_given_or_there_is_none(word: str, data: st.DataObject) -> None:
    numbers = st.floats() if word == "float" else st.integers(-(2**65), 2**65)
    values = data.draw(st.lists(numbers, max_size=4))
    least, most = LIMITS[word]
    special = (np.inf, -np.inf) if word == "float" else ()
    if all(least <= each <= most or each in special or np.isnan(float(each)) for each in values):
        expected = [TYPES[word](value).value for value in values]
        np.testing.assert_array_equal([*array(word, values)], expected)
        if word != "float":
            assert expected == values
    else:
        with pytest.raises(OverflowError):
            array(word, values)


# --- objects made --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:overflow encountered")
@given(
    dtype=st.sampled_from(("float16", "bfloat16", "float32", "float64", "complex64", "complex128")),
    values=st.lists(st.tuples(st.floats(), st.floats()), min_size=1, max_size=3),
)
def test_a_number_that_is_set_again_is_as_one_that_is_made(
    dtype: str, values: list[tuple[float, float]]
) -> None:
    cell, pointer = number_cell(dtype)
    for value in values:
        number = value if dtype.startswith("complex") else value[0]
        cell.value = number
        expected = np.frombuffer(bytes(Scalars().pointer(dtype, number)._obj), DTYPES[dtype])
        made = np.frombuffer(bytes(pointer._obj), DTYPES[dtype])
        np.testing.assert_array_equal(made.view(np.uint8), expected.view(np.uint8))


def test_failed_block_destroys_its_objects_in_reverse_order() -> None:
    log: list[str] = []

    def undo(name: str) -> None:
        log.append(name)
        if name == "second":
            raise RuntimeError("undoing fails, too")

    with pytest.raises(ValueError, match=r"^why$"), undone_on_error() as made:
        for name in ("first", "second", "third"):
            made.callback(undo, name)
        raise ValueError("why")
    assert log == ["third", "second", "first"]
    log.clear()
    with undone_on_error() as made:
        made.callback(undo, "first")
    assert log == []
    made.close()
    assert log == ["first"]
