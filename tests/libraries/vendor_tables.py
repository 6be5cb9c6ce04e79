"""Which tables of prototypes there are, and which headers they are held against.

To add a library: a line in ``TABLES``. Its module has ``PROTOTYPES`` and ``ENUMS``, and may
have numbers that C expressions must have, which go to ``numbers`` here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Table:
    """The functions and values of a library that are in use.

    Attributes:
        library: the library, as cuda-pathfinder knows it.
        module: where its ``PROTOTYPES`` and ``ENUMS`` are, in ``atomr_accel.libraries``.
        headers: what declares them.
        beside: libraries whose headers these include.
        numbers: C expressions and their values, as ``sizeof`` and ``offsetof``.
    """

    library: str
    module: str
    headers: tuple[str, ...]
    numbers: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()

    @property
    def tables(self) -> Any:
        """The module."""
        return importlib.import_module(f"atomr_accel.libraries.{self.module}")


RESULT: Final = "cublasLtMatmulHeuristicResult_t"

TABLES: Final = {
    table.library: table
    for table in (
        Table("cublas", "blas.host._prototypes", ("cublas_v2.h",)),
        Table(
            "cublasLt",
            "blaslt.host._prototypes",
            ("cublasLt.h",),
            {
                "sizeof(cublasLtMatmulAlgo_t)": "ALGORITHM_BYTES",
                f"sizeof({RESULT})": "RESULT_BYTES",
                f"offsetof({RESULT}, workspaceSize)": "ALGORITHM_BYTES",
                f"offsetof({RESULT}, state)": "ALGORITHM_BYTES + 8",
            },
        ),
        Table("cudnn", "dnn.host._prototypes", ("cudnn.h",)),
        Table("cufft", "fft.host._prototypes", ("cufft.h", "cufftXt.h")),
        Table("cusolver", "linalg.host._prototypes", ("cusolverDn.h",), beside=("cublas",)),
        Table("cusparse", "sparse.host._prototypes", ("cusparse.h",)),
        Table("cudss", "sparse.host._prototypes_dss", ("cudss.h",)),
        Table(
            "cusparseLt",
            "sparselt.host._prototypes",
            ("cusparseLt.h",),
            {
                f"{what}(cusparseLt{name}_t)": f"STRUCT_{number}"
                for name in ("Handle", "MatDescriptor", "MatmulAlgSelection", "MatmulPlan")
                for what, number in (("sizeof", "BYTES"), ("alignof", "ALIGNMENT"))
            },
            beside=("cusparse",),
        ),
        Table("curand", "rng.host._prototypes", ("curand.h",)),
        Table("cutensor", "tensor.host._prototypes", ("cutensor.h",)),
        Table(
            "nccl",
            "nccl.host._prototypes",
            ("nccl.h",),
            {
                "offsetof(ncclConfig_t, blocking)": "CONFIG_BLOCKING_AT",
                "offsetof(ncclConfig_t, trafficClass)": "CONFIG_BYTES - 4",
            },
        ),
    )
}
"""By library."""
