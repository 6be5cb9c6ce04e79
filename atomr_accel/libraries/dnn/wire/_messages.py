"""Messages of the DNN lane.

A graph is sent as bytes (``_graph.encode``). They are the key of the plan that the lane prepares
for it, and are decoded only the first time.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ....wire import Address, Message


class PrepareGraph(Message, frozen=True):
    """Make a plan for a graph; answered by ``(bytes of workspace, origin, implementation)``.

    It came from ``"memory"``, from ``"disk"``, or was ``"built"``. The implementation is
    ``"cudnn"``; ``"padded"`` for cuDNN between kernels of this package that pad; ``"own"`` where
    other kernels of this package take part; or ``"numpy"``.

    Attributes:
        graph: the encoded graph.
        tuned: the plan that ``TuneGraph`` found fastest, if it has been asked.
    """

    returns: ClassVar[Any] = tuple[int, str, str]

    prepares: ClassVar[bool] = True
    lasting: ClassVar[bool] = True

    graph: bytes
    tuned: bool


class RunGraph(Message, frozen=True):
    """Run a graph, making its plan first if it is not there.

    Attributes:
        graph: the encoded graph.
        tuned: as in ``PrepareGraph``.
        addresses: addresses of the graph's buffers, in the order of their ids; 0 for an empty one.
        scalars: the graph's numbers, in the order of their ids.
        workspace, workspace_bytes: scratch memory; a plan that needs more has its own.
    """

    graph: bytes
    tuned: bool
    addresses: tuple[Address, ...]
    scalars: tuple[float, ...]
    workspace: Address
    workspace_bytes: int


class TuneGraph(Message, frozen=True):
    """Time all plans of a graph and keep the fastest; answered as ``PrepareGraph``.

    Attributes:
        run: the run to time. Its outputs are discarded.
    """

    returns: ClassVar[Any] = tuple[int, str, str]

    run: RunGraph


class ForgetGraph(Message, frozen=True):
    """Drop a graph's plan."""

    graph: bytes
    tuned: bool
