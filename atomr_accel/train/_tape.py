"""Reverse mode over the ops of a batch or a recording."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, final

import numpy as np
import trio

from .._dtypes import is_float
from .._errors import Unsupported, said_of
from ..arrays import GpuRef
from ..arrays.expressions import Expression, Operand, cast, parts_of
from ._expressions import gradients, kept_nodes
from ._rules import Applied, bound, rule_of
from ._trees import optree
from ._values import TapeValue, stop_gradient, values_in, without_values

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from ..device import Device

_NUMPY = ("sum", "mean", "max", "min", "var", "std", "where", "clip", "tril", "triu")
"""Functions of ``array`` that are expressions, which have their own gradients."""


class TapeEntry(NamedTuple):
    """One step of the forward pass.

    Attributes:
        outputs: its results.
        inputs: its operands.
        pull: makes the gradients of the inputs from those of the outputs.
        waits: whether ``pull`` is async, because others take part.
    """

    outputs: tuple[TapeValue, ...]
    inputs: tuple[TapeValue, ...]
    pull: Callable[..., Any]
    waits: bool = False


@final
class Tape:
    """A batch, or a recording, that keeps what the gradients need.

    Its attributes are those of the batch. Ops that get values of the tape return values. An op
    whose arguments are all refs is the batch's own, and its result a constant.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self._entries: list[TapeEntry] = []

    # --- the facade -------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self.batch, name)
        if callable(found):
            return partial(self._refused, name)
        library = TapedLibrary(self, name)
        setattr(self, name, library)  # found at once the next time
        return library

    def _refused(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the batch that has no gradient."""
        if any(True for _ in values_in([*args, *kwargs.values()])):
            raise _without_rule(name)
        return getattr(self.batch, name)(*args, **kwargs)

    def evaluate(self, *expressions: Any, out: None = None) -> Any:
        """Compute expressions, as ``batch.evaluate`` does.

        Args:
            *expressions: expressions of values and refs.
            out: not on a tape, because what a gradient needs must not be overwritten.

        Returns:
            A value, or a ref for an expression of refs alone; for several expressions a tuple.

        Raises:
            Unsupported: ``out`` is given.
        """
        if out is not None:
            raise _no_out("evaluate")
        # Each value is one operand, by a handle of its own: a buffer can belong to several values,
        # and be a constant besides.
        places: dict[int, TapeValue] = {}
        handles: dict[int, GpuRef] = {}

        def plain(value: TapeValue) -> Operand:
            self._own(value)
            handle = handles.setdefault(id(value), value.ref[...])
            places[id(handle)] = value
            return handle

        made: list[Any] = []
        roots: list[Expression] = []
        for each in expressions:
            bare = each if isinstance(each, TapeValue) else without_values(each, plain)
            made.append(bare)
            if isinstance(bare, Expression):
                roots.append(bare)
        kept = {id(each): each for root in roots for each in self._kept(root, places)}
        extra = [each for each in kept.values() if not any(each is root for root in roots)]
        wanted = [*roots, *extra]
        refs: tuple[GpuRef, ...] = ()
        if wanted:
            found = self.batch.evaluate(*wanted)
            refs = found if isinstance(found, tuple) else (found,)
        saved = {id(each): ref for each, ref in zip(wanted, refs, strict=True)}
        results = [
            self._evaluated(each, saved, places) if isinstance(each, Expression) else each
            for each in made
        ]
        return results[0] if len(expressions) == 1 else tuple(results)

    def _kept(self, root: Expression, places: dict[int, TapeValue]) -> list[Expression]:
        if not any(id(part) in places for part in parts_of(root)):
            return []
        return kept_nodes(root)

    def _evaluated(
        self, root: Expression, saved: dict[int, GpuRef], places: dict[int, TapeValue]
    ) -> TapeValue | GpuRef:
        ref = saved[id(root)]
        handles = [part for part in parts_of(root) if id(part) in places]
        if not handles or not is_float(root.dtype):
            return ref

        def pull(grads: Sequence[GpuRef | None]) -> Sequence[Any]:
            (grad,) = grads
            assert grad is not None
            return gradients(root, grad, handles, saved, self.batch.evaluate)

        return self.note((ref,), [places[id(each)] for each in handles], pull)[0]

    def copy(self, src: TapeValue | GpuRef) -> TapeValue | GpuRef:
        """Copy a buffer, contiguously, as ``batch.copy`` does."""
        if isinstance(src, TapeValue):
            self._own(src)
            return self.note((self.batch.copy(src.ref),), (src,), lambda grads: grads)[0]
        return self.batch.copy(src)  # type: ignore[no-any-return]

    def view(self, x: TapeValue, see: Callable[[GpuRef], GpuRef]) -> TapeValue:
        """Return a view of a value, which ``see`` makes of its ref."""
        self._own(x)

        def pull(grads: Sequence[GpuRef | None]) -> Sequence[Any]:
            (grad,) = grads
            assert grad is not None
            whole = self.batch.zeros(x.shape, x.dtype)
            self.batch.copy(grad, see(whole))
            return (whole,)

        return self.note((see(x.ref),), (x,), pull)[0]

    # --- what rules use ---------------------------------------------------------------------

    def note(
        self,
        refs: Sequence[GpuRef],
        inputs: Sequence[TapeValue],
        pull: Callable[..., Any],
        *,
        waits: bool = False,
    ) -> tuple[TapeValue, ...]:
        """Note a step, and return its results as values."""
        outputs = tuple(TapeValue(self, ref) for ref in refs)
        self._entries.append(TapeEntry(outputs, tuple(inputs), pull, waits))
        return outputs

    def _own(self, value: TapeValue) -> None:
        if value.tape is not self:
            raise ValueError(
                "values must be of the tape that computes with them, not of another; pass them as "
                "arguments to the function of checkpoint or custom that uses them"
            )

    def call(self, name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call an op of a library, by its rule if an argument is a value of the tape."""
        args, kwargs = self._computed(args), self._computed(kwargs)
        if not any(True for _ in values_in([*args, *kwargs.values()])):
            return method(*args, **kwargs)
        known = rule_of(name)
        library, _, op = name.partition(".")
        if known is None and library == "array" and op in _NUMPY:
            return self.evaluate(getattr(np, op)(*args, **kwargs))
        if known is None:
            raise _without_rule(name)
        arguments = bound(method, args, kwargs)
        if arguments.get("out") is not None:
            raise _no_out(name)
        places: list[tuple[str, int | None, TapeValue]] = []
        for key, argument in arguments.items():
            if isinstance(argument, TapeValue):
                places.append((key, None, argument))
            elif isinstance(argument, (list, tuple)):
                places += [
                    (key, at, each)
                    for at, each in enumerate(argument)
                    if isinstance(each, TapeValue)
                ]
        for _, _, value in places:
            self._own(value)
        bare = without_values(arguments)
        if known.forward is None:
            result, saved = method(*without_values(args), **without_values(kwargs)), None
        else:
            result, saved = known.forward(self.batch, bare)
        several = isinstance(result, (tuple, list))
        applied = Applied(bare, result, saved, frozenset(key for key, _, _ in places))

        def pull(grads: Sequence[GpuRef | None]) -> Sequence[Any]:
            made = known.backward(self.batch, applied, tuple(grads) if several else grads[0])
            for key, _, value in places:
                if key not in made and is_float(value.dtype):
                    raise _no_gradient(name, key)
            return [
                made.get(key) if at is None else made[key][at] if key in made else None
                for key, at, _ in places
            ]

        refs = tuple(result) if several else (result,)
        values = self.note(refs, [value for _, _, value in places], pull)
        return values if several else values[0]

    def _computed(self, x: Any) -> Any:
        """Evaluate the expressions of values in an argument."""
        if isinstance(x, Expression):
            return self.evaluate(x) if any(True for _ in values_in(x)) else x
        if type(x) in (list, tuple):
            return type(x)(self._computed(each) for each in x)
        if type(x) is dict:
            return {name: self._computed(each) for name, each in x.items()}
        return x

    # --- backward ---------------------------------------------------------------------------

    def backward(
        self, seeds: Sequence[tuple[TapeValue, Operand]], wanted: Sequence[TapeValue]
    ) -> list[GpuRef]:
        """Return the gradients of some values, zeros for those that nothing depends on.

        Args:
            seeds: the gradients to begin with.
            wanted: values of this tape.
        """
        try:
            next(self.steps_back(seeds, wanted))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise AssertionError("a step waits for others")

    def steps_back(
        self, seeds: Sequence[tuple[TapeValue, Operand]], wanted: Sequence[TapeValue]
    ) -> Generator[tuple[Callable[..., Any], list[GpuRef | None]], Any, list[GpuRef]]:
        """Yield each step that waits for others, and is sent what its ``pull`` has returned."""
        slopes: dict[int, Operand] = {}

        def add(value: TapeValue, slope: Operand) -> None:
            if slope.shape != value.shape:
                raise ValueError(
                    f"a gradient rule must return the shape of its argument, {value.shape}, not "
                    f"{slope.shape}"
                )
            slope = cast(slope, value.dtype)
            before = slopes.get(id(value))
            slopes[id(value)] = slope if before is None else before + slope

        for value, slope in seeds:
            add(value, slope)
        keep = {id(value) for value in wanted}
        for entry in reversed(self._entries):
            grads = [
                slopes.get(id(value)) if id(value) in keep else slopes.pop(id(value), None)
                for value in entry.outputs
            ]
            if all(grad is None for grad in grads):
                continue
            refs = [None if grad is None else self._ref(grad) for grad in grads]
            for value, ref in zip(entry.outputs, refs, strict=True):
                if id(value) in keep and ref is not None:
                    slopes[id(value)] = ref
            made = (yield entry.pull, refs) if entry.waits else entry.pull(refs)
            for value, slope in zip(entry.inputs, made, strict=True):
                if slope is not None:
                    add(value, slope)
        return [
            self._ref(slopes[id(value)])
            if id(value) in slopes
            else self.batch.zeros(value.shape, value.dtype)
            for value in wanted
        ]

    def _ref(self, x: Operand) -> GpuRef:
        """Return a gradient as a contiguous buffer."""
        if isinstance(x, Expression):
            return self.batch.evaluate(x)  # type: ignore[no-any-return]
        assert isinstance(x, GpuRef)
        return x if x.contiguous else self.batch.copy(x)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a tape cannot be pickled or copied")


class TapedLibrary:
    """A library of a tape: its ops return values where they get values."""

    def __init__(self, tape: Tape, name: str) -> None:
        self._tape = tape
        self._name = name

    def __getattr__(self, op: str) -> Any:
        found = self._method(op)
        if not callable(found):
            return found
        return partial(self._call, op)

    def _method(self, op: str) -> Any:
        return getattr(getattr(self._tape.batch, self._name), op)

    def _call(self, op: str, *args: Any, **kwargs: Any) -> Any:
        # Looked up once more, because an argument may have moved the tape into another batch.
        return self._tape.call(f"{self._name}.{op}", self._method(op), args, kwargs)


def _without_rule(name: str) -> Unsupported:
    return Unsupported(
        f"{name} has no gradient rule; register one: @atomr_accel.train.rule({name!r}), or "
        "keep it out of the gradient: atomr_accel.train.stop_gradient(x)"
    )


def _no_gradient(name: str, key: str) -> Unsupported:
    return Unsupported(f"{key} of {name} has no gradient; pass train.stop_gradient({key})")


def _no_out(name: str) -> Unsupported:
    return Unsupported(
        f"{name} takes no out= on a tape, because gradients need what it would overwrite; leave "
        "it away"
    )


def checked_leaves(params: Any) -> tuple[list[GpuRef], Any]:
    """Return the buffers of a tree of parameters, and its form."""
    leaves, form = optree.tree_flatten(params)
    for path, leaf in zip(optree.treespec_paths(form), leaves, strict=True):
        where = "params" + "".join(f"[{key!r}]" for key in path)
        if not isinstance(leaf, GpuRef):
            raise TypeError(
                f"{where} must be a GpuRef, not {said_of(leaf)}; put it on the device: await "
                "device.put(array)"
            )
        if not is_float(leaf.dtype):
            raise TypeError(
                f"{where} must be floats to have a gradient, not {leaf.dtype.name}; pass it after "
                "the parameters"
            )
    if not leaves:
        raise ValueError("params must have at least one buffer, not none; pass a tree of refs")
    return leaves, form


def differentiate(
    batch: Any,
    function: Callable[..., Any],
    params: Any,
    *args: Any,
    scale: float | GpuRef = 1.0,
) -> tuple[GpuRef, Any]:
    """Compute a function and its gradients inside a batch or a recording.

    ::

        async with device.record(*leaves, x, y) as step:
            loss, grads = train.differentiate(step, model_loss, params, x, y)

    Args:
        batch: an open batch or recording.
        function: computes a scalar; see `grad`.
        params: the parameters, a tree (of dicts, lists, tuples, dataclasses known to optree) of
            refs to floats.
        *args: further arguments of ``function``, which have no gradients.
        scale: a factor of the gradients, from the first on, see `LossScale`: a number, or a ref of
            shape ().

    Returns:
        The loss, of shape (), and a tree like ``params`` of gradients, of the parameters' shapes
        and dtypes.

    Raises:
        TypeError: ``params`` are not refs to floats, or the function does not return a float.
        ValueError: no parameters; or the function does not return a scalar.
        Unsupported: an op of the function has no gradient rule; the message names it.
    """
    leaves, form = checked_leaves(params)
    tape = Tape(batch)
    values = [TapeValue(tape, ref) for ref in leaves]
    loss = function(tape, optree.tree_unflatten(form, values), *args)
    if isinstance(loss, Expression):
        loss = tape.evaluate(loss)
    if not isinstance(loss, (TapeValue, GpuRef)):
        raise TypeError(
            f"the function must return a value of its tape, not {said_of(loss)}; is it async, or "
            "without a return?"
        )
    if loss.shape != () or not is_float(loss.dtype):
        raise ValueError(
            f"the function must return one float, shape (), not {loss.dtype.name} of shape "
            f"{loss.shape}; take the mean: np.mean(losses)"
        )
    seeds: list[tuple[TapeValue, Operand]] = []
    if isinstance(loss, TapeValue):
        seed = (
            batch.evaluate(cast(scale, loss.dtype))
            if isinstance(scale, GpuRef)
            else batch.full((), scale, loss.dtype)
        )
        seeds = [(loss, seed)]
    made = tape.backward(seeds, values)
    ref = loss.ref if isinstance(loss, TapeValue) else loss
    return ref, optree.tree_unflatten(form, made)


def grad(
    device: Device, function: Callable[..., Any]
) -> Callable[..., Awaitable[tuple[GpuRef, Any]]]:
    """Return an async function that computes a function's value and its gradients, in one batch.

    ::

        def model_loss(tape, params, x, y):
            hidden = tape.dnn.relu(tape.blas.gemm(x, params["w1"]))
            return np.mean((tape.blas.gemm(hidden, params["w2"]) - y) ** 2)


        loss, grads = await train.grad(device, model_loss)(params, x, y)

    Args:
        device: the device that computes.
        function: gets a `Tape`, which has the libraries of a batch as attributes, the parameters
            as values of the tape, and the further arguments. It is not async, and returns a scalar:
            a value, or an expression.

    Returns:
        ``await compute(params, *args, scale=1.0)`` returns the loss and the gradients; see
        `differentiate`.
    """
    if not callable(function):
        raise TypeError(f"function must be callable, not {said_of(function)}")

    async def compute(params: Any, *args: Any, scale: float = 1.0) -> tuple[GpuRef, Any]:
        checked_leaves(params)
        await trio.lowlevel.checkpoint_if_cancelled()
        async with device.batch() as batch:
            made = differentiate(batch, function, params, *args, scale=scale)
        return made  # noqa: RET504 - which has its content only after the block

    return compute


def _refs_of(result: Any) -> tuple[list[GpuRef], Any]:
    leaves, form = optree.tree_flatten(result)
    for leaf in leaves:
        if not isinstance(leaf, GpuRef):
            raise TypeError(f"the function must return values or refs, not {said_of(leaf)}")
    return leaves, form


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have a part of a function computed again in the backward pass, to save its memory.

    Only its arguments are kept. ``train.checkpoint(block)(tape, x, weights)`` is
    ``block(tape, x, weights)``, with the same gradients.

    Args:
        function: gets a tape and the arguments, and returns a value, or a tree of values. All
            values that it uses must be among the arguments, in trees.

    Raises:
        ValueError: the function uses a value that is not among its arguments.
    """

    def run(tape: Tape, *args: Any) -> Any:
        given: Any = args
        leaves, form = optree.tree_flatten(given)
        inputs = [leaf for leaf in leaves if isinstance(leaf, TapeValue)]
        quiet = Tape(tape.batch)
        plain = optree.tree_unflatten(form, [stop_gradient(leaf) for leaf in leaves])
        outputs, shape = _refs_of(_settled(quiet, function(quiet, *plain)))

        def pull(grads: Sequence[GpuRef | None]) -> Sequence[Any]:
            again = Tape(tape.batch)
            values = {id(value): TapeValue(again, value.ref) for value in inputs}
            tracked = [values.get(id(leaf), leaf) for leaf in leaves]
            made = _settled(again, function(again, *optree.tree_unflatten(form, tracked)))
            results, _ = optree.tree_flatten(made)
            seeds = [
                (value, slope)
                for value, slope in zip(results, grads, strict=True)
                if slope is not None and isinstance(value, TapeValue)
            ]
            return again.backward(seeds, [values[id(value)] for value in inputs])

        if not inputs:
            return optree.tree_unflatten(shape, outputs)
        return optree.tree_unflatten(shape, tape.note(outputs, inputs, pull))

    return run


def _settled(tape: Tape, result: Any) -> Any:
    """Evaluate the expressions in a result."""
    leaves, form = optree.tree_flatten(result)
    made = [tape.evaluate(each) if isinstance(each, Expression) else each for each in leaves]
    return optree.tree_unflatten(form, made)


def custom(
    function: Callable[..., Any], gradient: Callable[..., Sequence[Any]]
) -> Callable[..., Any]:
    """Give a function a gradient of its own.

    ::

        clipped = train.custom(
            lambda batch, x: batch.evaluate(np.clip(x, -1, 1)),
            lambda batch, grad, result, x: [grad],  # straight through
        )
        y = clipped(tape, x)

    Args:
        function: gets the batch and the arguments, with refs in place of values; returns a ref or
            an expression.
        gradient: gets the batch, the gradient with respect to the result, the result and the
            arguments. Returns one gradient, or None, for each argument.

    Returns:
        A function of a tape and the arguments.
    """

    def run(tape: Tape, *args: Any) -> Any:
        computed = [tape.evaluate(each) if isinstance(each, Expression) else each for each in args]
        plain = without_values(computed)
        result = function(tape.batch, *plain)
        if isinstance(result, Expression):
            result = tape.batch.evaluate(result)
        places = [at for at, each in enumerate(computed) if isinstance(each, TapeValue)]
        if not places:
            return result

        def pull(grads: Sequence[GpuRef | None]) -> Sequence[Any]:
            made = gradient(tape.batch, grads[0], result, *plain)
            if len(made) != len(args):
                raise ValueError(
                    f"gradient must return one gradient for each of {len(args)} arguments, not "
                    f"{len(made)}"
                )
            return [made[at] for at in places]

        return tape.note((result,), [computed[at] for at in places], pull)[0]

    return run
