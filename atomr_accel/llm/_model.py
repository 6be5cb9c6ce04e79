"""Models of the Llama family on a device: sealed weights, a paged cache, and steps."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np
import trio

from .._dtypes import as_dtype
from .._errors import AccelError, OutOfMemory, said_of
from ..device.data.transfer import in_worker
from ..wire.options import count, flag
from ..wire.recent import Recent
from ._attention import KINDS, AttentionRows, PagedAttention
from ._cache_memory import CacheMemory
from ._folder import ModelFolder
from ._step_inputs import CHOICE_INTS, PagedSteps, StepInputs
from ._steps import StepChoices, StepLogits, StepTokens, StepWork
from .wire.kernels import CHOOSERS, THREADS

if TYPE_CHECKING:
    import numpy.typing as npt
    from numpy.typing import DTypeLike

    from .. import Batch, Device, GpuRef, Recording
    from ._config import LlamaConfig

    Array = np.ndarray[Any, Any]

_TILES: Final = {"cpu": 32, "cuda": 256}
"""Rows of a product: always as many, because how a product is summed depends on its shape."""

_CPU_CACHE: Final = 256 << 20
_CUDA_RESERVE: Final = 3 << 30
"""Bytes that other work of a GPU needs, such as scratch memory and the driver's own."""

_CUDA_SHARE: Final = 0.8
_MOST_CONTEXTS: Final = 256
"""Sequences of full length that a cache of the default size has room for, at most."""

_RECORDED_ROWS: Final = 256
"""Rows of a step up to which it is recorded: decoding, where launches take longer than kernels."""

_MOST_RECORDINGS: Final = 8
_MOST_SEEN: Final = 256
_REPEATS: Final = 2
"""Steps of one shape after which the next one is recorded."""

Progress = Callable[[int, int], None]
"""A function that takes the bytes of weights on the device, and the bytes of all weights."""


class WeightsDamaged(AccelError):
    """Weights on the device are not those that were loaded."""


@dataclass(frozen=True, slots=True)
class LlamaStatistics:
    """Work of a model so far.

    Attributes:
        steps: steps that were done.
        rows: tokens of these steps.
        padding: rows without tokens that filled tiles.
        weight_bytes: bytes of weights, which are sealed.
        cache_bytes: bytes of the cache.
        replayed: steps that were replays of a recording.
        caches_lost: how often the cache was lost by a fault, and made anew without content.
    """

    steps: int
    rows: int
    padding: int
    weight_bytes: int
    cache_bytes: int
    replayed: int
    caches_lost: int


class _StepRecording(NamedTuple):
    """A recording of a step.

    Attributes:
        numbers: its input, `StepInputs.numbers`.
        tokens: tokens that it has chosen.
        logits: logits that they are from.
    """

    recording: Recording
    numbers: GpuRef
    tokens: GpuRef
    logits: GpuRef


class _Computed(NamedTuple):
    """Results of a step: tokens of rows to sample, logits, and vectors of rows after layers."""

    tokens: Array
    logits: Array | None = None
    states: Sequence[Array] = ()


class _LayerWeights(NamedTuple):
    """Weights of a layer. Products that have one input are one matrix."""

    input_norm: GpuRef
    qkv: GpuRef
    qkv_bias: GpuRef | None
    head_norms: GpuRef
    output: GpuRef
    output_bias: GpuRef | None
    mlp_norm: GpuRef
    gate_up: GpuRef
    gate_up_bias: GpuRef | None
    down: GpuRef
    down_bias: GpuRef | None


@final
class LlamaModel:
    """A model of the Llama family on a device, with a cache of keys and values in pages.

    It is a `Runner`. Weights are sealed, so they survive faults of the device. The cache is lost
    by a fault, and the next step makes an empty one. A ``durable`` cache keeps the positions that
    ``recover`` proves.

    With ``invariant`` a token's logits are the same, bit for bit, whatever else is in a step, and
    however its prompt is cut into chunks: products are computed in tiles of a fixed number of rows,
    and each row's sums have an order that depends on its position alone. On the CPU a position
    has also a fixed place in its tile.

    Methods that use the device raise ``ContextPoisoned`` for its faults, and ``OutOfMemory``.

    `LlamaModel.load` makes one.

    Attributes:
        device: the device.
        folder: the folder that the weights are from.
        config: the architecture.
        pages: number of pages of the cache.
        page_size: positions of a page.
        vocabulary: number of tokens.
        context: the most positions of a sequence, of the model and of the cache.
        dtype: dtype of weights and cache.
        invariant: whether results are independent of the batch.
        digests: for each buffer of weights, the BLAKE2b digest of its bytes, in hexadecimal.
    """

    def __init__(
        self,
        device: Device,
        folder: ModelFolder,
        weights: dict[str, GpuRef],
        digests: dict[str, str],
        attention: PagedAttention,
        *,
        pages: int,
        page_size: int,
        dtype: np.dtype[Any],
        invariant: bool,
        durable: bool,
    ) -> None:
        config = folder.config
        self.device: Final = device
        self.folder: Final = folder
        self.config: Final[LlamaConfig] = config
        self.pages: Final = pages
        self.page_size: Final = page_size
        self.vocabulary: Final = config.vocabulary
        self.context: Final = min(config.context, pages * page_size)
        self.dtype: Final = dtype
        self.invariant: Final = invariant
        self.digests: Final = digests
        self._weights: Final = weights
        self._attention: Final = attention
        self._kernels: Final = attention.kernels
        self._layers: Final = [_layer_weights(weights, layer) for layer in range(config.layers)]
        self._tile: Final = _TILES.get(device.backend, _TILES["cuda"])
        self._gate: Final[Any] = device.fuse(_gated)
        shape = (config.layers, pages, page_size, config.kv_heads, config.head_size)
        self._cache: Final = CacheMemory(device, shape, dtype, durable=durable)
        self._plan: Final = PagedSteps(
            pages=pages,
            page_size=page_size,
            vocabulary=self.vocabulary,
            context=self.context,
            tile=self._tile,
            fixed=invariant and device.backend == "cpu",
        )
        self._recorded: Final[Recent[tuple[int, ...], _StepRecording]] = Recent(_MOST_RECORDINGS)
        self._recorded_by: trio.lowlevel.Task | None = None
        self._seen: Final[Recent[tuple[int, ...], list[int]]] = Recent(_MOST_SEEN)
        self._replayed = 0
        self._steps = self._rows = self._padding = 0

    @classmethod
    async def load(
        cls,
        device: Device,
        folder: ModelFolder,
        *,
        pages: int | None = None,
        page_size: int = 16,
        dtype: DTypeLike | None = None,
        invariant: bool = True,
        durable: bool = False,
        progress: Progress | None = None,
    ) -> LlamaModel:
        """Put the weights of a folder on a device, and make the cache.

        Args:
            device: an open device.
            folder: the model, of `load_folder`.
            pages: number of pages of the cache; by default as many as the memory has room for on
                CUDA, and those of 256 MiB on the CPU.
            page_size: positions of a page.
            dtype: float32, float16 or bfloat16, of weights and cache. By default bfloat16 on CUDA
                and float32 on the CPU.
            invariant: whether results are independent of the batch, see the class.
            durable: whether the cache survives faults, see `recover`. A step costs more, as
                rows that it writes are digested.
            progress: called now and then with the bytes of weights that are there, and all.

        Raises:
            ValueError: sizes that are not positive; ``durable`` is set, and a token's keys in a
                layer are not a multiple of 8 bytes.
            Unsupported: ``durable`` is set, and the device is isolated in a thread, or its platform
                cannot export device memory.
            ModelFolderBroken: a file has changed since `load_folder`.
            OutOfMemory: no room for weights and cache.
        """
        if not isinstance(folder, ModelFolder):
            raise TypeError(
                f"folder must be a ModelFolder, of load_folder(path), not {said_of(folder)}"
            )
        kind = as_dtype(dtype or ("float32" if device.backend == "cpu" else "bfloat16"))
        if kind.name not in KINDS:
            raise TypeError(f"dtype must be {', '.join(KINDS)}, not {kind.name}")
        count(page_size, "page_size")
        flag(durable, "durable")
        config = folder.config
        if pages is None:
            pages = _default_pages(device, config, page_size, kind)
        _check_pages(device, config, count(pages, "pages"), page_size, kind)
        attention = await PagedAttention.compile(device, config, kind, pages, page_size)
        positions = min(config.context, pages * page_size)
        weights, digests = await _put_weights(device, folder, kind, positions, progress)
        model = cls(
            device,
            folder,
            weights,
            digests,
            attention,
            pages=pages,
            page_size=page_size,
            dtype=kind,
            invariant=bool(invariant),
            durable=durable,
        )
        await model._ready_cache()
        return model

    @property
    def name(self) -> str:
        """The name of the model's folder."""
        return self.folder.name

    @property
    def durable(self) -> bool:
        """``True`` if the cache survives faults."""
        return self._cache.durable

    def statistics(self) -> LlamaStatistics:
        """A snapshot."""
        return LlamaStatistics(
            steps=self._steps,
            rows=self._rows,
            padding=self._padding,
            weight_bytes=sum(ref.nbytes for ref in self._weights.values()),
            cache_bytes=_cache_bytes(self.config, self.page_size, self.dtype) * self.pages,
            replayed=self._replayed,
            caches_lost=self._cache.lost,
        )

    async def verify(self) -> None:
        """Read all weights back, and compare their digests with those of the load.

        Raises:
            WeightsDamaged: they differ.
        """
        for name, digest in self.digests.items():
            array = await self.device.get(self._weights[name])
            if await in_worker(_digest, array) != digest:
                raise WeightsDamaged(f"{name} must be as it was loaded, and is not; load it again")

    async def recover(self) -> npt.NDArray[np.int64]:
        """Compare a durable cache with its digests. After a fault this has to come before a step.

        A fault meanwhile begins it anew, for a few times. Then the cache is made anew.

        Returns:
            int64 (pages,): how many positions of each page are left, from its beginning. Others
            were lost, or not filled by a step that was done: compute them again.

        Raises:
            ValueError: the cache is not durable.
            DeviceLost: the device will not come back.
        """
        if not self.durable:
            raise ValueError("the cache must be durable to recover; load it with durable=True")
        kept = await self._cache.recover(self._plan.filled)
        self._plan.keep(kept)
        return kept

    async def step(self, work: StepWork) -> StepLogits:
        """Compute slices of sequences, and write their keys and values to the cache.

        One step runs at a time. A step that was cancelled or has failed can be done again.

        Args:
            work: the slices. No slice reads a page that another one writes.

        Returns:
            float32 logits of shape (rows of all slices, vocabulary): for each slice, in order, one
            row for each token with ``every``, else one with ``sample``.

        Raises:
            ValueError: tokens, positions or pages that do not exist, or pages that two slices
                would write.
            GpuRefStale: positions before a slice are not in the cache, for example because a fault
                has emptied it: compute the sequence from its beginning. Or a durable cache has to
                `recover`.
        """
        computed = await self._step(work, logits=True)
        assert computed.logits is not None
        return computed.logits

    async def choose(self, work: StepWork, choices: StepChoices, *, logits: bool) -> StepTokens:
        """Do a step as `step` does, and choose a token for each row of its logits on the device.

        Args:
            work: the slices.
            choices: how to choose, for each row.
            logits: whether logits are needed, too.

        Returns:
            tokens, and logits if they are needed.
        """
        wanted = sum(each.rows for each in work.slices), 2
        if np.shape(choices) != wanted:
            raise ValueError(f"choices must have shape {wanted}, not {np.shape(choices)}")
        tokens, found, _ = await self._step(work, choices, logits=logits)
        return StepTokens(tokens, found)

    async def hidden_states(self, work: StepWork) -> list[Array]:
        """Compute a step, and return the vectors of its tokens after the embedding and each layer.

        Arguments and errors are those of `step`.

        Returns:
            ``layers + 1`` arrays of shape (tokens of all slices, hidden), of the model's dtype.
        """
        return [*(await self._step(work, trace=True)).states]

    # --- steps ------------------------------------------------------------------------------

    async def _step(
        self,
        work: StepWork,
        choices: StepChoices | None = None,
        *,
        logits: bool = False,
        trace: bool = False,
    ) -> _Computed:
        plan = self._plan
        cache = await self._ready_cache()
        use = plan.use(work)  # nothing is awaited until the cache is written
        plan.check_filled(use, work)
        inputs = plan.inputs(use, work, choices)
        plan.touch(use, done=False)
        with self._cache.writing(inputs.slots):
            if trace or not len(inputs.sampled):
                computed = await self._traced(cache, inputs, trace=trace)
            else:
                computed = await self._computed(cache, inputs, logits=logits)
        plan.touch(use, done=True)
        self._steps += 1
        self._rows += len(inputs.places)
        self._padding += inputs.total - len(inputs.places)
        return computed

    async def _traced(
        self, cache: tuple[GpuRef, GpuRef], inputs: StepInputs, *, trace: bool
    ) -> _Computed:
        """Compute a step without logits, and return vectors of tokens, if they are wanted."""
        states: list[GpuRef] = []
        async with self.device.batch() as batch:
            self._forward(batch, cache, batch.put(inputs.numbers), inputs, states)
            found = [batch.get(each) for each in states] if trace else []
        none = np.empty((0, self.vocabulary), np.float32)
        return _Computed(np.empty(0, np.int32), none, [each.value[inputs.places] for each in found])

    async def _computed(
        self, cache: tuple[GpuRef, GpuRef], inputs: StepInputs, *, logits: bool
    ) -> _Computed:
        """Compute a step, and return what there is of rows to sample."""
        device, shape = self.device, inputs.shape
        task = trio.lowlevel.current_task()
        if task is not self._recorded_by:  # a recording is one task's
            self._recorded.clear()
            self._recorded_by = task
        kept = self._recorded.get(shape)
        rows = int(inputs.sampled.max()) + 1  # those behind them only fill a tile
        if kept is None and self._repeats(shape):
            numbers = await device.put(inputs.numbers)
            async with device.record(numbers) as recording:
                x = self._forward(recording, cache, numbers, inputs)
                made = self._chosen(recording, x, numbers, inputs)
            kept = self._recorded.keep(shape, _StepRecording(recording, numbers, *made))
        if kept is not None:
            if kept.numbers.is_stale:  # by a fault, which a recording of a durable cache survives
                numbers = await device.put(inputs.numbers)
                kept = self._recorded.keep(shape, kept._replace(numbers=numbers))
            else:
                await device.put(inputs.numbers, out=kept.numbers)
            wanted = [kept.tokens, kept.logits[:rows]][: 1 + logits]
            arrays = await kept.recording.replay(kept.numbers, get=wanted)
            self._replayed += 1
            return self._found(inputs, arrays[0], arrays[1] if logits else None)
        async with device.batch() as batch:
            numbers = batch.put(inputs.numbers)
            x = self._forward(batch, cache, numbers, inputs)
            tokens, scores = self._chosen(batch, x, numbers, inputs)
            found = [batch.get(each) for each in (tokens, scores[:rows])[: 1 + logits]]
        return self._found(inputs, found[0].value, found[1].value if logits else None)

    def _found(self, inputs: StepInputs, tokens: Array, logits: Array | None) -> _Computed:
        """Return the rows that are wanted, without a copy where they come first."""
        at: Any = inputs.sampled
        if at[-1] == len(at) - 1 and (at[1:] > at[:-1]).all():
            at = slice(len(at))
        return _Computed(tokens[at], None if logits is None else logits[at])

    def _repeats(self, shape: tuple[int, ...]) -> bool:
        """Count a step, and return whether steps of its shape are worth a recording."""
        seen = self._seen.get(shape) or self._seen.keep(shape, [0])
        seen[0] += 1
        return shape[0] <= _RECORDED_ROWS and seen[0] > _REPEATS

    def _forward(
        self,
        batch: Batch | Recording,
        cache: tuple[GpuRef, GpuRef],
        numbers: GpuRef,
        inputs: StepInputs,
        states: list[GpuRef] | None = None,
    ) -> GpuRef:
        """Compute all layers, and return the vectors of rows."""
        config, weights, total = self.config, self._weights, inputs.total
        heads, kv_heads, size = config.heads, config.kv_heads, config.head_size
        tokens, positions, slots, owners = (
            numbers[at * total : (at + 1) * total] for at in range(4)
        )
        tables = numbers[4 * total + (1 + CHOICE_INTS) * inputs.samples :]
        rows = AttentionRows(inputs, positions, owners, tables)
        epsilon, slots_there = config.epsilon, self.pages * self.page_size
        x = batch.array.take(weights["embedding"], tokens, axis=0, mode="clip")
        if states is not None:
            states.append(x)
        for number, layer in enumerate(self._layers):
            k, v = (each[number] for each in cache)
            h = self._norm(batch, x, layer.input_norm)
            qkv = self._product(batch, h, layer.qkv, layer.qkv_bias)
            q = batch.empty((total, heads * size), self.dtype)
            y = batch.empty((total, heads * size), self.dtype)
            threads = 32 * total * (heads + 2 * kv_heads)
            batch.launch(
                *(self._kernels["turn"], None, THREADS, q, k, v, qkv, layer.head_norms),
                *(weights["angles"], positions, slots, total, heads, kv_heads, self.context),
                *(slots_there, int(config.qk_norm), epsilon),
                elements=threads,
            )
            self._attention.launch(batch, y, q, k, v, rows, config.windows[number])
            x = self._product(batch, y, layer.output, layer.output_bias, add=x)
            h = self._norm(batch, x, layer.mlp_norm)
            both = self._product(batch, h, layer.gate_up, layer.gate_up_bias)
            inside = config.intermediate
            h = batch.using(self._gate)(both[:, :inside], both[:, inside:])
            x = self._product(batch, h, layer.down, layer.down_bias, add=x)
            if states is not None:
                states.append(x)
        return x

    def _chosen(
        self, batch: Batch | Recording, x: GpuRef, numbers: GpuRef, inputs: StepInputs
    ) -> tuple[GpuRef, GpuRef]:
        """Return tokens for the rows to sample, int32, and their float32 logits."""
        weights, samples, start = self._weights, inputs.samples, 4 * inputs.total
        rows = numbers[start : start + samples]
        choices = numbers[start + samples : start + (1 + CHOICE_INTS) * samples]
        h = batch.array.take(x, rows, axis=0, mode="clip")
        h = self._norm(batch, h, weights["final_norm"])
        head = weights["head" if "head" in weights else "embedding"]
        logits = self._product(batch, h, head, dtype=np.float32)
        tokens = batch.empty((samples,), np.int32)
        kernel = self._kernels["choose_rows"]
        batch.launch(kernel, samples, CHOOSERS, tokens, logits, choices, samples, self.vocabulary)
        return tokens, logits

    def _norm(self, batch: Batch | Recording, x: GpuRef, weight: GpuRef) -> GpuRef:
        out = batch.empty(x.shape, self.dtype)
        rows, size = x.shape
        kernel = self._kernels["norm_rows"]
        batch.launch(kernel, rows, THREADS, out, x, weight, rows, size, self.config.epsilon)
        return out

    def _product(
        self,
        batch: Batch | Recording,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef | None = None,
        *,
        add: GpuRef | None = None,
        dtype: DTypeLike | None = None,
    ) -> GpuRef:
        """Return ``x @ weight.T`` with a bias, and with numbers to add."""
        rows, tile = x.shape[0], self._tile
        options: dict[str, Any] = {"trans_b": True, "bias": bias, "dtype": dtype}
        if add is not None:
            options |= {"c": add, "beta": 1.0}
        if not self.invariant or rows == tile:
            return batch.blaslt.matmul(x, weight, **options)
        out = batch.empty((rows, weight.shape[0]), dtype or self.dtype)
        for start in range(0, rows, tile):
            part = slice(start, start + tile)
            if add is not None:
                options["c"] = add[part]
            batch.blaslt.matmul(x[part], weight, out=out[part], **options)
        return out

    async def _ready_cache(self) -> tuple[GpuRef, GpuRef]:
        """Return the memory of keys and of values; new and empty, if a fault has taken it.

        Raises:
            GpuRefStale: a durable cache has to recover first.
        """
        cache = self._cache.refs
        if cache is None:
            self._recorded.clear()
            cache = await self._cache.make()
            self._plan.lose()  # it writes a number for each page, which a cache has room for
        return cache


def _gated(gate: Any, up: Any) -> Any:
    """Return the product of a gate's SiLU and of the numbers that pass it."""
    return gate / (1 + np.exp(-gate)) * up


# --- weights ----------------------------------------------------------------------------


def _layer_weights(weights: dict[str, GpuRef], layer: int) -> _LayerWeights:
    def get(name: str) -> Any:
        return weights.get(f"{layer}.{name}")

    head_norms = weights.get(f"{layer}.head_norms", weights["final_norm"])  # any, if unused
    found = {name: get(name) for name in _LayerWeights._fields}
    return _LayerWeights(**{**found, "head_norms": head_norms})


def _parts(config: LlamaConfig) -> dict[str, list[str]]:
    """Return for each buffer the tensors that it consists of, one after the other."""
    parts = {
        "embedding": ["model.embed_tokens.weight"],
        "final_norm": ["model.norm.weight"],
    }
    if not config.tied:
        parts["head"] = ["lm_head.weight"]
    biased = {"qkv": config.qkv_bias, "output": config.output_bias}
    products = {
        "qkv": [f"self_attn.{each}_proj" for each in "qkv"],
        "output": ["self_attn.o_proj"],
        "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
        "down": ["mlp.down_proj"],
    }
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}"
        parts[f"{layer}.input_norm"] = [f"{prefix}.input_layernorm.weight"]
        parts[f"{layer}.mlp_norm"] = [f"{prefix}.post_attention_layernorm.weight"]
        if config.qk_norm:
            parts[f"{layer}.head_norms"] = [
                f"{prefix}.self_attn.{each}_norm.weight" for each in "qk"
            ]
        for name, tensors in products.items():
            parts[f"{layer}.{name}"] = [f"{prefix}.{each}.weight" for each in tensors]
            if biased.get(name, config.mlp_bias):
                parts[f"{layer}.{name}_bias"] = [f"{prefix}.{each}.bias" for each in tensors]
    return parts


async def _put_weights(
    device: Device,
    folder: ModelFolder,
    dtype: np.dtype[Any],
    positions: int,
    progress: Progress | None,
) -> tuple[dict[str, GpuRef], dict[str, str]]:
    """Return sealed buffers by their names, and the digests of their bytes."""
    config = folder.config
    shapes = config.shapes()
    parts = _parts(config)
    total = sum(math.prod(shapes[name]) for each in parts.values() for name in each)
    total *= dtype.itemsize
    done = 0
    weights: dict[str, GpuRef] = {}
    digests: dict[str, str] = {}

    with folder.checkpoint.opened() as file:

        def read(names: Sequence[str]) -> tuple[Array, str]:
            arrays = [file.read(name).astype(dtype, copy=False) for name in names]
            array = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
            return array, _digest(array)

        for name, names in parts.items():
            array, digests[name] = await in_worker(read, names)
            weights[name] = await device.put(array, sealed=True)
            done += array.nbytes
            if progress is not None:
                progress(done, total)
    angles = config.rotary.table(positions)
    weights["angles"] = await device.put(angles, sealed=True)
    digests["angles"] = _digest(angles)
    return weights, digests


def _digest(array: Array) -> str:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.blake2b(data.data, digest_size=32).hexdigest()


def _cache_bytes(config: LlamaConfig, page_size: int, dtype: np.dtype[Any]) -> int:
    """Return the bytes of a page: keys and values of all layers."""
    row = 2 * config.layers * config.kv_heads * config.head_size
    return row * page_size * dtype.itemsize


def _check_pages(
    device: Device, config: LlamaConfig, pages: int, page_size: int, dtype: np.dtype[Any]
) -> None:
    """Refuse pages that no memory of the device has room for, before anything is made for them."""
    wanted = _cache_bytes(config, page_size, dtype) * pages
    if wanted > device.info.total_memory:
        raise OutOfMemory(
            f"no room for a cache of {pages} pages, {wanted} bytes, in the "
            f"{device.info.total_memory} bytes of the device; load it with fewer pages",
            requested=wanted,
        )


def _default_pages(
    device: Device, config: LlamaConfig, page_size: int, dtype: np.dtype[Any]
) -> int:
    """Return the number of pages that the memory has room for."""
    room = _CPU_CACHE
    if device.backend != "cpu":
        weights = sum(math.prod(each) for each in config.shapes().values()) * dtype.itemsize
        room = int((device.info.total_memory - weights - _CUDA_RESERVE) * _CUDA_SHARE)
    page = _cache_bytes(config, page_size, dtype)
    most = _MOST_CONTEXTS * -(-config.context // page_size)
    pages = min(room // page, most)
    if pages < 1:
        raise OutOfMemory(
            f"no room for a cache beside the weights of {config.architecture}", requested=page
        )
    return pages
