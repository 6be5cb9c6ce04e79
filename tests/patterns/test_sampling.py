"""Speculative decoding keeps the target's distribution for any draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from atomr_accel.patterns import DraftTree, Probabilities, Sampling, Verdict, WrongResults
from atomr_accel.patterns._sampling import ROOT, accept, draw, draw_children

from ..harness import sized
from ..seeds import rng as seeded
from .toy_models import ToyModel, assert_distributed

RUNS = sized(800, 30_000)

TARGET = ToyModel(1)

Propose = Callable[[np.random.Generator, Sampling], DraftTree]


def by_model(*shape: int, noise: float = 1.0, other: Sampling | None = None) -> Propose:
    """Drafts of a model that is like the target, but for noise; perhaps sampled otherwise."""
    draft = ToyModel(2, like=TARGET, noise=noise)

    def propose(rng: np.random.Generator, sampling: Sampling) -> DraftTree:
        tree = DraftTree()
        level: list[tuple[int, list[int]]] = [(ROOT, [])]
        for width in shape:
            below = []
            for node, text in level:
                q = (other or sampling).probabilities(draft.logits(text))
                nodes = draw_children(tree, node, q, width, rng)
                below += [(child, [*text, tree.tokens[child]]) for child in nodes]
            level = below
        return tree

    return propose


def guesses(*chains: list[int]) -> Propose:
    """Return a function that always proposes the same drafts."""

    def propose(_rng: np.random.Generator, _sampling: Sampling) -> DraftTree:
        tree = DraftTree()
        for chain in chains:
            tree.add_chain(chain)
        return tree

    return propose


def mixed(rng: np.random.Generator, sampling: Sampling) -> DraftTree:
    """Draws in the first depth, and guesses behind them, one of them twice."""
    tree = by_model(2)(rng, sampling)
    for node in tree.children(ROOT):
        for token in (3, 1, 3):
            tree.add(token, node)
    return tree


DRAFTS: dict[str, Propose] = {
    "none": guesses(),
    "a chain": by_model(1, 1, 1),
    "a chain of the target itself": by_model(1, 1, noise=0.0),
    "a chain of another opinion": by_model(1, 1, noise=5.0),
    "a chain drawn otherwise": by_model(1, 1, other=Sampling(temperature=0.5, top_k=2)),
    "a tree": by_model(3, 2),
    "a tree of all there is": by_model(4, 4, noise=3.0),
    "a tree drawn otherwise": by_model(2, 2, other=Sampling(temperature=2.0)),
    "guesses": guesses([0, 1], [2], [0, 3]),
    "guesses of all there is": guesses([0], [1], [2], [3]),
    "draws and guesses": mixed,
}

SAMPLINGS: dict[str, Sampling] = {
    "plain": Sampling(),
    "cool": Sampling(temperature=0.6),
    "top k": Sampling(temperature=1.5, top_k=2),
    "top p": Sampling(top_p=0.8),
    "all": Sampling(temperature=1.3, top_k=3, top_p=0.9),
}

CASES = [(drafts, "plain") for drafts in DRAFTS] + [
    (drafts, sampling) for drafts in ("a chain", "a tree", "guesses") for sampling in SAMPLINGS
]


@pytest.mark.slow
@pytest.mark.parametrize(("drafts", "sampling"), dict.fromkeys(CASES))
def test_samples_follow_the_targets_distribution(drafts: str, sampling: str) -> None:
    rng, how = seeded(), SAMPLINGS[sampling]
    known: dict[tuple[int, ...], Probabilities] = {}

    def after(text: list[int]) -> Probabilities:
        key = tuple(text)
        if key not in known:
            known[key] = how.probabilities(TARGET.logits(text))
        return known[key]

    found = Counter[int]()
    for _ in range(RUNS):
        tree = DRAFTS[drafts](rng, how)

        def text_of(node: int, tree: DraftTree = tree) -> list[int]:
            return [] if node == ROOT else [*text_of(tree.parents[node]), tree.tokens[node]]

        path, token = accept(tree, lambda node: after(text_of(node)), rng)
        text = [*(tree.tokens[node] for node in path), token]
        while len(text) < 2:  # and so on, without drafts
            text.append(draw(after(text), rng))
        found[text[0] * TARGET.vocabulary + text[1]] += 1
    assert_distributed(found, TARGET.joint([], 2, how))


def test_the_test_finds_what_is_wrong() -> None:
    """Drafts that are kept as they come, and drafts of one that says it were another."""
    rng = seeded()
    p, q = (Sampling().probabilities(model.logits([])) for model in (TARGET, ToyModel(2)))
    kept, lied = Counter[int](), Counter[int]()
    for _ in range(2_000):
        token = draw(q, rng)
        kept[token] += 1
        tree = DraftTree()
        tree.drawn_from[ROOT] = p
        tree.add(token)
        path, other = accept(tree, lambda node: p, rng)
        lied[token if path else other] += 1
    for found in kept, lied:
        with pytest.raises(AssertionError):
            assert_distributed(found, p)


def test_a_draft_of_the_target_itself_is_always_kept() -> None:
    rng, p = seeded(), Sampling().probabilities(TARGET.logits([]))
    for _ in range(200):
        tree = DraftTree()
        (node,) = draw_children(tree, ROOT, p, 1, rng)
        assert accept(tree, lambda node: p, rng)[0] == [node]


@given(
    logits=arrays(np.float32, st.integers(1, 12), elements=st.floats(-20, 20, width=32)),
    temperature=st.floats(0.05, 5),
    top_k=st.one_of(st.none(), st.integers(1, 14)),
    top_p=st.floats(0.01, 1),
)
def test_sampling_is_what_it_says(
    logits: np.ndarray[tuple[int], np.dtype[np.float32]],
    temperature: float,
    top_k: int | None,
    top_p: float,
) -> None:
    p = Sampling(temperature=temperature, top_k=top_k, top_p=top_p).probabilities(logits)
    assert p.dtype == np.float64
    assert np.isclose(p.sum(), 1)
    x = logits.astype(float)
    whole = np.exp((x - x.max()) / temperature)
    among = np.sort(x)[::-1][: x.size if top_k is None else top_k][-1] <= x
    if top_k is not None:
        assert not p[~among].any()
    kept = p > 0
    share = whole[kept].sum() / whole[among].sum()
    assert share >= top_p - 1e-9
    np.testing.assert_allclose(p[kept], whole[kept] / whole[kept].sum())
    least = whole[kept].min()
    assert (whole[among & ~kept] <= least).all()
    assert (share - least / whole[among].sum()) < top_p + 1e-9  # without the last, too little

    greedy = Sampling(temperature=0).probabilities(logits)
    assert greedy.tolist() == np.eye(logits.size)[logits.argmax()].tolist()


@given(
    p=arrays(float, st.integers(1, 9), elements=st.sampled_from([0, 1e-300, 1e-9, 0.3, 1])).filter(
        np.any
    ),
    seed=st.integers(0, 2**32),
)
def test_impossible_token_is_never_drawn(p: Probabilities, seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert p[draw(p, rng)] > 0
    tree = DraftTree()
    nodes = draw_children(tree, ROOT, p, 20, rng)
    assert sorted(tree.tokens) == np.flatnonzero(p).tolist()
    assert nodes == [*range(len(tree))]


class _Last(np.random.Generator):
    """The largest number below one, always."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64())

    def random(self, *_args: object, **_kwargs: object) -> float:  # type: ignore[override]
        return float(np.nextafter(1, 0))


def test_rounding_leads_nowhere() -> None:
    p = np.array([0.1, 0.2, 0.7 - 1e-16, 0.0])
    assert draw(p * 1e-308, _Last()) == 2
    tree = DraftTree()  # rejected by a hair, where nothing is left
    tree.drawn_from[ROOT] = q = p + np.array([0, 0, 1e-16, 0])
    node = tree.add(2)
    assert accept(tree, lambda _: np.minimum(p, q), _Last())[0] in ([node], [])


def test_trees() -> None:
    tree = DraftTree()
    tree.add_chain([5, 6, 7])
    tree.add_chain([5, 8])
    tree.add_chain([9])
    assert (tree.tokens, tree.parents) == ([5, 6, 7, 8, 9], [-1, 0, 1, 0, -1])
    assert (tree.depth, len(tree)) == (3, 5)
    assert tree.children(ROOT) == [0, 4]
    assert tree.children(4) == []
    for parent in (5, -2):
        with pytest.raises(ValueError, match="parent must be a whole number from -1 to 4, not"):
            tree.add(1, parent)


def test_rejected_token_is_reported() -> None:
    tree = DraftTree()
    tree.drawn_from[ROOT] = np.array([1.0, 0.0])
    tree.add(1)
    with pytest.raises(ValueError, match="cannot have been drawn"):
        accept(tree, lambda node: np.array([1.0, 0.0]), seeded())
    with pytest.raises(ValueError, match="vocabulary has 2 tokens and the target's 3"):
        accept(tree, lambda node: np.array([1.0, 0.0, 0.0]), seeded())


def test_token_that_the_target_never_emits_is_rejected() -> None:
    tree = DraftTree()
    for token in (-1, 2, 99):
        tree.add(token)
    assert accept(tree, lambda node: np.array([0.0, 1.0]), seeded()) == ([], 1)


@pytest.mark.parametrize("logits", [[np.nan, 0], [np.inf, 0], [-np.inf, -np.inf]])
def test_logits_without_a_distribution_are_told(logits: list[float]) -> None:
    with pytest.raises(ValueError, match="of no distribution"):
        Sampling().probabilities(np.array(logits))


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1}, {"temperature": np.inf}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": 0}],
)
def test_options_that_cannot_be(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Sampling(**options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_verdict_decides_as_the_logits_do() -> None:
    """Compares distributions: drafts and their replacements are drawn."""
    rng = seeded()
    p, q = (Sampling().probabilities(model.logits([])) for model in (TARGET, ToyModel(2)))
    rest = np.maximum(p - q, 0)
    found = Counter[int]()
    for _ in range(RUNS):
        tree = DraftTree()
        tree.add(draw(q, rng))
        likely = p[tree.tokens] / q[tree.tokens]
        verdict = Verdict(likely, np.array([draw(rest, rng), 99]))
        path, token = verdict.decide(tree, rng)
        assert (token == 99) == (path == [0])
        found[tree.tokens[0] if path else token] += 1
    assert_distributed(found, p)


def test_a_verdict_of_something_else_is_told() -> None:
    tree = DraftTree()
    tree.add_chain([1, 2])
    with pytest.raises(WrongResults, match="of 2 drafts"):
        Verdict(np.ones(2), np.array([1, 2])).decide(tree, seeded())
    tree.add_chain([3])
    with pytest.raises(ValueError, match="branches"):
        Verdict(np.ones(3), np.array([1, 2, 3, 4])).decide(tree, seeded())
    chain = DraftTree()
    chain.add(1)
    tokens = np.array([1, 2])
    for likely, instead in (
        (np.array([np.nan]), tokens),
        (np.array([-0.5]), tokens),
        (np.array([1j]), tokens),
        (np.array([0.5]), np.array([1, -2])),
        (np.array([0.5]), np.array([0.5, 1.0])),
    ):
        with pytest.raises(WrongResults, match="a Verdict"):
            Verdict(likely, instead).decide(chain, seeded())
    for chance, either in ((0.0, [-1, 2]), (np.nan, [-1, 2]), (1.0, [1, -1])):
        with pytest.raises(ValueError, match=r"behind \d drafts are of no distribution"):
            Verdict(np.array([chance]), np.array(either)).decide(chain, seeded())


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1e-320)])
def test_logits_may_be_far_apart(sampling: Sampling) -> None:
    p = sampling.probabilities(np.array([-1e308, 1e308, 0, 1e308]))
    assert p.tolist() == [0, 0.5, 0, 0.5]
