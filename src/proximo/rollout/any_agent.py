"""Episodes played by anybody's agent: an object with `act`, or a function from observations to actions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array
from jaxtyping import Bool
from numpy.typing import NDArray

from proximo.compile import jit
from proximo.config import EnvConfig
from proximo.envs.api import Groups, HostEnv, HostSource, JaxEnv, LaneStep, Timestep, with_info
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.errors import UserError
from proximo.rollout.episodes import Running, any_member, count_episodes, no_info
from proximo.rollout.evaluate import Cuts, Evaluator, Played, QuotaEvaluator, step_limit
from proximo.seeding import EVALUATION_OFFSET, evaluation_key
from proximo.spaces import Path, build, pick, shown, stacked
from proximo.types import PyTree

Act = Callable[[PyTree, PyTree], Any]
"""From what is seen, and the actions that are allowed (or None), to what is done; of many agents, dictionaries."""


def any_agent_evaluator(
    source: JaxEnv | HostSource,
    agent: Any,
    episodes: int,
    seed: int,
    deterministic: bool,
    max_steps: int,
    info: tuple[str, ...] = (),
) -> Evaluator:
    """The evaluator of an agent that need not be one of Proximo's. It plays one episode after the other, since it may
    remember what it saw."""
    env = EnvConfig(num_envs=1, workers=0, groups=1)
    limit = step_limit(source, env, max_steps)
    cuts = Cuts(None if source.spec.max_steps else limit)
    env = replace(env, max_steps_per_episode=limit)
    play = AnyPlay(source, asked(agent, deterministic), getattr(agent, "reset", None), env, seed, info)
    return QuotaEvaluator(play, np.array([episodes]), source.spec.groups, cuts, info)


def asked(agent: Any, deterministic: bool) -> Act:
    """How an agent is asked for actions: with the keywords `deterministic` and `action_mask` (of many agents
    `action_masks`) where it takes them."""
    ask = getattr(agent, "act", agent)
    if not callable(ask):
        raise UserError(f"An agent is an object with a method `act`, or a function; {type(agent).__name__} is neither.")
    try:
        known = inspect.signature(ask).parameters
    except (TypeError, ValueError):  # of some functions that are not written in Python
        known = {}  # type: ignore[assignment]
    every = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    if not deterministic and not every and "deterministic" not in known:
        raise UserError(
            f"{type(agent).__name__} takes no `deterministic`, so it cannot be asked for drawn actions; it does as it "
            f"does with actions=deterministic."
        )

    def act(obs: PyTree, mask: PyTree) -> Any:
        given: dict[str, Any] = {}
        if every or "deterministic" in known:
            given["deterministic"] = deterministic
        for name in ("action_mask", "action_masks"):
            if name in known and mask is not None:
                given[name] = mask
        return ask(obs, **given)

    return act


class AnyPlay:
    """`Play` on a single environment of either kind, by whoever acts."""

    def __init__(
        self,
        source: JaxEnv | HostSource,
        act: Act,
        forget: Callable[[], Any] | None,
        env: EnvConfig,
        seed: int,
        info: tuple[str, ...] = (),
    ):
        self.notices: list[str] = []
        self._info = info
        self._groups = source.spec.groups
        self._act, self._forget = act, forget
        self._env: HostEnv | None = None
        if isinstance(source, HostSource):
            self._env = with_info(source, info).open_envs(1, env)
            self._steps = host_steps(self._env, seed)
        else:
            vector = VectorizedEnv(source, 1, env.max_steps_per_episode, info=info)
            self._steps = compiled_steps(jit(vector.reset), jit(vector.step), seed)

    def __call__(self, chosen: PyTree, stop: Callable[[Bool[NDArray[Any], "t E"]], bool]) -> Iterator[Played]:
        running: Running = (
            np.zeros(1, np.int64),
            {name: np.zeros((1, group.size)) for name, group in self._groups.items()},
            no_info(1, len(self._info), np),
        )
        now = next(self._steps)
        self._begin()
        while True:
            now = self._steps.send(decide(self._groups, now, self._act))
            running, episodes = count_episodes(running, now, None, np)
            if now.reset[0]:
                self._begin()
            truncated = {name: step.truncated for name, step in now.groups.items()}
            yield jax.tree.map(lambda leaf: leaf[None], Played(episodes, any_member(truncated, 1)))

    def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def _begin(self) -> None:
        if self._forget is not None:
            self._forget()


def compiled_steps(reset: Callable[..., Any], step: Callable[..., Any], seed: int) -> Any:
    """A generator that is sent actions, and gives what a `CompiledEnv` with these methods then reports."""
    key, number = evaluation_key(seed), 0
    state, now = reset(key)
    while True:
        action = yield jax.tree.map(np.asarray, now)
        state, now = step(jax.random.fold_in(key, number), state, action)
        number += 1


def host_steps(env: HostEnv, seed: int) -> Any:
    """The same of host environments, which are in one part."""
    now = env.reset(seed + EVALUATION_OFFSET)
    while True:
        env.notices.clear()
        action = yield jax.tree.map(np.array, now)
        env.send(0, action)
        now = env.recv(0)


def decide(groups: Groups, now: Timestep, act: Act) -> dict[str, PyTree]:
    """What everybody does in one environment, leaves [K, ...] by group; those who are not asked do anything."""
    if not groups.many:
        ((name, group),) = groups.items()
        obs, mask = _of(now.groups[name], 0)
        return {name: stacked(group.action_space, [_member(group.action_space, act(obs, mask))])}
    seen, masks = {}, {}
    for name, group in groups.items():
        step = now.groups[name]
        asks = step.alive if step.acts is None else step.acts
        for i, agent in enumerate(group.members):
            if asks is None or asks[i]:
                seen[agent], masks[agent] = _of(step, i)
    allowed = {agent: mask for agent, mask in masks.items() if mask is not None}
    actions = act(seen, allowed or None) if seen else {}
    if not isinstance(actions, Mapping):
        raise UserError(f"For many agents, `act` gives a dictionary of actions by agent, not {type(actions).__name__}.")
    if lacking := [agent for agent in seen if agent not in actions]:
        raise UserError(f"There is no action for {lacking[0]}, which is present and acts.")
    return {
        name: stacked(
            group.action_space,
            [
                _member(group.action_space, actions[agent]) if agent in seen else _any(group.action_space)
                for agent in group.members
            ],
        )
        for name, group in groups.items()
    }


def _of(step: LaneStep, lane: int) -> tuple[PyTree, PyTree]:
    obs, mask = jax.tree.map(lambda leaf: leaf[lane], (step.obs, step.action_mask))
    return obs, mask


def _any(space: spaces.Space[Any]) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], create_empty_array(space, 1))


def _member(space: spaces.Space[Any], action: Any) -> PyTree:
    """An action as arrays of the space's types; refused where it is none."""

    def leaf(path: Path, own: spaces.Space[Any]) -> NDArray[Any]:
        try:
            value = np.asarray(pick(action, path)).astype(own.dtype)
            if value.shape == own.shape and (isinstance(own, spaces.Box) or own.contains(value)):
                return value
        except (LookupError, TypeError, ValueError):
            pass
        raise UserError(f"The agent's action{shown(path)} is {action!r:.80}, which is not in {own}.")

    return build(space, leaf)
