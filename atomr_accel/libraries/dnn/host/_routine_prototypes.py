"""cuDNN's routines in use (``cudnn_ops.h``, ``cudnn_adv.h``), and the numbers they take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ....executors.vendor import Prototypes

ROUTINES: Final[Prototypes] = {
    "cudnnCreateTensorDescriptor": "ptr*",
    "cudnnSetTensorNdDescriptor": "ptr int int int* int*",
    "cudnnGetTensorSizeInBytes": "ptr size*",
    "cudnnDestroyTensorDescriptor": "ptr",
    "cudnnCreatePoolingDescriptor": "ptr*",
    "cudnnSetPoolingNdDescriptor": "ptr int int int int* int* int*",
    "cudnnDestroyPoolingDescriptor": "ptr",
    "cudnnPoolingForward": "ptr ptr ptr ptr ptr ptr ptr ptr",
    "cudnnPoolingBackward": "ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr",
    "cudnnSoftmaxForward": "ptr int int ptr ptr ptr ptr ptr ptr",
    "cudnnSoftmaxBackward": "ptr int int ptr ptr ptr ptr ptr ptr ptr ptr",
    "cudnnCreateLRNDescriptor": "ptr*",
    "cudnnSetLRNDescriptor": "ptr uint double double double",
    "cudnnDestroyLRNDescriptor": "ptr",
    "cudnnLRNCrossChannelForward": "ptr ptr int ptr ptr ptr ptr ptr ptr",
    "cudnnLRNCrossChannelBackward": "ptr ptr int ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr",
    "cudnnCreateCTCLossDescriptor": "ptr*",
    "cudnnSetCTCLossDescriptor_v9": "ptr int int int int",
    "cudnnDestroyCTCLossDescriptor": "ptr",
    "cudnnGetCTCLossWorkspaceSize_v8": "ptr int ptr ptr ptr size*",
    "cudnnCTCLoss_v8": "ptr int ptr ptr ptr ptr ptr ptr ptr ptr ptr size ptr",
    "cudnnCreateDropoutDescriptor": "ptr*",
    "cudnnSetDropoutDescriptor": "ptr ptr float ptr size u64",
    "cudnnDropoutGetStatesSize": "ptr size*",
    "cudnnDestroyDropoutDescriptor": "ptr",
    "cudnnCreateRNNDescriptor": "ptr*",
    "cudnnSetRNNDescriptor_v8": "ptr int int int int int int int int int int int int ptr uint",
    "cudnnDestroyRNNDescriptor": "ptr",
    "cudnnGetRNNWeightSpaceSize": "ptr ptr size*",
    "cudnnGetRNNTempSpaceSizes": "ptr ptr int ptr size* size*",
    "cudnnGetRNNWeightParams": "ptr ptr int size ptr int ptr ptr* ptr ptr*",
    "cudnnCreateRNNDataDescriptor": "ptr*",
    "cudnnSetRNNDataDescriptor": "ptr int int int int int int* ptr",
    "cudnnDestroyRNNDataDescriptor": "ptr",
    "cudnnRNNForward": (
        "ptr ptr int ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr size ptr size ptr size ptr"
    ),
    "cudnnRNNBackwardData_v8": (
        "ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr size ptr size ptr size ptr"
    ),
    "cudnnRNNBackwardWeights_v8": (
        "ptr ptr int ptr ptr ptr ptr ptr ptr ptr size ptr size ptr size ptr"
    ),
}
"""Functions that return a status."""

ENUMS: Final = {
    "CUDNN_DATA_FLOAT": 0,
    "CUDNN_DATA_DOUBLE": 1,
    "CUDNN_DATA_HALF": 2,
    "CUDNN_DATA_BFLOAT16": 9,
    "CUDNN_PROPAGATE_NAN": 1,
    "CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING": 1,
    "CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING": 2,
    "CUDNN_POOLING_MAX_DETERMINISTIC": 3,
    "CUDNN_SOFTMAX_ACCURATE": 1,
    "CUDNN_SOFTMAX_LOG": 2,
    "CUDNN_SOFTMAX_MODE_INSTANCE": 0,
    "CUDNN_SOFTMAX_MODE_CHANNEL": 1,
    "CUDNN_LRN_CROSS_CHANNEL_DIM1": 0,
    "CUDNN_CTC_LOSS_ALGO_DETERMINISTIC": 0,
    "CUDNN_CTC_ZERO_OOB_GRADIENTS": 0,
    "CUDNN_LOSS_NORMALIZATION_SOFTMAX": 1,
    "CUDNN_RNN_ALGO_STANDARD": 0,
    "CUDNN_RNN_RELU": 0,
    "CUDNN_RNN_TANH": 1,
    "CUDNN_LSTM": 2,
    "CUDNN_GRU": 3,
    "CUDNN_RNN_NO_BIAS": 0,
    "CUDNN_RNN_DOUBLE_BIAS": 2,
    "CUDNN_UNIDIRECTIONAL": 0,
    "CUDNN_BIDIRECTIONAL": 1,
    "CUDNN_LINEAR_INPUT": 0,
    "CUDNN_FMA_MATH": 3,
    "CUDNN_TENSOR_OP_MATH": 1,
    "CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED": 0,
    "CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED": 1,
    "CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED": 2,
    "CUDNN_RNN_PADDED_IO_ENABLED": 1,
    "CUDNN_FWD_MODE_INFERENCE": 0,
    "CUDNN_FWD_MODE_TRAINING": 1,
    "CUDNN_WGRAD_MODE_ADD": 0,
}
"""Values used here, as the headers name them; a test compares them with the headers."""

DATA_NUMBERS: Final = {
    "float32": ENUMS["CUDNN_DATA_FLOAT"],
    "float64": ENUMS["CUDNN_DATA_DOUBLE"],
    "float16": ENUMS["CUDNN_DATA_HALF"],
    "bfloat16": ENUMS["CUDNN_DATA_BFLOAT16"],
}

POOLINGS: Final = {
    "max": ENUMS["CUDNN_POOLING_MAX_DETERMINISTIC"],
    "average": ENUMS["CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING"],
    "average_valid": ENUMS["CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING"],
}

CELLS: Final = {
    "relu": ENUMS["CUDNN_RNN_RELU"],
    "tanh": ENUMS["CUDNN_RNN_TANH"],
    "lstm": ENUMS["CUDNN_LSTM"],
    "gru": ENUMS["CUDNN_GRU"],
}

DATA_LAYOUTS: Final = {
    "time": ENUMS["CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED"],
    "packed": ENUMS["CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED"],
    "batch": ENUMS["CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED"],
}
