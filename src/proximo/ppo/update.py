"""One PPO update: from a rollout to new parameters, inside one compiled program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Int32, Key, Shaped

from proximo.config import Config
from proximo.policy.networks import flatten_time
from proximo.policy.normalize import RunningStats, discounted_sums, initial_stats, scale_rewards, update_stats
from proximo.policy.policies import Policies
from proximo.policy.policy import Policy
from proximo.policy.recurrent import forget
from proximo.ppo.advantages import advantages
from proximo.ppo.loss import (
    Hyper,
    Metrics,
    explained_variance,
    minibatch_loss,
    standardize_advantages,
    valid_count,
)
from proximo.ppo.optimizer import adapted_rate, descended, scheduled
from proximo.ppo.recipe import BUILT_IN, Recipe
from proximo.ppo.rollout_metrics import rollout_metrics
from proximo.ppo.samples import Samples, in_sequences
from proximo.ppo.types import EnvSteps, LearnerLanes, LearnerState, TrainState
from proximo.rollout.types import CriticState, Rollout
from proximo.seeding import training_keys
from proximo.shards import num_shards, own_key, side_by_side, sum_over_shards
from proximo.types import AnyArray, PyTree, Struct


class Rates(Struct):
    """The scheduled numbers of one update."""

    learning: Float[Array, ""]
    clip: Float[Array, ""]
    entropy: Float[Array, ""]


def initial_train_state(
    params: dict[str, PyTree[Float[Array, "..."]]],
    obs_stats: dict[str, PyTree[Float[Array, "..."]]],
    config: Config,
    reward_stats: dict[str, RunningStats | None],
    recipe: Recipe = BUILT_IN,
) -> TrainState:
    """The state before the first update of policies with `params` and `obs_stats`. Where there are `reward_stats`, the
    unit of a critic, these go on; otherwise new ones begin."""
    groups = {
        name: LearnerState(
            params=own,
            opt_state=recipe.optimizer(config.ppo).init(own),
            obs_stats=obs_stats[name],
            reward_stats=reward_stats.get(name) or (initial_stats(()) if config.normalize.rewards else None),
            learning_rate=jnp.float32(config.ppo.learning_rate),
        )
        for name, own in params.items()
    }
    return TrainState(groups, training_keys(config.seed), jnp.int32(0), EnvSteps.none())


def initial_lanes(policies: Policies, num_envs: int) -> dict[str, LearnerLanes]:
    """What learners carry, before the first rollout."""
    carry = policies.initial_carry("critic", num_envs)
    return {
        name: LearnerLanes(carry[name], jnp.zeros(num_envs * policies.groups[name].size, jnp.float32))
        for name in policies
    }


def update(
    train: TrainState,
    lanes: dict[str, LearnerLanes],
    rollouts: dict[str, Rollout],
    critic_state: CriticState | None,
    policies: Policies,
    config: Config,
    recipe: Recipe = BUILT_IN,
) -> tuple[TrainState, dict[str, LearnerLanes], Metrics]:
    """Learn from the rollouts of all groups: the new state, what learners carry on, and the update's metrics."""
    learners, after, metrics = {}, {}, {}
    for name, policy in policies.items():
        given = (train, name, lanes[name], rollouts[name], critic_state)
        learners[name], after[name], metrics[name] = update_group(*given, policy, config, recipe)
    return replace(train, groups=learners, update=train.update + 1), after, merge_metrics(metrics)


def merge_metrics(metrics: dict[str, Metrics]) -> Metrics:
    """The metrics of an update from those of each group: their means, and with several groups those of each, as
    `group/NAME/...`."""
    groups = list(metrics.values())
    if len(groups) == 1:
        return groups[0]
    common = [name for name in groups[0] if all(name in own for own in groups) and not name.startswith("buffer/action")]
    means = {name: jnp.stack([own[name].astype(jnp.float32) for own in groups]).mean() for name in common}
    return means | {f"group/{name}/{key}": value for name, own in metrics.items() for key, value in own.items()}


def update_group(
    train: TrainState,
    name: str,
    lanes: LearnerLanes,
    rollout: Rollout,
    critic_state: CriticState | None,
    policy: Policy,
    config: Config,
    recipe: Recipe = BUILT_IN,
) -> tuple[LearnerState, LearnerLanes, Metrics]:
    """Learn from the rollout of one group."""
    learner, rates = train.groups[name], current_rates(train, name, config)
    reward, reward_stats, discounted = normalized_rewards(learner, rollout, lanes.discounted, config)
    given = (lanes, rollout, critic_state, reward, policy, config)
    samples, critic_carry = training_samples(learner, *given)
    states = None if critic_state is None else flatten_time(critic_state.seen)
    again = partial(judged_again, learner, *given)
    params, opt_state, metrics = optimize(train, name, samples, states, rates, policy, config, recipe, again)
    learning_rate = learner.learning_rate
    if config.ppo.learning_rate_schedule == "adaptive":
        learning_rate = adapted_rate(learning_rate, metrics["ppo/last_epoch_kl"], config.ppo.adaptive_kl)
    reward, told = side_by_side((jnp.asarray(rollout.reward).reshape(-1), without_inputs(samples)))
    metrics |= {
        "ppo/parameter_norm": optax.tree.norm(params),
        "ppo/explained_variance": explained_variance(told.value, told.target, told.valid),
        "ppo/learning_rate": rates.learning,
        "ppo/clip_epsilon": rates.clip,
        "ppo/entropy_coef": rates.entropy,
        **rollout_metrics(reward, told, policy, reward_stats),
    }
    learner = LearnerState(
        params=params,
        opt_state=opt_state,
        # Only now: the rollout's log-probabilities were those of the old statistics.
        obs_stats=policy.update_stats(
            learner.obs_stats, samples.obs, samples.valid, looked_up(states, samples.env_row)
        ),
        reward_stats=reward_stats,
        learning_rate=learning_rate,
    )
    return learner, LearnerLanes(critic_carry, discounted), metrics


def current_rates(train: TrainState, name: str, config: Config) -> Rates:
    """Learning rate, clip range and entropy weight of the update that a group is about to make. They follow the steps
    taken since `train.schedule_start`, out of `train.total_timesteps` rounded up to whole batches: the budget counts
    those too."""
    ppo, taken = config.ppo, train.env_steps
    assert not isinstance(ppo.entropy_coef, str), "settings.settle was not asked"
    batches = taken.batches.astype(jnp.float32) + taken.rest.astype(jnp.float32) / config.frames_per_batch
    start = config.train.schedule_start / config.frames_per_batch
    if start:
        batches = jnp.maximum(batches - start, 0.0)
    progress = jnp.minimum(batches / (config.num_updates - start if start else config.num_updates), 1.0)
    learning = scheduled(ppo.learning_rate_schedule, ppo.learning_rate, ppo.learning_rate_end, progress)
    return Rates(
        learning=train.groups[name].learning_rate if ppo.learning_rate_schedule == "adaptive" else learning,
        clip=scheduled(ppo.clip_epsilon_schedule, ppo.clip_epsilon, ppo.clip_epsilon_end, progress),
        entropy=scheduled(ppo.entropy_coef_schedule, ppo.entropy_coef, ppo.entropy_coef_end, progress),
    )


def normalized_rewards(
    learner: LearnerState, rollout: Rollout, discounted: Float[Array, " L"], config: Config
) -> tuple[Float[Array, "T L"], RunningStats | None, Float[Array, " L"]]:
    """Rewards to learn from: clipped, then in units of the discounted return's deviation, this rollout included."""
    reward, limit = jnp.asarray(rollout.reward), config.normalize.clip_rewards
    if limit is not None:
        reward = jnp.clip(reward, -limit, limit)
    if learner.reward_stats is None:
        return reward, None, discounted
    discounted, sums = discounted_sums(discounted, reward, jnp.asarray(rollout.ended), config.ppo.gamma)
    stats = update_stats(learner.reward_stats, sums.reshape(-1), jnp.asarray(rollout.valid).reshape(-1))
    return scale_rewards(stats, reward), stats, discounted


def looked_up(
    states: PyTree[Shaped[Array, "rows ..."]], env_row: Int[Array, "*N"] | None
) -> PyTree[Shaped[Array, "..."]]:
    """What critics see besides, of samples: the rows of `states` [T * E, ...] that are theirs. None without any."""
    return None if env_row is None else jax.tree.map(lambda leaf: leaf[env_row], states)


def to_lanes(tree: PyTree[Shaped[AnyArray, "..."]], num_lanes: int, axis: int = 0) -> PyTree[Shaped[Array, "..."]]:
    """What belongs to environments [..., E, ...] as their lanes [..., L, ...] have it, at `axis`."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, num_lanes // leaf.shape[axis], axis=axis), tree)


def training_samples(
    learner: LearnerState,
    lanes: LearnerLanes,
    rollout: Rollout,
    critic_state: CriticState | None,
    reward: Float[AnyArray, "T L"],
    policy: Policy,
    config: Config,
) -> tuple[Samples, PyTree[Shaped[Array, "L ..."]]]:
    """Values and log-probabilities of the whole rollout in one batch, advantages in time order, then flattened; and
    the critic's memory at the end."""
    params, stats = learner.params, learner.obs_stats
    steps, num_lanes = reward.shape
    states = last = final = env_row = None
    if critic_state is not None:
        states, final = to_lanes((critic_state.seen, critic_state.final), num_lanes, axis=1)
        last = to_lanes(critic_state.last, num_lanes)
        num_envs = jax.tree.leaves(critic_state.last)[0].shape[0]
        env_row = (jnp.arange(steps * num_lanes, dtype=jnp.int32) // (num_lanes // num_envs)).astype(jnp.int32)
    if policy.recurrent:
        found = with_memory(params, stats, lanes.critic_carry, rollout, states, policy)
    else:
        found = without_memory(params, stats, lanes.critic_carry, rollout, states, policy)
    _, last_value = policy.value(params, stats, found.critic_carry, rollout.last_obs, last)
    advantage, target = advantages(
        jnp.asarray(reward),
        found.value,
        rollout.terminated,
        rollout.truncated,
        final_values(params, stats, rollout, final, found.critic_memory, policy),
        last_value,
        config.ppo.gamma,
        config.ppo.gae_lambda,
        None if rollout.settled is None else rollout.valid,
        rollout.settled,
    )
    valid = jnp.asarray(rollout.valid if rollout.settled is None else rollout.valid & rollout.settled).reshape(-1)
    advantage = advantage.reshape(-1)
    if config.ppo.normalize_advantages == "batch":
        advantage = standardize_advantages(advantage, valid)
    obs, action, mask = flatten_time((rollout.obs, rollout.action, rollout.action_mask))
    samples = Samples(
        obs=obs,
        action_mask=mask,
        action=action,
        log_prob=policy.distribution.log_prob(flatten_time(found.outputs), action, mask),
        value=found.value.reshape(-1),
        advantage=advantage,
        target=target.reshape(-1),
        valid=valid,
        episode_start=found.episode_start,
        carry=found.carry,
        env_row=env_row,
    )
    return samples, found.critic_carry


Judgement = tuple[Float[Array, " N"], Float[Array, " N"], Float[Array, " N"]]
"""Values, advantages and targets of samples."""


def judged_again(
    learner: LearnerState,
    lanes: LearnerLanes,
    rollout: Rollout,
    critic_state: CriticState | None,
    reward: Float[AnyArray, "T L"],
    policy: Policy,
    config: Config,
    params: PyTree[Float[Array, "..."]],
) -> Judgement:
    """What the critic that `params` hold makes of a rollout that was collected by `learner` as it was."""
    given = (lanes, rollout, critic_state, reward, policy, config)
    samples, _ = training_samples(replace(learner, params=params), *given)
    return judged(samples)


def judged(samples: Samples) -> Judgement:
    return samples.value, samples.advantage, samples.target


class RolloutOutputs(Struct):
    """What the networks make of a rollout, before they learn from it."""

    outputs: Float[Array, "T L P"]
    value: Float[Array, "T L"]
    critic_memory: PyTree[Shaped[Array, "T L ..."]]
    """After each step."""
    critic_carry: PyTree[Shaped[Array, "L ..."]]
    """At the end of the rollout."""
    episode_start: Bool[Array, "T*L"] | None
    carry: PyTree[Shaped[Array, "T*L ..."]]
    """Before each step."""


def without_memory(
    params: PyTree[Float[Array, "..."]],
    stats: PyTree[Float[Array, "..."]],
    critic_carry: PyTree[Shaped[Array, "L ..."]],
    rollout: Rollout,
    states: PyTree[Shaped[Array, "T L ..."]],
    policy: Policy,
) -> RolloutOutputs:
    steps, lanes = rollout.reward.shape
    carry = policy.initial_carry(steps * lanes)
    _, outputs, value = policy.act_and_value(params, stats, carry, *flatten_time((rollout.obs, states)))
    shaped = outputs.reshape(steps, lanes, -1), value.reshape(steps, lanes)
    return RolloutOutputs(*shaped, critic_carry, critic_carry, None, None)


def with_memory(
    params: PyTree[Float[Array, "..."]],
    stats: PyTree[Float[Array, "..."]],
    critic_carry: PyTree[Shaped[Array, "L ..."]],
    rollout: Rollout,
    states: PyTree[Shaped[Array, "T L ..."]],
    policy: Policy,
) -> RolloutOutputs:
    """Step by step through the rollout, from the memory at its start, forgetting where episodes end."""
    reset_mask, start = jnp.asarray(rollout.reset_mask), {"actor": rollout.carry, "critic": critic_carry}
    episode_start = jnp.concatenate([jnp.zeros_like(reset_mask[:1]), reset_mask[:-1]])
    memory, outputs, value = policy.unroll(params, stats, start, rollout.obs, episode_start, states)
    before = jax.tree.map(lambda first, after: jnp.concatenate([first[None], after[:-1]]), start, memory)
    last = jax.tree.map(lambda leaf: leaf[-1], memory["critic"])
    carry = forget(last, reset_mask[-1])
    return RolloutOutputs(outputs, value, memory["critic"], carry, episode_start.reshape(-1), flatten_time(before))


def final_values(
    params: PyTree[Float[Array, "..."]],
    stats: PyTree[Float[Array, "..."]],
    rollout: Rollout,
    states: PyTree[Shaped[Array, "T L ..."]],
    memory: PyTree[Shaped[Array, "T L ..."]],
    policy: Policy,
) -> Float[Array, "T L"]:
    """Values of the observations that truncated steps led to; the critic runs only at steps with one, with its `memory`
    after the step."""

    def step(_: None, now: tuple[PyTree, PyTree, Bool[Array, " L"], PyTree]) -> tuple[None, Float[Array, " L"]]:
        final_obs, state, truncated, carry = now
        evaluate = lambda: policy.value(params, stats, carry, final_obs, state)[1]  # noqa: E731
        return None, jax.lax.cond(truncated.any(), evaluate, lambda: jnp.zeros(truncated.shape, jnp.float32))

    return jax.lax.scan(step, None, (rollout.final_obs, states, jnp.asarray(rollout.truncated), memory))[1]


Minibatch = tuple[Samples, Float[Array, "*M"] | None]
"""And, with several shards, how many of its samples are valid in all of them."""
Loop = tuple[tuple[PyTree, PyTree], Int[Array, ""], Float[Array, ""], Metrics]
"""Of the epochs: parameters and the optimizer's state, how many there were, the KL of the last, and sums of metrics."""


def optimize(
    train: TrainState,
    name: str,
    samples: Samples,
    states: PyTree[Shaped[Array, "rows ..."]],
    rates: Rates,
    policy: Policy,
    config: Config,
    recipe: Recipe = BUILT_IN,
    again: Callable[[PyTree], Judgement] | None = None,
    watch: bool = False,
) -> tuple[PyTree[Float[Array, "..."]], PyTree, Metrics]:
    """Epochs of shuffled minibatches, with memory of whole sequences; every epoch visits every sample exactly once.
    What critics see besides stands in `states` [T * E, ...], and is looked up for each minibatch.

    With `ppo.recompute_advantages`, samples are judged `again` before each epoch but the first, by the critic as it is
    then; how likely their actions were stays as it was.
    With `watch`, each gradient's own norm is among the metrics, to find the one that is not finite.
    """
    ppo, state = config.ppo, train.groups[name]
    key = jax.random.fold_in(own_key(train.keys.shuffle), train.update)
    optimizer = recipe.optimizer(ppo)
    hyper = Hyper(rates.clip, rates.entropy, ppo.value_coef, ppo.clip_value)
    standardize = ppo.normalize_advantages == "minibatch"
    critic_share = 1.0 if ppo.critic_learning_rate is None else ppo.critic_learning_rate / ppo.learning_rate
    rows = in_rows(samples, config)
    size, num_minibatches = rows.valid.shape[0], samples.valid.shape[0] * num_shards() // config.minibatch_size
    divided = num_shards() > 1

    def step(learner: tuple[PyTree, PyTree], now: Minibatch) -> tuple[tuple[PyTree, PyTree], Metrics]:
        (params, opt_state), (minibatch, count) = learner, now
        found = jax.grad(minibatch_loss, has_aux=True)(
            *(params, state.obs_stats, minibatch, policy, recipe.loss, hyper, standardize and not divided),
            *(looked_up(states, minibatch.env_row), count),
        )
        gradients, metrics = sum_over_shards(found)
        if watch:
            metrics |= gradient_norms(gradients)
        metrics["ppo/gradient_norm"] = optax.tree.norm(gradients)
        learner = descended(optimizer, gradients, opt_state, params, rates.learning, rates.learning * critic_share)
        return learner, metrics

    def epoch(loop: Loop) -> Loop:
        learner, number, _, sums = loop
        order = shuffled(jax.random.fold_in(key, number), size)
        cut = lambda leaf: leaf[order].reshape(num_minibatches, -1, *leaf.shape[1:])  # noqa: E731
        learner, metrics = jax.lax.scan(step, learner, counted(jax.tree.map(cut, rows_of(number, learner[0]))))
        means = {name: value.mean() for name, value in metrics.items()}
        sums = {name: sums[name] + value for name, value in means.items()}
        return learner, number + 1, means["ppo/approx_kl"], sums

    def counted(minibatches: Samples) -> Minibatch:
        """With shards, what must be known of them all before a minibatch, for a whole epoch: so each minibatch waits
        for the others once."""
        if not divided:
            return minibatches, None
        valid = minibatches.valid.reshape(num_minibatches, -1)
        if standardize:
            flat = jax.vmap(standardize_advantages)(minibatches.advantage.reshape(valid.shape), valid)
            minibatches = replace(minibatches, advantage=flat.reshape(minibatches.advantage.shape))
        return minibatches, jax.vmap(valid_count)(valid)

    def rows_of(number: Int[Array, ""], params: PyTree) -> Samples:
        if again is None or not ppo.recompute_advantages:
            return rows
        value, advantage, target = jax.lax.cond(number == 0, lambda: judged(samples), lambda: again(params))
        return in_rows(replace(samples, value=value, advantage=advantage, target=target), config)

    def unfinished(loop: Loop) -> Bool[Array, ""]:
        _, number, kl, _ = loop
        more = number < ppo.epochs_per_update
        return more if ppo.target_kl is None else more & (kl <= ppo.target_kl)

    learner = (state.params, state.opt_state)
    first = jax.tree.map(lambda leaf: leaf[: size // num_minibatches], rows)
    count = jnp.float32(1) if divided else None
    zeros = {name: jnp.float32(0) for name in jax.eval_shape(step, learner, (first, count))[1]}
    learner, epochs, kl, sums = jax.lax.while_loop(unfinished, epoch, (learner, jnp.int32(0), jnp.float32(0), zeros))
    metrics = {name: value / epochs.astype(jnp.float32) for name, value in sums.items()}
    metrics |= {"ppo/epochs": epochs, "ppo/last_epoch_kl": kl}
    return *learner, metrics


def in_rows(samples: Samples, config: Config) -> Samples:
    """What is shuffled: samples, or with memory sequences of them."""
    if samples.carry is None:
        return samples
    return in_sequences(samples, samples.valid.shape[0] // config.ppo.rollout_length, config.sequence_length)


def without_inputs(samples: Samples) -> Samples:
    """What metrics look at: not what networks were shown."""
    return replace(samples, obs=None, action_mask=None, episode_start=None, carry=None, env_row=None)


def gradient_norms(gradients: PyTree[Float[Array, "..."]]) -> Metrics:
    """The norm of each gradient, as `gradient/actor/Dense_0/kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(gradients)
    names = [f"gradient/{jax.tree_util.keystr(path, simple=True, separator='/')}" for path, _ in leaves]
    return {name: jnp.sqrt(jnp.square(leaf).sum()) for name, (_, leaf) in zip(names, leaves, strict=True)}


def shuffled(key: Key[Array, ""], size: int) -> Int32[Array, " {size}"]:
    """A random order of 0 .. size - 1.

    Numbers are sorted whose high bits are random and whose low bits are the index: on CPU many times faster than
    sorting pairs, as `jax.random.permutation` does. With at most 12 bits of index, equal high bits are too rare to
    matter; with more of them two such orders follow each other.
    """
    width = (size - 1).bit_length()
    if width > 12:
        first, second = jax.random.split(key)
        return sorted_bits(first, size, width)[sorted_bits(second, size, width)]
    return sorted_bits(key, size, width)


def sorted_bits(key: Key[Array, ""], size: int, width: int) -> Int32[Array, " {size}"]:
    low = jnp.uint32((1 << width) - 1)
    numbers = jax.random.bits(key, (size,)) & ~low | jnp.arange(size, dtype=jnp.uint32)
    # No two are equal, so a stable sort gives the same; it is slower for few, and faster for many.
    order: jax.Array = jax.lax.sort(numbers, is_stable=width > 12) & low
    return order.astype(jnp.int32)
