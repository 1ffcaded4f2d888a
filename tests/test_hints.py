"""Hints at the start of a run: each after one certain update, by numbers of its row."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from proximo.envs.spec import EnvSpec
from proximo.policy.normalize import RunningStats
from proximo.policy.observation import ObservationAdapter
from proximo.settings import build
from proximo.train.hints import Hints, unchanged

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)


def hints(max_steps: int | None = None, **values: Any) -> Hints:
    small = {"env.num_envs": 2, "ppo.rollout_length": 100, "train.total_timesteps": 200 * 1000}
    config = build(small | {name.replace("__", "."): value for name, value in values.items()})
    return Hints(config, EnvSpec("Some", BOX, spaces.Discrete(2), max_steps))


def row(update: int, episode: int = 1, reward: tuple[float, float] = (0.0, 1.0), spread: float = 1.0) -> dict[str, Any]:
    told = {"update": update, "step": 200 * update, "episode": episode, "buffer/return_std": spread}
    return told | {"buffer/reward_min": reward[0], "buffer/reward_max": reward[1]}


def said(one: Hints, updates: int, **numbers: Any) -> list[tuple[int, str]]:
    """The first words, and after which update."""
    return [
        (update, sentence.split(":")[0])
        for update in range(1, updates + 1)
        for sentence in one.look([row(update, **numbers)], list)
    ]


def test_nothing_is_said_of_what_is_well() -> None:
    assert said(hints(), 60) == []


def test_episodes_that_do_not_end() -> None:
    """2,000 steps of each environment without a limit; with one, when an episode must have ended; at the latest at the
    end of the run."""
    words = "No episode ended within {} steps of each environment"
    assert said(hints(), 60, episode=0) == [(20, words.format("2,000"))]
    assert said(hints(500), 60, episode=0) == [(5, words.format("500"))]
    assert said(hints(env__max_steps_per_episode=950), 60, episode=0) == [(10, words.format("1,000"))]
    assert said(hints(train__total_timesteps=600), 3, episode=0) == [(3, words.format("300"))]
    assert said(hints(10_000, train__total_timesteps=600), 3, episode=0) == [], "an episode may be longer"


def test_rewards_that_need_a_scale() -> None:
    raw = {"normalize__rewards": False}
    assert said(hints(**raw), 9, spread=400.0) == [(5, "Rewards are large")]
    assert said(hints(**raw), 9, spread=0.001) == [(5, "Rewards are small")]
    assert said(hints(**raw), 9, spread=3.0) == []
    assert said(hints(), 9, spread=400.0) == [], "they are normalised"


def test_rewards_that_are_always_nothing() -> None:
    assert said(hints(), 9, reward=(0.0, 0.0)) == [(5, "Every reward of 1,000 steps was 0")]
    resumed = hints()
    rest = [row(update, reward=(0.0, 0.0)) for update in (4, 5)]
    assert resumed.look(rest, list) == [], "there were others before"


def test_observations_that_never_change() -> None:
    space = spaces.Dict({"a": BOX, "kind": spaces.Discrete(2), "z": spaces.Box(-1, 1, (1,), np.float32)})
    mean = jnp.array([0.0, 0.1, 5.0, 0.5, 0.5, 0.3])
    var = jnp.array([0.0, 1e-17, 2.0, 0.0, 0.0, 0.0])  # 1e-17 is what rounding leaves
    found = unchanged(ObservationAdapter(space), RunningStats(jnp.float32(9), mean, var))
    assert found == ["observation['a'][0]", "observation['a'][1]", "observation['z']"]
    (sentence,) = hints().look([row(5)], lambda: found)
    assert sentence.startswith(f"{', '.join(found)} never changed in 1,000 steps")
