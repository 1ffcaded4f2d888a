"""Presets are found by the ids of environments."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from proximo import PPOTrainer, settings
from proximo.errors import UserError
from proximo.policy.observation import ObservationAdapter
from proximo.presets import ATARI, choose_preset, find_preset, without_preset

NATURE = [(8 * 8 * 4, 32), (4 * 4 * 32, 64), (3 * 3 * 64, 64)]
"""Weights of the three layers that read a screen of four frames; 84 x 84 becomes 20 x 20, 9 x 9, 7 x 7."""


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "envpool/Pong-v5", "envpool/Breakout-v5"])
def test_atari_has_the_usual_settings_wherever_it_comes_from(env_id: str) -> None:
    config = settings.build(find_preset(env_id))
    assert (config.network.hidden_sizes, config.network.activation) == ((512,), "relu")
    assert (config.normalize.clip_rewards, config.ppo.clip_epsilon) == (1.0, 0.1)


@pytest.mark.parametrize("env_id", ["envpool/HalfCheetah-v5", "envpool/Nothing-v5", "envpool/Pong-v4", "Pong-v5"])
def test_what_is_no_atari_game_has_none(env_id: str) -> None:
    assert find_preset(env_id) == {}


def test_the_games_are_those_that_envpool_has() -> None:
    pytest.importorskip("envpool")
    from envpool.registration import registry

    games = {name for name, (module, *_) in registry.specs.items() if module == "envpool.atari"}
    assert games == {f"{name}-v5" for name in ATARI}


def test_a_name_stands_for_every_environment_and_a_wrong_one_is_refused() -> None:
    assert choose_preset("documents", "gymnax/CartPole-v1") == choose_preset("documents", "Own-v0")
    assert choose_preset(False, "CartPole-v1") == {}
    assert choose_preset(True, "CartPole-v1") == find_preset("CartPole-v1") != {}
    assert choose_preset("documents", "Own-v0")["normalize.observations"] is False
    assert find_preset("documents") == {}
    with pytest.raises(UserError, match="no preset document; did you mean documents"):
        choose_preset("document", "CartPole-v1")


def test_a_run_without_preset_says_what_it_trains_with() -> None:
    config = settings.build({"env.num_envs": 4, "ppo.rollout_length": 32, "ppo.minibatch_size": 64})
    config = settings.build(
        {"normalize.observations": True, "normalize.rewards": False, "env.id": "Own-v0"}, base=config
    )
    said = without_preset(settings.settle(config, continuous=False), "Change it.")
    assert said.startswith("Own-v0 has no preset, so the defaults are used (4 x 32 steps per update")
    assert "minibatches of 64" in said
    assert "entropy bonus 0.01, observations standardised). Change it." in said
    assert "\n" not in said
    left = without_preset(settings.settle(settings.build({"env.id": "CartPole-v1"}), continuous=False), "")
    assert left.startswith("The preset for CartPole-v1 is left out, so the defaults are used (16 x 128 steps")


@pytest.mark.slow
@pytest.mark.parametrize("preset", [True, False])
def test_a_cnn_reads_the_screens_of_envpool(preset: bool) -> None:
    """With its preset, and without: channels come first there, and must not be taken for rows."""
    pytest.importorskip("envpool")
    trainer = PPOTrainer("envpool/Pong-v5", preset=preset, num_envs=2, minibatch_size=16, hidden_sizes=[8])
    space = trainer.env.spec.observation_space
    assert space.shape == (4, 84, 84)
    assert space.dtype == np.uint8
    shapes = [leaf.shape for leaf in jax.tree.leaves(trainer.agent.params["critic"]) if leaf.ndim == 2]
    assert sorted(shapes) == sorted([*NATURE, (7 * 7 * 64, 8), (8, 1)])
    frames = np.zeros((1, 4, 84, 84), np.uint8)
    frames[0, 3, 10, 20] = 255
    (image,) = ObservationAdapter(space)(frames).images
    assert image.shape == (1, 84, 84, 4)
    assert np.argwhere(np.asarray(image)).tolist() == [[0, 10, 20, 3]]
    assert float(image.max()) == 1.0
