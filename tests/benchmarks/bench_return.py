"""Time until a device is back: from the moment a fault is seen to the next right answer.

Measured for the built-in libraries (put, gemm, layer_norm, fft, get) and for a model on a lane of
``device.run``. The model is a Llama of transformers on random weights if torch and transformers are
installed, otherwise one that takes as long to load. With a hot standby and with a warm one. Only
the host imports the model's packages, never the program.

    python tests/benchmarks/bench_return.py                       # the table
    python tests/benchmarks/bench_return.py --modes hot --parts builtin --repeats 5
    python tests/benchmarks/bench_return.py --timeline --repeats 2   # where the time goes
    python tests/benchmarks/bench_return.py --clients 32 --storm  # nothing but these

``--clients 32`` runs 32 tasks that ask the model without pause. It causes six faults, 1.5 s apart,
and prints the remaining throughput. ``--storm`` causes ten faults, each 50 ms after the return from
the last, or ``--apart`` seconds. Both take ``--standby hot=1,parked=3`` or ``default``.
``--sealed 4`` prints how long four sealed GiB take to be mapped again. ``--timeline`` prints the
steps of the program and of the host that took over at the last return. Recording them takes some
time, too.

A hot standby's ``warm_up`` makes the measured calls once; ``--cold`` omits it.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import trio
from timeline import Timeline

from atomr_accel import AccelError, CpuFallbackWarning, Standby, open_device
from atomr_accel.backends import cuda
from atomr_accel.testing import poison, standby_ready

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from atomr_accel import Device
    from atomr_accel.device.standby._statistics import StandbyMode

ON_CUDA: Final = cuda.why_absent() is None
WITH_LLAMA: Final = ON_CUDA and all(
    importlib.util.find_spec(name) is not None for name in ("torch", "transformers")
)

SIZES: Final[dict[str, dict[str, int]]] = {
    "tiny": {"hidden": 64, "inner": 128, "layers": 2, "heads": 4, "pairs": 2, "words": 512},
    "small": {"hidden": 1024, "inner": 2816, "layers": 8, "heads": 16, "pairs": 8, "words": 32000},
    "large": {"hidden": 2048, "inner": 5632, "layers": 16, "heads": 32, "pairs": 8, "words": 32000},
}
"""``large`` is 147 buffers of 1.6 GiB."""

SIDE: Final = 256
FAULTS: Final = 6
APART_SECONDS: Final = 1.5
QUIET_SECONDS: Final = 6.0
STORM: Final = 10
CALM_SECONDS: Final = 0.05


# --- what answers ---------------------------------------------------------------------------


class Subject(NamedTuple):
    """Something that a device is asked.

    Attributes:
        name: for the table.
        ask: raises where the answer is wrong.
    """

    name: str
    ask: Callable[[Device], Awaitable[None]]


async def builtin(device: Device) -> Subject:
    """The built-in libraries, on sealed weights."""
    rng = np.random.default_rng(0)
    host = rng.standard_normal((SIDE, SIDE), np.float32)
    matrix = rng.standard_normal((SIDE, SIDE), np.float32)
    weights = await device.put(matrix, sealed=True)
    scale = await device.put(np.ones(SIDE, np.float32), sealed=True)
    shift = await device.put(np.zeros(SIDE, np.float32), sealed=True)

    async def answer(device: Device) -> np.ndarray[Any, Any]:
        x = await device.put(host)
        y = await device.dnn.layer_norm(await device.blas.gemm(x, weights), scale, shift)
        return await device.get(await device.fft.rfft(y))

    product = host.astype(np.float64) @ matrix
    product -= product.mean(axis=1, keepdims=True)
    expected = np.fft.rfft(product / np.sqrt(product.var(axis=1, keepdims=True) + 1e-5))

    async def ask(device: Device) -> None:
        assert np.abs(await answer(device) - expected).max() < 0.1

    await ask(device)
    return Subject("built-in", ask)


def shapes(size: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """The weights of a Llama by the names that transformers gives them."""
    hidden, inner, words = size["hidden"], size["inner"], size["words"]
    narrow = hidden // size["heads"] * size["pairs"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (words, hidden)}
    for layer in range(size["layers"]):
        of = f"model.layers.{layer}."
        for name, shape in {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (narrow, hidden),
            "self_attn.v_proj": (narrow, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }.items():
            found[f"{of}{name}.weight"] = shape
    return {**found, "model.norm.weight": (hidden,), "lm_head.weight": (words, hidden)}


def load_llama(size: dict[str, int], weights: dict[str, Any]) -> Any:
    """In the host: a Llama on weights that are on the device already."""
    import torch
    import transformers  # type: ignore[import-not-found]

    config = transformers.LlamaConfig(
        hidden_size=size["hidden"],
        intermediate_size=size["inner"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["pairs"],
        vocab_size=size["words"],
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    state = {name: torch.as_tensor(array, device="cuda") for name, array in weights.items()}
    model.load_state_dict(state, assign=True)
    # Not among the weights, so it is still nowhere.
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config=config).to("cuda")
    model.eval().requires_grad_(False)
    ask_llama(model, np.ones(16, np.int64))  # loads here what the first call loads
    return model


def ask_llama(model: Any, tokens: np.ndarray[Any, Any]) -> Any:
    """In the host: what the model says of the word that follows."""
    import torch

    with torch.no_grad():
        found = model(torch.as_tensor(tokens, device="cuda")[None], use_cache=False)
        return found.logits[0, -1].float().cpu().numpy()


def load_stand_in(size: dict[str, int], weights: dict[str, Any]) -> Any:
    """In the host: what takes as long as a model does, and imports something."""
    import time

    import scipy.optimize

    time.sleep(0.5)
    assert scipy.optimize.__name__
    assert len(weights) == 9 * size["layers"] + 3
    return weights


def ask_stand_in(model: Any, tokens: np.ndarray[Any, Any]) -> Any:
    """In the host: something that depends on the weights."""
    return model["model.embed_tokens.weight"][tokens].sum(axis=0).astype(np.float32)


async def llama(device: Device, name: str) -> tuple[Subject, int]:
    """A model on a lane of ``device.run``, and its bytes."""
    size = SIZES[name]
    rng = np.random.default_rng(0)
    some = (rng.standard_normal(1 << 22, np.float32) * 0.02).astype(np.float16)
    weights, nbytes = {}, 0
    for key, shape in shapes(size).items():
        # Numbers that do not repeat would take longer to make than all else.
        host = np.ones(shape, np.float16) if len(shape) == 1 else np.resize(some, shape)
        weights[key] = await device.put(host, sealed=True)
        nbytes += host.nbytes
    load, forward = (load_llama, ask_llama) if WITH_LLAMA else (load_stand_in, ask_stand_in)
    init = partial(load, size, weights)
    tokens = rng.integers(size["words"], size=64)
    expected = await device.run(forward, tokens, lane="model", init=init)

    async def ask(device: Device) -> None:
        found = await device.run(forward, tokens, lane="model", init=init)
        assert np.abs(found - expected).max() < 1e-2 * np.abs(expected).max()

    return Subject("Llama" if WITH_LLAMA else "stand-in", ask), nbytes


# --- measuring ------------------------------------------------------------------------------


class Return(NamedTuple):
    """A return from a fault.

    Attributes:
        unseen: seconds until the fault was seen.
        seconds: from then to the next answer.
        seen: when that was, by ``time.monotonic_ns()``.
        good: when the answer was there.
    """

    unseen: float
    seconds: float
    seen: int
    good: int


async def back(device: Device, subject: Subject, kind: Any) -> Return:
    """Fault, and ask for the next answer."""
    async with trio.open_nursery() as nursery, device.watch_generation() as changes:
        launched = time.monotonic_ns()
        nursery.start_soon(poison, device, kind)
        await anext(aiter(changes))
        seen = time.monotonic_ns()
        await subject.ask(device)
        good = time.monotonic_ns()
    return Return((seen - launched) / 1e9, (good - seen) / 1e9, seen, good)


class Rehearsal:
    """The ``warm_up`` of standbys: it makes the calls that the benchmark makes of the device."""

    def __init__(self) -> None:
        self.subject: Subject | None = None

    async def __call__(self, device: Device) -> None:
        """Ask, once there is something to ask."""
        if self.subject is not None:
            await self.subject.ask(device)

    async def begin(self, device: Device, subject: Subject) -> None:
        """Set the subject, and start the lanes that deliberate faults need."""
        self.subject = subject
        source = 'extern "C" __global__ void nothing(float* x) {}'
        kernel = await device.nvrtc.compile(source, "nothing", cpu=lambda _: None)
        await kernel.launch(1, 1, await device.zeros(1, np.float32))
        device.core.changed()


def opened(mode: StandbyMode, options: argparse.Namespace, rehearsal: Rehearsal) -> Any:
    """A device that is never lost."""
    wanted = standby_of({mode: options.standbys}, options, rehearsal)
    return open_device(0, standby=wanted, max_restarts=10**6)


def standby_of(
    numbers: dict[str, int], options: argparse.Namespace, rehearsal: Rehearsal
) -> Standby:
    """Return what keeps some numbers of standbys; none of them is the default."""
    known: Any = numbers
    cold = options.cold or not {"hot", "parked"} & numbers.keys()
    return Standby(**known, warm_up=None if cold else rehearsal)


def opened_as_asked(options: argparse.Namespace, rehearsal: Rehearsal) -> Any:
    """A device with the standbys of ``--standby``."""
    given = options.standby or f"hot={options.standbys}"
    pairs = [] if given == "default" else [each.split("=") for each in given.split(",")]
    wanted = standby_of({name: int(number) for name, number in pairs}, options, rehearsal)
    return open_device(0, standby=wanted, max_restarts=10**6)


async def measure(
    mode: StandbyMode, part: str, options: argparse.Namespace, timeline: Timeline | None
) -> str:
    """A line of the table."""
    rehearsal = Rehearsal()
    async with opened(mode, options, rehearsal) as device:
        if part == "builtin":
            subject = await builtin(device)
        else:
            subject, _ = await llama(device, options.model)
        alone = []
        for _ in range(10):
            begun = time.perf_counter()
            await subject.ask(device)
            alone.append(time.perf_counter() - begun)
        await rehearsal.begin(device, subject)
        samples = []
        last: Return | None = None
        with trio.move_on_after(options.seconds):
            for _ in range(options.repeats):
                await standby_ready(device, 1)
                await trio.sleep(0.05)
                last = await back(device, subject, options.fault)
                samples.append(last.seconds)
        if timeline is not None and last is not None:
            print(f"the last return, {mode} {subject.name}:")
            timeline.print(last.seen - 5_000_000, last.good, device.statistics().host_pid)
        standby = device.statistics().standby
        assert standby is not None
        if not samples:
            return f"{mode:5} {subject.name:9} nothing in {options.seconds} s: {standby}"
        samples.sort()
        return (
            f"{mode:5} {subject.name:9} {len(samples):3} {statistics.median(samples) * 1e3:9.1f} "
            f"{samples[0] * 1e3:9.1f} {samples[-1] * 1e3:9.1f} "
            f"{statistics.median(alone) * 1e3:9.2f} {standby.seconds or 0:9.2f} "
            f"{standby.nbytes / 2**20:9.0f} {standby.mode} {standby.died}"
        )


class Clients:
    """Tasks that ask without pause, and what became of that."""

    def __init__(self, device: Device, subject: Subject) -> None:
        self._device = device
        self._subject = subject
        self.over = False
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self.right = self.wrong = self.lost = 0
        self.longest = 0.0
        self.begun = time.monotonic()

    async def run(self) -> None:
        """Ask, again and again."""
        while not self.over:
            begun = time.monotonic()
            try:
                await self._device.retry(self._subject.ask, self._device, attempts=100)
                self.right += 1
            except AssertionError:
                self.wrong += 1
            except AccelError as error:
                self.lost += 1
                print(f"    lost: {error!r}")
            self.longest = max(self.longest, time.monotonic() - begun)

    def rate(self, without: float = 0.0) -> float:
        """Answers in a second, outside of some time."""
        return self.right / (time.monotonic() - self.begun - without)


async def clients(options: argparse.Namespace) -> None:
    """Run tasks that ask without pause, cause faults, and print the remaining throughput."""
    rehearsal = Rehearsal()
    async with opened_as_asked(options, rehearsal) as device:
        subject, nbytes = await llama(device, options.model)
        await rehearsal.begin(device, subject)
        standby = device.statistics().standby
        assert standby is not None, "the default keeps no standby on the CPU backend"
        await standby_ready(device)
        standby = device.statistics().standby
        ours = Clients(device, subject)
        async with trio.open_nursery() as nursery:
            for _ in range(options.clients):
                nursery.start_soon(ours.run)
            await trio.sleep(1.0)
            ours.begin()
            await trio.sleep(QUIET_SECONDS)
            usual = ours.rate()
            print(
                f"{options.clients} clients of a {subject.name} of {nbytes / 2**30:.2f} GiB, "
                f"{told_standby(standby)}: {usual:.0f} answers a second, longest wait "
                f"{ours.longest:.3f} s"
            )
            ours.begin()
            returns: list[Return] = []
            for _ in range(FAULTS):
                await wait_until(ours.begun + len(returns) * APART_SECONDS)
                returns.append(await back(device, subject, options.fault))
            await wait_until(ours.begun + FAULTS * APART_SECONDS)
            unseen = sum(each.unseen for each in returns)
            rate = ours.rate(unseen)
            ours.over = True
        print(f"    faults seen after      {told(each.unseen for each in returns)}")
        print(f"    good after that        {told(each.seconds for each in returns)}")
        print(f"    right, wrong, lost     {ours.right}, {ours.wrong}, {ours.lost}")
        print(f"    throughput             {rate / usual:.0%} outside the {unseen:.2f} s unseen")
        print(f"    longest wait           {ours.longest:.3f} s")


async def wait_until(moment: float) -> None:
    """Sleep until a time of ``time.monotonic()``."""
    await trio.sleep(max(0.0, moment - time.monotonic()))


def told(seconds: Iterable[float]) -> str:
    """Some times."""
    return ", ".join(f"{each:.3f}" for each in seconds) + " s"


async def storm(options: argparse.Namespace) -> None:
    """Faults right after each return."""
    rehearsal = Rehearsal()
    async with opened_as_asked(options, rehearsal) as device:
        subject = await builtin(device)
        await rehearsal.begin(device, subject)
        await standby_ready(device)
        kept = device.statistics().standby
        assert kept is not None
        returns: list[Return] = []
        begun = time.monotonic()
        for _ in range(STORM):
            if options.apart:
                await wait_until(begun + len(returns) * options.apart)
            returns.append(await back(device, subject, options.fault))
            await trio.sleep(CALM_SECONDS)
        after = time.monotonic()
        await standby_ready(device, 1)
        one = time.monotonic()
        with trio.move_on_after(options.seconds):
            await standby_ready(device)
        standby = device.statistics().standby
        assert standby is not None
        print(f"storm of {STORM} faults in {after - begun:.1f} s, {told_standby(kept)}:")
        print(f"    good after             {told(each.seconds for each in returns)}")
        print(
            f"    a {standby.mode} one is ready     {one - after:.2f} s after the last, "
            f"{standby.ready} of {standby.kept} {time.monotonic() - after:.2f} s after it; "
            f"{standby.used} were used, {standby.died} died"
        )


async def sealed(options: argparse.Namespace) -> None:
    """Faults of a device with large sealed buffers, and how long a GiB takes to be mapped."""
    for wanted in (Standby(warm=1), Standby(warm=0)):
        async with open_device(0, standby=wanted, max_restarts=10**6) as device:
            ones = np.ones(1 << 28, np.float32)
            kept = [await device.put(ones, sealed=True) for _ in range(options.sealed)]
            found = []
            for _ in range(4):
                if wanted.warm:
                    await standby_ready(device, 1)
                await poison(device, options.fault)
                assert await device.get(kept[-1][-1:]) == 1
                startup = device.statistics().startup
                assert startup is not None
                found.append(startup.remap / startup.remapped_bytes * 2**30)
        told_ms = ", ".join(f"{each * 1e3:.2f}" for each in found)
        print(f"a sealed GiB of {options.sealed}, {wanted.warm} warm: mapped again in {told_ms} ms")


def told_standby(standby: Any) -> str:
    """The standbys of a device, and the memory that they take."""
    return (
        f"{standby.kept} standbys, the best {standby.mode} ({standby.parked} parked), "
        f"{standby.nbytes / 2**20:.0f} MiB of the device"
    )


async def main(options: argparse.Namespace) -> None:
    """Run the measurements that the options select."""
    warnings.simplefilter("ignore", CpuFallbackWarning)
    print(
        f"backend {'cuda' if ON_CUDA else 'cpu'}, Python {sys.version.split()[0]}, {options.fault}"
    )
    timeline = Timeline() if options.timeline else None
    if not (options.clients or options.storm or options.sealed):
        print(
            "mode  subject     n    median     least      most     alone   ready s  bytes MiB "
            "kept died   (ms from seen to good)"
        )
        for part in options.parts.split(","):
            for mode in options.modes.split(","):
                print(await measure(mode, part, options, timeline))
    if options.clients:
        await clients(options)
    if options.storm:
        await storm(options)
    if options.sealed:
        await sealed(options)


def parsed() -> argparse.Namespace:
    """Return the parsed options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--parts", default="builtin,llama")
    parser.add_argument("--modes", default="hot,warm")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=33.0, help="of faults for each line")
    parser.add_argument("--standbys", type=int, default=4 if ON_CUDA else 1)
    parser.add_argument("--fault", default="assert")
    parser.add_argument("--model", choices=SIZES, default="small" if ON_CUDA else "tiny")
    parser.add_argument("--timeline", action="store_true")
    parser.add_argument("--cold", action="store_true", help="without a warm_up")
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--storm", action="store_true")
    parser.add_argument("--sealed", type=int, default=0, help="GiB")
    parser.add_argument("--apart", type=float, default=0, help="seconds between a storm's faults")
    parser.add_argument("--standby", help="of clients and storms: default, or as hot=1,parked=3")
    return parser.parse_args()


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    trio.run(main, parsed())
