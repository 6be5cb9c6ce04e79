"""Names that other array libraries have, and the code to write for each of them here.

This is the only table of such names. Errors about attributes and about NumPy's functions use it.
"""

from __future__ import annotations

from typing import Any, Final

_FETCH = "await device.get(x)"
_UNNEEDED = "it is not needed, because "
_GRADIENT = (
    "there is no automatic differentiation; compute gradients with functions that have them, or "
    "let another library do it in the device's memory: await device.run(function, x)"
)

WRITE: Final[dict[str, str]] = {
    # values
    "asnumpy": _FETCH,
    "cpu": _FETCH,
    "fetch": _FETCH,
    "get": _FETCH,
    "item": f"({_FETCH}).item()",
    "numpy": _FETCH,
    "tobytes": f"({_FETCH}).tobytes()",
    "tolist": f"({_FETCH}).tolist()",
    # transfers, copies and lifetimes
    "array_equal": "(x == y).all()",
    "asarray": "await device.put(array)",
    "clone": "await device.copy(x)",
    "copy": "await device.copy(x)",
    "copyto": "await device.copy(y, x)",
    "cuda": "await device.put(array)",
    "fill": "await device.fill(x, value)",
    "free": "await device.free(x)",
    "put": "await device.array.setitem(x, index, values)",
    "putmask": "await device.array.setitem(x, mask, values)",
    "to": "await device.put(array)",
    "to_device": "await device.put(array)",
    "upload": "await device.put(array)",
    # creation
    "empty": "await device.empty(shape)",
    "full": "await device.full(shape, value)",
    "ones": "await device.full(shape, 1.0)",
    "rand": "await device.rng.uniform(size=shape)",
    "randn": "await device.rng.normal(size=shape)",
    "random": "device.rng",
    "zeros": "await device.zeros(shape)",
    # shapes
    "concat": "await device.array.concatenate([x, y])",
    "conjugate": "x.conj()",
    "diagonal": "x.diagonal()",
    "flatten": "x.reshape(-1)",
    "itemsize": "x.dtype.itemsize",
    "matrix_transpose": "x.mT",
    "permute": "x.transpose(axes)",
    "permute_dims": "x.transpose(axes)",
    "ravel": "x.reshape(-1)",
    "reshape": "x.reshape(shape)",
    "trace": "x.diagonal().sum()",
    "unsqueeze": "np.expand_dims(x, axis)",
    "view": "x.view(dtype)",
    # mathematics
    "average": "(x * weights).sum() / weights.sum()",
    "cumulative_prod": "await device.array.cumprod(x)",
    "cumulative_sum": "await device.array.cumsum(x)",
    "diff": "x[..., 1:] - x[..., :-1]",
    "dot": "x @ y",
    "gemm": "await device.blas.gemm(x, y)",
    "matmul": "x @ y",
    "mm": "x @ y",
    "outer": "x[:, None] * y",
    "relu": "await device.dnn.relu(x)",
    "select": "np.where(condition, x, y)",
    "sigmoid": "scipy.special.expit(x)",
    "softmax": "await device.dnn.softmax(x)",
    "tensordot": "await device.tensor.einsum(subscripts, x, y)",
    # gradients
    "backward": _GRADIENT,
    "detach": f"{_UNNEEDED}no history of a buffer is kept",
    "grad": _GRADIENT,
    "requires_grad": _GRADIENT,
    "requires_grad_": _GRADIENT,
    # devices
    "close": f"{_UNNEEDED}the 'async with' block closes the device",
    "compile": "await device.nvrtc.compile(code, name)",
    "eval": "await device.evaluate(expression)",
    "stream": f"{_UNNEEDED}a device orders ops by their buffers",
    "sync": f"{_UNNEEDED}an op that was awaited is done",
    "synchronize": f"{_UNNEEDED}an op that was awaited is done",
}
"""The code to write for a name. Libraries add the names of NumPy's functions that they have."""


def said(name: str) -> str:
    """Return the advice about a name of the table, as the end of a message."""
    write = WRITE[name]
    return write if write.startswith((_UNNEEDED, _GRADIENT)) else f"write: {write}"


class OtherName:
    """Attribute that programs look for, because other libraries have it."""

    # A descriptor, because a ``__getattr__`` would slow down each access to any attribute.

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.__doc__ = None

    def __repr__(self) -> str:
        return f"<{said(self.name)}>"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Return the descriptor of a class, and raise an AttributeError for an instance."""
        if instance is None:
            return self
        kind = type(instance).__name__
        raise AttributeError(f"{kind!r} object has no attribute {self.name!r}; {said(self.name)}")


class HasOtherNames:
    """Base of classes whose missing attributes have an error that names the code to write."""

    __slots__ = ()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not is_other_name(type(self), name)]


def is_other_name(kind: type, name: str) -> bool:
    """Return True if a class has a name only to raise the error about it."""
    return isinstance(getattr(kind, name, None), OtherName)


def add_other_name(name: str, write: str) -> None:
    """Add a name to the table, unless the table has it."""
    if WRITE.setdefault(name, write) is write:
        setattr(HasOtherNames, name, OtherName(name))


for _name in WRITE:
    setattr(HasOtherNames, _name, OtherName(_name))
