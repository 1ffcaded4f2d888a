"""A family of environments of one's own: `proximo train corridors/short` once a package with this module says, in its
pyproject.toml,

    [project.entry-points."proximo.envs"]
    corridors = "environment_family"

A family is a module with four functions. Its environments may be JAX ones, as here, or host ones (a `HostSource`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from proximo.envs import EnvSpec, Transition

LENGTHS = {"short": 5, "long": 20}


class Corridor:
    """Walk right to the end of a corridor; the sooner, the better."""

    def __init__(self, name: str) -> None:
        self.length = LENGTHS[name]
        seen = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.spec = EnvSpec(f"corridors/{name}", seen, spaces.Discrete(2), max_steps=4 * self.length)

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        return jnp.int32(0), Transition(obs=jnp.zeros(1))

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        place = jnp.maximum(state + 2 * action - 1, 0)
        obs = (place / self.length).astype(jnp.float32)[None]
        return place, Transition(obs=obs, reward=-0.1, terminated=place >= self.length)


def names() -> list[str]:
    """What `proximo envs` lists."""
    return list(LENGTHS)


def make(name: str) -> Corridor:
    """The environment that an id means, after the slash."""
    return Corridor(name)


def accepts(env: Any) -> bool:
    """Whether an object that a user hands to PPOTrainer is one of the family's own, to be wrapped."""
    return False


def wrap(env: Any) -> Any:
    """Such an object as an environment that Proximo knows; here there is none."""
    return env
