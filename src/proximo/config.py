"""Every setting of a run: its type, its default, its limits and one line of help, each in one place.

A `Config` is frozen. It is read from YAML, overridden key by key, and written back whole, so that the file
in a run's directory reproduces the run. How values are read and checked is in `settings.py`.
"""

# ruff: noqa: RUF009 (`setting` is dataclasses.field under another name)

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proximo.errors import UserError, quoted
from proximo.metric_names import same_to_trackers

Schedule = Literal["constant", "linear", "cosine"]
MAX_WORKERS = 255
MAX_SHARDS = 1_024
MAX_SEED = 2**31 - 1 - 10_000  # so that every seed derived from it fits 32 bits, see `seeding.py`
MOST_ENVS = 2**20
MOST = 10**9  # of what is counted: nobody lives to see more
MOST_STEPS = 10**18  # of a run; counters hold that
MOST_SAMPLES = 2**31 - 1  # of an update: more cannot be numbered
WIDEST = 2**16
WRAPPER = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*[:.][^\W\d]\w*(\.[^\W\d]\w*)*")
"""The name of a wrapper: of its module, and of a class there."""
MINIBATCH = 256  # samples: the most that are taken where the size is left open, without memory
MINIBATCHES = 4  # of an update, with memory
SEQUENCES = 4  # of a minibatch, with memory
LARGEST_TRIED = 10**6  # divisors: nonsense in a file must not take for ever
RateSchedule = Literal["constant", "linear", "cosine", "adaptive"]


def setting(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    most: int | None = None,
    address: bool = False,
    by_action: tuple[float, float] | None = None,
) -> Any:
    """Declare a setting: its default, what it does, the range it must lie in, and how many may be listed. An `address`
    is kept without the user and the password in it. With `by_action` the default is `auto`: the first of these where
    all actions are discrete, the second where some are continuous; `settings.settle` takes it."""
    if by_action is not None:
        discrete, continuous = by_action
        help = f"{help} auto: {discrete:g} for discrete actions, {continuous:g} if any is continuous."
    limits = {"at_least": at_least, "at_most": at_most, "above": above, "most": most}
    metadata = {"help": help, "address": address, "by_action": by_action} | limits
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class EnvConfig:
    """The environment, and how many copies of it run in parallel."""

    id: str = setting("CartPole-v1", "The environment to train on; `proximo envs` lists them.")
    kwargs: dict[str, Any] | None = setting(
        None,
        "Arguments passed to the environment, such as {continuous: true, gravity: -5}; null: none.",
        most=1000,
    )
    wrappers: tuple[str | dict[str, Any], ...] = setting(
        (),
        "Wrappers applied to it, innermost first: names such as gymnasium.wrappers:FlattenObservation, or "
        "{name: gymnasium.wrappers:TimeLimit, max_episode_steps: 50}.",
        most=100,
    )
    num_envs: int = setting(16, "Environments stepped in parallel.", at_least=1, at_most=MOST_ENVS)
    workers: Literal["auto"] | int = setting(
        "auto",
        "Worker processes that step host environments (threads for EnvPool); 0: none; auto: chosen by measuring.",
        at_least=0,
        at_most=MAX_WORKERS,
    )
    groups: int = setting(
        2,
        "Groups that host environments are split into: the policy acts for one while the others are stepped.",
        at_least=1,
        at_most=MOST_ENVS,
    )
    timeout: float = setting(
        60.0, "Seconds a host environment may take to start, reset or step.", above=0, at_most=10**6
    )
    on_error: Literal["stop", "restart"] = setting(
        "stop", "When a host environment fails: end the run, or restart that environment."
    )
    max_restarts: int = setting(
        10, "Restarts of failed host environments before the run ends.", at_least=0, at_most=MOST
    )
    replay_limit: int = setting(
        20_000,
        "Longest episode, in steps, that is replayed to restore a host environment on resume, which takes as long as "
        "playing it did; longer ones (0: all) are replaced by new episodes.",
        at_least=0,
        at_most=MOST,
    )
    start_method: Literal["forkserver", "spawn", "fork"] = setting(
        "forkserver", "How worker processes are started; fork is fast but unsafe with threads."
    )
    max_steps_per_episode: int | None = setting(
        None,
        "Truncate episodes after this many steps; null: only at the environment's own limit.",
        at_least=1,
        at_most=MOST,
    )
    frame_stack: int = setting(
        1, "Number of recent observations that the policy sees at once, newest last.", at_least=1, at_most=64
    )


@dataclass(frozen=True)
class PPOConfig:
    """The algorithm."""

    rollout_length: int = setting(128, "Steps per environment between updates.", at_least=1, at_most=MOST)
    epochs_per_update: int = setting(10, "Passes over the rollout in each update.", at_least=1, at_most=10_000)
    minibatch_size: Literal["auto"] | int = setting(
        "auto",
        f"Samples per gradient step; must divide num_envs * rollout_length (times the agents that share a policy). "
        f"auto: the largest size up to {MINIBATCH} that does; with memory, a quarter of the batch.",
        at_least=1,
        at_most=MOST_SAMPLES,
    )
    learning_rate: float = setting(1e-3, "Adam's step size (the actor's, with separate optimizers).", above=0)
    learning_rate_schedule: RateSchedule = setting(
        "linear", "How the learning rate changes over training; adaptive: keeps the KL near adaptive_kl."
    )
    learning_rate_end: float = setting(0.0, "Final value of a linear or cosine learning rate.", at_least=0)
    critic_learning_rate: float | None = setting(
        None, "The critic's step size, with separate optimizers; null: same as learning_rate.", above=0
    )
    adaptive_kl: float = setting(0.01, "KL per update that an adaptive learning rate aims for.", above=0)
    gamma: float = setting(0.99, "Discount factor.", at_least=0, at_most=1)
    gae_lambda: float = setting(0.95, "Trace decay of generalised advantage estimation.", at_least=0, at_most=1)
    clip_epsilon: float = setting(0.2, "Clip range of the probability ratio around 1.", above=0)
    clip_epsilon_schedule: Schedule = setting("constant", "How clip_epsilon changes over training.")
    clip_epsilon_end: float = setting(0.0, "Final value of a linear or cosine clip_epsilon.", at_least=0)
    clip_value: float | None = setting(
        None, "Clip range of values around the old ones in the value loss; null: plain squared error.", above=0
    )
    entropy_coef: Literal["auto"] | float = setting(
        "auto", "Weight of the entropy bonus.", at_least=0, by_action=(0.01, 0.0)
    )
    entropy_coef_schedule: Schedule = setting("constant", "How entropy_coef changes over training.")
    entropy_coef_end: float = setting(0.0, "Final value of a linear or cosine entropy_coef.", at_least=0)
    value_coef: float = setting(0.5, "Weight of the value loss.", at_least=0)
    sequence_length: int | None = setting(
        None,
        f"Steps that gradients flow back through, with memory; null: as many as divide the rollout and the minibatch, "
        f"or fewer if a minibatch would hold fewer than {SEQUENCES} sequences.",
        at_least=1,
        at_most=MOST,
    )
    max_grad_norm: float | None = setting(0.5, "Global norm that gradients are clipped to; null: no clipping.", above=0)
    normalize_advantages: Literal["minibatch", "batch", "none"] = setting(
        "minibatch", "Standardise advantages within each minibatch, over the whole batch, or not at all."
    )
    recompute_advantages: bool = setting(
        False,
        "Recompute values, advantages and targets with the current critic before each epoch.",
    )
    target_kl: float | None = setting(
        None, "Skip an update's remaining epochs once an epoch's KL exceeds this.", above=0
    )
    optimizers: Literal["shared", "separate"] = setting(
        "shared", "One Adam and one gradient norm for actor and critic together, or one for each."
    )
    adam_epsilon: float = setting(1e-5, "Constant that Adam adds to its denominator.", above=0)
    own: tuple[Literal["loss", "optimizer"], ...] = setting(
        (), "Built-in parts that were replaced from Python; set by PPOTrainer(loss=..., optimizer=...).", most=2
    )


@dataclass(frozen=True)
class NetworkConfig:
    """The networks: actor and critic are two, of the same shape, or one with two heads."""

    torso: Literal["separate", "shared"] = setting(
        "separate", "Whether actor and critic have encoders and hidden layers of their own, or share them."
    )
    hidden_sizes: tuple[int, ...] = setting(
        (64, 64), "Widths of the hidden layers (after the CNN, for images).", at_least=1, at_most=WIDEST, most=100
    )
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = setting(
        "tanh", "Activation function of the hidden layers."
    )
    memory: Literal["none", "gru", "lstm"] = setting(
        "none",
        "Recurrent cell after the hidden layers, which remembers from step to step; none: no memory.",
    )
    memory_size: int = setting(
        64, "Size of the recurrent cell's state (an LSTM has two of that size).", at_least=1, at_most=WIDEST
    )
    layer_norm: bool = setting(False, "Apply LayerNorm to each hidden layer, before its activation.")
    cnn: Literal["auto", "small", "nature", "impala"] = setting(
        "auto",
        "Image encoder: by image size, one or two layers, Atari's three (36 x 36 or larger), or IMPALA's ResNet.",
    )
    embed: int | None = setting(
        None,
        "Size of the learned embedding of a discrete observation; null: one-hot encoding.",
        at_least=1,
        at_most=WIDEST,
    )
    continuous: Literal["gaussian", "tanh_gaussian", "beta"] = setting(
        "gaussian", "Distribution of continuous actions: clipped to the bounds, squashed into them, or defined on them."
    )
    std: Literal["free", "state"] = setting(
        "free", "Standard deviation of Gaussian actions: one for all states, or computed by the network."
    )
    initial_std: float = setting(1.0, "Initial standard deviation of Gaussian actions.", above=0)


@dataclass(frozen=True)
class NormalizeConfig:
    """Running statistics; part of the policy, saved with it and frozen in evaluation."""

    observations: bool = setting(True, "Standardise continuous observations.")
    rewards: bool = setting(True, "Divide rewards by the running standard deviation of the discounted return.")
    clip_rewards: float | None = setting(
        None,
        "Clip rewards to plus or minus this before they are normalised; reported returns are not clipped.",
        above=0,
    )


@dataclass(frozen=True)
class AgentsConfig:
    """Environments with many agents: who learns together, from what, and against whom."""

    policy: Literal["auto", "shared", "independent", "groups"] = setting(
        "auto",
        "One policy for all agents, for each agent, or for each group; auto: shared if all are alike, else groups.",
    )
    members: dict[str, tuple[str, ...]] | None = setting(
        None,
        "Agents of each group, such as {wolf: [wolf_0, wolf_1], hare: [hare_0]}; null: the environment's own.",
        most=10_000,
    )
    identity: bool = setting(False, "Tell each agent which member of its group it is.")
    critic: Literal["own", "central"] = setting(
        "own", "What critics see: their agent's observation, or also the environment's state (or all observations)."
    )
    reward: Literal["own", "team"] = setting(
        "own", "What agents learn from: their own rewards, or the mean over all agents present."
    )
    selfplay: float = setting(
        0.0, "Fraction of environments in which earlier policies play all sides but one.", at_least=0, at_most=1
    )
    selfplay_every: int = setting(
        10, "Updates between policies that join the pool of opponents.", at_least=1, at_most=MOST
    )
    selfplay_pool: int = setting(
        10, "Policies in the pool of opponents, spread over the whole run.", at_least=1, at_most=1000
    )
    sides: dict[str, tuple[str, ...]] | None = setting(
        None, "Agents of each side; null: each group is a side, or each agent if there is only one group.", most=10_000
    )


@dataclass(frozen=True)
class TrainConfig:
    """The budget of a run: it ends when the first of these is used up."""

    total_timesteps: int = setting(
        1_000_000, "Environment steps to train for, rounded up to whole updates.", at_least=1, at_most=MOST_STEPS
    )
    max_episodes: int | None = setting(None, "Episodes to train for; null: no limit.", at_least=1, at_most=MOST_STEPS)
    max_seconds: float | None = setting(None, "Seconds to train for; null: no limit.", above=0)
    on_nonfinite: Literal["stop", "skip"] = setting(
        "stop", "When an update's loss, gradient or parameters are not finite: end the run, or undo that update."
    )
    shards: int = setting(
        1,
        "Devices that one learner is divided over, each with its share of the environments. Another number is another "
        "order of sums and other random numbers.",
        at_least=1,
        at_most=MAX_SHARDS,
    )
    schedule_start: int = setting(
        0,
        "Environment steps before schedules begin; `proximo resume --restart-schedules` sets it.",
        at_least=0,
        at_most=MOST_STEPS,
    )
    start_from: str | None = setting(
        None, "Saved policy to start from: a run, a checkpoint or a policy file; null: new networks."
    )
    start_partial: bool = setting(
        False, "Load only the layers and statistics of train.start_from that fit, and start the others afresh."
    )
    start_digest: str | None = setting(
        None, "Checksum that train.start_from must have; a run records it so that its settings reproduce it."
    )


@dataclass(frozen=True)
class StopConfig:
    """When a run has reached its goal."""

    target_reward: float | None = setting(
        None, "Average return that counts as solved once an evaluation confirms it; null: no goal."
    )
    on: Literal["training", "evaluation"] = setting(
        "training", "Which returns are judged: those of windows of training episodes, or those of evaluations."
    )
    convergence_window: int = setting(100, "Training episodes in a window.", at_least=1, at_most=10**6)
    early_stopping_patience: int = setting(
        10, "Consecutive windows that must reach the target before an evaluation decides.", at_least=1, at_most=MOST
    )


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation, on environments of its own."""

    frequency: int = setting(50, "Updates between evaluations; 0: only at the end.", at_least=0, at_most=MOST)
    episodes: int = setting(10, "Episodes per evaluation.", at_least=1, at_most=10**6)
    actions: Literal["deterministic", "stochastic", "both"] = setting(
        "deterministic",
        "Actions: always the most likely ones, sampled ones as in training, or both in turn.",
    )
    score: Literal["auto", "deterministic", "stochastic"] = setting(
        "auto", "With eval.actions=both, which kind chooses the best policy and is the score; auto: deterministic."
    )
    max_steps: int = setting(
        10_000,
        "Truncate episodes after this many steps if neither the environment nor env sets a limit.",
        at_least=1,
        at_most=MOST,
    )


@dataclass(frozen=True)
class CheckpointConfig:
    """What is saved during training: states to resume from, and policies."""

    every_steps: int | None = setting(
        None, "Environment steps between checkpoints; null: by time only.", at_least=1, at_most=MOST_STEPS
    )
    every_seconds: float | None = setting(
        60.0, "Seconds between checkpoints (more if writing one takes over 1 % of that); null: by steps only.", above=0
    )
    keep: int = setting(
        3, "Most recent checkpoints to keep; the best one is kept in addition.", at_least=1, at_most=MOST
    )
    num_checkpoints: int = setting(
        5,
        "Policies saved during training, evenly spaced over total_timesteps: models/pi_ckpt1, pi_ckpt2, ...",
        at_least=0,
        at_most=1000,
    )


@dataclass(frozen=True)
class TrackConfig:
    """What is reported, and to which MLflow."""

    mlflow: bool = setting(
        True, "Track runs in MLflow; the environment variable PROXIMO_MLFLOW=0 turns this off everywhere."
    )
    tracking_uri: str | None = setting(
        None,
        "MLflow's address; null: MLFLOW_TRACKING_URI, or else mlflow.db beside the run's folder.",
        address=True,
    )
    experiment_name: str | None = setting(None, "Name of the MLflow experiment; null: the environment's id.")
    video: bool = setting(False, "Record an episode of the final policy as videos/final.mp4 and .gif.")
    log_frequency: Literal["auto"] | int = setting(
        "auto",
        "Updates between rows sent to MLflow; auto: 10, and more when training is fast. The first and last rows "
        "are always sent, and so are evaluations (auto: some of them).",
        at_least=1,
        at_most=MOST,
    )
    recent_episodes: int = setting(
        100, "Episodes that the `recent` statistics are averaged over.", at_least=1, at_most=10**6
    )
    checkpoints: bool = setting(
        True, "Send MLflow the last and the best checkpoint at the end; each is about three times the networks' size."
    )
    success_return: float | None = setting(
        None,
        "Return that makes an episode a success, unless the environment decides; null: every episode that terminates.",
    )
    info: tuple[str, ...] = setting(
        (),
        "Numbers in the environment's info that are reported of each episode, such as [profit, drawdown]: their value "
        "at its end, and their mean over its steps.",
        most=100,
    )


@dataclass(frozen=True)
class Config:
    """Everything a run depends on."""

    seed: int = setting(0, "Seed from which every random stream of the run is derived.", at_least=0, at_most=MAX_SEED)
    env: EnvConfig = dataclasses.field(default_factory=EnvConfig)
    ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    normalize: NormalizeConfig = dataclasses.field(default_factory=NormalizeConfig)
    agents: AgentsConfig = dataclasses.field(default_factory=AgentsConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    stop: StopConfig = dataclasses.field(default_factory=StopConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    track: TrackConfig = dataclasses.field(default_factory=TrackConfig)

    @property
    def frames_per_batch(self) -> int:
        """Environment steps that one update learns from."""
        return self.env.num_envs * self.ppo.rollout_length

    @property
    def envs_per_shard(self) -> int:
        """Environments of each device that the learner is divided over."""
        return self.env.num_envs // self.train.shards

    @property
    def minibatch_size(self) -> int:
        """Samples per gradient step: as set, or as `open_minibatch` chooses for one agent."""
        return self.ppo.minibatch_size if isinstance(self.ppo.minibatch_size, int) else open_minibatch(self)

    @property
    def sequence_length(self) -> int:
        """Steps that networks with memory learn through at once: as many as divide the rollout and the minibatch, cut
        into equal pieces where a minibatch would otherwise have fewer than `SEQUENCES` of them."""
        if self.ppo.sequence_length is not None:
            return self.ppo.sequence_length
        longest = math.gcd(self.ppo.rollout_length, self.minibatch_size // self.train.shards)
        return longest // _most_parts(longest, -(-SEQUENCES * longest // self.minibatch_size))

    @property
    def num_updates(self) -> int:
        """Updates that reach `train.total_timesteps`."""
        return -(-self.train.total_timesteps // self.frames_per_batch)


def open_minibatch(config: Config, members: Sequence[int] = (1,)) -> int:
    """The size of a minibatch that is left open, for groups with so many `members`: the most samples that divide the
    batch of each group, up to `MINIBATCH`, as many from each shard. With memory they are sequences, which are much
    alike within: a quarter of all (a third, half, all, where that is what whole sequences allow)."""
    shards = config.train.shards
    samples = config.envs_per_shard * config.ppo.rollout_length * math.gcd(*members)  # of a shard
    if config.network.memory == "none":
        most = max(1, min(MINIBATCH // shards, samples))
        return shards * next(size for size in range(most, 0, -1) if samples % size == 0)
    return shards * samples // _most_parts(samples // (config.ppo.sequence_length or 1), MINIBATCHES)


def check_minibatch(config: Config, members: Sequence[int] = (1,)) -> None:
    """Refuse a minibatch that does not divide the samples of an update, of each group with so many `members`, or that
    shards cannot have equal parts of."""
    frames, minibatch, shards = config.frames_per_batch, config.minibatch_size, config.train.shards
    if minibatch % shards:
        raise UserError(
            f"train.shards={shards} does not divide ppo.minibatch_size={minibatch}; each shard has as many samples of "
            f"it as the others."
        )
    wrong = next((number for number in members if frames * number % minibatch), None)
    if wrong is None:
        return
    samples = frames * math.gcd(*members)
    small = [d for d in range(1, min(math.isqrt(samples), LARGEST_TRIED) + 1) if samples % d == 0]
    fitting = sorted({*small, *(samples // d for d in small)}, key=lambda d: abs(d - minibatch))
    agents = f" * {wrong} agents" if wrong > 1 else ""
    raise UserError(
        f"ppo.minibatch_size={minibatch} does not divide the {frames * wrong} samples of an update "
        f"(env.num_envs={config.env.num_envs} * ppo.rollout_length={config.ppo.rollout_length}{agents}); "
        f"the nearest sizes that do: {', '.join(map(str, sorted(fitting[:3])))}."
    )


def _most_parts(whole: int, most: int) -> int:
    """The largest number of equal parts, up to `most`, that `whole` can be cut into."""
    return next(parts for parts in range(most, 0, -1) if whole % parts == 0)


def check(config: Config) -> Config:
    """Return `config` if its settings fit together; otherwise say which do not, with the numbers."""
    ppo, frames, minibatch = config.ppo, config.frames_per_batch, config.minibatch_size
    for wrapper in config.env.wrappers:
        name = wrapper.get("name") if isinstance(wrapper, dict) else wrapper
        if not isinstance(name, str) or not WRAPPER.fullmatch(name):
            raise UserError(
                f"env.wrappers must list names such as gymnasium.wrappers:FlattenObservation, or maps with such a "
                f"`name` and arguments; not {quoted(wrapper)}."
            )
    if (alike := same_to_trackers(config.track.info)) is not None:
        one, other = map(quoted, alike)
        again = f"{one} twice" if one == other else f"{one} and {other}, which trackers cannot tell apart"
        raise UserError(f"track.info names {again}; leave one of them out.")
    if frames > MOST_SAMPLES:
        raise UserError(
            f"env.num_envs={config.env.num_envs:,} * ppo.rollout_length={ppo.rollout_length:,} make {frames:,} samples "
            f"per update; at most {MOST_SAMPLES:,} are possible."
        )
    if config.env.num_envs % config.train.shards:
        raise UserError(
            f"train.shards={config.train.shards} does not divide env.num_envs={config.env.num_envs}; each shard has as "
            f"many environments as the others."
        )
    if ppo.sequence_length is not None:
        shards = config.train.shards
        if shards > 1 and minibatch % (shards * ppo.sequence_length) and minibatch % ppo.sequence_length == 0:
            raise UserError(
                f"ppo.minibatch_size={minibatch} has {minibatch // ppo.sequence_length} sequences "
                f"(ppo.sequence_length={ppo.sequence_length}), which train.shards={shards} does not divide; each shard "
                f"has as many of them as the others."
            )
        for name, size in (("rollout_length", ppo.rollout_length), ("minibatch_size", minibatch)):
            if size % ppo.sequence_length:
                raise UserError(
                    f"ppo.sequence_length={ppo.sequence_length} does not divide ppo.{name}={size}; the longest that "
                    f"divides the rollout and the minibatch is {math.gcd(ppo.rollout_length, minibatch)}."
                )
    if ppo.normalize_advantages == "minibatch" and minibatch == 1:
        raise UserError(
            "ppo.minibatch_size=1 leaves nothing to standardise with ppo.normalize_advantages=minibatch; "
            "use a larger minibatch, or normalize_advantages=batch or none."
        )
    for name in ("learning_rate", "clip_epsilon", "entropy_coef"):
        end, schedule = getattr(ppo, f"{name}_end"), getattr(ppo, f"{name}_schedule")
        if end and schedule not in ("linear", "cosine"):
            raise UserError(
                f"ppo.{name}_end={end} has no effect with ppo.{name}_schedule={schedule}; "
                f"set the schedule to linear or cosine, or leave the end out."
            )
    if config.stop.on == "evaluation" and config.stop.target_reward is not None and not config.eval.frequency:
        raise UserError("stop.on=evaluation needs evaluations during training; set eval.frequency to 1 or more.")
    if ppo.optimizers == "shared" and ppo.critic_learning_rate is not None:
        raise UserError(
            f"ppo.critic_learning_rate={ppo.critic_learning_rate} needs ppo.optimizers=separate, but it is shared."
        )
    if config.eval.actions != "both" and config.eval.score not in ("auto", config.eval.actions):
        raise UserError(
            f"eval.score={config.eval.score} needs such evaluations, but eval.actions={config.eval.actions}; "
            f"use eval.actions=both."
        )
    if config.train.schedule_start >= config.train.total_timesteps:
        raise UserError(
            f"train.schedule_start={config.train.schedule_start:,} is not before the end, "
            f"train.total_timesteps={config.train.total_timesteps:,}."
        )
    for name in ("start_partial", "start_digest"):
        if config.train.start_from is None and getattr(config.train, name):
            raise UserError(f"train.{name} has no effect without train.start_from; set that too.")
    network, agents = config.network, config.agents
    if agents.members is not None and agents.policy not in ("auto", "groups"):
        raise UserError(f"agents.members has no effect with agents.policy={agents.policy}; use agents.policy=groups.")
    if agents.critic == "central" and network.torso == "shared":
        raise UserError(
            "agents.critic=central needs networks that share nothing, since actor and critic see different things; "
            "use network.torso=separate."
        )
    if not agents.selfplay:
        for name in ("selfplay_every", "selfplay_pool", "sides"):
            if (value := getattr(agents, name)) != getattr(AgentsConfig(), name):
                raise UserError(f"agents.{name}={value} has no effect with agents.selfplay=0; set that too.")
    if network.torso == "shared" and ppo.optimizers == "separate":
        raise UserError(
            "ppo.optimizers=separate needs networks that share nothing, but network.torso is shared; "
            "use optimizers=shared or torso=separate."
        )
    for name, usual in (("std", "free"), ("initial_std", 1.0)):
        if network.continuous == "beta" and getattr(network, name) != usual:
            raise UserError(
                f"network.{name}={getattr(network, name)} has no effect with network.continuous=beta, which has no "
                f"standard deviation of its own; leave it at {usual}."
            )
    if ppo.learning_rate_schedule == "adaptive" and ppo.target_kl is not None and ppo.target_kl <= ppo.adaptive_kl:
        raise UserError(
            f"ppo.target_kl={ppo.target_kl} would end every update before the adaptive learning rate "
            f"reaches ppo.adaptive_kl={ppo.adaptive_kl}; raise target_kl or leave it out."
        )
    return config
