"""The one evaluator: policies on environments of their own, every environment with its own quota of episodes.

A quota per environment keeps short episodes from being counted more often than long ones: the first N episodes to
finish would be mostly short ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from numpy.typing import NDArray

from proximo.compile import cached, compiled, jit, key_of, shapes
from proximo.config import EnvConfig, EvalConfig
from proximo.envs.api import Groups, HostEnv, HostSource, JaxEnv, with_info
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.policy.behaviour import Behaviour, draw_noise
from proximo.policy.policies import Policies
from proximo.rollout.compiled import CompiledRunner, StepView
from proximo.rollout.episodes import Running, any_member, count_episodes, info_metrics, no_info
from proximo.rollout.host import HostRunner, after, outcomes
from proximo.rollout.host_actor import packed
from proximo.rollout.summary import Evaluation
from proximo.rollout.types import Episodes, RunnerState
from proximo.seeding import EVALUATION_OFFSET, evaluation_action_key, evaluation_key
from proximo.types import AnyArray, PyTree

MAX_ENVS = 64
STEPS_PER_CALL, HOST_STEPS = 64, 16
"""Steps that are made at once: few enough that Ctrl-C is answered, and few are in vain when the last episode ends.
Of host environments they are recorded, which takes memory."""


@runtime_checkable
class Evaluator(Protocol):
    """Evaluation of policies; frozen statistics, environments and random streams of its own."""

    notices: list[str]
    """What the user should know; whoever shows them takes them away."""
    played: int
    """Episodes that the running call has finished: for `stop`, which is asked again and again."""

    def __call__(self, chosen: PyTree, stop: Callable[[], bool] = bool) -> Evaluation | None:
        """Evaluate; what is `chosen` (see `Behaviour`) always gives the same result. If `stop` became true on the way,
        the episodes that were finished, which is not `complete`; None if there were none."""
        ...

    def close(self) -> None: ...


def make_evaluator(
    source: JaxEnv | HostSource,
    behaviour: Behaviour,
    episodes: int,
    env: EnvConfig,
    seed: int,
    success_return: float | None = None,
    deterministic: bool = True,
    max_steps: int = EvalConfig.max_steps,
    info: tuple[str, ...] = (),
) -> Evaluator:
    """The evaluator for `episodes` episodes of an environment, of either kind. Actions are the most likely ones, or
    drawn where `deterministic` is false; `success_return` and `info` are settings of `track`, `max_steps` is one of
    `eval`."""
    limit = step_limit(source, env, max_steps)
    own = None if source.spec.max_steps or env.max_steps_per_episode else limit
    env = replace(env, max_steps_per_episode=limit)
    key = None if deterministic else evaluation_action_key(seed)
    host = isinstance(source, HostSource)
    quota = quotas(episodes, min(episodes, env.num_envs if host else MAX_ENVS))
    play: Play
    if isinstance(source, HostSource):
        play = HostPlay(with_info(source, info), behaviour, len(quota), env, seed, key, success_return)
    else:
        vector = VectorizedEnv(source, len(quota), limit, info=info)
        play = CompiledPlay(CompiledRunner(vector, behaviour, env.frame_stack), seed, key, success_return)
    return QuotaEvaluator(play, quota, source.spec.groups, Cuts(own), info)


def step_limit(source: JaxEnv | HostSource, env: EnvConfig, max_steps: int) -> int | None:
    """Steps after which an evaluated episode is cut; None where the environment sees to that. Without any limit an
    evaluation might not end."""
    return env.max_steps_per_episode or (None if source.spec.max_steps else max_steps)


class Cuts:
    """Which episodes `eval.max_steps` has cut, `limit` being that where it is what limits them, else None."""

    def __init__(self, limit: int | None):
        self.limit = limit
        self._noticed = False

    def count(self, truncated: Bool[AnyArray, " N"], lengths: Int[AnyArray, " N"]) -> int:
        """Of finished episodes, those that were cut."""
        return int((truncated & (lengths >= self.limit)).sum()) if self.limit else 0

    def in_words(self, cut: int, episodes: int) -> list[str]:
        """What the user should know, the first time that any were."""
        if not cut or self._noticed:
            return []
        self._noticed = True
        said = f"{cut} of {episodes} episodes were cut after {self.limit:,} steps"
        return [f"{said}: the environment names no limit, and eval.max_steps sets one."]


def quotas(episodes: int, num_envs: int) -> Int[NDArray[Any], " {num_envs}"]:
    """Episodes that each environment plays: `episodes` in all, as equal as they can be."""
    return np.full(num_envs, episodes // num_envs) + (np.arange(num_envs) < episodes % num_envs)


class Played(NamedTuple):
    """What finished in some steps."""

    episodes: Episodes
    truncated: Bool[AnyArray, "*T E"]
    """Whether somebody's episode was cut."""


@runtime_checkable
class Play(Protocol):
    """Episodes on environments of either kind."""

    notices: list[str]

    def __call__(self, chosen: PyTree, stop: Callable[[Bool[NDArray[Any], "t E"]], bool]) -> Iterator[Played]:
        """All environments from their start on, for ever, some steps at a time. `stop` may be asked within them, with
        the ends of episodes [T, E] since the last time that some were given out."""
        ...

    def close(self) -> None: ...


class QuotaEvaluator:
    """An `Evaluator`: plays until every environment has met its quota."""

    def __init__(self, play: Play, quota: NDArray[Any], groups: Groups, cuts: Cuts, info: tuple[str, ...] = ()):
        self.quota = quota
        self.played = 0
        self.notices: list[str] = []
        self._play = play
        self._groups = groups
        self._cuts = cuts
        self._info = info

    def __call__(self, chosen: PyTree, stop: Callable[[], bool] = bool) -> Evaluation | None:
        finished: list[list[Any]] = [[] for _ in self.quota]
        self.played = 0
        if stop():
            return None

        def counts(more: Any = 0) -> NDArray[Any]:
            found: NDArray[Any] = np.minimum(np.array([len(episodes) for episodes in finished]) + more, self.quota)
            return found

        def enough(ends: NDArray[Any]) -> bool:
            self.played = int((now := counts(ends.sum(0))).sum())
            return stop() or bool((now == self.quota).all())

        for played in self._play(chosen, enough):
            ended = played.episodes.length > 0
            for t, env in np.argwhere(ended):
                row = jax.tree.map(lambda leaf, t=t, env=env: leaf[t, env], tuple(played))
                finished[env].append(row)
            self.played = int((now := counts()).sum())
            if (now == self.quota).all():
                break
            if stop():
                break
        rows = [row for episodes, quota in zip(finished, self.quota, strict=True) for row in episodes[:quota]]
        if not rows:
            return None
        found = Played(*jax.tree.map(lambda *leaves: np.array(leaves), *rows))
        return self._evaluation(found)

    def close(self) -> None:
        self._play.close()

    def _evaluation(self, played: Played) -> Evaluation:
        episodes = played.episodes
        cut = self._cuts.count(played.truncated, episodes.length)
        self.notices += self._play.notices + self._cuts.in_words(cut, len(episodes.length))
        self._play.notices.clear()
        each = np.concatenate([episodes.members[name] for name in self._groups], axis=-1).astype(np.float64)
        told = [row for part in (episodes.info, episodes.info_mean) if part is not None for row in part.T]
        return Evaluation(
            returns=np.asarray(episodes.episode_return, np.float64),
            lengths=np.asarray(episodes.length, np.float64),
            successes=np.asarray(episodes.success),
            cut=cut,
            agents=self._groups.by_name(each),
            by_agent=each,
            complete=len(episodes.length) == int(self.quota.sum()),
            info=dict(zip(info_metrics(self._info), told, strict=True)),
        )


class CompiledPlay:
    """`Play` inside a compiled program."""

    def __init__(self, runner: CompiledRunner, seed: int, key: jax.Array | None, success_return: float | None):
        self.notices: list[str] = []
        self._runner = runner
        self._keys = (evaluation_key(seed), key)
        self._success_return = success_return
        self._start: Any = None
        self._run: Any = None

    def __call__(self, chosen: PyTree, stop: Callable[[Bool[NDArray[Any], "t E"]], bool]) -> Iterator[Played]:
        program = key_of(self._runner.key, (self._keys[1] is None, self._success_return))
        if self._start is None:
            start = self._runner.start
            self._start = compiled(key_of("evaluation begins", program), lambda key: start(key), self._keys[0])
        state = self._start(self._keys[0])
        if self._run is None:
            key = key_of("evaluation", program, shapes(chosen))
            self._run = compiled(key, self._steps, self._keys, chosen, state, np.int32(0))
        step = 0
        while True:
            state, played = self._run(self._keys, chosen, state, np.int32(step))
            yield jax.tree.map(np.asarray, played)
            step += STEPS_PER_CALL

    def close(self) -> None:
        """Nothing is held open."""

    def _steps(
        self,
        keys: tuple[Key[Array, ""], Key[Array, ""] | None],
        chosen: PyTree,
        state: RunnerState,
        first: Int[Array, ""],
    ) -> tuple[RunnerState, Played]:
        num_envs = self._runner.env.num_envs
        steps = first + jnp.arange(STEPS_PER_CALL, dtype=jnp.int32)
        noise = step_noise(self._runner.behaviour.policies, keys[1], num_envs, steps)
        env_keys = jax.vmap(lambda step: jax.random.fold_in(keys[0], step))(steps)

        def keep(view: StepView) -> Played:
            truncated = {name: step.truncated for name, step in view.outcome.groups.items()}
            return Played(view.episodes, any_member(truncated, num_envs))

        return self._runner.run(chosen, state, noise, env_keys, keep, self._success_return)


def step_noise(
    policies: Policies, key: Key[Array, ""] | None, num_envs: int, steps: Int[Array, " T"]
) -> dict[str, PyTree[Float[Array, "T _ ..."]]] | None:
    """What actions are drawn from at the `steps`, [T, L, ...]: addressed by the step. None without a key."""
    if key is None:
        return None
    return jax.vmap(lambda step: draw_noise(policies, jax.random.fold_in(key, step), num_envs))(steps)


class HostPlay:
    """`Play` on host environments; they are started when first needed."""

    def __init__(
        self,
        source: HostSource,
        behaviour: Behaviour,
        num_envs: int,
        env: EnvConfig,
        seed: int,
        key: jax.Array | None,
        success_return: float | None,
    ):
        self.notices: list[str] = []
        self._source = source
        self._behaviour = behaviour
        self._num_envs = num_envs
        self._config = env
        self._seed = seed + EVALUATION_OFFSET
        self._key = key
        self._env: HostEnv | None = None
        self._runner: HostRunner | None = None
        policies = behaviour.policies
        self._noise = cached(
            key_of("evaluation's noise", policies.key, num_envs, key is None),
            lambda: jit(lambda key, steps: step_noise(policies, key, num_envs, steps)),
        )
        self._success_return = success_return

    def __call__(self, chosen: PyTree, stop: Callable[[Bool[NDArray[Any], "t E"]], bool]) -> Iterator[Played]:
        if self._env is None:
            self._env = self._source.open_envs(self._num_envs, self._config)
            self._env.notices.clear()  # how they are stepped was said when training began
            given = (self._env, self._behaviour, HOST_STEPS, chosen, self._config.frame_stack)
            self._runner = HostRunner(*given, look_at_bounds=False)  # in training that is done
        env, runner = self._env, self._runner
        assert runner is not None
        state, first, acting = runner.start(self._seed), 0, packed(chosen)
        # In double precision, which there is outside of compiled programs.
        running: Running = (
            np.zeros(self._num_envs, np.int64),
            {name: np.zeros((self._num_envs, group.size)) for name, group in env.spec.groups.items()},
            no_info(self._num_envs, len(env.spec.info), np),
        )
        while True:
            noise = self._noise(self._key, jnp.arange(first, first + HOST_STEPS, dtype=jnp.int32))
            done = runner.run(acting, state, noise, lambda: stop(runner.ends))
            played = runner.rollout(state, done)
            self.notices += env.notices
            env.notices.clear()
            found: list[Played] = []
            for t in range(done):
                now = jax.tree.map(lambda leaf, t=t: leaf[t], outcomes(played))
                running, episodes = count_episodes(running, now, self._success_return, np)
                truncated = {name: step.truncated for name, step in now.groups.items()}
                found.append(Played(episodes, any_member(truncated, self._num_envs)))
            yield jax.tree.map(lambda *rows: np.stack(rows), *found)
            state = after(state, played)
            first += done

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = self._runner = None
