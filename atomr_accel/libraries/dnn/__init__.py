"""cuDNN: convolution, normalisation, activations, attention, and graphs of them."""

from ._attention_options import AttentionOptions
from ._facade import Dnn
from ._paged import KVCacheStatistics, PagedKVCache
from ._rnn import Rnn, RnnGradients, RnnOutput, RnnTape
from ._run import DnnStatistics
from ._user import Graph, Plan

__all__ = [
    "AttentionOptions",
    "Dnn",
    "DnnStatistics",
    "Graph",
    "KVCacheStatistics",
    "PagedKVCache",
    "Plan",
    "Rnn",
    "RnnGradients",
    "RnnOutput",
    "RnnTape",
]
