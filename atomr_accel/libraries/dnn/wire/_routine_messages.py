"""Messages of the DNN lane for cuDNN's routines."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from ....wire import Address, Message
from ._graph import DnnTensor


class Pool(Message, frozen=True):
    """Pooling, or with ``dy`` and ``dx`` its gradient.

    Attributes:
        mode: ``"max"``, ``"average"`` or ``"average_valid"``, which counts no padding.
        window, padding, stride: one number for each dimension of space.
        x_tensor, y_tensor: how inputs and outputs lie in memory.
        x, y: addresses. Averages are differentiated without them.
        dy, dx: addresses, or 0.
    """

    mode: str
    window: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    x_tensor: DnnTensor
    y_tensor: DnnTensor
    x: Address
    y: Address
    dy: Address = 0
    dx: Address = 0


class Softmax(Message, frozen=True):
    """Softmax along the middle of three dimensions, or with ``dy`` and ``dx`` its gradient.

    Attributes:
        log: whether to compute its logarithm.
        shape: number of elements before the axis, of the axis, and behind it.
        dtype: element type.
        x, y: addresses; the gradient reads only ``y``.
        dy, dx: addresses, or 0.
    """

    log: bool
    shape: tuple[int, int, int]
    dtype: str
    x: Address
    y: Address
    dy: Address = 0
    dx: Address = 0


class Normalize(Message, frozen=True):
    """Local response normalisation across channels, or with ``dy`` and ``dx`` its gradient.

    Attributes:
        size: number of channels that count.
        alpha, beta, k: parameters of the formula.
        tensor: how inputs and outputs lie in memory.
        x, y, dy, dx: addresses; the last two may be 0.
    """

    size: int
    alpha: float
    beta: float
    k: float
    tensor: DnnTensor
    x: Address
    y: Address
    dy: Address = 0
    dx: Address = 0


class Dropout(Message, frozen=True):
    """Set elements to zero by chance. The gradient is the same function of the gradient.

    Attributes:
        p: the share that is dropped; the other elements are divided by ``1 - p``.
        seed, offset: the random words that decide: those from ``offset`` on.
        dtype: element type.
        count: number of elements.
        x, y: addresses, which may be equal.
    """

    p: float
    seed: int
    offset: int
    dtype: str
    count: int
    x: Address
    y: Address


class RnnSpec(msgspec.Struct, frozen=True, array_like=True):
    """A recurrent network.

    Attributes:
        cell: ``"relu"``, ``"tanh"``, ``"lstm"`` or ``"gru"``.
        input_size, hidden_size: sizes of a step's input, and of the state.
        proj_size: size of a projection of the hidden state, which is the output; 0 for none.
        layers: number of layers, one above the other.
        bidirectional: whether each layer also runs backwards.
        bias: whether there are two biases for each gate.
        dropout: the share that is dropped between layers.
        dtype: element type.
    """

    cell: str
    input_size: int
    hidden_size: int
    proj_size: int
    layers: int
    bidirectional: bool
    bias: bool
    dropout: float
    dtype: str

    @property
    def directions(self) -> int:
        """Number of directions: one or two."""
        return 2 if self.bidirectional else 1

    @property
    def gates(self) -> int:
        """Number of matrices by which an input is multiplied."""
        return {"lstm": 4, "gru": 3}.get(self.cell, 1)

    @property
    def output_size(self) -> int:
        """Size of a layer's output in each direction."""
        return self.proj_size or self.hidden_size

    def parameters(self) -> list[tuple[int, str, tuple[int, ...]]]:
        """Pseudo-layer, name and shape of each parameter, in PyTorch's order.

        The gates of a parameter lie one below the other: input, forget, cell and output for
        an LSTM; reset, update and new for a GRU.
        """
        found: list[tuple[int, str, tuple[int, ...]]] = []
        rows = self.gates * self.hidden_size
        for layer in range(self.layers):
            width = self.input_size if layer == 0 else self.output_size * self.directions
            for direction in range(self.directions):
                at = layer * self.directions + direction
                found.append((at, "weight_ih", (rows, width)))
                found.append((at, "weight_hh", (rows, self.output_size)))
                if self.bias:
                    found.append((at, "bias_ih", (rows,)))
                    found.append((at, "bias_hh", (rows,)))
                if self.proj_size:
                    found.append((at, "weight_hr", (self.proj_size, self.hidden_size)))
        return found


class RnnData(msgspec.Struct, frozen=True, array_like=True):
    """Layout of sequences in memory.

    Attributes:
        layout: ``"time"`` (time, batch, size), ``"batch"`` (batch, time, size), or
            ``"packed"``: the steps of time after each other, each with the sequences that are
            long enough to have it.
        steps: length of the longest sequence.
        lengths: lengths of the sequences.
    """

    layout: str
    steps: int
    lengths: tuple[int, ...]


class RnnSizes(Message, frozen=True):
    """Ask for the sizes of a network's buffers.

    The answer is the bytes of packed weights, of workspace, of the data that is kept for the
    backward pass, and of the state of dropout.

    Attributes:
        spec: the network.
        data: the sequences; None to ask only for the weights.
        training: whether a backward pass follows.
    """

    returns: ClassVar[Any] = tuple[int, int, int, int]

    spec: RnnSpec
    data: RnnData | None
    training: bool


class RnnPack(Message, frozen=True):
    """Put parameters into packed weights, or take them out.

    Attributes:
        spec: the network.
        parameters: addresses in the order of ``RnnSpec.parameters``.
        out: whether they are taken out.
    """

    spec: RnnSpec
    parameters: tuple[Address, ...]
    weights: Address
    weight_bytes: int
    out: bool


class RnnForward(Message, frozen=True):
    """Run a recurrent network.

    Attributes:
        spec, data: the network and the sequences.
        training: whether a backward pass follows.
        seed: seed of dropout.
        x, y, weights: addresses.
        h0, c0: addresses of the first states, or 0 for zeros.
        hn, cn: addresses of the last states; cn is 0 for all but an LSTM.
        workspace, reserve, states: addresses of memory as ``RnnSizes`` said.
        sizes: bytes of weights and of those.
    """

    spec: RnnSpec
    data: RnnData
    training: bool
    seed: int
    x: Address
    y: Address
    weights: Address
    h0: Address
    c0: Address
    hn: Address
    cn: Address
    workspace: Address
    reserve: Address
    states: Address
    sizes: tuple[int, int, int, int]


class RnnBackward(Message, frozen=True):
    """The gradients of a recurrent network.

    Attributes:
        forward: the message of the forward pass.
        dy: address of the gradient with respect to ``y``.
        dhn, dcn: addresses of the gradients with respect to the last states, or 0 for zeros.
        dx, dh0, dc0, dweights: addresses of the results; dc0 is 0 for all but an LSTM.
    """

    forward: RnnForward
    dy: Address
    dhn: Address
    dcn: Address
    dx: Address
    dh0: Address
    dc0: Address
    dweights: Address
