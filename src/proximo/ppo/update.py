"""One PPO update: from a rollout to new parameters, inside one compiled program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from proximo.config import Config
from proximo.policy.memory import forget
from proximo.policy.normalize import RunningStats, discounted_sums, initial_stats, scale_rewards, update_stats
from proximo.policy.policy import Policy
from proximo.ppo.advantages import advantages
from proximo.ppo.buffer import buffer_metrics
from proximo.ppo.loss import Metrics, explained_variance, ppo_loss, standardize_advantages
from proximo.ppo.optimizer import adam_direction, adam_init, adapted_rate, clip_by_global_norm, descend, scheduled
from proximo.ppo.rollout import Rollout, Samples, flatten_lanes, in_sequences
from proximo.seeding import Keys, training_keys

Tree = Any


@struct.dataclass
class EnvSteps:
    """Environment steps that counted, as whole batches of `frames_per_batch` and the rest: compiled programs count
    in 32 bits, and long runs go beyond them."""

    batches: jax.Array  # int32
    rest: jax.Array  # int32, less than a batch

    @classmethod
    def none(cls) -> EnvSteps:
        return cls(jnp.int32(0), jnp.int32(0))

    def after(self, steps: jax.Array, batch: int) -> EnvSteps:
        """The count after `steps` more, at most a `batch`."""
        rest = self.rest + steps
        return EnvSteps(self.batches + rest // batch, rest % batch)


@struct.dataclass
class TrainState:
    """Everything that learning changes."""

    params: Tree
    opt_state: Tree
    obs_stats: Tree
    reward_stats: RunningStats | None
    learning_rate: jax.Array  # float32; moves only with the adaptive schedule
    keys: Keys
    update: jax.Array  # int32 updates done
    env_steps: EnvSteps  # taken; steps that do not count, such as EnvPool's fillers, are none
    pool: Tree = None  # [P, ...] with self-play: earlier policies, and how many there were


@struct.dataclass
class Rates:
    """The scheduled numbers of one update."""

    learning: jax.Array
    clip: jax.Array
    entropy: jax.Array


def initial_train_state(
    params: Tree, obs_stats: Tree, config: Config, reward_stats: RunningStats | None = None
) -> TrainState:
    """The state before the first update of a policy with `params` and `obs_stats`. With `reward_stats`, which say what
    its critic's unit is, these go on; otherwise new ones begin."""
    if config.normalize.rewards and reward_stats is None:
        reward_stats = initial_stats(())
    return TrainState(
        params=params,
        opt_state=adam_init(params),
        obs_stats=obs_stats,
        reward_stats=reward_stats,
        learning_rate=jnp.float32(config.ppo.learning_rate),
        keys=training_keys(config.seed),
        update=jnp.int32(0),
        env_steps=EnvSteps.none(),
    )


def update(
    state: TrainState, rollout: Rollout, discounted: jax.Array, policy: Policy, config: Config
) -> tuple[TrainState, jax.Array, Tree, Metrics]:
    """Learn from `rollout`. Also returns the lanes' discounted reward sums [L] and the critic's memory, both
    carried into the next rollout, and the update's metrics."""
    rates = current_rates(state, config)
    reward, reward_stats, discounted = normalized_rewards(state, rollout, discounted, config)
    samples, critic_carry = training_samples(state, rollout, reward, policy, config)
    params, opt_state, metrics = optimize(state, samples, rates, policy, config)
    learning_rate = state.learning_rate
    if config.ppo.learning_rate_schedule == "adaptive":
        learning_rate = adapted_rate(learning_rate, metrics["ppo/last_epoch_kl"], config.ppo.adaptive_kl)
    metrics |= {
        "ppo/parameter_norm": optax.tree.norm(params),
        "ppo/explained_variance": explained_variance(samples.value, samples.target, samples.valid),
        "ppo/learning_rate": rates.learning,
        "ppo/clip_epsilon": rates.clip,
        "ppo/entropy_coef": rates.entropy,
        **buffer_metrics(rollout, samples, policy, reward_stats),
    }
    state = replace(
        state,
        params=params,
        opt_state=opt_state,
        # Only now: the rollout's log-probabilities were those of the old statistics.
        obs_stats=policy.update_stats(state.obs_stats, samples.obs, samples.valid),
        reward_stats=reward_stats,
        learning_rate=learning_rate,
        update=state.update + 1,
    )
    return state, discounted, critic_carry, metrics


def current_rates(state: TrainState, config: Config) -> Rates:
    """Learning rate, clip range and entropy weight of the update about to be made. They follow the steps taken, out of
    `train.total_timesteps` rounded up to whole batches: the budget counts those too."""
    ppo, taken = config.ppo, state.env_steps
    assert not isinstance(ppo.entropy_coef, str), "settings.settle was not asked"
    batches = taken.batches.astype(jnp.float32) + taken.rest.astype(jnp.float32) / config.frames_per_batch
    progress = jnp.minimum(batches / config.num_updates, 1.0)
    learning = scheduled(ppo.learning_rate_schedule, ppo.learning_rate, ppo.learning_rate_end, progress)
    return Rates(
        learning=state.learning_rate if ppo.learning_rate_schedule == "adaptive" else learning,
        clip=scheduled(ppo.clip_epsilon_schedule, ppo.clip_epsilon, ppo.clip_epsilon_end, progress),
        entropy=scheduled(ppo.entropy_coef_schedule, ppo.entropy_coef, ppo.entropy_coef_end, progress),
    )


def normalized_rewards(
    state: TrainState, rollout: Rollout, discounted: jax.Array, config: Config
) -> tuple[jax.Array, RunningStats | None, jax.Array]:
    """Rewards to learn from: clipped, then in units of the discounted return's deviation, this rollout included."""
    reward, limit = rollout.reward, config.normalize.clip_rewards
    if limit is not None:
        reward = jnp.clip(reward, -limit, limit)
    if state.reward_stats is None:
        return reward, None, discounted
    discounted, sums = discounted_sums(discounted, reward, rollout.ended, config.ppo.gamma)
    stats = update_stats(state.reward_stats, sums.reshape(-1), rollout.valid.reshape(-1))
    return scale_rewards(stats, reward), stats, discounted


def training_samples(
    state: TrainState, rollout: Rollout, reward: jax.Array, policy: Policy, config: Config
) -> tuple[Samples, Tree]:
    """Values and log-probabilities of the whole rollout in one batch, advantages in time order, then flattened; and
    the critic's memory at the end."""
    params, stats = state.params, state.obs_stats
    if policy.recurrent:
        seen = with_memory(params, stats, rollout, policy)
    else:
        seen = without_memory(params, stats, rollout, policy)
    _, last_value = policy.value(params, stats, seen.critic_carry, rollout.last_obs)
    advantage, target = advantages(
        reward,
        seen.value,
        rollout.terminated,
        rollout.truncated,
        final_values(params, stats, rollout, seen.critic_memory, policy),
        last_value,
        config.ppo.gamma,
        config.ppo.gae_lambda,
        None if rollout.settled is None else rollout.valid,
        rollout.settled,
    )
    valid = (rollout.valid if rollout.settled is None else rollout.valid & rollout.settled).reshape(-1)
    advantage = advantage.reshape(-1)
    if config.ppo.normalize_advantages == "batch":
        advantage = standardize_advantages(advantage, valid)
    obs, action, mask = flatten_lanes((rollout.obs, rollout.action, rollout.action_mask))
    samples = Samples(
        obs=obs,
        action_mask=mask,
        action=action,
        log_prob=policy.distribution.log_prob(flatten_lanes(seen.outputs), action, mask),
        value=seen.value.reshape(-1),
        advantage=advantage,
        target=target.reshape(-1),
        valid=valid,
        fresh=seen.fresh,
        memory=seen.memory,
    )
    return samples, seen.critic_carry


@struct.dataclass
class Seen:
    """What the networks make of a rollout, before they learn from it."""

    outputs: jax.Array  # [T, L, P]
    value: jax.Array  # [T, L]
    critic_memory: Tree  # [T, L, ...] after each step
    critic_carry: Tree  # [L, ...] at the end of the rollout
    fresh: jax.Array | None  # [T * L]
    memory: Tree  # [T * L, ...] before each step


def without_memory(params: Tree, stats: Tree, rollout: Rollout, policy: Policy) -> Seen:
    steps, lanes = rollout.reward.shape
    carry = policy.initial_carry(steps * lanes)
    _, outputs, value = policy.act_and_value(params, stats, carry, flatten_lanes(rollout.obs))
    empty = rollout.carry["critic"]
    return Seen(outputs.reshape(steps, lanes, -1), value.reshape(steps, lanes), empty, empty, None, None)


def with_memory(params: Tree, stats: Tree, rollout: Rollout, policy: Policy) -> Seen:
    """Step by step through the rollout, from the memory at its start, forgetting where episodes end."""
    forgotten = jnp.asarray(rollout.forgotten)
    fresh = jnp.concatenate([jnp.zeros_like(forgotten[:1]), forgotten[:-1]])
    memory, outputs, value = policy.unroll(params, stats, rollout.carry, rollout.obs, fresh)
    before = jax.tree.map(lambda first, after: jnp.concatenate([first[None], after[:-1]]), rollout.carry, memory)
    last = jax.tree.map(lambda leaf: leaf[-1], memory["critic"])
    carry = forget(last, forgotten[-1])
    return Seen(outputs, value, memory["critic"], carry, fresh.reshape(-1), flatten_lanes(before))


def final_values(params: Tree, stats: Tree, rollout: Rollout, memory: Tree, policy: Policy) -> jax.Array:
    """Values [T, L] of the observations that truncated steps led to; the critic runs only at steps with one, with its
    `memory` [T, L, ...] after the step."""

    def step(_: None, now: tuple[Tree, jax.Array, Tree]) -> tuple[None, jax.Array]:
        final_obs, truncated, carry = now
        evaluate = lambda: policy.value(params, stats, carry, final_obs)[1]  # noqa: E731
        return None, jax.lax.cond(truncated.any(), evaluate, lambda: jnp.zeros(truncated.shape, jnp.float32))

    return jax.lax.scan(step, None, (rollout.final_obs, rollout.truncated, memory))[1]


def optimize(
    state: TrainState, samples: Samples, rates: Rates, policy: Policy, config: Config, watch: bool = False
) -> tuple[Tree, Tree, Metrics]:
    """Epochs of shuffled minibatches, with memory of whole sequences; every epoch visits every sample exactly once.

    With `watch`, each gradient's own norm is among the metrics, to find the one that is not finite.
    """
    ppo = config.ppo
    key = jax.random.fold_in(state.keys.shuffle, state.update)
    if samples.memory is not None:
        samples = in_sequences(samples, samples.valid.shape[0] // ppo.rollout_length, config.sequence_length)
    size = samples.valid.shape[0]

    def step(learner: tuple[Tree, Tree], minibatch: Samples) -> tuple[tuple[Tree, Tree], Metrics]:
        params, opt_state = learner
        gradients, metrics = jax.grad(ppo_loss, has_aux=True)(
            params, state.obs_stats, minibatch, policy, ppo, rates.clip, rates.entropy
        )
        if watch:
            metrics |= gradient_norms(gradients)
        gradients, metrics["ppo/gradient_norm"] = clip_gradients(gradients, config)
        direction, opt_state = adam_direction(gradients, opt_state, ppo.adam_epsilon)
        critic_share = 1.0 if ppo.critic_learning_rate is None else ppo.critic_learning_rate / ppo.learning_rate
        own_rates = {"critic": rates.learning * critic_share}
        params = {
            name: descend(part, direction[name], own_rates.get(name, rates.learning)) for name, part in params.items()
        }
        return (params, opt_state), metrics

    def epoch(loop: tuple[Any, ...]) -> tuple[Any, ...]:
        learner, number, _, sums = loop
        order = shuffled(jax.random.fold_in(key, number), size)
        rows = lambda leaf: leaf[order].reshape(config.num_minibatches, -1, *leaf.shape[1:])  # noqa: E731
        learner, metrics = jax.lax.scan(step, learner, jax.tree.map(rows, samples))
        means = {name: value.mean() for name, value in metrics.items()}
        sums = {name: sums[name] + value for name, value in means.items()}
        return learner, number + 1, means["ppo/approx_kl"], sums

    def unfinished(loop: tuple[Any, ...]) -> jax.Array:
        _, number, kl, _ = loop
        more = number < ppo.epochs_per_update
        return more if ppo.target_kl is None else more & (kl <= ppo.target_kl)

    names = (*METRICS, *gradient_norms(state.params)) if watch else METRICS
    zeros = {name: jnp.float32(0) for name in names}
    learner, epochs, kl, sums = jax.lax.while_loop(
        unfinished, epoch, ((state.params, state.opt_state), jnp.int32(0), jnp.float32(0), zeros)
    )
    metrics = {name: value / epochs.astype(jnp.float32) for name, value in sums.items()}
    metrics |= {"ppo/epochs": epochs, "ppo/last_epoch_kl": kl}
    return *learner, metrics


METRICS = (
    "loss/objective",
    "loss/critic",
    "loss/entropy",
    "loss/total",
    "ppo/approx_kl",
    "ppo/clip_fraction",
    "ppo/gradient_norm",
)


def gradient_norms(gradients: Tree) -> Metrics:
    """The norm of each gradient, as `gradient/actor/Dense_0/kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(gradients)
    names = [f"gradient/{jax.tree_util.keystr(path, simple=True, separator='/')}" for path, _ in leaves]
    return {name: jnp.sqrt(jnp.square(leaf).sum()) for name, (_, leaf) in zip(names, leaves, strict=True)}


def clip_gradients(gradients: Tree, config: Config) -> tuple[Tree, jax.Array]:
    """Clip over everything (shared), or actor and critic each on its own (separate); and the norm before."""
    ppo = config.ppo
    if ppo.optimizers == "shared":
        return clip_by_global_norm(gradients, ppo.max_grad_norm)
    actor, actor_norm = clip_by_global_norm(gradients["actor"], ppo.max_grad_norm)
    critic, critic_norm = clip_by_global_norm(gradients["critic"], ppo.max_grad_norm)
    return {"actor": actor, "critic": critic}, jnp.sqrt(jnp.square(actor_norm) + jnp.square(critic_norm))


def shuffled(key: jax.Array, size: int) -> jax.Array:
    """A random order of 0 .. size - 1.

    Small ones are sorted as numbers whose high bits are random and whose low bits are the index: on CPU several times
    faster than sorting pairs. With at most 12 bits of index, equal high bits are too rare to matter.
    """
    width = (size - 1).bit_length()
    if width > 12:
        return jax.random.permutation(key, size)
    low = jnp.uint32((1 << width) - 1)
    return (jnp.sort(jax.random.bits(key, (size,)) & ~low | jnp.arange(size, dtype=jnp.uint32)) & low).astype(jnp.int32)
