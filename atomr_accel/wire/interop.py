"""Arrays of other libraries: DLPack and the CUDA array interface, by ctypes.

A host passes buffers to functions that use CuPy, PyTorch or JAX, and takes the arrays that they
return. The program does the same with the buffers that it exports and adopts.
"""

from __future__ import annotations

import ctypes
import math
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NoReturn, final

import numpy as np

from .._dtypes import DTYPES
from .._errors import Unsupported
from ._address import numpy_at, strides_of

CPU: Final = 1
CUDA: Final = 2
_CUDA_HOST: Final = 3
_CUDA_MANAGED: Final = 13
ON_HOST: Final = frozenset({CPU, _CUDA_HOST})
"""DLPack's device types whose memory the CPU can read."""

ON_GPU: Final = frozenset({CUDA, _CUDA_MANAGED})
"""DLPack's device types that are a GPU's memory."""

_CODES: Final[dict[str, int]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), 0),
    **dict.fromkeys(("uint8", "uint16", "uint32", "uint64"), 1),
    **dict.fromkeys(("float16", "float32", "float64"), 2),
    "bfloat16": 4,
    **dict.fromkeys(("complex64", "complex128"), 5),
    "bool": 6,
    "float8_e4m3fn": 10,
    "float8_e5m2": 12,
}
"""DLPack's code of each dtype. DLPack packs float4 more tightly than this package."""

_NAMES: Final = {(code, DTYPES[name].itemsize * 8): name for name, code in _CODES.items()}


class _DLTensor(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_: ClassVar = [("tensor", _DLTensor), ("context", c_void_p), ("deleter", c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_: ClassVar = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _DLTensor),
    ]


_READ_ONLY: Final = 1
_NAME: Final = b"dltensor"
_VERSIONED_NAME: Final = b"dltensor_versioned"

_is_valid: Final = ctypes.PYFUNCTYPE(c_int, py_object, c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_get_pointer: Final = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_VERSIONED_OPTIONS: Final[dict[str, Any]] = (
    {"max_version": (1, 0)} if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else {}
)
"""Options of NumPy's ``__dlpack__`` for a versioned capsule, which NumPy 2.0 cannot make."""


class NotForNumpy:
    """Refuses NumPy's functions, which would take this for one object.

    ``numpy.sum`` of one object is that object: a wrong answer, and no error.
    """

    def __array__(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError(
            "this array is in a GPU's memory, which NumPy cannot see; take it with a library that "
            "can, as in torch.as_tensor(x) or cupy.asarray(x), or fetch the buffer: "
            "await device.get(ref)"
        )

    __array_ufunc__: Final = __array__
    __array_function__: Final = __array__


@final
class DeviceArray(NotForNumpy):
    """An array in a GPU's memory, for libraries that speak DLPack or the CUDA array interface.

    ``torch.as_tensor``, ``torch.from_dlpack``, ``cupy.asarray`` and their like see the
    memory itself. They keep this object alive while they use it.

    Attributes:
        pointer: the device pointer.
        shape: as in NumPy.
        dtype: as in NumPy.
        device: the GPU's index.
        sealed: whether the memory is read-only; a kernel that writes there faults.
        strides: as in NumPy; None if it is C-contiguous.
    """

    def __init__(
        self,
        pointer: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        device: int,
        sealed: bool = False,
        owner: object = None,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.strides: Final = strides
        self.pointer: Final = pointer
        self.shape: Final = shape
        self.dtype: Final = dtype
        self.device: Final = device
        self.sealed: Final = sealed
        self._owner = owner

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d array")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype.name}{list(self.shape)} on GPU {self.device}>"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.isbuiltin != 1:  # NumPy's type strings have no word for it
            raise AttributeError(
                f"the CUDA array interface has no {self.dtype.name}; DLPack has, as in "
                f"torch.from_dlpack(array)"
            )
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            # Sealed buffers are not marked read-only, because PyTorch refuses such arrays. The
            # hardware refuses the writes.
            "data": (self.pointer if self.nbytes else 0, False),
            "strides": self.strides,
            "stream": None,  # earlier work is done
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        del stream  # earlier work is done, so streams need not wait
        if dl_device not in (None, self.__dlpack_device__()) or copy:
            raise BufferError("this array can be shared, but not copied or moved")
        return lend(
            self.pointer,
            self.shape,
            self.dtype,
            self.__dlpack_device__(),
            owner=self,
            read_only=self.sealed,
            max_version=max_version,
            strides=self.strides,
        )


def in_elements(
    shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None
) -> tuple[int, ...]:
    """The strides of an array, as DLPack counts them."""
    if strides is None:
        return strides_of(shape)
    return tuple(stride // dtype.itemsize for stride in strides)


def lend(
    pointer: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    device: tuple[int, int],
    *,
    owner: object,
    read_only: bool,
    max_version: tuple[int, int] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Any:
    """Return a DLPack capsule of memory.

    ``owner`` is kept alive while the consumer uses the memory. ``max_version`` is the newest
    version of DLPack that the consumer knows; with NumPy 2.0 the capsule has none. ``strides`` None
    is C-contiguous.
    """
    if dtype.name not in _CODES:
        raise BufferError(f"DLPack has no {dtype.name} as it is laid out here")
    # The capsule is NumPy's, of an array that stands in for the memory: the consumer may drop it
    # while an exception passes, where a deleter written in Python cannot run.
    known = dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")
    extents = in_elements(shape, dtype, strides)
    array = numpy_at(pointer, shape, known, owner=owner, strides=extents)
    versioned = max_version is not None and max_version[0] >= 1
    capsule = array.__dlpack__(**_VERSIONED_OPTIONS if versioned else {})
    managed = _managed(capsule)
    tensor = managed.tensor
    if 0 in shape:
        tensor.data = None
    tensor.device_type, tensor.device_id = device
    tensor.code = _CODES[dtype.name]
    if read_only and isinstance(managed, _Versioned):
        managed.flags |= _READ_ONLY
    return capsule


@dataclass(frozen=True, slots=True)
class Borrowed:
    """An array of another library, as long as this is held.

    Attributes:
        pointer: address of its first element.
        shape: as in NumPy.
        dtype: as in NumPy.
        device_type: DLPack's device type.
        device: the device's index.
        contiguous: whether it is C-contiguous.
        strides: in elements; None if it is contiguous.
        owner: keeps the memory alive.
        read_only: whether the memory is read-only.
        stream: the stream to wait for; None if the legacy default stream waits for it already, or
            if the array has no stream.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device_type: int
    device: int
    contiguous: bool
    strides: tuple[int, ...] | None
    owner: object
    read_only: bool = False
    stream: int | None = None

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """The array, if its memory is the CPU's; it keeps the owner alive."""
        return numpy_at(
            self.pointer,
            self.shape,
            self.dtype,
            owner=self.owner,
            read_only=self.read_only,
            strides=self.strides,
        )


def device_type(thing: object) -> int | None:
    """Return DLPack's type of the device that holds an array, or None for other objects."""
    kind = type(thing)
    if hasattr(kind, "__dlpack_device__"):
        return int(thing.__dlpack_device__()[0])  # type: ignore[attr-defined]
    if hasattr(kind, "__cuda_array_interface__"):
        return CUDA
    return None


def borrow(array: Any) -> Borrowed:
    """Return the memory and the layout of an array, by DLPack or the CUDA array interface.

    Work that its library has queued before is ordered before the work of the legacy default stream.
    """
    if hasattr(array, "detach"):  # PyTorch shares no tensors that gradients flow through
        array = array.detach()
    if hasattr(type(array), "__dlpack__"):
        on_gpu = device_type(array) in ON_GPU
        return _borrow_capsule(array.__dlpack__(stream=1) if on_gpu else array.__dlpack__())
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(
            f"{type(array).__name__} must have DLPack's methods or the CUDA array interface"
        )
    dtype = np.dtype(interface["typestr"])
    if dtype.name not in DTYPES:
        raise Unsupported(f"dtype {interface['typestr']} cannot live in a buffer")
    shape = tuple(interface["shape"])
    pointer, read_only = interface["data"]
    strides = interface.get("strides")
    if strides is not None:
        strides = tuple(stride // dtype.itemsize for stride in strides)
    return _borrowed(
        Borrowed(
            pointer or 0,
            shape,
            DTYPES[dtype.name],
            CUDA,
            0,
            contiguous=True,
            strides=strides,
            owner=array,
            read_only=read_only,
            stream=interface.get("stream"),
        )
    )


def contiguous(array: Any) -> Borrowed:
    """Return ``borrow`` of an array, or of a contiguous copy of it."""
    borrowed = borrow(array)
    if borrowed.contiguous:
        return borrowed
    for name in ("contiguous", "copy"):  # PyTorch's word for it, and CuPy's
        method = getattr(array, name, None)
        if method is not None:
            return borrow(method())
    raise TypeError(f"an array of {type(array).__name__} is not contiguous; pass a copy that is")


def _managed(capsule: Any) -> _Managed | _Versioned:
    """The structure that a capsule owns."""
    if _is_valid(capsule, _VERSIONED_NAME):
        return _Versioned.from_address(_get_pointer(capsule, _VERSIONED_NAME))
    if _is_valid(capsule, _NAME):
        return _Managed.from_address(_get_pointer(capsule, _NAME))
    raise TypeError("not a DLPack capsule, or one that was consumed")


def _borrow_capsule(capsule: Any) -> Borrowed:
    managed = _managed(capsule)
    tensor = managed.tensor
    read_only = isinstance(managed, _Versioned) and bool(managed.flags & _READ_ONLY)
    name = _NAMES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if name is None:
        raise Unsupported(
            f"a DLPack dtype of code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes "
            f"cannot live in a buffer"
        )
    ndim = tensor.ndim
    return _borrowed(
        Borrowed(
            (tensor.data or 0) + tensor.byte_offset,
            tuple(tensor.shape[:ndim]),
            DTYPES[name],
            tensor.device_type,
            tensor.device_id,
            contiguous=True,
            strides=tuple(tensor.strides[:ndim]) if tensor.strides else None,
            owner=capsule,
            read_only=read_only,
        )
    )


def _borrowed(array: Borrowed) -> Borrowed:
    """Work out whether it is contiguous."""
    shape, strides = array.shape, array.strides
    if strides is None or 0 in shape:
        return replace(array, strides=None)
    each = zip(shape, strides, strides_of(shape), strict=True)
    if all(extent == 1 or have == want for extent, have, want in each):
        return replace(array, strides=None)
    return replace(array, contiguous=False)
