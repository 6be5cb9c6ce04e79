"""Messages of the FlashAttention lane: one call of our own kernels."""

from __future__ import annotations

from typing import Final

import msgspec

from ....wire import Address, Message
from ...dnn.wire.sequence_messages import Append

READS: Final = (
    *("q", "k", "v", "begin_q", "begin_k", "count_q", "count_k", "table"),
    *("slopes", "sink", "bias", "scale_q", "scale_k", "scale_v"),
)
"""Inputs that a call may have, by the names that the kernels have for them."""

FORWARD_WRITES: Final = ("o", "lse")
BACKWARD_WRITES: Final = ("dq", "dk", "dv", "dbias", "dsink")

PLACES: Final = (*READS, *FORWARD_WRITES, "grad", *BACKWARD_WRITES, "scratch")
"""The order of addresses in ``Flash``."""


class AttentionForm(msgspec.Struct, frozen=True, array_like=True):
    """A call without its buffers.

    Attributes:
        kind: ``"forward"``, ``"decode"`` (which splits the keys), or ``"backward"``.
        dtype: dtype of queries.
        kv_dtype: dtype of keys and values.
        out_dtype: dtype of the result.
        batch, heads, kv_heads, size, value_size: sizes.
        queries, keys: lengths of the longest sequence.
        rows_q, rows_k: rows of all sequences if they lie one after the other, else 0.
        steps: elements from one batch (page), head and row to the next of q, k, v, o, grad and
            lse, in the order of ``STEPPED``.
        page, columns, pages: sizes of pages and of their table, or zeros.
        added: keys of each sequence beyond those that ``count_k`` counts.
        scale, softcap: see ``AttentionOptions``.
        before, after: number of keys before and after its own that a query sees; -1 for all.
        bottom_right: whether the last query's own key is the last one.
        paper: whether slopes are those of the paper.
        slopes_by_sequence: whether slopes are (batch, heads) and not (heads,).
        bias: its shape, or ().
        dropout: the share that is dropped, by ``seed`` and ``offset``.
        scales: number of scales of each of q, k and v: 0, 1 or batch * kv_heads.
        splits: number of blocks among which the keys of a sequence are split.
        limit: upper limit of the lengths of sequences in a cache, without ``added``; -1 for
            ``keys``. The CPU checks it.
    """

    kind: str
    dtype: str
    kv_dtype: str
    out_dtype: str
    batch: int
    heads: int
    kv_heads: int
    size: int
    value_size: int
    queries: int
    keys: int
    rows_q: int
    rows_k: int
    steps: tuple[tuple[int, int, int], ...]
    page: int = 0
    columns: int = 0
    pages: int = 0
    added: int = 0
    scale: float = 1.0
    softcap: float = 0.0
    before: int = -1
    after: int = -1
    bottom_right: bool = True
    paper: bool = False
    slopes_by_sequence: bool = False
    bias: tuple[int, ...] = ()
    dropout: float = 0.0
    seed: int = 0
    offset: int = 0
    scales: tuple[int, int, int] = (0, 0, 0)
    splits: int = 1
    limit: int = -1


STEPPED: Final = ("q", "k", "v", "o", "grad", "lse")


class Flash(Message, frozen=True):
    """Compute attention, or its gradients.

    Attributes:
        form: shapes and options of the call.
        places: addresses in the order of ``PLACES``, 0 for absent ones.
        append: rows to write to a cache first.
    """

    form: AttentionForm
    places: tuple[Address, ...]
    append: Append | None = None


def scratch_of(form: AttentionForm) -> int:
    """Bytes of scratch memory that the kernels take."""
    if form.kind == "backward":
        rows = form.rows_q or form.batch * form.queries
        return 4 * rows * form.heads
    if form.splits > 1:
        rows = form.splits * form.batch * form.heads * form.queries
        return 4 * rows * (form.value_size + 1)
    return 0
