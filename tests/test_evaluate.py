"""The evaluator: quotas, determinism, frozen training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from proximo import PPOAgent, PPOTrainer
from proximo.envs.api import Transition
from proximo.evaluate import MAX_LANES, Evaluator


class Lengths(probes.Counter):
    """Each episode lasts as long as its cue says (2 or 6 steps), 1 a step: short and long ones mix."""

    name = "lengths"

    def step(self, key, state, action):
        clock, cue = state[0] + 1, state[1]
        done = clock >= jnp.where(cue > 0, 6, 2)
        return (clock, cue), Transition(obs=self.observe(clock, cue), reward=1.0, terminated=done)


def evaluate(env, episodes, seed=0, max_steps=None):
    agent = PPOAgent(env.spec.observation_space, env.spec.action_space)
    return Evaluator(env, agent.policy, episodes, max_steps, seed)(agent.params, None)


def test_every_lane_plays_its_quota():
    played = evaluate(Lengths(), 150)
    assert len(played.returns) == 150
    assert set(played.lengths.tolist()) == {2, 6}
    np.testing.assert_array_equal(played.returns, played.lengths)
    # A fair coin decides each episode: 150 of them average 4, with a deviation of 2 / sqrt(150) = 0.16. Taking the
    # first 150 that finish would favour the short ones.
    assert played.lengths.mean() == pytest.approx(4, abs=0.7)


@pytest.mark.parametrize("episodes", [1, 3, MAX_LANES + 1])
def test_any_number_of_episodes(episodes):
    assert evaluate(Lengths(), episodes).summary()["episodes"] == episodes


def test_the_same_seed_gives_the_same_episodes():
    first, again, other = (evaluate(Lengths(), 40, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.lengths, again.lengths)
    assert not np.array_equal(first.lengths, other.lengths)


def test_an_environment_that_never_ends_is_cut():
    played = evaluate(probes.Counter(), 2, max_steps=30)
    assert played.lengths.tolist() == [30, 30]
    assert played.returns.tolist() == [465.0, 465.0]  # 1 + 2 + ... + 30


def test_summary_numbers():
    played = evaluate(probes.OneStep(), 4).summary()
    assert played == {
        "episodes": 4,
        "return_mean": 1.0,
        "return_std": 0.0,
        "return_min": 1.0,
        "return_max": 1.0,
        "length_mean": 1.0,
    }


@pytest.mark.slow
def test_evaluating_does_not_change_training(tmp_path):
    settings = dict(num_envs=4, rollout_length=16, minibatch_size=32, epochs_per_update=2, total_timesteps=64 * 6)

    def params(frequency):
        trainer = PPOTrainer(
            env="gymnax/CartPole-v1", preset=False, out=tmp_path / str(frequency), eval_frequency=frequency, **settings
        )
        trainer.train()
        return trainer.agent.params

    for with_it, without in zip(jax.tree.leaves(params(2)), jax.tree.leaves(params(0)), strict=True):
        np.testing.assert_array_equal(with_it, without)
