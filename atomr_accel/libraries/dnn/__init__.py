"""cuDNN: convolution, normalisation, activations, and graphs of them."""

from ._facade import Dnn
from ._run import DnnStatistics

__all__ = ["Dnn", "DnnStatistics"]
