"""Between collecting and learning: rewards across groups, whose actions are learned from, and what critics see."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from proximo.config import AgentsConfig, NetworkConfig, NormalizeConfig
from proximo.envs.groups import Group, Groups, one_group
from proximo.multi_agent.prepare import prepare, settled
from proximo.multi_agent.self_play import make_behaviour
from proximo.policy.behaviour import Behaviour
from proximo.policy.networks import Network
from proximo.policy.policies import Policies
from proximo.policy.policy import Policy
from proximo.ppo.update import initial_lanes, initial_train_state, to_lanes, training_samples
from proximo.rollout.types import CriticState, Episodes, Experience, Rollout
from proximo.settings import build

SEEN = spaces.Box(-100, 100, (1,), np.float32)
DONE: spaces.Space[Any] = spaces.Discrete(2)
WOLVES = Groups({"wolf": Group(("w_0", "w_1"), SEEN, DONE), "hare": Group(("h",), SEEN, DONE)}, many=True)
"""Two wolves and a hare: of E environments 2 E lanes, and E."""


def rollout_of(reward: Any, present: Any = None, **changes: Any) -> Rollout:
    """A rollout [T, L] in which nothing ends, and everybody acts who is there."""
    reward = jnp.array(reward, jnp.float32)
    no, seen = jnp.zeros(reward.shape, bool), jnp.zeros((*reward.shape, 1))
    there = None if present is None else jnp.array(present, bool)
    given = dict(
        obs=seen,
        action_mask=None,
        action=jnp.zeros(reward.shape, jnp.int32),
        reward=reward,
        terminated=no,
        truncated=no,
        valid=~no if there is None else there,
        final_obs=seen,
        last_obs=seen[0],
        carry=(),
        present=there,
        alive=there,
        acts=None if there is None else there[-1],
    )
    return Rollout(**given | changes)


NO_EPISODES = Episodes(np.zeros((1, 2), np.int32), np.zeros((1, 2), np.float32), np.zeros((1, 2), bool), {})


def behaviour_of(groups: Groups, agents: AgentsConfig, num_envs: int = 2, own: Any = None) -> Behaviour:
    plain = NormalizeConfig(observations=False, rewards=False)
    return make_behaviour(Policies(groups, NetworkConfig(), plain, agents, own), num_envs)


def hunt() -> Experience:
    """One step of two environments; in the second, w_1 is not there."""
    wolves = rollout_of([[1, 3, 5, 0]], present=[[True, True, True, False]])
    return Experience({"wolf": wolves, "hare": rollout_of([[2, 9]], present=[[True, True]])}, None, NO_EPISODES)


@pytest.mark.parametrize(
    ("settings", "wolves", "hares"),
    [
        ({"reward": "own"}, [1, 3, 5, 0], [2, 9]),
        # (1 + 3 + 2) / 3, and (5 + 9) / 2 of the two who are there
        ({"reward": "team"}, [2, 2, 7, 0], [2, 7]),
        # w_0 and h against w_1: (1 + 2) / 2 and 3; (5 + 9) / 2, and nobody
        (
            {"reward": "team", "selfplay": 1.0, "sides": {"ones": ("w_0", "h"), "twos": ("w_1",)}},
            [1.5, 3, 7, 0],
            [1.5, 7],
        ),
        # groups are the sides where none are named: the wolves (1 + 3) / 2 and 5
        ({"reward": "team", "selfplay": 1.0}, [2, 2, 5, 0], [2, 9]),
    ],
)
def test_rewards_to_learn_from(settings: dict[str, Any], wolves: list[Any], hares: list[Any]) -> None:
    behaviour = behaviour_of(WOLVES, AgentsConfig(**settings))
    # Compiled too: what comes out of a program has its groups in the order of the alphabet, the hare first.
    for call in (prepare, jax.jit(prepare, static_argnums=1)):
        prepared, _ = call(hunt(), behaviour)
        np.testing.assert_array_equal(prepared["wolf"].reward, [wolves])
        np.testing.assert_array_equal(prepared["hare"].reward, [hares])


def test_a_side_wins_by_the_returns_of_its_own_agents() -> None:
    """The sides are the wolves, who learn in the first environment, and the hare, who does in the second: 2 and 4
    against 1 is a win of the wolves; 2 and 4 against 3 a draw; in the second environment 0 against 3 is the hare's."""
    behaviour = behaviour_of(WOLVES, AgentsConfig(selfplay=1.0))
    members = {"wolf": jnp.array([[[2.0, 4], [0, 0]], [[2, 4], [9, 9]]]), "hare": jnp.array([[[1.0], [3]], [[3], [8]]])}
    episodes = Episodes(jnp.ones((2, 2), jnp.int32), jnp.zeros((2, 2)), jnp.zeros((2, 2), bool), members)
    for call in (behaviour.scored, jax.jit(behaviour.scored)):
        np.testing.assert_array_equal(call(episodes).score, [[1, 1], [0.5, 0]])


def test_only_those_learn_who_play_by_the_policies_that_do() -> None:
    """In the first environment only the side of w_0 and h does, in the second all who are there."""
    sides = {"ones": ("w_0", "h"), "twos": ("w_1",)}
    prepared, _ = prepare(hunt(), behaviour_of(WOLVES, AgentsConfig(selfplay=0.5, sides=sides)))
    np.testing.assert_array_equal(prepared["wolf"].valid, [[True, False, True, False]])
    np.testing.assert_array_equal(prepared["hare"].valid, [[True, True]])


def test_which_actions_are_settled() -> None:
    """Four steps. Lane 0 acts at 0 and 2, and is not on turn at the cut: what comes of 2 is not known. Lane 1 is, so
    all is known. Lane 2 acts at 1, and the game ends with 3. In lane 3 a game ends with 1, and 2 has begun another."""
    acted = np.array([[1, 1, 0, 1], [0, 0, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]], bool)
    ended = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0]], bool)
    acts = jnp.array([False, True, False, False])
    changes = {"valid": jnp.array(acted), "terminated": jnp.array(ended), "acts": acts}
    found = settled(rollout_of(np.zeros((4, 4)), np.ones((4, 4)), **changes))
    np.testing.assert_array_equal(np.asarray(found)[acted], [True, True, True, True, False, False])
    np.testing.assert_array_equal(found[:, 0], [True, True, False, False])
    np.testing.assert_array_equal(found[:, 1], [True, True, True, True])
    np.testing.assert_array_equal(found[:, 2], [True, True, True, True])


def test_one_agent_learns_from_what_it_did() -> None:
    """Nothing is shared, and nothing is ever unsettled."""
    behaviour = behaviour_of(one_group(SEEN, DONE), AgentsConfig())
    rollout = rollout_of([[1, 2], [3, 4]])
    prepared, critic_state = prepare(Experience({"agent": rollout}, None, NO_EPISODES), behaviour)
    assert critic_state is None
    assert prepared["agent"].settled is None
    np.testing.assert_array_equal(prepared["agent"].reward, rollout.reward)
    assert prepared["agent"].valid.all()


# ---- what is seen


PAIR = Groups({"all": Group(("left", "right"), spaces.Discrete(16), DONE)}, spaces.Box(-100, 100, (1,)), many=True)


def test_agents_see_who_they_are_and_critics_the_state_of_their_environment() -> None:
    policies = Policies(PAIR, NetworkConfig(), NormalizeConfig(), AgentsConfig(critic="central", identity=True))
    signs, state = jnp.array([[3, 5, 7, 2]], jnp.int32), jnp.array([[[1.0], [-1.0]]])
    seen = {"obs": signs, "final_obs": signs + 1, "last_obs": signs[0] + 2}
    rollout = rollout_of([[0, 0, 0, 0]], np.ones((1, 4)), **seen)
    told = Experience({"all": rollout}, CriticState(state, state, state[0]), NO_EPISODES)
    prepared, critic_state = prepare(told, make_behaviour(policies, 2))
    part = prepared["all"]
    np.testing.assert_array_equal(part.obs["observation"], [[3, 5, 7, 2]])
    np.testing.assert_array_equal(part.final_obs["observation"], [[4, 6, 8, 3]])
    np.testing.assert_array_equal(part.last_obs["observation"], [5, 7, 9, 4])
    for who in (part.obs["agent"][0], part.final_obs["agent"][0], part.last_obs["agent"]):
        np.testing.assert_array_equal(who, [0, 1, 0, 1])
    assert critic_state is not None
    np.testing.assert_array_equal(to_lanes(critic_state.seen, 4, axis=1)[0, :, 0], [1, 1, -1, -1])
    np.testing.assert_array_equal(to_lanes(critic_state.last, 4)[:, 0], [1, 1, -1, -1])


def test_without_a_state_a_central_critic_sees_what_all_see() -> None:
    """Of two environments: agent i of environment e sees 10 e + i, the hare being the last."""
    policies = Policies(WOLVES, NetworkConfig(), NormalizeConfig(), AgentsConfig(critic="central"))
    wolves, hares = (jnp.array(numbers, jnp.float32)[None, :, None] for numbers in ([0, 1, 10, 11], [2, 12]))
    groups = {
        name: rollout_of(np.zeros(seen.shape[:2]), obs=seen, final_obs=seen + 100, last_obs=seen[0] + 200)
        for name, seen in (("wolf", wolves), ("hare", hares))
    }
    _, critic_state = prepare(Experience(groups, None, NO_EPISODES), make_behaviour(policies, 2))
    for number, agent in enumerate(("w_0", "w_1", "h")):
        expected = np.array([[number], [10 + number]])
        assert critic_state is not None
        np.testing.assert_array_equal(critic_state.seen[agent], expected[None])
        np.testing.assert_array_equal(critic_state.final[agent], expected[None] + 100)
        np.testing.assert_array_equal(critic_state.last[agent], expected + 200)


def sums(policy: Policy) -> dict[str, Any]:
    """A critic that expects the sum of all that it sees."""
    actor = Network(lambda key, x: ({}, ()), lambda params, carry, x: (carry, jnp.zeros((len(x.vector), 2))))
    critic = Network(lambda key, x: ({}, ()), lambda params, carry, x: (carry, x.vector.sum(-1, keepdims=True)))
    return {"actor": actor, "critic": critic}


@pytest.mark.slow
@pytest.mark.parametrize("num_agents", [1, 2])
def test_values_by_the_state_of_the_environment_at_the_time(num_agents: int) -> None:
    """Two steps of two environments, of one agent or two. Values are what the state says. gamma = 1/2, lambda = 0, all
    are paid 1: the target is 1 and half of what follows, in environment 0, which is cut, the last state of the episode
    (50), in environment 1 that after the rollout (70)."""
    space = spaces.Box(0, 100, (1,), np.float32)
    groups = one_group(SEEN, DONE, critic_state_space=space)
    if num_agents == 2:
        groups = Groups({"agent": Group(("a", "b"), SEEN, DONE)}, space, many=True)
    config = build({"ppo.gamma": 0.5, "ppo.gae_lambda": 0.0, "ppo.normalize_advantages": "none"})
    behaviour = behaviour_of(groups, AgentsConfig(critic="central" if num_agents == 2 else "own"), own=sums)
    policies = behaviour.policies
    train = initial_train_state(policies.init(jax.random.key(0)), policies.initial_stats(), config, {})
    cut = jnp.zeros((2, 2 * num_agents), bool).at[1, :num_agents].set(True)

    def column(*rows: Any) -> jax.Array:
        return jnp.array(rows, jnp.float32)[..., None]

    state = CriticState(column([10, 20], [30, 40]), column([0, 0], [50, 0]), column(60, 70))
    told = Experience({"agent": rollout_of(np.ones((2, 2 * num_agents)), truncated=cut)}, state, NO_EPISODES)
    rollouts, critic_state = prepare(told, behaviour)
    part = rollouts["agent"]
    lanes = initial_lanes(policies, 2)["agent"]
    given = (train.groups["agent"], lanes, part, critic_state, part.reward, policies["agent"], config)
    samples, _ = training_samples(*given)

    def each(numbers: list[float]) -> np.ndarray:
        return np.repeat(numbers, num_agents)

    np.testing.assert_array_equal(samples.env_row, each([0, 1, 2, 3]))
    np.testing.assert_array_equal(samples.value, each([10, 20, 30, 40]))
    np.testing.assert_array_equal(samples.target, each([1 + 30 / 2, 1 + 40 / 2, 1 + 50 / 2, 1 + 70 / 2]))
