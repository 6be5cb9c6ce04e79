"""``device.dnn.rnn``: recurrent networks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from ...._dtypes import DTYPES, as_dtype
from ...._errors import Unsupported
from ....ops import D, Facade, Request, Submission, op, require_int32, require_readable
from ....wire.options import LARGEST, flag, real, whole
from ....wire.recent import Recent
from ..graph._run import LANE, DnnPart
from ..wire._routine_messages import RnnBackward, RnnData, RnnForward, RnnPack, RnnSizes, RnnSpec

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ....arrays import GpuRef
    from ....ops import DeviceView, Preparer

_CELLS: Final = ("relu", "tanh", "lstm", "gru")
_LAYOUTS: Final = ("time", "batch", "packed")
_DTYPES: Final = ("float16", "bfloat16", "float32", "float64")
_UINT8: Final = DTYPES["uint8"]
_MOST_SIZES: Final = 1024
_Sizes = tuple[int, int, int, int]
_Known = Recent[tuple[RnnSpec, RnnData | None, bool], _Sizes]


class RnnOutput(NamedTuple):
    """Results of a recurrent network.

    Attributes:
        y: output of the last layer at each step; zeros behind the end of a sequence.
        hn: the last hidden states, (layers * directions, batch, output size).
        cn: an LSTM's last cell states; None for other networks.
        tape: input of ``forward_grad``; None unless ``training``.
    """

    y: GpuRef
    hn: GpuRef
    cn: GpuRef | None
    tape: RnnTape | None


class RnnGradients(NamedTuple):
    """The gradients of a recurrent network.

    Attributes:
        dx: gradient with respect to the input.
        dh0, dc0: gradients with respect to the first states; only an LSTM has dc0.
        dweights: gradient with respect to the packed weights, packed in the same way.
    """

    dx: GpuRef
    dh0: GpuRef
    dc0: GpuRef | None
    dweights: GpuRef


@final
@dataclass(frozen=True, slots=True)
class RnnTape:
    """Values of the forward pass that the backward pass needs. Its buffers must not change."""

    data: RnnData
    sizes: _Sizes
    seed: int
    x: GpuRef
    y: GpuRef
    weights: GpuRef
    h0: GpuRef | None
    c0: GpuRef | None
    hn: GpuRef
    cn: GpuRef | None
    reserve: GpuRef | None


@final
class Rnn(Facade[D]):
    """A recurrent network: its sizes, not its parameters. From ``device.dnn.rnn``.

    All methods raise what those of ``device.dnn`` do. ``Unsupported`` comes inside a batch, too,
    where the sizes of buffers for these shapes are not known yet: call the method with them once
    before.

    Attributes:
        spec: its sizes.
    """

    def __init__(self, device: DeviceView, spec: RnnSpec, sizes: _Known) -> None:
        self.home = device
        self.spec: Final = spec
        self._dtype: Final = DTYPES[spec.dtype]
        self._sizes: Final = sizes

    @property
    def parameter_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the parameters, in PyTorch's order (``torch.nn.LSTM._flat_weights``).

        For each layer and direction: the matrix for the input, that for the state, with
        ``bias`` a vector for each, with ``proj_size`` the projection. The gates lie one below
        the other: input, forget, cell, output for an LSTM; reset, update, new for a GRU.
        """
        return [shape for _, _, shape in self.spec.parameters()]

    @op
    def pack(self, parameters: Sequence[GpuRef]) -> Request[GpuRef]:
        """Put parameters into one buffer, as the library wants them.

        Vendor function: ``cudnnGetRNNWeightParams``.

        Args:
            parameters: buffers with the shapes of ``parameter_shapes``.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            (nbytes, *_) = self._ask(preparer, None, training=False)
            shapes = self.parameter_shapes
            if len(parameters) != len(shapes):
                raise ValueError(f"there are {len(shapes)} parameters, not {len(parameters)}")
            reads = [
                self._checked(ref, f"parameter {at}", shape)
                for at, (ref, shape) in enumerate(zip(parameters, shapes, strict=True))
            ]
            weights = preparer.output((nbytes // self._dtype.itemsize,), self._dtype)
            places = tuple(block.address for block in reads)
            block = weights.block
            message = RnnPack(self.spec, places, block.address, nbytes, out=False)
            return Submission(message, reads, [block], weights)

        return Request(LANE, "dnn.rnn_pack", prepare)

    @op
    def unpack(self, weights: GpuRef) -> Request[list[GpuRef]]:
        """Take the parameters out of packed weights, or their gradients.

        Args:
            weights: result of ``pack``, or ``dweights``.

        Returns:
            Buffers with the shapes of ``parameter_shapes``.
        """

        def prepare(preparer: Preparer) -> Submission[list[GpuRef]]:
            (nbytes, *_) = self._ask(preparer, None, training=False)
            source = self._checked(weights, "weights", (nbytes // self._dtype.itemsize,))
            made = [preparer.output(shape, self._dtype) for shape in self.parameter_shapes]
            blocks = [ref.block for ref in made]
            places = tuple(block.address for block in blocks)
            message = RnnPack(self.spec, places, source.address, nbytes, out=True)
            return Submission(message, [source], blocks, made)

        return Request(LANE, "dnn.rnn_unpack", prepare)

    @op
    def forward(
        self,
        x: GpuRef,
        weights: GpuRef,
        h0: GpuRef | None = None,
        c0: GpuRef | None = None,
        *,
        lengths: Sequence[int] | None = None,
        layout: str = "time",
        training: bool = False,
        seed: int = 0,
    ) -> Request[RnnOutput]:
        """Run the network.

        Vendor function: ``cudnnRNNForward``.

        Args:
            x: shape (steps, batch, input_size); (batch, steps, input_size) with ``layout``
                ``"batch"``; (sum of lengths, input_size) with ``"packed"``: the steps one
                after the other, each with those sequences that last so long.
            weights: packed parameters.
            h0: first hidden states, (layers * directions, batch, output size); zeros if
                absent. The output size is ``proj_size``, or else ``hidden_size``.
            c0: an LSTM's first cell states, (layers * directions, batch, hidden_size).
            lengths: steps of each sequence; by default all of them. Packed ones need them,
                in descending order.
            layout: see ``x``.
            training: whether ``forward_grad`` follows.
            seed: seed of the dropout between layers, which happens only in training. Masks
                differ between backends.
        """
        require_readable(x, self.home.memory, "x")
        flag(training, "training")
        number = whole(seed, "seed", 0, LARGEST)
        data = self._data(x, lengths, layout)
        spec, dtype = self.spec, self._dtype
        lstm = spec.cell == "lstm"
        if c0 is not None and not lstm:
            raise ValueError(
                f"c0 must be None for a network of {spec.cell}, which has no cell states"
            )

        def prepare(preparer: Preparer) -> Submission[RnnOutput]:
            reads = [self._checked(x, "x", x.shape)]
            sizes = (nbytes, work, reserve, states) = self._ask(preparer, data, training=training)
            reads.append(self._checked(weights, "weights", (nbytes // dtype.itemsize,)))
            for name, ref, size in (
                ("h0", h0, spec.output_size),
                ("c0", c0, spec.hidden_size),
            ):
                if ref is not None:
                    reads.append(self._checked(ref, name, self._state(data, size)))
            y = preparer.output((*x.shape[:-1], spec.output_size * spec.directions), dtype)
            hn = preparer.output(self._state(data, spec.output_size), dtype)
            cn = preparer.output(self._state(data, spec.hidden_size), dtype) if lstm else None
            kept = preparer.output((reserve,), _UINT8) if reserve else None
            scratch = [
                preparer.output((size,), _UINT8) if size else None for size in (work, states)
            ]
            tape = RnnTape(data, sizes, number, x, y, weights, h0, c0, hn, cn, kept)
            message = self._message(tape, scratch, training=training)
            writes = [ref.block for ref in (y, hn, cn, kept, *scratch) if ref is not None]
            result = RnnOutput(y, hn, cn, tape if training else None)
            return Submission(message, reads, writes, result)

        return Request(LANE, "dnn.rnn", prepare)

    @op
    def forward_grad(
        self,
        grad: GpuRef,
        tape: RnnTape | None,
        dhn: GpuRef | None = None,
        dcn: GpuRef | None = None,
    ) -> Request[RnnGradients]:
        """The gradients of ``forward``.

        Vendor functions: ``cudnnRNNBackwardData_v8`` and ``cudnnRNNBackwardWeights_v8``.

        Args:
            grad: gradient with respect to ``y``; ignored behind the end of a sequence.
            tape: tape of a run with ``training=True``; it can be used once.
            dhn: gradient with respect to the last hidden states; zeros if absent.
            dcn: gradient with respect to an LSTM's last cell states; zeros if absent.

        Returns:
            The gradients with respect to inputs, first states and packed weights.
        """
        if tape is None:
            raise ValueError("there is no tape: the forward pass needs training=True")
        spec, dtype = self.spec, self._dtype
        lstm = spec.cell == "lstm"
        if dcn is not None and not lstm:
            raise ValueError(
                f"dcn must be None for a network of {spec.cell}, which has no cell states"
            )

        def prepare(preparer: Preparer) -> Submission[RnnGradients]:
            kept = (tape.x, tape.y, tape.weights, tape.h0, tape.c0)
            reads = [
                require_readable(ref, self.home.memory, "tape") for ref in kept if ref is not None
            ]
            reads.append(self._checked(grad, "grad", tape.y.shape))
            states = {"dhn": (dhn, spec.output_size), "dcn": (dcn, spec.hidden_size)}
            for name, (ref, size) in states.items():
                if ref is not None:
                    reads.append(self._checked(ref, name, self._state(tape.data, size)))
            dx = preparer.output(tape.x.shape, dtype)
            dh0 = preparer.output(self._state(tape.data, spec.output_size), dtype)
            dc0 = preparer.output(self._state(tape.data, spec.hidden_size), dtype) if lstm else None
            dweights = preparer.output(tape.weights.shape, dtype)
            work = preparer.output((tape.sizes[1],), _UINT8) if tape.sizes[1] else None
            message = RnnBackward(
                self._message(tape, [work, None], training=True),
                *map(_address, (grad, dhn, dcn, dx, dh0, dc0, dweights)),
            )
            made = (dx, dh0, dc0, dweights, work, tape.reserve)
            writes = [ref.block for ref in made if ref is not None]
            return Submission(message, reads, writes, RnnGradients(dx, dh0, dc0, dweights))

        return Request(LANE, "dnn.rnn_backward", prepare)

    def _message(
        self, tape: RnnTape, scratch: list[GpuRef | None], *, training: bool
    ) -> RnnForward:
        return RnnForward(
            spec=self.spec,
            data=tape.data,
            training=training,
            seed=tape.seed,
            x=_address(tape.x),
            y=_address(tape.y),
            weights=_address(tape.weights),
            h0=_address(tape.h0),
            c0=_address(tape.c0),
            hn=_address(tape.hn),
            cn=_address(tape.cn),
            workspace=_address(scratch[0]),
            reserve=_address(tape.reserve),
            states=_address(scratch[1]),
            sizes=tape.sizes,
        )

    def _ask(self, preparer: Preparer, data: RnnData | None, *, training: bool) -> _Sizes:
        """Return the sizes of the buffers that a pass needs, in bytes."""
        key = (self.spec, data, training)
        found = self._sizes.get(key)
        if found is None:
            require_int32(self.home, "a recurrent network", _counts(self.spec, data))
            submission: Submission[_Sizes] = Submission(RnnSizes(self.spec, data, training), (), ())
            answer = preparer.perform(Request(LANE, "dnn.rnn_sizes", lambda _preparer: submission))
            if answer is None:
                raise Unsupported(
                    "in a batch there is no answer yet to how much memory a recurrent network "
                    "needs for these shapes; call it with them once before the batch"
                )
            found = self._sizes.add(key, answer)
        return found

    def _data(self, x: GpuRef, lengths: Sequence[int] | None, layout: str) -> RnnData:
        if layout not in _LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(_LAYOUTS)}, not {layout!r}")
        packed = layout == "packed"
        rank = 2 if packed else 3
        if len(x.shape) != rank or x.shape[-1] != self.spec.input_size or 0 in x.shape:
            raise ValueError(
                f"x must have {rank} dimensions, none of them 0, the last one of "
                f"{self.spec.input_size}, not shape {x.shape}"
            )
        if lengths is None:
            if packed:
                raise ValueError("packed sequences need their lengths")
            steps, batch = x.shape[:2] if layout == "time" else x.shape[1::-1]
            return RnnData(layout, steps, (steps,) * batch)
        given = tuple(whole(length, "each of lengths") for length in lengths)
        if not given or min(given) < 1:
            raise ValueError(f"lengths must be at least 1 each, not {lengths}")
        if packed:
            if list(given) != sorted(given, reverse=True) or sum(given) != x.shape[0]:
                raise ValueError(
                    f"lengths of packed sequences must be in descending order and sum up to the "
                    f"{x.shape[0]} rows of x, not {lengths}"
                )
            return RnnData(layout, given[0], given)
        steps, batch = x.shape[:2] if layout == "time" else x.shape[1::-1]
        if len(given) != batch or max(given) > steps:
            raise ValueError(
                f"there must be {batch} lengths of at most {steps} for x of shape {x.shape}, "
                f"not {lengths}"
            )
        return RnnData(layout, steps, given)

    def _state(self, data: RnnData, size: int) -> tuple[int, ...]:
        spec = self.spec
        return (spec.layers * spec.directions, len(data.lengths), size)

    def _checked(self, ref: GpuRef, name: str, shape: tuple[int, ...]) -> Any:
        block = require_readable(ref, self.home.memory, name)
        if ref.dtype is not self._dtype:
            raise TypeError(f"{name} must have dtype {self._dtype.name}, not {ref.dtype.name}")
        if ref.shape != shape:
            raise ValueError(f"{name} must have shape {shape}, not {ref.shape}")
        return block


class Recurrent(DnnPart[D]):
    """Recurrent networks."""

    def __init__(self, device: DeviceView) -> None:
        super().__init__(device)
        self._rnn_sizes: _Known = Recent(_MOST_SIZES, name="networks")
        self.caches: tuple[Recent[Any, Any], ...] = (
            self.plans.plans,
            self.plans.calls,
            self._rnn_sizes,
        )

    def rnn(
        self,
        cell: str,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bias: bool = True,
        bidirectional: bool = False,
        proj_size: int = 0,
        dropout: float = 0.0,
        dtype: DTypeLike = "float32",
    ) -> Rnn[D]:
        """Describe a recurrent network, as ``torch.nn.LSTM`` and its kin do.

        Args:
            cell: ``"lstm"``, ``"gru"``, or ``"relu"`` or ``"tanh"`` for a plain one.
            input_size: size of a step's input.
            hidden_size: size of the state.
            num_layers: number of layers, one above the other.
            bias: whether each gate has two biases.
            bidirectional: whether each layer also runs backwards; outputs are put together.
            proj_size: size to which an LSTM's hidden state is projected; 0 for no projection.
            dropout: between layers, in training.
            dtype: float16, bfloat16, float32 or float64.

        Returns:
            The network; nothing is sent to the device yet.
        """
        if cell not in _CELLS:
            raise ValueError(f"cell must be one of {', '.join(_CELLS)}, not {cell!r}")
        sizes = {
            "input_size": input_size,
            "hidden_size": hidden_size,
            "num_layers": num_layers,
        }
        for name, size in sizes.items():
            whole(size, name, 1)
        if not 0 <= whole(proj_size, "proj_size") < hidden_size or (proj_size and cell != "lstm"):
            raise ValueError(
                f"proj_size must be below hidden_size, and is for an LSTM only; not {proj_size}"
            )
        share = real(dropout, "dropout", least=0, below=1)
        kind = as_dtype(dtype)
        if kind.name not in _DTYPES:
            raise TypeError(f"dtype must be one of {', '.join(_DTYPES)}, not {kind.name}")
        spec = RnnSpec(
            cell,
            operator.index(input_size),
            operator.index(hidden_size),
            operator.index(proj_size),
            operator.index(num_layers),
            flag(bidirectional, "bidirectional"),
            flag(bias, "bias"),
            share if num_layers > 1 else 0.0,
            kind.name,
        )
        return Rnn(self.home, spec, self._rnn_sizes)


def _counts(spec: RnnSpec, data: RnnData | None) -> tuple[int, ...]:
    """The numbers that cuDNN takes as ints."""
    sizes = (spec.input_size, spec.hidden_size, spec.output_size * spec.directions)
    if data is None:
        return (*sizes, spec.layers)
    batch = len(data.lengths)
    states = spec.layers * spec.directions, batch * max(spec.output_size, spec.hidden_size)
    return (*sizes, *states, data.steps, batch)


def _address(ref: GpuRef | None) -> Any:
    return 0 if ref is None else ref.block.address
