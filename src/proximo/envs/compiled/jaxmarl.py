"""JaxMARL environments: `jaxmarl/MPE_simple_spread_v3`, SMAX in a scenario such as `jaxmarl/HeuristicEnemySMAX-3m`, or
an environment object of its class.

They are stepped without JaxMARL's own reset, so that the last observation of an episode is known. JaxMARL does not tell
the end of time from other ends: an episode that is over after `max_steps` steps is taken to be cut (truncated). Agents
that are done before that are dead until the next episode.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from proximo.envs.api import Roster, TeamTransition
from proximo.envs.arguments import arguments_key, made_with
from proximo.envs.compiled.agents import ManyAgents
from proximo.envs.compiled.foreign import lenient, unknown
from proximo.envs.keys import Stated
from proximo.errors import UserError
from proximo.types import PyTree, Struct

# It greets, and what it imports puts a redirected standard output back, which is redirected again afterwards.
with mock.patch("builtins.print"), contextlib.redirect_stdout(sys.stdout), lenient():
    import jaxmarl
    from jaxmarl.environments import spaces as theirs
    from jaxmarl.environments.multi_agent_env import MultiAgentEnv
    from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO

EVERYTHING, STATE = "__all__", "world_state"
SCENARIOS = ("SMAX", "HeuristicEnemySMAX")
UNUSABLE = {
    "LearnedPolicyEnemySMAX": "needs a policy, and is made in Python",
    "storm": "does not report by agent",
    "storm_2p": "does not report by agent",
    "storm_np": "does not report by agent",
}
ROBOTS = "JaxRobotarium"


def names() -> list[str]:
    robots = importlib.util.find_spec(ROBOTS.lower()) is not None
    plain = [name for name in jaxmarl.registered_envs if name not in UNUSABLE and (robots or ROBOTS not in name)]
    return sorted([*plain, *(f"{name}-{scenario}" for name in SCENARIOS for scenario in MAP_NAME_TO_SCENARIO)])


def make(name: str, /, **kwargs: Any) -> ManyAgents:
    """The registered environment `name`, made with `kwargs`."""
    kind, dash, scenario = name.partition("-")
    options: dict[str, Any] = {}
    if kind in SCENARIOS and dash and scenario in MAP_NAME_TO_SCENARIO:
        options["scenario"] = jaxmarl.environments.smax.map_name_to_scenario(scenario)  # type: ignore[no-untyped-call]
    elif name not in jaxmarl.registered_envs:
        raise unknown("jaxmarl", name, names())
    elif name in UNUSABLE:
        raise UserError(f"jaxmarl/{name} cannot be used by its name: it {UNUSABLE[name]}.")
    env_id = f"jaxmarl/{name}"
    try:
        with made_with(env_id, kwargs), lenient():
            env = jaxmarl.make(kind if options else name, **options, **kwargs)
            return ManyAgents(JaxMarlEnv(env, env_id, arguments_key(env_id, kwargs)))
    except (ImportError, ValueError) as error:
        raise UserError(f"{env_id} cannot be made here: {error}") from None


def accepts(env: Any) -> bool:
    return isinstance(env, MultiAgentEnv)


def wrap(env: MultiAgentEnv) -> ManyAgents:
    return ManyAgents(JaxMarlEnv(env, f"jaxmarl/{type(env).__name__}"))


class State(Struct):
    env: PyTree
    length: jax.Array  # int32 steps of the episode


class JaxMarlEnv:
    """A JaxMARL environment as a `JaxTeamEnv`."""

    def __init__(self, env: MultiAgentEnv, env_id: str, key: str | None = None):
        """`key` is all that it was made from, where it was made by its name."""
        self.env, self.id = env, env_id
        self.agents = tuple(env.agents)
        limit = getattr(env, "max_steps", None)
        self.max_steps: int | None = None if limit is None else int(limit)
        with lenient():
            seen, state = jax.eval_shape(env.reset, jax.random.key(0))
        self._masked = self._mask_method(state)
        self.roster = Roster(
            observation_spaces={a: _seen_space(env.observation_space(a), seen[a]) for a in self.agents},
            action_spaces={a: _action_space(env.action_space(a), env_id) for a in self.agents},
            critic_state_space=_box(seen[STATE], -np.inf, np.inf) if STATE in seen else None,
        )
        self.stated = Stated(self, key or env_id, inside=None if key else env, held=env)

    def reset(self, key: jax.Array) -> tuple[State, TeamTransition]:
        with lenient():
            obs, state = self.env.reset(key)
            masks = self._masks(state)
        no = dict.fromkeys(self.agents, False)
        zero = dict.fromkeys(self.agents, 0.0)
        yes = dict.fromkeys(self.agents, True)
        first = TeamTransition(
            self._seen(obs), zero, no, no, yes, action_mask=masks, critic_state=obs.get(STATE), over=False
        )
        return State(state, jnp.int32(0)), first

    def step(self, key: jax.Array, state: State, actions: dict[str, PyTree]) -> tuple[State, TeamTransition]:
        with lenient():
            obs, inner, reward, done, info = self.env.step_env(key, state.env, actions)
            masks = self._masks(inner)
        length = state.length + 1
        over = jnp.asarray(done[EVERYTHING], bool)
        late = over & (length >= (np.iinfo(np.int32).max if self.max_steps is None else self.max_steps))
        ended = {agent: jnp.asarray(done[agent], bool) | over for agent in self.agents}
        moved = TeamTransition(
            obs=self._seen(obs),
            reward={agent: jnp.asarray(reward[agent], jnp.float32).reshape(()) for agent in self.agents},
            terminated={agent: flag & ~late for agent, flag in ended.items()},
            truncated={agent: flag & late for agent, flag in ended.items()},
            alive={agent: ~flag for agent, flag in ended.items()},
            over=over,
            action_mask=masks,
            critic_state=obs.get(STATE),
            info=info,
        )
        return State(inner, length), moved

    def _seen(self, obs: dict[str, Any]) -> dict[str, PyTree]:
        return {agent: jnp.asarray(obs[agent], space.dtype) for agent, space in self.roster.observation_spaces.items()}

    def _masks(self, state: PyTree) -> dict[str, PyTree] | None:
        if self._masked is None:
            return None
        allowed = self._masked(state)
        return {agent: jnp.asarray(allowed[agent], bool) for agent in self.agents}

    def _mask_method(self, state: PyTree) -> Any:
        """What says which actions are allowed, in flags that fit; None if nothing does."""
        sizes = {agent: getattr(self.env.action_space(agent), "n", None) for agent in self.agents}
        for name in ("get_avail_actions", "get_legal_moves"):
            method = getattr(self.env, name, None)
            try:
                with lenient():
                    allowed = {} if method is None else jax.eval_shape(method, state)
            except NotImplementedError:  # JaxMARL's base class has the method too
                continue
            if all(agent in allowed and allowed[agent].shape == (size,) for agent, size in sizes.items()):
                return method
        return None


def _seen_space(declared: Any, seen: Any) -> spaces.Space[Any]:
    """The space of what is truly seen: declared shapes are wrong in places."""
    if isinstance(declared, theirs.Discrete) and seen.shape == ():
        return spaces.Discrete(int(declared.n), dtype=np.int32)
    low, high = getattr(declared, "low", -np.inf), getattr(declared, "high", np.inf)
    return _box(seen, low, high)


def _box(seen: Any, low: Any, high: Any) -> spaces.Box:
    dtype = np.dtype(seen.dtype)
    if dtype.kind == "b":
        return spaces.Box(0, 1, seen.shape, np.int8)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = np.clip(low, limits.min, limits.max), np.clip(high, limits.min, limits.max)
    try:
        low, high = (np.broadcast_to(np.asarray(bound, dtype), seen.shape) for bound in (low, high))
    except ValueError:
        low, high = (np.full(seen.shape, bound, dtype) for bound in (-np.inf, np.inf))
    return spaces.Box(low, high, seen.shape, dtype.type)


def _action_space(space: Any, env_id: str) -> spaces.Space[Any]:
    if isinstance(space, theirs.Discrete):
        return spaces.Discrete(int(space.n), dtype=np.int32)
    if isinstance(space, theirs.MultiDiscrete):
        return spaces.MultiDiscrete(np.asarray(space.num_categories), dtype=np.int32)
    if isinstance(space, theirs.Box):
        low, high = (np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high))
        return spaces.Box(low, high, tuple(space.shape), np.float32)
    raise UserError(f"{env_id} has actions of the kind {type(space).__name__}, which cannot be trained.")
