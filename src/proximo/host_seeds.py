"""The seeds of host environments; `seeding` has the table of all of them. Worker processes import this: it loads no
JAX."""

from __future__ import annotations

RESET_OFFSET = 10_000
RESTART_STRIDE = 1_000_003
EPISODE_STRIDE = 1_327_217_885
SEED_INTERVAL = 1_024
"""Steps after which the next episode gets a seed of its own. Seeding takes as long as several steps of a small
environment, so short episodes go on with the random numbers of those before."""


def episode_seed(seed: int, episode: int) -> int:
    """The seed that episode number `episode` of an environment has where its first one has `seed`:

        (seed + 1,327,217,885 * episode) mod 2^31, and `seed` itself for episode 0.

    The stride is 2^31 divided by the golden ratio, whose multiples stay far apart: environments whose first seeds
    differ by less than a thousand share no seed in 400,000 episodes.
    """
    return (seed + EPISODE_STRIDE * episode) % 2**31 if episode else seed


def restart_seed(seed: int, restarts: int) -> int:
    """The seed of an environment that has been restarted `restarts` times, of which the first one had `seed`."""
    return seed + RESTART_STRIDE * restarts
