"""Table of the libraries of a device: one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic

from ..expressions._methods import ELSEWHERE
from ..ops import D
from .array._facade import ArrayFunctions
from .blas._facade import Blas
from .blaslt._facade import BlasLt
from .cub._facade import Cub
from .cutlass._facade import Cutlass
from .dnn._facade import Dnn
from .dnn.attention._paged import PagedKVCache
from .dnn.graph._user_graph import Plan as DnnPlan
from .dnn.rnn._facade import Rnn
from .fft._facade import Fft
from .flash_attention._facade import FlashAttention
from .linalg._facade import Linalg
from .nvrtc._facade import Nvrtc
from .nvrtc._kernel import Kernel
from .nvrtc._module import Module
from .rng._facade import Rng
from .rng._generator import Generator
from .sparse._direct import SparseLU
from .sparse._facade import Sparse
from .sparselt._facade import SparseLt
from .tensor._facade import Tensor

if TYPE_CHECKING:
    from ..ops import Home


CALLED: Final = (
    *(ArrayFunctions, Blas, BlasLt, Cub, Cutlass, Dnn, Fft, FlashAttention, Linalg, Nvrtc, Rng),
    *(Sparse, SparseLt, Tensor),
    *(DnnPlan, Generator, Kernel, Module, PagedKVCache, Rnn, SparseLU),
)
"""Classes whose methods programs call: the libraries' facades, and the objects that those make."""
LANES: Final = (
    *("array", "array-builds", "array-waits", "blas", "blaslt", "cub", "cub-builds", "cub-waits"),
    *("cutlass", "cutlass-builds", "dnn", "dnn-plans", "fft", "flash_attention", "kernels"),
    *("nccl", "nccl-aborts", "nvrtc", "rng", "solver", "sparse", "sparse-direct"),
    *("sparse-waits", "sparselt", "tensor"),
)
"""The names of their lanes."""
NAMES: Final = (
    *("array", "blas", "blaslt", "cub", "cutlass", "dnn", "fft", "flash_attention", "linalg"),
    *("nvrtc", "rng", "sparse", "sparselt", "tensor"),
)
"""The names of the facades."""


_OF_NUMPY: Final[dict[str, dict[str, type[Any]]]] = {
    "numpy": {"array": ArrayFunctions, "linalg": Linalg, "tensor": Tensor},
    "numpy.linalg": {"linalg": Linalg, "array": ArrayFunctions},
    "numpy.fft": {"fft": Fft},
}
ELSEWHERE.update(
    {
        module: {
            name: f"{library}.{name}"
            for library, facade in reversed(libraries.items())
            for name in dir(facade)
            if not name.startswith("_")
        }
        for module, libraries in _OF_NUMPY.items()
    }
)


class Libraries(Generic[D]):
    """The library facades of a device, as attributes; ``Device`` says what each is for."""

    array: ArrayFunctions[D]
    blas: Blas[D]
    blaslt: BlasLt[D]
    cub: Cub[D]
    cutlass: Cutlass[D]
    dnn: Dnn[D]
    fft: Fft[D]
    flash_attention: FlashAttention[D]
    linalg: Linalg[D]
    nvrtc: Nvrtc[D]
    rng: Rng[D]
    sparse: Sparse[D]
    sparselt: SparseLt[D]
    tensor: Tensor[D]

    def _add_libraries(self, device: Home) -> None:
        self.blas = Blas(device)
        self.blaslt = BlasLt(device)
        self.cub = Cub(device)
        self.cutlass = Cutlass(device)
        self.array = ArrayFunctions(device, self.cub)
        self.dnn = Dnn(device)
        self.fft = Fft(device, self.cub)
        self.flash_attention = FlashAttention(device, self.dnn)
        self.linalg = Linalg(device, self.cub, self.blas)
        self.nvrtc = Nvrtc(device)
        self.rng = Rng(device, self.array, self.cub, self.blas)
        self.sparse = Sparse(device, self.array, self.cub)
        self.sparselt = SparseLt(device)
        self.tensor = Tensor(device, self.blas, self.cub)
        for name in NAMES:
            getattr(self, name)._library = name

    def _share_libraries(self, others: Libraries[Any], device: Home) -> None:
        """Take over another object's libraries, with their state, driven by ``device``."""
        for name in NAMES:
            setattr(self, name, getattr(others, name)._on(device))
