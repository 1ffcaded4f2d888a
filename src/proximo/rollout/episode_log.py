"""One episode, step by step: what a policy did, what it was paid, what its critic expected; and its pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Shaped

from proximo.compile import cached, compiled, jit, key_of, shapes
from proximo.config import EnvConfig, EvalConfig
from proximo.envs.api import HostEnv, HostSource, JaxEnv
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.policy.behaviour import Behaviour, Learner, Learners, actors
from proximo.policy.normalize import RunningStats
from proximo.policy.policies import Policies
from proximo.policy.policy import Params, Stats
from proximo.rollout.compiled import CompiledRunner, StepView
from proximo.rollout.evaluate import step_limit, step_noise
from proximo.rollout.host import HostRunner, after
from proximo.rollout.host_actor import packed
from proximo.rollout.types import RunnerState
from proximo.seeding import EVALUATION_OFFSET, evaluation_key
from proximo.spaces import cast, leaves, pick
from proximo.types import AnyArray, PyTree

MAX_STEPS = 3_000
"""Steps after which a log is cut: it is there to be looked at."""
MAX_COLUMNS = 8
"""Numbers of an action that are kept."""
STEPS_PER_CALL = 32


class Steps(NamedTuple):
    """Some steps of one environment, leaves [T, L, ...] by group and [T, 1, ...]."""

    obs: dict[str, PyTree[Shaped[AnyArray, "T _ ..."]]]
    critic_state: PyTree[Shaped[AnyArray, "T 1 ..."]]
    taken: dict[str, PyTree[Shaped[AnyArray, "T _ ..."]]]
    """Actions as the environment took them."""
    reward: dict[str, Float[AnyArray, "T _"]]
    terminated: dict[str, Bool[AnyArray, "T _"]]
    valid: dict[str, Bool[AnyArray, "T _"]]
    reset_mask: dict[str, Bool[AnyArray, "T _"]]
    reset: Bool[AnyArray, "T 1"]
    env: PyTree
    """Of compiled environments: their own states before and after each step; None if it has moved on."""

    def until_end(self) -> Steps:
        """Those up to the end of the first episode, if it ends here."""
        ends = np.flatnonzero(self.reset[:, 0])
        if not len(ends):
            return self
        return Steps(*jax.tree.map(lambda leaf: leaf[: ends[0] + 1], tuple(self)))

    @property
    def over(self) -> bool:
        return bool(self.reset[-1, 0])


@runtime_checkable
class LoggedAgent(Learner, Protocol):
    """Parameters, statistics and networks of a group."""

    @property
    def reward_stats(self) -> RunningStats | None: ...
    @property
    def networks(self) -> list[str]: ...


@runtime_checkable
class LoggedAgents(Protocol):
    """Whose episode it is."""

    @property
    def policies(self) -> Policies: ...
    @property
    def groups(self) -> Mapping[str, LoggedAgent]:
        """The agent of each group."""
        ...


def compiled_steps(
    env: JaxEnv, behaviour: Behaviour, chosen: PyTree, config: EnvConfig, seed: int, key: jax.Array | None
) -> Iterator[Steps]:
    """The first environment of an evaluation with the same seed, some steps at a time; it is not reset at the end of
    its episode. With a `key` actions are drawn."""
    vector = VectorizedEnv(env, 1, config.max_steps_per_episode, auto_reset=False)
    runner = CompiledRunner(vector, behaviour, config.frame_stack)
    env_key = evaluation_key(seed)

    def kept(view: StepView) -> Steps:
        states = (view.before.env.env, None if vector.resets_itself else view.after.env.env)
        return _kept(view)._replace(env=states)

    def some(
        env_key: jax.Array, key: jax.Array | None, chosen: PyTree, state: RunnerState, first: jax.Array
    ) -> tuple[RunnerState, Steps]:
        numbers = first + jnp.arange(STEPS_PER_CALL, dtype=jnp.int32)
        noise = step_noise(behaviour.policies, key, 1, numbers)
        keys = jax.vmap(lambda number: jax.random.fold_in(env_key, number))(numbers)
        return runner.run(chosen, state, noise, keys, kept)

    program = key_of(runner.key, key is None)
    state = compiled(key_of("log begins", program), lambda key: runner.start(key), env_key)(env_key)
    run = compiled(key_of("log", program, shapes(chosen)), some, env_key, key, chosen, state, np.int32(0))
    first = 0
    while True:
        state, steps = run(env_key, key, chosen, state, np.int32(first))
        # Of states nothing is known but that they are JAX's: random keys, for one, are no arrays of NumPy's.
        yield jax.tree.map(np.asarray, steps._replace(env=None))._replace(env=steps.env)
        first += STEPS_PER_CALL


def _kept(view: StepView) -> Steps:
    groups = view.outcome.groups
    return Steps(
        obs=view.before.obs,
        critic_state=view.before.critic_state,
        taken=view.taken,
        reward={name: step.reward for name, step in groups.items()},
        terminated={name: step.terminated for name, step in groups.items()},
        valid={name: step.valid for name, step in groups.items()},
        reset_mask={name: step.reset_mask for name, step in groups.items()},
        reset=view.outcome.reset,
        env=None,
    )


def host_steps(
    env: HostEnv, behaviour: Behaviour, chosen: PyTree, config: EnvConfig, seed: int, key: jax.Array | None
) -> Iterator[Steps]:
    """The same of a host environment, of which `env` is one; of what follows the end of its episode at most a step."""
    policies = behaviour.policies
    runner = HostRunner(env, behaviour, STEPS_PER_CALL, chosen, config.frame_stack, look_at_bounds=False)
    state, first, acting = runner.start(seed + EVALUATION_OFFSET), 0, packed(chosen)
    while True:
        noise = step_noise(policies, key, 1, jnp.arange(first, first + STEPS_PER_CALL, dtype=jnp.int32))
        done = runner.run(acting, state, noise, lambda: bool(runner.ends.any()))
        played = runner.rollout(state, done)
        taken = {
            name: jax.device_get(policy.distribution.to_env(jax.tree.map(jnp.asarray, played.groups[name].action)))
            for name, policy in policies.items()
        }
        whole = Steps(
            obs={name: own.obs for name, own in played.groups.items()},
            critic_state=None if played.critic_state is None else played.critic_state.seen,
            taken=taken,
            reward={name: own.reward for name, own in played.groups.items()},
            terminated={name: own.terminated for name, own in played.groups.items()},
            valid={name: own.valid for name, own in played.groups.items()},
            reset_mask={name: own.reset_mask for name, own in played.groups.items()},
            reset=played.reset,
            env=None,
        )
        yield Steps(*jax.tree.map(lambda leaf, done=done: np.array(leaf[:done]), tuple(whole)))
        state = after(state, played)
        first += done


def episode_log(
    source: JaxEnv | HostSource,
    agents: LoggedAgents,
    env: EnvConfig,
    seed: int,
    stop: Callable[[], bool] = bool,
    max_steps: int = EvalConfig.max_steps,
) -> dict[str, Any] | None:
    """The first episode of a deterministic evaluation, as JSON: the reward, value and action of each step.

    None if `stop` became true on the way, or the environment failed and was restarted.
    """
    limit = step_limit(source, env, max_steps)
    env, behaviour = replace(env, max_steps_per_episode=limit), Learners(agents.policies)
    given = (behaviour, actors(agents.groups), env, seed, None)
    if isinstance(source, HostSource):
        # A single environment is stepped here, unless the user wants processes.
        alone = source.open_envs(1, replace(env, workers=0 if env.workers == "auto" else env.workers))
        with closing(alone):
            steps = _episode(host_steps(alone, *given), stop)
    else:
        steps = _episode(compiled_steps(source, *given), stop)
    if steps is None:
        return None
    rewards = np.concatenate([steps.reward[name] for name in source.spec.groups], axis=1).mean(1).tolist()
    terminated = any(bool(flags[-1].any()) for flags in steps.terminated.values())
    values = expected(agents, steps)
    end = "cut here" if not steps.over else "terminated" if terminated else "truncated"
    return {
        "env": source.spec.id,
        "seed": seed,
        "length": len(rewards),
        "return": math.fsum(rewards),
        "end": end,
        "reward": _short(rewards),
        "value": None if values is None else _short(values),
        "actions": [
            column
            for name, group in source.spec.groups.items()
            for i, agent in enumerate(group.members)
            for column in columns(
                group.action_space,
                jax.tree.map(lambda leaf, i=i: leaf[:, i], steps.taken[name]),
                agent if source.spec.groups.many else "",
            )
        ][:MAX_COLUMNS],
    }


def _episode(steps: Iterator[Steps], stop: Callable[[], bool]) -> Steps | None:
    """The first episode, or the first MAX_STEPS steps of it."""
    found: list[Steps] = []
    while not found or not (found[-1].over or STEPS_PER_CALL * len(found) >= MAX_STEPS):
        if stop():
            return None
        part = next(steps).until_end()
        if not np.any([valid.any(1) for valid in part.valid.values()], axis=0).all():
            return None
        found.append(part._replace(env=None))
    return Steps(*jax.tree.map(lambda *parts: np.concatenate(parts)[:MAX_STEPS], *map(tuple, found)))


def expected(agents: LoggedAgents, steps: Steps) -> list[float] | None:
    """What critics expected before each step, the mean over agents, in the environment's units; None without them."""
    policies, found = agents.policies, []
    state = policies.all_observations(steps.obs, 1) if policies.everything else steps.critic_state
    for name, policy in policies.items():
        agent = agents.groups[name]
        if "critic" not in agent.networks or (policy.critic_space is not None and state is None):
            return None
        reset = steps.reset_mask[name]
        episode_start = np.concatenate([np.zeros_like(reset[:1]), reset[:-1]])
        judge = cached(key_of("log's critic", policies.key, name), partial(_critic, policies, name))
        given = (agent.params, agent.obs_stats, agent.reward_stats, steps.obs[name], state, episode_start)
        found.append(np.asarray(judge(*given)))
    return [float(value) for value in np.concatenate(found, axis=1).mean(1)]


def _critic(policies: Policies, name: str) -> Callable[..., jax.Array]:
    """A function from what the lanes of one environment saw to values [T, L]."""
    policy = policies[name]

    def values(
        params: Params,
        stats: Stats,
        rewards: RunningStats | None,
        obs: PyTree[Shaped[AnyArray, "T L ..."]],
        state: PyTree[Shaped[AnyArray, "T 1 ..."]],
        episode_start: Bool[AnyArray, "T L"],
    ) -> Float[Array, "T L"]:
        num_lanes = episode_start.shape[1]

        def step(carry: PyTree, now: tuple[PyTree, PyTree, Bool[Array, " L"]]) -> tuple[PyTree, Float[Array, " L"]]:
            obs, state, reset_mask = now
            state = jax.tree.map(lambda leaf: jnp.repeat(leaf, num_lanes, axis=0), state)
            given = (policy.forget(carry, reset_mask), policies.seen(name, obs), state)
            return policy.value(params, stats, *given, rewards)

        return jax.lax.scan(step, policy.initial_carry(num_lanes)["critic"], (obs, state, jnp.asarray(episode_start)))[
            1
        ]

    program: Callable[..., jax.Array] = jit(values)
    return program


def columns(space: spaces.Space[Any], actions: PyTree, whose: str = "") -> list[dict[str, Any]]:
    """Actions [T, ...] as named columns of numbers; `choices` are the numbers that a discrete one can be."""
    members, found = cast(space, actions), list[dict[str, Any]]()
    for path, leaf in leaves(space):
        taken = pick(members, path)
        flat = taken.reshape(len(taken), math.prod(taken.shape[1:]))
        name = " ".join(part for part in (whose, *map(str, path)) if part) or "action"
        for i in range(min(flat.shape[1], MAX_COLUMNS - len(found))):
            label = name if isinstance(leaf, spaces.Discrete) else f"{name} {i}"
            found.append({"name": label, "choices": _choices(leaf, i), "values": _short(flat[:, i].tolist())})
    return found


def _choices(leaf: spaces.Space[Any], component: int) -> list[int] | None:
    """The first and the last number that a component can be; None for continuous ones."""
    if isinstance(leaf, spaces.MultiBinary):
        return [0, 1]
    if not isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
        return None
    sizes: Any = leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec
    first = int(np.ravel(leaf.start)[component])
    return [first, first + int(np.ravel(sizes)[component]) - 1]


def _short(numbers: list[Any]) -> list[Any]:
    """Six digits: enough to look at."""
    return [float(f"{number:.6g}") if isinstance(number, float) else number for number in numbers]
