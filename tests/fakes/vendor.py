"""Bases of stand-ins for vendors' libraries, and of the executors for CUDA that call them."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from atomr_accel._errors import LibraryError
from atomr_accel.backends.cpu.host.context import CpuContext, CpuStream
from atomr_accel.executors.vendor import TYPES
from atomr_accel.wire import OFFSET_MASK, SLAB_SHIFT
from atomr_accel.wire.control import find_class


class FakeVendor:
    """Base of stand-ins for a ``VendorLibrary``: functions by name, which return a status."""

    library: ClassVar[str]
    status_names: ClassVar[Mapping[int, str]] = {}
    functions: dict[str, Any]

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function, as ``VendorLibrary.call`` does."""
        status = self.functions[function](*arguments)
        if status:
            raise self.error(function, status)

    def prepare(self, function: str, *arguments: Any) -> Callable[[], int]:
        """A call of which some arguments are ``ctypes`` objects that change in between."""

        def call() -> int:
            plain = [
                each.value or 0 if isinstance(each, ctypes.c_void_p) else each for each in arguments
            ]
            return int(self.functions[function](*plain))

        return call

    def error(self, function: str, status: int) -> LibraryError:
        """Return the error for a status, as ``VendorLibrary.error`` does."""
        name = self.status_names.get(status, str(status))
        return LibraryError(
            f"{function} returned {name}",
            library=self.library,
            call=function,
            status=status,
            status_name=name,
        )


class FakeVendorOfThings(FakeVendor):
    """Base of stand-ins that number their objects and take arguments of the prototypes' types.

    Methods are the vendor's functions, by their names without the library's.
    """

    prototypes: ClassVar[Mapping[str, str]]
    invalid_value: ClassVar[int] = 3

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.things: dict[int, Any] = {}
        self.functions = {}
        for name, words in self.prototypes.items():
            kind = ctypes.CFUNCTYPE(ctypes.c_int, *(TYPES[word] for word in words.split()))
            self.functions[name] = kind(partial(self.guarded, name.removeprefix(self.library)))

    def find(self, name: str) -> Callable[..., int]:
        """Return the method of a function."""
        found: Callable[..., int] = getattr(self, name)
        return found

    def guarded(self, name: str, *args: Any) -> int:
        """A call whose exceptions become a status, because ``ctypes`` would drop them."""
        try:
            return self.find(name)(*args)
        except Exception:  # noqa: BLE001
            return self.invalid_value

    def make(self, cell: Any, **attributes: Any) -> int:
        """Make a thing, and write its number."""
        cell[0] = number = next(self.numbers)
        self.things[number] = SimpleNamespace(**attributes)
        return 0

    def destroy(self, thing: int) -> int:
        """Forget a thing."""
        del self.things[thing]
        return 0


class FakeContext:
    """The CPU's context as a CUDA executor sees one: with pointers."""

    compute_capability = (9, 0)
    deterministic = False

    def __init__(self, context: CpuContext) -> None:
        self._context = context

    def check(self) -> None:
        self._context.check()

    def pointer(self, address: int) -> int:
        slab: np.ndarray[Any, Any] = self._context._slabs[address >> SLAB_SHIFT]
        return int(slab.ctypes.data) + (address & OFFSET_MASK)

    def pointers(self, addresses: Iterable[int]) -> list[int]:
        return [self.pointer(address) for address in addresses]


class FakeCuda:
    """Base of executors for CUDA on host memory, which the CPU backend runs.

    Attributes:
        executor: the real executor, as ``module:class``.
        stream: the stream of each.
    """

    executor: ClassVar[str]
    stream: Any = SimpleNamespace(handle=0, pointer=0, captures=False, synchronize=lambda: None)

    def __new__(cls, context: CpuContext, _stream: CpuStream) -> Any:
        made = find_class("an executor", cls.executor)(cls.context(context), cls.stream)
        made.handlers = {
            kind: partial(cls.handle, context, run) for kind, run in made.handlers.items()
        }
        return made

    @classmethod
    def context(cls, context: CpuContext) -> Any:
        """Return the context for an executor."""
        return FakeContext(context)

    @staticmethod
    def handle(context: CpuContext, run: Callable[[Any], Any], message: Any) -> Any:
        """Fail with the context; numbers may overflow."""
        context.check()
        with np.errstate(all="ignore"):
            return run(message)

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch, *lanes: Any) -> None:
        """Have devices of the CPU run this in some lanes."""
        for lane in lanes:
            monkeypatch.setitem(lane.executors, "cpu", f"{cls.__module__}:{cls.__name__}")
