"""Models against NumPy in float64, and bit for bit against themselves."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import ContextPoisoned, Device, GpuRefStale, OutOfMemory
from atomr_accel.device.batches._fetch import ReplayFetch
from atomr_accel.llm import (
    LanguageModel,
    LlamaModel,
    SamplingOptions,
    StepSlice,
    StepWork,
    TokenRequest,
    WeightsDamaged,
    load_folder,
    open_language_model,
)
from atomr_accel.llm._request_stream import TURNS
from atomr_accel.llm._sampler import TokenSampler
from atomr_accel.testing import poison

from ..harness import ON_CUDA, on_shared, opened, sized
from .tiny import ARCHITECTURES, TinyModel, make_folder, reference

ROTARY: dict[str, Any] = {
    "default": None,
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "linear": {"type": "linear", "rope_type": "linear", "factor": 2.5},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
}


@st.composite
def models(draw: st.DrawFn) -> TinyModel:
    """Draw models of all architectures."""
    family = draw(st.sampled_from([*ARCHITECTURES]))
    kv_heads = draw(st.sampled_from([1, 2]))
    options: dict[str, Any] = {"rope_scaling": ROTARY[draw(st.sampled_from([*ROTARY]))]}
    if family == "llama":
        options |= {name: draw(st.booleans()) for name in ("attention_bias", "mlp_bias")}
    if family == "qwen3":
        options["attention_bias"] = draw(st.booleans())
    if family != "llama" and draw(st.booleans()):
        options["sliding_window"] = draw(st.integers(1, 12))
        options |= {"use_sliding_window": True, "max_window_layers": draw(st.integers(0, 2))}
    return TinyModel(
        family=family,
        seed=draw(st.integers(0, 99)),
        hidden=draw(st.sampled_from([8, 24, 40])),
        intermediate=draw(st.sampled_from([8, 56])),
        layers=draw(st.integers(1, 2)),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        head_size=draw(st.sampled_from([2, 8, 40, 64])),
        tied=draw(st.booleans()),
        options=options,
    )


@functools.cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


async def loaded(device: Device, model: TinyModel, **options: Any) -> LlamaModel:
    """Load a tiny model."""
    path = Path(tempfile.mkdtemp(dir=_kept().name))
    folder = load_folder(make_folder(path, model))
    return await LlamaModel.load(
        device, folder, **{"pages": 64, "page_size": 4, "dtype": np.float32, **options}
    )


class Sequences:
    """Sequences with pages in any order."""

    def __init__(self, model: LlamaModel, rng: np.random.Generator) -> None:
        self.model = model
        self.free = rng.permutation(model.pages).tolist()
        self.pages: dict[int, list[int]] = {}
        self.done: dict[int, int] = {}

    def slice(self, sequence: int, tokens: Any, *, sample: bool = True) -> StepSlice:
        """Return the next tokens of a sequence, which gets the pages that it needs."""
        pages = self.pages.setdefault(sequence, [])
        start = self.done.get(sequence, 0)
        stop = self.done[sequence] = start + len(tokens)
        while len(pages) * self.model.page_size < stop:
            pages.append(self.free.pop())
        return StepSlice(
            sequence=sequence,
            tokens=tuple(map(int, tokens)),
            start=start,
            pages=tuple(pages),
            sample=sample,
        )

    async def step(self, *slices: StepSlice) -> np.ndarray[Any, Any]:
        """Do a step."""
        return await self.model.step(StepWork(slices=slices))

    def end(self, sequence: int) -> None:
        """Give all pages back."""
        self.free += self.pages.pop(sequence)
        del self.done[sequence]

    def share(self, sequence: int, new: int, length: int) -> None:
        """Begin a sequence with whole pages of another one."""
        self.pages[new] = self.pages[sequence][: length // self.model.page_size]
        self.done[new] = length


async def alone(model: LlamaModel, tokens: Any) -> np.ndarray[Any, Any]:
    """Return the logits after each token, of a sequence that is decoded by itself."""
    mine = Sequences(model, np.random.default_rng(0))
    return np.concatenate([await mine.step(mine.slice(0, [token])) for token in tokens])


def close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Compare arrays by the size of the expected one."""
    np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max(), rtol=0)


async def check_layers(device: Device, model: TinyModel, seed: int) -> None:
    """Compare vectors after each layer, and logits, with the reference."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(model.vocabulary, size=rng.integers(1, 40))
    made = await loaded(device, model)
    states, logits = reference(model, tokens)
    mine = Sequences(made, rng)
    work = StepWork(slices=(mine.slice(0, tokens),))
    for found, expected in zip(await made.hidden_states(work), states, strict=True):
        close(found, expected)
    close((await made.step(work))[0], logits[-1])


async def check_chunks(device: Device, model: TinyModel, seed: int, size: int) -> None:
    """Compare the bits of sequences in any steps with those of the same sequences alone."""
    rng = np.random.default_rng(seed)
    made = await loaded(device, model, page_size=size, pages=64)
    texts = [rng.integers(model.vocabulary, size=rng.integers(1, 14)) for _ in range(3)]
    expected = [await alone(made, text) for text in texts]
    for text, logits in zip(texts, expected, strict=True):
        close(logits, reference(model, text)[1])
    mine = Sequences(made, rng)
    left = {number: list(text) for number, text in enumerate(texts)}
    while left:
        chosen = [number for number in left if rng.random() < 0.7] or [*left][:1]
        rng.shuffle(chosen)
        slices = []
        for number in chosen:
            length = int(rng.integers(1, 7))
            tokens, left[number] = left[number][:length], left[number][length:]
            slices.append(mine.slice(number, tokens, sample=bool(rng.random() < 0.8)))
            if not left[number]:
                del left[number]
        sampled = [each for each in slices if each.sample]
        found = await mine.step(*slices)
        assert (found.dtype, found.shape) == (np.float32, (len(sampled), model.vocabulary))
        for row, each in zip(found, sampled, strict=True):
            end = each.start + len(each.tokens) - 1
            np.testing.assert_array_equal(row, expected[each.sequence][end])


SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.sampled_from([1, 4, 16])


@settings(max_examples=5)
@given(model=models(), seed=SEEDS)
@on_shared
async def test_layers(device: Device, model: TinyModel, seed: int) -> None:
    await check_layers(device, model, seed)


@pytest.mark.slow
@settings(max_examples=sized(20, 400))
@given(model=models(), seed=SEEDS)
@on_shared
async def test_layers_of_many_models(device: Device, model: TinyModel, seed: int) -> None:
    await check_layers(device, model, seed)


@settings(max_examples=2)
@given(model=models(), seed=SEEDS, size=SIZES)
@on_shared
async def test_chunks_and_batches(device: Device, model: TinyModel, seed: int, size: int) -> None:
    await check_chunks(device, model, seed, size)


@pytest.mark.slow
@settings(max_examples=sized(20, 400))
@given(model=models(), seed=SEEDS, size=SIZES)
@on_shared
async def test_many_chunks(device: Device, model: TinyModel, seed: int, size: int) -> None:
    await check_chunks(device, model, seed, size)


@on_shared
async def test_shared_pages(device: Device) -> None:
    """A sequence that begins as another one reads its pages, and so does a page's next user."""
    model, rng = TinyModel(family="qwen3"), np.random.default_rng(3)
    made = await loaded(device, model)
    prefix = rng.integers(model.vocabulary, size=13)
    texts = [np.append(prefix[:12], rng.integers(model.vocabulary, size=5)) for _ in range(2)]
    expected = [await alone(made, text) for text in texts]
    mine = Sequences(made, rng)
    await mine.step(mine.slice(0, prefix, sample=False))
    for number in (1, 2):
        mine.share(0, number, 12)
    found = await mine.step(*(mine.slice(n + 1, text[12:]) for n, text in enumerate(texts)))
    np.testing.assert_array_equal(found, [each[-1] for each in expected])
    mine.pages[0] = mine.pages[0][3:]  # the others have the first ones
    mine.end(0)
    assert (await mine.step(mine.slice(3, texts[0])) == found[0]).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("head_size", "page_size"), [(8, 4), (64, 4), (64, 16), (128, 16)])
@on_shared
async def test_narrow_dtypes(device: Device, dtype: str, head_size: int, page_size: int) -> None:
    """Sixteen bits are near the reference, and have the same bits in any chunks."""
    model = TinyModel(family="qwen3", heads=6, kv_heads=2, head_size=head_size)
    made = await loaded(device, model, dtype=dtype, page_size=page_size)
    tokens = np.random.default_rng(5).integers(model.vocabulary, size=11)
    logits = await alone(made, tokens)
    close(logits, reference(model, tokens)[1], 0.06)
    mine = Sequences(made, np.random.default_rng(1))
    await mine.step(mine.slice(0, tokens[:7], sample=False))
    assert (await mine.step(mine.slice(0, tokens[7:])) == logits[-1]).all()


@on_shared
async def test_without_invariance(device: Device) -> None:
    """Products of all rows at once are near the others."""
    model = TinyModel()
    made = await loaded(device, model, invariant=False)
    tokens = np.random.default_rng(5).integers(model.vocabulary, size=21)
    mine = Sequences(made, np.random.default_rng(1))
    found = await mine.step(mine.slice(0, tokens), mine.slice(1, tokens[:9]))
    expected = reference(model, tokens)[1]
    close(found, expected[[20, 8]])


@on_shared
async def test_tokens_are_chosen_on_the_device_as_by_the_sampler(device: Device) -> None:
    made = await loaded(device, TinyModel())
    rng = np.random.default_rng(8)
    mine = Sequences(made, np.random.default_rng(1))
    prompts = [rng.integers(300, size=size) for size in (3, 7, 1, 9)]
    for at in range(5):
        new = prompts if at == 0 else [rng.integers(300, size=1) for _ in prompts]
        work = StepWork(slices=tuple(mine.slice(n, tokens) for n, tokens in enumerate(new)))
        kinds = [(0.0, 0.0), (0.7, rng.random()), (1.0, rng.random()), (30.0, rng.random())]
        tokens, logits = await made.choose(work, np.array(kinds), logits=True)
        assert logits is not None
        again = await made.choose(work, np.array(kinds), logits=False)
        assert again.logits is None
        np.testing.assert_array_equal(again.tokens, tokens)
        np.testing.assert_array_equal(await made.step(work), logits)
        for token, row, (temperature, number) in zip(tokens, logits, kinds, strict=True):
            sampler = TokenSampler(SamplingOptions(temperature=temperature), (), 0)
            below = np.cumsum(sampler.probabilities(row))
            assert below[token] > number >= (below[token - 1] if token and temperature else 0)
    with pytest.raises(ValueError, match=r"choices must have shape \(4, 2\)"):
        await made.choose(work, np.zeros((3, 2)), logits=False)


@on_shared
async def test_streams_have_the_same_tokens_wherever_they_are_chosen(device: Device) -> None:
    made = await loaded(device, TinyModel())

    async def all_of(model: LanguageModel, **options: Any) -> list[int]:
        sampling = SamplingOptions(max_tokens=8, **options)
        async with model.generate(TokenRequest(prompt=(3, 1, 4), sampling=sampling)) as pieces:
            return [piece.token async for piece in pieces]

    async with open_language_model(device, made) as model:
        for temperature in (0.0, 1.5):
            kind = {"seed": 5, "temperature": temperature}
            mine = await all_of(model, **kind)
            assert await all_of(model, **kind, logprobs=0) == mine
            found: dict[int, list[int]] = {}

            async def one(at: int, found: Any = found, kind: Any = kind) -> None:
                found[at] = await all_of(model, **kind, logprobs=at % 2 or None)

            async with trio.open_nursery() as nursery:
                for at in range(4):
                    nursery.start_soon(one, at)
            assert [*found.values()] == [mine] * 4


@on_shared
async def test_several_tasks_may_do_steps(device: Device) -> None:
    made = await loaded(device, TinyModel())
    tokens = np.arange(9)
    expected = await alone(made, tokens)
    found: list[Any] = []

    async def again() -> None:
        found.append(await alone(made, tokens))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(again)
    np.testing.assert_array_equal(found[0], expected)


@on_shared
async def test_steps_of_one_shape_are_replayed(device: Device) -> None:
    """The third step of a shape is recorded; tables have 1, 2 and 4 columns here."""
    model = TinyModel()
    made = await loaded(device, model)
    tokens = np.random.default_rng(5).integers(model.vocabulary, size=9)
    logits = await alone(made, tokens)
    found = made.statistics()
    assert (found.steps, found.replayed, found.rows) == (9, 4, 9)
    close(logits, reference(model, tokens)[1])
    np.testing.assert_array_equal(await alone(made, tokens), logits)
    assert made.statistics().replayed == 12  # the shape of position 8 came only twice


class _Turns(trio.abc.Instrument):
    """Counts turns of the loop."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        del timeout
        self.count += 1


@on_shared
async def test_a_step_is_sent_before_callers_wake(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop makes fewer turns until then than `Wakes` waits for."""
    turns = _Turns()
    found: list[int] = []

    def begun(self: LlamaModel, *args: Any, **options: Any) -> Any:
        found.append(-turns.count)
        return choose(self, *args, **options)

    def sent(self: ReplayFetch, *args: Any) -> Any:
        found[-1] += turns.count
        return submit(self, *args)

    choose, submit = LlamaModel.choose, ReplayFetch.submit
    monkeypatch.setattr(LlamaModel, "choose", begun)
    monkeypatch.setattr(ReplayFetch, "submit", sent)
    made = await loaded(device, TinyModel())
    trio.lowlevel.add_instrument(turns)
    try:
        async with open_language_model(device, made) as model:
            sampling = SamplingOptions(max_tokens=24, temperature=0.0)
            async with model.generate(TokenRequest(prompt=(3, 1, 4), sampling=sampling)) as pieces:
                assert [piece.token async for piece in pieces]
    finally:
        trio.lowlevel.remove_instrument(turns)
    assert max(found[-4:]) < TURNS  # a shape is recorded in its third step, so these are replayed


@on_shared
async def test_wrong_work_is_refused(device: Device) -> None:
    made = await loaded(device, TinyModel(), pages=8)

    def each(**fields: Any) -> StepSlice:
        given = {"sequence": 0, "tokens": (1,), "start": 0, "pages": (0,), "sample": True}
        return StepSlice(**{**given, **fields})

    wrong = {
        "one slice at least": [],
        "must have tokens at positions from 0 to 31": [each(tokens=())],
        "not 1 from 32": [each(start=32, pages=(0,) * 9)],
        "not 1 from -1": [each(start=-1)],
        "tokens must be from 0 to 299": [each(tokens=(300,))],
        "not -1 or 1": [each(tokens=(1, -1))],
        "must have 2 pages": [each(tokens=(1,) * 5)],
        "pages from 0 to 7": [each(pages=(8,))],
        "page 0 must not be written": [each(), each(sequence=1)],
        "page 1 must not be written": [each(pages=(1, 1), tokens=(1,) * 5)],
    }
    for words, slices in wrong.items():
        with pytest.raises(ValueError, match=words):
            await made.step(StepWork(slices=tuple(slices)))
    with pytest.raises(GpuRefStale, match="positions before 1 of sequence 0"):
        await made.step(StepWork(slices=(each(start=1),)))
    assert made.statistics().steps == 0
    with pytest.raises(TypeError, match="folder must be a ModelFolder"):
        await LlamaModel.load(device, "tiny")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="dtype must be float32, float16, bfloat16, not int8"):
        await loaded(device, TinyModel(), dtype=np.int8)
    with pytest.raises(ValueError, match="pages must be"):
        await loaded(device, TinyModel(), pages=0)


@on_shared
async def test_pages_without_room_are_refused_before_anything_is_made(device: Device) -> None:
    for pages in (device.info.total_memory // 1024 + 1, 10**13, 2**62):
        with pytest.raises(OutOfMemory, match=f"no room for a cache of {pages} pages") as caught:
            await loaded(
                device, TinyModel(), pages=pages, progress=lambda *_: pytest.fail("weights came")
            )
        assert caught.value.requested == pages * 4 * 2 * 2 * 16 * 4


@on_shared
async def test_loading(device: Device) -> None:
    """Progress ends with all bytes, and digests are those of the weights."""
    model, told = TinyModel(tied=True), list[tuple[int, int]]()
    made = await loaded(device, model, progress=lambda done, all_: told.append((done, all_)))
    size = 4 * sum(each.size for each in model.weights().values())
    assert told[-1] == (size, size)
    assert sorted(told) == told
    found = made.statistics()
    assert found.weight_bytes == size + 4 * model.context * model.head_size
    assert (found.cache_bytes, found.steps) == (64 * 4 * 2 * 2 * 16 * 4, 0)
    await made.verify()
    made.digests["final_norm"] = "0"
    with pytest.raises(WeightsDamaged, match="final_norm"):
        await made.verify()
    usual = await LlamaModel.load(device, made.folder)
    assert usual.dtype == (ml_dtypes.bfloat16 if ON_CUDA else np.float32)
    assert usual.pages == 256 * 128 // 16


async def steps_until_a_fault(mine: Sequences, *slices: StepSlice) -> None:
    """Do a step again and again while the device fails."""
    with pytest.raises((ContextPoisoned, GpuRefStale)):
        while True:
            await mine.step(*slices)


@pytest.mark.slow
async def test_a_fault_takes_the_cache_and_leaves_the_weights() -> None:
    model, rng = TinyModel(), np.random.default_rng(7)
    texts = [rng.integers(model.vocabulary, size=each) for each in (9, 4)]
    async with opened() as device:
        made = await loaded(device, model)
        expected = [await alone(made, text) for text in texts]
        mine = Sequences(made, rng)
        await mine.step(*(mine.slice(n, text[:-1]) for n, text in enumerate(texts)))
        last = [mine.slice(n, text[-1:]) for n, text in enumerate(texts)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(steps_until_a_fault, mine, *last)
            await poison(device)
        generation = device.generation
        with pytest.raises(GpuRefStale, match="must be in the cache"):
            await mine.step(*last)
        assert made.statistics().caches_lost == 1
        await made.verify()
        mine = Sequences(made, rng)
        again = await mine.step(*(mine.slice(n, text[:-1]) for n, text in enumerate(texts)))
        np.testing.assert_array_equal(again, [each[-2] for each in expected])
        last = [mine.slice(n, text[-1:]) for n, text in enumerate(texts)]
        np.testing.assert_array_equal(await mine.step(*last), [each[-1] for each in expected])
        assert device.generation == generation


@on_shared
async def test_a_cancelled_step_is_done_again(device: Device) -> None:
    """Positions that a cancelled step may have written count as missing."""
    model = TinyModel()
    made = await loaded(device, model)
    tokens = np.random.default_rng(2).integers(model.vocabulary, size=6)
    expected = await alone(made, tokens)
    mine = Sequences(made, np.random.default_rng(2))
    first = mine.slice(0, tokens[:5])
    with trio.CancelScope() as scope:
        scope.cancel()
        await mine.step(first)
    assert scope.cancelled_caught
    second = mine.slice(0, tokens[5:])
    with pytest.raises(GpuRefStale):
        await mine.step(second)
    np.testing.assert_array_equal(await mine.step(first), expected[4:5])
    np.testing.assert_array_equal(await mine.step(second), expected[5:])
