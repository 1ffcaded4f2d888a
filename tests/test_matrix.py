"""Every kind of observation, action, memory, torso and environment together: trained a little, stopped, resumed."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import probes
from proximo import PPOTrainer
from proximo.envs.api import EnvSpec, Transition
from proximo.spaces import build, mask_shape

OBSERVATIONS = {
    "vector": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "image": spaces.Box(0, 255, (9, 9, 2), np.uint8),
    "dict": spaces.Dict(
        {
            "code": spaces.MultiDiscrete([3, 2], dtype=np.int32),
            "picture": spaces.Box(0, 255, (2, 9, 9), np.uint8),
            "rest": spaces.Tuple([spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(4, dtype=np.int32)]),
        }
    ),
}
BOX = spaces.Box(-1.0, 3.0, (2,), np.float32)
HYBRID = spaces.Dict(
    {"aim": BOX, "buttons": spaces.MultiBinary(2), "move": spaces.Discrete(3, dtype=np.int32), "x": BOX}
)
ACTIONS: dict[str, tuple[spaces.Space[Any], dict[str, Any]]] = {
    "discrete": (spaces.Discrete(3, dtype=np.int32), {}),
    "multi": (spaces.MultiDiscrete([2, 3], dtype=np.int32), {}),
    "gaussian": (BOX, {}),
    "deviating": (BOX, {"std": "state"}),
    "tanh": (BOX, {"continuous": "tanh_gaussian"}),
    "beta": (BOX, {"continuous": "beta"}),
    "hybrid": (HYBRID, {"continuous": "beta"}),
}
MEMORIES, TORSOS, KINDS, STACKS = ("none", "gru", "lstm"), ("separate", "shared"), ("compiled", "host"), (1, 2)
LENGTH = 5


def mask_of(space: spaces.Space[Any], xp: Any) -> Any:
    """Every choice but the first, or None where there are no choices."""
    size = math.prod(mask_shape(space))
    return None if not size else xp.asarray(np.arange(size) % 2 == 1).reshape(mask_shape(space))


def drawn(space: spaces.Space[Any], uniform: Any, xp: Any) -> Any:
    """A member of the space, each of its numbers from one between 0 and 1."""

    def leaf(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, spaces.Discrete):
            return xp.asarray(uniform * np.float32(leaf.n)).astype(leaf.dtype)
        if isinstance(leaf, spaces.MultiDiscrete):
            return xp.asarray(uniform * leaf.nvec.astype(np.float32)).astype(leaf.dtype)
        low, high = leaf.low.astype(np.float32), leaf.high.astype(np.float32)
        return xp.asarray(low + uniform * (high - low)).astype(leaf.dtype)

    return build(space, leaf)


def paid(action: Any, xp: Any) -> Any:
    return sum((xp.asarray(leaf).astype(np.float32)).sum() for leaf in jax.tree.leaves(action))


class Compiled(metaclass=probes.Alike):
    """Draws observations; five steps, the end is a cut in every other episode. Forbidden actions end in NaN."""

    def __init__(self, observation: str, action: str) -> None:
        self.spec = EnvSpec("Matrix", OBSERVATIONS[observation], ACTIONS[action][0])

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        return (jnp.int32(0), jax.random.bernoulli(key)), self._seen(key)

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        clock, cut = state
        last = clock == LENGTH - 1
        moved = replace(self._seen(key), reward=paid(action, jnp), terminated=last & ~cut, truncated=last & cut)
        return (clock + 1, cut), moved

    def _seen(self, key: jax.Array) -> Transition:
        obs = drawn(self.spec.observation_space, jax.random.uniform(key), jnp)
        return Transition(obs=obs, action_mask=mask_of(self.spec.action_space, jnp))


class Host(gymnasium.Env[Any, Any]):
    """The same for Gymnasium."""

    def __init__(self, observation: str, action: str) -> None:
        self.observation_space, self.action_space = OBSERVATIONS[observation], ACTIONS[action][0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.clock, self.cut = 0, bool(self.np_random.random() < 0.5)
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock += 1
        last = self.clock == LENGTH
        obs, info = self._seen()
        return obs, float(paid(action, np)), last and not self.cut, last and self.cut, info

    def _seen(self) -> tuple[Any, Any]:
        mask = mask_of(self.action_space, np)
        obs = drawn(self.observation_space, np.float32(self.np_random.random()), np)
        return obs, {} if mask is None else {"action_mask": mask.astype(np.int8)}


SMALL: dict[str, Any] = dict(
    num_envs=4,
    rollout_length=8,
    minibatch_size=16,
    epochs_per_update=2,
    hidden_sizes=[6],
    memory_size=5,
    eval_frequency=2,
    eval_episodes=3,
    total_timesteps=32 * 4,
    normalize_rewards=True,
    num_checkpoints=0,
    groups=1,
    workers=0,
    preset=False,
)


def rows(path: Path) -> list[dict[str, Any]]:
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if "time" not in name} for line in lines]


def check(tmp_path: Path, observation: str, action: str, memory: str, torso: str, kind: str, stack: int) -> None:
    given = ACTIONS[action][1] | {"memory": memory, "torso": torso, "frame_stack": stack}
    given |= {"embed": 3 if stack > 1 else None, "normalize_observations": observation != "image"}

    def make() -> Compiled | Host:
        return (Compiled if kind == "compiled" else Host)(observation, action)

    PPOTrainer(make(), out=tmp_path / "whole", **SMALL, **given).train()
    PPOTrainer(make(), out=tmp_path / "part", **SMALL, **given).train(lambda metrics: metrics["update"] < 2)
    trainer = PPOTrainer.resume(tmp_path / "part", make(), steps=64)
    trainer.train()
    whole = rows(tmp_path / "whole")
    assert len(whole) == 4
    for row in whole:
        for name in ("loss/objective", "loss/critic", "loss/entropy", "ppo/gradient_norm", "eval/return_mean"):
            assert (name.startswith("eval") and name not in row) or math.isfinite(row[name]), name
    assert rows(tmp_path / "part") == whole
    obs = jax.tree.map(np.asarray, trainer.agent.policy.observation_space.sample())  # stacked, where frames are
    acted = trainer.agent.act(obs)
    assert trainer.env.spec.action_space.contains(acted)
    assert isinstance(trainer.agent.value(obs), float)


CROSSED = list(itertools.product(OBSERVATIONS, ACTIONS, MEMORIES, TORSOS, KINDS))
ALL = [(*row, 1 + sum(map(len, row)) % 2) for row in CROSSED]  # stacked observations in about half of them


FEW = [
    ("dict", "hybrid", "gru", "separate", "compiled"),
    ("vector", "multi", "lstm", "shared", "host"),
]
"""In `make test`; the others in `make test-learning`."""


def test_the_matrix_is_whole() -> None:
    assert len(ALL) == 3 * 7 * 3 * 2 * 2
    assert set(FEW) < set(CROSSED)
    columns: list[Iterable[str]] = [OBSERVATIONS, ACTIONS, MEMORIES, TORSOS, KINDS]
    for column, names in enumerate(columns):
        assert {(row[column], row[-1]) for row in ALL} == set(itertools.product(names, STACKS))


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ALL if row[:-1] in FEW], ids=lambda row: "-".join(map(str, row)))
def test_combinations(tmp_path: Path, row: tuple[Any, ...]) -> None:
    check(tmp_path, *row)


@pytest.mark.learning
@pytest.mark.parametrize("row", [row for row in ALL if row[:-1] not in FEW], ids=lambda row: "-".join(map(str, row)))
def test_all_other_combinations(tmp_path: Path, row: tuple[Any, ...]) -> None:
    check(tmp_path, *row)
