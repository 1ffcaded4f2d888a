"""Step host environments: the policies and the environments take turns, part by part. For training, for evaluations,
for the log or the film of an episode."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int8, Key, Shaped
from numpy.typing import NDArray

from proximo.compile import cached, key_of
from proximo.envs.api import HostEnv, LaneStep, Timestep, envs_of, lanes_of
from proximo.envs.host.bounds import outside
from proximo.errors import EnvError
from proximo.policy.behaviour import Behaviour
from proximo.policy.policy import Policy
from proximo.policy.recurrent import forget
from proximo.rollout.episodes import Running, SuccessReturn, count_episodes, lacks_info, no_info
from proximo.rollout.frame_stack import FrameStack
from proximo.rollout.host_actor import (
    aligned_zeros,
    at,
    compiled_actor,
    reads_record,
    same_memory,
    spans,
)
from proximo.rollout.types import CriticState, Episodes, Experience, Rollout, RunnerState
from proximo.spaces import Path, leaves, pick, shown
from proximo.types import AnyArray, PyTree, Struct


class HostRollout(Struct):
    """A rollout from host environments, and what is needed to go on after it."""

    groups: dict[str, Rollout]
    critic_state: CriticState | None
    reset: Bool[AnyArray, "T E"]
    success: Int8[AnyArray, "T E"]
    action_mask: dict[str, PyTree[Bool[AnyArray, "_ ..."]]]
    """[L, ...] of what the policies see next, or None."""
    carry: dict[str, PyTree[Shaped[AnyArray, "_ ..."]]]
    """[L, ...] the actors' memory after the rollout."""
    info: Float[AnyArray, "T E I"] | None = None
    """What is tracked of infos, or None."""


class StepBuffers(NamedTuple):
    """Where one step of one part is written down: views, made once."""

    seen: list[Any]  # observations and action masks, as the actor takes them, leaf by leaf: of this step, or of all
    action: list[NDArray[Any]]  # leaf by leaf, of all groups
    outcome: list[NDArray[Any]]  # what is written of every step, in the order of `_outcome`
    obs: dict[str, tuple[PyTree, PyTree]]  # with stacked frames: before the step, and after it
    ended: list[NDArray[Any]]  # flags of which one is true where what the step led to is written, too
    final: list[NDArray[Any]]


class HostRunner:
    """Steps a `HostEnv` as a `Behaviour` says, and records what happens.

    Only the actors run here, on noise that was drawn beforehand; values and log-probabilities come later, in one
    batch. The record is written into arrays that are allocated once: it holds until the next `run`.
    """

    def __init__(
        self,
        env: HostEnv,
        behaviour: Behaviour,
        steps: int,
        chosen: PyTree,
        frame_stack: int = 1,
        look_at_bounds: bool = True,
    ):
        self.env = env
        self.behaviour = behaviour
        self.steps = steps
        self._groups = env.spec.groups
        self._frames = FrameStack(self._groups, frame_stack)
        # Handing over an array that is on the device already costs a fraction of handing over one of NumPy's.
        self._times = [jnp.int32(t) for t in range(steps)]
        self._chosen = jax.eval_shape(lambda tree: tree, chosen)
        self._envs = [envs_of(part) for part in env.parts]
        self._looks_at_bounds = look_at_bounds
        self._noticed: set[Path] = set()
        # What a part reports are views, mostly the same ones each time: taken apart only when they are not.
        self._moved: list[Timestep | None] = [None] * len(env.parts)
        self._reported: list[list[Any]] = [[] for _ in env.parts]
        self.policy_seconds = self.env_seconds = 0.0
        """What the last rollout took: the policies' calls, and the rest, which is the environments."""
        self._seen = 0  # steps of this `run` that all environments have reported
        self._record: dict[str, Rollout] = {}
        self._slots: list[list[StepBuffers]] = []
        self._carry: dict[str, PyTree] | None = None
        self._recurrent = [name for name, policy in behaviour.policies.items() if policy.recurrent]
        self._memory = jax.tree.structure(behaviour.policies.initial_carry("actor", 1))
        self._unseen = list(env.spec.info)  # what is to be tracked, and was not there yet

    def start(self, seed: int) -> RunnerState:
        """All environments reset."""
        first = self.env.reset(seed)
        if not self._record:
            self._allocate(first)
        num_envs = self.env.num_envs
        return RunnerState(
            env=(),
            task=None,
            obs={
                name: jax.tree.map(np.array, self._frames.first(name, step.obs)) for name, step in first.groups.items()
            },
            action_mask={name: jax.tree.map(np.copy, step.action_mask) for name, step in first.groups.items()},
            carry=self.behaviour.policies.initial_carry("actor", num_envs),
            critic_state=jax.tree.map(np.copy, first.critic_state),
            episode_length=jnp.zeros(num_envs, jnp.int32),
            episode_return={
                name: jnp.zeros((num_envs, group.size), jnp.float32) for name, group in self._groups.items()
            },
            episode_info=no_info(num_envs, len(self.env.spec.info)),
        )

    def run(self, packed: list[jax.Array], start: RunnerState, noise: PyTree, stop: Callable[[], bool]) -> int:
        """Step every environment `steps` times, with actions drawn from `noise` [T, ...] or (None) the most likely;
        fewer times if `stop`, which is asked at each, becomes true: nothing counts then in the rest of the record. How
        many times that was. `packed` is what the behaviour has chosen, see `packing.pack`."""
        env, times, clock = self.env, self._times, time.perf_counter
        self._write_first(start)
        spent, done = 0.0, self.steps
        began = clock()
        drawn = None if noise is None else jax.tree.leaves(noise)
        carry = [jax.tree.leaves(self._lanes(start.carry, envs)) for envs in self._envs]
        for t in range(self.steps):
            for p, act in enumerate(self._act):
                if t:
                    carry[p] = self._receive(p, t - 1, carry[p])
                slot = self._slots[t][p]
                before = clock()
                carry[p], given, taken = act(packed, drawn, times[t], carry[p], *slot.seen)
                action = [np.asarray(leaf) for leaf in given]
                spent += clock() - before
                if taken is None:
                    env.send(p, jax.tree.unflatten(self._actions, action))
                else:
                    env.send(p, jax.tree.unflatten(self._taken, [np.asarray(leaf) for leaf in taken]))
                _write(slot.action, action)
            self._seen = t
            if stop():
                done = t + 1
                break
        for p in range(len(self._envs)):
            carry[p] = self._receive(p, done - 1, carry[p])
        self.policy_seconds, self.env_seconds = spent, clock() - began - spent
        self._forget_rows(done)
        self.leave_out_voided()
        if self._looks_at_bounds:
            self._look_at_bounds(done)
            if self._unseen:
                self._look_for_info(done)
        self._carry = jax.tree.unflatten(self._memory, [jnp.concatenate(parts) for parts in zip(*carry, strict=True)])
        return done

    @property
    def ends(self) -> Bool[NDArray[Any], "t E"]:
        """Where episodes have come to their end, in the steps of this `run` so far."""
        return self._reset[: self._seen]

    def rollout(self, start: RunnerState, done: int | None = None) -> HostRollout:
        """The record of the last `run`, which made `done` steps, or all; where none was made, one of the right
        shapes."""
        done = self.steps if done is None else done
        groups = {}
        for name, record in self._record.items():
            last_obs, acts = jax.tree.map(np.copy, (at(self._obs[name], done), self._acts[name]))
            groups[name] = replace(record, last_obs=last_obs, carry=start.carry[name], acts=acts)
        critic_state = None
        if self._critic_state is not None:
            seen, last = at(self._critic_state, slice(0, self.steps)), at(self._critic_state, done)
            critic_state = CriticState(seen, self._final_critic_state, jax.tree.map(np.copy, last))
        return HostRollout(
            groups=groups,
            critic_state=critic_state,
            reset=self._reset,
            success=self._success,
            info=self._info,
            action_mask=jax.tree.map(np.copy, at(self._masks, done)),
            carry=start.carry if self._carry is None else self._carry,
        )

    def warm_up(self, packed: list[jax.Array], noise: PyTree, start: RunnerState) -> HostRollout:
        """Compile the actors without a step of the environments; a record of the right shapes."""
        self._write_first(start)
        drawn = None if noise is None else jax.tree.leaves(noise)
        for act, envs, slot in zip(self._act, self._envs, self._slots[0], strict=True):
            act(packed, drawn, self._times[0], jax.tree.leaves(self._lanes(start.carry, envs)), *slot.seen)
        self._carry = None
        return self.rollout(start)

    def _forget_rows(self, done: int) -> None:
        """Let nothing count in the record after the first `done` steps."""
        if done < self.steps:
            self._reset[done:] = False
            for own in self._record.values():
                own.valid[done:] = own.terminated[done:] = own.truncated[done:] = False

    def leave_out_voided(self) -> None:
        """Mark every step of an episode invalid whose last one is: its environment failed, and was restarted. That
        last step is one in which nobody's action counted."""
        if all(own.valid.all() for own in self._record.values()):
            return
        num_envs, reset = self.env.num_envs, self._reset
        by_env = [own.valid.reshape(self.steps, num_envs, -1) for own in self._record.values()]
        counted = by_env[0].any(-1) if len(by_env) == 1 else np.any([valid.any(-1) for valid in by_env], axis=0)
        for t, env in np.argwhere(reset & ~counted):
            before = np.flatnonzero(reset[:t, env])
            for valid in by_env:
                valid[before[-1] + 1 if len(before) else 0 : t, env] = False

    def _look_at_bounds(self, done: int) -> None:
        """Say it, once, where observations leave their space. Numbers that code for choices must not: the run ends."""
        for name, group in self._frames.groups.items():
            for path, leaf in leaves(group.observation_space):
                self._look_at(group.members, "an observation", path, leaf, pick(self._record[name].obs, path)[:done])
        space = self._groups.critic_state_space
        for path, leaf in () if space is None else leaves(space):
            self._look_at(("",), "a critic_state", path, leaf, pick(self._critic_state, path)[:done])

    def _look_at(self, members: tuple[str, ...], what: str, path: Path, leaf: Any, values: NDArray[Any]) -> None:
        """Of numbers [T, E * K, ...] that environments gave to each of the K `members`."""
        place = (*members, what, *path)
        wrong = None if place in self._noticed else outside(leaf, values)
        if wrong is None:
            return
        self._noticed.add(place)
        t, lane, *index = wrong
        env, member = divmod(lane, len(members))
        whose = f" to {members[member]}" if members[member] and self._groups.many else ""
        sentence = (
            f"The environment {self.env.spec.id} (number {env}, step {t + 1} of a rollout) gave {what}{whose} outside "
            f"its space: {what.split()[-1]}{shown(path)} is {values[wrong]} at the index {index}, in {leaf}."
        )
        if values.dtype.kind != "f":
            raise EnvError(sentence)
        self.env.notices.append(f"{sentence} It is used as it is; this is said once.")

    def _look_for_info(self, done: int) -> None:
        """Say it, once, where an episode has ended and something that is to be tracked was never there."""
        assert self._info is not None
        names = self.env.spec.info
        self._unseen = [name for name in self._unseen if np.isnan(self._info[:done, :, names.index(name)]).all()]
        if self._unseen and self._reset[:done, 0].any():  # it is the first environment that tells what there is
            self.env.notices += lacks_info(self._unseen, self.env.info_names, self.env.spec.id)
            self._unseen = []

    def _write_first(self, start: RunnerState) -> None:
        """Write down what is seen before the first step."""
        first = (self._obs, self._masks, self._critic_state)
        _write(jax.tree.leaves(at(first, 0)), jax.tree.leaves((start.obs, start.action_mask, start.critic_state)))

    def _receive(self, p: int, t: int, carry: list[jax.Array]) -> list[jax.Array]:
        """Write down what step `t` led to in the environments of part `p`; the actors' memory (its leaves), empty where
        one begins."""
        moved, slot = self.env.recv(p), self._slots[t][p]
        stacks = self._frames.num > 1
        if moved is not self._moved[p]:
            self._moved[p], self._reported[p] = moved, jax.tree.leaves(_outcome(moved, not stacks))
        for target, value in zip(slot.outcome, self._reported[p], strict=True):
            target[...] = value
        groups = self._stack(slot, moved) if stacks else moved.groups
        for flags in slot.ended:
            if np.count_nonzero(flags):
                final_obs = {name: step.final_obs for name, step in groups.items()}
                _write(slot.final, jax.tree.leaves((final_obs, moved.final_critic_state)))
                break
        return self._forget(moved, carry) if self._recurrent else carry

    def _forget(self, moved: Timestep, carry: list[jax.Array]) -> list[jax.Array]:
        """The actors' memory (its leaves), emptied where an episode begins."""
        memory = jax.tree.unflatten(self._memory, carry)
        for name in self._recurrent:
            if (reset := moved.groups[name].reset_mask).any():
                memory[name] = forget(memory[name], jnp.asarray(reset))
        return jax.tree.leaves(memory)

    def _stack(self, slot: StepBuffers, moved: Timestep) -> dict[str, LaneStep]:
        """Write the stacks after a step; what lanes saw at its end, stacked."""
        found = {}
        for name, step in moved.groups.items():
            before, after = slot.obs[name]
            obs, final_obs = self._frames.following(name, before, step)
            _write(jax.tree.leaves(after), jax.tree.leaves(obs))
            found[name] = replace(step, final_obs=final_obs)
        return found

    def _lanes(self, trees: dict[str, PyTree], envs: slice) -> dict[str, PyTree]:
        """Of dictionaries by group, the lanes of some environments."""
        return {name: at(tree, lanes_of(envs, self._groups[name].size)) for name, tree in trees.items()}

    def _allocate(self, first: Timestep) -> None:
        """Arrays [T, L, ...] and [T, E, ...]; what is seen has one step more, for what is seen next."""
        steps, num_envs, policies = self.steps, self.env.num_envs, self.behaviour.policies
        obs = {name: self._frames.first(name, step.obs) for name, step in first.groups.items()}
        masks = {name: step.action_mask for name, step in first.groups.items()}

        def rows(tree: PyTree, steps: int) -> PyTree:
            return jax.tree.map(lambda leaf: aligned_zeros((steps, *leaf.shape), leaf.dtype), tree)

        self._obs, self._masks, self._critic_state = rows((obs, masks, first.critic_state), steps + 1)
        self._final_critic_state = rows(first.critic_state, steps)
        # On a CPU the actor reads the record itself: handing over an array at each step takes longer than that.
        self._whole = jax.tree.map(same_memory, (self._obs, self._masks)) if reads_record() else None
        self._success, self._reset = np.zeros((steps, num_envs), np.int8), np.zeros((steps, num_envs), bool)
        names = len(self.env.spec.info)
        self._info = np.full((steps, num_envs, names), np.nan, np.float32) if names else None
        types = {name: _action_types(policies[name], step.reward.shape[0]) for name, step in first.groups.items()}
        taken = {name: jax.eval_shape(policies[name].distribution.to_env, own) for name, own in types.items()}
        self._actions, self._taken = jax.tree.structure(types), jax.tree.structure(taken)
        self._acts = {name: None if step.acts is None else np.array(step.acts) for name, step in first.groups.items()}
        for name, step in first.groups.items():
            lanes = (steps, *step.reward.shape)
            absences = [None if flags is None else np.zeros(lanes, bool) for flags in (step.present, step.alive)]
            self._record[name] = Rollout(
                obs=at(self._obs[name], slice(0, steps)),
                action_mask=at(self._masks[name], slice(0, steps)),
                action=rows(types[name], steps),
                reward=np.zeros(lanes, np.float32),
                terminated=np.zeros(lanes, bool),
                truncated=np.zeros(lanes, bool),
                valid=np.zeros(lanes, bool),
                final_obs=rows(obs[name], steps),
                last_obs=None,
                carry=None,
                present=absences[0],
                alive=absences[1],
            )
        self._slots = [[self._slot(t, envs) for envs in self._envs] for t in range(steps)]
        self._act = [
            cached(
                key_of("act", self.behaviour.key, spans(part), reads_record(), self._frames.num),
                partial(compiled_actor, self.behaviour, part, self._chosen, (obs, masks)),
            )
            for part in self.env.parts
        ]

    def _slot(self, t: int, envs: slice) -> StepBuffers:
        stacks = self._frames.num > 1

        def lanes(tree: PyTree, name: str, t: int) -> PyTree:
            return at(tree, (t, lanes_of(envs, self._groups[name].size)))

        steps = {}
        for name, record in self._record.items():
            steps[name] = LaneStep(
                obs=lanes(self._obs[name], name, t + 1),
                action_mask=lanes(self._masks[name], name, t + 1),
                reward=lanes(record.reward, name, t),
                terminated=lanes(record.terminated, name, t),
                truncated=lanes(record.truncated, name, t),
                final_obs=lanes(record.final_obs, name, t),
                valid=lanes(record.valid, name, t),
                present=lanes(record.present, name, t),
                alive=lanes(record.alive, name, t),
                acts=at(self._acts[name], lanes_of(envs, self._groups[name].size)),
            )
        place = Timestep(
            groups=steps,
            reset=self._reset[t, envs],
            success=self._success[t, envs],
            critic_state=at(self._critic_state, (t + 1, envs)),
            info=at(self._info, (t, envs)),
        )
        finals = (
            {name: step.final_obs for name, step in steps.items()},
            at(self._final_critic_state, (t, envs)),
        )
        seen = self._whole
        if seen is None:
            seen = tuple({name: lanes(tree[name], name, t) for name in tree} for tree in (self._obs, self._masks))
        return StepBuffers(
            seen=jax.tree.leaves(seen),
            action=jax.tree.leaves({name: lanes(record.action, name, t) for name, record in self._record.items()}),
            outcome=jax.tree.leaves(_outcome(place, not stacks)),
            obs={name: (lanes(self._obs[name], name, t), steps[name].obs) for name in steps},
            ended=[np.asarray(step.truncated) for step in steps.values()],
            final=jax.tree.leaves(finals),
        )


def make_experience(
    state: RunnerState, played: HostRollout, success_return: SuccessReturn
) -> tuple[RunnerState, Experience]:
    """The experience of a rollout, with the episodes that finished in it, and where the environments stand after it."""

    def step(running: Running, now: Timestep) -> tuple[Running, Episodes]:
        return count_episodes(running, now, success_return)

    running = (state.episode_length, state.episode_return, state.episode_info)
    counted = jax.tree.map(jnp.asarray, outcomes(played))
    (length, returns, told), episodes = jax.lax.scan(step, running, counted, unroll=8)
    following = replace(after(state, played), episode_length=length, episode_return=returns, episode_info=told)
    return following, Experience(played.groups, played.critic_state, episodes)


def outcomes(played: HostRollout) -> Timestep:
    """What counting episodes needs of a rollout, leaves [T, ...]."""
    steps = {
        name: LaneStep(None, None, own.reward, own.terminated, own.truncated, None, own.valid)
        for name, own in played.groups.items()
    }
    return Timestep(steps, played.reset, played.success, info=played.info)


def after(state: RunnerState, played: HostRollout) -> RunnerState:
    """Where the environments stand after a rollout; of the running episodes nothing is counted here."""
    return replace(
        state,
        obs={name: own.last_obs for name, own in played.groups.items()},
        action_mask=played.action_mask,
        carry=played.carry,
        critic_state=None if played.critic_state is None else played.critic_state.last,
    )


def _action_types(policy: Policy, lanes: int) -> PyTree[jax.ShapeDtypeStruct]:
    """Shapes and types of actions [L, ...] in a policy's own coordinates."""

    def drawn(key: Key[Array, ""]) -> PyTree[Shaped[Array, "..."]]:
        outputs = jnp.zeros((lanes, policy.distribution.num_params), jnp.float32)
        return policy.distribution.sample(outputs, policy.distribution.noise(key, (lanes,)))

    return jax.eval_shape(drawn, jax.random.key(0))


def _outcome(moved: Timestep, shown: bool) -> PyTree:
    """What is written down of a step; of what lanes see only if it is `shown` as it is."""
    each = [
        (
            step.obs if shown else None,
            step.action_mask,
            *(step.reward, step.terminated, step.truncated, step.valid, step.present, step.alive, step.acts),
        )
        for step in moved.groups.values()
    ]
    return each, moved.reset, moved.success, moved.critic_state, moved.info


def _write(targets: list[NDArray[Any]], values: list[Any]) -> None:
    for target, value in zip(targets, values, strict=True):
        target[...] = value
