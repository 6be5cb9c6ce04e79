"""``device.rng``: random numbers on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from ...ops import D
from ._draws import RngFacades
from ._state import new_state
from .generator import Generator, check_dimensions

if TYPE_CHECKING:
    from ...ops import DeviceView
    from ..array.facade import ArrayFunctions
    from ..blas.facade import Blas
    from ..cub.facade import Cub
    from ._state import Seed


@final
class Rng(Generator[D]):
    """The device's own generator, and where others are made.

    Everything can be drawn from it directly: ``await device.rng.normal(size=1000)``. It is
    a Philox generator, seeded by the system unless ``seed`` was called. What all draws have
    in common, with sizes, dtypes and errors, is said of ``Generator``, which
    ``default_rng`` returns: ``help(type(device.rng.default_rng()))``.
    """

    def __init__(
        self, device: DeviceView, array: ArrayFunctions[Any], cub: Cub[Any], blas: Blas[Any]
    ) -> None:
        known = RngFacades(*(used.as_requests(device) for used in (array, cub, blas)))
        super().__init__(device, new_state(None, "philox4_32_10", "default", 0, 1), known)

    def seed(self, seed: Seed = None) -> None:
        """Begin anew, with another seed.

        Args:
            seed: as for ``default_rng``.
        """
        fresh = new_state(seed, self._state.kind, self._state.ordering, 0, 1)
        self._state.restore(fresh.save())

    def default_rng(
        self,
        seed: Seed = None,
        kind: str = "philox4_32_10",
        *,
        ordering: str = "default",
        offset: int = 0,
        dimensions: int = 1,
    ) -> Generator[D]:
        """Make an independent generator; as ``numpy.random.default_rng``.

        Generators, by cuRAND's names (``curandRngType``):

        * ``philox4_32_10``: the same words as cuRAND's, made by kernels of this package
          together with the distribution, in one pass over memory. The fastest.
        * ``xorwow``, ``mrg32k3a``: made by cuRAND; a second pass makes the distribution.
        * ``mtgp32``, ``mt19937``: likewise. They cannot skip, so after a rebuild, or with an
          ``offset``, they first draw the earlier numbers. The host keeps 64 and 16 of them in use;
          if there are more, some must draw their earlier numbers again.
        * ``sobol32``, ``scrambled_sobol32``, ``sobol64``, ``scrambled_sobol64``:
          quasi-random points from cuRAND's direction vectors, for integration.

        On the CPU backend the pseudo-random generators are NumPy's Philox, each with its own
        streams. The quasi-random ones are SciPy's of 32 bits, which steps through all earlier
        points.

        Args:
            seed: an int, a sequence of ints or a ``numpy.random.SeedSequence``, which turns it into
                the generator's key; None takes one from the system. Quasi-random generators take
                none.
            kind: the generator's name.
            ordering: how cuRAND orders words in memory (``curandOrdering``): ``default``, ``best``,
                ``legacy``, ``dynamic`` or, for xorwow, ``seeded``.
            offset: the start in the sequence, in words of 32 bits (rounded up to a multiple of
                four), or in points.
            dimensions: of quasi-random points, up to 20,000.

        Returns:
            A generator with its own state.

        Raises:
            ValueError: an unknown kind, or one without that ordering or dimensions.
            TypeError: an invalid seed, or a seed for a quasi-random generator.
        """
        state = new_state(seed, kind, ordering, offset, check_dimensions(dimensions))
        return Generator(self.home, state, self._known)
