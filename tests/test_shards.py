"""One learner on several devices: sums in order, and the same learning as on one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import probes
import team_probes
import test_update as one
from killed import assert_same_run
from proximo import PPOTrainer, settings
from proximo.config import Config
from proximo.envs.groups import ONE
from proximo.errors import TrainingError, UserError
from proximo.ppo import update as module
from proximo.ppo.types import LearnerLanes
from proximo.seeding import shard_key
from proximo.shards import (
    DIVIDED,
    DIVIDED_LATER,
    SAME,
    divided,
    local,
    need_devices,
    num_shards,
    own_key,
    own_shards,
    placed,
    side_by_side,
    spread,
    sum_over_shards,
)
from proximo.train import host_program, program
from proximo.train.host_program import shard_groups
from proximo.train.setup import given_by
from test_program import bits

SMALL = probes.PLAIN | dict(
    num_envs=4, rollout_length=16, minibatch_size=32, epochs_per_update=2, hidden_sizes=[8], eval_frequency=0
)


def test_sums_are_added_in_the_order_of_the_shards() -> None:
    """(1e8 - 1e8) + 1 is 1, and (1e8 + 1) - 1e8 is 0 in 32 bits. Whole numbers are added as such."""
    sums = divided(lambda x: sum_over_shards({"x": x.sum(), "n": jnp.int32(x.size)}), 3, DIVIDED, SAME)
    assert jax.tree.map(float, jax.jit(sums)(jnp.array([1e8, -1e8, 1.0]))) == {"x": 1.0, "n": 3}
    assert jax.tree.map(float, jax.jit(sums)(jnp.array([1e8, 1.0, -1e8]))) == {"x": 0.0, "n": 3}


def test_what_shards_have_stands_side_by_side_in_their_order() -> None:
    flags = jnp.array([[True, False, False], [False, True, True]])
    numbers = jnp.arange(6, dtype=jnp.float32).reshape(2, 3)
    together = divided(lambda tree: side_by_side(tree, axis=1), 3, (DIVIDED_LATER,), SAME)
    found = jax.jit(together)((numbers, flags))
    np.testing.assert_array_equal(found[0], numbers)
    np.testing.assert_array_equal(found[1], flags)


def test_outside_of_shards_nothing_is_divided() -> None:
    tree = {"x": jnp.ones(2)}
    assert num_shards() == 1
    assert sum_over_shards(tree) is tree
    assert side_by_side(tree) is tree
    assert placed(tree, 1) is spread(tree, 1, None) is tree
    key = jax.random.key(3)
    assert own_key(key) is key


def test_each_shard_draws_from_a_stream_of_its_own() -> None:
    drawn = divided(lambda key: jax.random.bits(own_key(key), (1,)), 3, SAME, DIVIDED)
    key = jax.random.key(3)
    found = jax.jit(drawn)(key).tolist()
    assert found == [int(jax.random.bits(shard_key(key, number), ())) for number in range(3)]
    assert len({*found, int(jax.random.bits(key, ()))}) == 4


def test_arrays_come_from_devices_as_they_went_there() -> None:
    tree = {"key": jax.random.key(5), "x": np.arange(6, dtype=np.float32).reshape(3, 2)}
    same, parts = placed(tree, 3), placed(tree["x"], 3, DIVIDED)
    assert bits(local(same)) == bits(tree)
    assert len(local(same)["x"].sharding.device_set) == 1
    np.testing.assert_array_equal(local(parts), tree["x"])
    np.testing.assert_array_equal(local(spread(tree["x"], 3, DIVIDED)), tree["x"])
    assert own_shards(3) == range(3)


def test_too_few_devices_are_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"train.shards=9 needs 9 devices, and JAX has 3 here.*JAX_NUM_CPU_DEVICES=9"):
        need_devices(9)


def shared(**keywords: Any) -> Config:
    return one.config_with(minibatch_size=one.N, normalize_advantages="minibatch", normalize_rewards=True, **keywords)


def test_an_update_in_shards_is_the_plain_one_to_rounding() -> None:
    """A minibatch is the whole batch here, so that each has the same samples whoever shuffles them. A step of the first
    lane does not count, so that shards count differently."""
    params = jax.tree.map(jnp.asarray, one.POLICY.init(jax.random.key(1)))
    plain, config = shared(), shared(shards=2)
    stats: Any = one.POLICY.initial_stats()
    state = one.begun(params, stats, plain)
    rollout = replace(one.ROLLOUT, valid=jnp.asarray(one.ROLLOUT.valid).at[1, 0].set(False))
    parts = (one.LANES.critic_carry, one.LANES.discounted, rollout.last_obs, rollout.carry)
    timed = replace(rollout, last_obs=None, carry=None)

    def updated(config: Config, state: Any, parts: Any, timed: Any) -> Any:
        critic_carry, discounted, last_obs, carry = parts
        rollouts = {ONE: replace(timed, last_obs=last_obs, carry=carry)}
        lanes = {ONE: LearnerLanes(critic_carry, discounted)}
        train, after, metrics = module.update(state, lanes, rollouts, None, one.POLICIES, config)
        return train, metrics, after[ONE].discounted

    whole = jax.jit(lambda *given: updated(plain, *given))(state, parts, timed)
    in_two = divided(lambda *given: updated(config, *given), 2, (SAME, DIVIDED, DIVIDED_LATER), (SAME, SAME, DIVIDED))
    found = jax.jit(in_two)(state, parts, timed)
    assert whole[1].keys() == found[1].keys()
    for path, leaf in jax.tree_util.tree_leaves_with_path(whole):
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            other = dict(jax.tree_util.tree_leaves_with_path(found))[path]
            np.testing.assert_allclose(other, leaf, rtol=2e-4, atol=2e-6, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (dict(num_envs=5), "train.shards=2 does not divide env.num_envs=5"),
        (dict(minibatch_size=1, normalize_advantages="none"), "train.shards=2 does not divide ppo.minibatch_size=1"),
        (
            dict(memory="gru", sequence_length=8, minibatch_size=8),
            "ppo.minibatch_size=8 has 1 sequences (ppo.sequence_length=8), which train.shards=2 does not divide",
        ),
    ],
)
def test_what_shards_cannot_have_equal_parts_of_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        settings.settle(settings.build(settings.from_keywords(SMALL | {"shards": 2} | given)), continuous=False)


def test_a_minibatch_that_is_left_open_can_be_divided() -> None:
    """6 environments of 10 steps: up to 256 samples, as many from each of 3 shards, is all 60; of a batch of 6 * 128 it
    is 3 * 64 (85 does not divide 256). With memory a quarter of 60, in sequences of 5 for each shard."""

    def chosen(**keywords: Any) -> Config:
        return settings.build(settings.from_keywords(dict(num_envs=6, shards=3) | keywords))

    assert chosen(rollout_length=10).minibatch_size == 60
    assert chosen(rollout_length=128).minibatch_size == 3 * 64
    remembering = chosen(rollout_length=10, memory="gru")
    assert (remembering.minibatch_size, remembering.sequence_length) == (15, 5)


def test_groups_of_a_shard_are_equal() -> None:
    assert [shard_groups(num, 2) for num in (1, 2, 3, 8)] == [1, 2, 1, 2]


def trainer(path: Path, env: Any, **keywords: Any) -> PPOTrainer:
    return PPOTrainer(env, out=path, preset=False, console=probes.Notes(), **(SMALL | dict(shards=2) | keywords))


NORMAL = dict(normalize_observations=True, normalize_rewards=True)
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "everything": (probes.Everything(), dict(memory="gru", **NORMAL)),
    "self-play": (team_probes.RockPaperScissors(), dict(selfplay=0.5, selfplay_every=2, selfplay_pool=2)),
    "host": ("CartPole-v1", dict(workers=2, memory="gru", **NORMAL)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_in_shards_is_resumed_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    env, own = KINDS[kind]
    trainer(tmp_path / "whole", env, total_timesteps=64 * 4, **own).train()
    first = trainer(tmp_path / "cut", env, total_timesteps=64 * 4, **own)
    result = first.train(probes.EachUpdate(lambda metrics: metrics["update"] < 2))
    assert (result["stop_reason"], result["updates"]) == ("callback", 2)
    again = PPOTrainer.resume(tmp_path / "cut", env, steps=64 * 2, console=probes.Notes())
    assert again.train()["resumed"] == [{"step": 64 * 2, "exact": True}]
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.slow
def test_a_loss_of_ones_own_that_is_not_finite_in_one_shard_is_named(tmp_path: Path) -> None:
    def bad(outputs: Any, samples: Any, hyper: Any) -> Any:
        second = jax.lax.axis_index("shard") == 1
        return {"mine": (1.0, jnp.where(second, jnp.log(-1 - jnp.square(outputs.value)), outputs.value))}

    with pytest.raises(TrainingError, match=r"In update 1 the loss/mine is not finite \(loss/mine = nan\)"):
        trainer(tmp_path / "run", probes.OneStep(), loss=bad, total_timesteps=64).train()


def test_host_environments_are_not_divided_with_self_play(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train.shards=2 does not go with agents.selfplay on pettingzoo/classic"):
        trainer(tmp_path / "run", "pettingzoo/classic.tictactoe_v3", selfplay=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_training_program_lowers_for_accelerators(kind: str, shards: int, tmp_path: Path) -> None:
    env, own = KINDS[kind]
    if kind == "host":
        own = own | dict(workers=0)
    lowered = []

    def lower(_: Any, function: Any, *given: Any) -> Any:
        exported = jax.export.export(jax.jit(function), platforms=["cuda", "tpu"])(*given)
        lowered.append(exported.platforms)
        return jax.jit(function).lower(*given).compile() if len(lowered) == 1 else None

    with pytest.MonkeyPatch.context() as patch, trainer(tmp_path / "run", env, shards=shards, **own) as one:
        for module in (program, host_program):
            patch.setattr(module, "compiled", lower)
        state = one.program.init(given_by(one._agents))
        one.program.compile(state)
    assert lowered == [("cuda", "tpu")] * 2  # how it starts, and its updates
