"""Which libraries a device has: one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .blas import Blas
from .blaslt import BlasLt
from .dnn import Dnn, PagedKVCache, Rnn
from .dnn import Plan as DnnPlan
from .fft import Fft
from .nvrtc import Kernel, Nvrtc
from .rng import Generator, Rng

if TYPE_CHECKING:
    from ._library import Submitter


CALLED: Final = (
    *(Blas, BlasLt, Dnn, Fft, Nvrtc, Rng),
    *(DnnPlan, Generator, Kernel, PagedKVCache, Rnn),
)
"""What programs call methods of: the libraries' facades, and what those make."""
LANES: Final = ("blas", "blaslt", "dnn", "dnn-plans", "fft", "kernels", "nvrtc", "rng")
"""The names of their lanes."""


class Libraries:
    """The library facades of a device, as attributes; ``Device`` says what each is for."""

    blas: Blas
    blaslt: BlasLt
    dnn: Dnn
    fft: Fft
    nvrtc: Nvrtc
    rng: Rng

    def _add_libraries(self, device: Submitter) -> None:
        self.blas = Blas(device)
        self.blaslt = BlasLt(device)
        self.dnn = Dnn(device)
        self.fft = Fft(device)
        self.nvrtc = Nvrtc(device)
        self.rng = Rng(device)
