"""CUB by the bindings of package cuda-cccl, which compile its kernels with NVRTC.

Only the extension module itself is loaded. The package around it needs arrays of other packages,
and its import takes longer than most calls here.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module, metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...._errors import LibraryError, LibraryMissing
from ...._install import cuda_command
from ....backends.cuda.host.driver import failure
from ....executors.compiler import toolkit_headers

_MODULE: Final = "_bindings_impl"
_STATUS: Final = re.compile(r"(\d+)")


class CubVersion(NamedTuple):
    """Installed version of CUB.

    Attributes:
        bindings: the extension module.
        headers: the folder of CUB's headers.
        version: the versions of package cuda-cccl, and of the toolkit that it is used with.
    """

    bindings: Any
    headers: str
    version: tuple[str, str]

    def common(self, capability: tuple[int, int]) -> Any:
        """Return the arguments of all builds: compute capability, and folders of headers."""
        headers = f"-I{self.headers}"
        toolkit = "".join(f"-I{path}" for path in toolkit_headers()[:1])
        return self.bindings.CommonData(*capability, headers, headers, headers, toolkit)


@cache
def load_cub() -> CubVersion:
    """Load the bindings, with the libraries that they need."""
    try:
        major = metadata.version("cuda-bindings").partition(".")[0]
        version = metadata.version("cuda-cccl")
        compute, headers = _folder("cuda.compute"), _folder("cuda.cccl")
        for library in ("nvrtc", "nvJitLink", "cudart"):
            import_module("cuda.pathfinder").load_nvidia_dynamic_lib(library)
        file = next(
            path
            for suffix in EXTENSION_SUFFIXES
            if (path := compute / f"cu{major}" / f"{_MODULE}{suffix}").exists()
        )
        spec = spec_from_file_location(_MODULE, file)
        assert spec is not None
        assert spec.loader is not None
        bindings = module_from_spec(spec)
        spec.loader.exec_module(bindings)
    except (ImportError, RuntimeError, StopIteration) as error:
        raise LibraryMissing(
            f"CUB, of package cuda-cccl, is not installed ({error}): {cuda_command()}",
            library="cub",
        ) from error
    return CubVersion(bindings, str(headers / "headers" / "include"), (version, major))


def _folder(package: str) -> Path:
    """Return the folder of a package, without importing it."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"no package named {package}")
    return Path(spec.submodule_search_locations[0])


def refusal(call: str, error: RuntimeError) -> Exception:
    """Return the exception for an error of the bindings, whose message ends with a status."""
    found = _STATUS.findall(str(error))
    if found and int(found[-1]) > 1:
        made = failure(call, _DriverStatus(int(found[-1])))
        if not isinstance(made, LibraryError):
            return made
    return LibraryError(
        f"{call}: {error}",
        library="cub",
        call=call,
        status=int(found[-1]) if found else -1,
        status_name=found[-1] if found else "unknown",
    )


class _DriverStatus(int):
    """A status of the driver, with a name."""

    @property
    def name(self) -> str:
        """Name of the status in the driver."""
        from ....backends.cuda.host.driver import driver

        try:
            name: str = driver.CUresult(int(self)).name
        except ValueError:
            return str(int(self))
        return name
