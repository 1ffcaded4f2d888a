"""One episode, step by step: what a policy did, what it was paid, what its critic expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from proximo.compiling import cached, compiled, jit, key_of
from proximo.config import EnvConfig, EvalConfig
from proximo.envs.api import HostSource, JaxEnv, Timestep
from proximo.envs.compiled.team import shown
from proximo.envs.keys import env_key
from proximo.evaluate import Actions, step_limit
from proximo.policy.team_agent import AnyAgent
from proximo.seeding import EVALUATION_OFFSET, evaluation_key
from proximo.spaces import cast, leaves, pick

Tree = Any
MAX_STEPS = 3_000
"""Steps after which a trace is cut: it is there to be looked at."""
MAX_COLUMNS = 8
"""Numbers of an action that are kept."""


@dataclass(frozen=True)
class Seen:
    """What an environment shows after a reset or a step."""

    obs: Tree  # [1, ...]
    action_mask: Tree  # [1, ...] bool, or None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    valid: bool = True
    forgotten: Any = None  # [1, A] bool with many agents: whose memory is empty now; None: nobody's


@dataclass(frozen=True)
class Step:
    """What the policy did, and what came of it."""

    action: Tree  # [1, ...] as the environment takes it
    value: float | None  # what the critic expected before; None where the agent has none
    seen: Seen


class Stage(Protocol):
    """One environment to play in. It starts as the first one of an evaluation with the same seed does."""

    def reset(self) -> Seen: ...

    def step(self, number: int, action: Tree) -> Seen:
        """Take an action [1, ...]; `number` steps were taken before."""
        ...


def play(stage: Stage, actions: Actions, agent: AnyAgent, limit: int | None) -> Iterator[Step | None]:
    """The steps of an episode, as they are made; first None, when the stage is set."""
    policy = agent.policy

    judged = "critic" in agent.networks

    def decide(
        rewards: Any,
        key: jax.Array | None,
        number: jax.Array,
        params: Tree,
        stats: Any,
        carry: Tree,
        anew: jax.Array | None,
        obs: Tree,
        mask: Tree,
    ) -> tuple[Tree, Tree, jax.Array | None]:
        if anew is not None:
            carry = {name: policy.forget(part, anew) for name, part in carry.items()}
        memory, action = Actions(policy, key).at(number, params, stats, carry["actor"], obs, mask)
        if not judged:
            return {"actor": memory}, action, None
        expecting, value = policy.value(params, stats, carry["critic"], obs, rewards)
        return {"actor": memory, "critic": expecting}, action, value[0]

    decision = cached(key_of("decision", policy.key, actions.key is None, judged), lambda: jit(decide, small=True))
    carry = {name: part for name, part in policy.initial_carry(1).items() if name in agent.networks}
    seen = stage.reset()
    yield None
    number = 0
    while number != limit and not (seen.terminated or seen.truncated):
        now = (agent.reward_stats, actions.key, np.int32(number), agent.params, agent.obs_stats)
        carry, action, value = jax.device_get(decision(*now, carry, seen.forgotten, seen.obs, seen.action_mask))
        seen = stage.step(number, action)
        yield Step(action, None if value is None else float(value), seen)
        number += 1


def outcome(reward: Any, terminated: Any, truncated: Any, over: Any) -> tuple[float, bool, bool]:
    """Reward and end of a step. Of many agents [A], the mean of their rewards, and an end when it is `over` for all."""
    if over is None:
        return float(reward), bool(terminated), bool(truncated)
    over, by_itself = bool(over), bool(np.any(terminated))
    return float(np.mean(reward)), over and by_itself, over and not by_itself


class JaxStage:
    """A JAX environment; `state` is where it stands, or None once it has moved on to the next episode."""

    def __init__(self, env: JaxEnv, seed: int):
        self.env = env
        self.state: Tree = None
        self._key = evaluation_key(seed)
        self._step: Any = None

    def reset(self) -> Seen:
        # Keys, here and below, as `Lanes` makes them for its first lane.
        key = jax.random.split(self._key, 1)[0]
        self.state, first = compiled(key_of("stage begins", env_key(self.env)), self._begun, key)(key)
        self._alive = first.alive
        return self._seen(first)

    def step(self, number: int, action: Tree) -> Seen:
        given = (self._key, np.int32(number), self.state, action)
        if self._step is None:
            self._step = compiled(key_of("stage", env_key(self.env)), self._stepped, *given)
        state, moved = self._step(*given)
        seen = self._seen(moved)
        gone = (seen.terminated or seen.truncated) and moved.final_obs is not None
        self.state = None if gone else state
        return seen

    def _begun(self, key: jax.Array) -> tuple[Tree, Any]:
        return self._told(*self.env.reset(key))

    def _stepped(self, key: jax.Array, number: jax.Array, state: Tree, action: Tree) -> tuple[Tree, Any]:
        key = jax.random.split(jax.random.split(jax.random.fold_in(key, number), 1)[0])[0]
        return self._told(*self.env.step(key, state, jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], action)))

    def _told(self, state: Tree, report: Any) -> tuple[Tree, Any]:
        """What an environment reports; of many agents, what those see who are there."""
        team = self.env.spec.team
        return state, report if team is None else replace(report, obs=shown(team, report.obs, report.alive))

    def _seen(self, moved: Any) -> Seen:
        obs, mask = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (moved.obs, moved.action_mask))
        told = outcome(moved.reward, moved.terminated, moved.truncated, moved.over)
        if moved.alive is None:
            return Seen(obs, mask, *told)
        there, self._alive = self._alive, moved.alive
        anew = ~there | ~moved.alive | moved.terminated | moved.truncated
        return Seen(obs, mask, *told, forgotten=np.asarray(anew)[None])


class LaneStage:
    """One lane of a host environment."""

    def __init__(self, source: HostSource, env: EnvConfig, seed: int):
        # A single lane is stepped here, unless the user wants processes.
        self._env = source.lanes(1, replace(env, workers=0 if env.workers == "auto" else env.workers))
        self._seed = seed + EVALUATION_OFFSET

    def reset(self) -> Seen:
        return self._seen(self._env.reset(self._seed))

    def step(self, number: int, action: Tree) -> Seen:
        self._env.send(0, action)
        return self._seen(self._env.recv(0))

    def close(self) -> None:
        self._env.close()

    def _seen(self, moved: Timestep) -> Seen:
        over = None if moved.over is None else moved.over[0]
        told = outcome(moved.reward[0], moved.terminated[0], moved.truncated[0], over)
        obs, mask = jax.tree.map(np.copy, (moved.obs, moved.action_mask))  # they are views of what comes next
        anew = None if over is None else np.array(moved.forgotten)
        return Seen(obs, mask, *told, valid=bool(np.any(moved.valid[0])), forgotten=anew)


def trace(
    source: JaxEnv | HostSource,
    agent: AnyAgent,
    env: EnvConfig,
    seed: int,
    stop: Callable[[], bool] = bool,
    max_steps: int = EvalConfig.max_steps,
) -> dict[str, Any] | None:
    """The first episode of a deterministic evaluation, as JSON: the reward, value and action of each step.

    None if `stop` became true on the way, or the environment failed and was started anew.
    """
    limit = step_limit(source, env, max_steps)
    actions = Actions(agent.policy, None)
    if isinstance(source, HostSource):
        with closing(LaneStage(source, replace(env, max_steps_per_episode=limit), seed)) as lane:
            steps = _collected(play(lane, actions, agent, limit), stop)
    else:
        steps = _collected(play(JaxStage(source, seed), actions, agent, limit), stop)
    if not steps:
        return None
    last, rewards = steps[-1].seen, [step.seen.reward for step in steps]
    taken = jax.tree.map(lambda *rows: np.concatenate(rows), *(step.action for step in steps))
    cut = not (last.terminated or last.truncated) and len(steps) != limit
    return {
        "env": source.spec.id,
        "seed": seed,
        "length": len(steps),
        "return": math.fsum(rewards),
        "end": "terminated" if last.terminated else "cut here" if cut else "truncated",
        "reward": _short(rewards),
        "value": None if steps[0].value is None else _short([step.value for step in steps]),
        "actions": columns(source.spec.action_space, taken),
    }


def columns(space: spaces.Space, actions: Tree) -> list[dict[str, Any]]:
    """Actions [T, ...] as named columns of numbers; `choices` are the numbers that a discrete one can be."""
    members, found = cast(space, actions), list[dict[str, Any]]()
    for path, leaf in leaves(space):
        taken = pick(members, path)
        flat = taken.reshape(len(taken), math.prod(taken.shape[1:]))
        name = " ".join(map(str, path)) or "action"
        for i in range(min(flat.shape[1], MAX_COLUMNS - len(found))):
            label = name if isinstance(leaf, spaces.Discrete) else f"{name} {i}"
            found.append({"name": label, "choices": _choices(leaf, i), "values": _short(flat[:, i].tolist())})
    return found


def _choices(leaf: spaces.Space, component: int) -> list[int] | None:
    """The first and the last number that a component can be; None for continuous ones."""
    if isinstance(leaf, spaces.MultiBinary):
        return [0, 1]
    if not isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
        return None
    sizes: Any = leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec
    first = int(np.ravel(leaf.start)[component])
    return [first, first + int(np.ravel(sizes)[component]) - 1]


def _collected(steps: Iterator[Step | None], stop: Callable[[], bool]) -> list[Step]:
    found: list[Step] = []
    for step in steps:
        if stop() or (step and not step.seen.valid):
            return []
        if step:
            found.append(step)
        if len(found) == MAX_STEPS:
            break
    return found


def _short(numbers: list[Any]) -> list[Any]:
    """Six digits: enough to look at."""
    return [float(f"{number:.6g}") if isinstance(number, float) else number for number in numbers]
