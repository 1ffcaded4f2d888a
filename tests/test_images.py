"""Images stay bytes until a network reads them, on both ways of collecting."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from proximo import Config, PPOAgent, settings
from proximo.envs import make
from proximo.envs.api import EnvSpec, Transition
from proximo.envs.groups import ONE
from proximo.policy.agents import Agents
from proximo.rollout.types import Rollout
from proximo.train.setup import make_program

STEPS, ENVS = 4, 2
IMAGES = {"last": (9, 11, 2), "first": (2, 12, 12)}


class Screens(gymnasium.Env[Any, Any]):
    """Every pixel shows the clock; a second entry holds a number."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.observation_space = observation_space(shape)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.clock = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock += 1
        return self._seen(), 0.0, self.clock == 3, False, {}

    def _seen(self) -> dict[str, Any]:
        screen = np.full(self.shape, 10 * self.clock, np.uint8)
        return {"screen": screen, "speed": np.zeros(1, np.float32)}


class CompiledScreens:
    """`Screens` as a `JaxEnv`."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.spec = EnvSpec("Screens", observation_space(shape), spaces.Discrete(2))

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        return jnp.int32(0), Transition(obs=self._obs(jnp.int32(0)))

    def step(self, key: jax.Array, clock: jax.Array, action: Any) -> tuple[Any, Transition]:
        return clock + 1, Transition(obs=self._obs(clock + 1), terminated=clock == 2)

    def _obs(self, clock: jax.Array) -> dict[str, jax.Array]:
        return {"screen": jnp.full(self.shape, 10 * clock, jnp.uint8), "speed": jnp.zeros(1, jnp.float32)}


def observation_space(shape: tuple[int, ...]) -> spaces.Dict:
    return spaces.Dict(screen=spaces.Box(0, 255, shape, np.uint8), speed=spaces.Box(-1, 1, (1,)))


def prepared(shape: tuple[int, ...], **keywords: Any) -> tuple[Config, PPOAgent]:
    small = dict(rollout_length=STEPS, num_envs=ENVS, minibatch_size=4, hidden_sizes=[4], workers=0, groups=1)
    config = settings.build(settings.from_keywords(small | keywords))
    return config, PPOAgent(observation_space(shape), spaces.Discrete(2), config)


def collected(source: Any, agent: PPOAgent, config: Config) -> Rollout:
    """The first rollout of the only group."""
    agents = Agents.of_one(agent)
    program = make_program(source, agents, config)
    with closing(program):
        given = (agents.part("params"), agents.part("obs_stats"), agents.part("reward_stats"))
        return program.collect(program.init(given)).groups[ONE]


@pytest.mark.slow
@pytest.mark.parametrize("layout", IMAGES)
def test_images_stay_bytes_until_the_device(layout: str) -> None:
    shape = IMAGES[layout]
    config, agent = prepared(shape)
    on_host = collected(make(lambda: Screens(shape)), agent, config)
    compiled = collected(CompiledScreens(shape), agent, config)
    for rollout in (on_host, compiled):
        assert rollout.obs["screen"].dtype == rollout.final_obs["screen"].dtype == np.uint8
        assert rollout.obs["screen"].shape == (STEPS, ENVS, *shape)
        assert rollout.obs["screen"][:, 0].max(axis=(1, 2, 3)).tolist() == [0, 10, 20, 0]
    np.testing.assert_array_equal(on_host.action, compiled.action)
    features = agent.policy.adapter(jax.tree.map(lambda leaf: leaf[1], on_host.obs))
    height, width, channels = shape if layout == "last" else (*shape[1:], shape[0])
    assert [image.shape for image in features.images] == [(ENVS, height, width, channels)]
    np.testing.assert_allclose(features.images[0], 10 / 255, rtol=1e-6)
