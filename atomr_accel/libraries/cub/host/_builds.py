"""Builds: CUB's kernels for some types and operators; kept in memory and on disk.

Making one takes seconds, and no device. Its key on disk is its spec, the device's compute
capability and the versions of CUB and of the compiler.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from ....executors.compiler import compile_linkable, load_nvrtc
from ....executors.disk_cache import DiskCache
from ....wire.recent import Recent
from ..wire._spec import CubSpec, decode
from ._algorithms import algorithm_of
from ._bindings import load_cub, refusal
from ._calls import Kit

if TYPE_CHECKING:
    from ._bindings import CubVersion
    from ._calls import CubCall

_MOST: Final = 4096
"""Number of builds kept in memory; each has some hundred kilobytes of code on the device."""

FILES: Final = DiskCache("cub")

NO_BUILD: Final = object()
"""Stands for the build of an algorithm that is not CUB's."""

_FORM: Final = 4
"""Counts how often it changed what a spec is built of, so that nothing older is found on disk."""


@final
class BuildStore:
    """Builds of one context. Lanes share them: calls only read them.

    Without ``load`` builds need no device: they are made and kept on disk.
    """

    def __init__(
        self, capability: tuple[int, int], files: DiskCache = FILES, *, load: bool = True
    ) -> None:
        self._cub: Final[CubVersion] = load_cub()
        self._capability: Final = capability
        self._files: Final = files
        self._load: Final = load
        self._built: Recent[bytes, Any] = Recent(_MOST)
        self._lock: Final = threading.Lock()

    def find(self, encoded: bytes, sizes: tuple[int, ...]) -> tuple[Any, str, float]:
        """A build, where it came from (``"memory"``, ``"disk"``, ``"built"``), and seconds.

        It is ``NO_BUILD`` for an algorithm that needs none.

        Raises:
            CompileError: an operator does not compile.
            LibraryError: CUB does not build it.
        """
        built = self._built.get(encoded)
        if built is not None:
            return built, "memory", 0.0
        with self._lock:
            built = self._built.get(encoded)
            if built is not None:
                return built, "memory", 0.0
            start = time.perf_counter()
            spec = decode(encoded)
            built, origin = NO_BUILD, "memory"
            if algorithm_of(spec).result:
                key = self._key(encoded)
                built, origin = self._read(spec, key), "disk"
                if built is None:
                    built, origin = self._make(spec, sizes, key), "built"
            self._built.keep(encoded, built)
        return built, origin, time.perf_counter() - start

    def call(self, spec: CubSpec) -> CubCall:
        """Return the object that runs a build, for one executor."""
        return algorithm_of(spec)(spec, Kit(self._cub.bindings, None))

    def _key(self, encoded: bytes) -> bytes:
        """Return the key of a build on disk."""
        nvrtc = load_nvrtc()
        versions = (*self._cub.version, *nvrtc.nvrtcVersion()[1:])
        return msgspec.msgpack.encode((_FORM, encoded, self._capability, versions))

    def _read(self, spec: CubSpec, key: bytes) -> Any:
        data = self._files.get(key)
        if data is None:
            return None
        kind = getattr(self._cub.bindings, algorithm_of(spec).result)
        try:
            return kind.deserialize(data, self._load)
        except RuntimeError:  # whatever is wrong with it, it can be built
            return None

    def _make(self, spec: CubSpec, sizes: tuple[int, ...], key: bytes) -> Any:
        call = algorithm_of(spec)(spec, Kit(self._cub.bindings, self._link))
        kind = getattr(self._cub.bindings, call.result)
        try:
            built = kind.compile(*call.build_arguments(sizes), self._cub.common(self._capability))
            self._files.put(key, built.serialize())
            if self._load:
                built.load()
        except RuntimeError as error:
            raise refusal(f"cuda.compute {spec.algorithm}", error) from error
        return built

    def _link(self, source: str, name: str) -> bytes:
        return compile_linkable(source, name, self._capability, (self._cub.headers,))
