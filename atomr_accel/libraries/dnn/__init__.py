"""cuDNN: convolution, normalisation, activations, and graphs of them."""

from ._facade import Dnn
from ._run import DnnStatistics
from ._user import Graph, Plan

__all__ = ["Dnn", "DnnStatistics", "Graph", "Plan"]
