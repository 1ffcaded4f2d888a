"""What a run needs, counted before anything is allocated."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from proximo import settings
from proximo.envs.groups import one_group
from proximo.errors import UserError
from proximo.train import needs
from proximo.train.needs import check_needs


def check(observation: spaces.Space[Any] | None = None, action: spaces.Space[Any] | None = None, **values: Any) -> None:
    observation = observation or spaces.Box(-1, 1, (100,), np.float32)
    config = settings.build({name.replace("__", "."): value for name, value in values.items()})
    check_needs("Env-v0", one_group(observation, action or spaces.Discrete(2)), config)


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "total_memory", lambda: 10**6)


def test_samples_are_counted() -> None:
    """Each has 100 numbers of 4 bytes, and 24 bytes besides: 2,358 of them are a megabyte."""
    sizes: dict[str, Any] = dict(env__num_envs=2, ppo__minibatch_size=2, network__hidden_sizes=(8,))
    check(ppo__rollout_length=1179, **sizes)
    with pytest.raises(UserError, match=r"The 2,360 samples .* each of 424 bytes or more, need 0\.0 GB"):
        check(ppo__rollout_length=1180, **sizes)


def test_weights_are_counted() -> None:
    """Two networks of 100 * w weights, 16 bytes each: 312 make a megabyte."""
    sizes: dict[str, Any] = dict(env__num_envs=1, ppo__minibatch_size=2, ppo__rollout_length=2)
    check(network__hidden_sizes=(312,), **sizes)
    with pytest.raises(UserError, match=r"network.hidden_sizes=\[313\], 62,600 weights or more"):
        check(network__hidden_sizes=(313,), **sizes)
    check(network__hidden_sizes=(624,), network__torso="shared", **sizes)
    check(spaces.Box(0, 255, (84, 84, 4), np.uint8), network__hidden_sizes=(512,), **sizes)  # an encoder comes first


@pytest.mark.parametrize("space", [spaces.Discrete(2**40), spaces.MultiDiscrete([2**40, 2])])
def test_spaces_that_are_too_large(space: spaces.Space[Any]) -> None:
    with pytest.raises(UserError, match=r"Env-v0 cannot be trained on with its observation space .*Discrete"):
        check(space)
    with pytest.raises(UserError, match="its action space"):
        check(action=space)


@pytest.mark.slow
def test_spaces_that_cannot_be_saved() -> None:
    with pytest.raises(UserError, match="cannot be saved with a policy"):
        check(spaces.Graph(gymnasium.spaces.Discrete(2), None))
