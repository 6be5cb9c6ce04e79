"""Training that repeats a step instead of losing a run.

Gradients of functions over the program's own ops (`grad`), losses, optimizers, and a trainer over
several devices whose faults change no bit of the result (`open_data_parallel`).
"""

from . import _library_rules  # noqa: F401 - registers the rules
from ._data import TrainingData, prefetched
from ._data_parallel import DataParallel, open_data_parallel
from ._files import SnapshotDamaged, SnapshotForeign
from ._losses import bce_with_logits, huber, kl_div, mae, mse
from ._optimizers import SGD, Adam, AdamW, Optimizer
from ._parameter_server import ParameterServer, open_parameter_server
from ._pipeline_parallel import PipelineParallel, open_pipeline_parallel
from ._progress import RunProgress, open_progress
from ._rules import Applied, rule
from ._schedules import LossScale, cosine, linear
from ._state import ModelLayout, ModelState
from ._steps import GradientStep, gradient_step
from ._tape import Tape, checkpoint, custom, differentiate, grad
from ._tensor_parallel import TensorParallel, TensorPart, open_tensor_parallel
from ._trainer import LossNotFinite, ReplicasDiffer, Trainer, TrainerStatistics, TrainStep
from ._values import TapeValue, stop_gradient

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Applied",
    "DataParallel",
    "GradientStep",
    "LossNotFinite",
    "LossScale",
    "ModelLayout",
    "ModelState",
    "Optimizer",
    "ParameterServer",
    "PipelineParallel",
    "ReplicasDiffer",
    "RunProgress",
    "SnapshotDamaged",
    "SnapshotForeign",
    "Tape",
    "TapeValue",
    "TensorParallel",
    "TensorPart",
    "TrainStep",
    "Trainer",
    "TrainerStatistics",
    "TrainingData",
    "bce_with_logits",
    "checkpoint",
    "cosine",
    "custom",
    "differentiate",
    "grad",
    "gradient_step",
    "huber",
    "kl_div",
    "linear",
    "mae",
    "mse",
    "open_data_parallel",
    "open_parameter_server",
    "open_pipeline_parallel",
    "open_progress",
    "open_tensor_parallel",
    "prefetched",
    "rule",
    "stop_gradient",
]
