"""Every op on views with gaps and other orders: the same answers as on contiguous buffers."""

from __future__ import annotations

from .blas.rows import OPERATIONS as BLAS
from .blaslt.rows import OPERATIONS as BLASLT
from .conformance import MARKS, conform, put_matrices, put_strided
from .dnn.rows.attention import OPERATIONS as ATTENTION
from .dnn.rows.ops import OPERATIONS as OPS
from .dnn.rows.rnn import OPERATIONS as RNN
from .dnn.rows.routines import OPERATIONS as ROUTINES

pytestmark = MARKS

test_blas = conform(BLAS, take=12, put=put_strided)
test_products = conform(
    [row for row in (*BLAS, *BLASLT) if "gemm" in row.name or "matmul" in row.name],
    take=6,
    put=put_matrices,
)
test_blaslt = conform(BLASLT, take=12, put=put_strided)
test_dnn = conform([*OPS, *ATTENTION, *RNN, *ROUTINES], take=12, put=put_strided)
