"""L copies of one JAX environment, with same-step auto-reset that costs nothing while no episode ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnasium.vector.utils import create_empty_array

from proximo.compiling import cached, key_of
from proximo.envs.api import JaxEnv, Timestep, Transition, Tree
from proximo.envs.compiled.team import shown
from proximo.envs.keys import Stated, env_key


@struct.dataclass
class LanesState:
    env: Tree  # [L, ...] the environments' own states
    length: jax.Array  # [L] int32 steps taken in the running episode
    alive: jax.Array | None = None  # [L, A] bool with many agents: who is there
    acts: jax.Array | None = None  # [L, A] bool: whose action counts


def where_lane(flags: jax.Array, chosen: Tree, otherwise: Tree) -> Tree:
    """Per lane: the leaf of `chosen` where `flags` [L] is true, else that of `otherwise`."""

    def pick(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(flags.reshape(flags.shape + (1,) * (a.ndim - flags.ndim)), a, b)

    return jax.tree.map(pick, chosen, otherwise)


class Lanes:
    """A `CompiledEnv` made of `num_envs` independent copies of `env`."""

    def __init__(self, env: JaxEnv, num_envs: int, max_steps: int | None = None):
        self.env = env
        self.spec = env.spec
        self.num_lanes = num_envs
        self.max_steps = max_steps
        self._state_types, self._report = cached(key_of("types", env_key(env)), self._settled_types)
        self.stated = Stated(self, num_envs, max_steps, inside=env)

    def reset(self, key: jax.Array) -> tuple[LanesState, Timestep]:
        env_state, first = self._fresh(jax.random.split(key, self.num_lanes))
        obs = self._shown(first.obs, first.alive)
        no = jnp.zeros((self.num_lanes, *self._report.reward.shape), bool)
        none = jnp.zeros(self.num_lanes, bool)
        timestep = Timestep(
            obs=obs,
            action_mask=first.action_mask,
            reward=jnp.zeros(no.shape, jnp.float32),
            terminated=no,
            truncated=no,
            final_obs=obs,
            valid=~no,
            success=None if self._report.success is None else none,
            over=None if first.alive is None else none,
            absent=None if first.alive is None else ~first.alive,
            there=first.alive,
            acts=first.acts,
        )
        return LanesState(env_state, jnp.zeros(self.num_lanes, jnp.int32), first.alive, first.acts), timestep

    def step(self, key: jax.Array, state: LanesState, action: Tree) -> tuple[LanesState, Timestep]:
        # Keys as gymnax makes them: one per environment, split into one for the step and one for a reset.
        step_keys = jax.vmap(lambda k: jax.random.split(k)[0])(jax.random.split(key, self.num_lanes))
        env_state, moved = jax.vmap(self._step)(step_keys, state.env, action)
        length = state.length + 1
        resets_itself = moved.final_obs is not None
        if moved.alive is None:
            truncated = moved.truncated
            cut = jnp.zeros_like(truncated)
            if self.max_steps is not None:
                cut = (length >= self.max_steps) & ~moved.terminated & ~truncated
                truncated |= cut
            moved_on = replace(moved, truncated=truncated)
            ended = moved.terminated | truncated
            to_reset = cut if resets_itself else ended
            valid = jnp.ones(self.num_lanes, bool)
        else:
            late = None if self.max_steps is None else length >= self.max_steps
            moved_on = settled(moved, state.alive, late)
            to_reset = ended = moved_on.over
            assert state.acts is not None
            valid = state.acts

        def reset_some() -> tuple[Tree, ...]:
            # Under `cond`, and with the keys made inside it: a step in which nothing ends computes none of this.
            reset_keys = jax.vmap(lambda k: jax.random.split(k)[1])(jax.random.split(key, self.num_lanes))
            fresh_state, first = self._fresh(reset_keys)
            return where_lane(to_reset, (fresh_state, *_following(first)), (env_state, *_following(moved)))

        env_state, obs, action_mask, alive, acts = jax.lax.cond(
            jnp.any(to_reset), reset_some, lambda: (env_state, *_following(moved))
        )
        final_obs = moved.obs
        if resets_itself:
            final_obs = where_lane(moved.terminated | moved.truncated, moved.final_obs, moved.obs)
        if moved.alive is not None:  # whoever was cut saw something last, whoever died nothing that counts
            final_obs = self._shown(final_obs, moved.alive | moved_on.truncated)
        timestep = Timestep(
            obs=self._shown(obs, alive),
            action_mask=action_mask,
            reward=moved_on.reward,
            terminated=moved_on.terminated,
            truncated=moved_on.truncated,
            final_obs=final_obs,
            valid=valid,
            success=moved.success,
            over=moved_on.over,
            absent=None if alive is None else ~alive | ended[:, None],
            there=state.alive,
            acts=acts,
        )
        return LanesState(env_state, jnp.where(ended, 0, length), alive, acts), timestep

    def _shown(self, obs: Tree, there: jax.Array | None) -> Tree:
        """What is seen by those who are there."""
        return obs if there is None or self.spec.team is None else shown(self.spec.team, obs, there)

    def _fresh(self, keys: jax.Array) -> tuple[Tree, Transition]:
        state, first = jax.vmap(self.env.reset)(keys)
        return _cast(state, self._state_types), replace(
            first,
            obs=_cast(first.obs, self._report.obs),
            action_mask=_cast(first.action_mask, self._report.action_mask),
            alive=_cast(first.alive, self._report.alive),
            acts=_cast(first.acts, self._report.acts),
        )

    def _step(self, key: jax.Array, state: Tree, action: Tree) -> tuple[Tree, Transition]:
        state, moved = self.env.step(key, state, action)
        return _cast(state, self._state_types), _cast(_typed_flags(moved), self._report)

    def _settled_types(self) -> tuple[Tree, Transition]:
        """The types of a state and a report after a step. A `reset` may give others (Python numbers, ints that
        become floats), and a loop needs one type: everything is cast to these."""
        # Not a sample: none can be drawn from between the smallest and the largest double.
        action = jax.tree.map(lambda leaf: leaf[0], create_empty_array(self.spec.action_space, 1))
        key = jax.random.key(0)
        # JAX remembers what it traced by the function, and the methods of an environment stay equal when it changes.
        state, _ = jax.eval_shape(lambda key: self.env.reset(key), key)
        state, moved = jax.eval_shape(lambda *given: self.env.step(*given), key, state, action)
        return state, jax.eval_shape(_typed_flags, moved)


def _following(report: Transition) -> tuple[Tree, ...]:
    """What the next step begins with."""
    return report.obs, report.action_mask, report.alive, report.acts


def settled(moved: Transition, alive: Any, late: Any, xp: Any = jnp) -> Transition:
    """What agents [L, A] of whom some were `alive` report, made consistent: only these have rewards and ends; whoever
    is gone, or still there when an episode is over or cut (`late` [L]), has an end. Arrays of NumPy or of JAX."""
    terminated = moved.terminated & alive
    over = moved.over if late is None else moved.over | late
    gone = alive & ~terminated & (~moved.alive | over[..., None])
    return replace(
        moved,
        reward=xp.where(alive, moved.reward, xp.zeros_like(moved.reward)),
        terminated=terminated,
        truncated=(moved.truncated & alive & ~terminated) | gone,
        over=over,
    )


def _typed_flags(moved: Transition) -> Transition:
    return replace(
        moved,
        reward=jnp.asarray(moved.reward, jnp.float32),
        terminated=jnp.asarray(moved.terminated, bool),
        truncated=jnp.asarray(moved.truncated, bool),
    )


def _cast(tree: Tree, types: Tree) -> Tree:
    def cast(leaf: Any, target: Any) -> jax.Array:
        # Random keys keep their type; for the rest this also drops JAX's weak types.
        return (
            leaf
            if jnp.issubdtype(target.dtype, jax.dtypes.prng_key)
            else jax.lax.convert_element_type(leaf, target.dtype)
        )

    return jax.tree.map(cast, tree, types)
