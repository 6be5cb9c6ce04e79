"""The library facades of a device, as attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from .._other_names import HasOtherNames
from ..ops import D
from .registry import catalogue

if TYPE_CHECKING:
    from ..ops import DeviceView, Recent, Transfers
    from .array.facade import ArrayFunctions
    from .blas.facade import Blas
    from .blaslt._facade import BlasLt
    from .cub.facade import Cub
    from .cutlass._facade import Cutlass
    from .dnn.facade import Dnn
    from .engine._facade import Engines
    from .fft._facade import Fft
    from .flash_attention._facade import FlashAttention
    from .linalg._facade import Linalg
    from .nvrtc._facade import Nvrtc
    from .rng._facade import Rng
    from .sparse._facade import Sparse
    from .sparselt._facade import SparseLt
    from .tensor._facade import Tensor
    from .xp._facade import ArrayApi


class Libraries(Generic[D], HasOtherNames):
    """The library facades of a device, as attributes; ``Device`` says what each is for.

    The annotations name the libraries of this package to type checkers. Those of other packages
    are attributes, too.
    """

    array: ArrayFunctions[D]
    blas: Blas[D]
    blaslt: BlasLt[D]
    cub: Cub[D]
    cutlass: Cutlass[D]
    dnn: Dnn[D]
    engine: Engines[D]
    fft: Fft[D]
    flash_attention: FlashAttention[D]
    linalg: Linalg[D]
    nvrtc: Nvrtc[D]
    rng: Rng[D]
    sparse: Sparse[D]
    sparselt: SparseLt[D]
    tensor: Tensor[D]
    xp: ArrayApi[D]

    def _add_libraries(self, device: DeviceView, transfers: Transfers | None = None) -> None:
        known = catalogue()
        for name in known.in_order:
            uses = (getattr(self, used) for used in known.all[name].uses)
            facade: Any = known.facades[name](device, *uses)
            facade.library = name
            facade.transfers = transfers
            setattr(self, name, facade)

    def _tables(self) -> dict[str, Recent[Any, Any]]:
        """Return the caches of all libraries by name."""
        found = {}
        for library in catalogue().facades:
            facade = getattr(self, library)
            templates = (facade.call_templates.known,) if facade.templated else ()
            for table in (*templates, *facade.caches):
                found[f"{library}.{table.name}"] = table
        return found

    def share_libraries(self, others: Libraries[Any], device: DeviceView) -> None:
        """Take over another object's libraries, with their state; their ops go to ``device``."""
        for name in catalogue().facades:
            setattr(self, name, getattr(others, name).on(device))
