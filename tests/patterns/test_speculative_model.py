"""A decoder under random faults, cancellations and ends: its output never changes."""

from __future__ import annotations

import random
from functools import partial

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.patterns import (
    Draft,
    LookupDraft,
    ModelDraft,
    NGramDraft,
    Retry,
    Sampling,
    open_speculative,
)

from ..harness import AT_ONCE, run_on_mock_clock
from .toy_models import ToyModel
from .worlds import poisoned

TOKENS = 12


class Trouble:
    """Makes models wait, and fail at random points, some times."""

    def __init__(self, seed: int, faults: float) -> None:
        self.rng = random.Random(seed)
        self.faults = faults
        self.left = 40

    async def __call__(self, _where: str) -> None:
        await trio.sleep(self.rng.choice([0, 0, 0.1, 1]))
        if self.left and self.rng.random() < self.faults:
            self.left -= 1
            raise poisoned()


async def text(
    seed: int,
    kind: str,
    sampling: Sampling,
    branching: list[int],
    *,
    trouble: Trouble | None = None,
    cancelled: float = 0,
    left: int = TOKENS,
) -> list[int]:
    """Generate a text, with as much trouble as that."""
    target = ToyModel(seed, 5, hook=trouble)
    model = ToyModel(seed + 1, like=target, hook=trouble)
    drafts: dict[str, Draft] = {
        "model": ModelDraft(model),
        "look-up": LookupDraft(prompt_only=False),
        "n-grams": NGramDraft(),
    }
    got: list[int] = []
    chance = random.Random(seed)
    async with open_speculative(
        target,
        drafts[kind],
        sampling=sampling,
        branching=branching,
        rng=seed,
        retry=Retry(attempts=100, backoff=AT_ONCE),
    ) as decoder:
        async with decoder.generate([0, 1, 0], max_tokens=TOKENS) as tokens:
            while len(got) < left:
                patience = chance.uniform(0, 3) if chance.random() < cancelled else 1e5
                with trio.move_on_after(patience):
                    got.append(await anext(tokens))
        seen = decoder.statistics()
        assert (seen.submitted, seen.running, seen.failed) == (1, 0, 0)
        assert (seen.answered, seen.withdrawn) == ((1, 0) if left == TOKENS else (0, 1))
        assert target.open == model.open == 0
    return got


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["model", "look-up", "n-grams"]),
    sampling=st.sampled_from([Sampling(), Sampling(temperature=0), Sampling(top_k=3, top_p=0.9)]),
    branching=st.lists(st.integers(1, 3), max_size=3),
    faults=st.sampled_from([0, 0.1, 0.3]),
    cancelled=st.sampled_from([0, 0.5, 0.9]),
    left=st.sampled_from([TOKENS, TOKENS, 1, 5]),
)
def test_no_token_is_lost_or_doubled_or_another(
    seed: int,
    kind: str,
    sampling: Sampling,
    branching: list[int],
    faults: float,
    cancelled: float,
    left: int,
) -> None:
    texts: list[list[int]] = []

    async def both() -> None:
        make = partial(text, seed, kind, sampling, branching)
        texts.append(await make())
        trouble = Trouble(seed, faults)
        texts.append(await make(trouble=trouble, cancelled=cancelled, left=left))

    run_on_mock_clock(both)
    undisturbed, disturbed = texts
    assert disturbed == undisturbed[:left]
