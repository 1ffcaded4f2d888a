"""`proximo check`: an environment is played with random actions, and what will work and what will not is said in
words."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proximo import envs
from proximo.compile import jit, prepare_backend
from proximo.config import Config
from proximo.envs import judge
from proximo.envs.api import Groups, HostEnv, HostSource, JaxEnv, Timestep
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.envs.grouping import with_groups
from proximo.envs.host.bounds import outside
from proximo.envs.host.num_workers import Player, random_action
from proximo.errors import EnvError, ProximoError, UserError
from proximo.rollout.any_agent import compiled_steps, host_steps
from proximo.spaces import Path, leaves, pick, shown, stacked
from proximo.train.setup import fresh_agents, resolve
from proximo.types import PyTree

NUM_ENVS = 2
STEPS, SECONDS = 2_000, 4.0
"""Of the main play; it ends with the first of the two."""
SHORT_STEPS, SHORT_SECONDS = 200, 0.7
"""Of each that is compared with it."""
SAVED_STEPS, MOST_PARTS = 20, 12
SEED = 0
Kind = Literal["ok", "note", "problem"]


class Finding(NamedTuple):
    """Something about an environment, in a sentence. A problem ends training, or keeps it from beginning."""

    kind: Kind
    about: str
    sentence: str


@dataclass
class EnvReport:
    """What was found of an environment."""

    env: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def trainable(self) -> bool:
        return all(finding.kind != "problem" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        found = [finding._asdict() for finding in self.findings]
        return {"env": self.env, "trainable": self.trainable, "findings": found}

    def __str__(self) -> str:
        return "\n".join(f"{kind:<8} {about}: {sentence}" for kind, about, sentence in self.findings)

    def add(self, kind: Kind, about: str, sentence: str | None) -> bool:
        """Add a finding, if there is a sentence; whether there is."""
        if sentence is not None:
            self.findings.append(Finding(kind, about, sentence))
        return sentence is not None


def check(
    env: Any,
    *,
    steps: int = STEPS,
    config: Any = None,
    preset: bool | str = True,
    progress: Callable[[str], Any] = len,
    **keywords: Any,
) -> EnvReport:
    """Play `env` with random actions for some seconds, and say in words what will work in training and what will not.

        print(proximo.check("CartPole-v1"))

    `env` and the keywords are as for `PPOTrainer`: an id, an environment, or a factory; settings. At most `steps` steps
    are made of each of two environments. `progress` is called with what is being looked at.
    """
    prepare_backend()
    given = resolve(env, config, preset, keywords)
    return check_configured(given.config, given.source, steps, progress)


def check_configured(
    config: Config, handed_in: Any = None, steps: int = STEPS, progress: Callable[[str], Any] = len
) -> EnvReport:
    """As `check`, of the environment that the settings name, or of a source that was handed in."""
    if steps < 1:
        raise UserError(f"A check takes at least 1 step, not {steps}.")
    report = EnvReport(config.env.id)
    progress("making it")
    try:
        source = envs.make_configured(config.env) if handed_in is None else handed_in
        source = with_groups(source, config.agents)
    except EnvError as error:
        report.add("problem", "reset", error.sentence)
        return report
    report.env = source.spec.id
    look_at_spaces(report, source, config)
    if not report.trainable:
        return report
    progress("stepping it with random actions")
    trial = Trial(source, config)
    try:
        played = trial.play(steps, SECONDS)
    except (EnvError, UserError) as error:
        report.add("problem", "step", _sentence(error))
        return report
    look_at_play(report, played, source, config)
    progress("comparing it with itself")
    compare(report, played, trial)
    if isinstance(source, HostSource):
        progress("putting it back where it was")
        look_at_resuming(report, trial)
    progress("measuring it")
    look_at_speed(report, played, source, config)
    if hasattr(source, "step_time"):
        progress("starting a worker process")
        look_at_workers(report, trial)
    look_at_info(report, source)
    return report


def _sentence(error: ProximoError) -> str:
    return error.sentence if isinstance(error, EnvError) else str(error)


# What is looked at.


def look_at_spaces(report: EnvReport, source: JaxEnv | HostSource, config: Config) -> None:
    """Whether policies can be made for the spaces."""
    groups = source.spec.groups
    try:
        fresh_agents(source.spec, config, None)
    except UserError as error:
        report.add("problem", "spaces", str(error))
    else:
        for name, group in groups.items():
            whose = f"{name} ({group.size}): " if groups.many else ""
            seen, does = str(group.observation_space), str(group.action_space)
            report.add("ok", "spaces", f"{whose}sees {_short(seen)}, does {_short(does)}.")
    free = [
        f"action{shown(path)}" + (f" of {name}" if groups.many else "")
        for name, group in groups.items()
        for path, leaf in leaves(group.action_space)
        if isinstance(leaf, spaces.Box) and not leaf.is_bounded("both")
    ]
    report.add("note", "actions", judge.unbounded_actions(free))
    if source.spec.critic_state_space is not None:
        report.add("ok", "critic", f"The critic sees besides: {_short(str(source.spec.critic_state_space))}.")


def look_at_play(report: EnvReport, played: Played, source: JaxEnv | HostSource, config: Config) -> None:
    """What the numbers of a play say."""
    steps, count = played.steps, len(played.lengths)
    for fatal, sentence in played.outside:
        report.add("problem" if fatal else "note", "spaces", sentence)
    limit = config.env.max_steps_per_episode or source.spec.max_steps
    if not report.add("note", "episodes", judge.no_end(count, steps, limit)):
        mean = f"{np.mean(played.lengths):,.0f} steps long on average" if count else f"longer than {steps:,} steps"
        known = f"; its limit is {limit:,} steps" if limit else ""
        how = f": {played.terminated} terminated, {played.truncated} were cut" if count else ""
        report.add("ok", "episodes", f"{count} episodes ended{how}; {mean}{known}.")
        report.add("note", "episodes", judge.same_length(played.lengths, played.terminated))
    low, high = played.least_and_greatest_reward()
    if not report.add("note", "rewards", judge.no_reward(low, high, steps)):
        spread = judge.return_spread(played.rewards, played.ended, config.ppo.gamma)
        if not report.add("note", "rewards", judge.reward_scale(spread, config.normalize.rewards)):
            how = "they are normalised (normalize.rewards)" if config.normalize.rewards else "which needs no scaling"
            report.add(
                "ok", "rewards", f"From {low:.3g} to {high:.3g}; discounted returns spread by {spread:.3g}: {how}."
            )
    report.add("note", "observations", judge.constant_observations(played.constant(source.spec.groups), steps))
    if played.masked is not None:
        report.add(
            "ok", "masks", f"It says which actions are allowed: {100 * played.masked:.0f} % of them, on average."
        )
    if played.said_success:
        report.add("ok", "success", "Episodes say whether they succeeded.")


def compare(report: EnvReport, played: Played, trial: Trial) -> None:
    """Whether the same seed and the same actions lead to the same; and other ones elsewhere."""
    with _told(report, "seeds"):
        again = trial.play(min(played.steps, SHORT_STEPS), SHORT_SECONDS)
        pairs = zip(played.digests, again.digests, strict=False)
        differ = next((t for t, (one, other) in enumerate(pairs) if one != other), None)
        if not report.add("note", "seeds", judge.not_repeated(differ)):
            other = trial.play(1, SHORT_SECONDS, seed=SEED + 1000)
            starts = "" if other.digests[0] != played.digests[0] else "; another seed starts alike"
            report.add("ok", "seeds", f"The same seed and the same actions lead to the same, to the bit{starts}.")
            idle = [name for name, part in action_parts(trial.groups) if trial.idle(part, played)]
            sentence = judge.idle_actions(idle, min(played.steps, SHORT_STEPS))
            if not report.add("note", "actions", sentence):
                report.add("ok", "actions", "What is done makes a difference.")


def look_at_resuming(report: EnvReport, trial: Trial) -> None:
    """Whether environments can be put back where they were."""
    with _told(report, "resume"):
        why = trial.restored()
        if why is None:
            report.add("ok", "resume", "A run that was stopped goes on exactly.")
        else:
            said = f"{why.rstrip('.')}. " if why else ""
            report.add("note", "resume", f"{said}A run that was stopped goes on with new episodes.")


def look_at_speed(report: EnvReport, played: Played, source: JaxEnv | HostSource, config: Config) -> None:
    """How long a step takes, and what that means."""
    number, total = trial_envs(source), config.train.total_timesteps
    together = played.seconds / max(played.steps - 1, 1)
    if not isinstance(source, HostSource):
        report.add("ok", "speed", "It is compiled with the policy: `proximo train` shows its steps per second.")
    elif not hasattr(source, "step_time"):
        report.add("ok", "speed", f"A step of {number} environments together takes {together * 1e6:,.0f} us.")
    else:
        said = ""
        if config.env.workers == "auto":
            workers, _ = source.step_time.choose_num_workers(config.env.num_envs, config.env)
            where = f"{workers} worker process{'es' if workers > 1 else ''}" if workers else "this process"
            said = f" {config.env.num_envs} environments would be stepped in {where} (env.workers)."
        taken = judge.duration_of(total, number / max(together, 1e-9))
        report.add(
            "ok",
            "speed",
            f"A step takes {together / number * 1e6:,.0f} us; {total:,} steps (train.total_timesteps) take {taken} one "
            f"after the other, without learning.{said}",
        )


def look_at_workers(report: EnvReport, trial: Trial) -> None:
    """Whether it can be stepped by worker processes."""
    try:
        trial.play(1, SHORT_SECONDS, workers=1)
    except (EnvError, UserError) as error:
        report.add("note", "workers", f"{_sentence(error)} With env.workers=0 it is stepped in the trainer's process.")
    else:
        report.add("ok", "workers", "Worker processes can step it.")


def look_at_info(report: EnvReport, source: Any) -> None:
    """Which numbers its info has, of one agent."""
    if not hasattr(source, "step_time") or source.spec.groups.many:
        return
    names: set[str] = set()
    with contextlib.suppress(Exception), contextlib.closing(source.factory()) as env:
        player = Player(env, source.mask_source)
        for _ in range(SAVED_STEPS):
            obs, _, terminated, truncated, info = env.step(player.action())
            names |= {str(key) for key, value in info.items() if _is_number(value)}
            if terminated or truncated:
                player.reset()
            else:
                player.see(obs, info)
    if names:
        report.add("ok", "info", f"Its info has numbers that can be reported (track.info): {', '.join(sorted(names))}.")


def _is_number(value: Any) -> bool:
    return not isinstance(value, str | bytes) and np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biuf"


@contextlib.contextmanager
def _told(report: EnvReport, about: str) -> Iterator[None]:
    """What fails here is a problem of the environment."""
    try:
        yield
    except (EnvError, UserError) as error:
        report.add("problem", about, _sentence(error))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 160 else f"{text[:160]}…"


# How it is played.


@dataclass
class Played:
    """What some steps of `NUM_ENVS` environments have shown."""

    digests: list[bytes] = field(default_factory=list)
    """Of what was seen at the reset and after each step."""
    seconds: float = 0.0
    low: dict[tuple[str, Path], NDArray[Any]] = field(default_factory=dict)
    high: dict[tuple[str, Path], NDArray[Any]] = field(default_factory=dict)
    reward_rows: list[NDArray[Any]] = field(default_factory=list)
    ended_rows: list[NDArray[Any]] = field(default_factory=list)
    valid_rows: list[NDArray[Any]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    terminated: int = 0
    truncated: int = 0
    allowed: list[float] = field(default_factory=list)
    said_success: bool = False
    outside: list[tuple[bool, str]] = field(default_factory=list)
    """Whether it ends training, and a sentence."""

    @property
    def steps(self) -> int:
        return len(self.reward_rows)

    @property
    def rewards(self) -> NDArray[Any]:
        return np.array(self.reward_rows)

    @property
    def ended(self) -> NDArray[Any]:
        return np.array(self.ended_rows)

    def least_and_greatest_reward(self) -> tuple[float, float]:
        counted = self.rewards[np.array(self.valid_rows)]
        return (float(counted.min()), float(counted.max())) if counted.size else (0.0, 0.0)

    @property
    def masked(self) -> float | None:
        """The share of actions that was allowed."""
        return float(np.mean(self.allowed)) if self.allowed else None

    def constant(self, groups: Groups) -> list[str]:
        """What never changed, over lanes and steps."""
        found = []
        for (name, path), low in self.low.items():
            whose = f" of {name}" if groups.many else ""
            found += [f"{entry}{whose}" for entry in judge.constant_entries(path, low, self.high[name, path])]
        return found


ActionPart = tuple[str, Path, int | None]
"""A group, a leaf of its actions, and which of the numbers there; None: all."""


def action_parts(groups: Groups) -> list[tuple[str, ActionPart]]:
    """The parts that an action consists of, by name; where there are very many, whole leaves."""
    found: list[tuple[str, ActionPart]] = []
    for name, group in groups.items():
        for path, leaf in leaves(group.action_space):
            title = f"action{shown(path)}" + (f" of {name}" if groups.many else "")
            size = int(np.prod(leaf.shape or ()))
            each = not isinstance(leaf, spaces.Discrete) and 1 < size <= MOST_PARTS and not groups.many
            parts = [(f"{title}[{i}]", (name, path, i)) for i in range(size)] if each else [(title, (name, path, None))]
            found += parts
    return found[:MOST_PARTS]


class Trial:
    """Plays an environment with random actions that are allowed."""

    def __init__(self, source: JaxEnv | HostSource, config: Config):
        self.source = source
        self.groups = source.spec.groups
        self._config = replace(config.env, num_envs=NUM_ENVS, groups=1)
        self._num_envs = trial_envs(source)
        self._compiled: Any = None
        self._spaces = {name: group.action_space for name, group in self.groups.items()}

    def play(
        self, steps: int, seconds: float, seed: int = SEED, workers: int = 0, changed: ActionPart | None = None
    ) -> Played:
        """At most so many steps, and seconds. The part of actions that is `changed` is drawn from other numbers."""
        played = Played()
        length = np.zeros(self._num_envs, int)
        with self._begun(seed, workers) as (now, step):
            self._look(played, now)
            draw, other = np.random.default_rng(SEED), np.random.default_rng(SEED + 1)
            until = 0.0
            for _ in range(steps):
                action = self._drawn(now, draw)
                if changed is not None:
                    action = _mixed(action, self._drawn(now, other), changed)
                before = time.perf_counter()
                now = step(action)
                after = time.perf_counter()
                until = until or after + seconds  # the first may have to be compiled
                played.seconds += after - before if played.steps else 0.0
                self._look(played, now)
                self._count(played, now, length)
                if after > until:
                    break
        return played

    def idle(self, part: ActionPart, played: Played) -> bool:
        """Whether other actions in this part lead to the same."""
        other = self.play(min(played.steps, SHORT_STEPS), SHORT_SECONDS, changed=part)
        return other.digests == played.digests[: len(other.digests)]

    def restored(self) -> str | None:
        """Why host environments cannot be put back where they were; None if they can."""
        played, again = Played(), Played()
        assert isinstance(self.source, HostSource)
        draw = np.random.default_rng(SEED)
        with contextlib.closing(self._opened(0)) as env:
            now = _copied(env.reset(SEED))
            for _ in range(SAVED_STEPS):
                now = _stepped(env, self._drawn(now, draw))
            states = env.get_states()
            actions = []
            for _ in range(SAVED_STEPS):
                actions.append(self._drawn(now, draw))
                now = _stepped(env, actions[-1])
                self._look(played, now)
        if any(state is None for state in states):
            return f"{self.source.spec.id} does not say where it is."
        with contextlib.closing(self._opened(0)) as env:
            env.reset(SEED + 1)
            if not env.set_states([state for state in states if state is not None]):
                return env.notices[-1] if env.notices else ""
            for action in actions:
                self._look(again, _stepped(env, action))
        same = played.digests == again.digests
        return None if same else "After it was put back where it was, it goes on in another way."

    def _opened(self, workers: int) -> HostEnv:
        assert isinstance(self.source, HostSource)
        return self.source.open_envs(self._num_envs, replace(self._config, workers=workers, on_error="stop"))

    @contextlib.contextmanager
    def _begun(self, seed: int, workers: int) -> Iterator[tuple[Timestep, Callable[[Any], Timestep]]]:
        """The first timestep, and a function from actions to the next."""
        if isinstance(self.source, HostSource):
            with contextlib.closing(self._opened(workers)) as env:
                steps = host_steps(env, seed)
                yield next(steps), steps.send
        else:
            if self._compiled is None:
                vector = VectorizedEnv(self.source, self._num_envs, self._config.max_steps_per_episode)
                self._compiled = jit(vector.reset), jit(vector.step)
            reset, step = self._compiled
            steps = compiled_steps(reset, step, seed)
            yield next(steps), steps.send

    def _drawn(self, now: Timestep, random: np.random.Generator) -> dict[str, PyTree]:
        """Random actions of all lanes."""
        found = {}
        for name, space in self._spaces.items():
            moved = now.groups[name]
            lanes = moved.reward.shape[0]
            masks: Any = [None] * lanes if moved.action_mask is None else np.asarray(moved.action_mask)
            usable = [mask if mask is not None and mask.any() else None for mask in masks]
            found[name] = stacked(space, [random_action(space, mask, random) for mask in usable])
        return found

    def _look(self, played: Played, now: Timestep) -> None:
        """Take in what was seen."""
        digest = hashlib.blake2b(digest_size=8)
        for name, group in self.groups.items():
            moved = now.groups[name]
            for path, leaf in leaves(group.observation_space):
                values = np.asarray(pick(moved.obs, path))
                digest.update(values.tobytes())
                there = values if moved.alive is None else values[np.asarray(moved.alive)]
                if not len(there):
                    continue
                key, low, high = (name, path), there.min(axis=0), there.max(axis=0)
                played.low[key] = np.asarray(np.minimum(played.low.get(key, low), low))
                played.high[key] = np.asarray(np.maximum(played.high.get(key, high), high))
                self._look_at_bounds(played, key, leaf, there)
            for flags in (moved.reward, moved.terminated, moved.truncated, moved.action_mask):
                digest.update(b"" if flags is None else np.asarray(flags).tobytes())
            if moved.action_mask is not None:
                played.allowed.append(float(np.mean(np.asarray(moved.action_mask))))
        played.digests.append(digest.digest())

    def _look_at_bounds(self, played: Played, key: tuple[str, Path], leaf: Any, values: NDArray[Any]) -> None:
        title = f"observation{shown(key[1])}"
        if any(sentence.startswith(f"{title} ") for _, sentence in played.outside):
            return
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            played.outside.append((True, f"{title} is not finite."))
        elif (wrong := outside(leaf, values[None])) is not None:
            fatal = values.dtype.kind != "f"
            what = "training would end there" if fatal else "it would be used as it is, and said once"
            played.outside.append((fatal, f"{title} is {values[wrong[1:]]}, outside of its space {leaf}: {what}."))

    def _count(self, played: Played, now: Timestep, length: NDArray[Any]) -> None:
        lanes = now.groups.values()
        counted = np.any([np.asarray(moved.valid).reshape(self._num_envs, -1).any(1) for moved in lanes], axis=0)
        over = np.asarray(now.reset)
        length += counted
        ends = np.any([np.asarray(moved.terminated).reshape(self._num_envs, -1).any(1) for moved in lanes], axis=0)
        played.lengths += [int(number) for number in length[over]]
        played.terminated += int((over & ends).sum())
        played.truncated += int((over & ~ends).sum())
        played.said_success |= bool((np.asarray(now.success)[over] >= 0).any())
        length[over] = 0
        played.reward_rows.append(np.concatenate([np.asarray(moved.reward, np.float64) for moved in lanes]))
        played.valid_rows.append(np.concatenate([np.asarray(moved.valid) for moved in lanes]))
        played.ended_rows.append(np.concatenate([np.asarray(moved.ended) for moved in lanes]))


def trial_envs(source: JaxEnv | HostSource) -> int:
    """How many environments are played."""
    return min(NUM_ENVS, getattr(source, "num_envs", None) or NUM_ENVS)


def _mixed(action: dict[str, PyTree], other: dict[str, PyTree], part: ActionPart) -> dict[str, PyTree]:
    """`action` with a part of another."""
    name, path, index = part
    ours, theirs = pick(action[name], path), pick(other[name], path)
    if index is None:
        ours[...] = theirs
    else:
        ours.reshape(len(ours), -1)[:, index] = theirs.reshape(len(theirs), -1)[:, index]
    return action


def _stepped(env: HostEnv, action: dict[str, PyTree]) -> Timestep:
    env.send(0, action)
    return _copied(env.recv(0))


def _copied(now: Timestep) -> Timestep:
    copied: Timestep = jax.tree.map(np.array, now)
    return copied
