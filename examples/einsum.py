"""A chain of tensors, as physicists draw them: contracted along a good path, and replayed.

A matrix product state is one tensor for each site, of shape (left, state, right). The overlap of
two of them sums over all indices: along the chain that takes some n * d * bond**3 products.
"""

import warnings
from itertools import pairwise

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device

SITES, STATES, BOND = 6, 2, 24


def random_state(rng: np.random.Generator) -> list[np.ndarray]:
    """A tensor for each site; those at the ends have one neighbour."""
    shapes = pairwise([1, *[BOND] * (SITES - 1), 1])
    return [rng.normal(size=(left, STATES, right)) / BOND for left, right in shapes]


def overlap_subscripts() -> str:
    """Sites side by side: bonds of one state are a, b, ..., of the other A, B, ..."""
    bonds, states = "abcdefgh", "stuvwxyz"
    above = [f"{bonds[at]}{states[at]}{bonds[at + 1]}" for at in range(SITES)]
    below = [f"{bonds[at].upper()}{states[at]}{bonds[at + 1].upper()}" for at in range(SITES)]
    return ",".join([*above, *below]) + "->"


async def main() -> None:
    """Overlaps by einsum, checked against the vectors that the states are."""
    rng = np.random.default_rng()
    first, second = random_state(rng), random_state(rng)
    subscripts = overlap_subscripts()

    async with open_device(0) as device:
        kets = [await device.put(site) for site in first]
        bras = [await device.put(site) for site in second]
        overlap = await device.get(await device.tensor.einsum(subscripts, *kets, *bras))

        def vector(state: list[np.ndarray]) -> np.ndarray:
            whole = state[0]
            for site in state[1:]:
                whole = np.tensordot(whole, site, 1)
            return whole.ravel()

        expected = vector(first) @ vector(second)
        scale = np.linalg.norm(vector(first)) * np.linalg.norm(vector(second))
        assert abs(overlap - expected) < 1e-12 * scale, (overlap, expected)

        # Recorded once, replayed with another tensor at one site.
        async with device.record() as recording:
            result = recording.tensor.einsum(subscripts, *kets, *bras)
        changed = [*first]
        changed[2] = rng.normal(size=first[2].shape)
        await recording.replay(replace={kets[2]: await device.put(changed[2])})
        again = await device.get(result)
        scale = np.linalg.norm(vector(changed)) * np.linalg.norm(vector(second))
        assert abs(again - vector(changed) @ vector(second)) < 1e-12 * scale
        print(
            f"einsum on {device.backend}: the overlap of two states of {SITES} sites is "
            f"{overlap:.3e}, with another site {again:.3e}"
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
