"""The JaxMARL adapter: what it reports is what JaxMARL does, lifetimes and ends, masks, auto-reset, seeding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from proximo import PPOTrainer
from proximo.config import AgentsConfig
from proximo.envs import make
from proximo.envs.compiled.foreign import lenient
from proximo.envs.compiled.jaxmarl import jaxmarl, names
from proximo.envs.compiled.lanes import Lanes
from proximo.errors import UserError

LANES = 4
SOME = {"MPE_simple_spread_v3", "MPE_simple_tag_v3", "HeuristicEnemySMAX-3m"}
IDS = [name for name in names() if "SMAX-" not in name or name.endswith("-3m")]
EACH = [pytest.param(name, marks=pytest.mark.slow if name in SOME else pytest.mark.learning) for name in IDS]


def legal(env, key, mask):
    """Random actions [LANES, ...] of all groups, of those that the mask [LANES, M] allows."""
    if mask is None:
        return jax.tree.map(jnp.asarray, stacked([env.spec.action_space.sample() for _ in range(LANES)]))
    (group,) = env.spec.team.groups
    flags = mask.reshape(LANES, len(env.spec.team.agents), -1)
    return {group: jax.random.categorical(key, jnp.where(flags, 0.0, -jnp.inf)).astype(jnp.int32)}


def stacked(samples):
    return jax.tree.map(lambda *rows: np.stack(rows), *samples)


def play(env, steps, seed=0, max_steps=None):
    """The first timestep, and all after it [steps, LANES, ...], with random actions."""
    lanes = Lanes(env, LANES, max_steps)
    env.spec.action_space.seed(0)
    step = jax.jit(lanes.step)
    state, first = jax.jit(lanes.reset)(jax.random.key(seed))
    now, seen = first, []
    for number in range(steps):
        key = jax.random.fold_in(jax.random.key(seed), number)
        state, now = step(key, state, legal(env, key, now.action_mask))
        seen.append(jax.device_get(now))
    return jax.device_get(first), stacked(seen)


@pytest.mark.parametrize("name", EACH)
def test_contract(name):
    env = make(f"jaxmarl/{name}")
    first, rest = play(env, 16, max_steps=5)
    agents = len(env.spec.team.agents)
    for part in (rest.reward, rest.terminated, rest.truncated, rest.valid, rest.absent):
        assert part.shape == (16, LANES, agents)
    assert np.isfinite(rest.reward).all()
    assert rest.over.any(0).all(), "with a limit of 5 steps every lane must see an end"
    ended = rest.terminated | rest.truncated
    assert not (rest.terminated & rest.truncated).any()
    assert not (ended & ~rest.valid).any(), "only who took part can come to an end"
    assert (rest.reward[~rest.valid] == 0).all()
    # Whoever took part when it was over has an end; whoever had one is not there after it.
    assert ended[rest.over[..., None] & rest.valid].all()
    assert rest.absent[ended].all()
    # In the first step of an episode all are there; after an end nobody is until the next one.
    assert first.absent.sum() == 0
    for t in range(1, 16):
        expected = np.where(rest.over[t - 1][:, None], True, ~rest.absent[t - 1])
        np.testing.assert_array_equal(rest.valid[t], expected)
    again = play(env, 16, max_steps=5)[1]
    np.testing.assert_array_equal(rest.reward, again.reward)
    other = play(env, 16, seed=1, max_steps=5)[0]
    if name in SOME:
        differs = [(a != b).any() for a, b in zip(jax.tree.leaves(first.obs), jax.tree.leaves(other.obs), strict=True)]
        assert any(differs)


@pytest.mark.slow
def test_it_is_what_jaxmarl_does():
    """Step by step beside JaxMARL itself, without its reset."""
    theirs, ours = jaxmarl.make("MPE_simple_tag_v3"), make("jaxmarl/MPE_simple_tag_v3")
    key = jax.random.key(3)
    with lenient():
        obs, their_state = theirs.reset(key)
    state, first = ours.reset(key)
    np.testing.assert_array_equal(first.obs["agents"]["agent"][0], obs["agent_0"])
    ours.spec.action_space.seed(0)
    for number in range(26):
        action = ours.spec.action_space.sample()
        named = {agent: action["adversary"][i] for i, agent in enumerate(ours.team.groups["adversary"])}
        named["agent_0"] = action["agent"][0]
        with lenient():
            obs, their_state, reward, done, _ = theirs.step_env(key, their_state, named)
        state, moved = ours.step(key, state, jax.tree.map(jnp.asarray, action))
        for i, agent in enumerate(ours.team.groups["adversary"]):
            np.testing.assert_array_equal(moved.obs["agents"]["adversary"][i], obs[agent])
        np.testing.assert_allclose(moved.reward, [reward[agent] for agent in ours.team.agents], rtol=1e-6)
        assert bool(moved.over) == bool(done["__all__"]) == (number == 25)
    # Its only end is that of time.
    assert moved.truncated.all()
    assert not moved.terminated.any()


@pytest.mark.slow
def test_the_dead_of_a_battle_count_for_nothing():
    """In SMAX units die one by one, and a battle that is won or lost is a termination for those who are left."""
    _, rest = play(make("jaxmarl/HeuristicEnemySMAX-3m"), 60)
    died = rest.terminated & ~rest.over[..., None]
    assert died.any(), "in 60 steps some unit must die before its battle is over"
    t, lane, agent = np.argwhere(died)[0]
    end = t + np.flatnonzero(rest.over[t:, lane])[0]
    assert not rest.valid[t + 1 : end + 1, lane, agent].any()
    assert not rest.reward[t + 1 : end + 1, lane, agent].any()
    assert rest.valid[end + 1, lane, agent]
    last = rest.over[..., None] & rest.valid
    assert rest.terminated[last].any()


def test_a_state_for_central_critics():
    env = make("jaxmarl/HeuristicEnemySMAX-3m").arranged(AgentsConfig(critic="central"))
    assert env.spec.team.state_space.shape == env.reset(jax.random.key(0))[1].obs["state"].shape


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("MPE_simple_spred_v3", "did you mean jaxmarl/MPE_simple_spread_v3"),
        ("storm", "cannot be used by its name: it does not report by agent"),
        ("LearnedPolicyEnemySMAX", "needs a policy"),
    ],
)
def test_names_that_cannot_be(name, sentence):
    with pytest.raises(UserError, match=sentence):
        make(f"jaxmarl/{name}")


@pytest.mark.learning
def test_smax_trains(tmp_path):
    trainer = PPOTrainer(
        jaxmarl.make("HeuristicEnemySMAX"),
        out=tmp_path / "run",
        console=probes.Notes(),
        num_envs=4,
        rollout_length=16,
        minibatch_size=32,
        epochs_per_update=2,
        total_timesteps=192,
        eval_episodes=2,
        max_steps_per_episode=20,
        critic="central",
        memory="gru",
        reward="team",
    )
    result = trainer.train()
    assert result["total_steps"] == 192
    assert result["final_eval"]["length_mean"] <= 20
