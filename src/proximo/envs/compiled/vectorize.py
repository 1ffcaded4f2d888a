"""E copies of one JAX environment, with same-step auto-reset that costs nothing while no episode ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector.utils import create_empty_array
from jaxtyping import Array, Float, Shaped

from proximo.compile import cached, key_of
from proximo.envs.api import JaxEnv, LaneStep, Timestep
from proximo.envs.compiled.agents import Members, Report, grouped, without_absent
from proximo.envs.keys import Stated, env_key
from proximo.errors import UserError
from proximo.types import PyTree, Struct

UNSAID = -1
"""In `success`: the environment does not say."""


class VectorState(Struct):
    env: PyTree  # [E, ...] the environments' own states
    length: jax.Array  # [E] int32 steps taken in the running episode
    alive: dict[str, jax.Array | None]  # [E, K] bool: who is there; None where agents are never absent
    acts: dict[str, jax.Array | None]  # [E, K] bool: whose action counts


def where_env(flags: jax.Array, chosen: PyTree, otherwise: PyTree) -> PyTree:
    """Per environment: the leaf of `chosen` where `flags` [E] is true, else that of `otherwise`."""

    def pick(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(flags.reshape(flags.shape + (1,) * (a.ndim - flags.ndim)), a, b)

    return jax.tree.map(pick, chosen, otherwise)


class VectorizedEnv:
    """A `CompiledEnv` made of `num_envs` independent copies of `env`. Without `auto_reset`, one stays where its episode
    ended. `info` names the numbers in its info that are reported with each step."""

    def __init__(
        self,
        env: JaxEnv,
        num_envs: int,
        max_steps: int | None = None,
        auto_reset: bool = True,
        info: tuple[str, ...] = (),
    ):
        self.env = grouped(env)
        self.spec = env.spec
        self.num_envs = num_envs
        self.max_steps = max_steps
        self.info = info
        types = cached(key_of("types", env_key(self.env), info), self._settled_types)
        self._state_types, self._report_types, self.info_names = types
        self.auto_reset = auto_reset
        self.stated = Stated(self, num_envs, max_steps, auto_reset, info, inside=self.env)

    @property
    def resets_itself(self) -> bool:
        """Whether the environment begins its next episode by itself."""
        return any(members.final_obs is not None for members in self._report_types.groups.values())

    def reset(self, key: jax.Array, task: PyTree = None) -> tuple[VectorState, Timestep]:
        env_state, first = self._begun(jax.random.split(key, self.num_envs), task)
        groups = {}
        for name, members in first.groups.items():
            no = jnp.zeros((self.num_envs, self.spec.groups[name].size), bool)
            quiet = replace(members, reward=jnp.zeros(no.shape, jnp.float32), terminated=no, truncated=no)
            groups[name] = self._lanes(name, quiet, members, members.obs, members.alive, None)
        state = VectorState(
            env=env_state,
            length=jnp.zeros(self.num_envs, jnp.int32),
            alive={name: members.alive for name, members in first.groups.items()},
            acts={name: members.acts for name, members in first.groups.items()},
        )
        return state, Timestep(
            groups=groups,
            reset=jnp.zeros(self.num_envs, bool),
            success=jnp.full(self.num_envs, UNSAID, jnp.int8),
            critic_state=first.critic_state,
            final_critic_state=first.critic_state,
            info=jnp.full((self.num_envs, len(self.info)), jnp.nan, jnp.float32) if self.info else None,
        )

    def step(
        self, key: jax.Array, state: VectorState, action: dict[str, PyTree], task: PyTree = None
    ) -> tuple[VectorState, Timestep]:
        # Keys as gymnax makes them: one per environment, split into one for the step and one for a reset.
        step_keys = jax.vmap(lambda k: jax.random.split(k)[0])(jax.random.split(key, self.num_envs))
        env_state, moved = self._moved(step_keys, state.env, self._by_env(action), task)
        length = state.length + 1
        over = moved.over if self.max_steps is None else moved.over | (length >= self.max_steps)
        to_reset = over & ~moved.over if self.resets_itself else over

        def reset_some() -> PyTree:
            # Under `cond`, and with the keys made inside it: a step in which nothing ends computes none of this.
            reset_keys = jax.vmap(lambda k: jax.random.split(k)[1])(jax.random.split(key, self.num_envs))
            fresh_state, first = self._begun(reset_keys, task)
            return where_env(to_reset, (fresh_state, _following(first)), (env_state, _following(moved)))

        env_state, (following, critic_state) = jax.lax.cond(
            jnp.any(to_reset) & self.auto_reset, reset_some, lambda: (env_state, _following(moved))
        )
        groups = {
            name: self._lanes(
                name,
                settled(members, state.alive[name], over),
                replace(members, **following[name]),
                _final(members.final_obs, members.obs, moved.over),
                state.alive[name],
                state.acts[name],
            )
            for name, members in moved.groups.items()
        }
        timestep = Timestep(
            groups=groups,
            reset=over,
            success=jnp.full(self.num_envs, UNSAID, jnp.int8) if moved.success is None else moved.success,
            critic_state=critic_state,
            final_critic_state=_final(moved.final_critic_state, moved.critic_state, moved.over),
            info=moved.info,
        )
        alive, acts = ({name: now[flag] for name, now in following.items()} for flag in ("alive", "acts"))
        return VectorState(env_state, jnp.where(over, 0, length), alive, acts), timestep

    def _lanes(
        self, name: str, outcome: Members, now: Members, final_obs: PyTree, present: Any, acted: Any
    ) -> LaneStep:
        """A group's lanes: what came of the step, and what is seen now. `present` [E, K] were there, `acted` count."""
        space = self.spec.groups[name].observation_space

        def flat(tree: PyTree[Shaped[Array, "E K ..."]]) -> PyTree[Shaped[Array, "E*K ..."]]:
            return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)

        obs, final_obs, alive = flat((now.obs, final_obs, now.alive))
        if (
            now.alive is not None and outcome.alive is not None
        ):  # whoever was cut saw something last, whoever died nothing that counts
            obs = without_absent(space, obs, alive)
            final_obs = without_absent(space, final_obs, flat(outcome.alive | outcome.truncated))
        return LaneStep(
            obs=obs,
            action_mask=flat(now.action_mask),
            reward=flat(outcome.reward),
            terminated=flat(outcome.terminated),
            truncated=flat(outcome.truncated),
            final_obs=final_obs,
            valid=jnp.ones(flat(outcome.reward).shape, bool) if acted is None else flat(acted),
            present=flat(present),
            alive=alive,
            acts=flat(now.acts),
        )

    def _by_env(self, action: dict[str, PyTree]) -> dict[str, PyTree]:
        """Lanes [E * K, ...] as [E, K, ...]."""
        return {
            name: jax.tree.map(lambda leaf: leaf.reshape(self.num_envs, -1, *leaf.shape[1:]), own)
            for name, own in action.items()
        }

    def _begun(self, keys: jax.Array, task: PyTree) -> tuple[PyTree, Report]:
        state, first = jax.vmap(self.env.reset)(keys, **_tasks(task))
        types = self._report_types
        groups = {
            name: replace(members, **_cast(_seen(members), _seen(types.groups[name])))
            for name, members in first.groups.items()
        }
        critic_state = _cast(first.critic_state, types.critic_state)
        return _cast(state, self._state_types), replace(first, groups=groups, critic_state=critic_state)

    def _with_tracked(self, moved: Report) -> Report:
        """`moved` with those entries of its info that are tracked."""
        return replace(moved, info=self._tracked(moved.info or {}) if self.info else None)

    def _tracked(self, info: Mapping[str, Any]) -> Float[Array, " I"]:
        """The entries of an info that are tracked; NaN for one that it does not have."""

        def number(name: str) -> Float[Array, ""]:
            given = info.get(name, np.nan)
            try:
                leaves = [jnp.asarray(leaf, jnp.float32).reshape(-1) for leaf in jax.tree.leaves(given)]
            except (TypeError, ValueError):  # of a text, for example
                leaves = []
            each = jnp.concatenate(leaves) if leaves else jnp.zeros(0)
            if each.size != 1 and not (each.size and self.spec.groups.many):
                came = f"{each.size} numbers" if each.size else type(given).__name__
                raise UserError(
                    f"{self.spec.id}: info[{name!r}] must be a number to be tracked (track.info), not {came}."
                )
            return each.mean()

        return jnp.stack([number(name) for name in self.info])

    def _moved(self, keys: jax.Array, state: PyTree, action: PyTree, task: PyTree) -> tuple[PyTree, Report]:
        def one(*given: Any, **task: PyTree) -> tuple[PyTree, Report]:
            state, moved = self.env.step(*given, **task)
            return _cast(state, self._state_types), _cast(self._with_tracked(moved), self._report_types)

        moved: tuple[PyTree, Report] = jax.vmap(one)(keys, state, action, **_tasks(task))
        return moved

    def _settled_types(self) -> tuple[PyTree, Report, list[str]]:
        """The types of a state and a report after a step. A `reset` may give others (Python numbers, ints that
        become floats), and a loop needs one type: everything is cast to these. And what its info has."""
        # Not a sample: none can be drawn from between the smallest and the largest double.
        action = {name: create_empty_array(group.action_space, group.size) for name, group in self.spec.groups.items()}
        key = jax.random.key(0)
        # JAX remembers what it traced by the function, and the methods of an environment stay equal when it changes.
        state, _ = jax.eval_shape(lambda key: self.env.reset(key), key)
        names: list[str] = []

        def step(*given: Any) -> tuple[PyTree, Report]:
            state, moved = self.env.step(*given)
            names.extend(moved.info or ())
            return state, self._with_tracked(moved)

        types: tuple[PyTree, Report] = jax.eval_shape(step, key, state, action)
        return *types, names


def settled(members: Members, alive: jax.Array | None, over: jax.Array) -> Members:
    """What agents [E, K] of whom some were `alive` report, made consistent: only these have rewards and ends; whoever
    is gone, or still there when an episode is over [E], has an end. What terminated was not truncated."""
    terminated = members.terminated if alive is None else members.terminated & alive
    gone = over[:, None] if members.alive is None else ~members.alive | over[:, None]
    truncated = (members.truncated | gone) & ~terminated
    if alive is None:
        return replace(members, truncated=truncated)
    reward = jnp.where(alive, members.reward, jnp.zeros_like(members.reward))
    return replace(members, reward=reward, terminated=terminated, truncated=truncated & alive)


def _seen(members: Members) -> dict[str, PyTree]:
    """What the next step begins with."""
    return {"obs": members.obs, "action_mask": members.action_mask, "alive": members.alive, "acts": members.acts}


def _following(report: Report) -> tuple[dict[str, dict[str, PyTree]], PyTree]:
    """What the next step begins with, of each group; and what critics see."""
    return {name: _seen(members) for name, members in report.groups.items()}, report.critic_state


def _final(last: PyTree, seen: PyTree, ended: jax.Array) -> PyTree:
    """What the step led to: of an environment that has reset itself, what it says that was."""
    return seen if last is None else where_env(ended, last, seen)


def _tasks(task: PyTree) -> dict[str, PyTree]:
    return {} if task is None else {"task": task}


def _cast(tree: PyTree, types: PyTree) -> PyTree:
    def cast(leaf: Any, target: Any) -> jax.Array:
        # Random keys keep their type; for the rest this also drops JAX's weak types.
        return (
            leaf
            if jnp.issubdtype(target.dtype, jax.dtypes.prng_key)
            else jax.lax.convert_element_type(leaf, target.dtype)
        )

    return jax.tree.map(cast, tree, types)
